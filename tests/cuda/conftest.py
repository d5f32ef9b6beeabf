"""What the tests of device memory share: devices, and peers to share them with."""

import gc

import pytest
from cuda_peers import Peer, PeerPool
from sharedtensor.cuda import simulated


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "rule(name): the rule of the guide that is tested"
    )


@pytest.fixture(autouse=True)
def only_own_garbage():
    """Collect only what a test makes: tests collect often, and pytest has much."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def pool():
    """Peers that tests use one after the other: to start one takes half a second."""
    pool = PeerPool()
    yield pool
    pool.end()


@pytest.fixture
def peers(pool):
    """Two peers."""
    with pool.lent("spawn") as first, pool.lent("spawn") as second:
        yield first, second


@pytest.fixture
def device():
    """A small simulated device of this test alone, used by this process."""
    made = simulated.SimulatedDevice.create(1 << 20)
    yield made
    made.close()


@pytest.fixture(params=["spawn", "forkserver"])
def peer(request, pool):
    """A peer under either start method, which the test may end or kill."""
    with pool.lent(request.param) as lent:
        yield lent


@pytest.fixture
def new_peer(request):
    """A peer of this test alone, for one that changes it or asks what it has."""
    started = Peer(getattr(request, "param", "spawn"))
    yield started
    started.end()
