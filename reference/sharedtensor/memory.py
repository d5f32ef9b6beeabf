"""Page-aligned memory that can be exchanged for a segment without changing its address.

A storage begins in private anonymous memory, so that a fork copies it (clause START-4).
When it is shared, its bytes are copied into a segment, and the segment is mapped over
the very same pages of the address space. What holds a bare address, such as a NumPy
array, a DLPack consumer or a view, sees the same bytes before and after (clauses
SHARE-9 and SHARE-10). Receivers use the same device: they reserve anonymous memory and
map the segment over it, which costs them no second descriptor.

The memory is a Python `mmap` object. Its buffer protocol counts the arrays that use it,
and it is unmapped when the last of them is gone, whatever has become of the storage.

Signal handlers and other threads may write while the bytes are copied, and no write
must be lost. So `move` copies the bytes and maps the segment in one call of C: no
Python code runs between the two. With other threads about, it copies the bytes before
as well, while the threads go on, which takes all the memory that the segment needs.

The same call of C sets the segment of the storages that move. An exception of a signal
handler arises before it or after it, so it finds the memory private, as it was, or in a
segment that its storage knows.

What writes without the interpreter's lock is not held up: a thread within an operation
of NumPy that has released it, or a thread of another library. What it writes between
the copy and the mapping can be lost, in this process as well, even part of one `+=`.
Nothing orders such a write and the move, and no clause promises it: CHAN-7 is about
what is written when the call has returned. A program waits for such operations on a
tensor before it shares it.

Several memories can move into one segment: a `Group`. Each keeps its address, so each
has pages of its own there. What lies side by side in the address space, as memories do
that were made one after another, is one piece: written by one call and mapped by one.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from . import atomic
from .atomic import Call
from .errors import pass_on, resource_error


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
SHARED = mmap.MAP_SHARED
LARGEST_WRITE = 1 << 30


class Piece(NamedTuple):
    """Bytes at an address that move to one place in a segment, and their pages."""

    address: int
    nbytes: int
    capacity: int
    offset: int


class Memory:
    """Private, zeroed, page-aligned memory of at least `nbytes` bytes.

    `bytes` is a view of exactly `nbytes` of it, and `address` where it begins. Raises
    `ResourceError` when the system has no memory or no mapping left: clause FAIL-7.
    """

    __slots__ = ("address", "bytes", "capacity")

    def __init__(self, nbytes: int):
        self.capacity = whole_pages(nbytes)
        try:
            pages = mmap.mmap(-1, self.capacity, flags=PRIVATE, prot=PROTECTION)
        except OSError as error:
            pass_on(error)
            doing = f"Reserving {nbytes} bytes for a storage"
            raise resource_error(error.errno, doing) from error
        self.bytes = memoryview(pages)[:nbytes]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(pages))

    @property
    def nbytes(self) -> int:
        """How large a segment of it is."""
        return self.bytes.nbytes

    @property
    def offsets(self) -> list[int]:
        """Where it begins in a segment of its own."""
        return [0]

    @property
    def pieces(self) -> list[Piece]:
        """What moves into a segment: all of it, to the beginning."""
        return [Piece(self.address, self.bytes.nbytes, self.capacity, 0)]

    def part(self, offset: int, nbytes: int) -> "Memory":
        """Return the `nbytes` at `offset` as memory that keeps all of this alive."""
        part = Memory.__new__(Memory)
        part.capacity = nbytes
        part.bytes = self.bytes[offset : offset + nbytes]
        part.address = self.address + offset
        return part


class Group:
    """Memories that move into one segment, each to whole pages of its own there.

    `offsets` says where each of them begins in it, `nbytes` how large it is, and
    `bytes` are those of one of them. The caller keeps the memories alive.
    """

    __slots__ = ("bytes", "nbytes", "offsets", "pages")

    def __init__(self, memories: Sequence[Memory]):
        self.bytes = memories[0].bytes
        self.pages = sorted((memory.address, memory.capacity) for memory in memories)
        begins, offset = {}, 0
        for address, size in self.pages:
            begins[address] = offset
            offset += size
        self.offsets = [begins[memory.address] for memory in memories]
        self.nbytes = offset

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


def together(memories: Sequence[Memory]) -> Memory | Group:
    """Return what moves into one segment."""
    return Group(memories) if len(memories) > 1 else memories[0]


def whole_pages(nbytes: int) -> int:
    """Return the size of the pages that hold `nbytes`; a storage has at least one.

    So a storage without bytes is shared like any other. Clause VIEW-7.
    """
    pages = -(-nbytes // mmap.PAGESIZE)
    return max(pages, 1) * mmap.PAGESIZE


def map_segment(target: Memory, fd: int, sharing: int = SHARED) -> None:
    """Map the segment `fd` over memory, whose bytes go. Clauses SHARE-1, SHARE-2.

    Its address stays. Raises `ResourceError`, and then the memory is as it was.
    """
    mapping, *where = _mapping(target.pieces[0], fd, sharing)
    if mapping(*where) != target.address:
        raise _refused(f"Mapping a segment of {target.capacity} bytes")


def move(source: Memory | Group, fd: int, then: Sequence[Call]) -> None:
    """Copy memory into the segment `fd` and map that over it, in place.

    The old pages go, and the address stays. The calls in `then` belong to the move.
    Raises `ResourceError`; then the memory is as it was, and these calls have not been
    made. Clauses SHARE-1, SHARE-9, SHARE-10, THREAD-6, THREAD-8, FAIL-3, FAIL-4,
    FAIL-6, FAIL-9.

    Writing is faster than copying through a mapping, and lack of memory is an error of
    the call, where it would be a SIGBUS there.
    """
    if len(sys._current_frames()) > 1:
        write_bytes(fd, source)
    pieces = source.pieces
    if len(pieces) > 1 or not _move_piece(pieces[0], fd, then):
        _move_pieces(pieces, fd, then)


def _move_piece(piece: Piece, fd: int, then: Sequence[Call]) -> bool:
    """Move one piece, as nearly all memory is; return whether that went well.

    It is faster than `_move_pieces`, and does not say what has gone wrong.
    """
    if not 0 < piece.nbytes <= LARGEST_WRITE:
        return False
    writing = _libc_alone.pwrite, fd, piece.address, piece.nbytes, piece.offset
    calls = writing, _mapping(piece, fd, SHARED), *then
    return all(atomic.are_right(calls, (piece.nbytes, piece.address)))


def _move_pieces(pieces: Sequence[Piece], fd: int, then: Sequence[Call]) -> None:
    calls, results = _writing(fd, pieces)
    written = len(calls)
    undo: list[Call] = []
    for piece in pieces:
        calls += _mapping(piece, fd, SHARED), _noting(undo, piece, fd)
        results += piece.address, None
    calls += *then, (undo.clear,)
    while (made := atomic.call_while_right(calls, results, undo)) < written:
        for piece in pieces:
            _write_piece(fd, piece)  # which says why it cannot, if there is no room
    if made < len(calls):
        nbytes = sum(piece.capacity for piece in pieces)
        raise _refused(f"Mapping a segment of {nbytes} bytes")


def write_bytes(fd: int, source: Memory | Group) -> None:
    """Write the bytes into a segment while other threads go on.

    Raises `ResourceError`. Clauses FAIL-5, FS-7, SHARE-12.
    """
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


def _mapping(piece: Piece, fd: int, sharing: int) -> Call:
    """Return the call that maps a file over the pages of a piece."""
    address, _, capacity, offset = piece
    flags = sharing | MAP_FIXED
    return _libc_alone.mmap, address, capacity, PROTECTION, flags, fd, offset


def _writing(fd: int, pieces: Sequence[Piece]) -> tuple[list[Call], list[int | None]]:
    """Return the calls that write the bytes, and what each returns if it can."""
    calls: list[Call] = []
    sizes: list[int | None] = []
    for address, size, _, offset in pieces:
        for begin in range(0, size, LARGEST_WRITE):
            part = min(size - begin, LARGEST_WRITE)
            calls.append(
                (_libc_alone.pwrite, fd, address + begin, part, offset + begin)
            )
            sizes.append(part)
    return calls, sizes


def _noting(undo: list[Call], piece: Piece, fd: int) -> Call:
    """Return the call that notes how a piece becomes private again. Clause FAIL-6."""
    address, nbytes, _, offset = piece
    reading = _libc_alone.pread, fd, address, nbytes, offset
    return undo.extend, (_mapping(piece, -1, PRIVATE), reading)


def _refused(doing: str) -> OSError:
    code = ctypes.get_errno()
    return resource_error(code, doing) if code else OSError(os.strerror(code), doing)
