"""Connections whose messages are packets that carry descriptors.

A pipe of this module is a pair of UNIX sockets of the type `SOCK_SEQPACKET`, and each
message is one packet: a header, which says how many descriptors and bytes there are,
and the bytes. The descriptors travel with it (SCM_RIGHTS). What does not fit into a
packet travels beside it, by way of a descriptor: many bytes in a memory file, many
descriptors in the buffer of another socket.

So a message is written whole or not at all, and read whole or not at all:

- Whoever is killed while it writes leaves no half message to its reader.
- Several processes may read or write at once, and no lock is needed, which somebody who
  is killed would hold for ever (clause LIFE-6).
- Once it is written it is in the kernel's hands. The sender may drop its tensors, or
  end, before it is read (clauses LIFE-2, LIFE-5); and if nobody can read it any more,
  the kernel closes the descriptors in it.

A message is taken whole before anything in it is looked at, so one that cannot be
rebuilt leaves the connection in step (clause GRAD-6).
"""

import array
import contextlib
import errno
import io
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, reduction
from typing import Any

from ..errors import ResourceError, resource_error
from ..steps import steps
from ..transport import export_descriptor, take_descriptor

HEADER = struct.Struct("!IQ")
LARGEST_PACKET = 1 << 15  # bytes of a message; more of them lie in a memory file
FDS_AT_ONCE = 253  # the kernel's limit for one packet
BUFFER_SIZE = 1 << 20
PATIENCE = 1.0  # seconds for others to receive some of what is in flight
PAUSE = 0.001
# Plain numbers: combining members of an enumeration costs a microsecond each time.
FLAGS = int(socket.MSG_CMSG_CLOEXEC)
NO_SIGNAL = int(socket.MSG_NOSIGNAL)
NO_WAIT = int(socket.MSG_DONTWAIT)
CUT_SHORT = int(socket.MSG_CTRUNC)
RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
PLACE_FOR_FDS = socket.CMSG_SPACE(FDS_AT_ONCE * array.array("i").itemsize)
KIND = socket.AF_UNIX, socket.SOCK_SEQPACKET


