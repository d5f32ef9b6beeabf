"""Sharing strategies: how a handle names a segment of host memory.

A strategy is one object that makes segments, exports their handles, opens handles, and
releases segments. What it cannot do it raises as a `HandleError` or `ResourceError`,
and nothing is left of the attempt.

A storage keeps the segment that it has, whatever the current strategy is (clause
STRAT-4). Each handle names its own strategy, so processes with different strategies
understand each other (clause STRAT-5). A process that has opened a handle has a
reference of its own to the segment, and needs nothing of the sender any more.
"""

import contextlib
import os
import weakref
from collections.abc import Sequence
from typing import Any

from . import announcements, atomic, memory, segments, transport
from .descriptors import OwnedDescriptor
from .errors import HandleError, StrategyError
from .names import program


class Segment(OwnedDescriptor):
    """Memory that processes can share, and what this process has to release for it.

    `token` identifies it among all segments of all processes. It owns a descriptor
    while it lives, unless the strategy needs none. `storages` has those of this process
    that lie in it, by offset, and `mapping` is the memory of all if it was received.
    `held` is memory that it is mapped over: while that is, this process has the lock of
    a named segment.
    """

    __slots__ = (
        "held",
        "inode",
        "mapping",
        "nbytes",
        "storages",
        "strategy",
        "token",
    )

    def __init__(
        self,
        strategy: "Strategy",
        token: str,
        nbytes: int,
        inode: int = 0,
    ):
        super().__init__()
        self.strategy = strategy
        self.token = token
        self.nbytes = nbytes
        self.inode = inode
        self.held: memoryview | None = None
        self.storages: dict[int, weakref.ref[Any]] = {}
        self.mapping: memory.Memory | None = None

    def is_released(self) -> bool:
        """Return whether this process holds nothing of it, or has not made it yet."""
        return self.fd < 0 and self.held is None

    def __del__(self) -> None:
        """Release the segment, in whichever thread the last reference goes.

        Clauses LIFE-25, FAULT-2.
        """
        # At the end of the interpreter modules may be gone, `contextlib` too, and none
        # can be imported: then the system closes what is open, and the keeper removes
        # the names. So it does where a signal handler interrupts this.
        try:  # noqa: SIM105
            release_segment(self)
        except (AttributeError, ImportError, TypeError):
            pass


Source = memory.Memory | memory.Group


class FileDescriptor:
    """A segment without a name, and a descriptor for a handle.

    Clauses FD-1, FD-2, FD-3.
    """

    name = "file_descriptor"

    def new_segment(self, nbytes: int) -> Segment:
        """Return a segment for a memory file."""
        return Segment(self, segments.new_token(), nbytes)

    def allocate(
        self, segment: Segment, source: Source, then: Sequence[atomic.Call]
    ) -> None:
        """Make a sealed memory file and move `source` there, as by `memory.move`.

        Until the calls in `then` are made, `release` removes what there is of it.
        Clauses FD-1, FD-4, FAIL-8.
        """
        fd = segments.create_unnamed(segment.token, segment)
        segment.keep(in_children=True)
        segment.inode = os.fstat(fd).st_ino
        segments.seal(fd, source.nbytes)
        memory.move(source, fd, then)

    def export(self, segment: Segment) -> tuple[Any, ...]:
        """Return the inode, and the descriptor by way of the channel.

        Each message has a reference of its own. Clauses FD-4, LIFE-17.
        """
        descriptor = transport.export_descriptor(segment.verified(), segment)
        return segment.inode, descriptor

    def open(
        self, target: memory.Memory, token: str, nbytes: int, where: tuple[Any, ...]
    ) -> Segment:
        """Take the descriptor from the message, verify it and map it.

        It is this process's own: neither the sender nor the channel is needed again.
        Clauses FD-3, FD-4, FAIL-8, LIFE-1, LIFE-3, LIFE-4, LIFE-21, LIFE-24.
        """
        inode, descriptor = where
        segment = Segment(self, token, nbytes, inode)
        try:
            transport.take_descriptor(descriptor, segment)
            segments.verify_unnamed(segment.fd, token, nbytes, inode)
            segment.keep(in_children=True)
            memory.map_segment(target, segment.fd)
        except BaseException:
            self.release(segment)
            raise
        return segment

    def map_again(self, target: memory.Memory, segment: Segment) -> None:
        """Map it by the descriptor that this process has. Clause FD-3."""
        memory.map_segment(target, segment.verified())

    def discard_handle(self, token: str, where: tuple[Any, ...]) -> None:
        """Close the descriptor: that of our own message goes with its inbox.

        If it cannot be had any more, the better: it was not needed. Clauses FD-2, FD-3,
        FD-4, RESHARE-7.
        """
        if not isinstance(where[1], int):
            with contextlib.suppress(HandleError):
                transport.take_descriptor(where[1]).close()

    def release(self, segment: Segment) -> None:
        """Close the descriptor at once; in a forked child it is the child's own.

        Clauses FD-2, FD-7, LIFE-11, LIFE-22.
        """
        segment.close()


