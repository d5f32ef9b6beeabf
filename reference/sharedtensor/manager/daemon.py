"""The shared-memory manager: a daemon that removes names nobody can use any more.

Under the strategy `file_system` a shared storage is a named file in `/dev/shm`. Its
name has to stay for receivers that are still to come, and it has to go when the last
process that could use it is gone, killed processes included (clauses FS-2, LIFE-8 to
LIFE-10, MGR-2). A dead process runs no handler, so somebody else has to watch: this
script. It needs the standard library alone and is run as

    python -I -S daemon.py sharedtensor-manager LISTENER FIRST DIRECTORY GRACE

where LISTENER and FIRST are inherited descriptors: the socket that newcomers will
connect to, and the connection of the client that starts the manager.

**Messages.** `SOCK_SEQPACKET` keeps the boundaries of messages, so that there is no
half-read state for a dead or hostile client to leave behind, and it is connected, so
that the death of a client is an end of file. A message is one letter and its
argument; nothing is answered but SYNC and STATUS.

======== = ============== ==========================================================
HOLD     H name           the sender of the message uses the name once more
AGAIN    A name           as HOLD, to the successor of a manager that was killed
RELEASE  R name           one HOLD less (without effect where there is none)
POST     P names + a desc. a message that carries the names, separated by 0, is about to
                          be sent, and with it the other end of the pipe that the
                          descriptor is an end of
COUNT    + name           the same of a message that cannot carry descriptors
CLAIM    C name           that one was received; sent after the receiver's HOLD
CANCEL   X name           that one will never be received
FORK     F + a descriptor the descriptor is the connection of a child to be, which
                          holds what the sender holds
LISTENING L               the socket of newcomers is ready (first client only)
ABANDON  N                forget the directory and leave (first client only)
SYNC     S token          answered with the token once all before it is done
STATUS   T token          answered with the token and the counts (`COUNTS`)
======== = ============== ==========================================================

**When a name goes.** A client holds a multiset of names, given up at once when its
connection ends. Names in flight are held by the message itself: it carries one end of a
pipe, and the manager has the other. When the message has been received, was withdrawn
or can never be received, since the channel or the process that had it is gone, the
kernel closes the pipe, and the manager sees that; nobody has to be alive to say so. A
receiver sends its HOLD before it closes the pipe.

On a channel that carries no descriptors, messages are counted. Their receivers race
with their senders (a CLAIM can be read before the COUNT), hence that count is signed.

A name is unreachable when nobody holds it, no pipe stands for it, and the count is 0.
Yet this proves something only if it is of one moment: with three processes in a row,
the first one's COUNT and the last one's CLAIM add up to zero while the middle one's
HOLD is still unread. So such a name is a suspect, and it is removed only after one more
full sweep over all connections brought no news of it: whatever had been sent before
that sweep began has then been read. Names in flight for whose pipe the manager has no
descriptor left are kept to the end.

**A successor.** A manager writes down each name that it hears of, in a file beside its
socket, so that one that takes its place when it was killed knows the names of clients
that were killed as well. What was in flight died with it, so a successor keeps all
these names, and those that came by AGAIN, to the end.

**The end.** When the last client and the last message in flight are gone, the manager
waits for GRACE seconds, closes
its door in such a way that nobody can be half in, removes all names that are left,
its socket and its directory, and ends (clause MGR-3). The lock on the directory is the
one that clients hold while they put a successor in a dead manager's place.
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

TITLE = "sharedtensor-manager"  # in the command line, so that tools can tell
SOCKET = "socket"
CLOSING = "runs_last"
JOURNAL = "names"
SHM = "/dev/shm"

HOLD, AGAIN, RELEASE = b"H", b"A", b"R"
POST, COUNT, CLAIM, CANCEL = b"P", b"+", b"C", b"X"
FORK, LISTENING, ABANDON = b"F", b"L", b"N"
SYNC, STATUS = b"S", b"T"
ABOUT_A_NAME = frozenset((HOLD, AGAIN, RELEASE, COUNT, CLAIM, CANCEL))

COUNTS = struct.Struct("<QQQQq")  # pid, clients, names, holds, in flight
TOKEN = 8
PREFIX = b"sharedtensor-"
NAME_LETTERS = frozenset(
    b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
LONGEST_NAME = 255
LONGEST_MESSAGE = 1 << 14
SEPARATOR = b"\0"
# More messages than the default buffer of a socket can hold: so many of a client have
# been read after a visit, or all, however fast it goes on sending.
VISIT = 4096
PLACE_FOR_A_DESCRIPTOR = socket.CMSG_SPACE(struct.calcsize("i"))
RETRY = 0.02  # seconds until a locked door is tried again
GATHERING = 0.002  # seconds in which messages gather before they are read


def is_name(name: bytes) -> bool:
    """Tell whether this is a name that the manager may touch."""
    return (
        len(PREFIX) < len(name) <= LONGEST_NAME
        and name.startswith(PREFIX)
        and NAME_LETTERS.issuperset(name)
    )


def path_of(name: bytes) -> str:
    """Return where the file of a name is."""
    return f"{SHM}/{name.decode('ascii')}"


class Terminated(Exception):
    """SIGTERM was received."""


class Client:
    """One connection and the multiset of names that its process holds."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.holds: dict[bytes, int] = {}


