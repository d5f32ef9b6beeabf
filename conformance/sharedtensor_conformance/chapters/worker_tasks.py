"""The tasks that the workers of pools execute, and other processes of an actor.

A task gets encoded tensors. A worker has no actor, so it keeps the operations of the
adapter itself.
"""

from __future__ import annotations

import subprocess
import sys
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any

from sharedtensor_conformance.chapters.bundle_actions import (
    describe_bundle,
    write_bundle,
)
from sharedtensor_conformance.chapters.message_actions import Unpicklable, Unreceivable
from sharedtensor_conformance.harness.ledger import ledger
from sharedtensor_conformance.harness.remote.payloads import map_leaves
from sharedtensor_conformance.harness.remote.setting import Setting

READY_TIMEOUT = 20.0
"""Seconds that the first of several processes may take to be ready."""

DESCRIPTORS_PROGRAM = """
import os
for number in os.listdir("/proc/self/fd"):
    try:
        print(os.readlink(f"/proc/self/fd/{number}"))
    except FileNotFoundError:
        pass  # that of the folder itself
"""
"""A program that prints the targets of its descriptors."""


class Worker:
    """This process as a worker: the operations of the adapter, and a kept tensor."""

    def __init__(self) -> None:
        self.operations: Any = None
        self.kept: Any = None

    def call(self, name: str, *arguments: Any) -> Any:
        """Call an operation of the adapter."""
        return getattr(self.operations, name)(*arguments)

    def encoded(self, payload: Any) -> Any:
        """Return a payload with encoded tensors."""
        return map_leaves(payload, lambda value: self._changed("encode", value))

    def decoded(self, payload: Any) -> Any:
        """Return a payload with decoded tensors."""
        return map_leaves(payload, lambda value: self._changed("decode", value))

    def _changed(self, change: str, value: Any) -> Any:
        return self.call(change, value) if self.call("is_tensor", value) else value


WORKER = Worker()
"""The worker that this process is, once `prepare_worker` was called."""


def prepare_worker(setting: Setting) -> None:
    """Prepare a worker. Pools use this function as initializer."""
    WORKER.operations = setting.operations()
    WORKER.operations.enter_child(setting.strategy)
    WORKER.kept = None


def write_and_return(payload: Any, position: int, value: Any) -> Any:
    """Write `value` to an element of every tensor, and return the payload."""
    tensors = WORKER.decoded(payload)

    def write(tensor: Any) -> Any:
        if WORKER.call("is_tensor", tensor):
            WORKER.call("write", tensor, (position,), value)
        return tensor

    map_leaves(tensors, write)
    return WORKER.encoded(tensors)


def add_and_return(payload: Any) -> Any:
    """Add 1 to one element of every tensor, and return the payload.

    The element is the first one, or the one at the index "at" of a payload that is a
    dict. Two tasks that add to one element at the same time may lose an addition, so
    tests give each task another element.

    Raises:
        LookupError: the payload is None.
    """
    if payload is None:
        raise LookupError("the worker's own words")
    at = (payload.get("at", 0) if isinstance(payload, dict) else 0,)
    tensors = WORKER.decoded(payload)

    def add(tensor: Any) -> Any:
        if WORKER.call("is_tensor", tensor):
            WORKER.call("write", tensor, at, WORKER.call("read", tensor, at) + 1)
        return tensor

    map_leaves(tensors, add)
    return WORKER.encoded(tensors)


def add_and_return_in_vain(payload: Any, error: str) -> list[Any]:
    """Call `add_and_return`; return what cannot be rebuilt beside its result.

    It raises `error` there; without one, it cannot be pickled.
    """
    bad = Unreceivable(error) if error else Unpicklable()
    return [bad, add_and_return(payload)]


def add_in_process(setting: Setting, payload: Any) -> None:
    """Call `add_and_return`, as the function of a process."""
    prepare_worker(setting)
    add_and_return(payload)


def add_when_written(setting: Setting, payload: Any, written: Semaphore) -> None:
    """Call `add_and_return` when the parent has written to the tensors.

    Raises:
        TimeoutError: the parent does not say that it has.
    """
    prepare_worker(setting)
    if not written.acquire(timeout=READY_TIMEOUT):
        raise TimeoutError("the parent of this process did not write")
    add_and_return(payload)


def send_strategy(setting: Setting, connection: Connection) -> None:
    """Send the sharing strategy of a process in which none was set."""
    connection.send(strategy(setting))


def strategy(setting: Setting) -> str:
    """Return the sharing strategy of a worker in which none was set."""
    found: str = setting.operations().multiprocessing.get_sharing_strategy()
    return found


def describe_and_write(payload: Any, with_grads: bool = False) -> list[Any]:
    """Describe a bundle, write to all of its tensors, and describe it again.

    Returns:
        The bundle and the two descriptions.
    """
    bundle = WORKER.decoded(payload)
    found = [describe_bundle(WORKER, bundle, with_grads)]
    write_bundle(WORKER, bundle, with_grads)
    found.append(describe_bundle(WORKER, bundle, with_grads))
    return [WORKER.encoded(bundle), *found]


def targets_of_a_program(payload: Any) -> list[str]:
    """Return the kinds of descriptors of a program.

    The program is started while this process holds the tensors of the payload.
    """
    tensors = WORKER.decoded(payload)
    command = [sys.executable, "-I", "-S", "-c", DESCRIPTORS_PROGRAM]
    said = subprocess.check_output(command, close_fds=False, text=True)
    del tensors
    return [ledger.kind(target) for target in said.splitlines()]


def make_and_keep(values: list[Any], dtype: str = "float32") -> Any:
    """Make a tensor, keep it in the worker, and return it."""
    WORKER.kept = WORKER.call("make", values, (len(values),), dtype)
    return WORKER.encoded(WORKER.kept)


def make_non_leaf(values: list[Any], dtype: str = "float32") -> Any:
    """Make a leaf that requires grad, and return a tensor computed from it."""
    leaf = WORKER.call("make", values, (len(values),), dtype)
    WORKER.call("set_requires_grad", leaf, True)
    return WORKER.encoded(WORKER.call("non_leaf", leaf))


def read_kept(position: int) -> Any:
    """Return one value of the tensor that the worker keeps."""
    return WORKER.call("read", WORKER.kept, (position,))


def write_kept(position: int, value: Any) -> None:
    """Write one value of the tensor that the worker keeps."""
    WORKER.call("write", WORKER.kept, (position,), value)
