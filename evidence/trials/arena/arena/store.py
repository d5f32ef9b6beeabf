"""Arenas, blocks in them, and storages.

An arena is one file (a memfd, or a file in /dev/shm) with many blocks. Only its maker
allocates in it. Block number N is needed while anybody has a shared lock on byte N of the
arena's file: a process by its own open file description, a message in flight by the
description that travels with it. The kernel drops the locks with the descriptions, so
nothing has to be counted and nothing be told when a process is killed.
"""
import ctypes
import errno
import fcntl
import os
import stat
import struct
import threading
import weakref
from collections import deque
from multiprocessing import util

import numpy as np

from . import keeper, locks

PAGE = 4096
CAPACITY = 16 << 20
LARGE = 4 << 20
KEEP = os.environ.get("ARENA_KEEP", "1") == "1"
MAGIC = b"arena\x001\n"
ARENA_HEADER = struct.Struct("<8s16sQ64s")  # magic, id, capacity, name
BLOCK_HEADER = struct.Struct("<QQQ")  # number, bytes, check
BLOCK_HEAD = 64
RECORD = struct.Struct("<16sQQQH")  # arena, number, offset, bytes, index of the descriptor
CHECK = 0x5AFEB10C5AFEB10C


class ArenaError(RuntimeError):
    """A tensor cannot be shared, sent or received."""


class _State:
    def __init__(self):
        self.lock = threading.Lock()
        self.arenas = {}  # id -> Arena
        self.current = {}  # strategy -> Arena in which this process allocates
        self.live = weakref.WeakValueDictionary()  # (arena id, number) -> Storage
        self.dropped = deque()
        self.tokens = set()  # descriptors that belong to messages
        self.strategy = "file_descriptor"


state = _State()


class Guard:
    """The lock, and what was dropped while it was held."""

    def __enter__(self):
        state.lock.acquire()

    def __exit__(self, *_):
        try:
            _settle_locked()
        finally:
            state.lock.release()
        settle()


guard = Guard()


def settle():
    while state.dropped and state.lock.acquire(blocking=False):
        try:
            _settle_locked()
        finally:
            state.lock.release()


def _settle_locked():
    while state.dropped:
        try:
            arena, number = state.dropped.popleft()
        except IndexError:
            return
        arena.release(number)


