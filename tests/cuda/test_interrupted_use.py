"""A thread that uses a device is refused a second use within it, and does not hang.

A handler of a signal runs between any two steps of the protocol, in the thread that it
interrupts. What it would wait for is that thread.
"""

import os
import signal
from multiprocessing.reduction import ForkingPickler

import pytest
from cuda_peers import counts_in_use, pickled_for_a_channel
from sharedtensor import cuda
from sharedtensor.cuda import devices
from sharedtensor.cuda.devices import device_state
from sharedtensor.cuda.shared_file import SharedFile

DEVICE = "sim:0"
DEADLINE = 5  # seconds


@pytest.fixture(autouse=True)
def _no_endless_wait():
    """Raise in a handler that waits: a second signal interrupts it."""
    cuda.use_simulated_device()

    def too_late(*ignored):
        raise TimeoutError("a handler waits for the thread that it interrupted")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(DEADLINE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def interrupted(monkeypatch):
    """Return a function that has a handler run within a step, and what it raised."""
    before = signal.getsignal(signal.SIGUSR1)

    def interrupt(holder, step, handler):
        raised, original = [], getattr(holder, step)

        def handle(*ignored):
            try:
                handler()
            except cuda.DeviceError as error:
                raised.append(str(error))

        def with_a_signal(*arguments):
            signal.raise_signal(signal.SIGUSR1)
            return original(*arguments)

        signal.signal(signal.SIGUSR1, handle)
        monkeypatch.setattr(holder, step, with_a_signal)
        return raised

    yield interrupt
    signal.signal(signal.SIGUSR1, before)


USES = {
    "reads": lambda tensor: tensor.cpu(),
    "writes": lambda tensor: tensor.write(0, 9),
    "makes": lambda tensor: cuda.tensor([4, 5]),
    "sends": lambda tensor: ForkingPickler.loads(pickled_for_a_channel(tensor)),
    "pickles": lambda tensor: ForkingPickler.loads(ForkingPickler.dumps(tensor)),
    "synchronises": lambda tensor: cuda.synchronize(),
    "collects": lambda tensor: cuda.ipc_collect(),
    "asks": lambda tensor: cuda.memory_info(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_handler_is_refused_what_its_thread_is_inside(use, interrupted, monkeypatch):
    tensor = cuda.tensor([1, 2, 3])
    driver = device_state(DEVICE).driver
    raised = interrupted(driver, "copy_to_host", lambda: use(tensor))
    assert tensor.cpu().tolist() == [1, 2, 3]
    assert len(raised) == 1
    assert "this thread is using" in raised[0]
    monkeypatch.undo()
    use(tensor)  # and later it is not


def test_a_handler_can_drop_a_tensor(interrupted):
    """What a finalizer does is queued: it waits for nobody."""
    tensor, dropped = cuda.tensor([1, 2, 3]), [cuda.tensor([4])]
    free, _ = cuda.memory_info()
    raised = interrupted(device_state(DEVICE).driver, "copy_to_host", dropped.clear)
    assert tensor.tolist() == [1, 2, 3]
    assert raised == []
    assert cuda.memory_info()[0] > free


def test_a_message_that_a_handler_is_refused_counts_no_more(interrupted):
    tensor = cuda.tensor([1, 2, 3])
    message = pickled_for_a_channel(tensor)
    driver = device_state(DEVICE).driver
    raised = interrupted(driver, "copy_to_host", lambda: ForkingPickler.loads(message))
    assert tensor.tolist() == [1, 2, 3]
    assert len(raised) == 1
    assert counts_in_use() == []


def test_a_handler_is_refused_a_device_whose_use_its_thread_begins(
    interrupted, monkeypatch
):
    class NoDeviceError(Exception):
        pass

    def fail(*ignored):
        raise NoDeviceError

    monkeypatch.setattr(devices, "_states", {})
    monkeypatch.setattr(devices, "find_or_create", fail)
    raised = interrupted(devices, "find_or_create", lambda: cuda.tensor([1]))
    for number in (1, 2):
        with pytest.raises(NoDeviceError):
            cuda.tensor([1])
        assert len(raised) == number
    assert "this thread is using" in raised[0]


def test_a_file_is_closed_once_wherever_an_exception_arises(monkeypatch):
    """Clause FAULT-2: its number may be that of another file by then."""
    file = SharedFile.create("test", 4096)
    number, close = file.address.descriptor, os.close

    def close_and_be_interrupted(descriptor):
        close(descriptor)
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(os, "close", close_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            file.close()
    assert os.open(os.devnull, os.O_RDONLY) == number, "the lowest that is free"
    file.close()
    os.fstat(number)
    close(number)
