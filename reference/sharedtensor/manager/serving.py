"""What a manager does about what it is told, and in which order. No I/O.

`Manager` has the decisions; what it asks of the operating system is in `System`, which
`daemon` implements with system calls and the tests with a simulated kernel. Its methods
are coroutines for the simulator's sake alone: each `await` is a point at which another
process may come in between, or this one may be killed. In the daemon none ever waits
(see `complete`).

**When a name goes.** A client holds a multiset of names, given up when its connection
ends. A message in flight holds names by itself: it carries one end of a pipe, and the
manager has the other, which the kernel closes when the message was received, was
withdrawn or can never be received. A receiver sends REGISTER before it closes the pipe.
Messages without pipes are counted. See `accounting` for when such a name is removed.
Names in flight for whose pipe there is no descriptor left are kept to the end.

**A successor.** A manager writes down each name that it hears of, for one that takes
its place when it was killed. What was in flight died with it, so a successor keeps
these names, and those that came by REGISTER_AGAIN, to the end. It cannot know of names
that its predecessor had not read of. Therefore, while clients of the predecessor live
that have not come yet (their presence pipe is open: see `conversation`), it neither
ends nor removes a name; and names of which it hears that a counted message has arrived
are kept as well, since it may be one that the predecessor had counted.

**The end.** When the last client and the last message in flight are gone, the manager
waits for its grace period, hides its socket, serves whoever has connected before that,
or removes all names that are left, its socket and its directory (clause MGR-3).

**The start.** If its starter is killed, a manager serves a socket that listens already
(`nobody_replaces_a_starter`). One that does not listen never will, so others may have
put a manager of theirs into the directory: it goes under its lock, and only if nobody
uses it (`leaves_a_locked_directory`, `starters_remove_what_another_serves`).

The simulator of the tests covers the orders: `no_name_goes_early`, `nothing_is_left`
and `nobody_waits` are its invariants, and each of its mutants changes one order.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable

from . import messages
from .accounting import Holds, Names

TYPE_CHECKING = False  # as `typing` has it, which the daemon need not load
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Result = TypeVar("Result")
    Connection = Any  # what stands for a connection, a pipe and a descriptor is the
    Pipe = Any  # system's alone
    Descriptor = Any

# More messages than the socket of a client can hold (`messages.BUFFER`): so many of it,
# or all, are read in one sweep, however fast it goes on sending.
MESSAGES_AT_ONCE = 4096
ACCEPT_RETRY = 1.0  # seconds until resources that had run out are looked for again
LOCK_RETRY = 0.02  # seconds until a directory that a client has locked is tried again

LISTENER = object()  # what `System.poll` gives where clients wait to be accepted


class OutOfResources(Exception):
    """No connection can be accepted now: there is no descriptor, or no memory."""


class Abandoned(Exception):
    """The client that started this manager does not need it."""


def complete(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine whose system never makes it wait; return its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    raise RuntimeError("the system made a coroutine wait")


class Client:
    """One connection and the multiset of names that its process holds."""

    __slots__ = ("connection", "holds")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.holds: Holds = {}


class InFlight:
    """A pipe of which the other ends are elsewhere, and what stays while they are.

    Of a message in flight these are its names. `None` stands for all names: the pipe is
    the presence pipe of clients of a manager that was killed.
    """

    __slots__ = ("names", "pipe")

    def __init__(self, pipe: Pipe, names: list[bytes] | None) -> None:
        self.pipe = pipe
        self.names = names


Watched = Client | InFlight


class System:
    """What a manager asks of the operating system."""

    pid: int

    def now(self) -> float:
        """Return the seconds of a clock that does not go back."""
        raise NotImplementedError

    async def poll(self, seconds: float | None) -> Iterable[Any]:
        """Wait for news; return the `LISTENER`, the clients and the pipes with some.

        `None` waits for ever.
        """
        raise NotImplementedError

    def watch(self, watched: Watched) -> None:
        """Have `poll` give what is sent by a client, or the end of a pipe."""
        raise NotImplementedError

    async def close(self, watched: Watched) -> None:
        """Close a connection or a pipe, of which `poll` gives no more news."""
        raise NotImplementedError

    def watch_listener(self, is_watched: bool) -> None:
        """Have `poll` give the `LISTENER`, or not."""
        raise NotImplementedError

    async def accept(self) -> Connection | None:
        """Return the next connection of this user that waits, if one does.

        Raises `OutOfResources`.
        """
        raise NotImplementedError

    async def receive(
        self, connection: Connection
    ) -> tuple[bytes, list[Descriptor]] | None:
        """Return a client's next message with its descriptors; None if there is none.

        The message is empty at the end of the connection, or if it is none.
        """
        raise NotImplementedError

    async def reply(self, connection: Connection, answer: bytes) -> bool:
        """Send an answer; return False if the client does not take it."""
        raise NotImplementedError

    def as_connection(self, descriptor: Descriptor) -> Connection | None:
        """Take over a descriptor; close it if it is no connection."""
        raise NotImplementedError

    def is_pipe(self, descriptor: Descriptor) -> bool:
        """Return whether a descriptor is an end of a pipe."""
        raise NotImplementedError

    def discard(self, descriptors: list[Descriptor]) -> None:
        """Close descriptors that nobody asked for."""
        raise NotImplementedError

    async def open_directory(self) -> tuple[bool, list[bytes], list[Pipe]]:
        """Return whether there was a manager before this one, and what it left.

        These are the names in its journal, to which this one adds, and the presence
        pipes of clients that have not come.
        """
        raise NotImplementedError

    async def write_journal(self, names: list[bytes]) -> None:
        """Add names to the journal, as well as can be."""
        raise NotImplementedError

    async def rewrite_journal(self, names: list[bytes]) -> None:
        """Leave in the journal these names alone, as well as can be."""
        raise NotImplementedError

    async def remove(self, name: bytes) -> None:
        """Remove the file of a name, which may be gone."""
        raise NotImplementedError

    def can_be_reached(self) -> bool:
        """Return whether the socket listens; then it is in the directory."""
        raise NotImplementedError

    async def lock(self) -> bool:
        """Lock the directory, if it is there; return False if a client has."""
        raise NotImplementedError

    async def hide(self) -> bool:
        """Let nobody find the socket from here on; return False if it has gone."""
        raise NotImplementedError

    async def show(self) -> None:
        """Let the socket be found again, and unlock the directory."""
        raise NotImplementedError

    async def remove_directory(self, has_listened: bool) -> None:
        """Remove the directory, which is locked, or look why a manager may not.

        It is this manager's if it has listened; else it goes if nobody uses it.
        """
        raise NotImplementedError


class Manager:
    """The clients and the messages in flight, and the loop that serves them."""

    def __init__(self, system: System, first: Connection, grace: float) -> None:
        self.system = system
        self.grace = grace
        self.clients: set[Client] = set()
        self.in_flight: set[InFlight] = set()
        self.absent: set[InFlight] = set()  # of the pipes in flight, those of presence
        self.names = Names()
        self.about_a_name = {
            messages.REGISTER: self.names.register,
            messages.REGISTER_AGAIN: self.names.register_again,
            messages.RELEASE: self.names.release,
            messages.ANNOUNCE_COUNTED: self.names.announce_counted,
            messages.ACKNOWLEDGE_COUNTED: self.names.close_counted,
            messages.WITHDRAW_COUNTED: self.names.close_counted,
        }
        self.requests: list[tuple[Client, bytes]] = []
        self.readable: list[Client] = []
        self.is_listening = False
        self.accepts_at: float | None = None  # the time, after resources have run out
        self.deadline = 0.0
        self.first = self.add_client(first)

    # --- the loop

    async def run(self) -> None:
        """Serve until nobody has used this manager for the grace period.

        Clause MGR-3.
        """
        while self.is_used() or self.seconds_left() > 0 or not await self.close():
            await self.run_once()

    def is_used(self) -> bool:
        """Return whether there is a client, or a message in flight."""
        return bool(self.clients or self.in_flight)

    def seconds_left(self) -> float:
        """Return the rest of the grace period."""
        return self.deadline - self.system.now()

    async def run_once(self) -> None:
        """Sweep once, then do what was asked for, or was due, before the sweep."""
        self.names.begin_sweep()
        requests, self.requests = self.requests, []
        is_due = bool(self.names.confirmed or requests)
        if self.accepts_at is not None and self.accepts_at <= self.system.now():
            self.accept_again()
        await self.sweep(0.0 if is_due else self.timeout())
        await self.remove_names(self.names.confirmed)
        for client, request in requests:
            await self.answer(client, request)

    def timeout(self) -> float | None:
        """Return for how many seconds to wait for the next message."""
        times = [] if self.is_used() else [self.deadline]
        if self.accepts_at is not None:
            times.append(self.accepts_at)
        return max(0.0, min(times) - self.system.now()) if times else None

    async def sweep(self, timeout: float | None) -> None:
        """Read what was sent until now."""
        self.readable = []
        for found in await self.system.poll(timeout):
            if found is LISTENER:
                await self.accept()
            elif isinstance(found, InFlight):
                await self.close_in_flight(found)
            else:
                self.readable.append(found)
        for client in self.readable:  # grows while clients are added
            await self.read_messages(client)

    # --- clients that come and go

    async def accept(self) -> None:
        """Add the clients that wait, as long as resources last. Clause FAULT-5."""
        try:
            while (connection := await self.system.accept()) is not None:
                self.add_client(connection)
        except OutOfResources:
            self.rest()

    def rest(self) -> None:
        """Accept nobody until a client leaves, or a time has passed.

        Nobody says when there are resources again.
        """
        if self.accepts_at is None:
            self.system.watch_listener(False)
        self.accepts_at = self.system.now() + ACCEPT_RETRY

    def accept_again(self) -> None:
        """Accept those who wait, in the next sweep."""
        self.accepts_at = None
        self.system.watch_listener(True)

    def add_client(self, connection: Connection) -> Client:
        """Serve one more client, from this same sweep on."""
        client = Client(connection)
        self.clients.add(client)
        self.system.watch(client)
        self.readable.append(client)
        return client

    async def disconnect(self, client: Client) -> None:
        """Release all that a client held; its connection has ended or must end."""
        self.names.release_all(client.holds)
        self.clients.remove(client)
        await self.system.close(client)
        if client is self.first and not self.is_listening:
            await self.replace_starter()
        self.after_close()

    async def replace_starter(self) -> None:
        """Serve a socket that listens, though its maker was killed before it said so.

        Others may have connected by then. A socket that does not listen never will.
        Clause MGR-14.
        """
        if self.system.can_be_reached():
            await self.start_listening()

    def after_close(self) -> None:
        """Accept again, with a descriptor free; without any user left, end soon."""
        if self.is_listening:
            self.accept_again()
        if not self.is_used():
            grace = self.grace if self.is_listening else 0.0
            self.deadline = self.system.now() + grace

    # --- messages

    async def read_messages(self, client: Client) -> None:
        """Read what a client had sent when this began, and perhaps more."""
        receive, connection, names = self.system.receive, client.connection, self.names
        for _ in range(MESSAGES_AT_ONCE):
            received = await receive(connection)
            if received is None:
                return
            message, descriptors = received
            if (descriptors or not self.count(client, message)) and not (
                await self.handle_message(client, message, descriptors)
            ):
                return await self.disconnect(client)
            if names.unwritten:
                await self.write_journal()

    def count(self, client: Client, message: bytes) -> bool:
        """Do what a message says of one name; return False if it is another message."""
        handler, name = self.about_a_name.get(message[:1]), message[1:]
        if handler is None or not (name in self.names.usages or messages.is_name(name)):
            return False
        handler(client.holds, name)
        return True

    async def handle_message(
        self, client: Client, message: bytes, descriptors: list[Descriptor]
    ) -> bool:
        """Do what a message says; return False if it says nothing, or nothing known.

        Clause MGR-16.
        """
        kind, argument = message[:1], message[1:]
        if kind == messages.PREFORK:
            self.prefork(client, descriptors)
            return not argument
        if kind == messages.ANNOUNCE:
            return self.announce(argument.split(messages.SEPARATOR), descriptors)
        if kind == messages.REGISTER_ANNOUNCED:
            is_proper = self.announce([argument], descriptors)
            return is_proper and self.count(client, messages.REGISTER + argument)
        self.system.discard(descriptors)
        if kind in (messages.SYNC, messages.STATUS) and len(argument) == messages.TOKEN:
            self.requests.append((client, message))
        elif kind == messages.LISTENING and client is self.first:
            await self.start_listening()
        elif kind == messages.ABANDON and client is self.first:
            raise Abandoned
        else:
            return self.count(client, message)
        return True

    async def start_listening(self) -> None:
        """Accept clients, knowing what a manager knew that was killed here.

        The directory and the socket in it have been made. Clause MGR-14.
        """
        follows, names, pipes = await self.system.open_directory()
        self.names.follows_a_killed_one = follows
        self.names.keep_known(names)
        for pipe in pipes:
            self.absent.add(self.add_in_flight(pipe, None))
        self.is_listening = True
        self.accept_again()

    def prefork(self, parent: Client, descriptors: list[Descriptor]) -> None:
        """Add the child that a client is about to fork. Clauses START-3, LIFE-22.

        Without its descriptor it will connect by itself.
        """
        self.system.discard(descriptors[1:])
        connection = self.system.as_connection(descriptors[0]) if descriptors else None
        if connection is not None:
            child = self.add_client(connection)
            child.holds = self.names.inherited(parent.holds)

    def announce(self, names: list[bytes], descriptors: list[Descriptor]) -> bool:
        """A message with these names is in flight until its pipe is closed.

        Return False if this is no proper announcement. Clauses LIFE-2, LIFE-5.
        """
        is_proper = len(descriptors) < 2 and all(map(self.system.is_pipe, descriptors))
        if not (is_proper and all(map(messages.is_name, names))):
            self.system.discard(descriptors)
            return False
        self.names.announce(names, has_pipe=bool(descriptors))
        for pipe in descriptors:
            self.add_in_flight(pipe, names)
        return True

    def add_in_flight(self, pipe: Pipe, names: list[bytes] | None) -> InFlight:
        """Wait for the end of a pipe."""
        found = InFlight(pipe, names)
        self.in_flight.add(found)
        self.system.watch(found)
        return found

    async def close_in_flight(self, found: InFlight) -> None:
        """A message was received, or never will be. Clause FS-10.

        Or the last client of a manager that was killed has come, or has ended.
        """
        self.in_flight.remove(found)
        self.absent.discard(found)
        await self.system.close(found)
        self.names.close(found.names or [])
        self.after_close()

    async def answer(self, client: Client, request: bytes) -> None:
        """Answer a SYNC or STATUS; disconnect a client that does not read."""
        if client not in self.clients:
            return
        reply = request[1:]
        if request[:1] == messages.STATUS:
            reply += self.counts()
        if not await self.system.reply(client.connection, reply):
            await self.disconnect(client)

    def counts(self) -> bytes:
        """Return the figures of a STATUS answer."""
        usages = self.names.usages.values()
        return messages.COUNTS.pack(
            self.system.pid,
            len(self.clients),
            len(usages),
            sum(usage.holds for usage in usages),
            sum(usage.in_flight + usage.counted for usage in usages),
        )

    # --- the journal

    async def write_journal(self) -> None:
        """Write down the names that were new in the last message. Clause MGR-14."""
        unwritten, self.names.unwritten = self.names.unwritten, []
        await self.system.write_journal(unwritten)

    async def compact_journal(self) -> None:
        """Leave out the names that are gone, if they are many."""
        if self.names.is_journal_long():
            self.names.lines = len(self.names.usages)
            await self.system.rewrite_journal(list(self.names.usages))

    # --- the end of a name, and of the manager

    async def remove_names(self, names: set[bytes]) -> None:
        """Remove what nobody can use any more. Clauses FS-2, FS-9, MGR-10.

        The journal has a name until its file is gone: a successor may have to remove
        it.
        """
        for name in sorted(names):
            await self.remove_name(name)
        if names:
            await self.compact_journal()

    async def remove_name(self, name: bytes) -> None:
        """Remove a name, unless somebody may use it who has not come. Clause MGR-14."""
        if self.absent:
            self.names.keep(name)
        elif self.names.discard(name):
            await self.system.remove(name)

    async def close(self) -> bool:
        """Accept nobody from here on; False if somebody connected at the last moment.

        Clause MGR-3.
        """
        if not await self.system.lock():
            self.deadline = self.system.now() + LOCK_RETRY
            return False
        if not (self.is_listening and await self.system.hide()):
            return True  # nobody can connect: it never listened, or the socket is gone
        await self.accept()
        if self.is_used():
            await self.system.show()
        return not self.is_used()

    async def remove_everything(self) -> None:
        """Leave nothing behind. Clauses LIFE-9, LIFE-10, MGR-2, MGR-3 and MGR-7."""
        for name in self.names.usages:
            await self.system.remove(name)
        await self.system.remove_directory(self.is_listening)
