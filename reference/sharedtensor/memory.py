"""Page-aligned memory that can be exchanged for a segment without changing its address.

A storage begins in private anonymous memory, so that a fork copies it (clause START-4).
When it is shared, its bytes are copied into a segment, and the segment is mapped over
the very same pages of the address space. Whoever holds a bare address, such as a NumPy
array, a DLPack consumer or a view, sees the same bytes before and after (clauses
SHARE-9 and SHARE-10). Receivers use the same device: they reserve anonymous memory and
map the segment over it, which costs them no second descriptor.

The memory is a Python `mmap` object. Its buffer protocol counts the arrays that use it,
and it is unmapped when the last of them is gone, whatever has become of the storage.

Signal handlers and other threads may write while the bytes are copied, and no write
must be lost. So the bytes are copied and the segment is mapped in one call from the
interpreter's view: no Python code runs between the two. With other threads about, the
bytes are copied before as well, while the threads go on, which takes all the memory
that the segment needs.

The same call says that the memory has moved. An exception of a signal handler arises
before it or after it, so it finds the memory private, as it was, or in a segment that
its storage knows.

What writes without the interpreter's lock is not held up: a thread within an operation
of NumPy that has released it, or a thread of another library. What it writes between
the copy and the mapping can be lost, in this process as well, even part of one `+=`.
Nothing orders such a write and the move, and no clause promises it: CHAN-7 is about
what is written when the call has returned. Whoever shares a tensor waits for such
operations on it first.

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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

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
LARGEST_WRITE = 1 << 30


Call = tuple[Any, ...]
"""A function that is no Python code, and its arguments."""

_exhaust: Callable[[Iterable[object]], object] = functools.partial(deque, maxlen=0)


class Piece(NamedTuple):
    """Bytes at an address that move to one place in a segment, and their pages."""

    address: int
    nbytes: int
    capacity: int
    offset: int


class Memory:
    """Private, zeroed, page-aligned memory of at least `nbytes` bytes.

    `bytes` is a view of exactly `nbytes` of it, and `address` where it begins.
    `is_written` says that `remap` has to write the bytes into the segment, `then` are
    calls that it makes as soon as the segment is mapped; it sets `is_moved` then.
    Raises `ResourceError` when the system has no memory or no mapping left: clause
    FAIL-7.
    """

    __slots__ = ("address", "bytes", "capacity", "is_moved", "is_written", "then")

    then: Sequence[Call]

    def __init__(self, nbytes: int):
        self.capacity = whole_pages(nbytes)
        self.then = ()
        self.is_written = self.is_moved = False
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
    def pieces(self) -> list[Piece]:
        """What moves into a segment: all of it, to the beginning."""
        return [Piece(self.address, self.bytes.nbytes, self.capacity, 0)]

    def to_move(self, then: Sequence[Call]) -> "Memory":
        """Return this memory for one move; `then` are calls that belong to it."""
        made = Memory.__new__(Memory)
        made.address, made.bytes = self.address, self.bytes
        made.capacity, made.then = self.capacity, then
        made.is_written = made.is_moved = False
        return made

    def part(self, offset: int, nbytes: int) -> "Memory":
        """Return the `nbytes` at `offset` as memory that keeps all of this alive."""
        made = Memory.__new__(Memory)
        made.capacity = nbytes
        made.then = ()
        made.is_written = made.is_moved = False
        made.bytes = self.bytes[offset : offset + nbytes]
        made.address = self.address + offset
        return made


class Group:
    """Memories that move into one segment, each to whole pages of its own there.

    `offsets` says where each of them begins in it, `nbytes` how large it is, and
    `bytes` are those of one of them; the others are those of `Memory`. The memories are
    kept alive by whoever moves them.
    """

    __slots__ = (
        *("bytes", "is_moved", "is_written", "nbytes", "offsets", "pages", "then"),
    )

    then: Sequence[Call]

    def __init__(self, memories: Sequence[Memory]):
        self.bytes = memories[0].bytes
        self.pages = sorted((memory.address, memory.capacity) for memory in memories)
        begins, offset = {}, 0
        for address, size in self.pages:
            begins[address] = offset
            offset += size
        self.offsets = [begins[memory.address] for memory in memories]
        self.nbytes = offset
        self.then = ()
        self.is_written = self.is_moved = False

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
    """Let `remap` write the bytes into the segment `fd`, or write them here as well.

    `remap` writes as it maps, so that no write of others comes in between. Where other
    threads are, they go on while the bytes are written here before. Writing is faster
    than copying through a mapping, and lack of memory is an error of the call, where it
    would be a SIGBUS there. The segment becomes as large as the bytes. Clauses FAIL-3,
    FAIL-4, FAIL-5, FAIL-9, FS-7, SHARE-12. Raises `ResourceError`.
    """
    source.is_written = True
    if len(sys._current_frames()) > 1:
        write_bytes(fd, source)


def write_bytes(fd: int, source: Memory | Group) -> None:
    """Write the bytes into a segment while other threads go on."""
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

    The old pages go and nobody's address changes. After `write` the bytes are written
    first, with no Python code in between, nor before the calls in `then`: clause
    THREAD-6. Raises `ResourceError`, and then the memory is as it was: clause FAIL-6.
    """
    pieces, flags = target.pieces, sharing | MAP_FIXED
    if len(pieces) == 1 and _remap_piece(target, pieces[0], fd, flags):
        return
    calls, results = _writing(fd, pieces) if target.is_written else ([], [])
    written = len(calls)
    undo: list[Call] = []
    for piece in pieces:
        calls += _mapping(piece, fd, flags), (undo.extend, _taking_back(piece, fd))
        results += piece.address, None
    calls += *_moved(target), (undo.clear,)
    while _call_each(calls, results, undo) < written:
        write_bytes(fd, target)  # which says why it cannot, if there is no room by now
    if not target.is_moved:
        nbytes = sum(piece.capacity for piece in pieces)
        raise _refused(f"Mapping a segment of {nbytes} bytes")


