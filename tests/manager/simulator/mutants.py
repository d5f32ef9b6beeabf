"""Mutants: faults of the manager's protocol, each of which the simulator has to find.

A mutant replaces one function of the protocol, or one of `processes` or `systems`,
which stand for the package's use of the protocol. Its docstring says what is wrong, and
is part of the record. A mutant is killed by the first random run that violates an
invariant, or by the search that it names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import systems
from processes import ClientProcess, ProtocolSteps
from sharedtensor.errors import ManagerError
from sharedtensor.manager import messages
from sharedtensor.manager.accounting import Names
from sharedtensor.manager.conversation import Conversation
from sharedtensor.manager.serving import Manager
from systems import PRESENCE, ClientSystem, SimulatedConversation


@dataclass
class Mutant:
    """One fault: the attribute of `holder` that it replaces, and the replacement.

    If random runs rarely find the fault, `scenario` names the scenario of the search
    that does. The other fields limit the kills of managers and of clients in this
    search.
    """

    name: str
    sentence: str
    holder: Any
    attribute: str
    replacement: Any
    scenario: str = ""
    manager_kills: int = 0
    client_kills: int = 0

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        with mock.patch.object(self.holder, self.attribute, self.replacement):
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(
    holder: Any,
    attribute: str,
    scenario: str = "",
    manager_kills: int = 0,
    client_kills: int = 0,
) -> Callable[[Any], Any]:
    """Register the decorated function as a replacement; see `Mutant` for arguments."""

    def register(replacement: Any) -> Any:
        sentence = " ".join(replacement.__doc__.split())
        name = replacement.__name__
        assert hasattr(holder, attribute), f"nothing is replaced: {attribute}"
        found = Mutant(name, sentence, holder, attribute, replacement)
        found.scenario = scenario
        found.manager_kills, found.client_kills = manager_kills, client_kills
        MUTANTS[name] = found
        return replacement

    return register


# --- faults of the manager

_run_once = Manager.run_once
_sweep = Manager.sweep
_disconnect = Manager.disconnect
_close = Manager.close
_to_say_again = Conversation.to_say_again


@mutant(Manager, "run_once")
async def removes_at_once(self: Manager) -> None:
    """A name is removed in the sweep in which it became unreachable."""
    await _run_once(self)
    candidates, self.names.candidates = self.names.candidates, set()
    await self.remove_names(candidates)


@mutant(Manager, "disconnect")
async def removes_on_disconnect(self: Manager, client: Any) -> None:
    """What a client held is removed when it has gone, whoever else holds it."""
    held = list(client.holds)
    await _disconnect(self, client)
    for name in held:
        if name in self.names.usages and self.names.discard(name):
            await self.system.remove(name)


@mutant(Names, "update")
def forgets_what_is_in_flight(self: Names, name: bytes) -> None:
    """A name is unreachable when nobody holds it, though messages carry it."""
    self.confirmed.discard(name)
    usage = self.usages[name]
    is_held = usage.holds or usage.is_kept
    (self.candidates.discard if is_held else self.candidates.add)(name)


@mutant(Names, "close_counted")
def counts_nothing_below_zero(self: Names, holds: Any, name: bytes) -> None:
    """An acknowledgement that is read before its announcement does not count."""
    usage = self.usage(name)
    usage.counted = max(0, usage.counted - 1)
    self.update(name)


@mutant(Names, "close_counted", "one_sends_counted", manager_kills=1)
def takes_a_count_of_another_message(self: Names, holds: Any, name: bytes) -> None:
    """A successor takes what its predecessor counted for one of its own messages."""
    self.usage(name).counted -= 1
    self.update(name)


@mutant(Names, "inherited")
def children_inherit_nothing(self: Names, holds: Any) -> Any:
    """A forked child holds nothing of what its parent holds."""
    return {}


@mutant(Manager, "write_journal")
async def writes_no_journal(self: Manager) -> None:
    """The names that a manager hears of are not written down."""
    self.names.unwritten = []


@mutant(Names, "keep_known")
def successor_reads_no_journal(self: Names, names: Any) -> None:
    """A successor does not look at what its predecessor wrote down."""


@mutant(Manager, "remove_names")
async def rewrites_the_journal_first(self: Manager, names: set[bytes]) -> None:
    """A name leaves the journal before its file is removed."""
    going = [] if self.absent else [n for n in list(names) if self.names.discard(n)]
    if names:
        await self.compact_journal()
    for name in going:
        await self.system.remove(name)


@mutant(Manager, "remove_name", "one_receives_for_a_silent_one", manager_kills=1)
async def removes_while_clients_are_absent(self: Manager, name: bytes) -> None:
    """A successor removes names though clients live that have not come to it."""
    if self.names.discard(name):
        await self.system.remove(name)


@mutant(Manager, "is_used")
def ends_without_absent_clients(self: Manager) -> bool:
    """A successor ends though clients live that have not come to it."""
    return bool(self.clients or self.in_flight - self.absent)


@mutant(Manager, "is_used")
def ends_with_messages_in_flight(self: Manager) -> bool:
    """The manager ends with its last client, whatever is in flight."""
    return bool(self.clients)


@mutant(Manager, "close", "two_share")
async def ends_in_the_open(self: Manager) -> bool:
    """The manager ends without hiding its socket: somebody may be half connected."""
    return True


@mutant(Manager, "sweep")
async def answers_too_early(self: Manager, timeout: float | None) -> None:
    """A SYNC is answered in the sweep that reads it, with removals still to come."""
    await _sweep(self, timeout)
    requests, self.requests = self.requests, []
    for client, request in requests:
        await self.answer(client, request)


# --- faults of a client


@mutant(ClientProcess, "make")
async def makes_before_it_registers(self: ClientProcess, name: str) -> None:
    """A file is made before the manager knows its name."""
    await self.point(f"makes {name}")
    self.world.files.add(messages.PREFIX + name.encode())
    if await self.deliver(messages.REGISTER, name):
        self.held[name] += 1


@mutant(ProtocolSteps, "announce")
async def announces_nothing(
    self: ProtocolSteps, process: Any, name: str, read_end: Any
) -> bool:
    """The manager is not told of messages in flight."""
    return True


@mutant(ProtocolSteps, "take_over")
async def lets_go_before_it_holds(
    self: ProtocolSteps, process: Any, message: Any
) -> None:
    """A receiver closes the message's descriptor before it has registered."""
    process.close(message.pipe_end)
    await process.acknowledge(message)
    await process.hold(message)


