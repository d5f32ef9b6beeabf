"""The kinds of tensors that a program defines over the reference: subclasses.

They have their own module because their base class is imported with the implementation,
which only owner and peers import, and because pickle finds the class of a sent object
by its module and name.
"""

from __future__ import annotations

from typing import Any

from sharedtensor import Tensor


class Labelled(Tensor):
    """A tensor with an attribute."""

    label = ""


class Slotted(Tensor):
    """A tensor with a slot."""

    __slots__ = ("label",)


class Note:
    """What a program keeps beside a tensor; pickled by itself, it is empty."""

    text = ""

    def __getstate__(self) -> None:
        """Return nothing."""


class Stateful(Tensor):
    """A tensor that says what is pickled of it."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(values)
        self.note = Note()

    @property
    def label(self) -> str:
        """The text of the note."""
        return self.note.text

    @label.setter
    def label(self, label: str) -> None:
        self.note.text = label

    def __getstate__(self) -> tuple[str]:
        """Return the label."""
        return (self.label,)

    def __setstate__(self, state: tuple[str]) -> None:
        """Make a new note."""
        self.note = Note()
        (self.label,) = state


SUBCLASSES: dict[str, type[Any]] = {
    "subclass": Labelled,
    "slotted": Slotted,
    "stateful": Stateful,
}
"""The subclasses, by the names of the kinds."""


def labelled(kind: str, values: list[Any], label: str) -> Any:
    """Return a tensor of a kind that has a label."""
    made = SUBCLASSES[kind](values)
    made.label = label
    return made