class Connection(connection.Connection):
    """One end of a pipe; in use it is the standard library's `Connection`."""

    # Its inner parts that are used here; the type stubs leave them out.
    _handle: int
    _check_closed: Callable[[], None]
    _check_readable: Callable[[], None]
    _check_writable: Callable[[], None]

    def __init__(self, handle: int, readable: bool = True, writable: bool = True):
        super().__init__(handle, readable, writable)
        self._socket = socket.socket(*KIND, fileno=self._handle)
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

    def receive(self, wait: bool = True) -> tuple[Any, list[int]]:
        """A message as it came: its bytes and descriptors, now the caller's.

        Raises `BlockingIOError` if there is none and the caller is not to `wait`.
        """
        self._check_closed()
        self._check_readable()
        return steps.read_message(self, wait)

    def write(
        self, payload: Any, descriptors: Sequence[int] = (), wait: bool = True
    ) -> None:
        """Write one message. Raises `BrokenPipeError` when nobody can read it.

        Raises `BlockingIOError` if that takes waiting and the caller is not to `wait`,
        and `ResourceError`; nothing has been written then.
        """
        size = memoryview(payload).nbytes
        header = HEADER.pack(len(descriptors), size)
        if size <= LARGEST_PACKET and len(descriptors) <= FDS_AT_ONCE:
            self._write_packet(b"".join((header, payload)), descriptors, wait)
            return
        with contextlib.ExitStack() as stack:
            body, beside = payload, []
            if size > LARGEST_PACKET:
                body, beside = b"", [stack.enter_context(_in_a_file(payload))]
            if len(beside) + len(descriptors) > FDS_AT_ONCE:
                beside.append(stack.enter_context(_in_a_crate(descriptors)))
                descriptors = ()
            self._write_packet(b"".join((header, body)), [*beside, *descriptors], wait)

    def _write_packet(
        self, packet: bytes, descriptors: Sequence[int], wait: bool
    ) -> None:
        flags = NO_SIGNAL if wait else NO_SIGNAL | NO_WAIT
        rights = [(*RIGHTS, array.array("i", descriptors))] if descriptors else []
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._socket.sendmsg([packet], rights, flags)
            except OSError as error:
                # What all processes of a user have in flight counts, so it may pass.
                if error.errno != errno.ETOOMANYREFS:
                    raise
                if time.monotonic() > deadline:
                    doing = f"Sending {len(descriptors)} descriptors"
                    raise resource_error(error.errno, doing) from error
                time.sleep(PAUSE)
            else:
                return

    def read(self, wait: bool = True) -> tuple[Any, list[int]]:
        """Read one message whole. Raises `EOFError`, `OSError` or `ResourceError`.

        Raises `BlockingIOError` if there is none and the caller is not to `wait`. If
        this process has no room for the descriptors, the message is lost, the ones that
        came are closed, and the connection stays in step.
        """
        packet, descriptors, lost = self._read_packet(wait)
        try:
            if len(packet) < HEADER.size:
                raise EOFError
            count, size = HEADER.unpack_from(packet)
            payload: Any = memoryview(packet)[HEADER.size :]
            beside = size > LARGEST_PACKET
            in_a_crate = beside + count > FDS_AT_ONCE
            if lost or len(descriptors) != beside + (1 if in_a_crate else count):
                raise _lost(count)
            if in_a_crate:
                _open_crate(descriptors, count)
            if beside:
                payload = _content(descriptors.pop(0), size)
        except BaseException:
            for fd in descriptors:
                os.close(fd)
            raise
        return payload, descriptors

    def _read_packet(self, wait: bool) -> tuple[bytes, list[int], bool]:
        """A packet, its descriptors, and whether some of them were lost."""
        flags = FLAGS if wait else FLAGS | NO_WAIT
        size = HEADER.size + LARGEST_PACKET
        while True:
            # A reset says once that the other end was closed with unread messages in
            # it; what it has sent comes next.
            with contextlib.suppress(ConnectionResetError):
                data, ancillary, got, _ = self._socket.recvmsg(
                    size, PLACE_FOR_FDS, flags
                )
                return data, _descriptors(ancillary), bool(got & CUT_SHORT)

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


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a packet."""
    found = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == RIGHTS:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return found.tolist()


@contextlib.contextmanager
def _in_a_file(payload: Any) -> Iterator[int]:
    """A memory file with these bytes, for the time of sending it."""
    doing = f"Sending a message of {memoryview(payload).nbytes} bytes"
    try:
        fd = os.memfd_create("sharedtensor-message", os.MFD_CLOEXEC)
    except OSError as error:
        raise resource_error(error.errno, doing) from error
    with os.fdopen(fd, "wb", buffering=0) as file:
        rest = memoryview(payload).cast("B")
        try:
            while rest.nbytes:
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise resource_error(error.errno, doing) from error
        yield fd


def _content(fd: int, size: int) -> bytearray:
    """The bytes of a memory file, which is closed. Raises `OSError` if it is short."""
    with os.fdopen(fd, "rb", buffering=0) as file:
        file.seek(0)
        content = bytearray(size)
        rest = memoryview(content)
        while rest.nbytes:
            count = file.readinto(rest)
            if not count:
                raise OSError(f"A message of {size} bytes came with fewer of them.")
            rest = rest[count:]
    return content


@contextlib.contextmanager
def _in_a_crate(descriptors: Sequence[int]) -> Iterator[int]:
    """The end of a socket that holds these descriptors, for the time of sending it."""
    doing = f"Sending {len(descriptors)} descriptors"
    try:
        loading, crate = socket.socketpair(*KIND)
    except OSError as error:
        raise resource_error(error.errno, doing) from error
    with crate:
        try:
            with loading:
                loading.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_SIZE)
                for begin in range(0, len(descriptors), FDS_AT_ONCE):
                    part = descriptors[begin : begin + FDS_AT_ONCE]
                    socket.send_fds(loading, [b"+"], part, NO_WAIT)
        except OSError as error:
            raise resource_error(error.errno, doing) from error
        yield crate.fileno()


def _open_crate(descriptors: list[int], count: int) -> None:
    """Put the descriptors in the place of their crate, the last one in the list.

    Raises `ResourceError` if this process has no room for them.
    """
    beside = len(descriptors) - 1
    with socket.socket(*KIND, fileno=descriptors.pop()) as crate:
        crate.settimeout(None)
        while len(descriptors) - beside < count:
            data, ancillary, got, _ = crate.recvmsg(1, PLACE_FOR_FDS, FLAGS)
            descriptors += _descriptors(ancillary)
            if not data or got & CUT_SHORT:
                raise _lost(count)


def _lost(count: int) -> ResourceError:
    doing = f"Receiving the {count} descriptors of a message, which is lost,"
    return resource_error(errno.EMFILE, doing)


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    """A pair of connected ends; if not `duplex`, the first only receives."""
    ends = socket.socketpair(*KIND)
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
