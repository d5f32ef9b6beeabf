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
from sharedtensor_conformance.chapters.held_requests import HeldRequest
from sharedtensor_conformance.chapters.shared_steps import (
    PROMPT_EXIT,
    check_shared_memory,
    leftovers,
    wait_until_receivable,
)
from sharedtensor_conformance.harness.case.checks import check, eventually, wait_until
from sharedtensor_conformance.harness.case.outcomes import (
    ActorDied,
    NotRun,
    RemoteRaised,
)
from sharedtensor_conformance.harness.kernel import process_tree
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.remote.calls import Remote
from sharedtensor_conformance.harness.stage.stage import Stage

VALUES = [11.0, 12.0, 13.0]
OPERATIONS = ("share", "put", "get", "drop", "last-drop")
INSTRUCTION_OF = {
    "exception": "raise",
    "exit": "exit",
    "duplicate": "twice",
    "drop": "skip",
}
"""The instruction to a process that is held at a step, for each fault that the process
itself has to make. Signals and shortages are made from outside.
"""


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
        self.actors = {a.name: a for a in stage.reused}
        self.gone: set[str] = set()
        self.held_actor = ""  # the actor that is held at a step: it accepts no request
        self.tensor: Remote | None = None
        self.received: list[Remote] = []
        self.unreceived = 0
        self.was_put = False  # whether the call that put the message has returned
        self.errors: list[str] = []
        self.restorers: list[Callable[[], None]] = []

    # The round

    def run(self) -> None:
        """Run the round; check what the clauses promise for the other processes."""
        self.prepare()
        for operation in OPERATIONS:
            if operation == self.cell.step.operation:
                self.strike_during(operation)
            else:
                self.perform(operation)
        self.check_no_unexplained_error()
        self.check_channel_of_round()
        self.check_still_shared()
        self.check_others_can_share()
        self.check_nothing_left()

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
        self.was_put = False
        self.check_others_can_share()
        self.counts_before = self.resource_counts()
        kept = owner.make([1, 2, 3])
        self.shared_before = {OWNER: kept}
        for name, actor in self.actors.items():
            if name != OWNER:
                self.shared_before[name] = owner.send(kept, actor)

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
            "last-drop": self.received,
        }.get(operation, True)
        return actor not in self.gone and bool(has)

    def _share(self) -> None:
        self.tensor = self.stage.owner.make(VALUES)
        self.tensor.share()

    def _put(self) -> None:
        self.stage.owner.put(self.tensor, self.stage.peer)
        self.unreceived += 1
        self.was_put = True

    def _get(self) -> None:
        owner, peer = self.stage.owner, self.stage.peer
        if OWNER in self.gone and not self.survives_its_sender():
            self.unreceived = 0  # those that its threads had not written are lost
        self.wait_for_messages()
        while self.unreceived or peer.has_message(owner):
            self.unreceived = max(0, self.unreceived - 1)
            self._check_received(peer.get(owner))

    def survives_its_sender(self) -> bool:
        """Return whether the owner exits when it has put the message: LIFE-5."""
        return (self.cell.role, self.cell.fault) == (OWNER, "exit") and self.was_put

    def wait_for_messages(self) -> None:
        """Wait until the peer can receive a message, if one was put."""
        if self.unreceived:
            sentence = "what was put can be received"
            wait_until_receivable(self.stage.owner, self.stage.peer, sentence=sentence)

    def _check_received(self, received: Remote) -> None:
        check(isinstance(received, Remote), "what arrives is a tensor")
        self.received.append(received)
        check.equal(received.values(), VALUES, "what arrives has the values sent")

    def _drop(self) -> None:
        assert self.tensor is not None, "it is possible"
        tensor, self.tensor = self.tensor, None
        tensor.drop()

    def _last_drop(self) -> None:
        for tensor in self.received:
            check.equal(tensor.values(), VALUES, "the last holder has the values")
        while self.received:
            self.received.pop().drop()

    # The fault

    def strike_during(self, operation: str) -> None:
        """Perform the operation that contains the step, and let the fault strike."""
        if self.cell.step.name == "unlink":
            self.strike_while_manager_stopped(operation)
        elif self.is_held_at_step(operation):
            self.strike_while_held(operation)
        else:
            self.strike_from_outside(operation)
        self.restore()

    def is_held_at_step(self, operation: str) -> bool:
        """Return whether the process is held at the step in an operation.

        It is not held to duplicate a message: the message is put a second time.
        """
        repeats = operation == "put" and self.cell.fault == "duplicate"
        return self.exact and not repeats and self.is_possible(operation)

    def strike_while_held(self, operation: str) -> None:
        """Hold the process at the step, let the fault strike, and let it continue."""
        actor = self.actors[self.cell.step.actor]
        instruction = (
            INSTRUCTION_OF.get(self.cell.fault, "") if self.cell.strikes_actor else ""
        )
        held = self.hold(actor, operation)
        if not instruction:
            self.strike()
        held.go(instruction)
        if self.cell.fault == "SIGSTOP" and self.cell.strikes_actor:
            self.check_others_can_share()
            self.restore()
        self.finish_held(held, operation, instruction)
        if self.cell.fault == "SIGSTOP":
            self.check_others_can_share()

    def hold(self, actor: ActorProxy, operation: str) -> HeldRequest:
        """Start an operation in an actor, and hold the actor at the step."""
        if operation == "share":
            self.tensor = self.stage.owner.make(VALUES)
        if operation == "get":
            self.wait_for_messages()
        what, arguments = self.request_for(operation)
        actor.run(Actor.hold_at, self.cell.step.name)
        self.held_actor = actor.name
        held = HeldRequest(actor, operation, what, arguments)
        check(held.is_held, f"the process comes to {operation}")
        return held

    def request_for(self, operation: str) -> tuple[str, tuple[Any, ...]]:
        """Return the request for an operation, and its arguments."""
        owner, peer, channel = self.stage.owner, self.stage.peer, self.channel
        if operation == "share":
            return "operate", ("share", self.tensor)
        if operation == "put":
            return "run", (Actor.put, peer.name, channel, self.tensor)
        if operation == "get":
            return "run", (Actor.get, owner.name, channel)
        dropped = self.tensor if operation == "drop" else self.received[-1]
        assert dropped is not None, "it is possible"
        return "run", (Actor.drop, dropped.key)

    def finish_held(self, held: HeldRequest, operation: str, instruction: str) -> None:
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
        self.held_actor = ""
        if instruction == "exit":
            self.let_exit(actor, already_told=True)
        elif actor.name not in self.gone:
            self.record(operation, result, failed=failed, lost=instruction == "skip")

    def record(self, operation: str, result: Any, *, failed: bool, lost: bool) -> None:
        """Update the record of tensors and messages after a held operation.

        Args:
            operation: the operation.
            result: the result of the operation.
            failed: whether the operation raised.
            lost: whether the fault dropped the message.
        """
        if operation == "put":
            self.was_put = not failed and not lost
            self.unreceived += self.was_put
        elif operation == "get":
            self.unreceived = 0
            if not failed:
                self._check_received(result)
            self.perform("get")  # receives the messages that are still there
        elif operation == "drop":
            self.tensor = None
        elif operation == "last-drop":
            self.received.pop()

    def strike_from_outside(self, operation: str) -> None:
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
        if self.cell.step.strike_after:
            self.perform(operation)
        elif operation == "get" and self.cell.fault == "SIGSTOP":
            self.wait_for_messages()  # others would wait for the stopped owner
        self.strike()
        performed = self.cell.step.strike_after
        if self.cell.fault == "SIGSTOP":
            if not performed and not self.cell.strikes_actor:
                self.perform(operation)
                performed = True
            self.check_others_can_share()
            self.restore()
        if not performed:
            self.perform(operation)

    def strike_while_manager_stopped(self, operation: str) -> None:
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
            self.strike_manager()
        elif role in self.gone:
            return
        elif fault == "exit":
            self.let_exit(self.actors[role])
        elif fault in ENDS:
            self.end_by_signal(self.actors[role], signal.Signals[fault])
        elif fault == "SIGSTOP":
            self.stop(self.actors[role].pid)
        elif fault in SHORTAGES:
            self.limit_to_current_use(self.actors[role].pid)

    def strike_manager(self) -> None:
        """Let the fault strike all running managers."""
        managers = self.managers()
        check(managers, "there is a manager")
        must_end = {pid for pid in managers if is_ended_by(pid, self.cell.fault)}
        for pid in managers:
            if self.cell.fault == "SIGSTOP":
                self.stop_briefly(pid)
            elif self.cell.fault in SHORTAGES:
                self.limit_to_current_use(pid)
            else:
                os.kill(pid, signal.Signals[self.cell.fault])
        if self.cell.fault in ENDS and self.cell.step.name != "unlink":
            self.wait_for_managers(set(managers), must_end)

    def wait_for_managers(self, struck: set[int], must_end: set[int]) -> None:
        """Wait for the end of the managers that got a signal.

        Args:
            struck: the pids of all of them.
            must_end: the pids of those that do not handle the signal. They have to end;
                the others may continue.
        """
        wait_until(lambda: not struck & set(self.managers()), self.stage.grace)
        ended = lambda: not must_end & set(self.managers())  # noqa: E731
        eventually(ended, "the manager ends", self.stage.grace)

    def let_exit(self, actor: ActorProxy, *, already_told: bool = False) -> None:
        """Make an actor exit, unless it was `already_told` to, and wait for its end.

        The end of the owner is not awaited: it waits for its children. Where a message
        of it is still to be received, it is given the time for what it does before.
        """
        if not already_told:
            actor.exchange(actor.deadline, "leave")
        if actor.name != OWNER:
            self.wait_for_end(actor, "it exits")
        elif self.unreceived:
            wait_until(actor.process.has_ended, PROMPT_EXIT)
        self.mark_gone(actor)

    def mark_gone(self, actor: ActorProxy) -> None:
        """Record that an actor is gone, so that it gets no more requests."""
        self.gone.add(actor.name)
        self.shared_before.pop(actor.name, None)
        if actor.name != self.held_actor:
            actor.process.disconnect()

    def wait_for_end(self, actor: ActorProxy, sentence: str) -> None:
        """Wait until the process of an actor has ended."""
        ended = lambda: actor.process.has_ended()  # noqa: E731
        eventually(ended, sentence, self.stage.grace)

    def end_by_signal(self, actor: ActorProxy, sig: signal.Signals) -> None:
        """End an actor by a signal."""
        os.kill(actor.pid, sig)
        self.wait_for_end(actor, f"{sig.name} ends it")
        self.mark_gone(actor)

    def stop(self, pid: int) -> None:
        """Stop a process until `restore` is called."""
        process_tree.stop(pid)
        self.restorers.append(lambda: process_tree.resume(pid))

    def stop_briefly(self, pid: int) -> None:
        """Stop a process until `restore` is called, but for half a deadline at most.

        So a call that waits for the process still returns within its deadline.
        """
        self.stop(pid)
        later = Timer(self.stage.timeouts.answer / 2, process_tree.resume, (pid,))
        later.start()
        self.restorers += [later.join, later.cancel]  # called in reverse order

    def limit_to_current_use(self, pid: int) -> None:
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

    def check_no_unexplained_error(self) -> None:
        """Check that no operation raised, if the fault gives no reason for it.

        If the manager was struck, a call may raise, even if the manager was only
        stopped: FAULT-5. What was put arrives though its sender exits.
        """
        cell = self.cell
        passes = cell.fault == "SIGSTOP" and cell.role != MANAGER
        passes = passes or cell.fault == "duplicate" or self.survives_its_sender()
        if cell.role == "bystander" or passes:
            check.equal(self.errors, [], "owner and peer finish without an exception")

    def check_channel_of_round(self) -> None:
        """Check that the channel of the round carries another tensor.

        A fault that ends a process may leave the channel of no use, and where the
        manager was struck a call may raise. A late message of the round may come first.
        """
        if self.cell.role == MANAGER or self.cell.fault in ENDS:
            return
        owner, peer = self.stage.owner, self.stage.peer
        tensor = owner.make([31.0, 32.0])
        owner.put(tensor, peer, self.channel)
        received = peer.get(owner, self.channel)
        while received.values() == VALUES:
            received = peer.get(owner, self.channel)
        check_shared_memory(tensor, received)
        received.drop()
        tensor.drop()

    def askable_actors(self) -> list[ActorProxy]:
        """Return the actors that can be asked: not gone, held, stopped or short."""
        struck = {self.cell.role} if self.restorers else set()
        away = self.gone | {self.held_actor} | struck
        names = [name for name in self.actors if name not in away]
        return [self.actors[name] for name in names]

    def check_still_shared(self) -> None:
        """Check that a tensor that was shared before the fault is still shared."""
        held = list(self.shared_before.values())
        for turn, writer in enumerate(held):
            writer.write(turn, 50 + turn)
            for reader in held:
                check.equal(reader.read(turn), 50 + turn, "a write is seen by all")

    def check_others_can_share(self) -> None:
        """Check that each living actor can send a new tensor to each other one."""
        actors = self.askable_actors()
        for number, sender in enumerate(actors):
            for receiver in actors:
                if sender is not receiver and not self.would_queue(sender, receiver):
                    self.check_can_share(sender, receiver, [number, 21.0, 22.0])

    def would_queue(self, sender: ActorProxy, receiver: ActorProxy) -> bool:
        """Return whether a new message would queue behind the message of the round."""
        alone = len(self.stage.implementation.channels) == 1
        of_the_round = (sender.name, receiver.name) == (OWNER, PEER)
        return alone and of_the_round and self.unreceived > 0

    def check_can_share(
        self, sender: ActorProxy, receiver: ActorProxy, values: Any
    ) -> None:
        """Send a new tensor; it may be refused only if the fault struck the manager."""
        try:
            tensor = sender.make(values)
            # The last channel, if possible: the first may have a message of the round.
            other = self.stage.implementation.channels[-1]
            received = sender.send(tensor, receiver, other)
            check.equal(received.values(), values, "a new tensor arrives")
            received.drop()
            tensor.drop()
        except RemoteRaised:
            if self.cell.role != MANAGER:
                raise

    def check_nothing_left(self) -> None:
        """Check that nothing is left.

        While actors live, they have no more than before. When all have exited, no
        segment and no process is left.
        """
        self.close_channels_to_gone()
        for actor in self.askable_actors():
            actor.run_in_started(0, Actor.drop_all)
        if self.counts_must_match():
            wait_until(lambda: not self.resource_growth(), self.stage.grace)
            sentence = "those who live have no more than before"
            check.equal(self.resource_growth(), {}, sentence)
        for actor in reversed(self.askable_actors()):
            actor.leave()
        wait_until(lambda: not leftovers(self.stage), self.stage.grace)
        sentence = "in the end no segment and no process is left"
        check.equal(leftovers(self.stage), [], sentence)

    def close_channels_to_gone(self) -> None:
        """Close the owner's channels to actors that are gone, with their messages."""
        for name in self.gone - {OWNER}:
            if OWNER not in self.gone:
                self.stage.owner.run_in_started(0, Actor.close_pairs, name)

    def counts_must_match(self) -> bool:
        """Return whether the resources must be as before while actors still live.

        They need not be if the fault struck the manager: its successor keeps names
        until its clients exit. They need not be if the owner exits: it keeps its
        tensors until its children have ended.
        """
        owner_exits = self.cell.fault == "exit" and self.cell.role == OWNER
        return self.cell.role != MANAGER and not owner_exits

    def resource_growth(self) -> dict[str, int]:
        """Return by how much each count of `resource_counts` has grown since `prepare`.

        Growth by no more than the number of segments that may be kept is left out.
        """
        counts = self.resource_counts().items()
        more = {what: n - self.counts_before[what] for what, n in counts}
        return {what: n for what, n in more.items() if n > self.stage.kept}

    def resource_counts(self) -> dict[str, int]:
        """Return the numbers of segments, and of each living actor's resources.

        The resources are its descriptors and its mappings of shared memory.
        """
        ledger = self.stage.ledger.read()
        counts = {"segments": len(ledger["segments"])}
        for actor in self.askable_actors():
            held = ledger["processes"].get(str(actor.pid), {})
            for what in ("descriptors", "mappings"):
                counts[f"{actor.name} {what}"] = held.get(what, 0)
        return counts

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


def _address_space(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _restore(pid: int, kind: int, before: tuple[int, int]) -> None:
    with suppress(ProcessLookupError):  # it has ended, which other checks judge
        resource.prlimit(pid, kind, before)


SHORTAGE_OF = {
    "descriptors": (resource.RLIMIT_NOFILE, _first_free_descriptor),
    "memory": (resource.RLIMIT_AS, _address_space),
}
