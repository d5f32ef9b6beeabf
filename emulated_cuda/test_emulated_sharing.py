"""The CuPy backend shares memory on the emulated runtime, beyond what clauses ask."""

import cuda_peers
import cupy
import numpy as np
from cuda_peers import dump, keep, load, read
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
