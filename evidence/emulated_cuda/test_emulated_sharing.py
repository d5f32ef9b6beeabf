"""The CuPy backend shares memory on the emulated runtime, beyond what clauses ask."""

from multiprocessing.reduction import ForkingPickler

import cuda_peers
import cupy
import numpy as np
import pytest
from cuda_peers import drop, dump, keep, load, pickled_for_a_channel, read
from sharedtensor import cuda


def small_arrays(count):
    """Return arrays that lie beside each other in one block of the driver."""
    return [cupy.asarray(np.full(4, number)) for number in range(count)]


def test_a_small_array_that_is_sent_on_is_the_same_memory(new_peer):
    arrays = small_arrays(3)
    tensor = cuda.from_cupy(arrays[1])
    between, third = new_peer(), new_peer()
    between.call(keep, "x", tensor)
    third.call(load, "x", between.call(dump, "x"))
    assert third.call(read, "x") == [1, 1, 1, 1]
    third.call(cuda_peers.write, "x", 0, 9)
    third.call(cuda_peers.synchronize, "cuda:0")
    assert tensor.tolist() == [9, 1, 1, 1]
    assert [array.get().tolist() for array in arrays[::2]] == [[0] * 4, [2] * 4]


def array_and_back(held, name):
    """Make an array over a received tensor, and a tensor over that."""
    held["again"] = cuda.from_cupy(cuda.to_cupy(held[name]))
    return held["again"].storage is held[name].storage


def test_an_array_over_a_received_small_tensor_is_known_as_that(new_peer):
    arrays = small_arrays(2)
    peer = new_peer()
    peer.call(keep, "x", cuda.from_cupy(arrays[1]))
    assert peer.call(array_and_back, "x")
    assert peer.call(read, "again") == [1, 1, 1, 1]


# Several devices


def device_of(held, name):
    """Say on which device an event lies, by the name that it has in this process."""
    return held[name].device


def test_an_event_arrives_on_its_gpu_where_the_devices_are_ordered_otherwise(new_peer):
    peer = new_peer(CUDA_VISIBLE_DEVICES="1,0")
    event = cuda.Event("cuda:1")
    event.record()
    peer.call(keep, "event", event)
    assert peer.call(device_of, "event") == "cuda:0"


def free_bytes(held, device):
    """Return the bytes that are free on a device, asked by a process that uses it."""
    return cuda.memory_info(device)[0]


def use(held, device):
    """Make a tensor on a device and read it as an array."""
    held["x"] = cuda.tensor([1, 2, 3], device=device)
    array = cuda.to_cupy(held["x"])
    with held["x"].storage.state.driver.current():
        return array.get().tolist()


def test_a_process_on_the_second_device_takes_nothing_of_the_first(peer):
    before = free_bytes({}, "cuda:0")
    assert peer.call(use, "cuda:1") == [1, 2, 3]
    assert free_bytes({}, "cuda:0") == before


def current_device(held):
    """Say which device CuPy takes for current, before and after another is used."""
    runtime = cupy.cuda.runtime
    before = runtime.getDevice()
    cuda.tensor([1], device="cuda:1").tolist()
    return before, runtime.getDevice()


def test_the_current_device_of_a_program_stays(peer):
    assert peer.call(current_device) == (0, 0)


# Virtual memory


def set_by_cupy(held, name, values):
    """Copy values to the memory of a received tensor by CuPy, and wait."""
    cuda.to_cupy(held[name]).set(np.array(values))
    cuda.synchronize("cuda:0")


