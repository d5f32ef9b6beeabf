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

import os
import sys
from importlib import import_module

CLIENT = f"{__name__}.client"

TYPE_CHECKING = False  # as `typing` has it, which the daemon need not load
if TYPE_CHECKING:
    from collections.abc import Callable
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


def _hook(name: str) -> Callable[[], None]:
    """Return a hook of a fork, which is the client's if that has been imported."""

    def call() -> None:
        client = sys.modules.get(CLIENT)
        hook: Callable[[], None] | None = getattr(client, name, None)
        if hook is not None:
            hook()

    return call


# Sharing takes the lock of `state` first and the client's second, and so has a fork to:
# the hooks before it run in the reverse order of their registration. `state` registers
# its own later than these, but not later than the client would when it is imported.
os.register_at_fork(
    before=_hook("before_fork"),
    after_in_parent=_hook("after_fork_in_parent"),
    after_in_child=_hook("after_fork_in_child"),
)
