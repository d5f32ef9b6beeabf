"""What a client says to a manager, when, and what it does when that has died. No I/O.

As in `serving`, each `await` is a point at which another process may come in between,
or this one may be killed; only the simulator of the tests makes one wait. `link` and
`launch` implement the operations with system calls.

**The order of messages** makes the manager's counts true (clauses FS-2, LIFE-2). A
sender registers a name before it creates the file, announces before the handle leaves
the process, and releases at the end; a receiver registers before it opens the file, and
only then closes the descriptor that came with the message, or acknowledges it. As long
as it keeps that descriptor open, the name is in flight still, and need not be
registered: what is received and dropped again is never told to the manager. So a client
keeps one such descriptor, that of the name which it received last
(`forgets_what_it_keeps_open`, `children_get_nothing_that_is_kept_open`). In the
simulator the mutants `makes_before_it_registers`, `announces_nothing`,
`lets_go_before_it_holds` and `acknowledges_before_it_holds` break these orders.

**A successor.** If a manager was killed, its socket refuses connections. The first
client to notice starts a successor at the same address, under a lock on the directory
(which the kernel releases at death), so all handles stay good and all clients find the
same successor. It is told what this client holds, and of names that this client has
released and that its predecessor may not have read of (`succeeds_without_the_lock`,
`says_nothing_again`, `says_only_what_it_holds`).

**The presence pipe.** The successor must neither end nor remove a name while clients
live that have not noticed (`nobody_is_present`, `leaves_before_it_has_come`). So each
client keeps a named pipe in the manager's directory open as long as it is a client, and
gives it up for that of the successor only after it has registered there; the kernel
tells the successor when the last one has. A pipe is of one manager: who puts a
successor there renames that of the predecessor (`presence_is_of_all_managers`). A
client opens the pipe before it waits for the answer to its first SYNC, so it is that of
the manager which answers.

What nobody can mend is the death of a manager and of all its clients: then names stay.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import ManagerError, ResourceError, pass_on
from . import messages

REACH_ATTEMPTS = 5
SEND_ATTEMPTS = 3
ANNOUNCEMENTS = (messages.ANNOUNCE, messages.ANNOUNCE_COUNTED)
USES = (messages.REGISTER, messages.REGISTER_ANNOUNCED)
UNREAD = 1024  # more messages than a manager can have been sent and not have read

# What `transmit` raises when it has sent nothing.
NOT_SENT = (ConnectionError, ManagerError, ResourceError)

# What connecting to a manager that has ended, or is about to, can give.
NOT_SERVING = (FileNotFoundError, ConnectionError)


class AddressTaken(Exception):
    """Another client has put a manager at this address."""


class Connected(NamedTuple):
    """A connection to a manager, and the end of its presence pipe, if it has one."""

    connection: Any
    presence: Any


class System:
    """What reaching and starting a manager asks of the operating system."""

    async def connect(self, address: str) -> Any:
        """Connect to a socket of this user. Raises `OSError`."""
        raise NotImplementedError

    async def open_presence(self, address: str) -> Any:
        """Open the presence pipe of the manager at an address; None if it has none."""
        raise NotImplementedError

    async def greet(self, connection: Any) -> None:
        """Send SYNC and wait for its answer. Raises `OSError`, also after a time."""
        raise NotImplementedError

    def close(self, opened: Any) -> None:
        """Close a connection or a pipe, if it is one."""
        raise NotImplementedError

    async def lock(self, directory: str) -> Any:
        """Lock a directory of this user's; return what to unlock. Raises `OSError`."""
        raise NotImplementedError

    async def unlock(self, folder: Any) -> None:
        """Unlock a directory."""
        raise NotImplementedError

    async def is_directory(self, path: str) -> bool:
        """Return whether there is such a directory."""
        raise NotImplementedError

    async def remove_socket(self, address: str) -> None:
        """Remove the socket of a manager that was killed, if it is there."""
        raise NotImplementedError

    async def spawn(self, directory: str) -> Any:
        """Start the daemon with a socket that is not bound yet, and a connection."""
        raise NotImplementedError

    async def make_directory(self, directory: str) -> None:
        """Make a directory that is closed to others, unless it is there."""
        raise NotImplementedError

    async def bind(self, starting: Any, directory: str) -> None:
        """Bind the daemon's socket. Raises `AddressTaken`."""
        raise NotImplementedError

    async def make_presence(self, starting: Any, directory: str) -> None:
        """Make and open its presence pipe; rename that of a manager before it."""
        raise NotImplementedError

    async def listen(self, starting: Any, directory: str) -> None:
        """Let clients connect to the daemon's socket."""
        raise NotImplementedError

    async def tell_daemon(self, starting: Any, message: bytes) -> None:
        """Send a message on the first connection. Raises `OSError`."""
        raise NotImplementedError

    async def wait_until_detached(self, starting: Any) -> None:
        """Let the daemon alone have what it has inherited; raise if it failed."""
        raise NotImplementedError

    async def give_up(self, starting: Any, directory: str) -> None:
        """Close everything; remove the directory if nobody uses it, as `daemon` does.

        It may have the journal of a manager that was killed.
        """
        raise NotImplementedError

    async def connected(self, starting: Any) -> Connected:
        """Return what the client keeps."""
        raise NotImplementedError