def up(value, unit):
    return -(-value // unit) * unit


class Arena:
    """One file, mapped once in a process, with one description for its locks."""

    def __init__(self, fd, key, capacity, *, made_here, name=""):
        self.fd, self.key, self.capacity, self.name = fd, key, capacity, name
        self.made_here = made_here
        self.holds = {}  # number -> how many storages of this process
        self.blocks = {}  # number -> (offset, length), of blocks held here or lent
        self.lent = set()  # numbers that only others may need still (maker only)
        self.free = []  # (offset, length), sorted (maker only)
        self.top = PAGE
        self.next = 1
        self.base = locks.map_file(fd, capacity)
        state.arenas[key] = self

    # -- making and opening

    @classmethod
    def make(cls, capacity, strategy):
        key = os.urandom(16)
        name = ""
        if strategy == "file_system":
            fd, name = keeper.make_file()
        else:
            fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            locks.hold(fd, 0)
            os.posix_fallocate(fd, 0, PAGE)
            os.pwrite(fd, ARENA_HEADER.pack(MAGIC, key, capacity, name.encode()), 0)
            if name:
                keeper.publish(fd, name)
            else:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            return cls(fd, key, capacity, made_here=True, name=name)
        except BaseException:
            if name:
                keeper.remove_if_unused(fd, name)
            os.close(fd)
            raise

    @classmethod
    def open(cls, token, key):
        """Open the arena that a message's descriptor leads to."""
        found, capacity, name = identify(token)
        if found != key:
            raise ArenaError("the handle's arena is not the one of its descriptor")
        arena = state.arenas.get(key)
        if arena is not None:
            return arena
        fd = locks.reopen(token)
        try:
            return cls(fd, key, capacity, made_here=False, name=name)
        except BaseException:
            os.close(fd)
            raise

    # -- blocks

    def allocate(self, nbytes):
        """Return (number, offset of the data); held once."""
        length = up(BLOCK_HEAD + nbytes, 64)
        place = self._place(length)
        if place is None:
            return None
        number = self.next
        first, last = place // PAGE * PAGE, up(place + length, PAGE)
        try:
            os.posix_fallocate(self.fd, first, last - first)
            locks.hold(self.fd, number)
        except BaseException:
            self._give(place, length)
            raise
        self.next += 1
        self._head(place)[:] = BLOCK_HEADER.pack(number, nbytes, CHECK ^ number ^ nbytes)
        self.blocks[number] = (place, length)
        self.holds[number] = 1
        return number, place + BLOCK_HEAD

    def _head(self, place):
        return (ctypes.c_char * BLOCK_HEADER.size).from_address(self.base + place)

    def _place(self, length):
        for _ in range(2):
            for i, (offset, size) in enumerate(self.free):
                if size >= length:
                    if size == length:
                        del self.free[i]
                    else:
                        self.free[i] = (offset + length, size - length)
                    return offset
            if self.top + length <= self.capacity:
                self.top += length
                return self.top - length
            if not self.reclaim():
                return None
        return None

    def _give(self, offset, length):
        self.free.append((offset, length))
        self.free.sort()
        merged = []
        for start, size in self.free:
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        if merged and sum(merged[-1]) == self.top:
            self.top = merged.pop()[0]
        self.free = merged

    def reclaim(self):
        """Take back the lent blocks that nobody needs any more."""
        found = False
        for number in list(self.lent):
            if self._erase(number):
                self.lent.discard(number)
                self._give(*self.blocks.pop(number))
                found = True
        return found

    def _erase(self, number):
        """Give the pages of a block back unless anybody else needs it."""
        if not locks.try_own(self.fd, number):
            return False
        try:
            place, length = self.blocks[number]
            head = self._head(place)
            if BLOCK_HEADER.unpack(head.raw)[0] == number:
                head[:] = bytes(BLOCK_HEADER.size)
            first, last = up(place, PAGE), (place + length) // PAGE * PAGE
            if last > first:
                locks.punch(self.fd, first, last - first)
        finally:
            locks.let_go(self.fd, number)
        return True

    def adopt(self, number, offset, nbytes):
        """Hold a block that a message leads to."""
        place = offset - BLOCK_HEAD
        end = min(self.capacity, os.fstat(self.fd).st_size)
        if place < PAGE or offset + nbytes > end or number < 1:
            raise ArenaError("the handle claims more than its arena has")
        if not self.holds.get(number):
            if not locks.is_held_by_another(self.fd, number):
                raise ArenaError("nobody has the memory that the handle names any more")
            locks.hold(self.fd, number)
        try:
            if BLOCK_HEADER.unpack(self._head(place).raw) != (number, nbytes, CHECK ^ number ^ nbytes):
                raise ArenaError("the handle does not fit its block")
        except BaseException:
            if not self.holds.get(number):
                locks.let_go(self.fd, number)
            raise
        self.holds[number] = self.holds.get(number, 0) + 1
        self.blocks[number] = (place, up(BLOCK_HEAD + nbytes, 64))
        self.lent.discard(number)

    def release(self, number):
        if self.fd < 0 or number not in self.holds:
            return
        self.holds[number] -= 1
        if self.holds[number]:
            return
        del self.holds[number]
        locks.let_go(self.fd, number)
        if self._erase(number):
            place = self.blocks.pop(number)
            if self.made_here:
                self._give(*place)
        elif self.made_here:
            self.lent.add(number)
        else:
            del self.blocks[number]
        self.close_if_idle()

    def close_if_idle(self):
        if not self.holds and (self not in state.current.values() or not KEEP):
            self.close()

    def close(self):
        state.arenas.pop(self.key, None)
        for strategy, arena in list(state.current.items()):
            if arena is self:
                del state.current[strategy]
        fd, self.fd = self.fd, -1
        locks.unmap(self.base, self.capacity)
        if self.name:
            keeper.remove_if_unused(fd, self.name)
        os.close(fd)


def identify(fd):
    """Return id, capacity and name of the arena behind a descriptor, or refuse."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size < PAGE:
        raise ArenaError("the handle leads to a file that is no arena")
    magic, key, capacity, name = ARENA_HEADER.unpack(os.pread(fd, ARENA_HEADER.size, 0))
    name = name.rstrip(b"\0").decode("ascii", "replace")
    if magic != MAGIC:
        raise ArenaError("the handle leads to a file that is no arena")
    if name:
        if status.st_dev != os.stat(keeper.DIRECTORY).st_dev or not name.startswith("arena-") or "/" in name:
            raise ArenaError("the handle leads to a file that is no arena")
    elif not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ArenaError("the handle leads to a file that is no arena")
    return key, capacity, name


def allocate(nbytes, strategy):
    """Return (arena, number, offset), in the current arena or another; under the lock."""
    arena = state.current.get(strategy)
    if nbytes < LARGE:
        if arena is not None:
            try:
                found = arena.allocate(nbytes)
            except OSError as error:
                if error.errno != errno.EFBIG:
                    raise
                found = None
            if found:
                return (arena, *found)
        fresh = Arena.make(CAPACITY, strategy)
    else:
        fresh = Arena.make(up(PAGE + BLOCK_HEAD + nbytes, PAGE), strategy)
    try:
        found = fresh.allocate(nbytes)
    except BaseException:
        fresh.close()
        raise
    if nbytes < LARGE:
        state.current[strategy] = fresh
        if arena is not None:
            arena.close_if_idle()
    return (fresh, *found)


class Hold:
    """One storage's reference to a block."""

    __slots__ = ("arena", "number", "offset", "__weakref__")

    def __init__(self, arena, number, offset):
        self.arena, self.number, self.offset = arena, number, offset

    @property
    def address(self):
        return self.arena.base + self.offset

    def __del__(self):
        try:
            state.dropped.append((self.arena, self.number))
            settle()
        except Exception:  # the interpreter ends: the kernel does the rest
            pass


class Exported:
    """What an array stands on."""

    def __init__(self, keep, interface):
        self.keep = keep
        self.__array_interface__ = interface


class Storage:
    """Bytes: private in a NumPy buffer, or shared in a block."""

    __slots__ = ("nbytes", "private", "hold", "is_shared", "exports", "__weakref__")

    def __init__(self, nbytes, private=None, hold=None, is_shared=False):
        self.nbytes, self.private, self.hold, self.is_shared = nbytes, private, hold, is_shared
        self.exports = weakref.WeakSet()

    @classmethod
    def of_bytes(cls, data):
        private = np.empty(len(data), np.uint8)
        private[:] = np.frombuffer(data, np.uint8)
        return cls(len(data), private)

    def array(self, dtype, shape, strides, offset, *, export=False):
        dtype = np.dtype(dtype)
        if not self.nbytes or 0 in shape:
            return np.empty(shape, dtype)
        keep = self.hold if self.hold is not None else self.private
        address = keep.address if self.hold is not None else keep.ctypes.data
        base = Exported(keep, {
            "data": (address + offset, False), "shape": tuple(shape),
            "strides": tuple(strides), "typestr": dtype.str, "version": 3,
        })
        if export and self.hold is None:
            self.exports.add(base)
        return np.asarray(base)

    def share(self):
        if self.is_shared:
            return
        with guard:
            if self.is_shared:
                return
            if not self.nbytes:
                self.is_shared = True
                return
            if len(self.exports):
                raise ArenaError("an array over the tensor's private memory is in use: it cannot be moved")
            hold = place_bytes(self.private)
            private = self.private
            self.hold = hold
            state.live[(hold.arena.key, hold.number)] = self
            self.is_shared = True
            self.private = None
        del private

    def grow(self, nbytes):
        if nbytes <= self.nbytes:
            return
        with guard:
            if self.is_shared:
                raise ArenaError("a storage in shared memory cannot be resized")
            if len(self.exports):
                raise ArenaError("an array over the tensor's memory is in use: it cannot be resized")
            private = np.zeros(nbytes, np.uint8)
            private[: self.nbytes] = self.private
            self.private, self.nbytes = private, nbytes

    def __reduce_ex__(self, protocol):
        from . import wire

        return open_storage, (wire.outgoing().record_of(self),)


def place_bytes(data, strategy=None):
    """Return a hold of a new block with these bytes; under the lock."""
    nbytes = len(data)
    arena, number, offset = allocate(nbytes, strategy or state.strategy)
    hold = Hold(arena, number, offset)
    ctypes.memmove(hold.address, np.frombuffer(data, np.uint8).ctypes.data, nbytes)
    return hold


EMPTY = bytes(16)


def open_storage(record):
    from . import wire

    message = wire.incoming()
    try:
        key, number, offset, nbytes, index = RECORD.unpack(record)
    except (struct.error, TypeError):
        raise ArenaError("the handle is incomplete") from None
    if key == EMPTY:
        if nbytes:
            raise ArenaError("the handle names no arena")
        return Storage(0, np.empty(0, np.uint8), is_shared=True)
    if not nbytes:
        raise ArenaError("the handle names no memory")
    token = message.token(index)
    with guard:
        arena = Arena.open(token, key)
        try:
            storage = state.live.get((key, number))
            if storage is not None:
                if (storage.nbytes, storage.hold.offset) != (nbytes, offset):
                    raise ArenaError("the handle does not fit its block")
                return storage
            arena.adopt(number, offset, nbytes)
        except BaseException:
            arena.close_if_idle()
            raise
        storage = Storage(nbytes, hold=Hold(arena, number, offset), is_shared=True)
        state.live[(key, number)] = storage
        return storage


# -- fork: the child gets a description of its own, with locks, made before it exists

_prefork = {}


def _ranges(numbers):
    start = last = None
    for number in sorted(numbers):
        if start is None:
            start = last = number
        elif number == last + 1:
            last = number
        else:
            yield start, last - start + 1
            start = last = number
    if start is not None:
        yield start, last - start + 1


def _before_fork():
    state.lock.acquire()
    for key, arena in state.arenas.items():
        if not arena.holds:
            continue
        try:
            fd = locks.reopen(arena.fd)
            _prefork[key] = fd
            for start, length in _ranges(arena.holds):
                locks.hold(fd, start, length)
        except OSError:
            pass  # the child does it itself


def _after_in_parent():
    for fd in _prefork.values():
        os.close(fd)
    _prefork.clear()
    state.lock.release()
    settle()


def _after_in_child():
    state.lock = threading.Lock()
    for fd in state.tokens:
        try:
            os.close(fd)
        except OSError:
            pass
    state.tokens.clear()
    state.current.clear()
    for key, arena in list(state.arenas.items()):
        inherited, fd = arena.fd, _prefork.get(key)
        if not arena.holds:
            locks.unmap(arena.base, arena.capacity)
            os.close(inherited)
            arena.fd = -1
            del state.arenas[key]
            continue
        if fd is None:
            try:
                fd = locks.reopen(inherited)
                for start, length in _ranges(arena.holds):
                    locks.hold(fd, start, length)
            except OSError:
                pass
        arena.fd = -1 if fd is None else fd
        arena.made_here = False
        for number in arena.lent:
            arena.blocks.pop(number, None)
        arena.lent, arena.free = set(), []
        os.close(inherited)
    _prefork.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


# -- the end of a process: what has a name is removed, or left to who will remove it


def _at_exit():
    try:
        with guard:
            named = [arena for arena in state.arenas.values() if arena.name]
        left = False
        for arena in named:
            if locks.is_held_by_another(arena.fd, *locks.EVERYTHING):
                left = True
            else:
                keeper.unlink_if_same(arena.fd, arena.name)
        if left:
            keeper.ensure()
    except Exception:
        pass


class _Ending:
    """Registered again in each child, since the registry is emptied there."""


_ending = _Ending()


def _register_end(_=None):
    util.Finalize(None, _at_exit, exitpriority=-1000)


util.register_after_fork(_ending, _register_end)
_register_end()
