"""The shared-memory manager: a daemon that removes names nobody can use any more.

Under the strategy `file_system` a shared storage is a named file in `/dev/shm`. Its
name has to stay for receivers that are still to come, and it has to go when the last
process that could use it is gone, killed processes included (clauses FS-2, LIFE-8 to
LIFE-10, MGR-2). A dead process runs no handler, so somebody else has to watch: this
script. It needs the standard library alone and is run as

    python -I -S daemon.py sharedtensor-manager LISTENER FIRST DIRECTORY GRACE

where LISTENER and FIRST are inherited descriptors: the socket that clients will connect
to, and the connection of the client that starts the manager.

Here are the process and its system calls. What it does about which message is decided
in `serving`, and `messages` says what clients can say. The connections are
`SOCK_SEQPACKET`: connected, so that the death of a client is an end of file.
"""

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterable, Iterator

if not __package__:  # run as a script: no folder is on the path for it (PEP 366)
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    __package__ = os.path.basename(os.path.dirname(os.path.abspath(__file__)))

from . import messages, serving
from .serving import Client, InFlight, Manager, Watched, complete

TITLE = "sharedtensor-manager"  # in the command line, so that tools can tell
SOCKET = "socket"
CLOSING = "closing"  # the socket's name while the manager ends
JOURNAL = "names"
PRESENCE = "clients"  # the presence pipe; with a suffix, that of a manager before
SHM = "/dev/shm"
SUN_PATH = 107  # bytes of a path that fit into a socket address, the final 0 apart
CUT_SHORT = int(socket.MSG_TRUNC)  # an enumeration costs a microsecond each time
ANCILLARY_SIZE = socket.CMSG_SPACE(struct.calcsize("i"))  # room for one descriptor
SHORTAGES = errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS
SHORTEST_PAUSE, LONGEST_PAUSE = 0.0005, 0.01  # seconds in which messages gather
LOCK_WAIT = 1.0  # seconds that a manager which is told to end waits for a lock
GATHERED = 192  # messages at most, as far as can be told: a socket's buffer has room


def path_of(name: bytes) -> str:
    """Return where the file of a name is."""
    return f"{SHM}/{name.decode('ascii')}"


class Terminated(Exception):
    """SIGTERM was received."""