async def reach(system: System, address: str, may_create: bool) -> Connected:
    """Connect to the manager at an address; put a successor there if it was killed.

    If the directory is gone, the manager has ended in order and nothing that it knew
    is left; with `may_create` a new one is started all the same. Clause MGR-14.

    Raises `ManagerError` if there is no manager and none can be put there. Clause
    MGR-13.
    """
    reason: Exception | None = None
    for _ in range(REACH_ATTEMPTS):
        try:
            return await connect_or_succeed(system, address, may_create)
        except (FileNotFoundError, AddressTaken) as error:
            pass_on(error)
            reason = error  # somebody else is ending or starting one just now
        except OSError as error:
            pass_on(error)
            reason = error
            break
    if isinstance(reason, FileNotFoundError) and not may_create:
        raise ManagerError(
            f"The shared-memory manager at {address} has ended, since all processes "
            "that used it have; its storages are gone. Keep a process alive that holds "
            "them until they are received."
        ) from reason
    raise ManagerError(
        f"The shared-memory manager at {address} cannot be reached, and no successor "
        f"can be started there: {reason}. Check that its directory is this user's and "
        "writable, and that the manager is not stopped."
    ) from reason


async def connect_or_succeed(
    system: System, address: str, may_create: bool
) -> Connected:
    """Try once to connect, and else to start a successor. Clause MGR-14."""
    try:
        return await connect(system, address)
    except NOT_SERVING as error:
        pass_on(error)
    directory = address.rpartition("/")[0]
    if may_create and not await system.is_directory(directory):
        return await start(system, directory)
    folder = await system.lock(directory)
    try:
        # Meanwhile another client may have done what this one is about to do.
        try:
            return await connect(system, address)
        except NOT_SERVING as error:
            pass_on(error)
        await system.remove_socket(address)
    finally:
        await system.unlock(folder)
    return await start(system, directory)


async def connect(system: System, address: str) -> Connected:
    """Connect, and hear from the manager once. Raises `OSError`.

    Without that answer a message could be lost: a manager that is about to end takes
    connections in that it will never serve (mutant `connects_without_an_answer` of the
    simulator).
    """
    connection = await system.connect(address)
    presence = None
    try:
        presence = await system.open_presence(address)
        await system.greet(connection)
    except BaseException:
        system.close(connection)
        system.close(presence)
        raise
    return Connected(connection, presence)


async def start(system: System, directory: str) -> Connected:
    """Start a manager in a directory, made now; return the connection to it.

    Raises `OSError` if the directory will not do, `ManagerError` if the daemon does not
    start, and `AddressTaken` if another client was faster.
    """
    starting = await system.spawn(directory)
    try:
        try:
            await open_listener(system, starting, directory)
        finally:
            await system.wait_until_detached(starting)
    except BaseException:
        await system.give_up(starting, directory)
        raise
    return await system.connected(starting)


async def open_listener(system: System, starting: Any, directory: str) -> None:
    """Make directory and socket for a daemon that runs already. Clauses SEC-2, MGR-9.

    Raises `AddressTaken`, and has told the daemon to go, if a manager is there already.
    """
    await system.make_directory(directory)
    folder = await system.lock(directory)
    try:
        try:
            await system.bind(starting, directory)
        except AddressTaken:
            await system.tell_daemon(starting, messages.ABANDON)
            raise
        await system.make_presence(starting, directory)
        await system.listen(starting, directory)
        await system.tell_daemon(starting, messages.LISTENING)
    finally:
        await system.unlock(folder)


