"""The shared-memory manager: a daemon that removes names nobody can use any more.

Under the strategy `file_system` a shared storage is a named file in `/dev/shm`. Its
name has to stay for receivers that are still to come, and it has to go when the last
process that could use it is gone, killed processes included (clauses FS-2, LIFE-8 to
LIFE-10, MGR-2). A dead process runs no handler, so somebody else has to watch: this
script. It needs the standard library alone and is run as

    python -I -S daemon.py sharedtensor-manager LISTENER FIRST DIRECTORY GRACE

where LISTENER and FIRST are inherited descriptors: the socket that clients will connect
to, and the connection of the client that starts the manager.

**Messages.** `SOCK_SEQPACKET` keeps the boundaries of messages, so that there is no
half-read state for a dead or hostile client to leave behind, and it is connected, so
that the death of a client is an end of file. A message is one letter and its
argument; nothing is answered but SYNC and STATUS.

==================== = =================================================================
REGISTER             H name: the sender of the message uses the name once more
REGISTER_AGAIN       A name: as REGISTER, to the successor of a manager that was killed
RELEASE              R name: one REGISTER less (without effect where there is none)
ANNOUNCE             P names, separated by 0, and a descriptor: a message that carries
                       the names is about to be sent, and with it the other end of the
                       pipe that the descriptor is an end of
ANNOUNCE_COUNTED     + name: the same of a message that cannot carry descriptors
ACKNOWLEDGE_COUNTED  C name: that one was received; sent after the receiver's REGISTER
WITHDRAW_COUNTED     X name: that one will never be received
PREFORK              F a descriptor: it is the connection of a child that is about to be
                       forked, which holds what the sender holds
LISTENING            L the socket for clients is ready (first client only)
ABANDON              N forget the directory and exit (first client only)
SYNC                 S token: answered with the token once all before it is done
STATUS               T token: answered with the token and the counts (`COUNTS`)
==================== = =================================================================

The letters stay whatever the messages are called, since the manager that a client finds
may have been started by another version.

**When a name goes.** A client holds a multiset of names, given up at once when its
connection ends. Names in flight are held by the message itself: it carries one end of a
pipe, and the manager has the other. When the message has been received, was withdrawn
or can never be received, since the channel or the process that had it is gone, the
kernel closes the pipe, and the manager sees that; nobody has to be alive to say so. A
receiver sends its REGISTER before it closes the pipe.

On a channel that carries no descriptors, messages are counted. Their receivers race
with their senders (an ACKNOWLEDGE_COUNTED can be read before the ANNOUNCE_COUNTED),
hence that count is signed.

A name is unreachable when nobody holds it, no pipe stands for it, and the count is 0.
Yet this proves something only if it is of one moment: with three processes in a row,
the announcement of the first and the acknowledgement of the last add up to zero while
the REGISTER of the one in the middle is still unread. So such a name is a candidate for
removal, and it is removed only after one more full sweep over all connections brought
no news of it: whatever had been sent before that sweep began has then been read. Names
in flight for whose pipe the manager has no descriptor left are kept to the end.

**A successor.** A manager writes down each name that it hears of, in a file beside its
socket, so that one that takes its place when it was killed knows the names of clients
that were killed as well. What was in flight died with it, so a successor keeps all
these names, and those that came by REGISTER_AGAIN, to the end.

**The end.** When the last client and the last message in flight are gone, the manager
waits for GRACE seconds, withdraws its socket in such a way that nobody can be half
connected, removes all names that are left, its socket and its directory, and ends
(clause MGR-3). The lock on the directory is the one that clients hold while they put a
successor in a dead manager's place.
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
CLOSING = "closing"  # the socket's name while the manager ends
JOURNAL = "names"
SHM = "/dev/shm"

REGISTER, REGISTER_AGAIN, RELEASE = b"H", b"A", b"R"
ANNOUNCE = b"P"
ANNOUNCE_COUNTED, ACKNOWLEDGE_COUNTED, WITHDRAW_COUNTED = b"+", b"C", b"X"
PREFORK, LISTENING, ABANDON = b"F", b"L", b"N"
SYNC, STATUS = b"S", b"T"

COUNTS = struct.Struct("<QQQQq")  # pid, clients, names, holds, in flight
TOKEN = 8
PREFIX = b"sharedtensor-"
NAME_LETTERS = frozenset(
    b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
LONGEST_NAME = 255
LONGEST_MESSAGE = 1 << 14
SEPARATOR = b"\0"
# More messages than the default buffer of a socket can hold: so many of a client, or
# all, are read in one sweep, however fast it goes on sending.
MESSAGES_AT_ONCE = 4096
ANCILLARY_SIZE = socket.CMSG_SPACE(struct.calcsize("i"))  # room for one descriptor
LOCK_RETRY = 0.02  # seconds until a directory that a client has locked is tried again
BATCH_DELAY = 0.002  # seconds in which messages gather before they are read

Holds = dict[bytes, int]  # how often a client uses each name


def is_name(name: bytes) -> bool:
    """Return whether this is a name that the manager may touch. Clause MGR-16."""
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
        self.connection = connection
        self.holds: Holds = {}


class InFlight:
    """A message in flight: our end of its pipe, and the names that it carries."""

    def __init__(self, pipe: int, names: list[bytes]) -> None:
        self.pipe = pipe
        self.names = names


class Usage:
    """Who uses one name; `counted` are messages in flight that have no pipe."""

    def __init__(self) -> None:
        self.holds = 0
        self.in_flight = 0
        self.counted = 0
        self.was_held = False
        self.is_kept = False

    def is_unreachable(self) -> bool:
        """Return whether no process holds the name and no message carries it."""
        return not (self.holds or self.in_flight or self.counted or self.is_kept)


class Journal:
    """The names that a manager knows, in a file for its successor; one a line.

    Writing is done as well as can be: a manager without room on its disk serves on.
    Clause MGR-14.
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

    def compact(self, names: Iterable[bytes], count: int) -> None:
        """Leave out the names that are gone, if they are many; `names` are there."""
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