class Flight:
    """A message in flight: our end of its pipe, and the names that it carries."""

    def __init__(self, pipe: int, names: list[bytes]) -> None:
        self.pipe = pipe
        self.names = names


class Name:
    """What is known of one name; `counted` are messages that have no pipe."""

    def __init__(self) -> None:
        self.holds = 0
        self.in_flight = 0
        self.counted = 0
        self.was_held = False
        self.kept = False

    def is_unreachable(self) -> bool:
        """No process holds it and no message carries it."""
        return not (self.holds or self.in_flight or self.counted or self.kept)


class Journal:
    """The names that a manager knows, in a file for its successor; one a line.

    Writing is done as well as can be: a manager without room on its disk serves on.
    """

    SPARE = 1024  # lines about names that are gone, before they are left out

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines = 0
        self.file = -1

    def open(self) -> list[bytes]:
        """Begin to write, and return the names that a manager before this one knew."""
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self.file = os.open(self.path, flags, 0o600)
            with open(self.file, "rb", closefd=False) as file:
                return list(filter(is_name, file.read().split(b"\n")))
        return []

    def add(self, name: bytes) -> None:
        """Write down one more name."""
        self.lines += 1
        with contextlib.suppress(OSError):
            os.write(self.file, name + b"\n")

    def tidy(self, names: Iterable[bytes], count: int) -> None:
        """Leave out the names that are gone, if they are many; these are there."""
        if self.lines < self.SPARE + 2 * count:
            return
        self.lines = count
        fresh = self.path + "-new"
        with contextlib.suppress(OSError):
            with open(fresh, "wb") as file:
                file.writelines(name + b"\n" for name in names)
            os.rename(fresh, self.path)
            os.close(self.file)
            self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


