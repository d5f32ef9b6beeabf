"""How descriptors leave and enter a process beside the bytes of a message.

A pickle is bytes, and a descriptor is not. There are three ways for it, and the thread
that pickles knows which one applies:

- One of our own channels is open: the descriptors go into the message's `Outbox` and
  travel with its bytes (SCM_RIGHTS), so the message survives its sender (clause
  LIFE-5).
- One of our own processes is being started: what it is started with is a message, too.
  It inherits the descriptors, or the end of a socket that holds all of them. So nothing
  stays here of what it never takes: the kernel closes that.
- Any other channel of the standard library: its resource sharer hands out a duplicate
  when the receiver asks for it, which is slower and needs the sender alive. A process
  of the standard library inherits the descriptors, in as far as it may.
- Bytes that the program pickles itself, which may be read often or never: nothing is
  held for them. Their reader opens the file of the process that has made them.

The third are `multiprocessing.reduction.DupFd`. On the way in an `Inbox` holds the
descriptors of the message that is being unpickled. What a message says of a descriptor
is its handle: a place in the inbox, a `DupFd`, or a process and a number.
"""

import fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterable
from multiprocessing import reduction, resource_sharer
from multiprocessing.context import get_spawning_popen
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple

from .descriptors import (
    AFTER_STREAMS,
    OwnedDescriptor,
    ReceivedDescriptors,
    Reserve,
)
from .errors import HandleError, pass_on

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
SEGMENT = "sharedtensor-"
UNWRITTEN: tuple[list[object], ...] = [], [None]
"""What a message has in `accepted` that is not written, or waits in a queue."""

SENT_TO_FORK_SERVER = 200  # it accepts 256 with each request


class Undo:
    """A job that is done with the end of this object: for a message that is not sent.

    So it is done as well where such a message is merely dropped. `accepted` is that of
    its `Outbox`. Clause CUDA-4.
    """

    __slots__ = ("accepted", "job")

    def __init__(self, job: Callable[[], object], accepted: list[object]) -> None:
        self.job = job
        self.accepted = accepted

    def __del__(self) -> None:
        if self.accepted in UNWRITTEN:  # no handler runs before the job is called
            self.job()


class Outbox:
    """A message: its bytes, the `payload`, and what it carries beside them.

    So it does not need its sender. `keep` holds what owns the descriptors until the
    message has been written, `names` the names that it carries, and `storages` those
    that were met while it was pickled, each once. `undo` has what is done if the
    message is not written. Clause FAULT-3.

    Its caller answers for it until `accepted` has something in it. The very call of C
    that puts it into a queue adds None, the one that writes it its size. Clause
    FAULT-2. `reserve` is None unless the message waits in a queue.
    """

    def __init__(self) -> None:
        self.payload: Any = b""
        self.reserve: Reserve | None = None
        self.accepted: list[object] = []
        self.undo: list[Undo] = []
        self.descriptors: list[int] = []
        self.keep: list[Any] = []
        self.names: list[str] = []
        self.storages: list[Any] = []
        self._places: dict[int, int] = {}

    def place_of(self, storage: Any) -> int:
        """Return the place of a storage in the message, a new one if it has none."""
        place = self._places.setdefault(id(storage), len(self.storages))
        if place == len(self.storages):
            self.storages.append(storage)
        return place

    def add(self, fd: int, owner: Any) -> int:
        """Enclose a descriptor and return its place in the message.

        There may be more of them than one packet takes: clause FD-6.
        """
        self.descriptors.append(fd)
        self.keep.append(owner)
        return len(self.descriptors) - 1

    def verify(self) -> None:
        """Verify that what is in a message that has waited is what it was.

        Raises `DescriptorError`. Clause ENV-7.
        """
        for owner in self.keep:
            if owner.fd >= 0:  # it is no segment that has a name
                owner.verified()

    def add_name(self, name: str, owner: Any) -> None:
        """Note that the message carries a name.

        `owner` keeps the name until the message has been announced.
        """
        self.names.append(name)
        self.keep.append(owner)

    def keep_first(self, count: int) -> None:
        """Drop the descriptors behind the first `count`, which are announcements.

        Those are the last of what is kept as well.
        """
        if added := len(self.descriptors) - count:
            del self.descriptors[-added:], self.keep[-added:]

    def clear(self) -> None:
        """Release everything: the message is on its way or withdrawn.

        Clauses FD-4, LIFE-7, LIFE-18.
        """
        self.reserve = None
        self.descriptors, self.keep, self.names = [], [], []
        self.storages, self._places = [], {}
        self.undo = []


