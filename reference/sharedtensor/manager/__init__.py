"""The shared-memory manager: who removes the names of `file_system`, and when.

`client` is what the rest of the package calls, by way of this module: it is imported by
the first call, so that a process without names does without it. `link` is its side of
one manager, `launch` starts one or reaches one, and `daemon` is the manager itself, a
script of its own, which imports this package but nothing that takes time to load.

The decisions are in modules without I/O, so that the tests can simulate many processes
and explore the orders in which they act: `messages` says what clients can say,
`accounting` when a name can go, `serving` what a manager does, and `conversation` what
a client does, and how it replaces a manager that was killed.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import threading
from importlib import import_module

CLIENT = f"{__name__}.client"

TYPE_CHECKING = False  # as `typing` has it, which the daemon need not load
if TYPE_CHECKING:
    from collections.abc import Iterator
    from socket import socket
    from typing import Any

    from .client import (
        acknowledge_counted,
        address,
        adopt,
        announce,
        announce_counted,
        hold,
        register,
        register_announced,
        register_held,
        release,
        status,
        sync,
        withdraw_counted,
    )

__all__ = [
    "acknowledge_counted",
    "address",
    "adopt",
    "announce",
    "announce_counted",
    "hold",
    "register",
    "register_announced",
    "register_held",
    "release",
    "status",
    "sync",
    "withdraw_counted",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    client = sys.modules.get(CLIENT) or import_module(CLIENT)  # the former is faster
    return getattr(client, name)


class Fork:
    """What this process has prepared for one fork, and holds until that is done.

    Attributes:
        lock: the block of the client's lock, which is left with the last reference.
        connections: for the child, by the address of their manager.
    """

    __slots__ = ("connections", "lock")

    def __init__(self) -> None:
        self.lock: Iterator[bool] | None = None
        self.connections: dict[str, socket | None] = {}


class _Forks(threading.local):
    """The forks that this thread is making, the innermost last; None before it begins.

    There are several where a signal handler forks while a fork is being prepared.
    """

    def __init__(self) -> None:
        self.made: list[Fork | None] = []
        self.append = self.made.append
        self.pop = self.made.pop


_forks = _Forks()


def _before_fork() -> None:
    client: Any = sys.modules.get(CLIENT)
    if hasattr(client, "before_fork"):
        _forks.made[-1] = Fork()
        client.before_fork(_forks.made)


def _after_fork_in_child() -> None:
    client: Any = sys.modules.get(CLIENT)
    if hasattr(client, "after_fork_in_child"):
        client.after_fork_in_child(_forks.made)


# Sharing takes the lock of `state` first and the client's second, and so has a fork to:
# the hooks before it run in the reverse order of their registration. `state` registers
# its own later than these, but not later than the client would when it is imported.
os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)

# Python ignores what a signal handler raises in a hook, wherever that is then, and a
# signal that comes during the fork is handled where the next function of Python begins.
# So what begins a fork and what ends it are functions of C (FAULT-2). No function has a
# `Fork` in a variable, where the traceback of an exception would keep it.
_end = functools.partial(operator.methodcaller("pop"), _forks)
os.register_at_fork(
    before=functools.partial(operator.methodcaller("append", None), _forks),
    after_in_parent=_end,
    after_in_child=_end,
)
