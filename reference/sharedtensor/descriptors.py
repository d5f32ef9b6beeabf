"""Descriptors that this package has opened, and who closes them.

Each belongs to an object from the very call of C that opens it, receives it, or passes
it on: see `atomic`. They are closed with their owner, so none is lost (clause FAULT-2),
and in a forked child at once: what a process sends or receives does not stay in its
children. What the kernel hands to another thread just when this one forks is in no
object yet: a child keeps it until its end.

One that is kept for long is used and closed only while it refers to what it did: a
program that closes all descriptors, as daemons do, has files of its own under these
numbers afterwards (clause ENV-7). Objects of C would close them by the number alone.
"""

import errno
import fcntl
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from . import atomic
from .errors import descriptor_error, pass_on, resource_error

Result = TypeVar("Result")
RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
AFTER_STREAMS = 3  # descriptors 0, 1 and 2 are a program's standard streams
F_SETSIG, F_GETSIG = 10, 11  # fcntl(2); the module has no names for them
PAUSE = 0.0005  # seconds between two attempts to lock a file
MARK = 62  # a signal that nothing sends without O_ASYNC
_control = fcntl.fcntl


class ClosedInChildren:
    """What is closed with its last reference, and in a forked child at once.

    `_note` has to know of it.
    """

    __slots__ = ("__weakref__",)

    def close(self) -> None:
        """Close what is open; once."""
        raise NotImplementedError

    def __del__(self) -> None:
        try:  # noqa: SIM105  (at the end of the interpreter modules may be gone)
            self.close()
        except (AttributeError, TypeError):
            pass


class _Descriptor(weakref.ref[Any]):
    """A descriptor, and a weak reference to its owner.

    It outlives an owner whose finalizer is interrupted where it begins. Python goes on
    then, and calls back a function of C that notes this descriptor. Clause THREAD-7.

    Attributes:
        fd: the number; -1 if it is closed, or another's.
        is_marked: whether its open file has the mark of one that is kept for long.
        stays: whether a forked child keeps it.
    """

    __slots__ = ("fd", "is_marked", "stays")

    fd: int
    is_marked: bool
    stays: bool

    def is_usable(self) -> bool:
        """Return whether it is open and refers to what it did."""
        fd = self.fd
        if not self.is_marked:
            return fd >= 0
        try:
            return _marked.get(fd) is self and _control(fd, F_GETSIG) == MARK
        except OSError as error:
            pass_on(error)
            return False

    def close(self) -> None:
        """Close it, unless it is closed or is a file of the program."""
        is_usable = not self.is_marked or self.is_usable()
        fd, self.fd = self.fd, -1
        # No signal handler and no other thread runs from there until it is closed.
        if is_usable and fd >= 0:
            if self.is_marked:
                del _marked[fd]
            os.close(fd)
        _open.discard(self)


