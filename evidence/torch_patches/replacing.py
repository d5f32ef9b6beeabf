"""Replaces a function of PyTorch by one that can call the original."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by a function that calls `around` with it first.

    The new one has the name and the module of the old one. So a pickle that names it
    finds, in each process, what is in place there.
    """
    before = owner.__dict__.get(name) or getattr(owner, name)

    @functools.wraps(before)
    def after(*args: Any, **options: Any) -> Any:
        return around(before, *args, **options)

    setattr(owner, name, after)
