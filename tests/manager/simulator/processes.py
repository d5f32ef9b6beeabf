"""Managers and clients in the simulated kernel, and the invariants of the protocol.

A client makes, sends, receives and drops names, forks and exits. It makes the calls in
the order that `conversation` documents, as `sharedtensor` does. The real code makes all
decisions about a manager. The simulation also knows what the manager cannot know: which
process holds a name, and which messages are in flight.

The message of a `Violation` begins with the name of one of these invariants. Their text
is part of the record, so a change of it needs a new record.

- `no_name_goes_early`: no file is removed while a live process holds the name, or a
  message carries it that its receiver can still receive (clauses FS-8, LIFE-2, LIFE-5,
  LIFE-22, MGR-11, MGR-14). A manager that was killed takes with it what it knew of
  messages; one that was announced to it may be lost, as clause LIFE-6 permits.
- `holders_are_served`: no call of a process that holds names raises (MGR-14).
- `nothing_is_left`: when all have ended, no file and no directory (FS-9, LIFE-9,
  LIFE-10, LIFE-14, MGR-2, MGR-3), in as far as somebody lived who could tell.
- `nobody_waits`: somebody can go on until all have ended (MGR-13, MGR-18).
- `nobody_crashes`: no manager and no client ends by an error (MGR-13, MGR-16).
- `one_manager`: no two managers serve one address (MGR-14).
- `names_go`: when a process has dropped a name that nobody else knew of, and the
  manager answers its SYNC, the file is gone; and all are gone when all clients live and
  have dropped what they had (FS-2, LIFE-7).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any

from kernel import ConnectionEnd, Listener, PipeEnd, Process, Violation, World
from sharedtensor.errors import ManagerError
from sharedtensor.manager import conversation, messages, serving
from systems import (
    DIRECTORY,
    ClientSystem,
    ManagerSystem,
    ReadEnd,
    SimulatedConversation,
)

GRACE = 1.0


def encoded(name: str) -> bytes:
    """Return a name of the simulation in the form that the manager knows."""
    return messages.PREFIX + name.encode()


class Message:
    """A message in flight, or one that its receiver has just taken from its channel.

    `pipe_end` is the end of a pipe that the message carries; a counted message has
    none.
    `kills` is the number of managers that were killed before the message was made.
    """

    def __init__(
        self, simulation: Simulation, name: str, sender: str, pipe_end: PipeEnd | None
    ) -> None:
        self.name = name
        self.sender = sender
        self.pipe_end = pipe_end
        self.kills = simulation.manager_kills

    def is_guaranteed(self, simulation: Simulation) -> bool:
        """Return whether the manager knows of the message and has to keep its name.

        It does not if a manager was killed since, or if the message is counted and its
        sender is dead.
        """
        if self.kills != simulation.manager_kills:
            return False
        return (
            self.pipe_end is not None or not simulation.processes[self.sender].is_dead
        )

    def key(self) -> object:
        pipe = self.pipe_end and self.pipe_end.identity
        return self.name, self.sender, pipe, self.kills


class ManagerProcess(Process):
    """A manager process, which runs the real `serving.Manager`."""

    world: Simulation

    def __init__(
        self, world: Simulation, name: str, listener: Listener, first: ConnectionEnd
    ) -> None:
        super().__init__(world, name)
        self.is_over = False
        self.is_ending = False
        self.was_killed = False
        self.open(listener, first)
        self.system = ManagerSystem(self, listener)
        self.manager = world.protocol.manager(self.system, first, GRACE)
        self.manager.names.spare_lines = 1
        self.run(self.serve())

    async def serve(self) -> None:
        """Do what `daemon.main` does."""
        await self.point("begins")
        try:
            await self.manager.run()
        except serving.Abandoned:
            return
        self.is_ending = True
        await self.manager.remove_everything()

    def is_idle(self) -> bool:
        """Return whether the manager waits for news and has no work left."""
        names = self.manager.names
        has_work = names.candidates or names.confirmed or self.manager.requests
        return self.label == "polls" and not has_work and not self.system.has_events()

    def normalize_history(self) -> None:
        """Replace the history by a hash of the manager's state, before it polls.

        So a search recognises a state that different histories lead to.
        """
        manager, names = self.manager, self.manager.names
        self.history = hash(
            (
                self.name,
                manager.is_listening,
                manager.seconds_left() > 0,
                frozenset(
                    (client.connection.identity, frozenset(client.holds.items()))
                    for client in manager.clients
                ),
                frozenset(
                    (found.pipe.identity, tuple(found.names or ()))
                    for found in manager.in_flight
                ),
                frozenset(
                    (name, u.holds, u.in_flight, u.counted, u.was_held, u.is_kept)
                    for name, u in names.usages.items()
                ),
                frozenset(names.candidates),
                frozenset(names.confirmed),
                tuple((c.connection.identity, text) for c, text in manager.requests),
            )
        )


class ClientProcess(Process):
    """A process that shares, sends and receives.

    If `is_own` is true, the manager is its own, and the process starts it if necessary.
    Otherwise the manager belongs to a process that sent it a name.
    """

    world: Simulation

    def __init__(self, world: Simulation, name: str, is_own: bool) -> None:
        super().__init__(world, name)
        self.is_own = is_own
        self.held: Counter[str] = Counter()
        self.unshared: set[str] = set()  # names made here that no other process knew
        self.inbox: deque[Message] = deque()
        self.being_received: Message | None = None
        self.fork_count = 0
        self.is_leaving = False
        self.manager_is_known = False  # whether others can know the address
        self.conversation = world.protocol.conversation(self)

    def end(self) -> None:
        for message in self.inbox:
            if message.pipe_end is not None:
                message.pipe_end.close()
        self.inbox.clear()
        self.being_received = None
        self.held.clear()
        super().end()

    # --- as the package does it

    async def deliver(self, kind: bytes, name: str, *given: Any) -> bool:
        """Send a message about a name, as `client.Client.deliver` does.

        Returns:
            False if that raises `ManagerError`.
        """
        request = self.conversation.deliver
        return await self.attempt(request(kind, encoded(name), given, self.is_own))

    async def attempt(self, request: Coroutine[Any, Any, None]) -> bool:
        """Send something to the manager; return False if that raises `ManagerError`.

        A client of another's manager leaves it afterwards if it may.

        Raises:
            Violation: it raises although this process holds names.
        """
        try:
            await request
        except ManagerError as error:
            self.observe("error")
            if self.held:
                raise Violation(f"holders_are_served: {self.name}: {error}") from error
            return False
        if not self.is_own and self.conversation.may_leave():
            self.conversation.leave()
            self.conversation = self.world.protocol.conversation(self)
        return True

    async def start(self) -> None:
        """Start the manager of this process, as `launch.start_anywhere` does."""
        connected = await conversation.start(ClientSystem(self), DIRECTORY)
        self.conversation.connection, self.conversation.presence = connected

    async def make(self, name: str) -> None:
        """Share a new tensor: register its name, and then make its file."""
        if await self.deliver(messages.REGISTER, name):
            await self.point(f"makes {name}")
            self.world.files.add(encoded(name))
            self.held[name] += 1
            self.unshared.add(name)

    async def make_and_send(self, name: str, receiver: str) -> None:
        """Share a new tensor by sending it; one message registers and announces it."""
        pipe_end = PipeEnd(self.identity("pipe"))
        self.open(pipe_end)
        read_end = ReadEnd(pipe_end.identity, pipe_end)
        if await self.deliver(messages.REGISTER_ANNOUNCED, name, read_end):
            message = Message(self.world, name, self.name, pipe_end)
            await self.point(f"makes {name}")
            self.world.files.add(encoded(name))
            self.held[name] += 1
            await self.put(message, receiver)
        self.close(pipe_end)

    async def send(self, name: str, receiver: str) -> None:
        """Send a name that this process holds, in a message with a descriptor."""
        if name not in self.held:
            return
        self.unshared.discard(name)
        pipe_end = PipeEnd(self.identity("pipe"))
        self.open(pipe_end)
        read_end = ReadEnd(pipe_end.identity, pipe_end)
        if await self.world.protocol.announce(self, name, read_end):
            await self.put(Message(self.world, name, self.name, pipe_end), receiver)
        self.close(pipe_end)

    async def send_counted(self, name: str, receiver: str) -> None:
        """Send a name that this process holds, in a message without descriptors."""
        if name not in self.held:
            return
        self.unshared.discard(name)
        if await self.deliver(messages.ANNOUNCE_COUNTED, name):
            message = Message(self.world, name, self.name, None)
            if not await self.put(message, receiver):
                await self.deliver(messages.WITHDRAW_COUNTED, name)

    async def put(self, message: Message, receiver: str) -> bool:
        """Put a message into a channel; return whether the receiver still lives."""
        await self.point(f"puts {message.name}")
        to = self.world.processes.get(receiver)
        can = isinstance(to, ClientProcess) and not to.is_dead
        self.observe(can)
        if can:
            to.inbox.append(message)
            if message.pipe_end is not None:
                message.pipe_end.references += 1
        return can

    async def receive(self) -> None:
        """Receive a message: hold its name, open its file, then close its descriptor.

        The descriptor stays open if the name is held by it.
        """
        await self.point("receives", lambda: bool(self.inbox) or self.is_last())
        self.observe(self.inbox[0].key() if self.inbox else None)
        if not self.inbox:
            return
        message = self.being_received = self.inbox.popleft()
        if message.pipe_end is not None:
            self.open_objects.append(message.pipe_end)
        await self.world.protocol.take_over(self, message)
        self.being_received = None
        kept = self.conversation.kept_open
        if kept is None or kept[1] is not message.pipe_end:
            self.close(message.pipe_end)

    def is_last(self) -> bool:
        """Return whether no other client is left that could send something."""
        clients = self.world.clients()
        return all(one is self or one.is_dead or one.is_waiting() for one in clients)

    def is_waiting(self) -> bool:
        return self.label in ("receives", "settles", "is silent") and not self.inbox

    async def hold(self, message: Message) -> bool:
        """Hold the name of a message, and open its file; return whether that succeeds.

        The name is registered only if the message has no descriptor by which it can be
        held.
        """
        held = bool(self.held)
        if message.pipe_end is None:
            is_held = await self.deliver(messages.REGISTER, message.name)
        else:
            name, pipe_end = encoded(message.name), message.pipe_end
            is_held = await self.attempt(
                self.conversation.hold(name, pipe_end, self.is_own)
            )
        if not is_held:
            self.verify_may_be_lost(message, "the manager has ended")
            return False
        await self.point(f"opens {message.name}")
        has_file = encoded(message.name) in self.world.files
        self.observe((has_file, held))
        if not has_file:
            self.verify_may_be_lost(message, "there is no file")
            await self.deliver(messages.RELEASE, message.name)
            return False
        self.held[message.name] += 1
        return True

    def verify_may_be_lost(self, message: Message, why: str) -> None:
        """Raise `Violation` if the manager had to keep the name of a lost message."""
        if message.is_guaranteed(self.world):
            raise Violation(
                f"no_name_goes_early: {self.name} gets {message.name}: {why}"
            )

    async def acknowledge(self, message: Message) -> None:
        """Acknowledge a message if it has no descriptor."""
        if message.pipe_end is None:
            await self.deliver(messages.ACKNOWLEDGE_COUNTED, message.name)

    async def drop(self, name: str) -> None:
        """Drop a tensor, and release its name."""
        if name in self.held:
            self.held -= Counter([name])
            await self.deliver(messages.RELEASE, name)

    async def settle(self) -> None:
        """Drop and receive everything, and wait until all other processes have done so.

        Raises:
            Violation: a file is left.
        """
        while True:
            for name in sorted(self.held.elements()):
                await self.drop(name)
            await self.point("settles", lambda: self.inbox or self.world.is_settled())
            if not self.inbox:
                break
            await self.receive()
        self.world.verify_settled()

    async def sync(self) -> None:
        """Wait until the manager has handled everything that this process has told it.

        Raises:
            Violation: there is a file that only this process knew of, and that it has
                dropped. After the kill of a manager this is permitted.
        """
        dropped = {name for name in self.unshared if name not in self.held}
        if not self.conversation.registered:
            return
        try:
            await self.conversation.request(messages.SYNC, self.is_own)
        except ManagerError:
            self.observe("error")
            return
        left = self.world.files & {encoded(name) for name in dropped}
        if left and not self.world.manager_kills:
            raise Violation(f"names_go: {self.name} has dropped {sorted(left)}")

    async def fork(
        self, program: Callable[[ClientProcess], Coroutine[Any, None, Any]]
    ) -> None:
        """Fork a child that holds what this process holds, and runs a program."""
        child_end = None
        if self.conversation.connection is not None and self.conversation.has_names():
            child_end, manager_end = self.connection()
            try:
                await self.world.protocol.prefork(self, manager_end)
            except OSError:
                child_end = None
            else:
                self.open(child_end)
        await self.point("forks")
        self.unshared.clear()
        self.fork_count += 1
        child = ClientProcess(self.world, f"{self.name}.{self.fork_count}", self.is_own)
        child.inherit(self, child_end)
        self.close(child_end)
        child.run(program(child))

    def inherit(self, parent: ClientProcess, connection: ConnectionEnd | None) -> None:
        """Copy the state of the parent into this forked child.

        `connection` is the prefork connection, or None.
        """
        inherited = parent.conversation
        for opened in (inherited.connection, inherited.presence, connection):
            if opened is not None:
                self.open(opened)
        own = self.conversation
        own.connection, own.presence = inherited.connection, inherited.presence
        own.holds = dict(inherited.holds)
        own.kept_open = inherited.kept_open
        own.inherit(connection)
        self.held = +parent.held

    async def exit(self) -> None:
        """Exit normally; first start a successor if the manager was killed."""
        self.held.clear()
        self.is_leaving = True
        if self.conversation.connection is None and self.conversation.presence is None:
            return
        await self.point("looks after its manager")
        connection = self.conversation.connection
        is_killed = connection is None or connection.is_readable()
        self.observe(is_killed)
        if is_killed and self.world.directory(DIRECTORY) is not None:
            self.conversation.hang_up()
            try:
                await self.conversation.open(may_create=True)
            except (ManagerError, OSError):
                self.observe("error")
                return
        self.world.note_exit(self)


class ProtocolSteps:
    """The steps of the protocol that a mutant can replace."""

    manager: type[serving.Manager] = serving.Manager
    conversation: type[SimulatedConversation] = SimulatedConversation

    async def announce(
        self, process: ClientProcess, name: str, read_end: ReadEnd
    ) -> bool:
        return await process.deliver(messages.ANNOUNCE, name, read_end)

    async def take_over(self, process: ClientProcess, message: Message) -> None:
        if await process.hold(message):
            await process.acknowledge(message)

    async def prefork(self, process: ClientProcess, manager_end: ConnectionEnd) -> None:
        await process.conversation.register_kept_open()
        if process.conversation.connection is None:
            raise OSError
        await process.conversation.transmit(messages.PREFORK, (manager_end,))


class Simulation(World):
    """The processes of a program, its managers, and the kills that they have met."""

    def __init__(
        self, protocol: ProtocolSteps, rng: random.Random | None = None
    ) -> None:
        super().__init__()
        self.protocol = protocol
        self.rng = rng
        self.manager_kills = self.client_kills = 0
        self.journaled: set[bytes] = set()
        self.journaled_before: frozenset[bytes] = frozenset()  # at the last kill
        self.exited_names: set[bytes] = set()  # of clients that exited since a kill
        self.kills_are_handled = True
        self.may_kill = True

    # --- processes

    def clients(self) -> list[ClientProcess]:
        return [p for p in self.processes.values() if isinstance(p, ClientProcess)]

    def managers(self) -> list[ManagerProcess]:
        return [p for p in self.processes.values() if isinstance(p, ManagerProcess)]

    def client(self, name: str, is_own: bool = True) -> ClientProcess:
        return ClientProcess(self, name, is_own)

    def start_manager(
        self, starter: Process, listener: Listener, first: ConnectionEnd
    ) -> None:
        name = starter.identity("manager")
        ManagerProcess(self, name, listener, first)

    def shuffle(self, found: list[Any]) -> None:
        """Put news into a random order in a random run; a search keeps the order."""
        if self.rng is not None:
            self.rng.shuffle(found)

    # --- faults

    def kill(self, process: Process) -> None:
        """Kill a process, as SIGKILL does."""
        if isinstance(process, ManagerProcess):
            process.was_killed = True
            self.manager_kills += 1
            self.journaled_before = frozenset(self.journaled)
            self.kills_are_handled = False
            self.exited_names.clear()
        else:
            self.client_kills += 1
            if self.starts_a_killed_manager(process) and not self.serving():
                self.kills_are_handled = False
        process.end()

    def starts_a_killed_manager(self, starter: Process) -> bool:
        """Return whether a process is starting a manager that was already killed.

        If the process is killed as well, nobody knows the names that it made for that
        manager, even if clients of another manager have exited normally since.
        """
        killed = [one.system.listener for one in self.managers() if one.was_killed]
        return any(listener in starter.open_objects for listener in killed)

    # --- invariants

    def remove_file(self, name: bytes, manager: ManagerProcess) -> None:
        """Remove a file.

        Raises:
            Violation: a process or a message needs the name.
        """
        if name not in self.files:
            return
        short = name.removeprefix(messages.PREFIX).decode()
        for client in self.clients():
            if client.held[short]:
                raise Violation(f"no_name_goes_early: {client.name} holds {short}")
            for message in (*client.inbox, client.being_received):
                if (
                    message
                    and message.name == short
                    and self.must_keep_name(message, manager)
                ):
                    raise Violation(f"no_name_goes_early: {short} is in flight")
        self.files.discard(name)

    def must_keep_name(self, message: Message, manager: ManagerProcess) -> bool:
        """Return whether a manager must not remove the name of a message in flight.

        A message may have been announced to a manager that was killed. Its name has to
        stay until the successor ends, if the successor can know the name: from the
        journal of the killed manager, or from the sender.
        """
        is_journaled = encoded(message.name) in self.journaled_before
        can_know = is_journaled or not self.processes[message.sender].is_dead
        is_older = message.kills != self.manager_kills
        stays = is_older and can_know and not manager.is_ending
        return stays or message.is_guaranteed(self)

    def verify_single_manager(self, manager: ManagerProcess) -> None:
        """Raise `Violation` if another manager serves the address."""
        for other in self.serving():
            if other is not manager:
                raise Violation(f"one_manager: {other.name} and {manager.name}")

    def serving(self) -> list[ManagerProcess]:
        """Return the managers that serve the address."""
        return [
            one
            for one in self.managers()
            if one.manager.is_listening and not one.is_over and not one.is_dead
        ]

    def note_exit(self, client: ClientProcess) -> None:
        """Note that a client exits, and that a living manager knows its names."""
        own = client.conversation
        if own.connection is None or own.connection.peer.is_closed():
            return  # the manager was killed again, just now
        self.kills_are_handled = True
        self.exited_names.update(own.holds, own.registered)

    def verify_end(self) -> None:
        """Verify the end of a run, when no process can do a step any more.

        Raises:
            Violation: a process still waits, or something is left that must be removed.
        """
        waiting = [f"{one.name} {one.label}" for one in self.alive()]
        if waiting:
            raise Violation(f"nobody_waits: {', '.join(waiting)}")
        is_left = self.directory(DIRECTORY) is not None
        if is_left and self.kills_are_handled:
            raise Violation("nothing_is_left: the directory")
        known = self.journaled | self.exited_names if self.manager_kills else self.files
        if not is_left and self.files & known:
            raise Violation(f"nothing_is_left: {sorted(self.files & known)}")

    def is_settled(self) -> bool:
        """Return whether all processes wait, and no message and no work is left."""
        return all(
            one.is_dead or (one.label in ("settles", "begins") and not one.inbox)
            for one in self.clients()
        ) and all(one.is_dead or one.is_idle() for one in self.managers())

    def verify_settled(self) -> None:
        """Raise `Violation` if a file is left and no client has begun to exit."""
        if self.files and all(not one.is_leaving for one in self.clients()):
            raise Violation(f"names_go: {sorted(self.files)}")

    # --- the state, for a search that recognises states

    def key(self) -> int:
        """Return a hash of everything that decides what can happen from now on."""
        opened: dict[str, object] = {}
        for process in self.processes.values():
            for one in process.open_objects:
                opened[one.identity] = one.key()
                if isinstance(one, Listener):
                    for end in one.backlog:
                        opened[end.identity] = end.key()
        directory = self.directory(DIRECTORY)
        return hash(
            (
                frozenset(
                    (p.name, p.history, p.label, p.is_dead)
                    for p in self.processes.values()
                ),
                frozenset(opened.items()),
                frozenset(self.files),
                directory and directory.key(),
                tuple(
                    (c.name, tuple(message.key() for message in c.inbox))
                    for c in self.clients()
                ),
                self.manager_kills,
                self.client_kills,
                self.kills_are_handled,
                frozenset(self.exited_names),
                frozenset(self.journaled),
                self.journaled_before,
            )
        )
