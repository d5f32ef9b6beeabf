"""The operating system of `serving` and `conversation`, made of the simulated kernel.

Both modules ask for an operating system by an interface. Each method here does one
operation on the kernel, after a point at which other processes can run.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from kernel import (
    ConnectionEnd,
    Directory,
    Listener,
    Lock,
    OpenObject,
    PipeEnd,
    Process,
)
from sharedtensor.manager import conversation, messages, serving

if TYPE_CHECKING:
    from processes import ManagerProcess, Simulation

SOCKET, CLOSING, PRESENCE = "socket", "closing", "clients"
DIRECTORY = "/m"
ADDRESS = f"{DIRECTORY}/{SOCKET}"


class ManagerSystem(serving.System):
    """The operating system of a manager."""

    def __init__(self, process: ManagerProcess, listener: Listener) -> None:
        self.process = process
        self.world: Simulation = process.world
        self.listener = listener
        self.pid = 0
        self.clock = 0.0
        self.watched: list[Any] = []
        self.is_listening = False
        self.directory: Directory | None = None
        self.lock_held: Lock | None = None
        self.presence_names: dict[int, str] = {}
        self.read: set[bytes] = set()  # registered names that are not journaled yet

    def now(self) -> float:
        return self.clock

    # --- what is watched

    async def poll(self, seconds: float | None) -> list[Any]:
        self.process.normalize_history()
        ready = self.has_events if seconds is None else None
        await self.process.point("polls", ready)
        found = [one for one in self.watched if is_readable(one)]
        if self.is_listening and self.listener.backlog:
            found.append(serving.LISTENER)
        if seconds and not found:
            self.clock += seconds
        self.world.shuffle(found)
        self.process.observe(tuple(identity_of(one) for one in found))
        return found

    def has_events(self) -> bool:
        waits = self.is_listening and bool(self.listener.backlog)
        return waits or any(map(is_readable, self.watched))

    def watch(self, watched: serving.Watched) -> None:
        self.watched.append(watched)

    async def close(self, watched: serving.Watched) -> None:
        self.watched.remove(watched)
        if isinstance(watched, serving.Client):
            self.process.close(watched.connection)
        elif id(watched.pipe) in self.presence_names:
            name = self.presence_names.pop(id(watched.pipe))
            if self.directory is not None:
                self.directory.entries.pop(name, None)

    def watch_listener(self, is_watched: bool) -> None:
        self.is_listening = is_watched

    # --- what clients send

    async def accept(self) -> ConnectionEnd | None:
        await self.process.point("accepts")
        if not self.listener.backlog:
            self.process.observe(None)
            return None
        connection = self.listener.backlog.popleft()
        self.process.open_objects.append(connection)
        self.process.observe(connection.identity)
        return connection

    async def receive(
        self, connection: ConnectionEnd
    ) -> tuple[bytes, list[OpenObject]] | None:
        await self.process.point("receives")
        self.world.journaled |= self.read
        self.read.clear()
        if connection.inbox:
            message, attached = connection.inbox.popleft()
            self.process.open_objects += attached
            if message[:1] in (messages.REGISTER, messages.REGISTER_ANNOUNCED):
                self.read.add(message[1:])
            self.process.observe((message, tuple(one.identity for one in attached)))
            return message, attached
        self.process.observe(connection.peer.is_closed())
        return (b"", []) if connection.peer.is_closed() else None

    async def reply(self, connection: ConnectionEnd, answer: bytes) -> bool:
        await self.process.point("replies")
        try:
            connection.send(answer, [])
        except BrokenPipeError:
            self.process.observe(False)
            return False
        return True

    def as_connection(self, descriptor: OpenObject) -> ConnectionEnd | None:
        if isinstance(descriptor, ConnectionEnd):
            return descriptor
        self.process.close(descriptor)
        return None

    def is_pipe(self, descriptor: OpenObject) -> bool:
        return isinstance(descriptor, ReadEnd)

    def discard(self, descriptors: list[OpenObject]) -> None:
        for descriptor in descriptors:
            self.process.close(descriptor)

    # --- files

    async def open_directory(self) -> tuple[bool, list[bytes], list[Any]]:
        await self.process.point("reads the journal")
        directory = self.directory = self.world.directories[DIRECTORY]
        self.world.verify_single_manager(self.process)
        if directory.journal is None:
            directory.journal = []
        pipes = []
        before = [n for n in sorted(directory.entries) if n.startswith(f"{PRESENCE}-")]
        for name in before:
            pipe = directory.entries[name]
            if pipe.is_closed():
                del directory.entries[name]
            else:
                read_end = ReadEnd(pipe.identity, pipe)
                self.presence_names[id(read_end)] = name
                pipes.append(read_end)
        names = list(directory.journal)
        self.process.observe((tuple(names), tuple(before)))
        return bool(before), names, pipes

    async def write_journal(self, names: list[bytes]) -> None:
        await self.process.point("writes its journal")
        if self.directory is not None and self.directory.journal is not None:
            self.directory.journal += names

    async def rewrite_journal(self, names: list[bytes]) -> None:
        await self.process.point("rewrites its journal")
        if self.directory is not None:
            self.directory.journal = list(names)

    async def remove(self, name: bytes) -> None:
        await self.process.point(f"removes {name[len(messages.PREFIX) :].decode()}")
        self.world.remove_file(name, self.process)

    # --- the end

    def can_be_reached(self) -> bool:
        self.process.observe(self.listener.is_listening)
        return self.listener.is_listening

    async def lock(self) -> bool:
        if self.directory is None and not await self.open_if_there():
            return True
        await self.process.point("locks")
        assert self.directory is not None
        self.process.observe(self.directory.locked_by is None)
        if self.directory.locked_by is not None:
            return False
        self.lock_held = Lock(self.process.identity("lock"), self.directory)
        self.process.open(self.lock_held)
        return True

    async def open_if_there(self) -> bool:
        """Open the directory of a manager that never listened; return if it exists."""
        await self.process.point("opens its directory")
        self.directory = self.world.directory(DIRECTORY)
        self.process.observe(self.directory is not None)
        return self.directory is not None

    async def hide(self) -> bool:
        await self.process.point("hides its socket")
        assert self.directory is not None
        entries = self.directory.entries
        there = self.directory.exists and SOCKET in entries
        self.process.observe(there)
        if there:
            entries[CLOSING] = entries.pop(SOCKET)
        return there

    async def show(self) -> None:
        await self.process.point("shows its socket")
        assert self.directory is not None
        self.directory.entries[SOCKET] = self.directory.entries.pop(CLOSING)
        self.process.close(self.lock_held)

    async def remove_directory(self, has_listened: bool) -> None:
        await self.process.point("looks into its directory")
        directory = self.world.directory(DIRECTORY)
        if directory is not None and has_listened:
            there = set(directory.entries)
            self.process.observe(tuple(sorted(there)))
            await self.process.point("removes what is there")
            for name in there & set(directory.entries):
                del directory.entries[name]
            directory.journal = None
            await self.process.point("removes its directory")
            directory.exists = bool(directory.entries)
        elif directory is not None and directory is self.directory:
            is_going = self.lock_held is not None and is_unused(directory)
            self.process.observe(is_going)
            await self.process.point("removes its directory")
            directory.exists = not is_going
        self.process.is_over = True


class ReadEnd(OpenObject):
    """A manager's end of a pipe. The manager waits until `other` is closed."""

    def __init__(self, identity: str, other: PipeEnd) -> None:
        super().__init__(f"{identity}-reader")
        self.other = other
        other.reader = self


