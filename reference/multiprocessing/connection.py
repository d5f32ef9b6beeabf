"""Connections whose messages carry descriptors.

A pipe of this module is a pair of UNIX sockets. A message is a header, which says how
many descriptors and bytes follow, and the bytes. The descriptors travel with the header
(SCM_RIGHTS), so they are in the kernel's hands once the message is written: the sender
may drop its tensors, or end, before the message is read (clauses LIFE-2, LIFE-5).

A message is read whole before anything in it is looked at, so one that cannot be
rebuilt leaves the connection in step (clause GRAD-6).
"""

import array
import errno
import io
import os
import socket
import struct
from collections.abc import Callable, Sequence
from multiprocessing import connection, reduction
from typing import Any

from ..errors import ResourceError, resource_error
from ..steps import steps
from ..transport import export_descriptor, take_descriptor

HEADER = struct.Struct("!IQ")
FDS_AT_ONCE = 253  # the kernel's limit for one message
FILLER = b"+"  # a byte to which further descriptors are attached
JOINED_UP_TO = 1 << 16
WHOLE_UP_TO = 1 << 14
BUFFER_SIZE = 1 << 20
FLAGS = socket.MSG_CMSG_CLOEXEC
PLACE_FOR_FDS = socket.CMSG_SPACE(FDS_AT_ONCE * array.array("i").itemsize)


class Connection(connection.Connection):
    """One end of a pipe; in use it is the standard library's `Connection`."""

    # Its inner parts that are used here; the type stubs leave them out.
    _handle: int
    _check_closed: Callable[[], None]
    _check_readable: Callable[[], None]
    _check_writable: Callable[[], None]

    def __init__(self, handle: int, readable: bool = True, writable: bool = True):
        super().__init__(handle, readable, writable)
        kind = socket.AF_UNIX, socket.SOCK_STREAM, 0
        self._socket = socket.socket(*kind, fileno=self._handle)
        self._socket.settimeout(None)

    def _close(self, *ignored: Any) -> None:
        self._socket.close()

    def send(self, obj: Any) -> None:
        """Send an object; its tensors are shared when this returns. Clause CHAN-7.

        Raises `NonLeafError` and whatever else pickling raises, and sends nothing then.
        """
        self._check_closed()
        self._check_writable()
        steps.write_message(steps.pack_message(obj), self)

    def recv(self) -> Any:
        """Receive an object. Raises `EOFError` when the other end is closed.

        Raises `HandleError` or `ResourceError` when a tensor cannot be rebuilt; the
        next message can be received all the same.
        """
        return steps.unpack_message(*self.receive())

    def receive(self) -> tuple[Any, list[int]]:
        """A message as it came: its bytes and descriptors, now the caller's."""
        self._check_closed()
        self._check_readable()
        return steps.read_message(self)

    def write(self, payload: Any, descriptors: Sequence[int] = ()) -> None:
        """Write one message. Raises `BrokenPipeError` when nobody can read it."""
        size = memoryview(payload).nbytes
        header = HEADER.pack(len(descriptors), size)
        first, rest = descriptors[:FDS_AT_ONCE], descriptors[FDS_AT_ONCE:]
        if not rest and size <= JOINED_UP_TO:
            self._write_part(b"".join((header, payload)), first)
            return
        self._write_part(header, first)
        for begin in range(0, len(rest), FDS_AT_ONCE):
            self._write_part(FILLER, rest[begin : begin + FDS_AT_ONCE])
        self._socket.sendall(payload)

    def write_at_once(self, payload: Any, descriptors: Sequence[int] = ()) -> bool:
        """Write one message if that needs no waiting; return whether it was written.

        So small a message is one buffer of the kernel: it goes whole or not at all.
        """
        size = memoryview(payload).nbytes
        if size > WHOLE_UP_TO or len(descriptors) > FDS_AT_ONCE:
            return False
        header = HEADER.pack(len(descriptors), size)
        try:
            self._write_part(
                b"".join((header, payload)), descriptors, socket.MSG_DONTWAIT
            )
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False  # the thread that feeds the channel waits, or reports it
        return True

    def _write_part(
        self, part: bytes, descriptors: Sequence[int], flags: int = 0
    ) -> None:
        if not descriptors and not flags:
            self._socket.sendall(part)
            return
        rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors)
        try:
            sent = self._socket.sendmsg([part], [rights] if descriptors else [], flags)
        except OSError as error:
            if error.errno not in (errno.ETOOMANYREFS, errno.EMFILE):
                raise
            doing = f"Sending {len(descriptors)} descriptors"
            raise resource_error(error.errno, doing) from error
        if sent < len(part):
            self._socket.sendall(memoryview(part)[sent:])

    def read(self) -> tuple[bytearray, list[int]]:
        """Read one message whole. Raises `EOFError`, `OSError` or `ResourceError`.

        If this process has no room for the descriptors, the message is lost, the ones
        that came are closed, and the connection stays in step.
        """
        descriptors: list[int] = []
        try:
            lost = self._read_part(header := bytearray(HEADER.size), descriptors)
            count, size = HEADER.unpack(header)
            for _ in range(FDS_AT_ONCE, count, FDS_AT_ONCE):
                lost |= self._read_part(bytearray(1), descriptors)
            payload = bytearray(size)
            self._fill(memoryview(payload))
            if lost or len(descriptors) != count:
                raise self._lost(count)
        except BaseException:
            for fd in descriptors:
                os.close(fd)
            raise
        return payload, descriptors

    def _read_part(self, part: bytearray, descriptors: list[int]) -> bool:
        """Fill `part`, add the descriptors with it; return whether some were lost."""
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                len(part), PLACE_FOR_FDS, FLAGS
            )
        except ConnectionResetError:
            raise EOFError from None
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(content) - len(content) % 4
                descriptors.extend(array.array("i", content[:whole]))
        if not data:
            raise EOFError
        part[: len(data)] = data
        self._fill(memoryview(part)[len(data) :])
        return bool(flags & socket.MSG_CTRUNC)

    def _fill(self, target: memoryview) -> None:
        while target.nbytes:
            count = self._socket.recv_into(target)
            if not count:
                raise OSError("The other end was closed in the middle of a message.")
            target = target[count:]

    @staticmethod
    def _lost(count: int) -> ResourceError:
        doing = f"Receiving the {count} descriptors of a message, which is lost,"
        return resource_error(errno.EMFILE, doing)

    # What `send_bytes` and `recv_bytes` of the standard library are made of

    def _send_bytes(self, buf: Any) -> None:
        self.write(buf)

    def _recv_bytes(self, maxsize: int | None = None) -> io.BytesIO | None:
        payload, descriptors = self.read()
        for fd in descriptors:
            os.close(fd)
        if maxsize is not None and len(payload) > maxsize:
            return None
        stream = io.BytesIO()
        stream.write(payload)
        return stream


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    """A pair of connected ends; if not `duplex`, the first only receives."""
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_SIZE)
    first, second = (end.detach() for end in ends)
    if duplex:
        return Connection(first), Connection(second)
    return Connection(first, writable=False), Connection(second, readable=False)


def reduce_connection(end: Connection) -> tuple[Any, ...]:
    """A connection is itself sent as a descriptor, by whatever way is open."""
    ticket = export_descriptor(end.fileno())
    return rebuild_connection, (ticket, end.readable, end.writable)


def rebuild_connection(ticket: Any, readable: bool, writable: bool) -> Connection:
    """The connection in the process that it was sent to."""
    return Connection(take_descriptor(ticket), readable, writable)


reduction.register(Connection, reduce_connection)
