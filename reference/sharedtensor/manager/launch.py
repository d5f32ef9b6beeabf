"""Starting a manager, and reaching one by its address.

The address of a manager is the path of its socket,
`<temporary directory>/sharedtensor-manager-XXXXXXXXXXXXXXXX/socket`.

**Starting.** The client makes an unbound socket, starts the daemon with it and with one
end of a socket pair, and only then makes the directory, binds and listens. So nobody
waits until the daemon serves: messages wait in the socket pair, other clients in the
backlog. (Its first fork is waited for, once in a program, some 10 ms.) And the order
leaves nothing behind when the client is killed on the way: from before the directory
exists there is a daemon that knows its path and sees the client's end of the socket
pair close. The daemon is started by `subprocess` (which does not copy the address
space, as a fork of a large process would), in a new session at once, and forks there,
so the client is left with a child that ends directly and is waited for.

**Two at once.** Processes that start a manager at the same time get two managers. That
does no harm: the address travels in each handle, and whoever receives a handle talks to
the manager that is named there.

**A successor.** If a manager was killed, its socket refuses connections. The first
client to notice starts a successor at the same address, under a lock on the directory
(`flock`, which the kernel releases at death), so all handles stay good and all clients
find the same successor. See `client` for what is known again then.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import spawn as multiprocessing_spawn
from typing import Any

from ..errors import ManagerError
from . import daemon

TIMEOUT = 10.0  # seconds for any single wait on a manager or for a lock
GRACE_VARIABLE = "SHAREDTENSOR_MANAGER_GRACE"
DEFAULT_GRACE = 0.5
BACKLOG = 1024
SUN_PATH = 107  # bytes of a path that fit into a socket address, the final 0 apart
LOCK_POLL = 0.002
ATTEMPTS = 5

# What connecting to a manager that has ended, or is about to, can give.
NOT_SERVING = (FileNotFoundError, ConnectionError)


class AddressTaken(Exception):
    """Another client has put a manager at this address."""


def start_anywhere() -> tuple[str, socket.socket]:
    """Start a manager; return its address and the connection to it.

    No two managers are given one directory. Clauses MGR-8, MGR-17.

    Raises `ManagerError` if no directory will do or the daemon cannot be started.
    """
    reasons = []
    for base in candidate_bases():
        directory = new_directory(base)
        try:
            connection = start(directory)
        except (OSError, AddressTaken) as error:
            reasons.append(f"{base}: {error}")
        else:
            return os.path.join(directory, daemon.SOCKET), connection
    raise ManagerError(
        "No shared-memory manager could be started, since no directory would do for "
        f"its socket ({'; '.join(reasons) or 'none is writable'}). Set TMPDIR to a "
        "directory that this user can write to."
    )


def new_directory(base: str) -> str:
    """Return a path below `base` that no other manager has. Clause MGR-17."""
    return os.path.join(base, f"{daemon.TITLE}-{os.urandom(8).hex()}")


def candidate_bases() -> list[str]:
    """Return the directories that a socket may be put under, the best first.

    Clause MGR-8.
    """
    bases = []
    with contextlib.suppress(OSError):  # it raises when none is usable
        bases.append(os.path.abspath(tempfile.gettempdir()))
    bases += [base for base in ("/tmp", "/var/tmp", daemon.SHM) if base not in bases]
    return [base for base in bases if os.access(base, os.W_OK | os.X_OK)]


def start(directory: str) -> socket.socket:
    """Start a manager in a directory, made now; return the connection to it.

    Raises `OSError` if the directory will not do, `ManagerError` if the daemon does not
    start, and `AddressTaken` if another client was faster.
    """
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, theirs = map(above_standard_streams, pair)
    listener = above_standard_streams(
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    )
    set_timeouts(ours)
    try:
        with theirs, listener:
            process = spawn(listener, theirs, directory)
            try:
                open_listener(listener, directory, ours)
            finally:
                theirs.close()
                wait_until_detached(process)
    except AddressTaken:
        ours.close()
        raise
    except BaseException:
        ours.close()
        daemon.remove_directory(directory)
        raise
    return ours


def above_standard_streams(given: socket.socket) -> socket.socket:
    """Return a socket whose number is not that of a standard stream. Clause MGR-6.

    A program whose streams are closed gets such numbers. A daemon replaces them, and
    what the program writes to a stream would reach the manager.
    """
    if given.fileno() > 2:
        return given
    with given:
        number = fcntl.fcntl(given.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
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
        os.path.abspath(daemon.__file__),
        daemon.TITLE,
        *map(str, inherited),
        directory,
        str(grace_period()),
    ]


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
    """Return the Python that `multiprocessing` starts its children with."""
    return os.fsdecode(multiprocessing_spawn.get_executable())


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
            f"that {interpreter()!r} runs Python and that {daemon.SHM} exists."
        )


def open_listener(
    listener: socket.socket, directory: str, first: socket.socket
) -> None:
    """Make directory and socket for a daemon that runs already. Clauses SEC-2, MGR-9.

    Raises `AddressTaken`, and has told the daemon to go, if a manager is there already.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
        os.chmod(directory, 0o700)  # the umask may have taken that
    with locked(directory), short_path(os.path.join(directory, daemon.SOCKET)) as path:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            first.send(daemon.ABANDON, socket.MSG_NOSIGNAL)
            raise AddressTaken(f"{directory} has a manager already") from error
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
        first.send(daemon.LISTENING, socket.MSG_NOSIGNAL)


