"""Messages: one packet each, with a description for each arena that it needs.

A packet is a header and a body. The body is a pickle or plain bytes, in the packet
itself, or, when it is long, in a block of an arena. So a message is sent and received in
one system call, whole or not at all, and a reader needs no lock.
"""
import array
import io
import os
import pickle
import socket
import struct
import threading
from multiprocessing import context, reduction

from . import keeper, locks
from .store import EMPTY, RECORD, Arena, ArenaError, Storage, guard, place_bytes, state
from . import store

HEADER = struct.Struct("<cBHI")  # kind, version, descriptors, length
VERSION = 1
INLINE = 12 << 10
PER_PACKET = 100
_local = threading.local()


class Outgoing:
    """What a message needs besides its bytes, while it is being made and sent."""

    def __init__(self):
        self.fds = []  # descriptors of this message, its own
        self.index = {}  # arena id -> index

    def add_fd(self, fd):
        """Take a descriptor over; return its index."""
        with guard:
            state.tokens.add(fd)
        self.fds.append(fd)
        return len(self.fds) - 1

    def token_of(self, arena, number):
        """Let the message need a block; return the index of its description. Locked."""
        index = self.index.get(arena.key)
        if index is None:
            fd = locks.reopen(arena.fd)
            state.tokens.add(fd)
            self.fds.append(fd)
            index = self.index[arena.key] = len(self.fds) - 1
        locks.hold(self.fds[index], number)
        return index

    def record_of(self, storage):
        storage.share()
        if not storage.nbytes:
            return RECORD.pack(EMPTY, 0, 0, 0, 0)
        hold = storage.hold
        if hold.arena.name:
            keeper.ensure()
        with guard:
            index = self.token_of(hold.arena, hold.number)
        return RECORD.pack(hold.arena.key, hold.number, hold.offset, storage.nbytes, index)

    def close(self):
        with guard:
            for fd in self.fds:
                if fd in state.tokens:
                    state.tokens.discard(fd)
                    os.close(fd)
        self.fds = []


class Incoming:
    """The descriptors of a message that is being rebuilt."""

    def __init__(self, fds):
        self.fds = fds

    def token(self, index):
        if not 0 <= index < len(self.fds) or self.fds[index] < 0:
            raise ArenaError("the handle names a descriptor that the message has not")
        return self.fds[index]

    def take(self, index):
        fd = self.token(index)
        self.fds[index] = -1
        with guard:
            state.tokens.discard(fd)
        return fd

    def close(self):
        with guard:
            for fd in self.fds:
                if fd >= 0 and fd in state.tokens:
                    state.tokens.discard(fd)
                    os.close(fd)
        self.fds = []


def outgoing():
    current = getattr(_local, "outgoing", None)
    if current is None:
        raise ArenaError(
            "a tensor is sent over the channels of arena.multiprocessing, or as an argument of its "
            "processes; this pickle leads elsewhere, where its memory could not be shared"
        )
    return current


def incoming():
    current = getattr(_local, "incoming", None)
    if current is None:
        raise ArenaError("a tensor is received from the channels of arena.multiprocessing only")
    return current


class _Pickler(reduction.ForkingPickler):
    pass


def dumps(value, out):
    """Return the pickle; what it needs besides is added to `out`."""
    before = getattr(_local, "outgoing", None)
    _local.outgoing = out
    try:
        buffer = io.BytesIO()
        _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
        return buffer.getbuffer()
    finally:
        _local.outgoing = before


def loads(data, message):
    before = getattr(_local, "incoming", None)
    _local.incoming = message
    try:
        return pickle.loads(data)
    finally:
        _local.incoming = before


class Packet:
    """A message that is ready to be sent."""

    def __init__(self, data, out):
        self.data, self.out = data, out

    def close(self):
        self.out.close()


def make_packet(value, *, plain=False):
    out = Outgoing()
    try:
        body = value if plain else dumps(value, out)
        kind = b"b" if plain else b"o"
        if len(body) > INLINE:
            with guard:
                hold = place_bytes(body, "file_descriptor")  # what is no tensor needs no name
                index = out.token_of(hold.arena, hold.number)
            body = RECORD.pack(hold.arena.key, hold.number, hold.offset, len(body), index)
            del hold
            kind = kind.upper()
        data = HEADER.pack(kind, VERSION, len(out.fds), len(body)) + bytes(body)
        return Packet(data, out)
    except BaseException:
        out.close()
        raise


