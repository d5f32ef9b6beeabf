"""What runs in workers and in processes that are started together, and the walk over
messages that all actors share.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from sharedtensor_conformance.harness.setting import Setting
from sharedtensor_conformance.harness.wire import PLAIN

_operations: Any = None
_kept: Any = None


class Executor(ProcessPoolExecutor):
    """An executor of the standard library, with the names that pools have."""

    def apply(self, function: Callable[..., Any], arguments: list[Any]) -> Any:
        """Submit a call and wait for its result."""
        return self.submit(function, *arguments).result()

    def close(self) -> None:
        """Accept no call any more."""
        self.shutdown(wait=False)

    def join(self) -> None:
        """Wait for the workers' end."""
        self.shutdown(wait=True)


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


def together(index: int, setting: Setting, task: str, payload: Any) -> None:
    """Do a task as one of the processes that were started together."""
    enter(setting)
    tensors = mapped(payload, _decode)
    TOGETHER[task](index, tensors)


def _write_index(index: int, tensors: list[Any]) -> None:
    """Add to every tensor at the process's own place; a second call would show."""
    for tensor in tensors:
        value = _operations.read(tensor, (index,))
        _operations.write(tensor, (index,), value + 100 + index)


def _wait(index: int, tensors: list[Any]) -> None:
    """Say that it is there, and wait for the signal that ends it."""
    _write_index(index, tensors)
    while True:
        signal.pause()


def _refuse_to_end(index: int, tensors: list[Any]) -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _wait(index, tensors)


def _when_the_first_is_there(tensors: list[Any]) -> None:
    """Wait until process 0 has written to the first tensor."""
    deadline = time.monotonic() + 20.0
    while _operations.read(tensors[0], (0,)) == 0 and time.monotonic() < deadline:
        time.sleep(0.001)


def _second(
    action: Callable[[], Any], others: Callable[..., None]
) -> Callable[..., None]:
    """Let process 1 act when process 0 is there, which does something else."""

    def run(index: int, tensors: list[Any]) -> None:
        if index != 1:
            others(index, tensors)
            return
        _when_the_first_is_there(tensors)
        action()

    return run


def _raise() -> None:
    raise LookupError("the worker's own words")


TOGETHER: dict[str, Callable[[int, list[Any]], None]] = {
    "write index": _write_index,
    "wait": _wait,
    "second raises": _second(_raise, _wait),
    "second exits": _second(lambda: sys.exit(7), _wait),
    "second is killed": _second(lambda: os.kill(os.getpid(), signal.SIGKILL), _wait),
    "second raises, others refuse to end": _second(_raise, _refuse_to_end),
}
"""What processes do that are started together."""
