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


class Resource(OwnedDescriptor):
    """What this process holds of a segment, and releases with it.

    `token` identifies the segment among all segments of all processes. A descriptor
    stays open while the resource lives, unless the strategy needs none. `mapping` is
    the memory of the whole segment if it was received. `held` is memory that the
    segment is mapped over: as long as it exists, this process has the lock of a named
    segment.
    """

    __slots__ = ("held", "inode", "mapping", "nbytes", "strategy", "token")

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
        self.mapping: memory.Memory | None = None

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


class Segment:
    """Memory that processes can share, as long as this process has storages in it.

    `storages` has these storages, by offset. Threads find a segment by a weak reference
    (see `state.segments`), so it has no finalizer itself: Python runs a finalizer
    before it clears weak references, and a thread could find a segment that another one
    is releasing. What has to be released belongs to `resource`, which goes after that.
    """

    __slots__ = ("__weakref__", "resource", "storages")

    def __init__(self, resource: Resource):
        self.resource = resource
        self.storages: dict[int, weakref.ref[Any]] = {}

    fd: int = atomic.part_of("resource.fd")
    nbytes: int = atomic.part_of("resource.nbytes")
    strategy: "Strategy" = atomic.part_of("resource.strategy")
    token: str = atomic.part_of("resource.token")


Source = memory.Memory | memory.Group


class FileDescriptor:
    """A segment without a name, and a descriptor for a handle.

    Clauses FD-1, FD-2, FD-3.
    """

    name = "file_descriptor"

    def new_resource(self, nbytes: int) -> Resource:
        """Return what will hold a memory file."""
        return Resource(self, segments.new_token(), nbytes)

    def allocate(
        self, resource: Resource, source: Source, then: Sequence[atomic.Call]
    ) -> None:
        """Make a sealed memory file and move `source` there, as by `memory.move`.

        Until the calls in `then` are made, `release` removes what there is of it.
        Clauses FD-1, FD-4, FAIL-8.
        """
        fd = segments.create_unnamed(resource.token, resource)
        resource.keep(in_children=True)
        resource.inode = os.fstat(fd).st_ino
        segments.seal(fd, source.nbytes)
        memory.move(source, fd, then)

    def export(self, resource: Resource) -> tuple[Any, ...]:
        """Return the inode, and the descriptor by way of the channel.

        Each message has a reference of its own. Clauses FD-4, LIFE-17.
        """
        descriptor = transport.export_descriptor(resource.verified(), resource)
        return resource.inode, descriptor

    def open(
        self, target: memory.Memory, token: str, nbytes: int, where: tuple[Any, ...]
    ) -> Resource:
        """Take the descriptor from the message, verify it and map it.

        It is this process's own: neither the sender nor the channel is needed again.
        Clauses FD-3, FD-4, FAIL-8, LIFE-1, LIFE-3, LIFE-4, LIFE-21, LIFE-24.
        """
        inode, descriptor = where
        resource = Resource(self, token, nbytes, inode)
        try:
            transport.take_descriptor(descriptor, resource)
            segments.verify_unnamed(resource.fd, token, nbytes, inode)
            resource.keep(in_children=True)
            memory.map_segment(target, resource.fd)
        except BaseException:
            self.release(resource)
            raise
        return resource

    def map_again(self, target: memory.Memory, resource: Resource) -> None:
        """Map it by the descriptor that this process has. Clause FD-3."""
        memory.map_segment(target, resource.verified())

    def discard_handle(self, token: str, where: tuple[Any, ...]) -> None:
        """Close the descriptor: that of our own message goes with its inbox.

        If it cannot be had any more, the better: it was not needed. Clauses FD-2, FD-3,
        FD-4, RESHARE-7.
        """
        if not isinstance(where[1], int):
            with contextlib.suppress(HandleError):
                transport.take_descriptor(where[1]).close()

    def release(self, resource: Resource) -> None:
        """Close the descriptor at once; in a forked child it is the child's own.

        Clauses FD-2, FD-7, LIFE-11, LIFE-22.
        """
        resource.close()


class FileSystem:
    """A segment that is a file; its handle is the name. Clauses FS-1, FS-2, FS-3.

    Who has mapped the file has a lock on it, and so has a message with its name: see
    `names`. The name is removed by the last process that drops it, or by the keeper.
    """

    name = "file_system"

    def new_resource(self, nbytes: int) -> Resource:
        """Return what will hold a file of a new name."""
        return Resource(self, segments.new_name(), nbytes)

    def allocate(
        self, resource: Resource, source: Source, then: Sequence[atomic.Call]
    ) -> None:
        """Make a file that only this user can open, and move `source` there.

        As that of `FileDescriptor`. Clauses FS-1, FS-3, FAIL-8, SEC-1.
        """
        owned = segments.create_named(resource.token)
        try:
            memory.move(source, owned.fd, then)
            resource.held = source.bytes
        finally:
            owned.close()

    def export(self, resource: Resource) -> tuple[Any, ...]:
        """Return what holds the name for the message, where a handle has to say that.

        Each message has a reference of its own. Clauses LIFE-2, LIFE-5, LIFE-17.
        """
        return "", announcements.announce_name(resource.token, resource)

    def open(
        self, target: memory.Memory, token: str, nbytes: int, where: tuple[Any, ...]
    ) -> Resource:
        """Hold the name, verify the file, map it.

        This process holds the name by a lock of its own before the message is gone:
        neither the sender nor the channel is needed again. Clauses FS-2, FS-3, FS-8,
        FS-12, FAIL-8, LIFE-1, LIFE-3, LIFE-4, LIFE-21, LIFE-24.
        """
        segments.verify_name(token)
        self._map(target, segments.open_named(token), token, nbytes)
        announcements.discard(where[1])
        resource = Resource(self, token, nbytes)
        resource.held = target.bytes
        return resource

    def map_again(self, target: memory.Memory, resource: Resource) -> None:
        """Open the file once more; this process holds its name. Clauses FS-3, FS-8."""
        owned = segments.open_named(resource.token)
        self._map(target, owned, resource.token, resource.nbytes)

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

    def release(self, resource: Resource) -> None:
        """Remove the name, unless another process or a message has it.

        Clauses FS-2, LIFE-11.
        """
        resource.close()
        resource.mapping = resource.held = None
        announcements.last.cache_clear()
        program.remove_unless_held(resource.token)


def release_segment(resource: Resource) -> None:
    """Give back a segment's descriptor or name. Clauses LIFE-7, FD-2, FS-2."""
    resource.strategy.release(resource)


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