def send_fds(sock, data, fds, flags=0):
    if len(fds) <= PER_PACKET:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sock.sendmsg([data], control, flags | socket.MSG_NOSIGNAL)
        return
    far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far, near:
        for start in range(0, len(fds), PER_PACKET):
            send_fds(near, b"+", fds[start : start + PER_PACKET], socket.MSG_DONTWAIT)
        near.shutdown(socket.SHUT_WR)
        send_fds(sock, data, [far.fileno()], flags)


def receive_fds(sock, size, flags=0):
    """Return (data, descriptors, whether some are missing)."""
    data, ancillary, message_flags, _ = sock.recvmsg(
        size, socket.CMSG_SPACE(4 * PER_PACKET), flags | socket.MSG_CMSG_CLOEXEC
    )
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % 4])
    fds = list(fds)
    state.tokens.update(fds)
    return data, fds, bool(message_flags & socket.MSG_CTRUNC)


def gather(message, count):
    """Complete the descriptors of a message that has more than a packet carries."""
    if count <= PER_PACKET:
        if len(message.fds) != count:
            raise OSError(24, "not all descriptors of the message could be received: too many are open")
        return
    if len(message.fds) != 1:
        raise OSError(24, "the descriptors of the message could not be received: too many are open")
    with socket.socket(fileno=message.take(0)) as far:
        message.fds = []
        while len(message.fds) < count:
            data, fds, _ = receive_fds(far, 1, socket.MSG_DONTWAIT)
            message.fds.extend(fds)
            if not data:
                raise OSError(24, "not all descriptors of the message could be received: too many are open")


def open_packet(data, fds, truncated):
    """Return (plain, value) of a packet; closes the descriptors."""
    message = Incoming(fds)
    try:
        if len(data) < HEADER.size:
            raise ArenaError("the message is incomplete")
        kind, version, count, length = HEADER.unpack_from(data)
        body = memoryview(data)[HEADER.size :]
        if version != VERSION or kind not in b"oObB" or len(body) != length:
            raise ArenaError("the message is not of this version")
        if truncated:
            raise OSError(24, "not all descriptors of the message could be received: too many are open")
        gather(message, count)
        if kind.isupper():
            before = getattr(_local, "incoming", None)
            _local.incoming = message
            try:
                storage = store.open_storage(bytes(body))
            finally:
                _local.incoming = before
            body = storage.array("uint8", (storage.nbytes,), (1,), 0).tobytes()
            del storage
        else:
            body = bytes(body)
        return kind.lower() == b"b", body, message
    except BaseException:
        message.close()
        raise


# -- processes that are started with arguments


def pack_state(process):
    """Return what the child needs to rebuild a process object: bytes and a descriptor."""
    out = Outgoing()
    try:
        data = bytes(dumps(process.__getstate__(), out))
        if not out.fds:
            return data, 0, None
        popen = context.get_spawning_popen()
        far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with near:
            with guard:
                fd = far.detach()
                state.tokens.add(fd)
            popen.arena_keep = fd  # until the child has been started
            for start in range(0, len(out.fds), PER_PACKET):
                send_fds(near, b"+", out.fds[start : start + PER_PACKET], socket.MSG_DONTWAIT)
            near.shutdown(socket.SHUT_WR)
        return data, len(out.fds), popen.DupFd(popen.duplicate_for_child(fd))
    finally:
        out.close()


def unpack_state(process, data, count, far):
    message = Incoming([])
    try:
        if far is not None:
            with socket.socket(fileno=far.detach()) as bundle:
                while len(message.fds) < count:
                    found, fds, truncated = receive_fds(bundle, 1)
                    message.fds.extend(fds)
                    if not found or truncated:
                        raise OSError(24, "not all descriptors of the arguments could be received")
        process.__dict__.update(loads(data, message))
    finally:
        message.close()


def started(popen):
    """Give up what the child has got by now."""
    fd = getattr(popen, "arena_keep", None)
    if fd is not None:
        with guard:
            popen.arena_keep = None
            if fd in state.tokens:
                state.tokens.discard(fd)
                os.close(fd)


def rebuild_process(cls, data, count, far):
    process = cls.__new__(cls)
    unpack_state(process, data, count, far)
    return process
