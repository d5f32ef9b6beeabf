"""Page-aligned memory that can be exchanged for a segment without changing its address.

A storage begins in private anonymous memory, so that a fork copies it (clause START-4).
When it is shared, its bytes are copied into a segment, and the segment is mapped over
the very same pages of the address space. Whoever holds a bare address, such as a NumPy
array, a DLPack consumer or a view, sees the same bytes before and after (clauses
SHARE-9 and SHARE-10). Receivers use the same device: they reserve anonymous memory and
map the segment over it, which costs them no second descriptor.

The memory is a Python `mmap` object. Its buffer protocol counts the arrays that use it,
and it is unmapped when the last of them is gone, whatever has become of the storage.

Threads may write while the bytes are copied, and no write must be lost. So with other
threads about, the bytes are copied twice: first while the threads go on, which also
takes all the memory that the segment needs, then again together with the mapping, in
one call from the interpreter's view, so that no Python code runs between the two.
"""

import ctypes
import functools
import mmap
import operator
import os
import sys
from collections.abc import Callable

from .errors import resource_error


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, offset = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long
    library.mmap.restype = pointer
    library.mmap.argtypes = [pointer, size, *[ctypes.c_int] * 3, offset]
    library.pwrite.restype = ctypes.c_ssize_t
    library.pwrite.argtypes = [ctypes.c_int, pointer, size, offset]
    return library


# The first lets other threads run during a call, the second does not.
_libc = _declare(ctypes.CDLL(None, use_errno=True))
_libc_alone = _declare(ctypes.PyDLL(None, use_errno=True))

MAP_FIXED = 0x10
PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
LARGEST_WRITE = 1 << 30


class Memory:
    """Private, zeroed, page-aligned memory of at least `nbytes` bytes.

    `bytes` is a view of exactly `nbytes` of it, and `address` where it begins.
    `unsettled` says that threads may have written since `write` copied the bytes.
    Raises `ResourceError` when the system has no memory or no mapping left: clause
    FAIL-7.
    """

    __slots__ = ("address", "bytes", "capacity", "unsettled")

    def __init__(self, nbytes: int):
        self.capacity = whole_pages(nbytes)
        self.unsettled = False
        try:
            pages = mmap.mmap(-1, self.capacity, flags=PRIVATE, prot=PROTECTION)
        except OSError as error:
            doing = f"Reserving {nbytes} bytes for a storage"
            raise resource_error(error.errno, doing) from error
        self.bytes = memoryview(pages)[:nbytes]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(pages))


def whole_pages(nbytes: int) -> int:
    """Return the size of the pages that hold `nbytes`; a storage has at least one.

    So a storage without bytes is shared like any other. Clause VIEW-7.
    """
    pages = -(-nbytes // mmap.PAGESIZE)
    return max(pages, 1) * mmap.PAGESIZE


def write(fd: int, source: Memory) -> None:
    """Write the bytes into the segment `fd`, which takes all the memory it needs.

    Writing is faster than copying through a mapping, and lack of memory is an error of
    the call here, where it would be a SIGBUS there. The segment becomes as large as the
    bytes. Clauses FAIL-3, FAIL-4, FAIL-5, FS-7. Raises `ResourceError`.
    """
    source.unsettled = len(sys._current_frames()) > 1
    address, size, done = source.address, source.bytes.nbytes, 0
    while done < size:
        part = min(size - done, LARGEST_WRITE)
        written = _libc.pwrite(fd, address + done, part, done)
        if written <= 0:
            raise _refused(f"Writing {size} bytes into a segment")
        done += written


def remap(target: Memory, fd: int, sharing: int = mmap.MAP_SHARED) -> None:
    """Map the segment `fd` over memory in place. Clauses SHARE-9, SHARE-10.

    The old pages go and nobody's address changes. Raises `ResourceError`, and then the
    memory is as it was: clause FAIL-6.
    """
    calls, results = _rewrite(fd, target) if target.unsettled else ([], [])
    flags, address, size = sharing | MAP_FIXED, target.address, target.capacity
    arguments = address, size, PROTECTION, flags, fd, 0
    calls.append(functools.partial(_libc_alone.mmap, *arguments))
    results.append(address)
    # Lazy iterators, all of them in C: the calls are made in turn until one fails, and
    # between them the interpreter never gets to switch threads.
    if not all(map(operator.eq, map(operator.call, calls), results)):
        raise _refused(f"Mapping a segment of {size} bytes")
    target.unsettled = False


def _rewrite(fd: int, source: Memory) -> tuple[list[Callable[[], int]], list[int]]:
    """Return the calls that write the bytes again, and what each returns if it can."""
    size = source.bytes.nbytes
    begins = range(0, size, LARGEST_WRITE)
    parts = [min(size - begin, LARGEST_WRITE) for begin in begins]
    calls: list[Callable[[], int]] = [
        functools.partial(_libc_alone.pwrite, fd, source.address + begin, part, begin)
        for begin, part in zip(begins, parts, strict=True)
    ]
    return calls, parts


def _refused(doing: str) -> OSError:
    code = ctypes.get_errno()
    return resource_error(code, doing) if code else OSError(os.strerror(code), doing)
