"""The state of this process: its current strategy, and the storages that it shares.

There is no other state that sharing changes, but for what `names`, `announcements` and
the devices keep of their own.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from .errors import NestedMoveError
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
storage that is half moved. Clause THREAD-3.
"""

changing: frozenset[StorageLike] = frozenset()
"""What the holder of the lock moves or resizes at the moment. A child that a signal
handler forks meanwhile keeps it, since there it stays half done.
"""


def change(
    storages: Iterable[StorageLike], how: Callable[..., None], *arguments: Any
) -> None:
    """Move or resize storages under the lock, by a call of `how`.

    The lock lets its holder in again, so a signal handler or a finalizer that comes
    in between can change other storages. To change these ones is refused: two moves of
    one storage leave its receivers with two memories. Clause CHAN-5. Raises
    `NestedMoveError`.
    """
    global changing
    with moving:
        before = changing
        if not before.isdisjoint(storages):
            raise NestedMoveError(
                "A storage was to be moved into shared memory or resized by code that "
                "has interrupted the call which does so already, such as a signal "
                "handler or a finalizer. Do it when that call has returned."
            )
        try:
            changing = before.union(storages)
            how(*arguments)
        finally:
            changing = before


# By functions of C: an exception of a signal handler that arises in a hook of Python is
# ignored, and the rest of the hook is not done. A child has a lock that nobody holds,
# since whoever held it is not in the child. Clauses FAULT-2, THREAD-3.
os.register_at_fork(
    before=moving.acquire,
    after_in_parent=moving.release,
    after_in_child=moving._at_fork_reinit,  # type: ignore[attr-defined]
)
