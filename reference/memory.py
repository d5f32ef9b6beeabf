"""Page-aligned memory that can be exchanged for a segment without changing its address.

A storage begins in private anonymous memory, so that a fork copies it (clause START-4).
When it is shared, its bytes are copied into a segment, and the segment is mapped over
the very same pages of the address space. Whoever holds a bare address, such as a NumPy
array, a DLPack consumer or a view, sees the same bytes before and after (clauses SHARE-9
and SHARE-10). Receivers use the same device: they reserve anonymous memory and map the
segment over it, which costs them no second descriptor.

The memory is a Python `mmap` object. Its buffer protocol counts the arrays that use it,
and it is unmapped when the last of them is gone, whatever has become of the storage.

The system calls go through `ctypes.PyDLL`, which keeps the interpreter's lock: no other
Python thread can write between the copy and the mapping, where its write would be lost.
"""

import ctypes
import mmap
import os

import numpy as np

from .errors import resource_error

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.pwrite.restype = ctypes.c_ssize_t
_libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]

MAP_FIXED = 0x10
FAILED = ctypes.c_void_p(-1).value
PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
LARGEST_WRITE = 1 << 30


class Memory:
    """Private, zeroed, page-aligned memory of at least `nbytes` bytes.

    `bytes` is an array over exactly `nbytes` of it, and `address` where it begins.
    Raises `ResourceError` when the system has no memory or no mapping left.
    """

    __slots__ = ("address", "bytes", "capacity")

    def __init__(self, nbytes: int):
        self.capacity = whole_pages(nbytes)
        try:
            pages = mmap.mmap(-1, self.capacity, flags=PRIVATE, prot=PROTECTION)
        except OSError as error:
            doing = f"Reserving {nbytes} bytes for a storage"
            raise resource_error(error.errno, doing) from error
        self.bytes = np.ndarray((nbytes,), np.uint8, buffer=pages)
        self.address = self.bytes.__array_interface__["data"][0]


def whole_pages(nbytes: int) -> int:
    """The size of the pages that hold `nbytes`; a storage has at least one page.

    So a storage without bytes is shared like any other. Clause VIEW-7.
    """
    pages = -(-nbytes // mmap.PAGESIZE)
    return max(pages, 1) * mmap.PAGESIZE


def write(fd: int, address: int, size: int) -> None:
    """Write `size` bytes of memory into the segment `fd`, allocating all its pages.

    Writing is faster than copying through a mapping, and lack of memory is an error of
    the call here, where it would be a SIGBUS there. Raises `ResourceError`.
    """
    done = 0
    while done < size:
        part = min(size - done, LARGEST_WRITE)
        written = _libc.pwrite(fd, address + done, part, done)
        if written <= 0:
            raise _refused(f"Writing {size} bytes into a segment")
        done += written


def remap(address: int, fd: int, size: int, sharing: int = mmap.MAP_SHARED) -> None:
    """Map the segment `fd` over the `size` bytes at `address`. Clauses SHARE-9, SHARE-10.

    The old pages go and nobody's address changes. Raises `ResourceError`.
    """
    flags = sharing | MAP_FIXED
    if _libc.mmap(address, size, PROTECTION, flags, fd, 0) == FAILED:
        raise _refused(f"Mapping a segment of {size} bytes")


def _refused(doing: str) -> OSError:
    code = ctypes.get_errno()
    return resource_error(code, doing) if code else OSError(os.strerror(code), doing)
