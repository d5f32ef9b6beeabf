"""Starting a manager, and reaching one by its address: `conversation` by system calls.

The address of a manager is the path of its socket,
`<temporary directory>/sharedtensor-manager-XXXXXXXXXXXXXXXX/socket`.

**Starting.** The client makes an unbound socket, starts the daemon with it and with one
end of a socket pair, and only then makes the directory, binds and listens. So nobody
waits until the daemon serves: messages wait in the socket pair, other clients in the
backlog. (Its first fork is waited for, once in a program, some 10 ms.) From before the
directory exists there is a daemon that knows its path and sees the client's end of the
socket pair close, so a client that is killed on the way leaves nothing (the simulator
of the tests kills it at each step), and nothing of others is removed (see `serving`).
The daemon is started by `subprocess` (which does not copy the address space, as a fork
of a large process would), in a new session at once, and forks there, so the client is
left with a child that ends directly and is waited for.

**Two at once.** Processes that start a manager at the same time get two managers. That
does no harm: the address travels in each handle, and whoever receives a handle talks to
the manager that is named there.
"""

import errno
import fcntl
import functools
import os
import re
import select
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import spawn as multiprocessing_spawn
from typing import Any

from ..descriptors import AFTER_STREAMS
from ..errors import ManagerError, ignoring, pass_on
from . import conversation, daemon, messages
from .conversation import AddressTaken, Connected
from .daemon import short_path
from .serving import complete

TIMEOUT = 10.0  # seconds for any single wait on a manager or for a lock
GRACE_VARIABLE = "SHAREDTENSOR_MANAGER_GRACE"
DEFAULT_GRACE = 0.5
BACKLOG = 1024
RETRY = 0.002  # seconds until something is tried again
INTERPRETER = re.compile(r"(python|pypy|graalpy)[\d.]*[a-z]*(-[a-z]+)?")
RUN_FROM_ARCHIVE = """
import sys
sys.path.append(sys.argv.pop(1))
from manager import daemon
daemon.main(sys.argv[1:])
"""
NO_PIPE = errno.ENOENT, errno.ENXIO, errno.ENODEV


def start_anywhere() -> tuple[str, Connected]:
    """Start a manager; return its address and the connection to it.

    No two managers are given one directory. Clauses MGR-8, MGR-17.

    Raises `ManagerError` if no directory will do or the daemon cannot be started.
    """
    reasons = []
    for base in candidate_bases():
        directory = new_directory(base)
        try:
            connected = start(directory)
        except (OSError, AddressTaken) as error:
            pass_on(error)
            reasons.append(f"{base}: {error}")
        else:
            return os.path.join(directory, daemon.SOCKET), connected
    raise ManagerError(
        "No shared-memory manager could be started, since no directory would do for "
        f"its socket ({'; '.join(reasons) or 'none is writable'}). Set TMPDIR to a "
        "directory that this user can write to."
    )


def new_directory(base: str) -> str:
    """Return a path below `base` that no other manager has, nor one that was killed.

    Clauses MGR-17, ENV-6.
    """
    return os.path.join(base, f"{daemon.TITLE}-{os.urandom(8).hex()}")


def candidate_bases() -> list[str]:
    """Return the directories that a socket may be put under, the best first.

    Clause MGR-8.
    """
    bases = []
    with ignoring(OSError):  # it raises when none is usable
        bases.append(os.path.abspath(tempfile.gettempdir()))
    bases += [base for base in ("/tmp", "/var/tmp", daemon.SHM) if base not in bases]
    return [base for base in bases if os.access(base, os.W_OK | os.X_OK)]


def start(directory: str) -> Connected:
    """Start a manager in a directory; see `conversation.start`."""
    return complete(conversation.start(SYSTEM, directory))


def reach(address: str, may_create: bool) -> Connected:
    """Reach the manager at an address; see `conversation.reach`."""
    return complete(conversation.reach(SYSTEM, address, may_create))


def connect(address: str) -> Connected:
    """Connect to the manager at an address; see `conversation.connect`."""
    return complete(conversation.connect(SYSTEM, address))


