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

Several memories can move into one segment: a `Group`. Each keeps its address, so each
has pages of its own there. What lies side by side in the address space, as memories do
that were made one after another, is one piece: written by one call and mapped by one.
"""

import ctypes
import functools
import itertools
import mmap
import operator
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .errors import resource_error


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, offset = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long
    library.mmap.restype = pointer
    library.mmap.argtypes = [pointer, size, *[ctypes.c_int] * 3, offset]
    for copy in (library.pwrite, library.pread):
        copy.restype = ctypes.c_ssize_t
        copy.argtypes = [ctypes.c_int, pointer, size, offset]
    return library


# The first lets other threads run during a call, the second does not.
_libc = _declare(ctypes.CDLL(None, use_errno=True))
_libc_alone = _declare(ctypes.PyDLL(None, use_errno=True))

MAP_FIXED = 0x10
PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
LARGEST_WRITE = 1 << 30


class Piece(NamedTuple):
    """Bytes at an address that move to one place in a segment, and their pages."""

    address: int
    nbytes: int
    capacity: int
    offset: int


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

    @property
    def pieces(self) -> list[Piece]:
        """What moves into a segment: all of it, to the beginning."""
        return [Piece(self.address, self.bytes.nbytes, self.capacity, 0)]

    def part(self, offset: int, nbytes: int) -> "Memory":
        """Return the `nbytes` at `offset` as memory that keeps all of this alive."""
        made = Memory.__new__(Memory)
        made.capacity, made.unsettled = nbytes, False
        made.bytes = self.bytes[offset : offset + nbytes]
        made.address = self.address + offset
        return made


class Group:
    """Memories that move into one segment, each to whole pages of its own there.

    `offsets` says where each of them begins in it, `nbytes` how large it is. The
    memories are kept alive by whoever moves them.
    """

    __slots__ = ("nbytes", "offsets", "pages", "unsettled")

    def __init__(self, memories: Sequence[Memory]):
        self.pages = sorted((memory.address, memory.capacity) for memory in memories)
        begins, offset = {}, 0
        for address, size in self.pages:
            begins[address] = offset
            offset += size
        self.offsets = [begins[memory.address] for memory in memories]
        self.nbytes = offset
        self.unsettled = False

    @property
    def pieces(self) -> list[Piece]:
        """What moves: neighbours in the address space are one piece."""
        pieces = []
        (begin, _), offset = self.pages[0], 0
        end = begin
        for address, size in self.pages:
            if address != end:
                pieces.append(Piece(begin, end - begin, end - begin, offset))
                begin, offset = address, offset + end - begin
                end = address
            end += size
        pieces.append(Piece(begin, end - begin, end - begin, offset))
        return pieces


def whole_pages(nbytes: int) -> int:
    """Return the size of the pages that hold `nbytes`; a storage has at least one.

    So a storage without bytes is shared like any other. Clause VIEW-7.
    """
    pages = -(-nbytes // mmap.PAGESIZE)
    return max(pages, 1) * mmap.PAGESIZE


def write(fd: int, source: Memory | Group) -> None:
    """Write the bytes into the segment `fd`, which takes all the memory it needs.

    Writing is faster than copying through a mapping, and lack of memory is an error of
    the call here, where it would be a SIGBUS there. The segment becomes as large as the
    bytes. Clauses FAIL-3, FAIL-4, FAIL-5, FS-7. Raises `ResourceError`.
    """
    source.unsettled = len(sys._current_frames()) > 1
    for piece in source.pieces:
        _write_piece(fd, piece)


def _write_piece(fd: int, piece: Piece) -> None:
    size, done = piece.nbytes, 0
    while done < size:
        part = min(size - done, LARGEST_WRITE)
        written = _libc.pwrite(fd, piece.address + done, part, piece.offset + done)
        if written <= 0:
            raise _refused(f"Writing {size} bytes into a segment")
        done += written


def remap(target: Memory | Group, fd: int, sharing: int = mmap.MAP_SHARED) -> None:
    """Map the segment `fd` over memory in place. Clauses SHARE-9, SHARE-10.

    The old pages go and nobody's address changes. Raises `ResourceError`, and then the
    memory is as it was: clause FAIL-6.
    """
    pieces = target.pieces
    if len(pieces) == 1 and not target.unsettled:
        _remap_piece(pieces[0], fd, sharing | MAP_FIXED)
        return
    calls, results = _rewrite(fd, pieces) if target.unsettled else ([], [])
    written = len(calls)
    for piece in pieces:
        calls.append(_mapping(piece, fd, sharing | MAP_FIXED))
        results.append(piece.address)
    done = _call_each(calls, results)
    if done < len(calls):
        error = _refused(
            f"Mapping a segment of {sum(p.capacity for p in pieces)} bytes"
        )
        _take_back(fd, pieces[: max(done - written, 0)])
        raise error
    target.unsettled = False


def _remap_piece(piece: Piece, fd: int, flags: int) -> None:
    """Map a file over the pages of one piece, as nearly every storage is."""
    address, _, capacity, offset = piece
    found = _libc_alone.mmap(address, capacity, PROTECTION, flags, fd, offset)
    if found != address:
        raise _refused(f"Mapping a segment of {capacity} bytes")


def _mapping(piece: Piece, fd: int, flags: int) -> Callable[[], int]:
    """Return the call that maps a file over the pages of a piece."""
    arguments = piece.address, piece.capacity, PROTECTION, flags, fd, piece.offset
    return functools.partial(_libc_alone.mmap, *arguments)


def _call_each(calls: Sequence[Callable[[], int]], results: Sequence[int]) -> int:
    """Make calls until one does not return what it should; return how many did.

    Lazy iterators, all of them in C: between the calls the interpreter never gets to
    switch threads.
    """
    right = map(operator.eq, map(operator.call, calls), results)
    return len(list(itertools.takewhile(operator.truth, right)))


def _rewrite(
    fd: int, pieces: Sequence[Piece]
) -> tuple[list[Callable[[], int]], list[int]]:
    """Return the calls that write the bytes again, and what each returns if it can."""
    calls: list[Callable[[], int]] = []
    sizes = []
    for address, size, _, offset in pieces:
        for begin in range(0, size, LARGEST_WRITE):
            part = min(size - begin, LARGEST_WRITE)
            arguments = fd, address + begin, part, offset + begin
            calls.append(functools.partial(_libc_alone.pwrite, *arguments))
            sizes.append(part)
    return calls, sizes


def _take_back(fd: int, pieces: Sequence[Piece]) -> None:
    """Make pieces private again that were mapped before another could not be.

    Clause FAIL-6.
    """
    calls: list[Callable[[], int]] = []
    results = []
    for piece in pieces:
        read = fd, piece.address, piece.nbytes, piece.offset
        calls.append(_mapping(piece, -1, PRIVATE | MAP_FIXED))
        calls.append(functools.partial(_libc_alone.pread, *read))
        results += [piece.address, piece.nbytes]
    _call_each(calls, results)


def _refused(doing: str) -> OSError:
    code = ctypes.get_errno()
    return resource_error(code, doing) if code else OSError(os.strerror(code), doing)
