"""Tensors: windows on storages, with the state of differentiation."""
import math

import numpy as np

from .store import ArenaError, Storage


def _check(storage, dtype, shape, strides, offset):
    """Refuse a window that reaches beyond its storage."""
    if not (isinstance(dtype, np.dtype) and dtype.kind in "biufc"):
        raise ArenaError("the window has no dtype of tensors")
    if len(shape) != len(strides) or not all(isinstance(n, int) for n in (*shape, *strides, offset)):
        raise ArenaError("the window is incomplete")
    if any(n < 0 for n in shape) or offset < 0:
        raise ArenaError("the window has negative sizes")
    if 0 in shape:
        return
    low = offset + sum((n - 1) * s for n, s in zip(shape, strides) if s < 0)
    high = offset + sum((n - 1) * s for n, s in zip(shape, strides) if s > 0) + dtype.itemsize
    if low < 0 or high > storage.nbytes:
        raise ArenaError("the window reaches beyond its storage")


def contiguous(shape, size):
    strides = []
    for length in reversed(shape):
        strides.append(size)
        size *= max(1, length)
    return tuple(reversed(strides))


class Tensor:
    """Strides and offset are in bytes."""

    __slots__ = ("storage", "dtype", "shape", "strides", "offset", "conj", "_requires_grad", "is_leaf", "_grad",
                 "__weakref__")

    def __init__(self, storage, dtype, shape, strides, offset=0, *, conj=False, requires_grad=False, is_leaf=True):
        self.storage, self.dtype = storage, np.dtype(dtype)
        self.shape, self.strides, self.offset = tuple(shape), tuple(strides), offset
        self.conj, self._requires_grad, self.is_leaf, self._grad = conj, requires_grad, is_leaf, None
        _check(storage, self.dtype, self.shape, self.strides, self.offset)

    # -- memory

    def _array(self, export=False):
        return self.storage.array(self.dtype, self.shape, self.strides, self.offset, export=export)

    def numpy(self):
        """Return an array over the memory; while there is one, the private storage cannot move."""
        if self.conj:
            raise ArenaError("a lazily conjugated tensor has no array of its values")
        return self._array(export=True)

    def tolist(self):
        array = self._array()
        return (np.conj(array) if self.conj else array).tolist()

    def flat(self):
        array = self._array()
        return (np.conj(array) if self.conj else array).ravel().tolist()

    def __getitem__(self, index):
        value = self._array()[index]
        return (np.conj(value) if self.conj else value).item()

    def __setitem__(self, index, value):
        self._array()[index] = np.conj(value) if self.conj else value

    @property
    def address(self):
        return self._array().ctypes.data

    def share_memory_(self):
        self.storage.share()
        return self

    def is_shared(self):
        return self.storage.is_shared

    def clone(self):
        return tensor(self._array(), conj=self.conj)

    def resize_(self, count):
        size = self.dtype.itemsize
        self.storage.grow(self.offset + count * size)
        self.shape, self.strides = (count,), (size,)
        return self

    # -- windows

    def _window(self, dtype, shape, strides, offset, conj=None):
        return type(self)._plain(self.storage, dtype, shape, strides, offset,
                                 conj=self.conj if conj is None else conj, requires_grad=self._requires_grad,
                                 is_leaf=not self._requires_grad)

    @staticmethod
    def _plain(*args, **options):
        return Tensor(*args, **options)

    def as_strided(self, shape, strides, offset):
        """Return a window; strides and offset in elements of the storage from this offset on."""
        size = self.dtype.itemsize
        return self._window(self.dtype, shape, [s * size for s in strides], self.offset + offset * size)

    def view(self, dtype):
        dtype = np.dtype(dtype)
        count, rest = divmod(math.prod(self.shape) * self.dtype.itemsize, dtype.itemsize)
        if rest or len(self.shape) != 1 or (self.shape[0] > 1 and self.strides != (self.dtype.itemsize,)):
            raise ArenaError("only a contiguous tensor of one dimension can be seen in another dtype")
        return self._window(dtype, (count,), (dtype.itemsize,), self.offset)

    def conjugate(self):
        if self.dtype.kind != "c":
            return self
        return self._window(self.dtype, self.shape, self.strides, self.offset, conj=not self.conj)

    def detach(self):
        return Tensor(self.storage, self.dtype, self.shape, self.strides, self.offset, conj=self.conj)

    # -- differentiation

    @property
    def requires_grad(self):
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, flag):
        if not self.is_leaf and not flag:
            raise ArenaError("the flag of a tensor that was computed cannot be cleared: detach it")
        if flag and self.dtype.kind not in "fc":
            raise ArenaError("only floating tensors can require grad")
        self._requires_grad = bool(flag)

    @property
    def grad(self):
        return self._grad

    @grad.setter
    def grad(self, grad):
        if grad is not None and (grad.shape, grad.dtype) != (self.shape, self.dtype):
            raise ArenaError("a grad has the shape and dtype of its tensor")
        self._grad = grad

    def __mul__(self, factor):
        array = self._array()
        found = tensor((np.conj(array) if self.conj else array) * factor, dtype=self.dtype)
        found._requires_grad, found.is_leaf = self._requires_grad, not self._requires_grad
        return found

    # -- messages

    def __reduce_ex__(self, protocol):
        from . import wire

        wire.outgoing()
        if self._requires_grad and not self.is_leaf:
            raise ArenaError("a tensor that requires grad and is no leaf cannot be sent: detach it")
        return _rebuild, (type(self), self.storage, self.dtype.str, self.shape, self.strides, self.offset,
                          self.conj, self._requires_grad, self._grad)

    def __repr__(self):
        return f"{type(self).__name__}({self.tolist()}, dtype={self.dtype})"


class Parameter(Tensor):
    __slots__ = ()

    def __init__(self, *args, requires_grad=True, **options):
        super().__init__(*args, requires_grad=requires_grad, **options)


def _rebuild(cls, storage, dtype, shape, strides, offset, conj, requires_grad, grad):
    if not isinstance(storage, Storage):
        raise ArenaError("the message has no storage for its tensor")
    try:
        found = cls(storage, np.dtype(dtype), shape, strides, offset, conj=conj, requires_grad=requires_grad)
    except (TypeError, ValueError) as error:
        raise ArenaError(f"the window is wrong: {error}") from error
    found._grad = grad
    return found


def tensor(values, dtype=None, *, conj=False):
    """Return a new tensor with a copy of the values, in private memory."""
    array = np.array(values, dtype, order="C")
    storage = Storage.of_bytes(array.tobytes())
    return Tensor(storage, array.dtype, array.shape, contiguous(array.shape, array.itemsize), 0, conj=conj)