class OwnedDescriptor(ClosedInChildren):
    """A descriptor and who closes it."""

    __slots__ = ("_descriptor",)

    fd = atomic.part_of("_descriptor.fd")
    """The number; -1 if it is closed."""

    def __init__(self) -> None:
        if _ended:
            finish_ended()
        self._descriptor = made = _Descriptor(self, _note_end)
        made.fd, made.is_marked, made.stays = -1, False, False
        _note(made)

    @classmethod
    def opened_by(cls, call: Callable[..., int], *arguments: Any) -> "OwnedDescriptor":
        """Return the owner of the descriptor that a function of C returns."""
        owned = cls()
        atomic.assign(owned._descriptor, "fd", call, *arguments)
        return owned

    @classmethod
    def pair_opened_by(
        cls, call: Callable[..., tuple[int, int]], *arguments: Any
    ) -> tuple["OwnedDescriptor", "OwnedDescriptor"]:
        """Return the owners of the two descriptors that a function of C returns."""
        first, second = cls(), cls()
        made = first._descriptor, second._descriptor
        atomic.assign_each(made, "fd", call, *arguments)
        return first, second

    def open(self, call: Callable[..., int], *arguments: Any) -> int:
        """Own the descriptor that a function of C returns, and return it."""
        made = self._descriptor
        atomic.assign(made, "fd", call, *arguments)
        return made.fd

    def open_at(self, path: str, name: str) -> None:
        """Open a memory file that another process has, by the path that `/proc` shows.

        Its name begins with `name`: to open other files may have effects. Raises
        `OSError`.
        """
        if not os.readlink(path).startswith(f"/memfd:{name}"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.open(os.open, path, os.O_RDWR | os.O_CLOEXEC)

    def keep(self, in_children: bool = False) -> None:
        """Keep it for long: use and close it only while it refers to what it does.

        The mark is in the open file, so what the program opens does not have it. A
        sandbox may not know it: then the number has to do. Clause ENV-7.
        """
        made = self._descriptor
        made.stays = in_children
        try:
            _control(made.fd, F_SETSIG, MARK)
        except OSError as error:
            pass_on(error)
            return
        _marked[made.fd] = made
        made.is_marked = True

    def is_usable(self) -> bool:
        """Return whether it is open and refers to what it did."""
        return self._descriptor.is_usable()

    def verified(self) -> int:
        """Return the number. Raises `DescriptorError` unless it is usable."""
        made = self._descriptor
        if not made.is_usable():
            raise descriptor_error(made.fd)
        return made.fd

    def close(self) -> None:
        """Close it, once."""
        made = self._descriptor
        if made is not _CLOSED:
            made.close()
            self._descriptor = _CLOSED  # so nothing is noted when this ends


class OwnedSockets(ClosedInChildren):
    """Sockets. `opened` makes them when it is iterated over, without a step in Python.

    They are those of C: the class of the module `socket` has such steps.
    """

    __slots__ = ("sockets",)

    def __init__(self, opened: Iterable[socket.SocketType]):
        self.sockets: list[socket.SocketType] = []
        _note(_reference(self, _forget))
        self.sockets.extend(opened)

    def close(self) -> None:
        """Close those that are open."""
        for each in self.sockets:
            each.close()


class ReceivedDescriptors(ClosedInChildren):
    """The descriptors of a message; those that nobody takes are closed with it.

    Who takes one leaves None in its place. `places` has them once `receive` returns;
    before that those of a packet that has come are in `_packets` alone.
    """

    __slots__ = ("_packets", "places")

    def __init__(self) -> None:
        self.places: list[int | None] = []
        self._packets: list[Any] = []
        _note(_reference(self, _forget))

    def receive(
        self, taken: list[Any], call: Callable[..., Any], *arguments: Any
    ) -> tuple[bytes, int]:
        """Add the descriptors of a packet; return its bytes and its flags.

        Args:
            taken: an empty list; what has come is in it from the call of C on.
            call: the method `recvmsg` of a socket.
            arguments: what it is given.
        """
        self._packets = taken
        atomic.append(taken, call, *arguments)
        data, ancillary, flags, _ = taken[0]
        if ancillary:
            self._sort_in()
        return data, flags

    def _sort_in(self) -> None:
        """Put what has come in its places."""
        places = [*self.places]
        for _, ancillary, _, _ in self._packets:
            for level, kind, content in ancillary:
                if (level, kind) == RIGHTS:
                    places.extend(memoryview(content).cast("i"))
        self.places, self._packets = places, []  # no handler runs between the two

    def take(self, place: int, owner: OwnedDescriptor) -> bool:
        """Have `owner` own the descriptor in a place; return False if it is taken."""
        fd, made = self.places[place], owner._descriptor
        if fd is None:
            return False
        made.fd, self.places[place] = fd, None
        return True

    def drop(self, place: int) -> None:
        """Close the descriptor in a place; those behind it are one place before."""
        fd = self.places[place]
        del self.places[place]
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Close what was not taken. Clauses FAULT-4, LIFE-19."""
        if self._packets:
            self._sort_in()
        for place, fd in enumerate(self.places):
            self.places[place] = None
            if fd is not None:
                os.close(fd)


class Reserve:
    """Descriptors that are open to be closed where others are needed and short.

    So a message that was accepted can be written though no descriptor can be opened.
    Messages that wait have it in common, and it goes with the last of them.
    """

    COUNT = 4  # for a pipe, or a pair of sockets, and a file

    __slots__ = ("__weakref__", "spare")

    def __init__(self) -> None:
        self.spare: list[OwnedDescriptor] = []

    def fill(self) -> None:
        """Open what is missing: a forked child has none. Raises `OSError`."""
        self.spare = [owned for owned in self.spare if owned.is_usable()]
        while len(self.spare) < self.COUNT:
            null = os.devnull, os.O_RDONLY | os.O_CLOEXEC
            self.spare.append(OwnedDescriptor.opened_by(os.open, *null))
            self.spare[-1].keep()

    def spend(self) -> bool:
        """Close the descriptors; return whether there were any."""
        spare, self.spare = self.spare, []
        for owned in spare:
            owned.close()
        return bool(spare)


_reserves: "weakref.WeakSet[Reserve]" = weakref.WeakSet()  # one at most


def hold_reserve() -> Reserve:
    """Return the reserve of this process, which is there as long as somebody holds it.

    Raises `OSError`.
    """
    held = next(iter(_reserves), None) or Reserve()
    held.fill()
    _reserves.add(held)
    return held


def by_reserve(call: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function returns that opens descriptors, if need be by the reserve.

    Raises the `OSError` of the function.
    """
    try:
        return call(*arguments)
    except OSError as error:
        pass_on(error)
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        if not any([held.spend() for held in list(_reserves)]):
            raise
    return call(*arguments)


def lock_file(fd: int, how: int, patience: float, doing: str) -> None:
    """Lock a file by flock(2), which others lock for single steps.

    Raises `ResourceError` if one of them keeps it for so many seconds.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(fd, how | fcntl.LOCK_NB)
        except OSError as error:
            pass_on(error)
            if not isinstance(error, BlockingIOError) or time.monotonic() > until:
                raise resource_error(error.errno, doing) from error
        time.sleep(PAUSE)  # flock(2) has no timeout


# A `WeakSet` would do, and takes half a microsecond for each message.
_open: "set[weakref.ref[Any]]" = set()
_note, _forget, _reference = _open.add, _open.discard, weakref.ref

_marked: dict[int, _Descriptor] = {}
"""Who was the last to keep a descriptor of that number: all have the same mark."""

_ended: set[_Descriptor] = set()
"""Those whose owner has gone without closing them."""

_note_end = _ended.add

_CLOSED = _Descriptor(OwnedDescriptor)
_CLOSED.fd, _CLOSED.is_marked, _CLOSED.stays = -1, False, False


def finish_ended() -> None:
    """Close what interrupted finalizers have left open. Clause THREAD-7."""
    for made in list(_ended):
        if made in _open:
            made.close()
        _ended.discard(made)


def _close_what_others_pass_on() -> None:
    for reference in list(_open):
        each = reference()
        if each is not None and not getattr(reference, "stays", False):
            each.close()


os.register_at_fork(after_in_child=_close_what_others_pass_on)
