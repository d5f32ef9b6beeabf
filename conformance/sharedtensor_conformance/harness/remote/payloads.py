"""Finds the tensors in messages, which may be nested in any way.

A message can contain an object with tensors. Its class has a method ``with_leaves``,
which returns a new object with all leaves changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sharedtensor_conformance.harness.remote.wire import PLAIN_TYPES


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return `value` with `change` applied to every object that is no container.

    Plain data is not changed. An object that occurs several times is changed once.
    """
    memo: dict[int, tuple[Any, Any]] = {}

    def walk(item: Any) -> Any:
        if isinstance(item, PLAIN_TYPES):
            return item
        if type(item) in (list, tuple):
            return type(item)(walk(part) for part in item)
        if isinstance(item, dict):
            return {walk(key): walk(part) for key, part in item.items()}
        if hasattr(type(item), "with_leaves"):
            return item.with_leaves(walk)
        if id(item) not in memo:
            memo[id(item)] = (item, change(item))  # keeps `item`, so its id, alive
        return memo[id(item)][1]

    try:
        return walk(value)
    finally:
        memo.clear()  # `walk` is a cycle, which would hold it until it is collected
