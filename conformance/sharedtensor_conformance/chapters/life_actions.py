"""Actions for the tests of lifetimes alone.

They hide a tensor where only the garbage collector or the end of the interpreter finds
it, replace the process by another program, and send many clones.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from sharedtensor_conformance.chapters.process_actions import WAITING_PROGRAM
from sharedtensor_conformance.harness.case.checks import wait_until
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.threads import THREAD_TIMEOUT


def hide(actor: Actor, key: str, where: str) -> None:
    """Move a tensor to one of the `HIDING_PLACES`, and drop the suite's reference."""
    tensor = actor.objects.pop(key)
    HIDING_PLACES[where](tensor)


def drop_in_a_thread(actor: Actor, key: str) -> None:
    """Drop the last reference to a tensor in another thread."""
    held = [actor.objects.pop(key)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(THREAD_TIMEOUT)


class Cycle:
    """An object that refers to itself, and to a tensor."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.itself = self


def _in_a_cycle(tensor: Any) -> None:
    Cycle(tensor)


def _in_a_module(tensor: Any) -> None:
    module = types.ModuleType(f"hiding_place_{id(tensor)}")
    module.__dict__["tensor"] = tensor
    sys.modules[module.__name__] = module


def _in_the_main_module(tensor: Any) -> None:
    sys.modules["__main__"].__dict__[f"tensor_{id(tensor)}"] = tensor


def _in_a_cycle_of_a_module(tensor: Any) -> None:
    _in_a_module(Cycle(tensor))


def _in_a_thread(tensor: Any) -> None:
    begun = threading.Event()

    def hold(held: Any) -> None:
        begun.set()
        threading.Event().wait()

    threading.Thread(target=hold, args=(tensor,), daemon=True).start()
    wait_until(begun.is_set, THREAD_TIMEOUT)


def _in_an_exit_function(tensor: Any) -> None:
    atexit.register(lambda held: None, tensor)


def _in_a_class(tensor: Any) -> None:
    _in_a_module(type("HidingPlace", (), {"tensor": tensor}))


HIDING_PLACES: dict[str, Callable[[Any], None]] = {
    "a cycle": _in_a_cycle,
    "a module": _in_a_module,
    "the main module": _in_the_main_module,
    "a cycle of a module": _in_a_cycle_of_a_module,
    "a thread": _in_a_thread,
    "an exit function": _in_an_exit_function,
    "a class": _in_a_class,
}
"""The places where a tensor can be when a process ends. In the first, it is garbage."""


def execute_program(actor: Actor) -> None:
    """Replace this process by another program."""
    os.execv(WAITING_PROGRAM[0], WAITING_PROGRAM)


def put_clones(
    actor: Actor, tensor: Any, numbers: list[int], to: str, channel: str
) -> None:
    """Put a clone for each number, and drop it at once.

    The first element of a clone is its number.
    """
    for number in numbers:
        clone = actor.call("clone", tensor)
        actor.call("write", clone, (0,), number)
        actor.put(to, channel, clone)
        actor.call("release", clone)
        del clone


def get_clones(
    actor: Actor, held: Any, count: int, sender: str, channel: str
) -> list[int]:
    """Get `count` clones, keep them by their numbers, and return the numbers."""
    found = []
    for _ in range(count):
        tensor = actor.get(sender, channel)
        found.append(int(actor.call("read", tensor, (0,))))
        held.tensors.setdefault(found[-1], []).append(tensor)
    return found
