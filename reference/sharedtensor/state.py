"""The state of this process: its current strategy, and the storages that it shares.

There is no other state that sharing changes, but for what `names`, `announcements` and
the devices keep of their own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from . import atomic
from .atomic import Arguments, Result
from .errors import NestedMoveError
from .strategies import Segment

if TYPE_CHECKING:
    from .storage import Storage

DEFAULT_STRATEGY = "file_descriptor"

strategy = DEFAULT_STRATEGY
"""The name of the strategy for what is shared next. Clauses STRAT-1, STRAT-6."""

segments: weakref.WeakValueDictionary[str, Segment] = weakref.WeakValueDictionary()
"""The segments that this process has, by token."""

moving = threading.RLock()
"""One lock for all moves and look-ups: taken before a fork, so that no child inherits a
storage that is half moved. Clause THREAD-3.
"""

_changing: set[int] = set()
"""The ids of the storages that are being changed.

They stay in a child that a signal handler forks meanwhile: there the change stays half
done.
"""


def change(
    storages: Iterable[Storage],
    work: Callable[[*Arguments], Result],
    *arguments: *Arguments,
) -> Result:
    """Return what a function returns that moves or resizes storages, under `moving`.

    The holder of `moving` can take it again. So a signal handler or a finalizer that
    runs in the function can change other storages. To change these is refused: two
    moves of one storage leave its receivers with two memories. Clause CHAN-5. Raises
    `NestedMoveError`.
    """
    return atomic.under(moving, _change, storages, work, *arguments)


def _change(
    storages: Iterable[Storage],
    work: Callable[[*Arguments], Result],
    *arguments: *Arguments,
) -> Result:
    ids = frozenset(map(id, storages))
    if not _changing.isdisjoint(ids):
        raise NestedMoveError(
            "A storage was to be moved into shared memory or resized by code that "
            "has interrupted the call which does so already, such as a signal "
            "handler or a finalizer. Do it when that call has returned."
        )
    try:
        _changing.update(ids)
        return work(*arguments)
    finally:
        _changing.difference_update(ids)  # no handler runs before this call


# By functions of C: an exception of a signal handler that arises in a hook of Python is
# ignored, and the rest of the hook is not done. A child has a free lock, since
# the thread that held it is not in the child. Clauses FAULT-2, THREAD-3.
os.register_at_fork(
    before=moving.acquire,
    after_in_parent=moving.release,
    after_in_child=moving._at_fork_reinit,  # type: ignore[attr-defined]
)
