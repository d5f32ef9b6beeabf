"""How a process belongs to a program, and holds the names of segments.

A program is the processes that share by name and have a keeper in common: the process
that shared by name first, and those of the same user that it and its children have
started since. Its id is in the names that they make. A process that receives a name of
another program needs nothing of that program.
"""

import errno
import fcntl
import functools
import inspect
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import spawn, util
from typing import Any

from ..descriptors import AFTER_STREAMS, OwnedDescriptor, by_reserve
from ..errors import ManagerError, ignoring, pass_on, resource_error
from . import keeper

TIMEOUT = 10.0
"""Seconds to wait for a keeper to begin."""

GRACE_VARIABLE = "SHAREDTENSOR_MANAGER_GRACE"
DEFAULT_GRACE = 0.5
INTERPRETER = re.compile(r"(python|pypy|graalpy)[\d.]*[a-z]*(-[a-z]+)?")

_id = ""
"""The id of this process's program; empty before there is one."""

_user = os.geteuid()
"""The user of that program: its keeper removes no files of others."""

_presence: OwnedDescriptor | None = None
"""The end of a pipe, by which the keeper learns that no process needs it any more."""

_own_places = ""
_count = itertools.count()


def current() -> str:
    """Return the program of this process, whose keeper runs.

    Its id is that of no other program, earlier ones included. Clauses ENV-6, ENV-8,
    MGR-5, MGR-14.

    Raises `ManagerError` or `ResourceError`.
    """
    global _id, _user
    if not _id or _user != os.geteuid():
        _id, _user = os.urandom(6).hex(), os.geteuid()
    if not has_keeper(_id):
        start_keeper(_id)
    return _id


def adopt(program: str) -> None:
    """Belong to the parent's program, unless this process has one. Clause START-6."""
    global _id, _user
    if not _id:
        _id, _user = program, os.geteuid()


def new_token() -> str:
    """Return what tells a name from all others: a random part, program, and byte.

    Names that are made one after the other have bytes one after the other, so that the
    kernel keeps one lock for many of them. Clauses FS-5, SEC-3.
    """
    place = next(_count) & 0xFFFFFF
    return f"{os.urandom(4).hex()}{current()}{_own_places}{place:06x}"


def _draw_places() -> None:
    """Have this process make names of its own."""
    global _own_places
    _own_places = os.urandom(3).hex()


_draw_places()
os.register_at_fork(after_in_child=_draw_places)


def _leave() -> None:
    """At the end of this process: see that a keeper is left. Clauses MGR-13, MGR-14."""
    if _id:
        with ignoring(ManagerError, OSError):
            current()


def _leave_at_exit(ignored: object = None) -> None:
    util.Finalize(None, _leave, exitpriority=0)


# A child of `os.fork` ignores what its parent has registered, and one of
# `multiprocessing` forgets that, and what was registered at the fork as well.
_leave_at_exit()
os.register_at_fork(after_in_child=_leave_at_exit)
util.register_after_fork(keeper, _leave_at_exit)


def _locks() -> OwnedDescriptor:
    """Return a new description of the directory of segments. Raises `ResourceError`."""
    try:
        what = keeper.DIRECTORY, keeper.OPEN_LOCKS
        return by_reserve(OwnedDescriptor.opened_by, os.open, *what)
    except OSError as error:
        pass_on(error)
        raise resource_error(error.errno, f"Opening {keeper.DIRECTORY}") from error


def has_keeper(program: str) -> bool:
    """Return whether the keeper of a program runs.

    Raises `ResourceError`, also where it does not run and would find no directory.
    """
    locks = _locks()
    try:
        if keeper.is_locked(locks.fd, keeper.byte_of_keeper(program)):
            return True
        if not os.fstat(locks.fd).st_nlink:
            raise resource_error(errno.ENOENT, f"Opening {keeper.DIRECTORY}")
        return False
    finally:
        locks.close()


# Messages


def in_flight(names: Sequence[str]) -> OwnedDescriptor:
    """Return a descriptor that holds names until all copies of it are closed.

    The kernel closes the copies of processes that are killed, and of messages that
    nobody can receive any more. Clauses FS-10, LIFE-2, LIFE-5, LIFE-13, LIFE-14.
    Raises `ResourceError`.
    """
    locks = _locks()
    try:
        for name in names:
            keeper.lock_byte(locks.fd, keeper.byte_of(name))
    except OSError as error:
        locks.close()
        pass_on(error)
        doing = "Sending the names of shared storages"
        raise resource_error(error.errno, doing) from error
    return locks


def remove_unless_held(name: str) -> None:
    """Remove a name that this process has dropped, unless somebody else has it.

    Where that is refused the keeper does it. Clauses FS-2, LIFE-11, MGR-18.
    """
    with ignoring(OSError):
        locks = _locks()
        try:
            if not keeper.is_locked(locks.fd, keeper.byte_of(name)):
                _remove(name, locks.fd)
        finally:
            locks.close()


def _remove(name: str, locks: int) -> None:
    """Do what `keeper.is_removed` does. Clause FAULT-2.

    Here a signal handler may raise an exception, and a forked child must not keep the
    file, which may be locked.
    """
    opened = functools.partial(os.open, dir_fd=locks)
    file = OwnedDescriptor.opened_by(opened, name, keeper.OPEN)
    try:
        keeper.is_unlinked(name, locks, file.fd)
    finally:
        file.close()


# The keeper


def start_keeper(program: str) -> None:
    """Start the keeper of a program, and wait until it runs.

    Two processes that do this at once get two, which does no harm. Clauses MGR-3,
    MGR-17, MGR-19. Raises `ManagerError` or `ResourceError`.
    """
    global _presence
    try:
        theirs, ours = OwnedDescriptor.pair_opened_by(os.pipe)
        lifted = fcntl.F_DUPFD_CLOEXEC, AFTER_STREAMS
        passed = OwnedDescriptor.opened_by(fcntl.fcntl, theirs.fd, *lifted)
        process = subprocess.Popen(**options(program, passed.fd))
    except OSError as error:
        pass_on(error)
        if error.filename:
            raise ManagerError(f"The manager cannot be started: {error}") from error
        raise resource_error(error.errno, "Starting the manager") from error
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
            f"that {interpreter()!r} runs Python and can read {keeper.__file__!r}, and "
            f"that {keeper.DIRECTORY} exists."
        )
    ours.keep(in_children=True)
    _presence = ours


def options(program: str, presence: int) -> dict[str, Any]:
    """Return the arguments of `Popen` for a keeper.

    It inherits nothing but the pipe, and is in a session of its own. Clauses MGR-1,
    MGR-4, MGR-6, MGR-15.
    """
    isolated = [interpreter(), "-I", "-S", *script(), keeper.TITLE]
    return {
        "args": [*isolated, program, str(grace_period()), str(presence)],
        "pass_fds": [presence],
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "cwd": "/",
        "start_new_session": True,
    }


def script() -> list[str]:
    """Return what the interpreter runs: the file, or what it has in a zip archive."""
    path = os.path.abspath(keeper.__file__)
    if os.path.isfile(path):
        return [path]
    return ["-c", inspect.getsource(keeper)]


def interpreter() -> str:
    """Return the Python that `multiprocessing` starts its children with.

    Where that is no Python, the one that runs this program. In a frozen program, and in
    one that embeds Python, either may be the program itself, which is never started as
    a manager. Raises `ManagerError` if there is no other.
    """
    found = spawn.get_executable(), sys.executable
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
    """Return for how long a keeper without processes waits for new ones.

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
