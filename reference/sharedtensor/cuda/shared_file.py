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

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
import weakref
from collections.abc import Iterator
from typing import NamedTuple

from .errors import MakerGoneError

TOKEN_BYTES = 16
PREFIX = "sharedtensor-"


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
        except OSError:
            raise gone from None
        if os.pread(descriptor, TOKEN_BYTES, 0) != address.token:
            os.close(descriptor)
            raise gone
        return cls(descriptor)

    @property
    def address(self) -> Address:
        """Where other processes find the file while this one is alive."""
        return Address(os.getpid(), self._descriptor, self.token)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock against other processes, not against other threads."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give up the descriptor; the mapping goes with the last view of it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()


def find_in(pid: int, name: str) -> Address | None:
    """Return where a process has a shared file of that name; None if it has none."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    for number in map(int, descriptors):
        path = f"/proc/{pid}/fd/{number}"
        with contextlib.suppress(OSError):
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
