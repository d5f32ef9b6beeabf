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

from kernel import End, Listener, PipeEnd, Process, Violation, World
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


class Mail:
    """A message in flight, or one that its receiver has just taken from its channel.

    `there` is the end of a pipe that the message carries; None for a counted message.
    `kills` is the number of managers that were killed before the message was made.
    """

    def __init__(
        self, simulation: Simulation, name: str, sender: str, there: PipeEnd | None
    ) -> None:
        self.name = name
        self.sender = sender
        self.there = there
        self.kills = simulation.manager_kills

    def is_guaranteed(self, simulation: Simulation) -> bool:
        """Return whether the manager knows of the message and has to keep its name.

        It does not if a manager was killed since, or if the message is counted and its
        sender is dead.
        """
        if self.kills != simulation.manager_kills:
            return False
        return self.there is not None or not simulation.processes[self.sender].is_dead

    def key(self) -> object:
        pipe = self.there and self.there.identity
        return self.name, self.sender, pipe, self.kills


class ManagerProcess(Process):
    """A manager process, which runs the real `serving.Manager`."""

    world: Simulation

    def __init__(
        self, world: Simulation, name: str, listener: Listener, first: End
    ) -> None:
        super().__init__(world, name)
        self.is_over = False
        self.is_ending = False
        self.was_killed = False
        self.open(listener, first)
        self.system = ManagerSystem(self, listener)
        self.manager = world.rules.manager(self.system, first, GRACE)
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
        return self.label == "polls" and not has_work and not self.system.has_news()

    def checkpoint(self) -> None:
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
        self.private: set[str] = set()  # names made here that no other process knew
        self.mail: deque[Mail] = deque()
        self.in_hand: Mail | None = None
        self.forked = 0
        self.is_leaving = False
        self.is_known = False  # whether others can know the address of its manager
        self.conversation = world.rules.conversation(self)

    def do(self, program: Coroutine[Any, None, Any]) -> None:
        self.run(program)

    def end(self) -> None:
        for mail in self.mail:
            if mail.there is not None:
                mail.there.close()
        self.mail.clear()
        self.in_hand = None
        self.held.clear()
        super().end()

    # --- as the package does it

    async def tell(self, kind: bytes, name: str, *given: Any) -> bool:
        """Send a message about a name, as `client.Client.deliver` does.

        Returns:
            False if that raises `ManagerError`.
        """
        deliver = self.conversation.deliver
        return await self.say(deliver(kind, encoded(name), given, self.is_own))

    async def say(self, said: Coroutine[Any, Any, None]) -> bool:
        """Send something to the manager; return False if that raises `ManagerError`.

        A client of another's manager leaves it afterwards if it may.

        Raises:
            Violation: it raises although this process holds names.
        """
        try:
            await said
        except ManagerError as error:
            self.saw("error")
            if self.held:
                raise Violation(f"holders_are_served: {self.name}: {error}") from error
            return False
        if not self.is_own and self.conversation.may_leave():
            self.conversation.leave()
            self.conversation = self.world.rules.conversation(self)
        return True

    async def start(self) -> None:
        """Start the manager of this process, as `launch.start_anywhere` does."""
        connected = await conversation.start(ClientSystem(self), DIRECTORY)
        self.conversation.connection, self.conversation.presence = connected

    async def make(self, name: str) -> None:
        """Share a new tensor: register its name, and then make its file."""
        if await self.tell(messages.REGISTER, name):
            await self.point(f"makes {name}")
            self.world.files.add(encoded(name))
            self.held[name] += 1
            self.private.add(name)

    async def make_and_send(self, name: str, receiver: str) -> None:
        """Share a new tensor by sending it; one message registers and announces it."""
        there = PipeEnd(self.identity("pipe"))
        self.open(there)
        here = ReadEnd(there.identity, there)
        if await self.tell(messages.REGISTER_ANNOUNCED, name, here):
            mail = Mail(self.world, name, self.name, there)
            await self.point(f"makes {name}")
            self.world.files.add(encoded(name))
            self.held[name] += 1
            await self.put(mail, receiver)
        self.close(there)

    async def send(self, name: str, receiver: str) -> None:
        """Send a name that this process holds, in a message with a descriptor."""
        if name not in self.held:
            return
        self.private.discard(name)
        there = PipeEnd(self.identity("pipe"))
        self.open(there)
        here = ReadEnd(there.identity, there)
        if await self.world.rules.announce(self, name, here):
            await self.put(Mail(self.world, name, self.name, there), receiver)
        self.close(there)

    async def send_counted(self, name: str, receiver: str) -> None:
        """Send a name that this process holds, in a message without descriptors."""
        if name not in self.held:
            return
        self.private.discard(name)
        if await self.tell(messages.ANNOUNCE_COUNTED, name):
            mail = Mail(self.world, name, self.name, None)
            if not await self.put(mail, receiver):
                await self.tell(messages.WITHDRAW_COUNTED, name)

    async def put(self, mail: Mail, receiver: str) -> bool:
        """Put a message into a channel; return whether the receiver still lives."""
        await self.point(f"puts {mail.name}")
        to = self.world.processes.get(receiver)
        can = isinstance(to, ClientProcess) and not to.is_dead
        self.saw(can)
        if can:
            to.mail.append(mail)
            if mail.there is not None:
                mail.there.references += 1
        return can

    async def receive(self) -> None:
        """Receive a message: hold its name, open its file, then close its descriptor.

        The descriptor stays open if the name is held by it.
        """
        await self.point("receives", lambda: bool(self.mail) or self.is_last())
        self.saw(self.mail[0].key() if self.mail else None)
        if not self.mail:
            return
        mail = self.in_hand = self.mail.popleft()
        if mail.there is not None:
            self.opened.append(mail.there)
        await self.world.rules.take_over(self, mail)
        self.in_hand = None
        kept = self.conversation.kept_open
        if kept is None or kept[1] is not mail.there:
            self.close(mail.there)

    def is_last(self) -> bool:
        """Return whether no other client is left that could send something."""
        clients = self.world.clients()
        return all(one is self or one.is_dead or one.is_waiting() for one in clients)

    def is_waiting(self) -> bool:
        return self.label in ("receives", "settles", "is silent") and not self.mail

    async def hold(self, mail: Mail) -> bool:
        """Hold the name of a message, and open its file; return whether that succeeds.

        The name is registered only if the message has no descriptor by which it can be
        held.
        """
        held = bool(self.held)
        if mail.there is None:
            is_held = await self.tell(messages.REGISTER, mail.name)
        else:
            said = self.conversation
            name, there = encoded(mail.name), mail.there
            is_held = await self.say(said.hold(name, there, self.is_own))
        if not is_held:
            self.lost(mail, "the manager has ended")
            return False
        await self.point(f"opens {mail.name}")
        there = encoded(mail.name) in self.world.files
        self.saw((there, held))
        if not there:
            self.lost(mail, "there is no file")
            await self.tell(messages.RELEASE, mail.name)
            return False
        self.held[mail.name] += 1
        return True

    def lost(self, mail: Mail, why: str) -> None:
        """Raise `Violation` if the manager had to keep the name of a lost message."""
        if mail.is_guaranteed(self.world):
            raise Violation(f"no_name_goes_early: {self.name} gets {mail.name}: {why}")

    async def acknowledge(self, mail: Mail) -> None:
        """Acknowledge a message if it has no descriptor."""
        if mail.there is None:
            await self.tell(messages.ACKNOWLEDGE_COUNTED, mail.name)

    async def drop(self, name: str) -> None:
        """Drop a tensor, and release its name."""
        if name in self.held:
            self.held -= Counter([name])
            await self.tell(messages.RELEASE, name)

    async def settle(self) -> None:
        """Drop and receive everything, and wait until all other processes have done so.

        Raises:
            Violation: a file is left.
        """
        while True:
            for name in sorted(self.held.elements()):
                await self.drop(name)
            await self.point("settles", lambda: self.mail or self.world.is_settled())
            if not self.mail:
                break
            await self.receive()
        self.world.verify_settled()

    async def sync(self) -> None:
        """Wait until the manager has handled everything that this process has told it.

        Raises:
            Violation: there is a file that only this process knew of, and that it has
                dropped. After the kill of a manager this is permitted.
        """
        dropped = {name for name in self.private if name not in self.held}
        if not self.conversation.registered:
            return
        try:
            await self.conversation.request(messages.SYNC, self.is_own)
        except ManagerError:
            self.saw("error")
            return
        left = self.world.files & {encoded(name) for name in dropped}
        if left and not self.world.manager_kills:
            raise Violation(f"names_go: {self.name} has dropped {sorted(left)}")

    async def fork(
        self, program: Callable[[ClientProcess], Coroutine[Any, None, Any]]
    ) -> None:
        """Fork a child that holds what this process holds, and runs a program."""
        ours = None
        said = self.conversation
        if said.connection is not None and said.has_names():
            ours, theirs = self.connection()
            try:
                await self.world.rules.prefork(self, theirs)
            except OSError:
                ours = None
            else:
                self.open(ours)
        await self.point("forks")
        self.private.clear()
        self.forked += 1
        child = ClientProcess(self.world, f"{self.name}.{self.forked}", self.is_own)
        child.inherit(self, ours)
        self.close(ours)
        child.do(program(child))

    def inherit(self, parent: ClientProcess, connection: End | None) -> None:
        """Copy the state of the parent into this forked child.

        `connection` is the prefork connection, or None.
        """
        said = parent.conversation
        for opened in (said.connection, said.presence, connection):
            if opened is not None:
                self.open(opened)
        mine = self.conversation
        mine.connection, mine.presence = said.connection, said.presence
        mine.holds = dict(said.holds)
        mine.kept_open = said.kept_open
        mine.inherit(connection)
        self.held = +parent.held

    async def exit(self) -> None:
        """Exit normally; first start a successor if the manager was killed."""
        said = self.conversation
        self.held.clear()
        self.is_leaving = True
        if said.connection is None and said.presence is None:
            return
        await self.point("looks after its manager")
        connection = said.connection
        is_killed = connection is None or connection.has_news()
        self.saw(is_killed)
        if is_killed and self.world.directory(DIRECTORY) is not None:
            said.hang_up()
            try:
                await said.open(may_create=True)
            except (ManagerError, OSError):
                self.saw("error")
                return
        self.world.leaves_in_order(self)


