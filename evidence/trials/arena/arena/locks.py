"""Open-file-description locks: who needs a block is what the kernel knows."""
import ctypes
import errno
import fcntl
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_fallocate = _libc.fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]

_FLOCK = struct.Struct("@hhqqi4x")
EVERYTHING = (0, 0)  # to the end of all locks


def _ask(fd, command, kind, start, length):
    request = _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
    return _FLOCK.unpack(fcntl.fcntl(fd, command, request))


def hold(fd, start, length=1):
    """Take a shared lock; it waits for nobody but a reclaimer, which is refused."""
    _ask(fd, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, start, length)


def try_own(fd, start, length=1):
    """Take the exclusive lock; false if anybody else holds."""
    try:
        _ask(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, start, length)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def let_go(fd, start, length=1):
    _ask(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, start, length)


def is_held_by_another(fd, start, length=1):
    return _ask(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, length)[0] != fcntl.F_UNLCK


def reopen(fd):
    """Return another description of the same file."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def map_file(fd, length):
    address = _mmap(None, length, 3, 1, fd, 0)  # PROT_READ|PROT_WRITE, MAP_SHARED
    if address is None or address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {length} bytes: {os.strerror(number)}")
    return address


def unmap(address, length):
    _munmap(address, length)


def punch(fd, start, length):
    """Give whole pages back; a failure costs memory, not meaning."""
    for _ in range(100):
        if _fallocate(fd, 3, start, length) == 0 or ctypes.get_errno() != errno.EINTR:
            return