def is_unused(directory: Directory) -> bool:
    """Return whether a directory is of no use; the opposite of `daemon.is_used`."""
    entries = directory.entries
    found = entries.get(SOCKET)
    is_served = found is not None and found.is_listening and not found.is_closed()
    pipes = (entries[name] for name in entries if name.startswith(PRESENCE))
    is_open = any(not pipe.is_closed() for pipe in pipes)
    return directory.journal is None and not is_served and not is_open


def is_readable(watched: serving.Watched) -> bool:
    if isinstance(watched, serving.Client):
        return watched.connection.is_readable()
    return watched.pipe.other.is_closed()


def identity_of(found: Any) -> str:
    if isinstance(found, serving.Client):
        return found.connection.identity
    return found.pipe.identity if isinstance(found, serving.InFlight) else "listener"


class ClientSystem(conversation.System):
    """The operating system of a client that connects to a manager or starts one."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world: Simulation = process.world

    def found_directory(self, path: str) -> Directory:
        directory = self.world.directory(path)
        self.process.observe(directory is not None)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, path)
        return directory

    async def connect(self, address: str) -> ConnectionEnd:
        await self.process.point("looks the socket up")
        listener = self.found_directory(DIRECTORY).entries.get(SOCKET)
        self.process.observe(listener and listener.identity)
        if listener is None:
            raise FileNotFoundError(errno.ENOENT, address)
        await self.process.point("connects")
        serves = listener.is_listening and not listener.is_closed()
        self.process.observe(serves)
        if not serves:
            raise ConnectionRefusedError(errno.ECONNREFUSED, address)
        client_end, manager_end = self.process.connection()
        self.process.open(client_end)
        manager_end.references += 1
        listener.backlog.append(manager_end)
        return client_end

    async def open_presence(self, address: str) -> PipeEnd | None:
        await self.process.point("opens the presence pipe")
        directory = self.world.directory(DIRECTORY)
        found = directory.entries.get(PRESENCE) if directory is not None else None
        self.process.observe(found and found.identity)
        if found is not None:
            self.process.open(found)
        return found

    async def greet(self, connection: ConnectionEnd) -> None:
        await self.process.point("greets")
        token = b"%08d" % (self.process.object_count % 10**8)
        connection.send(messages.SYNC + token, [])
        await self.process.point("waits for an answer", connection.is_readable)
        self.process.observe(bool(connection.inbox))
        if not connection.inbox or connection.inbox.popleft()[0] != token:
            raise ConnectionResetError(errno.ECONNRESET, "the manager ended")

    def close(self, opened: OpenObject | None) -> None:
        self.process.close(opened)

    async def lock(self, directory: str) -> Lock:
        await self.process.point("opens the directory")
        found = self.found_directory(directory)
        await self.process.point("locks", lambda: found.locked_by is None)
        self.process.observe(found.exists)
        if not found.exists:
            raise FileNotFoundError(errno.ENOENT, f"{directory} was removed")
        lock = Lock(self.process.identity("lock"), found)
        self.process.open(lock)
        return lock

    async def unlock(self, folder: Lock) -> None:
        self.process.close(folder)

    async def is_directory(self, path: str) -> bool:
        await self.process.point("looks for the directory")
        found = self.world.directory(path) is not None
        self.process.observe(found)
        return found

    async def remove_socket(self, address: str) -> None:
        await self.process.point("removes the socket")
        directory = self.world.directory(DIRECTORY)
        if directory is not None:
            directory.entries.pop(SOCKET, None)

    # --- starting

    async def spawn(self, directory: str) -> StartingManager:
        await self.process.point("spawns a manager")
        return StartingManager(self.process)

    async def make_directory(self, directory: str) -> None:
        await self.process.point("makes the directory")
        if self.world.directory(directory) is None:
            self.world.directories[directory] = Directory()

    async def bind(self, starting: StartingManager, directory: str) -> None:
        await self.process.point("binds")
        entries = self.found_directory(directory).entries
        self.process.observe(SOCKET in entries)
        if SOCKET in entries:
            raise conversation.AddressTaken(directory)
        entries[SOCKET] = starting.listener
        starting.listener.is_bound = True

    async def make_presence(self, starting: StartingManager, directory: str) -> None:
        await self.process.point("renames the presence pipe")
        entries = self.found_directory(directory).entries
        if PRESENCE in entries:
            before = entries.pop(PRESENCE)
            entries[f"{PRESENCE}-{before.identity}"] = before
        await self.process.point("makes a presence pipe")
        made = PipeEnd(self.process.identity("presence"))
        self.found_directory(directory).entries[PRESENCE] = made
        self.process.open(made)
        starting.presence = made

    async def listen(self, starting: StartingManager, directory: str) -> None:
        await self.process.point("listens")
        starting.listener.is_listening = True

    async def tell_daemon(self, starting: StartingManager, message: bytes) -> None:
        await self.process.point("tells the daemon")
        self.process.observe(starting.first.peer.is_closed())
        starting.first.send(message, [])

    async def wait_until_detached(self, starting: StartingManager) -> None:
        self.process.close(starting.manager_end)

    async def give_up(self, starting: StartingManager, directory: str) -> None:
        await self.process.point("gives a manager up")
        for opened in (starting.first, starting.listener, starting.presence):
            self.process.close(opened)
        await self.process.point("looks into the directory")
        found = self.world.directory(directory)
        is_free = found is not None and found.locked_by is None
        self.process.observe(is_free)
        if found is not None and is_free and is_unused(found):
            found.exists = False

    async def connected(self, starting: StartingManager) -> conversation.Connected:
        await self.process.point("closes its listener")
        self.process.close(starting.listener)
        return conversation.Connected(starting.first, starting.presence)


class StartingManager:
    """The objects of a client for a manager that it is starting."""

    def __init__(self, process: Process) -> None:
        self.listener = Listener(process.identity("listener"))
        self.first, self.manager_end = process.connection()
        self.presence: PipeEnd | None = None
        process.open(self.listener, self.first, self.manager_end)
        process.world.start_manager(process, self.listener, self.manager_end)


class SimulatedConversation(conversation.Conversation):
    """A client's side of the protocol. It makes the decisions of the real one."""

    process: Process

    def __init__(self, process: Process) -> None:
        super().__init__(ADDRESS)
        self.process = process

    async def reach(self, may_create: bool) -> conversation.Connected:
        return await conversation.reach(
            ClientSystem(self.process), self.address, may_create
        )

    async def transmit(self, packet: bytes, descriptors: tuple[Any, ...]) -> None:
        await self.process.point(f"sends {packet[:1].decode()}")
        self.process.observe(self.connection.peer.is_closed())
        self.connection.send(packet, list(descriptors))

    async def receive(self, token: bytes) -> bytes:
        connection = self.connection
        while True:
            await self.process.point("waits for an answer", connection.is_readable)
            self.process.observe(bool(connection.inbox))
            if not connection.inbox:
                raise ConnectionResetError(errno.ECONNRESET, "the manager ended")
            reply = connection.inbox.popleft()[0]
            if reply.startswith(token):
                return bytes(reply[len(token) :])

    def close(self, opened: OpenObject | None) -> None:
        self.process.close(opened)

    def is_waited_for(self, descriptor: PipeEnd) -> bool:
        waits = descriptor.reader is not None and not descriptor.reader.is_closed()
        self.process.observe(waits)
        return waits

    def let_go(self, descriptor: OpenObject) -> None:
        self.process.close(descriptor)

    def new_token(self) -> bytes:
        self.process.object_count += 1
        return b"%08d" % self.process.object_count

    def has_file(self, name: bytes) -> bool:
        found = name in self.process.world.files
        self.process.observe(found)
        return found
