"""Virtual memory at its edges, beyond what clauses ask, on the simulated device."""

import copy
import multiprocessing
import os
import pickle
from multiprocessing import forkserver
from multiprocessing.reduction import ForkingPickler

import pytest
import sharedtensor.multiprocessing as mp
from cuda_peers import Peer, drop, give, keep, load, read
from sharedtensor import cuda, protocol
from sharedtensor.cuda import virtual
from sharedtensor.cuda.devices import device_state
from sharedtensor.cuda.errors import DeviceHandleError, OutOfDeviceMemoryError
from sharedtensor.cuda.simulated import GRANULARITY
from sharedtensor.cuda.state import VirtualMessage
from sharedtensor.errors import DescriptorError

pytestmark = pytest.mark.usefixtures("all_given_back")


def across(values):
    """Return a tensor of float64 across the border of two pieces."""
    block = cuda.virtual_block(1, 1)
    offset = block.nbytes // 2 - 8 * (len(values) // 2)
    made = cuda.carve(block, offset, (len(values),), "float64")
    made.write(..., values)
    return made


def test_a_channel_of_the_standard_library_carries_it_there_and_back(peer):
    tensor = across([1, 2, 3, 4])
    peer.call(keep, "x", tensor)
    assert peer.call(read, "x") == [1, 2, 3, 4]
    assert peer.call(give, "x").storage is tensor.storage
    peer.call(drop, "x")


def test_its_message_is_of_one_receiver_like_any_other(peer):
    """The descriptors are handed out once, so bytes of a message are good once."""
    reader, writer = mp.get_context("spawn").Pipe(duplex=False)
    with reader, writer:
        writer.send(across([1, 2]))
        content = reader.recv_bytes()
    with pytest.raises(Exception, match="each of them once"):
        peer.call(load, "x", content)


def test_bytes_do_not_carry_it():
    tensor = across([1, 2])
    with pytest.raises(DeviceHandleError, match="by descriptors, which bytes do not"):
        ForkingPickler.dumps(tensor)
    for storage in (tensor.storage, cuda.tensor([1]).storage):
        with pytest.raises(TypeError, match="has no bytes to pickle"):
            pickle.dumps(storage)
    with pytest.raises(TypeError, match="has no bytes to pickle"):
        ForkingPickler.dumps(storage)


def child(tensors, pipe):
    """Read two views of one memory and write through one of them."""
    whole, part = tensors
    part.write(0, 9.0)
    cuda.synchronize(whole.device)
    pipe.send((whole.tolist(), whole.storage is part.storage))


@pytest.fixture
def new_fork_server():
    """An earlier one may have been started before there was a simulated device."""
    forkserver._forkserver._stop()


@pytest.mark.parametrize("module", [mp, multiprocessing])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_gets_it_as_an_argument(module, method, new_fork_server):
    context = module.get_context(method)
    tensor = across([1, 2, 3, 4])
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=([tensor, tensor[1:]], theirs))
    process.start()
    theirs.close()
    assert ours.recv() == ([1, 9, 3, 4], True)
    process.join()
    assert tensor.tolist() == [1, 9, 3, 4]


def test_no_descriptor_is_left_when_a_piece_finds_no_room():
    free, total = cuda.memory_info("sim:0")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OutOfDeviceMemoryError):
        cuda.virtual_block(GRANULARITY, total, device="sim:0")
    for sizes in ((), (0,), (1, -GRANULARITY)):
        with pytest.raises(cuda.DeviceError, match="sizes from 1 byte on"):
            cuda.virtual_block(*sizes)
    assert cuda.memory_info("sim:0")[0] == free
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_of_other_memory_are_refused():
    driver = device_state("sim:0").driver
    with (
        open(os.devnull) as file,
        pytest.raises(DeviceHandleError, match="leads to no"),
    ):
        driver.map_received([file.fileno()], [GRANULARITY])
    block = cuda.virtual_block(1, 1)
    owned = driver.export_mapped(block.data_ptr())
    with pytest.raises(DeviceHandleError, match="that have other sizes"):
        driver.map_received([each.fd for each in owned], [GRANULARITY])


def test_a_descriptor_that_the_program_has_closed_is_not_closed_again():
    """What it opens in its place has the same number."""
    message = protocol.pack_message(across([1, 2]))
    for fd in message.descriptors:
        os.close(fd)
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in message.descriptors]
    assert sorted(opened) == sorted(message.descriptors)
    with pytest.raises(DescriptorError):
        message.verify()
    message.clear()
    for fd in opened:
        os.close(fd)


_held_to_the_end = []


def write_to_the_end(held, name):
    """Leave a write pending, on a tensor that this process holds until it exits."""
    held[name].write(1, 5)
    _held_to_the_end.append(held[name])


def test_what_a_process_has_written_is_there_when_it_has_exited(new_peer):
    tensor = across([1, 2])
    new_peer.call(keep, "x", tensor)
    new_peer.call(write_to_the_end, "x")
    assert tensor.tolist() == [1, 2]
    new_peer.end()
    assert tensor.tolist() == [1, 5]


def test_an_error_of_a_receive_that_is_kept_keeps_no_descriptor():
    state, block = device_state("sim:0"), cuda.virtual_block(1)
    owned = state.driver.export_mapped(block.data_ptr())
    before = len(os.listdir("/proc/self/fd"))
    handles = [(os.getpid(), each.fd) for each in owned]
    forged = VirtualMessage((bytes(16), 0), [1], handles)
    with pytest.raises(DeviceHandleError) as kept:
        virtual.receive(state, forged)
    assert kept.value.__traceback__ is not None
    assert len(os.listdir("/proc/self/fd")) == before


def make_and_wait(held):
    """Make memory, and keep nothing but a descriptor of it."""
    device = cuda.use_simulated_device()
    block = cuda.virtual_block(1)
    held["device"] = device_state(device).driver
    held["owned"] = held["device"].export_mapped(block.data_ptr())


def test_a_descriptor_alone_keeps_memory_until_its_process_is_killed():
    free = cuda.memory_info("sim:0")[0]
    peer = Peer()
    peer.call(make_and_wait)
    assert cuda.memory_info("sim:0")[0] == free - GRANULARITY
    peer.kill()
    assert cuda.memory_info("sim:0")[0] == free


def test_a_deep_copy_lies_in_memory_of_its_own():
    tensor = across([1, 2])
    other = copy.deepcopy(tensor)
    tensor.write(0, 5)
    assert other.tolist() == [1, 2]
