"""A kind of tensor that a program defines over the reference: a subclass.

It has a module of its own, since its base is imported with the implementation, which
only owner and peers do, and since a class that is sent has to be found by its name.
"""

from __future__ import annotations

from typing import Any

from sharedtensor import Tensor


class Labelled(Tensor):
    """A tensor with an attribute."""

    label = ""


def labelled(values: list[Any], label: str) -> Labelled:
    """Return a labelled tensor."""
    made = Labelled(values)
    made.label = label
    return made
