"""Connections: the ends of a pipe whose messages carry tensors.

In use a connection is the standard library's; what it writes and reads are the packets
of `packets`.
"""

import io
import socket
from collections.abc import Callable, Sequence
from multiprocessing import connection, reduction
from typing import Any

from .. import protocol
from ..descriptors import OwnedDescriptor, ReceivedDescriptors
from ..transport import export_descriptor, take_descriptor
from . import packets


class Connection(connection.Connection):
    """One end of a pipe; in use it is the standard library's `Connection`."""

    # Its inner parts that are used here; the type stubs leave them out.
    _handle: int
    _check_closed: Callable[[], None]
    _check_readable: Callable[[], None]
    _check_writable: Callable[[], None]

    def __init__(
        self, owned: OwnedDescriptor, readable: bool = True, writable: bool = True
    ):
        owned.keep(in_children=True)
        self._owned = owned
        self._socket = socket.SocketType(*packets.KIND, 0, owned.fd)
        self._socket.settimeout(None)
        super().__init__(owned.fd, readable, writable)

    def _close(self, *ignored: Any) -> None:
        self._socket.detach()  # its owner closes the descriptor
        self._owned.close()

    def send(self, obj: Any) -> None:
        """Send an object; its tensors are shared when this returns. Clause CHAN-7.

        Raises `NonLeafError` and whatever else pickling raises, and sends nothing then:
        clauses GRAD-6, LIFE-18.
        """
        self._check_closed()
        self._check_writable()
        protocol.write_message(protocol.pack_message(obj), self)

    def recv(self) -> Any:
        """Receive an object. Raises `EOFError` when the other end is closed.

        Raises `HandleError` or `ResourceError` when a tensor cannot be rebuilt; the
        next message can be received all the same. Clauses CHAN-4, LIFE-19.
        """
        return protocol.unpack_message(*self.receive())

    def receive(
        self, wait: bool = True, taken: list[Any] | None = None
    ) -> tuple[Any, ReceivedDescriptors]:
        """Return a message as it came: its bytes and descriptors, now the caller's.

        So the next one can be received, whatever is in this one: clauses FAULT-2,
        FAULT-4. See `packets.read` for the arguments and what is raised.
        """
        self._check_closed()
        self._check_readable()
        self._owned.verified()
        return packets.read(self._socket, wait, taken)

    def write(
        self,
        payload: Any,
        descriptors: Sequence[int] = (),
        wait: bool = True,
        sent: list[object] | None = None,
    ) -> None:
        """Write one message: see `packets.write`. Clause FAIL-1."""
        self._owned.verified()
        packets.write(self._socket, payload, descriptors, wait, sent)

    def verify_sendable(self, payload: Any, count: int) -> None:
        """Verify that such a message can be written: see `packets.verify_sendable`."""
        packets.verify_sendable(payload, count)

    # What `send_bytes` and `recv_bytes` of the standard library are made of

    def _send_bytes(self, buf: Any) -> None:
        """Write bytes as a message. Clause CHAN-11."""
        self.write(buf)

    def _recv_bytes(self, maxsize: int | None = None) -> io.BytesIO | None:
        """Wait for a message and return its bytes alone. Clause CHAN-11."""
        payload, descriptors = self.receive()
        descriptors.close()
        if maxsize is not None and len(payload) > maxsize:
            return None
        stream = io.BytesIO()
        stream.write(payload)
        return stream


def Pipe(
    duplex: bool = True, room: int = packets.BUFFER_SIZE
) -> tuple[Connection, Connection]:
    """Return a pair of connected ends; if not `duplex`, the first only receives.

    `room` is the size of the buffer in between, as far as the system permits it.
    """
    first, second = packets.pair(room)
    if duplex:
        return Connection(first), Connection(second)
    return Connection(first, writable=False), Connection(second, readable=False)


def reduce_connection(end: Connection) -> tuple[Any, ...]:
    """Reduce a connection to a descriptor, which is sent by whatever way is open."""
    end._check_closed()
    descriptor = export_descriptor(end._owned.verified())
    return rebuild_connection, (descriptor, end.readable, end.writable)


def rebuild_connection(descriptor: Any, readable: bool, writable: bool) -> Connection:
    """Return the connection in the process that it was sent to."""
    return Connection(take_descriptor(descriptor), readable, writable)


reduction.register(Connection, reduce_connection)