def test_an_array_lies_across_two_allocations_of_virtual_memory(peer):
    block = cuda.virtual_block(1, 1, device="cuda:0")
    array = cuda.to_cupy(cuda.carve(block, block.nbytes // 2 - 16, (4,), "float64"))
    array.set(np.array([1.0, 2.0, 3.0, 4.0]))
    tensor = cuda.from_cupy(array)
    assert tensor.storage is block
    peer.call(keep, "x", tensor)
    assert peer.call(read, "x") == [1, 2, 3, 4]
    peer.call(set_by_cupy, "x", [5.0, 6.0, 7.0, 8.0])
    assert array.get().tolist() == [5, 6, 7, 8]


def test_work_on_a_stream_that_does_not_block_is_there_in_virtual_memory(peer):
    block = cuda.virtual_block(1, device="cuda:0")
    tensor = cuda.carve(block, 0, (4,), "float64")
    tensor.write(..., 0.0)
    cuda.synchronize("cuda:0")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        source = np.full(4, 7.0).ctypes.data
        cuda.to_cupy(tensor).data.copy_from_host_async(source, 32, stream)
        peer.call(keep, "x", tensor)
    assert peer.call(read, "x") == [7.0] * 4


@pytest.mark.parametrize("step", ["Create:2:801", "Map:2:1", "SetAccess:1:1"])
def test_virtual_memory_that_cannot_be_mapped_is_given_back(new_peer, step):
    peer = new_peer(EMULATED_CUDA_FAIL=f"cuMem{step}")
    peer.call(free_bytes, "cuda:0")
    before = free_bytes({}, "cuda:0")
    with pytest.raises(cuda.DeviceError):
        peer.call(map_two, "x")
    assert free_bytes({}, "cuda:0") == before
    peer.call(map_two, "x")
    assert free_bytes({}, "cuda:0") < before


def map_two(held, name):
    """Map two pieces of virtual memory."""
    held[name] = cuda.virtual_block(1, 1, device="cuda:0")


# Events that programs hold


def wait_for(held, name):
    """Let the later work of this process come after an event."""
    held[name].wait()


def test_a_new_event_is_not_taken_for_one_whose_handle_it_has(peer, monkeypatch):
    tensor = cuda.tensor([1, 2, 3], device="cuda:0")
    peer.call(keep, "x", tensor)
    first = cuda.Event("cuda:0")
    first.record()
    handle = first._handle
    peer.call(keep, "first", first)
    del first
    second = cuda.Event("cuda:0")
    assert second._handle == handle
    tensor.write(0, 9)
    second.record()
    peer.call(keep, "second", second)
    monkeypatch.setattr("cuda_peers.TIMEOUT", 5.0)
    peer.call(wait_for, "second")
    assert peer.call(read, "x") == [9, 2, 3]


# Streams of CuPy


def test_work_on_a_stream_that_does_not_block_is_there_when_the_receiver_reads(peer):
    array = cupy.asarray(np.zeros(4))
    tensor = cuda.from_cupy(array)
    cuda.synchronize("cuda:0")
    tensor.write(0, 5.0)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array[1:].data.copy_from_host_async(np.full(3, 7.0).ctypes.data, 24, stream)
        peer.call(keep, "x", tensor)
    assert peer.call(read, "x") == [5.0, 7.0, 7.0, 7.0]


def load_and_read_on_a_stream(held, message):
    """Receive a tensor while a stream that does not block is current; read it there."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        held["x"] = ForkingPickler.loads(message)
        return cuda.to_cupy(held["x"]).get(stream=stream).tolist()


def test_a_stream_of_the_receiver_that_does_not_block_waits_for_the_sender(peer):
    tensor = cuda.tensor([1, 2, 3], device="cuda:0")
    cuda.synchronize("cuda:0")
    tensor.write(1, 9)
    message = pickled_for_a_channel(tensor)
    assert peer.call(load_and_read_on_a_stream, message) == [1, 9, 3]


def test_memory_of_the_pool_that_is_used_again_arrives_as_what_it_is_now(peer):
    for number in range(3):
        array = cupy.asarray(np.full(4, number))
        tensor = cuda.from_cupy(array)
        peer.call(keep, "x", tensor)
        assert peer.call(read, "x") == [number] * 4
        peer.call(drop, "x")
        del tensor, array
        cuda.ipc_collect("cuda:0")


# Bytes that a program pickles itself


def test_bytes_of_an_array_do_not_lead_to_the_next_array_in_its_memory(peer):
    """The pool keeps the block, whose handle stays valid, and uses the place again."""
    array = cupy.asarray(np.full(4, 1.0))
    place = array.data.ptr
    tensor = cuda.from_cupy(array)
    content = bytes(ForkingPickler.dumps(tensor))
    peer.call(load, "x", content)
    assert peer.call(read, "x") == [1.0] * 4
    peer.call(drop, "x")
    del tensor, array
    cuda.ipc_collect("cuda:0")
    array = cupy.asarray(np.full(4, 2.0))
    assert array.data.ptr == place
    with pytest.raises(cuda.DeviceHandleError, match="pickled outside of a channel"):
        peer.call(load, "x", content)
    assert array.get().tolist() == [2.0] * 4


def test_bytes_come_after_work_on_a_stream_that_does_not_block(peer):
    array = cupy.asarray(np.zeros(4))
    tensor = cuda.from_cupy(array)
    cuda.synchronize("cuda:0")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array.data.copy_from_host_async(np.full(4, 7.0).ctypes.data, 32, stream)
        content = bytes(ForkingPickler.dumps(tensor))
        peer.call(load, "x", content)
        assert peer.call(read, "x") == [7.0] * 4


@pytest.mark.parametrize("index", [0, 1])
def test_bytes_are_read_on_their_gpu_by_processes_with_other_orders(new_peer, index):
    tensor = cuda.tensor([index, 5], device=f"cuda:{index}")
    content = bytes(ForkingPickler.dumps(tensor))
    for order in ("0,1", "1,0"):
        reader = new_peer(CUDA_VISIBLE_DEVICES=order)
        reader.call(load, "x", content)
        name = f"cuda:{order.split(',').index(str(index))}"
        assert reader.call(device_of, "x") == name
        reader.call(cuda_peers.write, "x", 1, 6)
        reader.call(cuda_peers.synchronize, name)
        assert tensor.tolist() == [index, 6]
        tensor.write(1, 5)
        cuda.synchronize(tensor.device)
