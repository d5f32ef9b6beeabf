"""The shared-memory manager: who removes the names of `file_system`, and when.

`daemon` is the manager itself, a script of its own; `launch` starts one or reaches one;
`client` is what the rest of the package calls, by way of this module: it is imported by
the first call, so that a process without names does without it. `daemon` documents the
protocol.
"""

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
