"""Sharing strategies: how a handle names a segment of CPU memory.

A strategy is one object with four methods: allocate a segment, export its handle, open
a handle, release a segment. A storage keeps the segment that it has, whatever the
current strategy is (clause STRAT-4), and each handle names its own strategy, so
processes with different strategies understand each other (clause STRAT-5).

Opening trusts nothing in a handle: it was written by another process, and what it names
may have been replaced since.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import stat
from collections.abc import Callable
from typing import Any, Protocol

from . import manager as names
from . import memory, transport
from .errors import HandleError, StrategyError, resource_error
from .steps import steps

DIRECTORY = "/dev/shm"
NAME = re.compile(r"sharedtensor-[0-9]+-[0-9a-f]{32}")
TOKEN = re.compile(r"[0-9a-f]{32}")
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Segment:
    """Memory that processes can share, and what this process has to release for it.

    `token` identifies it among all segments of all processes. `descriptor` is open
    while the segment lives, or None where the strategy needs none.
    """

    __slots__ = ("descriptor", "inode", "manager", "nbytes", "strategy", "token")

    def __init__(
        self,
        strategy: "Strategy",
        token: str,
        nbytes: int,
        descriptor: int | None = None,
        inode: int = 0,
        manager: str = "",
    ):
        self.strategy = strategy
        self.token = token
        self.nbytes = nbytes
        self.descriptor = descriptor
        self.inode = inode
        self.manager = manager

    def __del__(self) -> None:
        # At the end of the interpreter modules may be gone, `contextlib` too: then the
        # system closes what is open, and the manager releases the names.
        try:  # noqa: SIM105
            steps.release_segment(self)
        except (AttributeError, TypeError):
            pass


class Strategy(Protocol):
    """What the rest of the package asks of a strategy."""

    name: str

    def allocate(self, source: memory.Memory, nbytes: int) -> Segment:
        """A new segment with the bytes of `source`, mapped over it.

        Raises `ResourceError`; then nothing is left of the attempt.
        """

    def export(self, segment: Segment) -> tuple[Any, ...]:
        """What a handle says beyond strategy, token and size."""

    def open(
        self, target: memory.Memory, token: str, nbytes: int, where: tuple[Any, ...]
    ) -> Segment:
        """The segment that a handle names, mapped over `target`.

        Raises `HandleError` or `ResourceError`; then nothing is left of the attempt.
        """

    def forget(self, token: str, where: tuple[Any, ...]) -> None:
        """Do without a handle that names a segment this process has already."""

    def release(self, segment: Segment) -> None:
        """Give back the descriptor or the name."""


class FileDescriptor:
    """A segment without a name; its handle is a descriptor. Clauses FD-1 to FD-3."""

    name = "file_descriptor"

    def allocate(self, source: memory.Memory, nbytes: int) -> Segment:
        """Make a sealed memory file. Clause FD-1."""
        token = new_token()
        fd = steps.create_unnamed(token)
        try:
            memory.write(fd, source)
            steps.seal_segment(fd)
            steps.map_segment(source, fd)
            return Segment(self, token, nbytes, fd, os.fstat(fd).st_ino)
        except BaseException:
            os.close(fd)
            raise

    def export(self, segment: Segment) -> tuple[Any, ...]:
        """The inode, and the descriptor by way of the channel."""
        assert segment.descriptor is not None, "it is open while the segment lives"
        ticket = transport.export_descriptor(segment.descriptor, segment)
        return segment.inode, ticket

    def open(
        self, target: memory.Memory, token: str, nbytes: int, where: tuple[Any, ...]
    ) -> Segment:
        """Take the descriptor from the message, verify it and map it. Clause FD-3."""
        inode, ticket = where
        fd = transport.take_descriptor(ticket)
        try:
            verify_unnamed(fd, token, nbytes, inode)
            steps.map_segment(target, fd)
            return Segment(self, token, nbytes, fd, inode)
        except BaseException:
            os.close(fd)
            raise

    def forget(self, token: str, where: tuple[Any, ...]) -> None:
        """Close the descriptor of the message at once. Clauses FD-2, FD-3.

        If it cannot be had any more, the better: it was not needed.
        """
        with contextlib.suppress(HandleError):
            os.close(transport.take_descriptor(where[1]))

    def release(self, segment: Segment) -> None:
        """Close the descriptor; in a forked child it is the child's own.

        Clause FD-2.
        """
        fd, segment.descriptor = segment.descriptor, None
        if fd is not None:
            os.close(fd)


class FileSystem:
    """A segment that is a file; its handle is the name. Clauses FS-1 to FS-3.

    The manager counts who holds a name and which messages carry it, and removes the
    name after the last. It is told before the file is made, so no name escapes it.
    """

    name = "file_system"

    def allocate(self, source: memory.Memory, nbytes: int) -> Segment:
        """Make a file that only this user can open. Clauses FS-1, FS-3, SEC-1."""
        name = f"sharedtensor-{os.getpid()}-{new_token()}"
        manager = names.address()
        steps.register_name(name, manager)
        try:
            with created(name) as fd:
                memory.write(fd, source)
                steps.map_segment(source, fd)
        except BaseException:
            names.release(name, address=manager)
            raise
        return Segment(self, name, nbytes, manager=manager)

    def export(self, segment: Segment) -> tuple[Any, ...]:
        """The manager's address, and how the manager knows of the message.

        Clauses LIFE-2, LIFE-5.
        """
        name, manager = segment.token, segment.manager
        how = transport.export_name(name, manager, segment, names.announce)
        if how == transport.COUNTED:
            names.announce_counted(name, address=manager)
        return manager, how

    def open(
        self, target: memory.Memory, token: str, nbytes: int, where: tuple[Any, ...]
    ) -> Segment:
        """Claim the name, open and verify the file, map it. Clauses FS-2, FS-3."""
        manager, how = where
        if not NAME.fullmatch(token):
            raise HandleError(
                f"{token!r} is no name of a segment; the handle is forged."
            )
        steps.acknowledge_name(token, manager)
        try:
            arrived(token, manager, how, names.acknowledge_counted)
            with opened(token) as fd:
                verify_named(fd, token, nbytes)
                steps.map_segment(target, fd)
        except BaseException:
            names.release(token, address=manager)
            raise
        return Segment(self, token, nbytes, manager=manager)

    def forget(self, token: str, where: tuple[Any, ...]) -> None:
        """The message has arrived and holds nothing that this process does not."""
        manager, how = where
        arrived(token, manager, how, names.withdraw_counted)

    def release(self, segment: Segment) -> None:
        """Tell the manager that this process holds the name no more. Clause FS-2."""
        posted.forget(segment.token)
        names.release(segment.token, address=segment.manager)


class Posted:
    """The descriptor that stood for the last message with one name, to stand again.

    Whoever sends one tensor over and over tells the manager once. While this process
    holds the name, it does not matter how many copies of the descriptor are open; with
    the last hold this one goes. It is a single one, whatever is shared: clause FS-3.
    """

    def __init__(self) -> None:
        self.last: tuple[str, transport.OwnedDescriptor] | None = None

    def of(self, tokens: list[str], manager: str) -> transport.OwnedDescriptor:
        """A descriptor that keeps these names in flight as long as it is open."""
        last = self.last
        # In a forked child the parent's descriptor has been closed.
        if last is not None and tokens == [last[0]] and last[1].fd >= 0:
            return last[1]
        owned = transport.OwnedDescriptor(names.announce(tokens, address=manager))
        if len(tokens) == 1:
            self.last = tokens[0], owned
        return owned

    def forget(self, token: str) -> None:
        """Let go of the descriptor of a name that this process gives up."""
        last = self.last
        if last is not None and last[0] == token:
            self.last = None


posted = Posted()


def arrived(name: str, manager: str, how: Any, tell: Callable[..., None]) -> None:
    """Let the manager know that a message with the name is no longer in flight."""
    if how == transport.COUNTED:
        tell(name, address=manager)
    elif how is not None:
        os.close(transport.take_descriptor(how))


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in (FileDescriptor(), FileSystem())
}


def find_strategy(name: str) -> Strategy:
    """The strategy of that name. Raises `StrategyError`. Clause STRAT-3."""
    try:
        return STRATEGIES[name]
    except (KeyError, TypeError):
        known = ", ".join(repr(known) for known in sorted(STRATEGIES))
        message = f"There is no sharing strategy {name!r}. Choose one of {known}."
        raise StrategyError(message) from None


def get_all_sharing_strategies() -> set[str]:
    """The names of the strategies that this system supports. Clause STRAT-1."""
    return set(STRATEGIES)


def get_sharing_strategy() -> str:
    """The name of the current strategy. Clauses STRAT-1, STRAT-6."""
    return steps.current_strategy()


def set_sharing_strategy(name: str) -> None:
    """Make a strategy the current one, for storages that are shared from now on.

    Raises `StrategyError` and changes nothing where the name is none. Clauses STRAT-2,
    STRAT-3.
    """
    steps.set_strategy(find_strategy(name).name)


def new_token() -> str:
    """What tells a segment from all others, and nobody can guess. Clause SEC-3."""
    return os.urandom(16).hex()


def create_unnamed(token: str) -> int:
    """A new memory file without a name in any directory. Clause FD-1."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(f"sharedtensor-{token}", flags)
    except OSError as error:
        raise resource_error(error.errno, "Making a segment") from error


