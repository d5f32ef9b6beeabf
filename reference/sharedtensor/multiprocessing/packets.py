"""Messages as packets that carry descriptors, over UNIX sockets.

A pipe is a pair of sockets of the type `SOCK_SEQPACKET`, and each message is one
packet: a header, which says how many descriptors and bytes there are, and the bytes.
The descriptors travel with it (SCM_RIGHTS). What does not fit into a packet travels
beside it, by way of a descriptor: many bytes in a memory file, many descriptors as a
batch in the buffer of another socket.

So a message is written whole or not at all, and read whole or not at all:

- A process that is killed while it writes leaves no half message to its reader.
- Several processes may read or write at once, and need no lock, which a killed process
  would hold for ever (clause LIFE-6).
- Once it is written it is in the kernel's hands. The sender may drop its tensors, or
  end, before it is read (clauses LIFE-2, LIFE-5); and if no process can read it,
  the kernel closes the descriptors in it (clause LIFE-13).
"""

import _socket
import array
import contextlib
import errno
import os
import resource
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import chain, starmap
from typing import Any

from .. import atomic
from ..descriptors import (
    RIGHTS,
    OwnedDescriptor,
    OwnedSockets,
    ReceivedDescriptors,
    by_reserve,
)
from ..errors import ResourceError, pass_on, resource_error
from ..segments import DIRECTORY

HEADER = struct.Struct("!IQ")
LARGEST_PACKET = 1 << 15  # bytes of a message; more of them lie in a memory file
WHOLE_PACKET = HEADER.size + LARGEST_PACKET
BEGINNING = 64  # bytes of such a message that are in its packet, too
IN_FLIGHT_TIMEOUT = 1.0  # seconds for others to receive some of what is in flight
PAUSE = 0.001
FDS_AT_ONCE = 253  # the kernel's limit for one packet
BUFFER_SIZE = 1 << 20  # of a pipe, as far as the system permits that
LARGEST_BATCH = 100 * FDS_AT_ONCE  # more packets than these may not fit into a socket
BYTES_FOR_EACH = 1 << 10
"""The room that a message takes in a pipe for each descriptor but its first.

An empty packet takes as much of the kernel's memory. So what fits into a pipe bounds
the descriptors that are in flight in it: all programs of a user together may have as
many as one process may have open (unix(7)).
"""

# Plain numbers: combining members of an enumeration costs a microsecond each time.
FLAGS = int(socket.MSG_CMSG_CLOEXEC)
NO_SIGNAL = int(socket.MSG_NOSIGNAL)
NO_WAIT = int(socket.MSG_DONTWAIT)
CUT_SHORT = int(socket.MSG_CTRUNC)
PLACE_FOR_FDS = socket.CMSG_SPACE(FDS_AT_ONCE * array.array("i").itemsize)
KIND = socket.AF_UNIX, socket.SOCK_SEQPACKET
UNNAMED_FILE = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
FORBIDDEN = errno.EPERM, errno.ENOSYS  # what a filter of system calls returns


def pair(room: int = BUFFER_SIZE) -> tuple[OwnedDescriptor, OwnedDescriptor]:
    """Return two connected sockets with room for some messages, as descriptors."""
    first, second = ends = _socket.socketpair(*KIND)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    opened_by = OwnedDescriptor.opened_by
    return opened_by(first.detach), opened_by(second.detach)


def write(
    end: socket.SocketType,
    payload: Any,
    descriptors: Sequence[int],
    wait: bool,
    sent: list[object] | None = None,
) -> None:
    """Write one message. Raises `BrokenPipeError` when no process can read it.

    Raises `BlockingIOError` if that takes waiting and the caller is not to `wait`, and
    `ResourceError`; nothing has been written then. Once the message is written there is
    something in `sent`. Clauses FAIL-1, FD-6, LOAD-4.
    """
    size, count = memoryview(payload).nbytes, len(descriptors)
    if size <= LARGEST_PACKET and count <= FDS_AT_ONCE:
        _send(end, packed(count, size, payload), descriptors, wait, sent)
        return
    if not (wait or has_room(end)):
        raise BlockingIOError  # before anything is copied
    with contextlib.ExitStack() as made:
        body, rights = payload, descriptors
        attached = []
        if size > LARGEST_PACKET:
            body = memoryview(payload).cast("B")[:BEGINNING]
            attached.append(made.enter_context(closing(in_a_file(payload))).fd)
        if len(attached) + count > FDS_AT_ONCE:
            rights = [made.enter_context(closing(batch_of(descriptors))).fd]
        _send(end, packed(count, size, body), [*attached, *rights], wait, sent)


