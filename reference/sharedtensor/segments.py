"""System calls on segments: make, seal, map, open and verify them.

A segment is a memory file without a name, or a file in `/dev/shm`. Opening trusts
nothing in a handle: it was written by another process, and what it names may have been
replaced since.
"""

import errno
import fcntl
import mmap
import os
import re
import stat

from .descriptors import OwnedDescriptor, lock_file
from .errors import HandleError, pass_on, resource_error
from .names import keeper, program

DIRECTORY = keeper.DIRECTORY
TO_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
TO_CREATE = TO_OPEN | os.O_CREAT | os.O_EXCL
NAME = re.compile(r"sharedtensor-[0-9]+-[0-9a-f]{32}")
TIMEOUT = 10.0  # seconds for another process to unlock a file
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def new_token() -> str:
    """Return what tells a segment from all others, and cannot be guessed.

    Clauses FS-5, SEC-3.
    """
    return os.urandom(16).hex()


def new_name() -> str:
    """Return a name that says what it is and which process made it.

    That is for people to read: no code looks at the process id. Clauses FS-4, FS-5,
    ENV-4.
    """
    return f"{keeper.PREFIX}{os.getpid()}-{program.new_token()}"


def permissions() -> int:
    """Return who may open the file of a segment: its owner alone. Clause SEC-1."""
    return 0o600


def create_unnamed(token: str, owner: OwnedDescriptor) -> int:
    """Return a new memory file without a name, which is the owner's.

    No program that this process starts or becomes inherits it. Clauses FD-1, FD-5,
    LIFE-23. Raises `ResourceError`: clauses FAIL-1, ENV-3.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        name = f"sharedtensor-{token}"
        return owner.open(os.memfd_create, name, flags)
    except OSError as error:
        pass_on(error)
        raise resource_error(error.errno, "Making a segment") from error


def seal(fd: int, nbytes: int) -> None:
    """Fix the size of a new memory file, so that no access can become a SIGBUS.

    Clauses FAIL-4, FAIL-6. Raises `ResourceError`.
    """
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        pass_on(error)
        doing = f"Making a segment of {nbytes} bytes"
        raise resource_error(error.errno, doing) from error
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)


def create_named(name: str) -> OwnedDescriptor:
    """Return a new file of that name, which this process holds by its lock.

    Clauses FS-2, SEC-1, SEC-4, MGR-2, MGR-9, FAIL-3, FAIL-8, ENV-1. Raises
    `ResourceError`.
    """
    path = f"{DIRECTORY}/{name}"
    try:
        owned = OwnedDescriptor.opened_by(os.open, path, TO_CREATE, permissions())
        os.fchmod(owned.fd, permissions())  # the umask does not decide
    except OSError as error:
        pass_on(error)
        raise resource_error(error.errno, f"Making the segment {path}") from error
    if not is_held(owned, name):  # a keeper came before the lock
        owned.close()
        return create_named(name)
    return owned


def open_named(name: str) -> OwnedDescriptor:
    """Return the file of a name that came in a message; this process holds it then.

    Nothing is made where it is not found. Clauses FS-2, FS-3, FS-8, LIFE-2, SEC-6,
    ENV-5. Raises `HandleError` or `ResourceError`.
    """
    path = f"{DIRECTORY}/{name}"
    try:
        owned = OwnedDescriptor.opened_by(os.open, path, TO_OPEN)
    except FileNotFoundError as error:
        pass_on(error)
        raise _gone(path) from error
    except OSError as error:
        pass_on(error)
        if error.errno == errno.ELOOP:
            raise HandleError(
                f"{path} is a symbolic link. Somebody has replaced the segment; it is "
                "refused."
            ) from error
        raise resource_error(error.errno, f"Opening the segment {path}") from error
    if not is_held(owned, name):
        owned.close()
        raise _gone(path)
    return owned


def _gone(path: str) -> HandleError:
    return HandleError(
        f"The segment {path} is gone: every process that held it has ended, or the "
        f"sender has another {DIRECTORY}. Keep a tensor over it until the receiver has "
        "its own; between containers, use the strategy 'file_descriptor'."
    )


def is_held(owned: OwnedDescriptor, name: str) -> bool:
    """Take the lock of a file for this process; return False if its name is gone.

    The mapping of the file keeps the lock when the descriptor is closed. Raises
    `HandleError` or `ResourceError`.
    """
    if not stat.S_ISREG(os.fstat(owned.fd).st_mode):
        raise _replaced(name)
    doing = "Locking the file of a segment"
    lock_file(owned.fd, fcntl.LOCK_SH, TIMEOUT, doing)
    return os.fstat(owned.fd).st_nlink > 0


def _replaced(name: str) -> HandleError:
    return HandleError(
        f"{DIRECTORY}/{name} is not a regular file of this user. Somebody has "
        "replaced the segment; it is refused."
    )


def verify_name(token: str) -> None:
    """Verify that a token is the name of a segment, and no path to anything else.

    Clause SEC-8. Raises `HandleError`.
    """
    if not NAME.fullmatch(token):
        raise HandleError(f"{token!r} is no name of a segment; the handle is forged.")


def verify_unnamed(fd: int, token: str, nbytes: int, inode: int) -> None:
    """Verify that a descriptor is what its handle says: name, inode, size and seals.

    Without the seals its maker could shrink it under its receivers. Clauses SEC-8,
    SEC-10. Raises `HandleError`.
    """
    status = os.fstat(fd)
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")
    except OSError as error:
        pass_on(error)
        raise HandleError(
            f"The descriptor that came for segment {token} cannot be verified, since "
            f"/proc/self/fd cannot be read: {error.strerror}. Mount /proc, or use the "
            "strategy 'file_system'."
        ) from error
    if name != f"/memfd:sharedtensor-{token} (deleted)" or status.st_ino != inode:
        raise HandleError(
            f"The descriptor that came for segment {token} is {name}. The handle is "
            "stale or forged; send the tensor again."
        )
    verify_size(status, token, nbytes)
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
        raise HandleError(f"Segment {token} can be shrunk by others; it is refused.")


def verify_named(fd: int, name: str, nbytes: int) -> None:
    """Verify that a file is regular, this user's, and large enough.

    Clauses SEC-1, SEC-6, SEC-8. Raises `HandleError`.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise _replaced(name)
    verify_size(status, name, nbytes)


def verify_size(status: os.stat_result, token: str, nbytes: int) -> None:
    """Verify that a segment holds the storage. Clause SEC-7. Raises `HandleError`."""
    if not 0 <= nbytes <= status.st_size:
        raise HandleError(
            f"Segment {token} has {status.st_size} bytes, its handle claims {nbytes}. "
            "The handle is stale or forged; send the tensor again."
        )


def verify_part(token: str, nbytes: int, offset: int, size: int) -> None:
    """Verify that a storage lies in its segment of `nbytes` bytes, in whole pages.

    Clause SEC-7. Raises `HandleError`.
    """
    if offset % mmap.PAGESIZE or not 0 <= offset <= offset + size <= nbytes:
        raise HandleError(
            f"A handle claims {size} bytes at {offset} of segment {token}, which has "
            f"{nbytes}. The handle is stale or forged; send the tensor again."
        )