class Rules:
    """The steps of the protocol that a mutant can replace."""

    manager: type[serving.Manager] = serving.Manager
    conversation: type[SimulatedConversation] = SimulatedConversation

    async def announce(self, process: ClientProcess, name: str, here: ReadEnd) -> bool:
        return await process.tell(messages.ANNOUNCE, name, here)

    async def take_over(self, process: ClientProcess, mail: Mail) -> None:
        if await process.hold(mail):
            await process.acknowledge(mail)

    async def prefork(self, process: ClientProcess, theirs: End) -> None:
        await process.conversation.register_kept_open()
        if process.conversation.connection is None:
            raise OSError
        await process.conversation.transmit(messages.PREFORK, (theirs,))


class Simulation(World):
    """The processes of a program, its managers, and the kills that they have met."""

    def __init__(self, rules: Rules, chance: random.Random | None = None) -> None:
        super().__init__()
        self.rules = rules
        self.chance = chance
        self.manager_kills = self.client_kills = 0
        self.journaled: set[bytes] = set()
        self.of_before: frozenset[bytes] = frozenset()  # journaled at the last kill
        self.told: set[bytes] = set()  # names of clients that exited since a kill
        self.was_looked_after = True
        self.is_deadly = True

    # --- processes

    def clients(self) -> list[ClientProcess]:
        return [p for p in self.processes.values() if isinstance(p, ClientProcess)]

    def managers(self) -> list[ManagerProcess]:
        return [p for p in self.processes.values() if isinstance(p, ManagerProcess)]

    def client(self, name: str, is_own: bool = True) -> ClientProcess:
        return ClientProcess(self, name, is_own)

    def start_manager(self, starter: Process, listener: Listener, first: End) -> None:
        name = starter.identity("manager")
        ManagerProcess(self, name, listener, first)

    def shuffle(self, found: list[Any]) -> None:
        """Put news into a random order in a random run; a search keeps the order."""
        if self.chance is not None:
            self.chance.shuffle(found)

    # --- faults

    def kill(self, process: Process) -> None:
        """Kill a process, as SIGKILL does."""
        if isinstance(process, ManagerProcess):
            process.was_killed = True
            self.manager_kills += 1
            self.of_before = frozenset(self.journaled)
            self.was_looked_after = False
            self.told.clear()
        else:
            self.client_kills += 1
            if self.starts_a_killed_manager(process) and not self.serving():
                self.was_looked_after = False
        process.end()

    def starts_a_killed_manager(self, starter: Process) -> bool:
        """Return whether a process is starting a manager that was already killed.

        If the process is killed as well, nobody knows the names that it made for that
        manager, even if clients of another manager have exited normally since.
        """
        killed = [one.system.listener for one in self.managers() if one.was_killed]
        return any(listener in starter.opened for listener in killed)

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
            for mail in (*client.mail, client.in_hand):
                if mail and mail.name == short and self.has_to_stay(mail, manager):
                    raise Violation(f"no_name_goes_early: {short} is in flight")
        self.files.discard(name)

    def has_to_stay(self, mail: Mail, manager: ManagerProcess) -> bool:
        """Return whether a manager must not remove the name of a message in flight.

        A message may have been announced to a manager that was killed. Its name has to
        stay until the successor ends, if the successor can know the name: from the
        journal of the killed manager, or from the sender.
        """
        is_known = encoded(mail.name) in self.of_before
        is_told = is_known or not self.processes[mail.sender].is_dead
        is_of_before = mail.kills != self.manager_kills
        stays = is_of_before and is_told and not manager.is_ending
        return stays or mail.is_guaranteed(self)

    def listens(self, manager: ManagerProcess) -> None:
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

    def leaves_in_order(self, client: ClientProcess) -> None:
        """Note that a client exits, and that a living manager knows its names."""
        said = client.conversation
        if said.connection is None or said.connection.peer.is_closed():
            return  # the manager was killed again, just now
        self.was_looked_after = True
        self.told.update(said.holds, said.registered)

    def verify_end(self) -> None:
        """Verify the end of a run, when no process can do a step any more.

        Raises:
            Violation: a process still waits, or something is left that must be removed.
        """
        waiting = [f"{one.name} {one.label}" for one in self.alive()]
        if waiting:
            raise Violation(f"nobody_waits: {', '.join(waiting)}")
        is_left = self.directory(DIRECTORY) is not None
        if is_left and self.was_looked_after:
            raise Violation("nothing_is_left: the directory")
        known = self.journaled | self.told if self.manager_kills else self.files
        if not is_left and self.files & known:
            raise Violation(f"nothing_is_left: {sorted(self.files & known)}")

    def is_settled(self) -> bool:
        """Return whether all processes wait, and no message and no work is left."""
        return all(
            one.is_dead or (one.label in ("settles", "begins") and not one.mail)
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
            for one in process.opened:
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
                    (c.name, tuple(mail.key() for mail in c.mail))
                    for c in self.clients()
                ),
                self.manager_kills,
                self.client_kills,
                self.was_looked_after,
                frozenset(self.told),
                frozenset(self.journaled),
                self.of_before,
            )
        )
