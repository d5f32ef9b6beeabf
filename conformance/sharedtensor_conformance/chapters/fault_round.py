"""Runs one cell of the fault table: a round of the protocol with a fault in it.

If the implementation has trace points, the process that performs the step is held
there, so the fault strikes exactly at the step. Otherwise the fault strikes from
outside, before or after the operation that contains the step.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from threading import Timer
from typing import Any

from sharedtensor_conformance.chapters.fault_table import (
    ENDS,
    MANAGER,
    OWNER,
    PEER,
    SHORTAGES,
    Cell,
)
from sharedtensor_conformance.chapters.shared_steps import wait_until_receivable
from sharedtensor_conformance.harness import process_tree
from sharedtensor_conformance.harness.checks import check, eventually, wait_until
from sharedtensor_conformance.harness.outcomes import (
    ActorDied,
    NotRun,
    RemoteRaised,
)
from sharedtensor_conformance.harness.proxies import ActorProxy, HeldRequest, Remote
from sharedtensor_conformance.harness.stage import Stage

VALUES = [11.0, 12.0, 13.0]
OPERATIONS = ("share", "put", "get", "drop", "last-drop")
HOW = {"exception": "raise", "exit": "exit", "duplicate": "twice", "drop": "skip"}
"""The instruction to a process that is held at a step, for each fault that the process
itself has to make. Signals and shortages are made from outside."""


def is_ended_by(pid: int, fault: str) -> bool:
    """Return whether a fault is a signal that ends the process.

    It does not if the process blocks, ignores or handles the signal.
    """
    if fault not in ENDS:
        return False
    fields = process_tree.status(pid)
    masks = (int(fields[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt"))
    bit = 1 << (signal.Signals[fault] - 1)
    return not any(mask & bit for mask in masks)


class FaultRound:
    """A round for one cell: its processes, their tensors, and its messages.

    Args:
        stage: the isolated stage in which the round takes place.
        cell: the step, the fault, and the role that the fault strikes.
        exact: whether the process can be held at the step.
    """

    def __init__(self, stage: Stage, cell: Cell, *, exact: bool) -> None:
        self.stage = stage
        self.cell = cell
        self.exact = exact and cell.step.actor != MANAGER
        self.actors = {a.name: a for a in stage.actors.reused()}
        self.gone: set[str] = set()
        self.busy = ""  # the actor that is held at a step: it accepts no request
        self.tensor: Remote | None = None
        self.arrived: list[Remote] = []
        self.messages = 0
        self.errors: list[str] = []
        self.restorers: list[Callable[[], None]] = []

    # The round

    def run(self) -> None:
        """Run the round; check what the clauses promise for the other processes."""
        self.prepare()
        for operation in OPERATIONS:
            if operation == self.cell.step.operation:
                self.strike_in(operation)
            else:
                self.perform(operation)
        self.nobody_failed_without_a_reason()
        self.others_are_unharmed()
        self.others_share_anew()
        self.nothing_is_left()

    def prepare(self) -> None:
        """Perform each operation once, count resources, and share a tensor with all.

        What an implementation makes at the first use is made before the count.
        """
        owner = self.stage.owner
        owner.ensure_started()
        for actor in self.actors.values():
            actor.ensure_started()
        for operation in OPERATIONS:
            self.perform(operation)
        self.others_share_anew()
        self.before = self.account()
        kept = owner.make([1, 2, 3])
        self.kept = {OWNER: kept}
        for name, actor in self.actors.items():
            if name != OWNER:
                self.kept[name] = owner.send(kept, actor)

    # Operations

    def perform(self, operation: str) -> None:
        """Perform an operation if possible; add an exception to `errors`."""
        if not self.is_possible(operation):
            return
        try:
            getattr(self, f"_{operation.replace('-', '_')}")()
        except RemoteRaised as raised:
            self.errors.append(str(raised))

    def is_possible(self, operation: str) -> bool:
        """Return whether the actor of an operation lives and has the tensor for it."""
        actor = "peer" if operation in ("get", "last-drop") else OWNER
        has = {
            "put": self.tensor,
            "drop": self.tensor,
            "last-drop": self.arrived,
        }.get(operation, True)
        return actor not in self.gone and bool(has)

    def _share(self) -> None:
        self.tensor = self.stage.owner.make(VALUES)
        self.tensor.share()

    def _put(self) -> None:
        self.stage.owner.put(self.tensor, self.stage.peer)
        self.messages += 1

    def _get(self) -> None:
        owner, peer = self.stage.owner, self.stage.peer
        if OWNER in self.gone:
            self.messages = 0  # those that its threads had not written are lost
        self.messages_have_left()
        while self.messages or peer.has_message(owner):
            self.messages = max(0, self.messages - 1)
            self._take(peer.get(owner))

    def messages_have_left(self) -> None:
        """Wait until the peer can receive a message, if one was put."""
        if self.messages:
            sentence = "what was put can be received"
            wait_until_receivable(self.stage.owner, self.stage.peer, sentence=sentence)

    def _take(self, arrived: Remote) -> None:
        check(isinstance(arrived, Remote), "what arrives is a tensor")
        self.arrived.append(arrived)
        check.equal(arrived.values(), VALUES, "what arrives has the values sent")

    def _drop(self) -> None:
        assert self.tensor is not None, "it is possible"
        tensor, self.tensor = self.tensor, None
        tensor.drop()

    def _last_drop(self) -> None:
        for tensor in self.arrived:
            check.equal(tensor.values(), VALUES, "the last holder has the values")
        while self.arrived:
            self.arrived.pop().drop()

    # The fault

    def strike_in(self, operation: str) -> None:
        """Perform the operation that contains the step, and let the fault strike."""
        if self.cell.step.name == "unlink":
            self.strike_while_the_manager_waits(operation)
        elif self.is_exact(operation):
            self.strike_at_the_step(operation)
        else:
            self.strike_beside(operation)
        self.restore()

    def is_exact(self, operation: str) -> bool:
        """Return whether the process is held at the step in an operation.

        It is not held to duplicate a message: the message is put a second time.
        """
        repeats = operation == "put" and self.cell.fault == "duplicate"
        return self.exact and not repeats and self.is_possible(operation)

    def strike_at_the_step(self, operation: str) -> None:
        """Hold the process at the step, let the fault strike, and let it continue."""
        actor = self.actors[self.cell.step.actor]
        how = HOW.get(self.cell.fault, "") if self.cell.strikes_the_actor else ""
        held = self.hold(actor, operation)
        if not how:
            self.strike()
        held.go(how)
        if self.cell.fault == "SIGSTOP" and self.cell.strikes_the_actor:
            self.others_share_anew()
            self.restore()
        self.end_of(held, operation, how)
        if self.cell.fault == "SIGSTOP":
            self.others_share_anew()

    def hold(self, actor: ActorProxy, operation: str) -> HeldRequest:
        """Start an operation in an actor, and hold the actor at the step."""
        if operation == "share":
            self.tensor = self.stage.owner.make(VALUES)
        if operation == "get":
            self.messages_have_left()
        what, arguments = self.request(operation)
        actor.request("break_at", self.cell.step.name)
        self.busy = actor.name
        held = HeldRequest(actor, operation, what, arguments)
        check(held.is_held, f"the process comes to {operation}")
        return held

    def request(self, operation: str) -> tuple[str, tuple[Any, ...]]:
        """Return the request for an operation, and its arguments."""
        owner, peer, channel = self.stage.owner, self.stage.peer, self.channel
        if operation == "share":
            return "operate", ("share", self.tensor)
        if operation == "put":
            return "put", (peer.name, channel, self.tensor)
        if operation == "get":
            return "get", (owner.name, channel)
        dropped = self.tensor if operation == "drop" else self.arrived[-1]
        assert dropped is not None, "it is possible"
        return "drop", (dropped.key,)

    def end_of(self, held: HeldRequest, operation: str, how: str) -> None:
        """Wait for the result of a held operation, or for the end of its process."""
        actor = self.actors[self.cell.step.actor]
        result, failed = None, False
        try:
            result = held.finish()
        except RemoteRaised as raised:
            self.errors.append(str(raised))
            failed = True
        except ActorDied:
            if actor.name not in self.gone:
                raise
        self.busy = ""
        if how == "exit":
            self.leaves(actor, told=True)
        elif actor.name not in self.gone:
            self.note(operation, result, failed=failed, lost=how == "skip")

    def note(self, operation: str, result: Any, *, failed: bool, lost: bool) -> None:
        """Update the record of tensors and messages after a held operation.

        Args:
            operation: the operation.
            result: the result of the operation.
            failed: whether the operation raised.
            lost: whether the fault dropped the message.
        """
        if operation == "put":
            self.messages += not failed and not lost
        elif operation == "get":
            self.messages = 0
            if not failed:
                self._take(result)
            self.perform("get")  # receives the messages that are still there
        elif operation == "drop":
            self.tensor = None
        elif operation == "last-drop":
            self.arrived.pop()

    def strike_beside(self, operation: str) -> None:
        """Let the fault strike from outside, before or after an operation.

        Raises:
            NotRun: the fault needs a trace point.
        """
        if self.cell.fault in ("exception", "drop"):
            raise NotRun("without trace points no exception or loss can be put there")
        if self.cell.fault == "duplicate":
            if operation != "put":
                raise NotRun("without trace points this step cannot be repeated")
            self.perform(operation)
        if self.cell.step.after:
            self.perform(operation)
        elif operation == "get" and self.cell.fault == "SIGSTOP":
            self.messages_have_left()  # others would wait for the stopped owner
        self.strike()
        performed = self.cell.step.after
        if self.cell.fault == "SIGSTOP":
            if not performed and not self.cell.strikes_the_actor:
                self.perform(operation)
                performed = True
            self.others_share_anew()
            self.restore()
        if not performed:
            self.perform(operation)

    def strike_while_the_manager_waits(self, operation: str) -> None:
        """Stop the manager, perform the operation, strike, let the manager continue.

        So the fault strikes before the manager can remove the name.
        """
        with process_tree.stopped(self.managers()):
            self.perform(operation)
            self.strike()

    def strike(self) -> None:
        """Let the fault strike the role of the cell."""
        fault, role = self.cell.fault, self.cell.role
        if role == MANAGER:
            self.strike_the_manager()
        elif role in self.gone:
            return
        elif fault == "exit":
            self.leaves(self.actors[role])
        elif fault in ENDS:
            self.ends(self.actors[role], signal.Signals[fault])
        elif fault == "SIGSTOP":
            self.stop(self.actors[role].pid)
        elif fault in SHORTAGES:
            self.make_short(self.actors[role].pid)

    def strike_the_manager(self) -> None:
        """Let the fault strike all running managers."""
        managers = self.managers()
        check(managers, "there is a manager")
        mortal = {pid for pid in managers if is_ended_by(pid, self.cell.fault)}
        for pid in managers:
            if self.cell.fault == "SIGSTOP":
                self.stop_for_a_while(pid)
            elif self.cell.fault in SHORTAGES:
                self.make_short(pid)
            else:
                os.kill(pid, signal.Signals[self.cell.fault])
        if self.cell.fault in ENDS and self.cell.step.name != "unlink":
            self.wait_for_managers(set(managers), mortal)

    def wait_for_managers(self, struck: set[int], mortal: set[int]) -> None:
        """Wait for the end of the managers that got a signal.

        Args:
            struck: the pids of all of them.
            mortal: the pids of those that do not handle the signal. They have to end;
                the others may continue.
        """
        wait_until(lambda: not struck & set(self.managers()), self.stage.grace)
        ended = lambda: not mortal & set(self.managers())  # noqa: E731
        eventually(ended, "the manager ends", self.stage.grace)

    def leaves(self, actor: ActorProxy, *, told: bool = False) -> None:
        """Make an actor exit, unless it was `told` to already, and wait for its end.

        The end of the owner is not awaited: it waits for its children.
        """
        if not told:
            actor.exchange("leave")
        if actor.name != OWNER:
            self.has_ended(actor, "it exits")
        self.is_gone(actor)

    def is_gone(self, actor: ActorProxy) -> None:
        """Record that an actor is gone, so that it gets no more requests."""
        self.gone.add(actor.name)
        self.kept.pop(actor.name, None)
        if actor.name != self.busy:
            actor.process.disconnect()

    def has_ended(self, actor: ActorProxy, sentence: str) -> None:
        """Wait until the process of an actor has ended."""
        ended = lambda: actor.process.has_ended()  # noqa: E731
        eventually(ended, sentence, self.stage.grace)

    def ends(self, actor: ActorProxy, how: signal.Signals) -> None:
        """End an actor by a signal."""
        os.kill(actor.pid, how)
        self.has_ended(actor, f"{how.name} ends it")
        self.is_gone(actor)

    def stop(self, pid: int) -> None:
        """Stop a process until `restore` is called."""
        process_tree.stop(pid)
        self.restorers.append(lambda: process_tree.go_on(pid))

    def stop_for_a_while(self, pid: int) -> None:
        """Stop a process until `restore` is called, but for half a deadline at most.

        So a call that waits for the process still returns within its deadline.
        """
        self.stop(pid)
        later = Timer(self.stage.timeouts.answer / 2, process_tree.go_on, (pid,))
        later.start()
        self.restorers += [later.join, later.cancel]  # called in reverse order

    def make_short(self, pid: int) -> None:
        """Limit a resource of a process to its current use, until `restore`."""
        kind, used = SHORTAGE_OF[self.cell.fault]
        before = resource.prlimit(pid, kind)
        resource.prlimit(pid, kind, (used(pid), before[1]))
        self.restorers.append(lambda: _restore(pid, kind, before))

    def restore(self) -> None:
        """End all stops and shortages, in reverse order."""
        while self.restorers:
            self.restorers.pop()()

    # Checks

    def nobody_failed_without_a_reason(self) -> None:
        """Check that no operation raised, if the fault gives no reason for it.

        If the manager was struck, a call may raise, even if the manager was only
        stopped: FAULT-5.
        """
        cell = self.cell
        passes = cell.fault == "SIGSTOP" and cell.role != MANAGER
        if cell.role == "bystander" or passes or cell.fault == "duplicate":
            check.equal(self.errors, [], "owner and peer finish without an exception")

    def living(self) -> list[ActorProxy]:
        """Return the actors that can be asked: not gone, held, stopped or short."""
        away = self.gone | {self.busy} | ({self.cell.role} if self.restorers else set())
        names = [name for name in self.actors if name not in away]
        return [self.actors[name] for name in names]

    def others_are_unharmed(self) -> None:
        """Check that a tensor that was shared before the fault is still shared."""
        held = list(self.kept.values())
        for turn, writer in enumerate(held):
            writer.write(turn, 50 + turn)
            for reader in held:
                check.equal(reader.read(turn), 50 + turn, "a write is seen by all")

    def others_share_anew(self) -> None:
        """Check that each living actor can send a new tensor to each other one."""
        living = self.living()
        for number, sender in enumerate(living):
            for receiver in living:
                if sender is not receiver and not self.is_queued(sender, receiver):
                    self.shares(sender, receiver, [number, 21.0, 22.0])

    def is_queued(self, sender: ActorProxy, receiver: ActorProxy) -> bool:
        """Return whether a new message would queue behind the message of the round."""
        alone = len(self.stage.implementation.channels) == 1
        of_the_round = (sender.name, receiver.name) == (OWNER, PEER)
        return alone and of_the_round and self.messages > 0

    def shares(self, sender: ActorProxy, receiver: ActorProxy, values: Any) -> None:
        """Send a new tensor; it may be refused only if the fault struck the manager."""
        try:
            tensor = sender.make(values)
            # The last channel, if possible: the first may have a message of the round.
            other = self.stage.implementation.channels[-1]
            arrived = sender.send(tensor, receiver, other)
            check.equal(arrived.values(), values, "a new tensor arrives")
            arrived.drop()
            tensor.drop()
        except RemoteRaised:
            if self.cell.role != MANAGER:
                raise

    def nothing_is_left(self) -> None:
        """Check that nothing is left.

        While actors live, they have no more than before. When all have exited, no
        segment and no process is left.
        """
        self.nobody_waits_for_the_gone()
        for actor in self.living():
            actor.exchange("drop_all")
        if self.can_be_as_before():
            wait_until(lambda: not self.growth(), self.stage.grace)
            sentence = "those who live have no more than before"
            check.equal(self.growth(), {}, sentence)
        for actor in reversed(self.living()):
            actor.leave()
        wait_until(lambda: not self.left(), self.stage.grace)
        sentence = "in the end no segment and no process is left"
        check.equal(self.left(), [], sentence)

    def nobody_waits_for_the_gone(self) -> None:
        """Close the owner's channels to actors that are gone, with their messages."""
        for name in self.gone - {OWNER}:
            if OWNER not in self.gone:
                self.stage.owner.exchange("close_pairs", name)

    def can_be_as_before(self) -> bool:
        """Return whether the resources must be as before while actors still live.

        They need not be if the fault struck the manager: its successor keeps names
        until its clients exit. They need not be if the owner exits: it keeps its
        tensors until its children have ended.
        """
        owner_exits = self.cell.fault == "exit" and self.cell.role == OWNER
        return self.cell.role != MANAGER and not owner_exits

    def growth(self) -> dict[str, int]:
        """Return by how much each count of `account` has grown since `prepare`.

        Growth by no more than the number of segments that may be kept is left out.
        """
        more = {what: n - self.before[what] for what, n in self.account().items()}
        return {what: n for what, n in more.items() if n > self.stage.kept}

    def account(self) -> dict[str, int]:
        """Return the numbers of segments, and of each living actor's resources.

        The resources are its descriptors and its mappings of shared memory.
        """
        ledger = self.stage.ledger.read()
        counts = {"segments": len(ledger["segments"])}
        for actor in self.living():
            held = ledger["processes"].get(str(actor.pid), {})
            for what in ("descriptors", "mappings"):
                counts[f"{actor.name} {what}"] = held.get(what, 0)
        return counts

    def left(self) -> list[str]:
        """Return the existing segments by name, and processes by command line."""
        return [*self.stage.ledger.segments(), *self.stage.ledger.processes().values()]

    def managers(self) -> list[int]:
        """Return the pids of the running managers."""
        return [manager["pid"] for manager in self.stage.ledger.managers()]

    @property
    def channel(self) -> str:
        """The channel on which the round sends its tensor."""
        return self.stage.implementation.channels[0]


def _first_free_descriptor(pid: int) -> int:
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    return min(set(range(len(used) + 1)) - used)


def _size(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _restore(pid: int, kind: int, before: tuple[int, int]) -> None:
    with suppress(ProcessLookupError):  # it has ended, which other checks judge
        resource.prlimit(pid, kind, before)


SHORTAGE_OF = {
    "descriptors": (resource.RLIMIT_NOFILE, _first_free_descriptor),
    "memory": (resource.RLIMIT_AS, _size),
}
