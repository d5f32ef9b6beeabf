"""The state of this process: its current strategy, and the storages that it shares.

There is no other state that sharing changes, but for what the manager's client and the
devices keep of their own.
"""

import os
import threading
import weakref

from .shareable import StorageLike
from .strategies import Segment

DEFAULT_STRATEGY = "file_descriptor"

strategy = DEFAULT_STRATEGY
"""The name of the strategy for what is shared next. Clauses STRAT-1, STRAT-6."""

known: "weakref.WeakValueDictionary[str, StorageLike]" = weakref.WeakValueDictionary()
"""The storages that have a segment to themselves in this process, by its token."""

common: "weakref.WeakValueDictionary[str, Segment]" = weakref.WeakValueDictionary()
"""The segments that several storages lie in and this process holds, by token."""

moving = threading.RLock()
"""One lock for all moves and look-ups: taken before a fork, so that no child inherits a
storage that is half moved."""


def _replace_lock() -> None:
    """Give a forked child a lock that nobody holds. Clause THREAD-3."""
    global moving
    moving = threading.RLock()  # whoever held it is not in the child


os.register_at_fork(
    before=lambda: moving.acquire(),
    after_in_parent=lambda: moving.release(),
    after_in_child=_replace_lock,
)