def seal(fd: int) -> None:
    """Forbid for ever that anybody changes the size of a memory file."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)


def manager_address(strategy: str) -> str | None:
    """The manager that a child with that strategy has to use, if it needs one."""
    return names.address() if strategy == FileSystem.name else None


@contextlib.contextmanager
def created(name: str) -> Any:
    """A new file of that name; if the block fails, the name is gone. Clause SEC-1."""
    path = f"{DIRECTORY}/{name}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, steps.permissions())
    except OSError as error:
        raise resource_error(error.errno, f"Making the segment {path}") from error
    try:
        os.fchmod(fd, steps.permissions())  # the umask does not decide: clause MGR-9
        yield fd
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened(name: str) -> Any:
    """The file of a name that came in a message, closed after the block.

    Clause FS-3.
    """
    path = f"{DIRECTORY}/{name}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise HandleError(
            f"The segment {path} is gone: every process that held it has ended, or its "
            "manager was killed. Keep a tensor over it until the receiver has its own."
        ) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise HandleError(
                f"{path} is a symbolic link. Somebody has replaced the segment; it is "
                "refused."
            ) from error
        raise resource_error(error.errno, f"Opening the segment {path}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def verify_unnamed(fd: int, token: str, nbytes: int, inode: int) -> None:
    """Verify that a descriptor is what its handle says: name, inode, size and seals.

    Without the seals its maker could shrink it under its receivers. Clause SEC-8.
    Raises `HandleError`.
    """
    status = os.fstat(fd)
    name = os.readlink(f"/proc/self/fd/{fd}")
    if name != f"/memfd:sharedtensor-{token} (deleted)" or status.st_ino != inode:
        raise HandleError(
            f"The descriptor that came for segment {token} is {name}. The handle is "
            "stale or forged; send the tensor again."
        )
    verify_size(status, token, nbytes)
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
        raise HandleError(f"Segment {token} can be shrunk by others; it is refused.")


def verify_named(fd: int, name: str, nbytes: int) -> None:
    """Verify that a file is regular, this user's, and large enough.

    Clauses SEC-1, SEC-6, SEC-8. Raises `HandleError`.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise HandleError(
            f"{DIRECTORY}/{name} is not a regular file of this user. Somebody has "
            "replaced the segment; it is refused."
        )
    verify_size(status, name, nbytes)


def verify_size(status: os.stat_result, token: str, nbytes: int) -> None:
    """Verify that a segment holds the storage. Clause SEC-7. Raises `HandleError`."""
    if not 0 <= nbytes <= status.st_size:
        raise HandleError(
            f"Segment {token} has {status.st_size} bytes, its handle claims {nbytes}. "
            "The handle is stale or forged; send the tensor again."
        )


def map_shared(target: memory.Memory, fd: int) -> None:
    """Map a segment over memory so that all its processes see one another's writes."""
    memory.remap(target, fd, mmap.MAP_SHARED)