@mutant(ProtocolSteps, "take_over")
async def acknowledges_before_it_holds(
    self: ProtocolSteps, process: Any, message: Any
) -> None:
    """A receiver acknowledges a counted message before it has registered."""
    await process.acknowledge(message)
    await process.hold(message)


@mutant(Conversation, "register_kept_open")
async def closes_before_it_registers(self: Conversation) -> None:
    """What is held by a descriptor is not registered when that is closed."""
    self.count_kept_open()


@mutant(Conversation, "count_kept_open")
def forgets_what_it_keeps_open(self: Conversation) -> None:
    """What was held by a descriptor is not said again to a successor."""
    if self.kept_open is not None:
        self.let_go(self.kept_open[1])
        self.kept_open = None


@mutant(SimulatedConversation, "is_waited_for")
def holds_by_a_dead_manager(self: SimulatedConversation, descriptor: Any) -> bool:
    """A name is held by a descriptor whose manager was killed."""
    return True


@mutant(ProtocolSteps, "prefork")
async def children_get_nothing_that_is_kept_open(
    self: ProtocolSteps, process: Any, manager_end: Any
) -> None:
    """A fork does not register what its parent holds by a descriptor."""
    if process.conversation.connection is None:
        raise OSError
    await process.conversation.transmit(messages.PREFORK, (manager_end,))


