"""Fix: a message contains its descriptors."""

from __future__ import annotations

import array
import errno
import io
import os
import pickle
import socket
import struct
import tempfile
from importlib import import_module
from multiprocessing import connection, reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch_patches.cargo import (
    Cargo,
    Detached,
    Message,
    current,
    pack,
    unpack,
)
from torch_patches.replacing import wrap

LARGEST = 64 << 10
"""A message with more bytes goes as a file in memory."""

AT_ONCE = 250
"""So many descriptors fit into one packet; the kernel takes 253."""

REQUEST = 200
"""So many go with a request to the fork server; it takes 256, with its own."""

HEAD = struct.Struct("=III")
"""The bytes of the table, whether the rest is in a file, and how many descriptors."""


def apply() -> None:
    """Restores LIFE-3, LIFE-5 and LIFE-21, THREAD-4, FD-6, ENV-2.

    Replaces the pipes of `multiprocessing` by sockets that keep packets apart, and
    ``multiprocessing.reduction.DupFd``, by which PyTorch sends a descriptor. There the
    descriptor stays with a thread of the sender until the receiver asks for it; here it
    is in the packet. So the kernel has it: it arrives though the sender has ended, is
    closed with a message that nobody reads, and needs no thread. A packet is read or
    written whole or not at all, so nobody who is killed leaves half of one.

    It does not change connections over addresses, as those of a manager's process. Who
    packs by ``ForkingPickler.dumps`` and sends the bytes is served as before; who reads
    with `recv_bytes` what was sent with `send` gets the bytes without descriptors.
    """
    connection.Pipe = pipe
    reduction.register(PacketConnection, _reduce_connection)
    wrap(reduction, "DupFd", _dup_fd)
    reductions = import_module("torch.multiprocessing.reductions")
    wrap(reductions, "rebuild_storage_fd", _rebuild)
    wrapper = import_module("torch.multiprocessing.queue").ConnectionWrapper
    wrapper.send = lambda self, value: self.conn.send(value)
    wrapper.recv = lambda self: self.conn.recv()


class MessageLostError(OSError):
    """A message was read whose descriptors could not be received."""


class Slot:
    """Stands in a message for a descriptor that travels beside it."""

    def __init__(self, place: int) -> None:
        self.place = place

    def detach(self) -> int:
        """Return the descriptor."""
        if current.rebuilt is None:
            raise RuntimeError("this message was received without its descriptors")
        return current.rebuilt.take(self.place)


def _dup_fd(before: Any, descriptor: int) -> Any:
    if current.packed is not None:
        return Slot(current.packed.add(descriptor))
    starting: Any = get_spawning_popen()
    by_server = getattr(starting, "method", "") == "forkserver"
    if by_server and len(starting._fds) >= REQUEST:
        sharer = import_module("multiprocessing.resource_sharer")
        return sharer.DupFd(descriptor)
    return before(descriptor)