class Door:
    """The socket that newcomers connect to, and its directory.

    Only processes of the manager's own user are let in: the directory is closed to
    others (clause SEC-2), and the kernel's word on the peer decides, root included.
    """

    def __init__(self, listener: socket.socket, directory: str) -> None:
        listener.setblocking(False)
        self.listener = listener
        self.directory = directory
        self.folder = -1  # a descriptor of the directory, once there is one

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self.listener.fileno()

    def is_open(self) -> bool:
        """Tell whether newcomers can connect."""
        return self.folder >= 0

    def open(self) -> None:
        """Note that the socket is bound and listening."""
        self.folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)

    def newcomers(self) -> Iterator[socket.socket]:
        """Yield the connections that wait and are of this user."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            if peer_uid(connection) == os.geteuid():
                yield connection
            else:
                connection.close()

    def lock(self) -> bool:
        """Lock the directory, unless a client is about to use it."""
        try:
            fcntl.flock(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def hide(self) -> None:
        """Let nobody find the socket from here on."""
        os.rename(SOCKET, CLOSING, src_dir_fd=self.folder, dst_dir_fd=self.folder)

    def show(self) -> None:
        """Let the socket be found again."""
        os.rename(CLOSING, SOCKET, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        fcntl.flock(self.folder, fcntl.LOCK_UN)


class Manager:
    """Clients, names, and the loop that serves them."""

    def __init__(
        self, door: Door, first: socket.socket, grace: float, shm: int
    ) -> None:
        self.door = door
        self.grace = grace
        self.shm = shm
        self.clients: dict[int, Client] = {}
        self.flights: dict[int, Flight] = {}
        self.names: dict[bytes, Name] = {}
        self.journal = Journal(os.path.join(door.directory, JOURNAL))
        self.suspects: set[bytes] = set()  # came to zero in this sweep
        self.judged: set[bytes] = set()  # came to zero before it, no news since
        self.requests: list[tuple[Client, bytes]] = []
        self.to_visit: list[Client] = []
        self.deadline = 0.0
        self.poll = select.poll()
        self.first = self.admit(first)

    def run(self) -> None:
        """Serve until nobody has used this manager for the grace period."""
        while self.is_used() or time.monotonic() < self.deadline or not self.leave():
            self.turn()

    def is_used(self) -> bool:
        """Tell whether there is a client, or a message that makes one."""
        return bool(self.clients or self.flights)

    def turn(self) -> None:
        """Sweep once, then judge the suspects and requests of the sweep before."""
        self.judged, self.suspects = self.suspects, set()
        requests, self.requests = self.requests, []
        self.sweep(0 if self.judged or requests else self.patience())
        for name in self.judged:
            self.forget(name)
        for client, request in requests:
            self.answer(client, request)

    def patience(self) -> float | None:
        """Return for how many milliseconds to wait for the next message."""
        if self.is_used():
            return None
        return max(0.0, self.deadline - time.monotonic()) * 1000

    def sweep(self, patience: float | None) -> None:
        """Read what was sent until now.

        Nobody waits for this but those who ask for an answer. So after a wait messages
        may gather: to wake up for each would take a processor from their senders.
        """
        self.to_visit = []
        if patience != 0 and self.poll.poll(patience):
            time.sleep(GATHERING)
            patience = 0
        for descriptor, _ in self.poll.poll(patience):
            if descriptor == self.door.fileno():
                self.welcome()
            elif descriptor in self.flights:
                self.land(self.flights[descriptor])
            else:
                self.to_visit.append(self.clients[descriptor])
        for client in self.to_visit:  # grows while newcomers are admitted
            self.visit(client)

    def welcome(self) -> None:
        """Admit who waits at the door, as long as descriptors last."""
        try:
            for connection in self.door.newcomers():
                self.admit(connection)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self.poll.unregister(self.door)  # until a client leaves

    def admit(self, connection: socket.socket) -> Client:
        """Count one more client, and visit it in this same sweep."""
        client = Client(connection)
        self.clients[connection.fileno()] = client
        self.poll.register(connection, select.POLLIN)
        self.to_visit.append(client)
        return client

    def dismiss(self, client: Client) -> None:
        """Release all that a client held; its connection has ended or must end."""
        for name, count in client.holds.items():
            self.names[name].holds -= count
            self.suspect(name)
        client.holds = {}
        self.poll.unregister(client.socket)
        del self.clients[client.socket.fileno()]
        client.socket.close()
        self.somebody_left()

    def somebody_left(self) -> None:
        """There is room for one more; and if it was the last one, time to go soon."""
        if self.door.is_open():
            self.poll.register(self.door, select.POLLIN)
        if not self.is_used():
            patience = self.grace if self.door.is_open() else 0
            self.deadline = time.monotonic() + patience

    def visit(self, client: Client) -> None:
        """Read what a client had sent when this began, and perhaps more."""
        for _ in range(VISIT):
            try:
                message, ancillary, flags, _ = client.socket.recvmsg(
                    LONGEST_MESSAGE, PLACE_FOR_A_DESCRIPTOR
                )
                if flags & socket.MSG_TRUNC:
                    message = b""
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it left an answer unread: what it sent comes next
            except OSError:
                message, ancillary = b"", []
            if not self.obey(client, message, received_descriptors(ancillary)):
                self.dismiss(client)
                return

    def obey(self, client: Client, message: bytes, descriptors: list[int]) -> bool:
        """Do what a message says; False if it says nothing, or nothing known."""
        kind, argument = message[:1], message[1:]
        if kind == FORK:
            self.fork(client, descriptors)
            return not argument
        if kind == POST:
            return self.take_off(argument.split(SEPARATOR), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if kind in ABOUT_A_NAME and is_name(argument):
            self.account(client, kind, argument)
        elif kind in (SYNC, STATUS) and len(argument) == TOKEN:
            self.requests.append((client, message))
        elif kind == LISTENING and client is self.first:
            self.door.open()
            self.poll.register(self.door, select.POLLIN)
            self.inherit()
        elif kind == ABANDON and client is self.first:
            os._exit(0)
        else:
            return False
        return True

    def fork(self, parent: Client, descriptors: list[int]) -> None:
        """Admit a child to be. Without its descriptor it will connect by itself."""
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        for descriptor in descriptors[:1]:
            connection = as_connection(descriptor)
            if connection is None:
                os.close(descriptor)
                return
            child = self.admit(connection)
            child.holds = dict(parent.holds)
            for name, count in child.holds.items():
                self.names[name].holds += count

    def take_off(self, names: list[bytes], descriptors: list[int]) -> bool:
        """A message with these names is in flight until its pipe is closed. LIFE-2."""
        is_right = len(descriptors) < 2 and all(map(is_pipe, descriptors))
        if not (is_right and all(map(is_name, names))):
            for descriptor in descriptors:
                os.close(descriptor)
            return False
        for name in names:
            entry = self.entry(name)
            entry.in_flight += len(descriptors)
            entry.kept |= not descriptors  # there was no room for it here
            self.suspect(name)
        for pipe in descriptors:
            self.flights[pipe] = Flight(pipe, names)
            self.poll.register(pipe, 0)
        return True

    def land(self, flight: Flight) -> None:
        """A message was received, or never will be."""
        self.poll.unregister(flight.pipe)
        del self.flights[flight.pipe]
        os.close(flight.pipe)
        for name in flight.names:
            self.names[name].in_flight -= 1
            self.suspect(name)
        self.somebody_left()

    def inherit(self) -> None:
        """Keep to the end what a manager knew that was killed here."""
        for name in self.journal.open():
            entry = self.names.setdefault(name, Name())
            entry.was_held = entry.kept = True
            self.journal.lines += 1

    def entry(self, name: bytes) -> Name:
        """Return what is known of a name."""
        entry = self.names.get(name)
        if entry is None:
            entry = self.names[name] = Name()
            self.journal.add(name)
        return entry

    def account(self, client: Client, kind: bytes, name: bytes) -> None:
        """Change the counts of one name. Clauses FS-2 and LIFE-8."""
        entry = self.entry(name)
        if kind in (HOLD, AGAIN):
            client.holds[name] = client.holds.get(name, 0) + 1
            entry.holds += 1
            entry.was_held = True
            entry.kept |= kind == AGAIN
        elif kind == RELEASE:
            release(client, name, entry)
        else:
            entry.counted += 1 if kind == COUNT else -1
        self.suspect(name)

    def suspect(self, name: bytes) -> None:
        """There is news of a name: decide anew whether it may be unreachable."""
        self.judged.discard(name)
        if self.names[name].is_unreachable():
            self.suspects.add(name)
        else:
            self.suspects.discard(name)

    def forget(self, name: bytes) -> None:
        """Remove a name that nobody can use any more. Clause FS-2."""
        if self.names.pop(name).was_held:
            unlink(name, self.shm)
        self.journal.tidy(self.names, len(self.names))

    def answer(self, client: Client, request: bytes) -> None:
        """Answer a SYNC or STATUS; a client that does not read is dismissed."""
        if client.socket.fileno() < 0:
            return
        reply = request[1:]
        if request[:1] == STATUS:
            reply += self.counts()
        try:
            client.socket.send(reply, socket.MSG_NOSIGNAL)
        except OSError:
            self.dismiss(client)

    def counts(self) -> bytes:
        """Return the figures of a STATUS answer."""
        entries = self.names.values()
        return COUNTS.pack(
            os.getpid(),
            len(self.clients),
            len(entries),
            sum(entry.holds for entry in entries),
            sum(entry.in_flight + entry.counted for entry in entries),
        )

    def leave(self) -> bool:
        """Close the door for good; False if somebody came in at the last moment."""
        if not self.door.is_open():
            return True
        if not self.door.lock():
            self.deadline = time.monotonic() + RETRY
            return False
        try:
            self.door.hide()
        except OSError:
            return True  # somebody removed the directory: nobody can come
        self.welcome()
        if self.is_used():
            self.door.show()
        return not self.is_used()

    def remove_everything(self) -> None:
        """Leave nothing behind. Clauses LIFE-9, LIFE-10, MGR-2 and MGR-3."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for name in self.names:
            unlink(name, self.shm)
        remove_place(self.door.directory)


