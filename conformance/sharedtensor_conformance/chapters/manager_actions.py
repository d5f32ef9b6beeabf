"""Objects that a server of `multiprocessing.managers` has, and tensors in them."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.managers import SyncManager
from queue import PriorityQueue
from typing import Any

from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.marks import starts_processes


class Manager(SyncManager):
    """A server of a program, which has a class that `SyncManager` does not have."""


Manager.register("PriorityQueue", PriorityQueue)

KEY = "the key of the suite"

STORES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "Queue": (lambda made, value: made.put(value), lambda made: made.get()),
    "JoinableQueue": (lambda made, value: made.put(value), lambda made: made.get()),
    "PriorityQueue": (
        lambda made, value: made.put((1, value)),
        lambda made: made.get()[1],
    ),
    "list": (lambda made, value: made.append(value), lambda made: made[-1]),
    "dict": (
        lambda made, value: made.update({KEY: value}),
        lambda made: made.get(KEY),
    ),
    "Namespace": (
        lambda made, value: setattr(made, "value", value),
        lambda made: made.value,
    ),
    "Value": (lambda made, value: made.set(value), lambda made: made.get()),
}
"""For each class of a `Manager`: how a value is stored in an object, and how read."""

CLASSES_OF_MANAGER = tuple(name for name in STORES if name != "PriorityQueue")
"""The classes that the server of the context's ``Manager()`` has, too."""


@starts_processes
def open_manager(actor: Actor, method: str, own: bool) -> Any:
    """Start a server: the one of the context's `Manager()`, or the program's own."""
    context = actor.context(method)

    def start() -> Any:
        if not own:
            return context.Manager()
        manager = Manager(ctx=context)
        manager.start()
        return manager

    return actor.by_implementation(start)


@starts_processes
def close_manager(actor: Actor, manager: Any) -> None:
    """End a server."""
    actor.by_implementation(manager.shutdown)


def managed(actor: Actor, manager: Any, name: str) -> Any:
    """Return a new object of one of the `STORES` of the server."""
    initial = ("object", None) if name == "Value" else ()
    return actor.by_implementation(lambda: getattr(manager, name)(*initial))


def store(actor: Actor, made: Any, name: str, payload: Any) -> None:
    """Store a payload in such an object."""
    value = actor.outgoing(payload)
    actor.by_implementation(lambda: STORES[name][0](made, value))


def stored(actor: Actor, made: Any, name: str) -> Any:
    """Return the payload that is stored in such an object."""
    return actor.incoming(actor.by_implementation(lambda: STORES[name][1](made)))
