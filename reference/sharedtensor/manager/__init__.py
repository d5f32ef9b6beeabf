"""The shared-memory manager: who removes the names of `file_system`, and when.

`daemon` is the manager itself, a script of its own; `launch` starts one or reaches one;
`client` is what the rest of the package calls, by way of this module: it is imported by
the first call, so that a process without names does without it. `daemon` documents the
protocol.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import (
        acknowledge_counted,
        address,
        adopt,
        announce,
        announce_counted,
        register,
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
    "register",
    "release",
    "status",
    "sync",
    "withdraw_counted",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".client", __name__), name)


def _hook(name: str) -> Callable[[], None]:
    """Return a hook of a fork, which is the client's if that has been imported."""

    def call() -> None:
        client = sys.modules.get(f"{__name__}.client")
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
