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
POST     P name           a message that carries the name is about to be sent
CLAIM    C name           such a message was received; sent after the receiver's HOLD
CANCEL   X name           such a message will never be received
FORK     F + a descriptor the descriptor is the connection of a child to be, which
                          holds what the sender holds
LISTENING L               the socket of newcomers is ready (first client only)
ABANDON  N                forget the directory and leave (first client only)
SYNC     S token          answered with the token once all before it is done
STATUS   T token          answered with the token and the counts (`COUNTS`)
======== = ============== ==========================================================

**When a name goes.** A client holds a multiset of names, given up at once when its
connection ends. Each name has one count of messages in flight besides. The messages
of two clients race (a receiver's CLAIM can be read before the sender's POST), hence
this count is signed. A name is unreachable when nobody holds it and the count is zero.
Yet these zeros prove something only if they are from one moment: with three processes
in a row, the first one's POST and the last one's CLAIM add up to zero while the middle
one's HOLD is still unread. So a name that has come to zero is a suspect, and it is
removed only after one more full sweep over all connections brought no news of it:
whatever had been sent before that sweep began has then been read, and the zeros are
the state of that moment. Names that came by AGAIN are kept to the end, since the
messages in flight were counted by the manager that died.

**The end.** When the last client is gone, the manager waits for GRACE seconds, closes
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
import struct
import sys
import time
from collections.abc import Iterator

TITLE = "sharedtensor-manager"  # in the command line, so that tools can tell
SOCKET = "socket"
CLOSING = "closing"
SHM = "/dev/shm"

HOLD, AGAIN, RELEASE = b"H", b"A", b"R"
POST, CLAIM, CANCEL = b"P", b"C", b"X"
FORK, LISTENING, ABANDON = b"F", b"L", b"N"
SYNC, STATUS = b"S", b"T"
ABOUT_NAMES = frozenset((HOLD, AGAIN, RELEASE, POST, CLAIM, CANCEL))

COUNTS = struct.Struct("<QQQQq")  # pid, clients, names, holds, in flight
TOKEN = 8
PREFIX = b"sharedtensor-"
NAME_LETTERS = frozenset(
    b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
LONGEST_NAME = 255
LONGEST_MESSAGE = 1 + LONGEST_NAME
# More than the default buffer of a socket can hold: a visit that ends before has
# read all that was sent before it began, however fast the client goes on sending.
VISIT = 4096
RETRY = 0.02  # seconds until a locked door is tried again


def is_name(name: bytes) -> bool:
    """Tell whether this is a name that the manager may touch."""
    return (
        len(PREFIX) < len(name) <= LONGEST_NAME
        and name.startswith(PREFIX)
        and NAME_LETTERS.issuperset(name)
    )


class Terminated(Exception):
    """SIGTERM was received."""


class Client:
    """One connection and the multiset of names that its process holds."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.holds: dict[bytes, int] = {}


class Name:
    """What is known of one name."""

    def __init__(self) -> None:
        self.holds = 0
        self.in_flight = 0
        self.was_held = False
        self.kept = False

    def is_unreachable(self) -> bool:
        """No process holds it and no message carries it."""
        return not (self.holds or self.in_flight or self.kept)


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
        self.names: dict[bytes, Name] = {}
        self.suspects: set[bytes] = set()  # came to zero in this sweep
        self.judged: set[bytes] = set()  # came to zero before it, no news since
        self.requests: list[tuple[Client, bytes]] = []
        self.to_visit: list[Client] = []
        self.deadline = 0.0
        self.poll = select.poll()
        self.first = self.admit(first)

    def run(self) -> None:
        """Serve until the last client has been gone for the grace period."""
        while self.clients or time.monotonic() < self.deadline or not self.leave():
            self.turn()

    def turn(self) -> None:
        """Sweep once, then judge the suspects and requests of the sweep before."""
        self.judged, self.suspects = self.suspects, set()
        requests, self.requests = self.requests, []
        if self.sweep(0 if self.judged or requests else self.patience()):
            for name in self.judged:
                self.forget(name)
        else:
            self.suspects |= self.judged
        for client, request in requests:
            self.answer(client, request)

    def patience(self) -> float | None:
        """Return for how many milliseconds to wait for the next message."""
        if self.clients:
            return None
        return max(0.0, self.deadline - time.monotonic()) * 1000

    def sweep(self, patience: float | None) -> bool:
        """Read what was sent until now; False if somebody sends too fast for it."""
        self.to_visit = []
        for descriptor, _ in self.poll.poll(patience):
            if descriptor == self.door.fileno():
                self.welcome()
            else:
                self.to_visit.append(self.clients[descriptor])
        complete = True
        for client in self.to_visit:  # grows while newcomers are admitted
            complete = self.visit(client) and complete
        return complete

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
        if self.door.is_open():
            self.poll.register(self.door, select.POLLIN)
        if not self.clients:
            patience = self.grace if self.door.is_open() else 0
            self.deadline = time.monotonic() + patience

    def visit(self, client: Client) -> bool:
        """Read a client's messages; False if there was no end of them."""
        for _ in range(VISIT):
            try:
                message, ancillary, _, _ = client.socket.recvmsg(
                    LONGEST_MESSAGE + 1, socket.CMSG_SPACE(struct.calcsize("i"))
                )
            except BlockingIOError:
                return True
            except ConnectionResetError:
                continue  # it left an answer unread: what it sent comes next
            except OSError:
                message, ancillary = b"", []
            if not self.obey(client, message, received_descriptors(ancillary)):
                self.dismiss(client)
                return True
        return False

    def obey(self, client: Client, message: bytes, descriptors: list[int]) -> bool:
        """Do what a message says; False if it says nothing, or nothing known."""
        kind, argument = message[:1], message[1:]
        if kind == FORK:
            self.fork(client, descriptors)
            return not argument
        for descriptor in descriptors:
            os.close(descriptor)
        if kind in ABOUT_NAMES and is_name(argument):
            self.account(client, kind, argument)
        elif kind in (SYNC, STATUS) and len(argument) == TOKEN:
            self.requests.append((client, message))
        elif kind == LISTENING and client is self.first:
            self.door.open()
            self.poll.register(self.door, select.POLLIN)
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

    def account(self, client: Client, kind: bytes, name: bytes) -> None:
        """Change the counts of one name. Clauses FS-2 and LIFE-8."""
        entry = self.names.get(name)
        if entry is None:
            entry = self.names[name] = Name()
        if kind in (HOLD, AGAIN):
            client.holds[name] = client.holds.get(name, 0) + 1
            entry.holds += 1
            entry.was_held = True
            entry.kept |= kind == AGAIN
        elif kind == RELEASE:
            release(client, name, entry)
        else:
            entry.in_flight += 1 if kind == POST else -1
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
            sum(entry.in_flight for entry in entries),
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
        if self.clients:
            self.door.show()
        return not self.clients

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
    for name in (SOCKET, CLOSING):
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
