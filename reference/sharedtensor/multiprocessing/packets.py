"""Messages as packets that carry descriptors, over UNIX sockets.

A pipe is a pair of sockets of the type `SOCK_SEQPACKET`, and each message is one
packet: a header, which says how many descriptors and bytes there are, and the bytes.
The descriptors travel with it (SCM_RIGHTS). What does not fit into a packet travels
beside it, by way of a descriptor: many bytes in a memory file, many descriptors as a
batch in the buffer of another socket.

So a message is written whole or not at all, and read whole or not at all:

- Whoever is killed while it writes leaves no half message to its reader.
- Several processes may read or write at once, and no lock is needed, which somebody who
  is killed would hold for ever (clause LIFE-6).
- Once it is written it is in the kernel's hands. The sender may drop its tensors, or
  end, before it is read (clauses LIFE-2, LIFE-5); and if nobody can read it any more,
  the kernel closes the descriptors in it (clause LIFE-13).
"""

import _socket
import array
import errno
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import chain, starmap
from typing import Any

from ..descriptors import RIGHTS, OwnedDescriptor, OwnedSockets, ReceivedDescriptors
from ..errors import ResourceError, pass_on, resource_error
from ..segments import DIRECTORY

HEADER = struct.Struct("!IQ")
LARGEST_PACKET = 1 << 15  # bytes of a message; more of them lie in a memory file
WHOLE_PACKET = HEADER.size + LARGEST_PACKET
BEGINNING = 64  # bytes of such a message that are in its packet, too
FDS_AT_ONCE = 253  # the kernel's limit for one packet
BUFFER_SIZE = 1 << 20
IN_FLIGHT_TIMEOUT = 1.0  # seconds for others to receive some of what is in flight
PAUSE = 0.001
# Plain numbers: combining members of an enumeration costs a microsecond each time.
FLAGS = int(socket.MSG_CMSG_CLOEXEC)
NO_SIGNAL = int(socket.MSG_NOSIGNAL)
NO_WAIT = int(socket.MSG_DONTWAIT)
CUT_SHORT = int(socket.MSG_CTRUNC)
PLACE_FOR_FDS = socket.CMSG_SPACE(FDS_AT_ONCE * array.array("i").itemsize)
KIND = socket.AF_UNIX, socket.SOCK_SEQPACKET
UNNAMED_FILE = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
FORBIDDEN = errno.EPERM, errno.ENOSYS  # what a filter of system calls returns


def pair() -> tuple[OwnedDescriptor, OwnedDescriptor]:
    """Return two connected sockets with room for some messages, as descriptors."""
    first, second = ends = _socket.socketpair(*KIND)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_SIZE)
    opened_by = OwnedDescriptor.opened_by
    return opened_by(first.detach), opened_by(second.detach)


def write(
    end: socket.SocketType,
    payload: Any,
    descriptors: Sequence[int],
    wait: bool,
    timeout: float,
    sent: list[object] | None = None,
) -> None:
    """Write one message. Raises `BrokenPipeError` when nobody can read it.

    Raises `BlockingIOError` if that takes waiting and the caller is not to `wait`, and
    `ResourceError`; nothing has been written then. `timeout` is the seconds to wait
    while others have too many descriptors in flight. Once the message is written there
    is something in `sent`. Clauses FAIL-1, FD-6, LOAD-4.
    """
    size, count = memoryview(payload).nbytes, len(descriptors)
    if size <= LARGEST_PACKET and count <= FDS_AT_ONCE:  # as `fits` says
        packet = b"".join((HEADER.pack(count, size), payload))
        _send(end, packet, descriptors, wait, timeout, sent)
        return
    large = Packet(payload, descriptors)
    try:
        large.write(end, wait, timeout, sent)
    finally:
        large.close()


def fits(payload: Any, descriptors: Sequence[int]) -> bool:
    """Return whether a message needs no descriptor besides its own."""
    few = len(descriptors) <= FDS_AT_ONCE
    return few and memoryview(payload).nbytes <= LARGEST_PACKET