class Conversation:
    """What this process says to one manager, and has said: a successor has to hear it.

    What the operating system does is left to a subclass.

    Attributes:
        address: of the manager.
        connection: to the manager, or None if it has died or was never needed.
        presence: the end of the manager's presence pipe.
        holds: how often this process has registered each name.
        kept_open: the name that it has received last, if it holds that by the
            descriptor which came with the message, and the descriptor.
        is_perhaps_registered: whether it was about to register that name, and the
            manager may know of it.
        registered: what it has held last, released since or not.
        has_counted: whether it has counted a message, so that it must stay a client.
    """

    def __init__(self, address: str, connected: Connected | None = None) -> None:
        self.address = address
        self.connection: Any = connected and connected.connection
        self.presence: Any = connected and connected.presence
        self.holds: dict[bytes, int] = {}
        self.kept_open: tuple[bytes, Any] | None = None
        self.is_perhaps_registered = False
        self.registered: deque[bytes] = deque(maxlen=UNREAD)
        self.has_counted = False

    # --- what the operating system does

    async def reach(self, may_create: bool) -> Connected:
        """Return what `reach` returns for this address."""
        raise NotImplementedError

    async def transmit(self, packet: bytes, descriptors: tuple[Any, ...]) -> None:
        """Send one message. Raises `ConnectionError` if the manager has died.

        Nothing is sent where it raises that or another one of `NOT_SENT`.
        """
        raise NotImplementedError

    async def receive(self, token: bytes) -> bytes:
        """Return the answer to a request.

        Raises `ConnectionError` if the manager has died.
        """
        raise NotImplementedError

    def close(self, opened: Any) -> None:
        """Close a connection or a pipe, if it is one."""
        raise NotImplementedError

    def new_token(self) -> bytes:
        """Return what no other request has."""
        raise NotImplementedError

    def has_file(self, name: bytes) -> bool:
        """Return whether a name has a file."""
        raise NotImplementedError

    def is_waited_for(self, descriptor: Any) -> bool:
        """Return whether a manager, which must live, waits for the end of a message."""
        raise NotImplementedError

    def let_go(self, descriptor: Any) -> None:
        """Do without the descriptor of a message, which others may use still."""
        raise NotImplementedError

    # --- messages

    async def deliver(
        self,
        kind: bytes,
        argument: bytes,
        descriptors: tuple[Any, ...] = (),
        may_create: bool = False,
    ) -> None:
        """Send a message about names and record it."""
        if kind == messages.RELEASE and not self.has_to_release(argument):
            return
        if self.is_to_send_on(kind, argument):
            await self.register_kept_open()
        await self.send(kind, argument, descriptors, may_create)

    async def send(
        self,
        kind: bytes,
        argument: bytes,
        descriptors: tuple[Any, ...] = (),
        may_create: bool = False,
    ) -> None:
        """Send to the manager, or to its successor if it has died, and record it.

        Clauses MGR-13, MGR-14.
        """
        for _ in range(SEND_ATTEMPTS):
            try:
                if self.connection is None:
                    await self.open(may_create)
                return await self.transmit_recorded(kind, argument, descriptors)
            except ConnectionError as error:
                pass_on(error)
                self.hang_up()
        raise self.lost()

    async def transmit_recorded(
        self, kind: bytes, argument: bytes, descriptors: tuple[Any, ...]
    ) -> None:
        """Send one message and record it."""
        self.record_use(kind, argument)
        try:
            await self.transmit(kind + argument, descriptors)
        except NOT_SENT as error:
            pass_on(error)
            self.take_back(kind, argument)
            raise
        self.record(kind, argument)

    def has_to_release(self, name: bytes) -> bool:
        """Return whether the manager has to hear of a release.

        It does not know of what was kept open, which is closed, unless an exception
        arose as it was told. Clauses FAULT-2, LIFE-7.
        """
        if self.kept_open is None or self.kept_open[0] != name:
            return name in self.holds
        _, descriptor = self.kept_open
        self.kept_open = None
        self.let_go(descriptor)
        return self.is_perhaps_registered and name not in self.holds

    def is_to_send_on(self, kind: bytes, argument: bytes) -> bool:
        """Return whether a message announces what is held by a descriptor.

        Nobody announces a name that the manager does not know.
        """
        kept = self.kept_open
        return kept is not None and kind in ANNOUNCEMENTS and kept[0] in argument

    async def hold(self, name: bytes, descriptor: Any, may_create: bool) -> None:
        """Hold a name by the descriptor that came with its message, for now.

        For that this process is a client, so that a successor waits for it, and the
        manager lives to which the message was announced (`holds_by_a_dead_manager`).
        The name before is registered. Clauses FS-3, FS-8, LIFE-2, MGR-14.
        """
        await self.register_kept_open()
        if self.connection is None or not self.is_waited_for(descriptor):
            await self.deliver(messages.REGISTER, name, (), may_create)
            self.let_go(descriptor)
        else:
            self.keep_open(name, descriptor)

    def keep_open(self, name: bytes, descriptor: Any) -> None:
        """Note what this process holds a name by."""
        self.is_perhaps_registered = False
        self.kept_open = name, descriptor
        self.registered.append(name)

    async def register_kept_open(self) -> None:
        """Register the name that is held by a descriptor, and close that.

        Where the manager has died, a successor hears of it when there is one.
        """
        if self.kept_open is None or self.connection is None:
            return
        try:
            for packet in self.registration(self.kept_open[0]):
                await self.transmit(packet, ())
        except ConnectionError as error:
            pass_on(error)
            self.hang_up()
        else:
            self.count_kept_open()

    def registration(self, name: bytes) -> list[bytes]:
        """Return what registers the name that is held by a descriptor, and note that.

        Where an exception has arisen before what was sent was noted, it is taken back
        first, if it was sent: the descriptor holds the name until then.
        """
        packets = [messages.REGISTER + name]
        if self.is_perhaps_registered and name not in self.holds:
            packets.insert(0, messages.RELEASE + name)
        self.is_perhaps_registered = True
        return packets

    def count_kept_open(self) -> None:
        """Hold by a registration what was held by a descriptor."""
        if self.kept_open is not None:
            name, descriptor = self.kept_open
            count = self.holds.get(name, 0) + 1
            self.kept_open = None  # no exception of a handler can come before the next
            self.holds[name] = count
            self.let_go(descriptor)

    async def request(self, kind: bytes, may_create: bool = False) -> bytes:
        """Send a request and return its answer."""
        for _ in range(SEND_ATTEMPTS):
            token = self.new_token()
            await self.send(kind, token, (), may_create)
            try:
                return await self.receive(token)
            except ConnectionError as error:
                pass_on(error)
                self.hang_up()
        raise self.lost()

    def lost(self) -> ManagerError:
        """Return the error for a manager that dies whenever it is started."""
        return ManagerError(
            f"The shared-memory manager at {self.address} has died {SEND_ATTEMPTS} "
            "times in a row. Find out what kills it."
        )

    def record_use(self, kind: bytes, name: bytes) -> None:
        """Note a use that is about to be told.

        An exception of a signal handler can come between that and the note of it. A use
        that was noted is taken back by who was interrupted, and to take back what the
        manager does not know has no effect: it never counts more than is noted here.
        Clauses FAULT-2, MGR-14.
        """
        if kind in USES:
            self.holds[name] = self.holds.get(name, 0) + 1

    def take_back(self, kind: bytes, name: bytes) -> None:
        """Note that a use was not told after all."""
        if kind in USES:
            self.record(messages.RELEASE, name)

    def record(self, kind: bytes, name: bytes) -> None:
        """Note what else there is to note of a message that was sent."""
        if kind in USES:
            self.registered.append(name)
        elif kind == messages.RELEASE:
            count = self.holds.pop(name, 1) - 1
            if count:
                self.holds[name] = count
        elif kind == messages.ANNOUNCE_COUNTED:
            self.has_counted = True

    # --- the manager comes and goes

    async def open(self, may_create: bool) -> None:
        """Connect, and register again what was held at a manager that has died.

        Until then the presence pipe of that one says that this client lives. Clauses
        MGR-14, FAULT-5.
        """
        connected = await self.reach(may_create or self.has_names())
        self.connection = connected.connection
        self.count_kept_open()  # its descriptor is no more than that, without a manager
        try:
            for packet in self.to_say_again():
                await self.transmit(packet, ())
        except BaseException:
            self.hang_up()
            self.close(connected.presence)
            raise
        # It is closed by nobody a second time, when its number may be another file's.
        before, self.presence = self.presence, connected.presence
        self.close(before)

    def to_say_again(self) -> Iterator[bytes]:
        """Return what a successor has to hear before anything new."""
        for name, count in self.holds.items():
            for _ in range(count):
                yield messages.REGISTER_AGAIN + name
        for name in self.perhaps_unread():
            yield messages.REGISTER_AGAIN + name
            yield messages.RELEASE + name

    def perhaps_unread(self) -> list[bytes]:
        """Return names that are there and of which only this process may know.

        It has released them; a message may carry them that nobody will receive. Clause
        MGR-14.
        """
        released = set(self.registered).difference(self.holds)
        return sorted(filter(self.has_file, released))

    def hang_up(self) -> None:
        """Give up the connection, and with it all that the manager counts for it."""
        before, self.connection = self.connection, None
        self.is_perhaps_registered = False
        self.close(before)

    def leave(self) -> None:
        """Be a client no more."""
        self.hang_up()
        before, self.presence = self.presence, None
        self.close(before)

    def may_leave(self) -> bool:
        """Return whether the manager can do without this client.

        If it has counted a message it stays: counted messages must not be without any
        client.
        """
        return not (self.has_names() or self.has_counted)

    def has_names(self) -> bool:
        """Return whether this process holds a name."""
        return bool(self.holds or self.kept_open)

    def inherit(self, connection: Any) -> None:
        """Be the client of a forked child, which has a connection of its own or none.

        Without one it comes by itself later if it holds names; the presence pipe that
        it has inherited says until then that it lives.
        """
        self.hang_up()
        self.count_kept_open()  # the parent could not register it
        self.connection = connection
        self.has_counted = False
        self.registered.clear()
        if connection is None and not self.holds:
            self.leave()