class Inbox:
    """The descriptors of a message that is being unpickled; each is taken once.

    `payload` is the message, and `storages` what it carries, once that is known. Those
    that hold names are closed with it: what is rebuilt holds them by then.
    """

    def __init__(self, descriptors: ReceivedDescriptors, payload: Any = b""):
        self.descriptors = descriptors
        self.payload = payload
        self.storages: list[Any] | None = None

    def take(self, place: int, owner: OwnedDescriptor) -> None:
        """Have `owner` own the descriptor at `place`. Raises `HandleError`."""
        is_there = 0 <= place < len(self.descriptors.places)
        if not (is_there and self.descriptors.take(place, owner)):
            raise HandleError(
                f"The message has no descriptor in place {place}, which a handle in it "
                "names. Receive messages with the method that matches how they were "
                "sent, and each of them once."
            )

    def close(self) -> None:
        """Close what was not taken, so that no message can leak descriptors.

        Clauses FAULT-2, FAULT-4, LIFE-19.
        """
        self.descriptors.close()
        self.storages = None


class _Current(threading.local):
    """What a thread packs or unpacks: its own. Clauses THREAD-1, THREAD-2."""

    outbox: Outbox | None = None
    inbox: Inbox | None = None
    spawning: Outbox | None = None


_current = _Current()


def _forget_what_others_pack() -> None:
    """Let a forked child pack nothing: its parent does, for the child or a message.

    Clauses FS-2, LIFE-7.
    """
    _current.outbox = _current.spawning = None


os.register_at_fork(after_in_child=_forget_what_others_pack)


# Every message enters these two. They are no context managers: an exception of a signal
# handler can arise where `__exit__` begins, and what it restores would stay (FAULT-2).
# No handler runs between the end of a `try` and an assignment in its `finally`.


