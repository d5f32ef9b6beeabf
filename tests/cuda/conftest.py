"""What the tests of device memory share: devices, and peers to share them with."""

import pytest
from cuda_peers import Peer
from sharedtensor.cuda import simulated


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "rule(name): the rule of `sharedtensor.cuda.rules` that is tested"
    )


@pytest.fixture(scope="session")
def peers():
    """Two peers that live as long as the run; a test joins its own device."""
    pair = Peer(), Peer()
    yield pair
    for peer in pair:
        peer.end()


@pytest.fixture
def device():
    """A small simulated device of this test alone, used by this process."""
    made = simulated.SimulatedDevice.create(1 << 20)
    yield made
    made.close()


@pytest.fixture(params=["spawn", "forkserver"])
def peer(request):
    """A peer that this test may end or kill, under either start method."""
    started = Peer(request.param)
    yield started
    started.end()