@mutant(Conversation, "may_leave", "one_passes_on")
def leaves_with_counted_messages(self: Conversation) -> bool:
    """A client that holds nothing leaves, though it has counted a message."""
    return not self.holds


@mutant(ProtocolSteps, "prefork")
async def children_come_by_themselves(
    self: ProtocolSteps, process: Any, manager_end: Any
) -> None:
    """A forked child gets no connection from its parent, and connects later."""
    raise OSError


# --- faults in the start of a successor


@mutant(Conversation, "open")
async def nobody_starts_a_successor(self: Conversation, may_create: bool) -> None:
    """The address of a manager that was killed stays dead."""
    raise ManagerError("dead")


@mutant(Conversation, "to_say_again")
def says_nothing_again(self: Conversation) -> list[bytes]:
    """A successor is not told what its clients hold."""
    return []


@mutant(Conversation, "to_say_again", "one_sends", manager_kills=1)
def registers_as_if_new(self: Conversation) -> Iterator[bytes]:
    """A successor is told what its clients hold as if nothing could be in flight."""
    for packet in _to_say_again(self):
        yield packet.replace(messages.REGISTER_AGAIN, messages.REGISTER, 1)


@mutant(Conversation, "perhaps_unread")
def says_only_what_it_holds(self: Conversation) -> list[bytes]:
    """A successor is not told of names that were released, and perhaps never read."""
    return []


@mutant(ClientSystem, "greet")
async def connects_without_an_answer(self: ClientSystem, connection: Any) -> None:
    """A client takes a connection for good before the manager has answered."""


@mutant(ClientSystem, "lock")
async def succeeds_without_the_lock(self: ClientSystem, directory: str) -> None:
    """Clients put a successor in place without locking the directory."""
    await self.process.point("opens the directory")
    self.found_directory(directory)
    return None


@mutant(ClientSystem, "make_presence")
async def nobody_is_present(self: ClientSystem, starting: Any, directory: str) -> None:
    """There is no presence pipe: a successor knows of those who have come alone."""
    await self.process.point("renames the presence pipe")


@mutant(ClientSystem, "make_presence")
async def presence_is_of_all_managers(
    self: ClientSystem, starting: Any, directory: str
) -> None:
    """A successor's presence pipe is that of its predecessor."""
    await self.process.point("renames the presence pipe")
    entries = self.found_directory(directory).entries
    if PRESENCE not in entries:
        entries[PRESENCE] = systems.PipeEnd(self.process.identity("presence"))
    self.process.open(entries[PRESENCE])
    starting.presence = entries[PRESENCE]


@mutant(Conversation, "open")
async def leaves_before_it_has_come(self: Conversation, may_create: bool) -> None:
    """A client gives up the old presence pipe before it has registered again."""
    self.close(self.presence)
    self.presence = None
    connected = await self.reach(may_create or bool(self.holds))
    self.connection, self.presence = connected
    try:
        for packet in self.to_say_again():
            await self.transmit(packet, ())
    except BaseException:
        self.hang_up()
        raise


@mutant(systems, "is_unused")
def aborted_starts_remove_everything(directory: Any) -> bool:
    """A manager that never listened removes the directory, whoever uses it."""
    return True


@mutant(systems, "is_unused")
def starters_remove_what_another_serves(directory: Any) -> bool:
    """A manager that never listened removes a directory that has no journal yet."""
    return directory.journal is None


@mutant(Manager, "replace_starter")
async def nobody_replaces_a_starter(self: Manager) -> None:
    """A socket that listens is not served if its maker was killed just then."""


@mutant(Manager, "close", "two_share", client_kills=2)
async def leaves_a_locked_directory(self: Manager) -> bool:
    """A manager that never listened does not wait for the lock on its directory."""
    return await _close(self) or not self.is_listening
