"""Host memory that processes share without a name in any directory.

Both the simulated device and the reference counts of the protocol live in
unnamed memory (`memfd_create`) that other processes of the user reach through
`/proc/<pid>/fd/<n>`. The kernel gives it back when the last process that has it
open ends, however it ends, so there is nothing to remove and nobody who could
fail to remove it. The price is that one process which has the file open must be
alive when another one joins; device memory asks for that anyway.

Pids and descriptors are used again, so a file begins with a random token that
is compared after opening.

The lock of a file is taken by a ``with`` of C alone: see `atomic`. Otherwise an
exception of a signal handler could leave it taken, and other processes would wait
(clause FAULT-2).
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import itertools
import mmap
import operator
import os
import secrets
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

from .. import atomic
from ..atomic import Arguments, Result
from ..errors import ignoring, pass_on
from .errors import DeviceError, MakerGoneError

TOKEN_BYTES = 16
PREFIX = "sharedtensor-"
TIMEOUT = 30.0
"""Seconds to wait for a lock: its holders keep it for single steps."""
RETRY = 0.0005

_libc = ctypes.CDLL(None)
_flock = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(("flock", _libc))
# It ignores the three arguments of an `__exit__` (see `atomic.between`).
_unlock = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, *[ctypes.py_object] * 3)(
    ("flock", _libc)
)


class Address(NamedTuple):
    """Where a shared file is found: a process, its descriptor, the token."""

    pid: int
    descriptor: int
    token: bytes

    @property
    def path(self) -> str:
        """The path under which the kernel shows the file."""
        return f"/proc/{self.pid}/fd/{self.descriptor}"


class SharedFile:
    """An unnamed file mapped into this process, and a lock on it.

    The lock is `flock`: the kernel releases it when its holder dies.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        size = os.fstat(descriptor).st_size
        # mmap keeps a descriptor of its own; through another open file, so that
        # a forked child which inherits the mapping does not inherit the lock.
        other = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self.memory = mmap.mmap(other, size)
        finally:
            os.close(other)
        self.token = bytes(self.memory[:TOKEN_BYTES])
        _open_files.add(self)

    @classmethod
    def create(cls, name: str, nbytes: int) -> SharedFile:
        """Make a file of zeros, apart from its token, that cannot change its size."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        descriptor = os.memfd_create(PREFIX + name, flags)
        os.fchmod(descriptor, stat.S_IRUSR | stat.S_IWUSR)
        os.ftruncate(descriptor, nbytes)
        os.pwrite(descriptor, secrets.token_bytes(TOKEN_BYTES), 0)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return cls(descriptor)

    @classmethod
    def join(cls, address: Address, name: str) -> SharedFile:
        """Open the file of another process.

        Raises MakerGoneError if there is no file with this token at the address.
        """
        gone = MakerGoneError(
            f"Process {address.pid} no longer offers its {name}: it has ended or "
            "closed it. Keep the process that sends device tensors alive until "
            "they have been received and dropped."
        )
        try:
            if not os.readlink(address.path).startswith(f"/memfd:{PREFIX}{name} "):
                raise gone
            descriptor = os.open(address.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            pass_on(error)
            raise gone from None
        if os.pread(descriptor, TOKEN_BYTES, 0) != address.token:
            os.close(descriptor)
            raise gone
        return cls(descriptor)

    @property
    def address(self) -> Address:
        """Where other processes find the file while this one is alive."""
        return Address(os.getpid(), self._descriptor, self.token)

    def locked(
        self, work: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result:
        """Return what a function returns that is called under the lock of the file.

        The lock holds against other processes, not against other threads. Raises
        DeviceError if another process keeps it too long.
        """
        acquire = functools.partial(any, self._attempts())
        release = functools.partial(_unlock, self._descriptor, fcntl.LOCK_UN)
        return cast("Result", atomic.between(acquire, release, work, *arguments))

    def _attempts(self) -> Iterator[bool]:
        """Try to take the lock whenever it is asked, and say if that went well."""
        how = fcntl.LOCK_EX | fcntl.LOCK_NB
        steps = (_flock, self._descriptor, how), (time.sleep, RETRY)
        calls = itertools.islice(itertools.cycle(steps), 2 * int(TIMEOUT / RETRY))
        made = itertools.starmap(operator.call, calls)
        return itertools.chain(map(functools.partial(operator.eq, 0), made), _refused())

    def close(self) -> None:
        """Give up the descriptor; the mapping goes with the last view of it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()


def _refused() -> Iterator[bool]:
    """Raise when it is asked."""
    raise DeviceError(
        f"Another process has kept the lock of a shared file for {TIMEOUT:g} seconds. "
        "Check whether a process that uses the device is stopped."
    )
    yield False


def find_in(pid: int, name: str) -> Address | None:
    """Return where a process has a shared file of that name; None if it has none."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        pass_on(error)
        return None
    for number in map(int, descriptors):
        path = f"/proc/{pid}/fd/{number}"
        with ignoring(OSError):
            if os.readlink(path).startswith(f"/memfd:{PREFIX}{name} "):
                with open(path, "rb") as file:
                    return Address(pid, number, file.read(TOKEN_BYTES))
    return None


_open_files: weakref.WeakSet[SharedFile] = weakref.WeakSet()


def _close_in_forked_child() -> None:
    # A child that kept the descriptor would keep a lock which its parent held
    # when it died.
    for file in list(_open_files):
        file.close()


os.register_at_fork(after_in_child=_close_in_forked_child)
