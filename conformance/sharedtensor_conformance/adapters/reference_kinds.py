"""A kind of tensor that a program defines over the reference: a subclass.

It has its own module because its base class is imported with the implementation, which
only owner and peers import, and because pickle finds the class of a sent object by its
module and name.
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