def verify_sendable(payload: Any, count: int) -> None:
    """Verify that a message with `count` descriptors can be written some time.

    Raises `ResourceError` where no waiting helps. Clauses FAIL-1, FAIL-5, FD-6.
    """
    if count > LARGEST_BATCH:
        raise resource_error(errno.EAGAIN, f"Sending {count} descriptors")
    size = memoryview(payload).nbytes
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size > LARGEST_PACKET and resource.RLIM_INFINITY != limit < size:
        raise resource_error(errno.EFBIG, f"Sending a message of {size} bytes")


def has_room(end: socket.SocketType) -> bool:
    """Return whether a message can be written without waiting."""
    poller = select.poll()
    poller.register(end.fileno(), select.POLLOUT)
    return bool(poller.poll(0))


def packed(count: int, size: int, body: Any) -> bytes:
    """Return the bytes of a packet, long enough for its descriptors."""
    packet = b"".join((HEADER.pack(count, size), body))
    if count < 2:
        return packet
    return packet.ljust(min(count * BYTES_FOR_EACH, WHOLE_PACKET), b"\0")


def _send(
    end: socket.SocketType,
    packet: bytes,
    descriptors: Sequence[int],
    wait: bool,
    sent: list[object] | None,
) -> None:
    """Write one packet; see `write` for what is raised.

    All programs of a user together may have as many descriptors in flight as one
    process may have open (unix(7)), so a refusal may pass.
    """
    into = [] if sent is None else sent
    flags = NO_SIGNAL if wait else NO_SIGNAL | NO_WAIT
    rights = [(*RIGHTS, array.array("i", descriptors))] if descriptors else []
    arguments = [packet], rights, flags
    until = 0.0
    while True:
        try:
            return atomic.append(into, end.sendmsg, *arguments)
        except OSError as error:
            pass_on(error)
            if error.errno != errno.ETOOMANYREFS:
                raise
            if not wait:
                raise BlockingIOError(*error.args) from error
            until = until or time.monotonic() + IN_FLIGHT_TIMEOUT
            if time.monotonic() >= until:
                doing = f"Sending {len(descriptors)} descriptors"
                raise resource_error(error.errno, doing) from error
        time.sleep(PAUSE)


def read(
    end: socket.SocketType, wait: bool, taken: list[Any] | None = None
) -> tuple[Any, ReceivedDescriptors]:
    """Return one message whole: its bytes, and its descriptors, the caller's.

    One reader alone gets it: clause LIFE-15. It is taken before anything in it is
    looked at, so one that cannot be rebuilt leaves the connection in step: clause
    GRAD-6. Descriptors are not inherited by other programs: clauses FD-5, LIFE-23.
    A packet is in `taken`, an empty list, once it has left the socket; whatever is
    raised later, the message has left the channel. See `payload_of`.

    Raises `EOFError` when there is no writer any more (clause LOAD-5), `OSError`,
    `ResourceError`, or `BlockingIOError` if there is none and the caller is not to
    `wait`. If this process has no room for the descriptors,
    the message is lost, the ones that came are closed, and the connection stays in
    step. Clauses FAIL-2, FAIL-8, FAULT-4, THREAD-9.
    """
    packet, descriptors, lost = _receive(end, wait, [] if taken is None else taken)
    try:
        if len(packet) < HEADER.size:
            raise EOFError
        count, size = HEADER.unpack_from(packet)
        payload: Any = memoryview(packet)[HEADER.size : HEADER.size + size]
        attached = size > LARGEST_PACKET
        in_a_batch = attached + count > FDS_AT_ONCE
        if lost or len(descriptors.places) != attached + (1 if in_a_batch else count):
            raise _lost(count)
        if in_a_batch:
            open_batch(descriptors, count)
        if attached:
            payload = content_of(descriptors, size)
    except BaseException:
        descriptors.close()
        raise
    return payload, descriptors


def payload_of(taken: list[Any]) -> memoryview | None:
    """Return the bytes of a message in its packet: all, or those at its beginning.

    None if no message was taken. The end of the pipe comes as a packet without bytes.
    """
    if not taken or not taken[0][0]:
        return None
    packet = memoryview(taken[0][0])
    _, size = HEADER.unpack_from(packet)
    return packet[HEADER.size : HEADER.size + size]


