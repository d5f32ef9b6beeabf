"""Tensors: windows on storages.

A tensor has an offset, a shape, strides and a dtype, and it carries the state that
sharing must respect: whether it requires grad, whether it is a leaf, its `.grad`
and a lazy conjugation. It computes with NumPy and does not differentiate. Results that
were computed from a tensor that requires grad require grad too and are no leaves, since
this is what sending them depends on (clause GRAD-5).

Results and clones are private. Views are tensors over the same storage.
"""

import copy
import math
import operator
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, Self

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from . import protocol
from .layout import (
    check_dtype,
    contiguous,
    default_dtype,
    is_basic,
    new_shape,
    sizes_of,
)
from .storage import Storage


class Tensor(NDArrayOperatorsMixin):
    """A window on a storage; `tensor(data)` and its relatives make one.

    Subclasses are copied, pickled and sent by the rules that Python has for objects,
    `__slots__`, `__getstate__`, `__setstate__` and `__getnewargs_ex__` included: these
    are about what the subclass adds. A subclass that defines `__reduce__` or
    `__reduce_ex__` decides itself.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_computed_one",
        "_conjugated",
        "_grad",
        "_offset",
        "_requires_grad",
        "_shape",
        "_strides",
        "dtype",
        "storage",
    )

    storage: Storage
    dtype: np.dtype
    _adds_slots = False  # by a subclass
    __hash__ = object.__hash__  # comparison is by element, identity is not

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        others = (base for base in cls.__mro__ if base is not Tensor)
        cls._adds_slots = any(vars(base).get("__slots__") for base in others)
        reduced_as_we_do = cls.__reduce__ is Tensor.__reduce__
        if reduced_as_we_do and cls.__reduce_ex__ is object.__reduce_ex__:
            _send_by_sharing(cls)

    def __init__(self, data: Any = (), dtype: Any = None, requires_grad: bool = False):
        values = np.asarray(_plain(data), dtype=dtype)
        if dtype is None and isinstance(data, (float, list, tuple)):
            values = values.astype(default_dtype(values.dtype), copy=False)
        check_dtype(values.dtype)
        strides = contiguous(values.shape)
        self.look_at(Storage(values.nbytes), values.dtype, 0, values.shape, strides)
        self._array()[...] = values
        if requires_grad:
            self.requires_grad = True

    def look_at(
        self,
        storage: Storage,
        dtype: str | np.dtype,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        requires_grad: bool = False,
        conjugated: bool = False,
    ) -> Self:
        """Become a leaf over a storage, through a window in elements.

        Raises `TypeError` or `ValueError` if the window does not lie within it.
        """
        self.storage, self.dtype, self._offset = storage, np.dtype(dtype), offset
        self._shape, self._strides = shape, strides
        self._requires_grad, self._conjugated = requires_grad, conjugated
        self._computed_one = False
        self._grad: Tensor | None = None
        check_dtype(self.dtype)
        self._array()
        return self

    # The window

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent in each dimension."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes; the storage may be larger."""
        return self.numel() * self.dtype.itemsize

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self._shape)

    def stride(self) -> tuple[int, ...]:
        """Return the distance of neighbours in each dimension, in elements.

        Clause VIEW-1.
        """
        return self._strides

    def storage_offset(self) -> int:
        """Return where in the storage the first element lies, in elements.

        Clause VIEW-2.
        """
        return self._offset

    def data_ptr(self) -> int:
        """Return the address of the first element.

        Clauses RESHARE-1, RESHARE-3, RESHARE-4.
        """
        return self.storage.address + self._offset * self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Return whether the elements lie in a row, in C order."""
        return self._array().flags.c_contiguous

    def _array(self) -> np.ndarray:
        """Return the elements as they are stored: a lazy conjugation is not applied."""
        size = self.dtype.itemsize
        return np.ndarray(
            self._shape,
            self.dtype,
            self.storage.memory.bytes,
            self._offset * size,
            tuple([stride * size for stride in self._strides]),
        )

    def _values(self) -> np.ndarray:
        """Return the elements as they are read; the same memory unless conjugated."""
        array = self._array()
        if self._conjugated:
            # NumPy makes a number of the conjugate of an array of no dimensions.
            array = np.asarray(array.conj())
            array.flags.writeable = False  # a write to it would be lost
        return array

    # Other libraries' views of the memory

    def numpy(self) -> np.ndarray:
        """Return an array over the same memory, which stays valid when it moves.

        Clause SHARE-10.

        Raises `RuntimeError` for a lazily conjugated tensor: no array can show it.
        """
        if self._conjugated:
            raise RuntimeError(
                "A lazily conjugated tensor has no array over its memory, which holds "
                "the values before conjugation. Call resolve_conj() first."
            )
        return self._array()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self._values()
        if copy is False and (self._conjugated or dtype not in (None, self.dtype)):
            raise ValueError("This array cannot be made without a copy of the tensor.")
        if dtype is not None:
            values = values.astype(dtype, copy=False)
        return values.copy() if copy else values

    def __array_function__(
        self, function: Any, types: Any, arguments: Any, options: Any
    ) -> Any:
        """Let the functions of NumPy compute with arrays over the memory."""
        plain = {name: _plain(value) for name, value in options.items()}
        return function(*_plain(arguments), **plain)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        """Let NumPy compute by element: an operand of a tensor gives a tensor.

        What has an `out`, such as ``array += tensor``, is an array.
        """
        if method == "at":  # it writes even to what is read-only
            return NotImplemented
        operation = getattr(ufunc, method)
        result = self.__array_function__(operation, (), inputs, options)
        is_new = method == "__call__" and ufunc.nout == 1 and "out" not in options
        return self._computed(result, *inputs) if is_new else result

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # The memory itself is named, not its address: the consumer keeps it alive even
        # when the storage gets other memory in a resize.
        if self._conjugated:
            raise AttributeError("A lazily conjugated tensor has no array interface.")
        size = self.dtype.itemsize
        return {
            "version": 3,
            "typestr": self.dtype.str,
            "shape": self._shape,
            "strides": tuple(stride * size for stride in self._strides),
            "data": self.storage.memory.bytes,
            "offset": self._offset * size,
        }

    def __dlpack__(self, **options: Any) -> Any:
        if self._conjugated:
            raise BufferError("A lazily conjugated tensor has no DLPack form.")
        return self._array().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array().__dlpack_device__()

    def item(self) -> Any:
        """Return the only element, as a Python number."""
        return self._values().item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._values().tolist()

    # Views

    def _alias(self, array: np.ndarray, conjugated: bool | None = None) -> "Tensor":
        """Return the window that a view of this tensor's array looks through."""
        made = Tensor.__new__(Tensor)
        size = array.dtype.itemsize
        address = array.__array_interface__["data"][0]
        inside = address - self.storage.address if array.size else 0
        if inside % size or any(stride % size for stride in array.strides):
            raise ValueError(
                f"A view as {array.dtype} would begin or step within an element. "
                "Choose an offset and strides that are multiples of its size."
            )
        strides = tuple(stride // size for stride in array.strides)
        window = array.dtype, inside // size, array.shape, strides
        if conjugated is None:
            conjugated = self._conjugated
        return made.look_at(self.storage, *window, conjugated=conjugated)._derive(self)

    def _derive(self, *sources: Any) -> "Tensor":
        """Mark this tensor as computed from the sources, if one requires grad."""
        if any(isinstance(each, Tensor) and each._requires_grad for each in sources):
            self._requires_grad = self._computed_one = True
        return self

    def __getitem__(self, index: Any) -> "Tensor":
        parts = index if isinstance(index, tuple) else (index,)
        array = self._array()
        if all(is_basic(part) for part in parts):
            whole = parts if Ellipsis in parts else (*parts, Ellipsis)
            return self._alias(array[whole])
        return self._computed(self._values()[_plain(parts)], self)

    def __setitem__(self, index: Any, value: Any) -> None:
        stored = _plain(value)
        self._array()[_plain(index)] = np.conj(stored) if self._conjugated else stored
        self._mark_written(value)

    def view(self, *shape: Any) -> "Tensor":
        """Return a view in another shape; raise `ValueError` where none can have it."""
        array = self._array()
        reshaped = array.reshape(sizes_of(shape))
        if array.size and not np.may_share_memory(array, reshaped):
            raise ValueError(
                f"A view of shape {sizes_of(shape)} cannot be had with the strides "
                f"{self._strides}. Use reshape(), which may copy."
            )
        return self._alias(reshaped)

    def reshape(self, *shape: Any) -> "Tensor":
        """Return a view in another shape, or a private copy where there can be none."""
        try:
            return self.view(*shape)
        except ValueError:
            return self._computed(self._values().reshape(sizes_of(shape)), self)

    def transpose(self, first: int, second: int) -> "Tensor":
        """Return a view with two dimensions exchanged. Clause VIEW-1."""
        return self._alias(self._array().swapaxes(first, second))

    @property
    def T(self) -> "Tensor":
        """A view with the dimensions in reverse order."""
        return self._alias(self._array().T)

    def expand(self, *shape: Any) -> "Tensor":
        """Return a view that repeats itself with strides of 0. Clause VIEW-1."""
        sizes = sizes_of(shape)
        own = (1,) * (len(sizes) - self.ndim) + self._shape
        full = tuple(
            mine if size == -1 else size for size, mine in zip(sizes, own, strict=True)
        )
        return self._alias(np.broadcast_to(self._array(), full))

    def as_strided(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int | None = None,
    ) -> "Tensor":
        """Return a window of any kind on the storage. Clause VIEW-1.

        Raises `ValueError` if it does not lie within the storage.
        """
        size = self.dtype.itemsize
        begin = self._offset if offset is None else offset
        strides_in_bytes = [stride * size for stride in strides]
        memory = self.storage.memory.bytes
        array = np.ndarray(
            tuple(shape), self.dtype, memory, begin * size, strides_in_bytes
        )
        return self._alias(array)

    def view_dtype(self, dtype: Any) -> "Tensor":
        """Return a view of the same bytes as another dtype. Clause VIEW-10."""
        if self._conjugated:
            raise RuntimeError("Call resolve_conj() before viewing as another dtype.")
        return self._alias(self._array().view(check_dtype(np.dtype(dtype))))

    def detach(self) -> "Tensor":
        """Return a view that does not require grad: a leaf over the same memory.

        Clause GRAD-7.
        """
        made = Tensor.__new__(Tensor)
        window = self.dtype, self._offset, self._shape, self._strides
        return made.look_at(self.storage, *window, conjugated=self._conjugated)

    def conj(self) -> "Tensor":
        """Return a view that is conjugated when it is read. Clause VIEW-9."""
        lazy = self._conjugated ^ (self.dtype.kind == "c")
        return self._alias(self._array(), conjugated=lazy)

    def is_conj(self) -> bool:
        """Return whether what is read is the conjugate of what is stored."""
        return self._conjugated

    def resolve_conj(self) -> "Tensor":
        """This tensor, or where it is lazily conjugated a private copy that is not."""
        return self.clone() if self._conjugated else self

    # Sharing

    def share_memory_(self) -> "Tensor":
        """Move the storage, and the grad's, into shared memory, unless it is there.

        Returns the tensor. Raises `ResourceError`. Clauses SHARE-5, SHARE-7, RESHARE-1.
        """
        self.storage.share()
        if self._grad is not None:
            self._grad.storage.share()
        return self

    def is_shared(self) -> bool:
        """Return whether the storage is in shared memory. Clauses SHARE-5, SHARE-6."""
        return self.storage.is_shared()

    def clone(self) -> "Tensor":
        """Return the same values in private memory. Clause SHARE-11."""
        return self._computed(self._values(), self)

    def resize_(self, *shape: Any) -> "Tensor":
        """Change the shape, and the size of the storage where it is too small.

        Raises `ResizeError` where a shared storage is too small. Clause SHARE-8.
        """
        sizes = new_shape(shape)
        needed = (self._offset + math.prod(sizes)) * self.dtype.itemsize
        if needed > self.storage.nbytes:
            self.storage.resize(needed)
        self._shape, self._strides = sizes, contiguous(sizes)
        return self

    # Gradients

    @property
    def requires_grad(self) -> bool:
        """Whether results computed from this tensor are no leaves. Clause GRAD-1."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and self.dtype.kind not in "fc":
            message = f"Only floating and complex tensors have grads, not {self.dtype}."
            raise RuntimeError(message)
        if not value and self._computed_one:
            raise RuntimeError("A result keeps requires_grad. Use detach() instead.")
        self._requires_grad = bool(value)

    def requires_grad_(self, value: bool = True) -> "Tensor":
        """Set `requires_grad` and return the tensor."""
        self.requires_grad = value
        return self

    @property
    def is_leaf(self) -> bool:
        """False for results computed from a tensor that requires grad.

        Clause GRAD-5.
        """
        return not self._computed_one

    @property
    def grad(self) -> "Tensor | None":
        """The gradient; it belongs to this object, not to the storage.

        Clause GRAD-4.
        """
        return self._grad

    @grad.setter
    def grad(self, value: "Tensor | None") -> None:
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f"A grad is a tensor or None, not a {type(value).__name__}."
            )
        if value is not None and value.shape != self._shape:
            raise ValueError(
                f"A tensor of shape {self._shape} cannot have a grad of shape "
                f"{value.shape}. The shapes have to be equal."
            )
        self._grad = value

    # Computing

    def _computed(self, values: Any, *sources: Any) -> "Tensor":
        """Return a private result with those values. Clause SHARE-11."""
        return Tensor(np.asarray(values))._derive(*sources)

    def _mark_written(self, *sources: Any) -> "Tensor":
        """What is written with a result that requires grad becomes one itself."""
        return self if self._requires_grad else self._derive(*sources)

    def add_(self, other: Any, alpha: Any = 1) -> "Tensor":
        """Add `alpha * other` in place: the update of a training step."""
        scaled = _plain(other) if alpha == 1 else np.multiply(_plain(other), alpha)
        self += scaled
        return self._mark_written(other)

    def sub_(self, other: Any, alpha: Any = 1) -> "Tensor":
        """Subtract `alpha * other` in place."""
        return self.add_(other, alpha=-alpha)

    def mul_(self, other: Any) -> "Tensor":
        """Multiply in place."""
        self *= other
        return self

    def zero_(self) -> "Tensor":
        """Set all elements to 0."""
        return self.fill_(0)

    def fill_(self, value: Any) -> "Tensor":
        """Set all elements to one value."""
        self[...] = value
        return self

    def copy_(self, other: Any) -> "Tensor":
        """Set the elements to those of another tensor."""
        self[...] = other
        return self

    def sum(self, axis: Any = None) -> "Tensor":
        """Return the sum of the elements, along `axis` where it is given."""
        return self._computed(self._values().sum(axis=axis), self)

    def mean(self, axis: Any = None) -> "Tensor":
        """Return the mean of the elements, along `axis` where it is given."""
        return self._computed(self._values().mean(axis=axis), self)

    def all(self) -> bool:
        """Return whether all elements are true."""
        return bool(self._values().all())

    def any(self) -> bool:
        """Return whether any element is true."""
        return bool(self._values().any())

    def equal(self, other: Any) -> bool:
        """Return whether another tensor has the same shape and values."""
        return np.array_equal(self._values(), _plain(other))

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("A tensor of no dimensions has no length.")
        return self._shape[0]

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[place] for place in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self._values())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __repr__(self) -> str:
        values = np.array2string(self._values(), separator=", ")
        grad = ", requires_grad=True" if self._requires_grad else ""
        return f"{type(self).__name__}({values}, dtype={self.dtype}{grad})"

    def __format__(self, form: str) -> str:
        if self.numel() == 1 and (form or not self._shape):
            return format(self.item(), form)
        return super().__format__(form)

    # Copies and pickles

    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce to the storage and the window on it, for pickles and for copies.

        A plain pickle and a deep copy copy the storage, once for all of its tensors.
        So the pickle of a small view is as large as its storage; that of a clone is
        not. Clauses SHARE-13, SHARE-14.
        """
        return protocol.reduce_tensor(self)

    def __getstate__(self) -> Any:
        """Return what a subclass adds, as `object` does. Clause KIND-3."""
        if not self._adds_slots:
            return self.__dict__ or None
        state: Any = super().__getstate__()
        attributes, slots = state
        added = {name: slots[name] for name in slots.keys() - set(Tensor.__slots__)}
        return (attributes, added) if added else attributes

    def __setstate__(self, state: Any) -> None:
        """Restore what a subclass adds, as pickle does. Clause KIND-3."""
        attributes, slots = state if isinstance(state, tuple) else (state, {})
        self.__dict__.update(attributes or {})
        for name, value in slots.items():
            setattr(self, name, value)

    def __copy__(self) -> Any:
        """Return a tensor over the same storage. Clause SHARE-15."""
        return self._copied({}, lambda part: part)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a tensor with memory of its own. Clauses SHARE-13, SHARE-14."""
        return self._copied(memo, lambda part: copy.deepcopy(part, memo))

    def _copied(self, memo: dict[int, Any], copied: Callable[[Any], Any]) -> Any:
        """Return what a pickle of this tensor would give, made of copied parts."""
        reduced: Any = self.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        rebuild, arguments, *rest = reduced
        made = memo[id(self)] = rebuild(*copied(arguments))
        state, _, _, attach = (*rest, None, None, None, None)[:4]
        if state is not None:  # copied last, since the grad may be the tensor itself
            (attach or type(made).__setstate__)(made, copied(state))
        return made


def _send_by_sharing(tensor_class: type[Tensor]) -> None:
    """Register one class of tensors, subclasses not included. Clause KIND-2."""
    # Looked up at each send, as every step of the protocol is.
    ForkingPickler.register(tensor_class, lambda each: protocol.export_tensor(each))


_send_by_sharing(Tensor)


def _plain(value: Any) -> Any:
    """Tensors replaced by their arrays, in tuples and lists too."""
    if isinstance(value, Tensor):
        return value._values()
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(part) for part in value)
    return value


def _in_place(operation: Callable[..., Any]) -> Callable[..., Tensor]:
    def compute(self: Tensor, other: Any) -> Tensor:
        self[...] = operation(self._values(), _plain(other))
        return self._mark_written(other)

    return compute


# Unlike those of NumPy, these convert the result to the dtype of the tensor and write
# to one that is lazily conjugated.
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(Tensor, f"__i{_name}__", _in_place(getattr(operator, _name)))