class FileSystem:
    """A segment that is a file; its handle is the name. Clauses FS-1, FS-2, FS-3.

    Who has mapped the file has a lock on it, and so has a message with its name: see
    `names`. The name is removed by the last process that drops it, or by the keeper.
    """

    name = "file_system"

    def new_segment(self, nbytes: int) -> Segment:
        """Return a segment for a file of a new name."""
        return Segment(self, segments.new_name(), nbytes)

    def allocate(
        self, segment: Segment, source: Source, then: Sequence[atomic.Call]
    ) -> None:
        """Make a file that only this user can open, and move `source` there.

        As that of `FileDescriptor`. Clauses FS-1, FS-3, FAIL-8, SEC-1.
        """
        owned = segments.create_named(segment.token)
        try:
            memory.move(source, owned.fd, then)
            segment.held = source.bytes
        finally:
            owned.close()

    def export(self, segment: Segment) -> tuple[Any, ...]:
        """Return what holds the name for the message, where a handle has to say that.

        Each message has a reference of its own. Clauses LIFE-2, LIFE-5, LIFE-17.
        """
        return "", announcements.announce_name(segment.token, segment)

    def open(
        self, target: memory.Memory, token: str, nbytes: int, where: tuple[Any, ...]
    ) -> Segment:
        """Hold the name, verify the file, map it.

        This process holds the name by a lock of its own before the message is gone:
        neither the sender nor the channel is needed again. Clauses FS-2, FS-3, FS-8,
        FS-12, FAIL-8, LIFE-1, LIFE-3, LIFE-4, LIFE-21, LIFE-24.
        """
        segments.verify_name(token)
        self._map(target, segments.open_named(token), token, nbytes)
        announcements.discard(where[1])
        segment = Segment(self, token, nbytes)
        segment.held = target.bytes
        return segment

    def map_again(self, target: memory.Memory, segment: Segment) -> None:
        """Open the file once more; this process holds its name. Clauses FS-3, FS-8."""
        owned = segments.open_named(segment.token)
        self._map(target, owned, segment.token, segment.nbytes)

    def _map(
        self, target: memory.Memory, owned: OwnedDescriptor, name: str, nbytes: int
    ) -> None:
        """Verify an open file, map it, and close it."""
        try:
            segments.verify_named(owned.fd, name, nbytes)
            memory.map_segment(target, owned.fd)
        finally:
            owned.close()

    def discard_handle(self, token: str, where: tuple[Any, ...]) -> None:
        """Do without what holds the name for the message. Clause RESHARE-7."""
        announcements.discard(where[1])

    def release(self, segment: Segment) -> None:
        """Remove the name, unless another process or a message has it.

        Clauses FS-2, LIFE-11.
        """
        segment.close()
        segment.mapping = segment.held = None
        announcements.last.cache_clear()
        program.remove_unless_held(segment.token)


def release_segment(segment: Segment) -> None:
    """Give back a segment's descriptor or name. Clauses LIFE-7, FD-2, FS-2."""
    segment.strategy.release(segment)


Strategy = FileDescriptor | FileSystem

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in (FileDescriptor(), FileSystem())
}


def find_strategy(name: str) -> Strategy:
    """Return the strategy of that name.

    Raises `StrategyError` for whatever is no name of one. Clauses STRAT-3, FAIL-10.
    """
    try:
        return STRATEGIES[name]
    except (KeyError, TypeError):
        known = ", ".join(repr(known) for known in sorted(STRATEGIES))
        message = f"There is no sharing strategy {name!r}. Choose one of {known}."
        raise StrategyError(message) from None


def get_all_sharing_strategies() -> set[str]:
    """Return the names of the strategies that this system supports. Clause STRAT-1."""
    return set(STRATEGIES)