def release(client: Client, name: bytes, entry: Name) -> None:
    """Take back one hold of a client, if it has one."""
    count = client.holds.pop(name, 0)
    if count > 1:
        client.holds[name] = count - 1
    entry.holds -= bool(count)


def as_connection(descriptor: int) -> socket.socket | None:
    """Return the socket that a FORK message brought, if it is one of our kind."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return None
    if (connection.family, connection.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        return connection
    connection.detach()
    return None


def is_pipe(descriptor: int) -> bool:
    """Tell whether a descriptor is an end of a pipe."""
    return stat.S_ISFIFO(os.fstat(descriptor).st_mode)


def peer_uid(connection: socket.socket) -> int:
    """Return the user of the process that connected, as the kernel saw it."""
    form = struct.Struct("3i")
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, form.size
    )
    _, uid, _ = form.unpack(credentials)
    return int(uid)


def received_descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with a message."""
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % struct.calcsize("i")
            found += (number for (number,) in struct.iter_unpack("i", data[:whole]))
    return found


def unlink(name: bytes | str, folder: int | None = None) -> None:
    """Remove a file that may be gone."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def remove_place(directory: str) -> None:
    """Remove a manager's socket and directory, in as far as they were made."""
    for name in (SOCKET, CLOSING, JOURNAL, f"{JOURNAL}-new"):
        unlink(os.path.join(directory, name))
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def detach() -> None:
    """Become nobody's child, in a session and process group of its own.

    Clause MGR-1. The parent of this process ends here, and its own parent waits for
    just that, so there is no zombie.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)


def set_signals() -> None:
    """Ignore the terminal; end in order on SIGTERM."""

    def terminate(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, terminate)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def raise_descriptor_limit() -> None:
    """Allow as many clients as the system does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: list[str]) -> None:
    """Run the manager that the command line describes."""
    _, listener, first, directory, grace = arguments
    shm = os.open(SHM, os.O_RDONLY | os.O_DIRECTORY)
    detach()
    raise_descriptor_limit()
    manager = Manager(
        Door(socket.socket(fileno=int(listener)), directory),
        socket.socket(fileno=int(first)),
        float(grace),
        shm,
    )
    try:
        set_signals()
        manager.run()
    except Terminated:
        pass
    finally:
        manager.remove_everything()


if __name__ == "__main__":
    main(sys.argv[1:])
