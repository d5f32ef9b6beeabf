"""The keeper: a process that removes the names that no process and no message holds.

It is started as a script, with Python alone, by the first process of a program that
shares by name:

    python -I -S keeper.py sharedtensor-manager PROGRAM GRACE PRESENCE

It looks at the names of its program several times a second. It ends when no name is
left and nobody has the other end of the pipe PRESENCE, a descriptor, any more, or the
directory of segments is another one by now.

This module is also imported by these processes, for what both have to agree on.
"""

import errno
import fcntl
import os
import select
import struct
import sys
import time

TITLE = "sharedtensor-manager"
DIRECTORY = "/dev/shm"
PREFIX = "sharedtensor-"

PROGRAM = slice(8, 20)
PLACE = slice(20, 32)
"""The hexadecimal digits of the token in a name that say its program and its byte.

Those before them are random.
"""

KEEPERS = 1 << 48
"""The bytes from here on stand for the keepers of programs."""

INTERVAL = 0.15
"""Seconds between two looks at the names."""

LOAD = 0.05
"""The largest part of the time that the keeper spends with looking at names."""

OPEN_LOCKS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_LOCK = struct.Struct("@hhqqi4x")
"""A `struct flock` of fcntl(2), as all 64-bit Linux has it."""


def token_of(name: str) -> str:
    """Return the part of a name that is its own."""
    return name.rpartition("-")[2]


def program_of(name: str) -> str:
    """Return the program that a name belongs to."""
    return token_of(name)[PROGRAM]


def byte_of(name: str) -> int:
    """Return the byte of the directory that stands for a name."""
    return int(token_of(name)[PLACE], 16)


def byte_of_keeper(program: str) -> int:
    """Return the byte of the directory that stands for the keeper of a program."""
    return KEEPERS + int(program, 16)


def open_locks() -> int:
    """Return a new description of the directory of segments, to lock bytes of it.

    What is mounted there may change. So names are found by this description alone.
    """
    return os.open(DIRECTORY, OPEN_LOCKS)


def lock_byte(locks: int, byte: int) -> None:
    """Take a shared lock of a byte, for as long as this file description is open."""
    wanted = _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, byte, 1, 0)
    fcntl.fcntl(locks, fcntl.F_OFD_SETLK, wanted)


def is_locked(locks: int, byte: int) -> bool:
    """Return whether another open file description has a lock of a byte."""
    wanted = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    found = fcntl.fcntl(locks, fcntl.F_OFD_GETLK, wanted)
    kind: int = _LOCK.unpack(found)[0]
    return kind != fcntl.F_UNLCK


def is_removed(name: str, locks: int) -> bool:
    """Remove a name that no process and no message holds; return whether it is gone."""
    if is_locked(locks, byte_of(name)):
        return False
    try:
        opened = os.open(name, OPEN, dir_fd=locks)
    except FileNotFoundError:
        return True
    try:
        return is_unlinked(name, locks, opened)
    finally:
        os.close(opened)


def is_unlinked(name: str, locks: int, opened: int) -> bool:
    """Remove a name whose file is open and whose byte was free; return whether it is.

    Who receives a message has the lock of the file before the message is gone. So the
    byte is looked at once more when nobody can take that lock. Clauses FS-8, MGR-11.
    """
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EAGAIN:  # or it is an exception of a signal handler
            raise
        return False
    if is_locked(locks, byte_of(name)):
        return False
    status = os.fstat(opened)
    # Else it was removed, or replaced by somebody else's.
    if status.st_nlink and status.st_uid == os.geteuid():
        os.unlink(name, dir_fd=locks)
    return True


def sweep(program: str, locks: int) -> int:
    """Remove the names of a program that nobody holds; return how many are left.

    Clauses FS-9, LIFE-8, LIFE-9, LIFE-10, MGR-2, MGR-10.
    """
    left = 0
    for name in os.listdir(locks):
        if name.startswith(PREFIX) and program_of(name) == program:
            left += not _is_swept(name, locks)
    return left


def _is_swept(name: str, locks: int) -> bool:
    """Return whether a name is gone, or not to be removed by this process."""
    try:
        return is_removed(name, locks)
    except OSError as error:
        # The other errors mean that it is no file of ours. These pass; that of access
        # does when the process that makes the file has set its mode.
        passing = errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES
        return error.errno not in passing
    except ValueError:  # its token is none
        return True


def is_elsewhere(locks: int) -> bool:
    """Return whether another directory is in the place of this one, and can be used."""
    try:
        there = os.stat(DIRECTORY)
    except FileNotFoundError:
        return False
    return there.st_nlink > 0 and not os.path.samestat(os.fstat(locks), there)


def keep(program: str, locks: int, grace: float, presence: int) -> None:
    """Remove names until no process has needed the keeper for `grace` seconds.

    It knows nothing that would be lost with it. Clauses FAULT-5, MGR-3.
    """
    poll = select.poll()
    poll.register(presence, 0)  # its end is always reported
    pause, last_use = INTERVAL, time.monotonic()
    while True:
        is_alone = bool(poll.poll(0))
        time.sleep(pause)
        begin = time.monotonic()
        try:
            if sweep(program, locks) or not (is_alone or is_elsewhere(locks)):
                last_use = begin
            elif begin - last_use > grace:
                return
        except (OSError, MemoryError):
            pass  # for want of something, which may pass
        pause = max(INTERVAL, (time.monotonic() - begin) / LOAD)


def main(program: str, grace: float, presence: int) -> None:
    """Keep the names of a program, in a process that this one forks."""
    locks = open_locks()
    lock_byte(locks, byte_of_keeper(program))
    if not os.fork():
        keep(program, locks, grace, presence)


if __name__ == "__main__":
    main(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
    os._exit(0)
