"""Host memory that processes share without a name in any directory.

Both the simulated device and the reference counts of the protocol live in
unnamed memory (`memfd_create`) that other processes of the user reach through
`/proc/<pid>/fd/<n>`. The kernel gives it back when the last process that has it
open ends, however it ends, so there is nothing to remove and nobody who could
fail to remove it. The price is that one process which has the file open must be
alive when another one joins; device memory asks for that anyway.

Pids and descriptors are used again, so a file begins with a random token that
is compared after opening.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, TypeVar, cast

from ..atomic import Arguments, Result
from ..descriptors import OwnedDescriptor, lock_file
from ..errors import ResourceError, ignoring, pass_on
from .errors import DeviceError, MakerGoneError

TOKEN_BYTES = 16
PREFIX = "sharedtensor-"
TIMEOUT = 30.0
"""Seconds to wait for a lock: its holders keep it for single steps."""

Method = TypeVar("Method", bound=Callable[..., Any])


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

    The lock is `flock`: the kernel releases it when its holder dies. A forked child
    that had the descriptor would keep the lock; there it is closed.
    """

    def __init__(self, owned: OwnedDescriptor) -> None:
        self._owned = owned
        size = os.fstat(owned.fd).st_size
        # mmap keeps a descriptor of its own; through another open file, so that
        # a forked child which inherits the mapping does not inherit the lock.
        with closing(self.reopened()) as other:
            self.memory = mmap.mmap(other.fd, size)
        self.token = bytes(self.memory[:TOKEN_BYTES])

    @classmethod
    def create(cls, name: str, nbytes: int) -> SharedFile:
        """Make a file of zeros, apart from its token, that cannot change its size."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        owned = OwnedDescriptor.opened_by(os.memfd_create, PREFIX + name, flags)
        os.fchmod(owned.fd, stat.S_IRUSR | stat.S_IWUSR)
        os.ftruncate(owned.fd, nbytes)
        os.pwrite(owned.fd, secrets.token_bytes(TOKEN_BYTES), 0)
        fcntl.fcntl(owned.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return cls(owned)

    @classmethod
    def join(cls, address: Address, name: str) -> SharedFile:
        """Open the file of another process.

        Raises MakerGoneError if there is no file with this token at the address.
        """
        owned = OwnedDescriptor()
        with ignoring(OSError):
            owned.open_at(address.path, f"{PREFIX}{name} ")
        if owned.fd < 0 or os.pread(owned.fd, TOKEN_BYTES, 0) != address.token:
            raise MakerGoneError(
                f"Process {address.pid} no longer offers its {name}: it has ended or "
                "closed it. Keep the process that sends device tensors alive until "
                "they have been received and dropped."
            )
        return cls(owned)

    @property
    def fd(self) -> int:
        """The descriptor, in this process."""
        fd: int = self._owned.fd
        return fd

    def reopened(self) -> OwnedDescriptor:
        """Return a descriptor that shares no lock with this one: flock(2)."""
        path = f"/proc/self/fd/{self.fd}"
        return OwnedDescriptor.opened_by(os.open, path, os.O_RDWR | os.O_CLOEXEC)

    def is_open_as(self, fd: int) -> bool:
        """Return whether a descriptor refers to this file."""
        return os.path.samestat(os.fstat(fd), os.fstat(self.fd))

    @property
    def address(self) -> Address:
        """Where other processes find the file while this one is alive."""
        return Address(os.getpid(), self._owned.fd, self.token)

    def locked(
        self, work: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result:
        """Return what a function returns that is called under the lock of the file.

        The lock holds against other processes, not against other threads. Raises
        DeviceError if another process keeps it too long.
        """
        try:
            self._lock()
            return work(*arguments)
        finally:
            # No handler runs before this call, which does nothing where it is free.
            fcntl.flock(self._owned.fd, fcntl.LOCK_UN)

    def _lock(self) -> None:
        try:
            lock_file(self._owned.fd, fcntl.LOCK_EX, TIMEOUT, "Locking a shared file")
        except ResourceError as error:
            raise DeviceError(
                f"Another process has kept the lock of a shared file for {TIMEOUT:g} "
                "seconds. Check whether a process that uses the device is stopped."
            ) from error

    def close(self) -> None:
        """Give up the descriptor; the mapping goes with the last view of it."""
        self._owned.close()


def alone(method: Method) -> Method:
    """Have a method called under the lock of the `file` of its object."""

    @functools.wraps(method)
    def locked(self: Any, *arguments: Any) -> Any:
        return self.file.locked(method, self, *arguments)

    return cast("Method", locked)


def find_in(pid: int, name: str) -> Address | None:
    """Return where a process has a shared file of that name; None if it has none."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        pass_on(error)
        return None
    for number in map(int, descriptors):
        with ignoring(OSError), closing(OwnedDescriptor()) as owned:
            owned.open_at(f"/proc/{pid}/fd/{number}", f"{PREFIX}{name} ")
            return Address(pid, number, os.pread(owned.fd, TOKEN_BYTES, 0))
    return None
