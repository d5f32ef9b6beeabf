"""The axes over which a test can vary: directions, windows and configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sharedtensor_conformance.adapter import Implementation, Layout

DIRECTIONS = ("to_peer", "to_owner")
"""The directions of messages: the owner or the peer sends."""

BASE_ELEMENTS = 24
"""The number of elements of the base tensor that `LAYOUTS` are windows on."""

LAYOUTS = (
    Layout("slice", offset=5, shape=(7,), strides=(1,)),
    Layout("step", offset=1, shape=(8,), strides=(3,)),
    Layout("column", offset=2, shape=(4,), strides=(6,)),
    Layout("block", offset=7, shape=(2, 3), strides=(6, 1)),
    Layout("transposed", offset=0, shape=(6, 4), strides=(1, 6)),
    Layout("expanded", offset=3, shape=(3, 5), strides=(0, 1)),
    Layout("overlapping", offset=4, shape=(5, 3), strides=(2, 1)),
)

BACKWARDS = (
    Layout("backwards", offset=22, shape=(7,), strides=(-3,)),
    Layout("flipped", offset=19, shape=(3, 4), strides=(-6, 1)),
)
"""More layouts, with negative strides."""


def kinds_of(layout: Layout) -> frozenset[str]:
    """Return the kinds of views that a window needs, of `VIEWS` and ``backwards``."""
    axes = [
        (length, stride)
        for length, stride in zip(layout.shape, layout.strides, strict=True)
        if length > 1
    ]
    if 0 in layout.shape:
        return frozenset({"slices"})
    kinds = {"slices"}
    if any(stride < 0 for _, stride in axes):
        kinds.add("backwards")
    if not all(stride for _, stride in axes):
        kinds.add("expanded")
    steps = [(abs(stride), length) for length, stride in axes if stride]
    if steps != sorted(steps, reverse=True):
        kinds.add("transposed")
    extent = 1
    for stride, length in sorted(steps):
        if stride != extent:
            kinds.add("steps" if stride > extent else "overlapping")
        extent += (length - 1) * stride
    return frozenset(kinds)


def permitted_layouts(
    layouts: Sequence[Layout], implementation: Implementation
) -> tuple[Layout, ...]:
    """Return the windows that an implementation's kinds of views permit."""
    declared = {*implementation.views}
    if implementation.negative_strides:
        declared.add("backwards")
    return tuple(layout for layout in layouts if kinds_of(layout) <= declared)


def layouts_of(implementation: Implementation) -> tuple[Layout, ...]:
    """Return the windows over which tests vary, for an implementation."""
    return permitted_layouts(LAYOUTS + BACKWARDS, implementation)


@dataclass(frozen=True)
class Configuration:
    """Strategy, start method and device of a case; `why_not` if it cannot run."""

    strategy: str
    start_method: str
    device: str = "cpu"
    why_not: str = ""
    unsupported: bool = False

    @property
    def id(self) -> str:
        """The part of a case's id that names its configuration."""
        if self.why_not:
            return "unsupported" if self.unsupported else "not-run"
        device = [] if self.device == "cpu" else [self.device]
        return "-".join([*device, self.strategy, self.start_method])
