"""The reference under adapters that claim little: one of each axis, in two ways.

What a test needs beyond that has to be said by its decorator. Where it is not said, the
test judges nothing, or calls broken what nobody has claimed.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from sharedtensor_conformance.adapter import (
    PROFILES,
    Index,
    Layout,
    Number,
    Tensor,
    operations_of,
)
from sharedtensor_conformance.adapters import reference


class Operations(reference.ReferenceOperations):
    """The operations of the reference but for the one that needs complex tensors."""

    def __getattribute__(self, name: str) -> object:
        if name == "conjugate":
            raise AttributeError(name)
        return object.__getattribute__(self, name)


_narrow = replace(
    reference.conformance_adapter,
    operations=f"{__name__}:Operations",
    dtypes=("float32",),
)

descriptors = replace(
    _narrow,
    name="descriptors",
    claims=_narrow.claims - {"lazy", "strategy-fs", "manager"},
    strategies=("file_descriptor",),
    start_methods=("fork",),
    channels=("pipe",),
)

names = replace(
    _narrow,
    name="names",
    claims=_narrow.claims - {"lazy", "strategy-fd"},
    strategies=("file_system",),
    start_methods=("spawn",),
    channels=("queue",),
)


class SlicingOperations(Operations):
    """The same, and views that are slices and transposed, and no others."""

    def __getattribute__(self, name: str) -> object:
        if name == "reinterpret":
            raise AttributeError(name)
        return Operations.__getattribute__(self, name)

    def view(self, tensor: Tensor, layout: Layout) -> Tensor:
        """Slice, or slice, reshape and transpose; refuse what takes more than that."""
        count = prod(layout.shape)
        part = tensor[layout.offset : layout.offset + count]
        if layout.strides == (1,) or not layout.shape:
            return part.view(layout.shape)
        if layout.strides != (1, layout.shape[0]):
            raise ValueError(f"this library has no such views: {layout}")
        return part.view(layout.shape[::-1]).T


slicing = replace(
    descriptors,
    name="slicing",
    operations=f"{__name__}:SlicingOperations",
    dtypes=("float32", "float64", "int32", "int64", "uint8"),
    views=("slices", "transposed"),
    negative_strides=False,
)


AT_ONCE = frozenset({"core", "identity", "lifetime", "drop-in", "strategy-fd"})
NOT_AT_ONCE = (
    frozenset()
    .union(*map(operations_of, PROFILES))
    .difference(*map(operations_of, AT_ONCE))
)


class AtOnceOperations(Operations):
    """Those of a library whose tensors are shared when they are made."""

    def __getattribute__(self, name: str) -> object:
        if name in NOT_AT_ONCE:
            raise AttributeError(name)
        return Operations.__getattribute__(self, name)

    def make(self, values: list[Number], shape: Index, dtype: str) -> Tensor:
        """Make a tensor in shared memory."""
        return super().make(values, shape, dtype).share_memory_()


at_once = replace(
    descriptors,
    name="at-once",
    operations=f"{__name__}:AtOnceOperations",
    claims=AT_ONCE,
    channels=("queue", "pipe"),
    private=False,
)


class OneDevice(reference.ReferenceOperations):
    """The operations of the reference where there is one device."""

    def device_count(self) -> int:
        """Return that there is one."""
        return 1


one_device = replace(
    reference.conformance_adapter,
    name="one_device",
    operations=f"{__name__}:OneDevice",
)