def _rebuild(before: Any, cls: Any, promise: Any, size: int) -> Any:
    """Rebuild a storage; C++, which duplicates the descriptor, tells no reason."""
    descriptor = promise.detach()
    try:
        os.close(os.dup(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return before(cls, Detached(descriptor), size)


_Connection: Any = connection.Connection
"""Its parts are not in the types of the standard library."""


class PacketConnection(_Connection):  # type: ignore[misc]
    """One end of a socket that keeps messages apart."""

    def __init__(
        self, handle: int, readable: bool = True, writable: bool = True
    ) -> None:
        super().__init__(handle, readable, writable)
        # With all arguments given, it is made without a system call.
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, self._handle
        )

    def _close(self) -> None:
        self._socket.close()

    def send(self, obj: Any) -> None:
        """Pack an object and send it."""
        self.send_bytes(pack(obj))

    def recv(self) -> Any:
        """Receive an object."""
        return unpack(self.receive())

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        """Send bytes, or a message that was packed."""
        if not isinstance(buf, Message):
            super().send_bytes(buf, offset, size)
            return
        self._check_closed()
        self._check_writable()
        self.send_message(buf)

    def _send_bytes(self, buf: Any) -> None:
        self.send_message(Message(buf))

    def _recv_bytes(self, maxsize: int | None = None) -> io.BytesIO | None:
        message = self.receive()
        if maxsize is not None and len(message.body) > maxsize:
            return None
        body = io.BytesIO()
        body.write(message.body)
        return body

    def send_message(self, message: Message, flags: int = 0) -> None:
        """Send a message; `BlockingIOError` where it may not wait and has no room."""
        message.packet = message.packet or packet_of(message)
        self._socket.sendmsg(*message.packet, flags)
        message.cargo.has_left()

    def receive(self, flags: int = 0) -> Message:
        """Receive a message; `BlockingIOError` where it may not wait and there is none.

        Raises:
            MessageLostError: there are not enough descriptors for it.
        """
        self._check_closed()
        self._check_readable()
        try:
            data, descriptors = _read(self._socket, HEAD.size + LARGEST, flags)
        except ConnectionResetError:  # told once, before what still waits here
            data, descriptors = _read(self._socket, HEAD.size + LARGEST, flags)
        if not data:
            raise EOFError
        size, in_file, count = HEAD.unpack_from(data)
        if count > AT_ONCE:
            descriptors = _unchain(descriptors)
        cargo = Cargo(descriptors)
        rest = memoryview(data)[HEAD.size :]
        whole = len(descriptors) == count
        if in_file and whole:
            rest = memoryview(_contents(cargo.descriptors.pop()))
        if size and (whole or not in_file):
            cargo.names = pickle.loads(rest[:size])
        if not whole:
            missing = f"of {count} descriptors of a message {len(descriptors)} arrived"
            raise MessageLostError(
                errno.EMFILE, f"{os.strerror(errno.EMFILE)}: {missing}"
            )
        return Message(rest[size:], cargo)


def packet_of(message: Message) -> tuple[Any, Any]:
    """Return the bytes and the descriptors of the packet for a message.

    Once it is made, sending it needs no descriptor.
    """
    cargo = message.cargo
    table = pickle.dumps(cargo.names) if cargo.names else b""
    parts = [table, message.body]
    if in_file := len(table) + len(message.body) > LARGEST:
        cargo.extra.append(_file_of(parts))
        parts = []
    sent = [*cargo.descriptors, *cargo.extra]
    head = HEAD.pack(len(table), in_file, len(sent))
    if len(sent) > AT_ONCE:
        cargo.extra.append(_chain(sent))
        sent = cargo.extra[-1:]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))]
    return [head, *parts], rights if sent else []


def _read(link: socket.socket, size: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """Return the bytes and the descriptors of one packet."""
    space = socket.CMSG_SPACE(4 * AT_ONCE)
    flags |= socket.MSG_CMSG_CLOEXEC
    data, ancillary, _, _ = link.recvmsg(size, space, flags)
    descriptors = array.array("i")
    for _, _, rights in ancillary:
        descriptors.frombytes(rights[: len(rights) // 4 * 4])
    return data, list(descriptors)


def _file_of(parts: list[Any]) -> int:
    """Return the descriptor of a file with these bytes."""
    with _new_file() as file:
        file.writelines(parts)
        file.flush()
        return os.dup(file.fileno())


def _new_file() -> Any:
    """Open a file in memory, or on disk where a filter forbids that (clause ENV-3)."""
    try:
        return open(os.memfd_create("message"), "wb")
    except OSError:
        return tempfile.TemporaryFile()


def _contents(descriptor: int) -> bytes:
    """Return the bytes of a file in memory, and close it."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb") as file:
        return file.read()


def _chain(descriptors: list[int]) -> int:
    """Return the descriptor of a socket in which packets of descriptors wait."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        for first in range(0, len(descriptors), AT_ONCE):
            some = array.array("i", descriptors[first : first + AT_ONCE])
            near.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, some)])
        return far.detach()


def _unchain(chain: list[int]) -> list[int]:
    """Return the descriptors that wait in a socket, and close that."""
    found: list[int] = []
    for descriptor in chain:
        with socket.socket(fileno=descriptor) as link:
            while (packet := _read(link, 1))[0]:
                found += packet[1]
    return found


def pipe(duplex: bool = True) -> tuple[PacketConnection, PacketConnection]:
    """Return two ends that are connected: of a pipe, the reading one comes first."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return (
        PacketConnection(first.detach(), True, duplex),
        PacketConnection(second.detach(), duplex, True),
    )


def _reduce_connection(end: PacketConnection) -> tuple[Any, ...]:
    duplicate = reduction.DupFd(end.fileno())
    return _rebuild_connection, (duplicate, end.readable, end.writable)


def _rebuild_connection(
    duplicate: Any, readable: bool, writable: bool
) -> PacketConnection:
    return PacketConnection(duplicate.detach(), readable, writable)
