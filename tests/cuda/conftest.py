"""What the tests of device memory share: devices, and peers to share them with."""

import gc

import pytest
from cuda_peers import Peer, drop_everything
from own_garbage import only_own_garbage
from sharedtensor import cuda
from sharedtensor.cuda import simulated
from sharedtensor.cuda.devices import device_state
from sharedtensor_conformance.adapters.reference import is_emulated

__all__ = ["only_own_garbage"]  # pytest finds it here

DEVICES = {"simulated": "sim:0", "emulated": "cuda:0", "cuda": "cuda:0"}


def pytest_addoption(parser):
    text = "where test_driver_rules.py is run (default: %(default)s)"
    parser.addoption("--device", choices=DEVICES, default="simulated", help=text)


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "rule(name): the rule of the guide that is tested"
    )
    chosen = config.getoption("device", "simulated")
    if chosen != "simulated" and is_emulated() != (chosen == "emulated"):
        what = "emulated" if is_emulated() else "not emulated"
        raise pytest.UsageError(f"--device={chosen}: the CUDA runtime here is {what}")


@pytest.fixture
def device_name(request):
    """The name of the device that the command line chooses."""
    return DEVICES[request.config.getoption("device", "simulated")]


@pytest.fixture(scope="session")
def two_peers():
    """Peers that tests use one after the other: to start one takes half a second."""
    started = Peer(), Peer()
    yield started
    for peer in started:
        peer.end()


@pytest.fixture
def peers(two_peers):
    """Two peers, which hold nothing."""
    yield two_peers
    for peer in two_peers:
        peer.call(drop_everything)


@pytest.fixture
def peer(peers):
    """One of the two, where a test needs no other."""
    return peers[0]


@pytest.fixture
def new_peer():
    """A peer of this test alone, which it may change, end or kill."""
    started = Peer()
    yield started
    started.end()


@pytest.fixture
def all_given_back():
    """Nothing of what a test allocates and sends stays, on the device or on its way."""
    name = cuda.use_simulated_device()
    cuda.ipc_collect(name)
    before = cuda.memory_info(name)
    yield
    gc.collect()  # what caught errors still refer to
    cuda.ipc_collect(name)
    assert cuda.memory_info(name) == before
    state = device_state(name)
    assert not state.limbo
    assert not state.sent_events


@pytest.fixture
def device():
    """A small simulated device of this test alone, used by this process."""
    made = simulated.SimulatedDevice.create(1 << 20)
    yield made
    made.close()