def _remap_piece(target: Memory | Group, piece: Piece, fd: int, flags: int) -> bool:
    """Map a segment over one piece, as nearly all memory is; return if it went well.

    Without the lists of `_call_each`, which can tell what has gone wrong.
    """
    address, nbytes, capacity, offset = piece
    where = address, capacity, PROTECTION, flags, fd, offset
    if not (target.is_written or target.then):
        return bool(_libc_alone.mmap(*where) == address)
    if not (target.is_written and 0 < nbytes <= LARGEST_WRITE):
        return False
    writing = _libc_alone.pwrite, fd, address, nbytes, offset
    calls = writing, (_libc_alone.mmap, *where), *_moved(target)
    return all(_are_right(calls, (nbytes, address)))


def _moved(target: Memory | Group) -> tuple[Call, ...]:
    """Return the calls that say that memory has moved."""
    return *target.then, (setattr, target, "is_moved", True)


def _mapping(piece: Piece, fd: int, flags: int) -> Call:
    """Return the call that maps a file over the pages of a piece."""
    address, _, capacity, offset = piece
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


def _taking_back(piece: Piece, fd: int) -> tuple[Call, Call]:
    """Return the calls that make a piece private again, where another is refused.

    Clause FAIL-6.
    """
    address, nbytes, _, offset = piece
    return (
        _mapping(piece, -1, PRIVATE | MAP_FIXED),
        (_libc_alone.pread, fd, address, nbytes, offset),
    )


def _are_right(calls: Iterable[Call], results: Iterable[int | None]) -> Iterator[bool]:
    """Make calls as it is iterated, and say of each if it returned what it should.

    Those beyond `results` return None. Lazy iterators, all of them in C: between the
    calls the interpreter never gets to switch threads or to run the handler of a
    signal.
    """
    found = itertools.starmap(operator.call, calls)
    return map(operator.eq, found, itertools.chain(results, itertools.repeat(None)))


def _call_each(
    calls: Iterable[Call], results: Iterable[int | None], undo: Iterable[Call]
) -> int:
    """Make calls until one does not return what it should; return how many did.

    Then make those that `undo` has by then. This is one call of C as well.
    """
    made: list[bool] = []
    making = (
        made.extend,
        itertools.takewhile(operator.truth, _are_right(calls, results)),
    )
    undoing = _exhaust, itertools.starmap(operator.call, undo)
    _exhaust(itertools.starmap(operator.call, (making, undoing)))
    return len(made)


def _refused(doing: str) -> OSError:
    code = ctypes.get_errno()
    return resource_error(code, doing) if code else OSError(os.strerror(code), doing)
