"""What runs in a pool's worker, and the walk over messages that all actors share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sharedtensor_conformance.harness.setting import Setting
from sharedtensor_conformance.harness.wire import PLAIN

_operations: Any = None
_kept: Any = None


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return `value` with `change` applied to every leaf, once for each object."""
    memo: dict[int, tuple[Any, Any]] = {}

    def walk(item: Any) -> Any:
        if isinstance(item, PLAIN):
            return item
        if type(item) in (list, tuple):
            return type(item)(walk(part) for part in item)
        if isinstance(item, dict):
            return {walk(key): walk(part) for key, part in item.items()}
        if id(item) not in memo:
            memo[id(item)] = (item, change(item))  # keeps `item`, so its id, alive
        return memo[id(item)][1]

    try:
        return walk(value)
    finally:
        memo.clear()  # `walk` is a cycle, which would hold it until it is collected


def enter(setting: Setting) -> None:
    """Prepare a worker: the initializer of the pool."""
    global _operations, _kept
    _operations = setting.operations()
    _operations.enter_child(setting.strategy)
    _kept = None


def _encode(value: Any) -> Any:
    return _operations.encode(value) if _operations.is_tensor(value) else value


def _decode(value: Any) -> Any:
    return _operations.decode(value) if _operations.is_tensor(value) else value


def write_and_return(payload: Any, index: tuple[int, ...], value: Any) -> Any:
    """Write `value` at `index` of every tensor, and return the payload."""
    tensors = mapped(payload, _decode)

    def write(tensor: Any) -> Any:
        if _operations.is_tensor(tensor):
            _operations.write(tensor, index, value)
        return tensor

    mapped(tensors, write)
    return mapped(tensors, _encode)


def make_and_keep(values: list[Any], dtype: str) -> Any:
    """Make a tensor, keep it in the worker, and return it."""
    global _kept
    _kept = _operations.make(values, (len(values),), dtype)
    return _encode(_kept)


def read_kept(index: tuple[int, ...]) -> Any:
    """Return one value of the tensor that the worker keeps."""
    return _operations.read(_kept, index)


def write_kept(index: tuple[int, ...], value: Any) -> None:
    """Write one value of the tensor that the worker keeps."""
    _operations.write(_kept, index, value)