class Starting:
    """What a client has of a daemon that it is starting."""

    def __init__(self, directory: str) -> None:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.first, self.theirs = map(above_standard_streams, pair)
        self.listener = above_standard_streams(
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        self.presence: int | None = None
        set_up(self.first)
        try:
            self.process = spawn(self.listener, self.theirs, directory)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close everything."""
        for opened in (self.first, self.theirs, self.listener, self.presence):
            close(opened)


class ClientKernel(conversation.System):
    """What `conversation` asks for, by system calls that wait for `TIMEOUT` at most."""

    async def connect(self, address: str) -> socket.socket:
        connection = above_standard_streams(
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        try:
            set_up(connection)
            with short_path(address) as path:
                attempt = functools.partial(connection.connect, path)
                retry(attempt, f"no room for another client of {address}")
            if daemon.peer_uid(connection) != os.geteuid():
                raise PermissionError(f"{address} belongs to another user")
        except BaseException:
            connection.close()
            raise
        return connection

    async def open_presence(self, address: str) -> int | None:
        return open_presence(os.path.dirname(address))

    async def greet(self, connection: socket.socket) -> None:
        token = os.urandom(messages.TOKEN)
        connection.send(messages.SYNC + token, socket.MSG_NOSIGNAL)
        wait_for(connection, select.POLLIN, deadline())
        if connection.recv(1 + len(token)) != token:
            raise ConnectionResetError("the manager ended")

    def close(self, opened: Any) -> None:
        close(opened)

    async def lock(self, directory: str) -> int:
        return lock(directory)

    async def unlock(self, folder: int) -> None:
        os.close(folder)

    async def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    async def remove_socket(self, address: str) -> None:
        with ignoring(FileNotFoundError):
            os.unlink(address)

    async def spawn(self, directory: str) -> Starting:
        return Starting(directory)

    async def make_directory(self, directory: str) -> None:
        with ignoring(FileExistsError):
            os.mkdir(directory, 0o700)
            os.chmod(directory, 0o700)  # the umask may have taken that

    async def bind(self, starting: Starting, directory: str) -> None:
        with short_path(os.path.join(directory, daemon.SOCKET)) as path:
            try:
                starting.listener.bind(path)
            except OSError as error:
                pass_on(error)
                if error.errno != errno.EADDRINUSE:
                    raise
                raise AddressTaken(f"{directory} has a manager already") from error

    async def make_presence(self, starting: Starting, directory: str) -> None:
        path = os.path.join(directory, daemon.PRESENCE)
        with ignoring(FileNotFoundError):
            os.rename(path, f"{path}-{os.urandom(8).hex()}")
        os.mkfifo(path, 0o600)
        os.chmod(path, 0o600)
        starting.presence = open_presence(directory)

    async def listen(self, starting: Starting, directory: str) -> None:
        with short_path(os.path.join(directory, daemon.SOCKET)) as path:
            os.chmod(path, 0o600)
        starting.listener.listen(BACKLOG)

    async def tell_daemon(self, starting: Starting, message: bytes) -> None:
        starting.first.send(message, socket.MSG_NOSIGNAL)

    async def wait_until_detached(self, starting: Starting) -> None:
        starting.theirs.close()
        wait_until_detached(starting.process)

    async def give_up(self, starting: Starting, directory: str) -> None:
        starting.close()
        with ignoring(OSError):
            folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                daemon.remove_unused_directory(directory, folder)
            finally:
                os.close(folder)

    async def connected(self, starting: Starting) -> Connected:
        starting.listener.close()
        return Connected(starting.first, starting.presence)


SYSTEM = ClientKernel()


def close(opened: socket.socket | int | None) -> None:
    """Close a socket or a descriptor, if it is one."""
    if isinstance(opened, int):
        os.close(opened)
    elif opened is not None:
        opened.close()


def open_presence(directory: str) -> int | None:
    """Open a presence pipe, to be one of those who have it open. Clause MGR-14.

    None where there is none, since a manager of another version made the directory:
    then a successor does not wait for this client. Raises `OSError` where it cannot be
    opened, for want of descriptors or memory: without it this is no client.
    """
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        opened = os.open(os.path.join(directory, daemon.PRESENCE), flags)
    except OSError as error:
        pass_on(error)
        if error.errno in NO_PIPE:
            return None
        raise
    if opened > 2:
        return opened
    try:
        return fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(opened)


def above_standard_streams(given: socket.socket) -> socket.socket:
    """Return a socket whose number is not that of a standard stream. Clause MGR-6.

    A program whose streams are closed gets such numbers. A daemon replaces them, and
    what the program writes to a stream would reach the manager.
    """
    if given.fileno() >= AFTER_STREAMS:
        return given
    with given:
        number = fcntl.fcntl(given.fileno(), fcntl.F_DUPFD_CLOEXEC, AFTER_STREAMS)
    return socket.socket(fileno=number)


def spawn(
    listener: socket.socket, first: socket.socket, directory: str
) -> "subprocess.Popen[Any]":
    """Start the daemon, which inherits these two sockets. Clause MGR-6."""
    inherited = (listener.fileno(), first.fileno())
    return subprocess.Popen(command(inherited, directory), **process_options(inherited))


def command(inherited: tuple[int, int], directory: str) -> list[str]:
    """Return the command line of a daemon; `daemon` documents it."""
    return [
        interpreter(),
        "-I",
        "-S",
        *script(),
        daemon.TITLE,
        *map(str, inherited),
        directory,
        str(grace_period()),
    ]


def script() -> list[str]:
    """Return what the interpreter runs, which is also possible from a zip archive."""
    path = os.path.abspath(daemon.__file__)
    if os.path.isfile(path):
        return [path]
    return ["-c", RUN_FROM_ARCHIVE, os.path.dirname(os.path.dirname(path))]


def process_options(inherited: tuple[int, int]) -> dict[str, Any]:
    """Return the options of `Popen` for a daemon: what it has in common with nobody.

    It inherits no descriptors but these and is in a session of its own at once. Clauses
    MGR-1, MGR-4, MGR-15.
    """
    return {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "close_fds": True,
        "pass_fds": inherited,
        "start_new_session": True,
    }


def interpreter() -> str:
    """Return the Python that `multiprocessing` starts its children with.

    Where that is no Python, the one that runs this program. In a frozen program, and in
    one that embeds Python, either may be the program itself, which is never started as
    a manager. Raises `ManagerError` if there is no other.
    """
    found = multiprocessing_spawn.get_executable(), sys.executable
    for path in map(os.fsdecode, filter(None, found)):
        if is_python(path):
            return path
    raise ManagerError(
        "A shared-memory manager cannot be started, since no Python interpreter is "
        f"known here: neither multiprocessing's executable nor sys.executable is one, "
        f"{found!r}, as in a program that is frozen or embeds Python. Use the strategy "
        "file_descriptor, which needs no manager, or set the path of an interpreter "
        "with multiprocessing.set_executable()."
    )


def is_python(path: str) -> bool:
    """Return whether a file is an interpreter, as its name or that of its target says.

    Nobody can try it: a program that is none would do whatever it does.
    """
    names = map(os.path.basename, (path, os.path.realpath(path)))
    return os.access(path, os.X_OK) and any(map(INTERPRETER.fullmatch, names))


def grace_period() -> float:
    """Return for how long a manager without clients waits for new ones.

    Raises `ManagerError` if the environment variable is not a number of seconds.
    """
    text = os.environ.get(GRACE_VARIABLE, "")
    try:
        grace = float(text or DEFAULT_GRACE)
    except ValueError:
        grace = -1.0
    if not 0 <= grace < float("inf"):
        raise ManagerError(
            f"{GRACE_VARIABLE} is {text!r}. Set it to a number of seconds, such as 0.5."
        )
    return grace


def wait_until_detached(process: "subprocess.Popen[Any]") -> None:
    """Reap the process that the daemon forks from; raise `ManagerError` if it fails."""
    try:
        status = process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise ManagerError(
            f"The shared-memory manager was not up after {TIMEOUT:g} seconds. Check "
            "whether the machine is overloaded."
        ) from None
    if status:
        raise ManagerError(
            f"The shared-memory manager ended at once, with status {status}. Check "
            f"that {interpreter()!r} runs Python and can read {daemon.__file__!r}, and "
            f"that {daemon.SHM} exists."
        )


def set_up(connection: socket.socket) -> None:
    """Let no call on a client's connection wait, and bound what it holds unread.

    A manager reads more messages at once than that, so that it misses none of those
    that were sent before a pipe was closed; and a client remembers as many. It would
    hold more where the system's default is larger. Clauses FS-8, MGR-14, MGR-18.
    """
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, messages.BUFFER)


def deadline() -> float:
    """Return when a wait on a manager ends that begins now. Clause MGR-18."""
    return time.monotonic() + TIMEOUT


def wait_for(connection: socket.socket, event: int, until: float) -> None:
    """Wait until a connection, which does not block, can be read or written.

    Signals do not make this longer: Python goes on with the rest of the time, while the
    kernel would begin anew with a timeout of the socket. Clauses MGR-18, FAIL-9.

    Raises `TimeoutError`.
    """
    poll = select.poll()
    poll.register(connection, event)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        raise TimeoutError(f"no answer within {TIMEOUT:g} seconds")


def retry(attempt: Callable[[], object], reason: str) -> None:
    """Do what others may keep from being done, as soon as they do not.

    Raises `TimeoutError` with the reason. Clause MGR-18.
    """
    until = deadline()
    while True:
        try:
            attempt()
        except BlockingIOError as error:
            pass_on(error)
            if time.monotonic() > until:
                raise TimeoutError(reason) from None
            time.sleep(RETRY)
        else:
            return


def lock(directory: str) -> int:
    """Lock a manager's directory, which must be this user's alone; return its lock.

    Closing that descriptor unlocks. Clause SEC-2. Raises `OSError`.
    """
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"{directory} is open to other users")
        attempt = functools.partial(fcntl.flock, folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        retry(attempt, "another process keeps it locked")
        if not same_file(directory, status):
            raise FileNotFoundError(f"{directory} was removed")
    except BaseException:
        os.close(folder)
        raise
    return folder


def same_file(path: str, status: os.stat_result) -> bool:
    """Return whether a path still names what was opened."""
    with ignoring(OSError):
        return os.path.samestat(os.stat(path), status)
    return False