def sending(
    outbox: Outbox, pack: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """Call a function, and collect the descriptors of what it pickles in `outbox`.

    The outbox is cleared if that fails. Clauses LIFE-18, THREAD-6.
    """
    before = _current.outbox
    try:
        _current.outbox = outbox
        return pack(*arguments)
    except BaseException:
        outbox.clear()
        raise
    finally:
        _current.outbox = before


def receiving(
    inbox: Inbox, unpack: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """Call a function that unpickles a message, which has these descriptors."""
    before = _current.inbox
    try:
        _current.inbox = inbox
        return unpack(*arguments)
    finally:
        _current.inbox = before
        inbox.close()


def spawning(start: Callable[[], object]) -> None:
    """Start a child, and keep what it inherits until it has been, or could not be.

    Clauses FD-4, FS-2, LIFE-7.
    """
    outbox = Outbox()
    before = _current.spawning
    try:
        _current.spawning = outbox
        start()
        outbox.accepted.append(True)
    finally:
        _current.spawning = before
        outbox.clear()


def current_outbox() -> Outbox | None:
    """Return the outbox of the message that this thread pickles, if it is ours."""
    return _current.outbox


def current_inbox() -> Inbox:
    """Return the inbox of the message that this thread unpickles, or an empty one."""
    inbox = _current.inbox
    return inbox if inbox is not None else Inbox(ReceivedDescriptors())


def spawning_outbox() -> Outbox:
    """Return the outbox of what a child is started with.

    This thread has to be in the middle of starting one.
    """
    assert _current.spawning is not None, "the child is one of ours"
    return _current.spawning


def is_spawning() -> bool:
    """Return whether this thread pickles what a child is started with."""
    return _current.outbox is not None and _current.outbox is _current.spawning


def undo_unless_sent(job: Callable[[], object]) -> None:
    """Do a job if the message that this thread pickles is not written.

    Of a message on the channels of others this process does not learn that. The job
    runs in the thread that releases the message, like a finalizer. Clauses CUDA-4,
    CUDA-27.
    """
    outbox = _current.outbox
    if outbox is not None:
        outbox.undo.append(Undo(job, outbox.accepted))


def export_descriptor(fd: int, owner: Any = None) -> Any:
    """Return a handle of `fd` that can be pickled now.

    `owner` keeps the descriptor open until the message is written; without an owner a
    duplicate is made for that time, unless a child is started: the caller waits for
    that. Clauses CHAN-9, CHAN-10, CHAN-14 for the channels of others, HANDLE-3 outside
    of all.
    """
    outbox = _current.outbox
    if outbox is None:
        if owner is None or is_in_a_channel():
            return _export_to_others(fd)
        return os.getpid(), fd
    if owner is None and not is_spawning():
        owner = OwnedDescriptor.opened_by(os.dup, fd)
        owner.keep()
        fd = owner.fd
    return outbox.add(fd, owner)


def export_opened(owned: OwnedDescriptor) -> Any:
    """Return a handle of a descriptor that was opened for what is being pickled.

    It is closed when that has been written, or the process started. Clause CUDA-40.
    """
    if _current.outbox is None and get_spawning_popen() is not None:
        return leave_to_others(owned)
    owned.keep()
    return export_descriptor(owned.fd, owned)


def room_in_child() -> int:
    """Return how many descriptors more the child that is started may inherit."""
    popen: Any = get_spawning_popen()
    if popen is None or popen.method != "forkserver":
        return sys.maxsize
    return SENT_TO_FORK_SERVER - len(popen._fds)


def leave_to_child(fd: int) -> Any:
    """Return a handle of a descriptor that is kept until the child has been started.

    A child inherits each number once, and takes the lowest ones for its standard
    streams. Clauses FD-6, START-1.
    """
    if fd in _inherited() or fd < AFTER_STREAMS:
        duplicate = fd, fcntl.F_DUPFD_CLOEXEC, AFTER_STREAMS
        again = OwnedDescriptor.opened_by(fcntl.fcntl, *duplicate)
        spawning_outbox().keep.append(again)
        fd = again.fd
    return reduction.DupFd(fd)


def _inherited() -> list[int]:
    popen: Any = get_spawning_popen()
    inherited: list[int] = [] if popen is None else popen._fds
    return inherited


def _export_to_others(fd: int) -> Any:
    inherited = _inherited()  # by the child that is started; each number once
    is_taken = fd in inherited or fd < AFTER_STREAMS
    if is_taken or room_in_child() <= 0:
        return resource_sharer.DupFd(fd)
    return reduction.DupFd(fd)


def is_in_a_message() -> bool:
    """Return whether this thread pickles for a channel, ours or another. CUDA-36."""
    return _current.outbox is not None or is_in_a_channel()


def is_in_a_channel() -> bool:
    """Return whether the standard library pickles this for one of its channels.

    The program may call the same function, and only the channel promises that somebody
    receives a message once. So who calls it decides. Clause HANDLE-3.
    """
    if get_spawning_popen() is not None:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _DUMPS:
        frame = frame.f_back
    caller = frame and frame.f_back
    module = caller.f_globals.get("__name__", "") if caller else ""
    return bool(module.startswith("multiprocessing."))


_DUMPS = reduction.ForkingPickler.dumps.__func__.__code__  # type: ignore[attr-defined]


def leave_to_others(owned: OwnedDescriptor) -> Any:
    """Return a handle of a descriptor that a process of the standard library inherits.

    What starts the process keeps it.
    """
    popen: Any = get_spawning_popen()
    popen.__dict__.setdefault("sharedtensor", []).append(owned)
    return _export_to_others(owned.fd)


def take_inherited(handles: Iterable[Any]) -> ReceivedDescriptors:
    """Return the descriptors that this process has inherited by these handles.

    No program that it starts inherits them: clause FD-5.
    """
    received = ReceivedDescriptors()
    for handle in handles:
        fd = handle.detach()
        received.places.append(fd)
        os.set_inheritable(fd, False)
    return received


def take_descriptor(
    handle: Any, owner: OwnedDescriptor | None = None
) -> OwnedDescriptor:
    """Return `owner`, or a new one, of the descriptor that a handle stands for.

    No program that this process starts inherits it: clause FD-5. Raises `HandleError`
    when it cannot be had, for instance since the sender, which has to hand it out on a
    channel that carries no descriptors, has gone: clause LIFE-6.
    """
    owned = OwnedDescriptor() if owner is None else owner
    if isinstance(handle, int):
        current_inbox().take(handle, owned)
        return owned
    if isinstance(handle, tuple):
        open_at_maker(owned, *handle)
        return owned
    try:
        owned.open(handle.detach)
        os.set_inheritable(owned.fd, False)  # it was inherited where a process began
    except (OSError, EOFError) as error:
        if type(error) is not OSError:  # the standard library raises it, too
            pass_on(error)
        raise HandleError(
            "The sender of this tensor no longer hands out its descriptor: it has "
            "ended or was killed, or this message was received before. Receive each "
            "message once, and use a channel of sharedtensor.multiprocessing, whose "
            "messages survive their sender, or keep the sender alive."
        ) from error
    return owned


def open_at_maker(owner: OwnedDescriptor, pid: int, fd: int) -> None:
    """Open the file of a segment that another process has open, for `owner`.

    Raises `HandleError` if it has no such file any more. Clause HANDLE-3.
    """
    path = f"/proc/{pid:d}/fd/{fd:d}"
    try:
        owner.open_at(path, SEGMENT)
    except OSError as error:
        pass_on(error)
        raise HandleError(
            f"Process {pid} has pickled this tensor outside of a channel. It has "
            f"dropped the tensor or has ended, or this process may not open {path}. "
            "Keep the tensor until its bytes have been unpickled, or send it by a "
            "channel."
        ) from error