def _receive(
    end: socket.SocketType, wait: bool, taken: list[Any]
) -> tuple[bytes, ReceivedDescriptors, bool]:
    """Return a packet, its descriptors, and whether some of them were lost.

    Waiting takes nothing, so a signal handler may interrupt it. Clause THREAD-5.
    """
    flags = FLAGS if wait else FLAGS | NO_WAIT
    found = ReceivedDescriptors()
    size = WHOLE_PACKET, PLACE_FOR_FDS
    while True:
        try:
            data, got = found.receive(taken, end.recvmsg, *size, flags)
        except ConnectionResetError as error:
            pass_on(error)
            # It says once that the other end was closed with unread messages in it;
            # what it has sent comes next.
            continue
        return data, found, bool(got & CUT_SHORT)


def in_a_file(payload: Any) -> OwnedDescriptor:
    """Return a memory file with these bytes. Raises `ResourceError`."""
    doing = f"Sending a message of {memoryview(payload).nbytes} bytes"
    try:
        made = by_reserve(unnamed_file)
        rest = memoryview(payload).cast("B")
        while rest.nbytes:
            rest = rest[os.write(made.fd, rest) :]
    except OSError as error:
        pass_on(error)
        raise resource_error(error.errno, doing) from error
    return made


def unnamed_file() -> OwnedDescriptor:
    """Return a new file without a name, in memory. Raises `OSError`.

    Messages need no tensors, and no particular system call. Clause ENV-3.
    """
    opened_by = OwnedDescriptor.opened_by
    try:
        return opened_by(os.memfd_create, "sharedtensor-message", os.MFD_CLOEXEC)
    except OSError as error:
        pass_on(error)
        if error.errno not in FORBIDDEN:
            raise
        return opened_by(os.open, DIRECTORY, UNNAMED_FILE, 0o600)


def content_of(descriptors: ReceivedDescriptors, size: int) -> bytearray:
    """Return the bytes of a memory file, the first of the descriptors, and close it.

    Raises `OSError` if it is short.
    """
    file = descriptors.places[0]
    assert file is not None, "nobody has taken one yet"
    content = bytearray(size)
    rest = memoryview(content)
    while rest.nbytes:
        count = os.preadv(file, [rest], size - rest.nbytes)
        if not count:
            raise OSError(f"A message of {size} bytes came with fewer of them.")
        rest = rest[count:]
    descriptors.drop(0)
    return content


def batch_of(descriptors: Sequence[int]) -> OwnedDescriptor:
    """Return the end of a socket that holds these descriptors. Clause FD-6.

    Raises `ResourceError`.
    """
    verify_sendable(b"", len(descriptors))
    doing = f"Sending {len(descriptors)} descriptors"
    try:
        with closing(by_reserve(_pair_of_sockets)) as made:
            filling, batch = made.sockets
            filling.setblocking(
                False
            )  # there is no reader: what is too much is refused
            for begin in range(0, len(descriptors), FDS_AT_ONCE):
                _send(
                    filling, b"+", descriptors[begin : begin + FDS_AT_ONCE], True, None
                )
            return OwnedDescriptor.opened_by(batch.detach)
    except OSError as error:
        if isinstance(error, ResourceError):
            raise
        pass_on(error)
        raise resource_error(error.errno, doing) from error


def _pair_of_sockets() -> OwnedSockets:
    return OwnedSockets(chain.from_iterable(starmap(_socket.socketpair, (KIND,))))


def open_batch(descriptors: ReceivedDescriptors, count: int) -> None:
    """Put the descriptors in the place of their batch, the last one in the list.

    Raises `ResourceError` if this process has no room for them. Clause FD-6.
    """
    attached = len(descriptors.places) - 1
    kind = ([each] for each in (*KIND, 0))
    last = map(descriptors.places.pop, (-1,))
    with closing(OwnedSockets(map(_socket.socket, *kind, last))) as made:
        [batch] = made.sockets
        batch.settimeout(None)
        while len(descriptors.places) - attached < count:
            data, got = descriptors.receive([], batch.recvmsg, 1, PLACE_FOR_FDS, FLAGS)
            if not data or got & CUT_SHORT:
                raise _lost(count)


def _lost(count: int) -> ResourceError:
    doing = f"Receiving the {count} descriptors of a message, which is lost,"
    return resource_error(errno.EMFILE, doing)
