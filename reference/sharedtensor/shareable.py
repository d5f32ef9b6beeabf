"""What the protocol needs of a storage and of a tensor.

`storage.Storage` and `tensors.Tensor` are built on the protocol and are what it shares;
these two types describe them from below.
"""

from collections.abc import Callable
from typing import Any, Protocol, Self

from .memory import Memory
from .strategies import Segment

Window = tuple[str, int, tuple[int, ...], tuple[int, ...]]
"""What a tensor is on its storage: dtype, offset, shape and strides."""


class StorageLike(Protocol):
    """Memory that is private, or in a segment, where it begins at `offset`."""

    memory: Memory
    nbytes: int
    offset: int
    segment: Segment | None

    def __init__(self, nbytes: int): ...

    @classmethod
    def over(cls, memory: Memory, segment: Segment, offset: int) -> Self:
        """Return a storage over memory that is mapped already."""
        ...


class TensorLike(Protocol):
    """A window on a storage, with what is sent beside it."""

    grad: Any
    hooks: dict[object, Callable[..., Any]]

    @property
    def storage(self) -> StorageLike:
        """The storage below."""
        ...

    @property
    def dtype(self) -> Any:
        """The NumPy dtype of the elements."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent in each dimension."""
        ...

    def stride(self) -> tuple[int, ...]:
        """Return the distance of neighbours in each dimension, in elements."""
        ...

    def storage_offset(self) -> int:
        """Return where in the storage the first element lies, in elements."""
        ...

    @property
    def requires_grad(self) -> bool:
        """Whether results that are computed from it are no leaves."""
        ...

    @property
    def is_leaf(self) -> bool:
        """Whether it was not computed from a tensor that requires grad."""
        ...

    def is_conj(self) -> bool:
        """Return whether it is conjugated when it is read."""
        ...

    def __setstate__(self, state: Any) -> None:
        """Restore what `__getstate__` returns: what a subclass adds."""
        ...

    def look_at(
        self,
        storage: Any,
        dtype: str,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        requires_grad: bool = ...,
        conjugated: bool = ...,
    ) -> Self:
        """Become a leaf over a storage; raise if the window is not within it."""
        ...
