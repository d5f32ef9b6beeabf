"""Marks of functions that actors execute, which the suite reads before it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def starts_processes(function: Function) -> Function:
    """Mark a function in which processes start, or others wait for their start.

    A process, or the server that forks it, may import the implementation first. So the
    answer may take as long as a start, and not only as long as an operation.
    """
    function.__dict__["starts_processes"] = True
    return function


def is_marked(value: object) -> bool:
    """Return whether a value is such a function."""
    return "starts_processes" in getattr(value, "__dict__", ())