class Packet:
    """A message that can be written whenever there is room: it has what that takes.

    What does not fit lies in a file, or in a batch, from the beginning; so nothing can
    be short any more when a thread writes it at last. Clause FAIL-1.

    Raises:
        ResourceError: the system refuses the descriptors or the memory.
    """

    __slots__ = ("_bytes", "_descriptors", "_owned")

    def __init__(self, payload: Any, descriptors: Sequence[int]):
        size, count = memoryview(payload).nbytes, len(descriptors)
        self._owned: list[OwnedDescriptor] = []
        body = payload
        if size > LARGEST_PACKET:
            body = memoryview(payload).cast("B")[:BEGINNING]
            self._owned.append(in_a_file(payload))
        if len(self._owned) + count > FDS_AT_ONCE:
            self._owned.append(batch_of(descriptors))
            descriptors = ()
        self._descriptors = descriptors
        self._bytes = b"".join((HEADER.pack(count, size), body))

    def write(
        self,
        end: socket.SocketType,
        wait: bool,
        timeout: float,
        sent: list[object] | None = None,
    ) -> None:
        """Write it; see `write` for what is raised.

        Args:
            end: where to.
            wait: whether to wait for room.
            timeout: seconds to wait while others have too many descriptors in flight.
            sent: a list in which there is something once it is written.
        """
        descriptors = [*(owned.fd for owned in self._owned), *self._descriptors]
        _send(end, self._bytes, descriptors, wait, timeout, sent)

    def close(self) -> None:
        """Close the descriptors that were made for it."""
        for owned in self._owned:
            owned.close()


def _send(
    end: socket.SocketType,
    packet: bytes,
    descriptors: Sequence[int],
    wait: bool,
    timeout: float,
    sent: list[object] | None,
) -> None:
    sent = [] if sent is None else sent
    flags = NO_SIGNAL if wait else NO_SIGNAL | NO_WAIT
    rights = [(*RIGHTS, array.array("i", descriptors))] if descriptors else []
    arguments = [packet], rights, flags
    deadline = 0.0
    while True:
        try:
            sent.extend(starmap(end.sendmsg, (arguments,)))
        except OSError as error:
            # What all processes of a user have in flight counts, so it may pass.
            pass_on(error)
            if error.errno != errno.ETOOMANYREFS:
                raise
            deadline = deadline or time.monotonic() + timeout
            if time.monotonic() > deadline:
                doing = f"Sending {len(descriptors)} descriptors"
                raise resource_error(error.errno, doing) from error
            time.sleep(PAUSE)
        else:
            return


def read(
    end: socket.SocketType, wait: bool, taken: list[Any] | None = None
) -> tuple[Any, ReceivedDescriptors]:
    """Return one message whole: its bytes, and its descriptors, the caller's.

    One reader alone gets it: clause LIFE-15. It is taken before anything in it is
    looked at, so one that cannot be rebuilt leaves the connection in step: clause
    GRAD-6. Descriptors are not inherited by other programs: clauses FD-5, LIFE-23.
    A packet is in `taken`, an empty list, once it has left the socket; whatever is
    raised later, the message is no more in here. See `payload_of`.

    Raises `EOFError` when there is no writer any more (clause LOAD-5), `OSError`,
    `ResourceError`, or `BlockingIOError` if there is none and the caller is not to
    `wait`. If this process has no room for the descriptors,
    the message is lost, the ones that came are closed, and the connection stays in
    step. Clauses FAIL-2, FAIL-8, FAULT-4.
    """
    packet, descriptors, lost = _receive(end, wait, [] if taken is None else taken)
    try:
        if len(packet) < HEADER.size:
            raise EOFError
        payload: Any = memoryview(packet)[HEADER.size :]
        count, size = HEADER.unpack_from(packet)
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
    return memoryview(taken[0][0])[HEADER.size :]


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
        made = unnamed_file()
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
    """Return the end of a socket that holds these descriptors. Clause FD-6."""
    doing = f"Sending {len(descriptors)} descriptors"
    try:
        ends = chain.from_iterable(starmap(_socket.socketpair, (KIND,)))
        with closing(OwnedSockets(ends)) as made:
            loading, batch = made.sockets
            loading.setblocking(False)  # nobody makes room: what is too much is refused
            for begin in range(0, len(descriptors), FDS_AT_ONCE):
                part = descriptors[begin : begin + FDS_AT_ONCE]
                loading.sendmsg([b"+"], [(*RIGHTS, array.array("i", part))])
            return OwnedDescriptor.opened_by(batch.detach)
    except OSError as error:
        pass_on(error)
        raise resource_error(error.errno, doing) from error


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