class Journal:
    """The names that a manager knows, in a file for its successor; one a line.

    Writing is done as well as can be: a manager without room on its disk serves on.
    Clause MGR-14.
    """

    FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = -1
        self.is_cut_short = False  # whether the last line is but a part of one

    def open(self) -> list[bytes]:
        """Begin to write, and return the names that a manager before this one knew."""
        with contextlib.suppress(OSError):
            self.file = os.open(self.path, self.FLAGS, 0o600)
            with open(self.file, "rb", closefd=False) as file:
                lines = file.read().split(b"\n")
            self.is_cut_short = bool(lines[-1])
            return list(filter(messages.is_name, lines))
        return []

    def add(self, names: Iterable[bytes]) -> None:
        """Write down some more names.

        A part of a name, after which there was no room, takes none of them along.
        """
        lines = b"".join(name + b"\n" for name in names)
        if self.is_cut_short:
            lines = b"\n" + lines
        with contextlib.suppress(OSError):
            self.is_cut_short = os.write(self.file, lines) < len(lines)

    def replace(self, names: Iterable[bytes]) -> None:
        """Write down these names in the place of all, or go on with what is there."""
        fresh = Journal(self.path + "-new")
        with contextlib.suppress(OSError):
            fresh.write(names)
            os.rename(fresh.path, self.path)
            fresh.file, self.file = self.file, fresh.file
            self.is_cut_short = False
        fresh.close()

    def write(self, names: Iterable[bytes]) -> None:
        """Write these names alone. Raises `OSError`."""
        self.file = os.open(self.path, self.FLAGS | os.O_TRUNC, 0o600)
        with open(self.file, "wb", closefd=False) as file:
            file.writelines(name + b"\n" for name in names)

    def close(self) -> None:
        """Write no more."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


class Listener:
    """The socket that clients connect to, and its directory.

    Only processes of the manager's own user are accepted: the directory is closed to
    others, and the kernel's word on the peer decides, root included: clauses SEC-2,
    SEC-5.
    """

    def __init__(self, listener: socket.socket, directory: str) -> None:
        listener.setblocking(False)
        self.socket = listener
        self.directory = directory
        self.folder = -1  # a descriptor of the directory, once there is one

    def open(self) -> None:
        """Note that the socket is bound and listening."""
        self.folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)

    def accept(self) -> socket.socket | None:
        """Return the next connection of this user, if one waits. Clause SEC-5."""
        while True:
            try:
                connection, _ = self.socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return None
            if peer_uid(connection) == os.geteuid():
                return connection
            connection.close()

    def can_be_reached(self) -> bool:
        """Return whether the socket listens."""
        return bool(self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

    def lock(self) -> bool:
        """Lock the directory, if it is there; return False if a client has locked it.

        A manager that has not listened does not know whether it was made.
        """
        if self.folder < 0:
            try:
                self.open()
            except OSError:
                return True
        return lock(self.folder)

    def remove_directory(self, has_listened: bool) -> None:
        """Remove the directory, if it was made; unless it has listened, if unused.

        Somebody may have removed it, and a client made another at its path.
        """
        if has_listened:
            self.wait_for_lock()
            if is_at(self.folder, self.directory):
                remove_directory(self.directory)
        elif self.lock() and self.folder >= 0:
            remove_unused_directory(self.directory, self.folder)

    def wait_for_lock(self) -> None:
        """Let a client that has locked the directory finish. Clause MGR-14.

        One that found no manager may just start the next. It is not waited for without
        a limit, since it may have been stopped.
        """
        deadline = time.monotonic() + LOCK_WAIT
        while not self.lock() and time.monotonic() < deadline:
            time.sleep(serving.LOCK_RETRY)

    def hide(self) -> None:
        """Let nobody find the socket from here on."""
        os.rename(SOCKET, CLOSING, src_dir_fd=self.folder, dst_dir_fd=self.folder)

    def show(self) -> None:
        """Let the socket be found again."""
        os.rename(CLOSING, SOCKET, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        fcntl.flock(self.folder, fcntl.LOCK_UN)


class Pace:
    """For how long messages gather before they are read, by how many came last time.

    While the manager pauses it does not wait for its clients' messages, so sending one
    wakes nobody; else each would take a processor from its sender. A pause becomes
    longer while fewer come than may gather, and shorter where more do, since a client
    waits whose buffer is full. When none came there is no pause, and the next message
    is read at once.
    """

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0  # of the messages since the last pause
        self.seconds = 0.0

    def next(self) -> float:
        """Return the seconds to pause now."""
        count, self.count = self.count, 0
        if count:
            wanted = self.seconds * min(2.0, GATHERED / count)
            self.seconds = min(max(wanted, SHORTEST_PAUSE), LONGEST_PAUSE)
        return self.seconds if count else 0.0


class Kernel(serving.System):
    """What `serving` asks for, by system calls; none of it waits but `poll`."""

    def __init__(self, listener: Listener, shm: int) -> None:
        self.pid = os.getpid()
        self.listener = listener
        self.shm = shm
        self.journal = Journal(os.path.join(listener.directory, JOURNAL))
        self.watched: dict[int, Watched | object] = {}
        self.presence_paths: dict[int, str] = {}
        self.poller = select.poll()
        self.pace = Pace()
        self.urgent = select.poll()  # for whom a pause ends early
        self.waiting: set[int] = set()  # the clients among these

    def now(self) -> float:
        return time.monotonic()

    # --- what is watched

    async def poll(self, seconds: float | None) -> Iterable[object]:
        """Wait for news.

        Nobody waits for this but those who ask for an answer. So while messages come
        they gather: see `Pace`.
        """
        if seconds == 0:
            found = self.poller.poll(0)
        else:
            found = self.pause() or self.poller.poll(seconds and seconds * 1000)
        return [self.watched[descriptor] for descriptor, _ in found]

    def pause(self) -> list[tuple[int, int]]:
        """Let messages gather if some came last time; return the news then."""
        seconds = self.pace.next()
        if not seconds:
            return []
        self.urgent.poll(seconds * 1000)
        found = self.poller.poll(0)
        if not found:
            self.pace.seconds = 0.0
        return found

    def watch(self, watched: Watched) -> None:
        descriptor, events = descriptor_of(watched)
        self.watched[descriptor] = watched
        self.poller.register(descriptor, events)
        if isinstance(watched, Client):
            self.expect_request(descriptor)

    def expect_request(self, descriptor: int) -> None:
        """Let a client's next message end a pause: it may wait for an answer.

        A new client does, and after an answer it may ask again.
        """
        self.urgent.register(descriptor, select.POLLIN)
        self.waiting.add(descriptor)

    def has_spoken(self, descriptor: int) -> None:
        """Let the next messages of a client gather."""
        if descriptor in self.waiting:
            self.waiting.remove(descriptor)
            self.urgent.unregister(descriptor)

    async def close(self, watched: Watched) -> None:
        descriptor, _ = descriptor_of(watched)
        self.poller.unregister(descriptor)
        self.has_spoken(descriptor)
        del self.watched[descriptor]
        if isinstance(watched, Client):
            watched.connection.close()
        else:
            os.close(descriptor)
            self.remove_presence(descriptor)

    def watch_listener(self, is_watched: bool) -> None:
        descriptor = self.listener.socket.fileno()
        self.watched[descriptor] = serving.LISTENER
        for poller in (self.poller, self.urgent):
            if is_watched:
                poller.register(descriptor, select.POLLIN)
            else:
                poller.unregister(descriptor)

    # --- what clients send

    async def accept(self) -> socket.socket | None:
        try:
            connection = self.listener.accept()
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            raise serving.OutOfResources from error
        if connection is not None:
            connection.setblocking(False)
        return connection

    async def receive(
        self, connection: socket.socket
    ) -> tuple[bytes, list[int]] | None:
        try:
            received = receive(connection)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it left an answer unread
            return await self.receive(connection)  # what it sent comes next
        self.pace.count += 1
        if self.waiting:
            self.has_spoken(connection.fileno())
        return received

    async def reply(self, connection: socket.socket, answer: bytes) -> bool:
        try:
            connection.send(answer, socket.MSG_NOSIGNAL)
        except OSError:
            return False
        self.expect_request(connection.fileno())
        return True

    def as_connection(self, descriptor: int) -> socket.socket | None:
        connection = as_connection(descriptor)
        if connection is not None:
            connection.setblocking(False)
        return connection

    def is_pipe(self, descriptor: int) -> bool:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)

    def discard(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    # --- files

    async def open_directory(self) -> tuple[bool, list[bytes], list[int]]:
        self.listener.open()
        files = os.listdir(self.listener.directory)
        before = [name for name in files if name.startswith(f"{PRESENCE}-")]
        return bool(before), self.journal.open(), list(self.presence_pipes(before))

    def presence_pipes(self, names: list[str]) -> Iterator[int]:
        """Yield those of the managers before, unless all their clients have gone.

        Clause MGR-14.
        """
        for name in names:
            path = os.path.join(self.listener.directory, name)
            pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self.presence_paths[pipe] = path
            if is_open_elsewhere(pipe):
                yield pipe
            else:
                os.close(pipe)
                self.remove_presence(pipe)

    def remove_presence(self, pipe: int) -> None:
        """Remove the presence pipe that nobody has open any more, if it is one."""
        path = self.presence_paths.pop(pipe, None)
        if path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)

    async def write_journal(self, names: list[bytes]) -> None:
        self.journal.add(names)

    async def rewrite_journal(self, names: list[bytes]) -> None:
        self.journal.replace(names)

    async def remove(self, name: bytes) -> None:
        remove_segment(name, self.shm)

    # --- the end

    def can_be_reached(self) -> bool:
        return self.listener.can_be_reached()

    async def lock(self) -> bool:
        return self.listener.lock()

    async def hide(self) -> bool:
        try:
            self.listener.hide()
        except OSError:
            return False
        return True

    async def show(self) -> None:
        self.listener.show()

    async def remove_directory(self, has_listened: bool) -> None:
        self.listener.remove_directory(has_listened)


def descriptor_of(watched: Watched) -> tuple[int, int]:
    """Return a descriptor, and the events to poll it for; its end is always one."""
    if isinstance(watched, InFlight):
        return watched.pipe, 0
    return watched.connection.fileno(), select.POLLIN


def is_open_elsewhere(pipe: int) -> bool:
    """Return whether somebody has the other end of a pipe."""
    try:
        return bool(os.read(pipe, 1))
    except BlockingIOError:
        return True


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message of a client and the descriptors that came with it.

    The message is empty at the end of the connection, and if it was too long to be one.
    Clause MGR-16.

    Raises `BlockingIOError` if the client has sent nothing more, and
    `ConnectionResetError` once if it has gone with an answer unread.
    """
    try:
        message, ancillary, flags, _ = connection.recvmsg(
            messages.LONGEST_MESSAGE, ANCILLARY_SIZE
        )
    except (BlockingIOError, ConnectionResetError):
        raise
    except OSError:
        return b"", []
    descriptors = received_descriptors(ancillary)
    return b"" if flags & CUT_SHORT else message, descriptors


