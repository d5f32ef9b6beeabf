"""The connection of this process to one manager, and what was said on it.

What was said is kept, since a successor of a manager that was killed has to hear it
again. `client` has one link for each manager, and the lock under which all of this is
called.
"""

import os
import select
import socket
from collections import deque

from ..errors import ManagerError
from . import daemon, launch

UNREAD = 1024  # more messages than a manager can have been sent and not have read


class Link:
    """This process's side of one manager."""

    def __init__(self, address: str, connection: socket.socket | None = None) -> None:
        self.address = address
        self.socket = connection
        self.holds: dict[bytes, int] = {}
        self.registered: deque[bytes] = deque(maxlen=UNREAD)  # released since or not
        self.has_counted = False
        self.is_stalled = False

    def send(self, packet: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message, without waiting if the manager has stalled before.

        Clause MGR-18.
        """
        assert self.socket is not None
        flags = socket.MSG_NOSIGNAL
        if self.is_stalled:
            flags |= socket.MSG_DONTWAIT
        try:
            if descriptors:
                socket.send_fds(self.socket, [packet], descriptors, flags)
            else:
                self.socket.send(packet, flags)
        except BlockingIOError:
            self.is_stalled = True
            raise ManagerError(
                f"The shared-memory manager at {self.address} reads no messages. "
                "Check whether it is stopped."
            ) from None
        self.is_stalled = False

    def record(self, kind: bytes, name: bytes) -> None:
        """Note what was sent, to say it to a successor. Clause MGR-14."""
        if kind == daemon.REGISTER:
            self.holds[name] = self.holds.get(name, 0) + 1
            self.registered.append(name)
        elif kind == daemon.RELEASE:
            count = self.holds.pop(name) - 1
            if count:
                self.holds[name] = count
        elif kind == daemon.ANNOUNCE_COUNTED:
            self.has_counted = True

    def open(self, may_create: bool) -> None:
        """Connect, and register again what was held at a manager that has died.

        Clauses MGR-14, FAULT-5.
        """
        self.socket = launch.reach(self.address, may_create or bool(self.holds))
        try:
            for name, count in self.holds.items():
                for _ in range(count):
                    self.send(daemon.REGISTER_AGAIN + name)
            for name in self.perhaps_unread():
                self.send(daemon.REGISTER_AGAIN + name)
                self.send(daemon.RELEASE + name)
        except BaseException:
            self.close()
            raise

    def perhaps_unread(self) -> list[bytes]:
        """Return names that are there and of which only this process may know.

        It has released them; a message may carry them that nobody will receive. Clause
        MGR-14.
        """
        released = set(self.registered).difference(self.holds)
        there = [name for name in released if os.path.exists(daemon.path_of(name))]
        return sorted(there)

    def close(self) -> None:
        """Give up the connection, and with it all that the manager counts for it."""
        if self.socket is not None:
            self.socket.close()
        self.socket = None
        self.is_stalled = False

    def __del__(self) -> None:
        """Close what is open to the end of the process: Python warns of sockets."""
        self.close()

    def was_killed(self) -> bool:
        """Return whether the manager has ended and has left its directory behind."""
        if self.socket is not None:
            poll = select.poll()
            poll.register(self.socket, 0)
            if not poll.poll(0):
                return False
        return os.path.isdir(os.path.dirname(self.address))

    def receive(self, token: bytes) -> bytes:
        """Return what the manager answered to the request with this token.

        Raises `ManagerError` if it does not answer in time. Clause MGR-18.
        """
        assert self.socket is not None
        while True:
            try:
                reply = self.socket.recv(len(token) + daemon.COUNTS.size)
            except BlockingIOError:
                raise ManagerError(
                    f"The shared-memory manager at {self.address} did not answer "
                    f"within {launch.TIMEOUT:g} seconds. Check whether it is stopped."
                ) from None
            if not reply:
                raise ConnectionResetError("the manager ended")
            if reply.startswith(token):  # else the late answer to an earlier request
                return reply[len(token) :]

    def prefork_connection(self) -> socket.socket | None:
        """Return a connection that holds what this one holds, for a child to inherit.

        None if there can be none: the child will connect by itself. Clauses START-3,
        LIFE-22, MGR-11.
        """
        try:
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours, theirs = map(launch.above_standard_streams, pair)
            with theirs:
                self.send(daemon.PREFORK, (theirs.fileno(),))
        except (OSError, ManagerError):
            return None
        launch.set_timeouts(ours)
        return ours
