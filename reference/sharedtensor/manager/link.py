"""The connection of this process to one manager: `conversation` by system calls.

`client` has one link for each manager, and the lock under which all of this is called.
"""

import array
import errno
import os
import select
import socket
from functools import partial
from typing import Any

from ..descriptors import IN_FLIGHT_TIMEOUT, RIGHTS, send_in_time
from ..errors import ManagerError, pass_on, resource_error
from . import daemon, launch, messages
from .conversation import NOT_SENT, Connected, Conversation
from .serving import complete

REFUSALS = errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS  # by the system
NO_SIGNAL = int(socket.MSG_NOSIGNAL)


class Link(Conversation):
    """This process's side of one manager; its methods wait no longer than a timeout.

    Attributes:
        is_stalled: whether the manager did not take the last message in time.
    """

    def __init__(self, address: str, connected: Connected | None = None) -> None:
        super().__init__(address, connected)
        self.is_stalled = False

    async def reach(self, may_create: bool) -> Connected:
        return launch.reach(self.address, may_create)

    def deliver_at_once(
        self, kind: bytes, argument: bytes, descriptors: tuple[int, ...]
    ) -> bool:
        """Begin `deliver` without a coroutine, which takes longer than the system call.

        Return False if there is no manager now: then `deliver` goes on.
        """
        if self.connection is None or self.is_to_send_on(kind, argument):
            return False
        if kind == messages.RELEASE and not self.has_to_release(argument):
            return True
        self.record_use(kind, argument)
        try:
            self.transmit_now(kind + argument, descriptors)
        except NOT_SENT as error:
            pass_on(error)
            self.take_back(kind, argument)
            if not isinstance(error, ConnectionError):
                raise
            self.hang_up()
            return False
        self.record(kind, argument)
        return True

    def hold_at_once(self, name: bytes, descriptor: Any) -> bool:
        """Do `hold` without a coroutine; return False if there is no manager now."""
        if self.connection is None or not self.is_waited_for(descriptor):
            return False
        if self.kept_open is not None:
            try:
                for packet in self.registration(self.kept_open[0]):
                    self.transmit_now(packet, ())
            except ConnectionError as error:
                pass_on(error)
                self.hang_up()
                return False
            self.count_kept_open()
        self.keep_open(name, descriptor)
        return True

    def is_waited_for(self, descriptor: Any) -> bool:
        return not has_ended(descriptor.fd)

    async def transmit(self, packet: bytes, descriptors: tuple[Any, ...]) -> None:
        self.transmit_now(packet, descriptors)

    def transmit_now(self, packet: bytes, descriptors: tuple[int, ...]) -> None:
        """Send one message, without waiting if the manager has stalled before.

        Clause MGR-18.
        """
        until = 0.0
        while not self.try_to_send(packet, descriptors):
            until = until or launch.deadline()
            self.wait_for_room(until)
        self.is_stalled = False

    def try_to_send(self, packet: bytes, descriptors: tuple[int, ...]) -> bool:
        """Send one message; return False if there is no room for it now.

        Raises `ConnectionError` if the manager has died, and `ResourceError` if the
        system refuses it: for that no name is given up. Clauses FS-8, MGR-11.
        """
        assert self.connection is not None
        try:
            if descriptors:  # `socket.send_fds` leaves the flags out
                rights = (*RIGHTS, array.array("i", descriptors))
                send = partial(self.connection.sendmsg, [packet], [rights], NO_SIGNAL)
                send_in_time(send, IN_FLIGHT_TIMEOUT)
            else:
                self.connection.send(packet, NO_SIGNAL)
        except BlockingIOError as error:
            pass_on(error)
            return False
        except OSError as error:
            pass_on(error)
            raise failure(error) from error
        return True

    def wait_for_room(self, until: float) -> None:
        """Wait until the manager has read messages, unless it has stalled before.

        Raises `ManagerError`. Clause MGR-18.
        """
        if not self.is_stalled:
            try:
                return launch.wait_for(self.connection, select.POLLOUT, until)
            except TimeoutError as error:
                pass_on(error)
                self.is_stalled = True
        raise ManagerError(
            f"The shared-memory manager at {self.address} reads no messages. "
            "Check whether it is stopped."
        )

    async def receive(self, token: bytes) -> bytes:
        """Return what the manager answered to the request with this token.

        Raises `ManagerError` if it does not answer in time. Clause MGR-18.
        """
        assert self.connection is not None
        until = launch.deadline()
        while True:
            try:
                launch.wait_for(self.connection, select.POLLIN, until)
            except TimeoutError as error:
                pass_on(error)
                raise ManagerError(
                    f"The shared-memory manager at {self.address} did not answer "
                    f"within {launch.TIMEOUT:g} seconds. Check whether it is stopped."
                ) from None
            reply: bytes = self.connection.recv(len(token) + messages.COUNTS.size)
            if not reply:
                raise ConnectionResetError("the manager ended")
            if reply.startswith(token):  # else the late answer to an earlier request
                return reply[len(token) :]

    def close(self, opened: Any) -> None:
        launch.close(opened)

    def let_go(self, descriptor: Any) -> None:
        pass  # it is closed with the last reference to it

    def new_token(self) -> bytes:
        return os.urandom(messages.TOKEN)

    def has_file(self, name: bytes) -> bool:
        return os.path.exists(daemon.path_of(name))

    def hang_up(self) -> None:
        """Give up the connection, and with it all that the manager counts for it."""
        super().hang_up()
        self.is_stalled = False

    def __del__(self) -> None:
        """Close what is open to the end of the process: Python warns of sockets."""
        if self.connection is not None:
            self.connection.close()

    def was_killed(self) -> bool:
        """Return whether the manager has ended and has left its directory behind."""
        if self.connection is not None and not has_ended(self.connection.fileno()):
            return False
        return os.path.isdir(os.path.dirname(self.address))

    def prefork_connection(self) -> socket.socket | None:
        """Return a connection that holds what this one holds, for a child to inherit.

        None if there can be none: the child will connect by itself. Clauses START-3,
        LIFE-22, MGR-11.
        """
        try:
            complete(self.register_kept_open())
        except (OSError, ManagerError) as error:
            pass_on(error)  # else it has stalled, or the system refuses it
            return None
        if self.connection is None:
            return None
        try:
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours, theirs = map(launch.above_standard_streams, pair)
            with theirs:
                complete(self.transmit(messages.PREFORK, (theirs.fileno(),)))
        except (OSError, ManagerError) as error:
            pass_on(error)
            return None
        inherited = Inherited(fileno=ours.detach())
        launch.set_up(inherited)
        return inherited


class Inherited(socket.socket):
    """A connection that a child inherits: closed with its last reference.

    It is closed by a function of C, as the package says of what ends a fork, and
    without the warning that Python has for the end of a socket.
    """

    __slots__ = ()
    __del__ = socket.SocketType.close


def failure(error: OSError) -> OSError:
    """Return what it means that a message could not be sent."""
    if error.errno in REFUSALS:
        doing = "Sending a message to the shared-memory manager"
        return resource_error(error.errno, doing)
    return ConnectionError(error.errno, error.strerror)


def has_ended(descriptor: int) -> bool:
    """Return whether nobody has the other end of a connection or a pipe."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))