def received_descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with a message."""
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % struct.calcsize("i")
            found += (number for (number,) in struct.iter_unpack("i", data[:whole]))
    return found


def as_connection(descriptor: int) -> socket.socket | None:
    """Take over the descriptor of a PREFORK message; close it if it is no connection.

    Clause MGR-16.
    """
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None
    is_packets = (found.family, found.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if is_packets and is_of_a_pair(found):
        return found
    found.close()
    return None


def is_of_a_pair(connection: socket.socket) -> bool:
    """Return whether this is one of two sockets that were made connected.

    The other end of a connection to this manager is none: the manager would have both
    ends, and neither would ever end.
    """
    try:
        return not (connection.getsockname() or connection.getpeername())
    except OSError:  # it is not connected
        return False


def peer_uid(connection: socket.socket) -> int:
    """Return the user of the process that connected, as the kernel saw it."""
    form = struct.Struct("3i")
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, form.size
    )
    _, uid, _ = form.unpack(credentials)
    return int(uid)


def remove_segment(name: bytes, shm: int) -> None:
    """Remove the file of a name, which may be gone. Clauses FS-2, LIFE-10, MGR-2."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=shm)


def remove_directory(directory: str) -> None:
    """Remove a manager's directory and what is in it, in as far as it was made."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if name.partition("-")[0] in (SOCKET, CLOSING, JOURNAL, PRESENCE):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def remove_unused_directory(directory: str, folder: int) -> None:
    """Remove the directory of a manager that never listened, if nobody uses it.

    `folder` is a descriptor of it. It is locked, since another client may be about to
    start a manager there.
    """
    with contextlib.suppress(OSError):
        if is_at(folder, directory) and lock(folder) and not is_used(directory):
            remove_directory(directory)


def is_at(folder: int, directory: str) -> bool:
    """Return whether an open directory is the one at a path."""
    try:
        return os.path.samestat(os.fstat(folder), os.stat(directory))
    except OSError:
        return False


def is_used(directory: str) -> bool:
    """Return whether anything in a directory, which is locked, is of use.

    A journal is left to the next client of the manager that was killed there, a socket
    to the manager that serves it, and a presence pipe to the clients that have it open,
    for which a successor has to wait. Clause MGR-14. Raises `OSError`.
    """
    there = os.listdir(directory)
    if JOURNAL in there or (SOCKET in there and is_served(directory)):
        return True
    pipes = (name for name in there if name.partition("-")[0] == PRESENCE)
    return any(is_present(os.path.join(directory, name)) for name in pipes)


def is_served(directory: str) -> bool:
    """Return whether the socket in a directory takes connections.

    One that is bound and does not listen refuses them, as that of a dead process does.
    """
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with probe, short_path(os.path.join(directory, SOCKET)) as path:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            pass  # so many wait that there is no room
    return True


def is_present(path: str) -> bool:
    """Return whether somebody has a presence pipe open. Raises `OSError`."""
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return is_open_elsewhere(pipe)
    finally:
        os.close(pipe)


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Give a path of any length in a form that fits into a socket address.

    Clause MGR-7.
    """
    if len(os.fsencode(path)) <= SUN_PATH:
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def lock(folder: int) -> bool:
    """Lock a directory; return False if somebody has locked it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def detach() -> None:
    """Become nobody's child, in a session and process group of its own.

    Clauses MGR-1, MGR-15. The parent of this process ends here, and its own parent
    waits for just that, so there is no zombie.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)


def set_signals() -> None:
    """Ignore the terminal; end in order on SIGTERM. Clauses MGR-15, FAULT-5."""

    def terminate(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, terminate)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def raise_descriptor_limit() -> None:
    """Allow as many clients as the system does. Clause MGR-16."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: list[str]) -> None:
    """Run the manager that the command line describes.

    After an error it leaves all names and its directory, as a manager does that was
    killed: others hold them, and have a successor. Clauses FS-8, MGR-11, MGR-14.
    """
    _, listener, first, directory, grace = arguments
    shm = os.open(SHM, os.O_RDONLY | os.O_DIRECTORY)
    detach()
    raise_descriptor_limit()
    connection = socket.socket(fileno=int(first))
    connection.setblocking(False)
    kernel = Kernel(Listener(socket.socket(fileno=int(listener)), directory), shm)
    manager = Manager(kernel, connection, float(grace))
    try:
        set_signals()
        complete(manager.run())
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except Terminated:
        pass  # it is ignored from then on
    except serving.Abandoned:
        os._exit(0)
    complete(manager.remove_everything())


if __name__ == "__main__":
    main(sys.argv[1:])