class Names:
    """Who uses which name, and which names nobody can use any more. Clause FS-2.

    A client's multiset changes together with the counts of all, so it is passed in.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.usages: dict[bytes, Usage] = {}
        self.candidates: set[bytes] = set()  # became unreachable in this sweep
        self.confirmed: set[bytes] = set()  # became so before it, with no news since

    def usage(self, name: bytes) -> Usage:
        """Return what is known of a name."""
        found = self.usages.get(name)
        if found is None:
            found = self.usages[name] = Usage()
            self.journal.add(name)
        return found

    def load_journal(self) -> None:
        """Keep to the end what a manager knew that was killed here. Clause MGR-14."""
        for name in self.journal.open():
            usage = self.usages.setdefault(name, Usage())
            usage.was_held = usage.is_kept = True
            self.journal.lines += 1

    # --- processes that hold names

    def register(self, holds: Holds, name: bytes) -> None:
        """Count one more use of a name by a client. Clauses FS-8, MGR-11."""
        holds[name] = holds.get(name, 0) + 1
        usage = self.usage(name)
        usage.holds += 1
        usage.was_held = True
        self.update(name)

    def register_again(self, holds: Holds, name: bytes) -> None:
        """Count what a killed manager had counted, and keep it. Clause MGR-14."""
        self.usage(name).is_kept = True
        self.register(holds, name)

    def release(self, holds: Holds, name: bytes) -> None:
        """Take back one use of a client, if it has one. Clause MGR-11."""
        count = holds.pop(name, 0)
        if count > 1:
            holds[name] = count - 1
        self.usage(name).holds -= bool(count)
        self.update(name)

    def release_all(self, holds: Holds) -> None:
        """Take back all uses of a client that has ended.

        Clauses LIFE-8, FS-9, MGR-10.
        """
        for name, count in holds.items():
            self.usages[name].holds -= count
            self.update(name)
        holds.clear()

    def inherited(self, holds: Holds) -> Holds:
        """Return the holds of a child whose parent has these. Clauses LIFE-22, FS-8."""
        for name, count in holds.items():
            self.usages[name].holds += count
        return dict(holds)

    # --- messages in flight

    def announce(self, names: list[bytes], has_pipe: bool) -> None:
        """Count a message with these names, or keep them if it has no pipe.

        Clause LIFE-2.
        """
        for name in names:
            usage = self.usage(name)
            usage.in_flight += has_pipe
            usage.is_kept |= not has_pipe
            self.update(name)

    def close(self, names: list[bytes]) -> None:
        """Count a message less: it was received, or never will be. Clause FS-10."""
        for name in names:
            self.usages[name].in_flight -= 1
            self.update(name)

    def announce_counted(self, holds: Holds, name: bytes) -> None:
        """Count a message that has no pipe. Clause LIFE-2."""
        self.usage(name).counted += 1
        self.update(name)

    def close_counted(self, holds: Holds, name: bytes) -> None:
        """Count it no more: it was received, or withdrawn."""
        self.usage(name).counted -= 1
        self.update(name)

    # --- removal

    def update(self, name: bytes) -> None:
        """Decide anew whether a name of which there is news may be unreachable."""
        self.confirmed.discard(name)
        if self.usages[name].is_unreachable():
            self.candidates.add(name)
        else:
            self.candidates.discard(name)

    def begin_sweep(self) -> None:
        """Have this sweep confirm the candidates, unless it brings news of them."""
        self.confirmed, self.candidates = self.candidates, set()

    def discard(self, name: bytes) -> bool:
        """Forget a name; return whether there may be a file of it."""
        was_held = self.usages.pop(name).was_held
        self.journal.compact(self.usages, len(self.usages))
        return was_held


class Listener:
    """The socket that clients connect to, and its directory.

    Only processes of the manager's own user are accepted: the directory is closed to
    others (clause SEC-2), and the kernel's word on the peer decides, root included.
    """

    def __init__(self, listener: socket.socket, directory: str) -> None:
        listener.setblocking(False)
        self.socket = listener
        self.directory = directory
        self.folder = -1  # a descriptor of the directory, once there is one

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self.socket.fileno()

    def is_open(self) -> bool:
        """Return whether clients can connect."""
        return self.folder >= 0

    def open(self) -> None:
        """Note that the socket is bound and listening."""
        self.folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)

    def pending(self) -> Iterator[socket.socket]:
        """Yield the connections that wait and are of this user. Clause SEC-5."""
        while True:
            try:
                connection, _ = self.socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            if peer_uid(connection) == os.geteuid():
                yield connection
            else:
                connection.close()

    def lock(self) -> bool:
        """Lock the directory; return False if a client is about to use it."""
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
    """The connections, and the loop that serves them."""

    def __init__(
        self, listener: Listener, first: socket.socket, grace: float, shm: int
    ) -> None:
        self.listener = listener
        self.grace = grace
        self.shm = shm
        self.clients: dict[int, Client] = {}
        self.messages: dict[int, InFlight] = {}  # by the descriptor of their pipe
        self.names = Names(Journal(os.path.join(listener.directory, JOURNAL)))
        self.about_a_name = {
            REGISTER: self.names.register,
            REGISTER_AGAIN: self.names.register_again,
            RELEASE: self.names.release,
            ANNOUNCE_COUNTED: self.names.announce_counted,
            ACKNOWLEDGE_COUNTED: self.names.close_counted,
            WITHDRAW_COUNTED: self.names.close_counted,
        }
        self.requests: list[tuple[Client, bytes]] = []
        self.readable: list[Client] = []
        self.deadline = 0.0
        self.poll = select.poll()
        self.first = self.add_client(first)

    # --- the loop

    def run(self) -> None:
        """Serve until nobody has used this manager for the grace period.

        Clause MGR-3.
        """
        while self.is_used() or time.monotonic() < self.deadline or not self.close():
            self.run_once()

    def is_used(self) -> bool:
        """Return whether there is a client, or a message in flight."""
        return bool(self.clients or self.messages)

    def run_once(self) -> None:
        """Sweep once, then do what was asked for, or was due, before the sweep."""
        self.names.begin_sweep()
        requests, self.requests = self.requests, []
        self.sweep(0 if self.names.confirmed or requests else self.timeout())
        for name in self.names.confirmed:
            self.remove_name(name)
        for client, request in requests:
            self.answer(client, request)

    def timeout(self) -> float | None:
        """Return for how many milliseconds to wait for the next message."""
        if self.is_used():
            return None
        return max(0.0, self.deadline - time.monotonic()) * 1000

    def sweep(self, timeout: float | None) -> None:
        """Read what was sent until now.

        Nobody waits for this but those who ask for an answer. So after a wait messages
        may gather: to wake up for each would take a processor from their senders.
        """
        self.readable = []
        if timeout != 0 and self.poll.poll(timeout):
            time.sleep(BATCH_DELAY)
            timeout = 0
        for descriptor, _ in self.poll.poll(timeout):
            if descriptor == self.listener.fileno():
                self.accept()
            elif descriptor in self.messages:
                self.close_message(self.messages[descriptor])
            else:
                self.readable.append(self.clients[descriptor])
        for client in self.readable:  # grows while clients are added
            self.read_messages(client)

    # --- clients that come and go

    def accept(self) -> None:
        """Add the clients that wait, as long as descriptors last. Clause FAULT-5."""
        try:
            for connection in self.listener.pending():
                self.add_client(connection)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self.poll.unregister(self.listener)  # until a client leaves

    def add_client(self, connection: socket.socket) -> Client:
        """Serve one more client, from this same sweep on."""
        client = Client(connection)
        self.clients[connection.fileno()] = client
        self.poll.register(connection, select.POLLIN)
        self.readable.append(client)
        return client

    def disconnect(self, client: Client) -> None:
        """Release all that a client held; its connection has ended or must end."""
        self.names.release_all(client.holds)
        self.poll.unregister(client.connection)
        del self.clients[client.connection.fileno()]
        client.connection.close()
        self.after_close()

    def after_close(self) -> None:
        """Accept again, with a descriptor free; without any user left, end soon."""
        if self.listener.is_open():
            self.poll.register(self.listener, select.POLLIN)
        if not self.is_used():
            grace = self.grace if self.listener.is_open() else 0
            self.deadline = time.monotonic() + grace

    # --- messages

    def read_messages(self, client: Client) -> None:
        """Read what a client had sent when this began, and perhaps more."""
        for _ in range(MESSAGES_AT_ONCE):
            try:
                message, descriptors = receive(client.connection)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it left an answer unread: what it sent comes next
            if not self.handle_message(client, message, descriptors):
                self.disconnect(client)
                return

    def handle_message(
        self, client: Client, message: bytes, descriptors: list[int]
    ) -> bool:
        """Do what a message says; return False if it says nothing, or nothing known.

        Clause MGR-16.
        """
        kind, argument = message[:1], message[1:]
        if kind == PREFORK:
            self.prefork(client, descriptors)
            return not argument
        if kind == ANNOUNCE:
            return self.announce(argument.split(SEPARATOR), descriptors)
        close_all(descriptors)
        if kind in self.about_a_name and is_name(argument):
            self.about_a_name[kind](client.holds, argument)
        elif kind in (SYNC, STATUS) and len(argument) == TOKEN:
            self.requests.append((client, message))
        elif kind == LISTENING and client is self.first:
            self.start_listening()
        elif kind == ABANDON and client is self.first:
            os._exit(0)
        else:
            return False
        return True

    def start_listening(self) -> None:
        """Accept clients; the directory and the socket in it have been made."""
        self.listener.open()
        self.poll.register(self.listener, select.POLLIN)
        self.names.load_journal()

    def prefork(self, parent: Client, descriptors: list[int]) -> None:
        """Add the child that a client is about to fork. Clauses START-3, LIFE-22.

        Without its descriptor it will connect by itself.
        """
        close_all(descriptors[1:])
        connection = as_connection(descriptors[0]) if descriptors else None
        if connection is not None:
            child = self.add_client(connection)
            child.holds = self.names.inherited(parent.holds)

    def announce(self, names: list[bytes], descriptors: list[int]) -> bool:
        """A message with these names is in flight until its pipe is closed.

        Return False if this is no proper announcement. Clauses LIFE-2, LIFE-5.
        """
        is_proper = len(descriptors) < 2 and all(map(is_pipe, descriptors))
        if not (is_proper and all(map(is_name, names))):
            close_all(descriptors)
            return False
        self.names.announce(names, has_pipe=bool(descriptors))
        for pipe in descriptors:
            self.messages[pipe] = InFlight(pipe, names)
            self.poll.register(pipe, 0)
        return True

    def close_message(self, message: InFlight) -> None:
        """A message was received, or never will be. Clause FS-10."""
        self.poll.unregister(message.pipe)
        del self.messages[message.pipe]
        os.close(message.pipe)
        self.names.close(message.names)
        self.after_close()

    def answer(self, client: Client, request: bytes) -> None:
        """Answer a SYNC or STATUS; disconnect a client that does not read."""
        if client.connection.fileno() < 0:
            return
        reply = request[1:]
        if request[:1] == STATUS:
            reply += self.counts()
        try:
            client.connection.send(reply, socket.MSG_NOSIGNAL)
        except OSError:
            self.disconnect(client)

    def counts(self) -> bytes:
        """Return the figures of a STATUS answer."""
        usages = self.names.usages.values()
        return COUNTS.pack(
            os.getpid(),
            len(self.clients),
            len(usages),
            sum(usage.holds for usage in usages),
            sum(usage.in_flight + usage.counted for usage in usages),
        )

    # --- the end of a name, and of the manager

    def remove_name(self, name: bytes) -> None:
        """Remove a name that nobody can use any more. Clauses FS-2, FS-9, MGR-10."""
        if self.names.discard(name):
            remove_segment(name, self.shm)

    def close(self) -> bool:
        """Accept nobody from here on; False if somebody connected at the last moment.

        Clause MGR-3.
        """
        if not self.listener.is_open():
            return True
        if not self.listener.lock():
            self.deadline = time.monotonic() + LOCK_RETRY
            return False
        try:
            self.listener.hide()
        except OSError:
            return True  # somebody removed the directory: nobody can connect
        self.accept()
        if self.is_used():
            self.listener.show()
        return not self.is_used()

    def remove_everything(self) -> None:
        """Leave nothing behind. Clauses LIFE-9, LIFE-10, MGR-2, MGR-3 and MGR-7."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for name in self.names.usages:
            remove_segment(name, self.shm)
        remove_directory(self.listener.directory)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message of a client and the descriptors that came with it.

    The message is empty at the end of the connection, and if it was too long to be one.
    Clause MGR-16.

    Raises `BlockingIOError` if the client has sent nothing more, and
    `ConnectionResetError` once if it has gone with an answer unread.
    """
    try:
        message, ancillary, flags, _ = connection.recvmsg(
            LONGEST_MESSAGE, ANCILLARY_SIZE
        )
    except (BlockingIOError, ConnectionResetError):
        raise
    except OSError:
        return b"", []
    descriptors = received_descriptors(ancillary)
    return b"" if flags & socket.MSG_TRUNC else message, descriptors


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
    if (found.family, found.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        return found
    found.close()
    return None


def is_pipe(descriptor: int) -> bool:
    """Return whether a descriptor is an end of a pipe."""
    return stat.S_ISFIFO(os.fstat(descriptor).st_mode)


def close_all(descriptors: list[int]) -> None:
    """Close descriptors that nobody asked for."""
    for descriptor in descriptors:
        os.close(descriptor)


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
    for name in (SOCKET, CLOSING, JOURNAL, f"{JOURNAL}-new"):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, name))
    with contextlib.suppress(OSError):
        os.rmdir(directory)


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
    """Run the manager that the command line describes."""
    _, listener, first, directory, grace = arguments
    shm = os.open(SHM, os.O_RDONLY | os.O_DIRECTORY)
    detach()
    raise_descriptor_limit()
    manager = Manager(
        Listener(socket.socket(fileno=int(listener)), directory),
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