def reach(address: str, may_create: bool) -> socket.socket:
    """Connect to the manager at an address; put a successor there if it was killed.

    If the directory is gone, the manager has ended in order and nothing that it knew
    is left; with `may_create` a new one is started all the same. Clause MGR-14.

    Raises `ManagerError` if there is no manager and none can be put there. Clause
    MGR-13.
    """
    reason: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            return connect_or_succeed(address, may_create)
        except (FileNotFoundError, AddressTaken) as error:
            reason = error  # somebody else is ending or starting one just now
        except OSError as error:
            reason = error
            break
    if isinstance(reason, FileNotFoundError) and not may_create:
        raise ManagerError(
            f"The shared-memory manager at {address} has ended, since all processes "
            "that used it have; its storages are gone. Keep a process alive that holds "
            "them until they are received."
        ) from reason
    raise ManagerError(
        f"The shared-memory manager at {address} cannot be reached, and no successor "
        f"can be started there: {reason}. Check that its directory is this user's and "
        "writable, and that the manager is not stopped."
    ) from reason


def connect_or_succeed(address: str, may_create: bool) -> socket.socket:
    """Try once to connect, and else to start a successor. Clause MGR-14."""
    with contextlib.suppress(*NOT_SERVING):
        return connect(address)
    directory = os.path.dirname(address)
    if may_create and not os.path.isdir(directory):
        return start(directory)
    with locked(directory):
        # Meanwhile another client may have done what this one is about to do.
        with contextlib.suppress(*NOT_SERVING):
            return connect(address)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)
    return start(directory)


def connect(address: str) -> socket.socket:
    """Connect, and hear from the manager once.

    Without that answer a message could be lost: a manager that is about to end takes
    connections in that it will never serve.
    """
    connection = above_standard_streams(
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    )
    try:
        set_timeouts(connection)
        with short_path(address) as path:
            connection.connect(path)
        if daemon.peer_uid(connection) != os.geteuid():
            raise PermissionError(f"{address} belongs to another user")
        request = daemon.SYNC + os.urandom(daemon.TOKEN)
        connection.send(request, socket.MSG_NOSIGNAL)
        if connection.recv(len(request)) != request[1:]:
            raise ConnectionResetError("the manager ended")
    except BlockingIOError:
        connection.close()
        raise TimeoutError(f"no answer within {TIMEOUT:g} seconds") from None
    except BaseException:
        connection.close()
        raise
    return connection


def set_timeouts(connection: socket.socket) -> None:
    """Let the kernel end each wait on a connection; then it reads as blocking.

    Clause MGR-18.
    """
    seconds = struct.pack("ll", int(TIMEOUT), int(TIMEOUT % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)


@contextlib.contextmanager
def locked(directory: str) -> Iterator[None]:
    """Hold the lock on a manager's directory, which must be this user's alone.

    Clause SEC-2. Raises `OSError`.
    """
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"{directory} is open to other users")
        wait_for_lock(folder)
        if not same_file(directory, status):
            raise FileNotFoundError(f"{directory} was removed")
        yield
    finally:
        os.close(folder)


def wait_for_lock(folder: int) -> None:
    """Lock a directory. Raises `TimeoutError`. Clause MGR-18."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("another process keeps it locked") from None
            time.sleep(LOCK_POLL)


def same_file(path: str, status: os.stat_result) -> bool:
    """Return whether a path still names what was opened."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(path), status)
    return False


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
