"""A device tensor is indexed, written and read like the array it was made from."""

import copy
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from sharedtensor import cuda

DEVICE = "sim:0"


@pytest.mark.parametrize(
    "index",
    [
        0, -1, (1, 2), (0, 1, -1), slice(1, None), (slice(None), 1), Ellipsis,
        (Ellipsis, 0), (slice(None, None, -1), slice(0, 2), slice(3, 0, -2)),
        (None, 1, None), slice(5, 9), (slice(None), slice(None), slice(None, None, 2)),
    ],
)  # fmt: skip
def test_indexing_is_numpys(index):
    array = np.arange(24).reshape(2, 3, 4)
    tensor = cuda.tensor(array, device=DEVICE)
    np.testing.assert_array_equal(tensor[index].cpu(), array[index])
    tensor.write(index, -7)
    array[index] = -7
    np.testing.assert_array_equal(tensor.cpu(), array)


def test_views_of_views_write_to_the_same_memory():
    array = np.arange(24).reshape(4, 6)
    tensor = cuda.tensor(array, device=DEVICE)
    tensor[1:, ::2][:2, 1:].write((slice(None), 0), [50, 60])
    array[1:, ::2][:2, 1:][:, 0] = [50, 60]
    np.testing.assert_array_equal(tensor.cpu(), array)
    assert tensor[1, 2].data_ptr() - tensor.data_ptr() == 8 * 8


@pytest.mark.parametrize("index", [[0], True, np.array([0]), 1.5, "x", (0, [1])])
def test_indices_that_need_a_copy_are_refused(index):
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        cuda.tensor([1, 2], device=DEVICE)[index]


def test_what_there_cannot_be_is_refused():
    tensor = cuda.tensor([1, 2], device=DEVICE)
    with pytest.raises(IndexError):
        tensor[2]
    with pytest.raises(cuda.DeviceError, match="only numbers"):
        cuda.tensor([object()], device=DEVICE)
    with pytest.raises(cuda.DeviceError, match="does not fit"):
        tensor.grad = cuda.tensor([1], device=DEVICE)


@pytest.mark.parametrize("dtype", [">i4", "M8[s]", "S3", "i4,f8"])
def test_dtypes_arrive_as_they_are(dtype):
    array = np.zeros(3, dtype)
    array[1] = np.ones(1, dtype)[0] if dtype != "S3" else b"ab"
    tensor = cuda.tensor(array, device=DEVICE)
    assert tensor.dtype == array.dtype
    np.testing.assert_array_equal(tensor.cpu(), array)


def test_a_scalar_and_an_empty_tensor():
    scalar = cuda.tensor(2.5, device=DEVICE)
    assert (scalar.shape, scalar.read(()), scalar.tolist()) == ((), 2.5, 2.5)
    with pytest.raises(TypeError, match="no length"):
        len(scalar)
    empty = cuda.tensor(np.empty((0, 3)), device=DEVICE)
    assert (empty.shape, empty.data_ptr(), empty.tolist()) == ((0, 3), 0, [])
    empty.write(Ellipsis, 1)


def test_what_is_carved_must_fit():
    block = cuda.empty_block(16, DEVICE)
    assert cuda.carve(block, 8, (2,), "f4").shape == (2,)
    for offset in (-1, 12):
        with pytest.raises(cuda.DeviceError, match="16 bytes"):
            cuda.carve(block, offset, (2,), "f4")
    with pytest.raises(cuda.DeviceError, match="needs a storage"):
        cuda.carve(None, 0, (2,), "f4", DEVICE)


def test_neither_tensors_nor_storages_can_be_pickled_outside_a_channel():
    tensor = cuda.tensor([1], device=DEVICE)
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        pickle.dumps(tensor)
    with pytest.raises(TypeError, match="send a tensor in it"):
        pickle.dumps(tensor.storage)


def test_a_shallow_copy_is_an_alias_and_attributes_cross():
    tensor = cuda.tensor([1, 2], device=DEVICE)
    tensor.grad, tensor.label = tensor, "weights"
    made = copy.copy(tensor)
    assert type(made) is cuda.CudaTensor
    sent = ForkingPickler.loads(ForkingPickler.dumps(tensor))
    assert (sent.grad is sent, sent.label) == (True, "weights")
    assert made.storage is tensor.storage
    assert (made.grad, made.label) == (tensor, "weights")


def test_a_deep_copy_has_memory_in_which_aliases_are_aliases():
    tensor = cuda.tensor([1, 2, 3], device=DEVICE)
    tensor.grad = tensor
    empty = cuda.tensor(np.empty((0, 3)), device=DEVICE)
    made, view, nothing = copy.deepcopy([tensor, tensor[1:], empty])
    assert (made.tolist(), view.tolist(), nothing.shape) == ([1, 2, 3], [2, 3], (0, 3))
    assert made.grad is made
    assert made.storage is view.storage
    view.write(0, 7)
    assert (made.tolist(), tensor.tolist()) == ([1, 7, 3], [1, 2, 3])


class Named(cuda.CudaTensor):
    """A subclass, which no reducer knows."""


def test_a_subclass_is_refused():
    tensor = cuda.tensor([1], device=DEVICE)
    tensor.__class__ = Named
    with pytest.raises(TypeError, match="none of a subclass"):
        ForkingPickler.dumps(tensor)


def test_a_device_of_another_size_than_asked_is_refused():
    cuda.use_simulated_device()
    total = cuda.memory_info(DEVICE)[1]
    assert cuda.use_simulated_device(total) == DEVICE
    with pytest.raises(cuda.DeviceError, match=f"has {total} bytes already"):
        cuda.use_simulated_device(total + 256)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((3,), (2,), 1), ((2, 2), (-1, 3), 2), ((2, 3), (0, 1), 4), ((0, 9), (1, 1), 0)],
)
def test_strided_views_are_numpys(shape, strides, offset):
    array = np.arange(8, dtype="i4")
    tensor = cuda.tensor(array, device=DEVICE)
    view = tensor.as_strided(shape, strides, offset)
    expected = np.lib.stride_tricks.as_strided(
        array[offset:], shape, [4 * stride for stride in strides]
    )
    np.testing.assert_array_equal(view.cpu(), expected)
    assert (view.stride(), view.storage_offset()) == (strides, offset)
    assert view.storage is tensor.storage


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((9,), (1,), 0), ((2,), (7,), 1), ((2,), (-1,), 0), ((1,), (1,), -1)],
)
def test_strided_views_stay_within_the_storage(shape, strides, offset):
    tensor = cuda.tensor(np.arange(8), device=DEVICE)
    with pytest.raises(cuda.DeviceError, match="64 bytes of the storage"):
        tensor.as_strided(shape, strides, offset)


def test_a_strided_view_of_an_odd_place_keeps_it():
    block = cuda.empty_block(16, DEVICE)
    whole = cuda.carve(block, 0, (16,), "u1")
    whole.write(Ellipsis, np.arange(16))
    part = cuda.carve(block, 3, (3,), "<u2")
    offset = part.storage_offset() + 1
    assert part.as_strided((2,), (1,), offset).tolist() == part.tolist()[1:]
