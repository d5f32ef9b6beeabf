"""How a message is put and received in random histories with deaths.

A message says its number, so what arrives is told from what should: it has to be the
next of its sender. One that may be lost with its sender need not come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sharedtensor_conformance.chapters.lifetime_ground import Ground, HeldTensor, Route
from sharedtensor_conformance.chapters.lifetime_model import (
    MessageModel,
    ProcessModel,
    Reference,
)
from sharedtensor_conformance.harness import attempt, check
from sharedtensor_conformance.harness.checks import wait_until
from sharedtensor_conformance.harness.proxies import Remote
from sharedtensor_conformance.harness.proxies.calls import Pending

TIMEOUT = 0.3
"""Seconds that a reader waits who is to find out that there is nothing."""

EMPTY = 0.05
"""Seconds after which a message that may be lost is taken for lost."""


class Messages(Ground):
    """Puts and receives messages, on the implementation and on the model."""

    # Putting

    def payload(
        self, process: ProcessModel, tensors: list[HeldTensor], size: int
    ) -> dict[str, Any]:
        """Return what is put, with the number of the message."""
        ballast = None
        if size:
            ballast = self.actor(process).request("act", "ballast", size)
        return {
            "number": self.world.messages + 1,
            "tensors": [one.remote for one in tensors],
            "ballast": ballast,
        }

    def put(
        self,
        process: ProcessModel,
        route: Route,
        tensors: list[HeldTensor],
        size: int = 0,
    ) -> MessageModel:
        """Let a process put a message on a channel that has room for it."""
        payload = self.payload(process, tensors, size)
        self.says_put(process, route, tensors, size, "put")
        route.proxy.put(self.actor(process), payload)
        return self.was_put(process, route, tensors, size, payload)

    def says_put(
        self,
        process: ProcessModel,
        route: Route,
        tensors: list[HeldTensor],
        size: int,
        how: str,
    ) -> None:
        """Say that a message is put."""
        names = ", ".join(one.name for one in tensors)
        beside = f" and {size} bytes" if size else ""
        number = self.world.messages + 1
        bound = tuple(c for one in tensors for c in self.bound(one))
        self.does(
            f"{process.name}.{how}({route.name}, #{number} [{names}]{beside})",
            ("CHAN-4", *bound),
        )

    def was_put(
        self,
        process: ProcessModel,
        route: Route,
        tensors: list[HeldTensor],
        size: int,
        payload: dict[str, Any],
    ) -> MessageModel:
        """Tell the model of a message, and let go of what was beside its tensors."""
        if payload["ballast"] is not None:
            payload["ballast"].drop()
        references = [one.reference for one in tensors]
        return self.world.puts(references, process, route.model, size)

    # Receiving

    def receive(self, process: ProcessModel, route: Route) -> None:
        """Let a process receive what comes next; what may be lost need not come."""
        channel, actor = route.model, self.actor(process)
        if not channel.certain:
            self.receive_uncertain(process, route)
            return
        self.does(f"{process.name}.get({route.name})", channel.next_ones()[0].clauses)
        if channel.has_uncertain:
            payload, raised = attempt(lambda: route.proxy.get(actor))
            if raised:
                self.nothing_came(route, raised=True)
                return
        else:
            payload = route.proxy.get(actor)
        self.arrived(process, route, payload)

    def receive_uncertain(self, process: ProcessModel, route: Route) -> None:
        """Let a process receive what was put by one that ended abruptly, or nothing."""
        self.does(f"{process.name}.get_within({route.name}, {EMPTY})", ("LIFE-6",))
        actor = self.actor(process)
        found, raised = attempt(lambda: route.proxy.get_within(actor, EMPTY))
        if raised or not found:
            self.nothing_came(route, raised=raised is not None)
        else:
            self.arrived(process, route, found[0])

    def nothing_came(self, route: Route, *, raised: bool) -> None:
        """A message that may be lost is: one that raised, or all there are."""
        lost = [m for m in route.model.waiting if m.state == "uncertain"]
        for message in lost[:1] if raised else lost:
            self.world.is_missing(route.model, message)
        route.counts_are_known = False

    def arrived(self, process: ProcessModel, route: Route, payload: Any) -> None:
        """A message has arrived: check that it is one that had to, and whole."""
        is_message = isinstance(payload, dict) and set(payload) == {
            "number",
            "tensors",
            "ballast",
        }
        check(is_message, "what arrives is a message")
        due = {message.number: message for message in route.model.next_ones()}
        sentence = f"message #{payload['number']} is the next of its sender"
        check(payload["number"] in due, f"{sentence}, of {sorted(due)}")
        message = due[payload["number"]]
        self.clauses = message.clauses
        tensors, ballast = payload["tensors"], payload["ballast"]
        count = len(message.storages)
        arrived = isinstance(tensors, list) and len(tensors) == count
        check(arrived, f"message #{message.number} has {count} tensors")
        self.clauses = ("CHAN-6", *message.clauses)
        if message.size:
            actor = self.actor(process)
            there = isinstance(ballast, Remote) and actor.request(
                "act", "is_ballast", ballast, message.size
            )
            check(there, f"the {message.size} bytes beside them arrive whole")
            ballast.drop()
        self.clauses = message.clauses
        references = self.world.receives(process, route.model, message)
        for remote, reference in zip(tensors, references, strict=True):
            self.receives_tensor(process, remote, reference)

    def receives_tensor(
        self, process: ProcessModel, remote: Any, reference: Reference
    ) -> None:
        """A tensor has arrived; one that is there already goes by its new name."""
        check(isinstance(remote, Remote), "what arrives is a tensor")
        same = [one for one in self.held if one.remote.names_the_same_as(remote)]
        for one in same:
            self.held.remove(one)
            reference.pinned = reference.pinned or one.reference.pinned
            self.world.drops(one.reference)
        held = self.hold(remote, reference)
        self.lines.append(f"    as {held.name}")
        found = self.values_of(remote, reference.storage)
        check.equal(found, held.values, f"{held.name} arrives as {held.values}")

    # Waiting

    def waits(
        self,
        process: ProcessModel,
        wait: Callable[[Any], Pending],
        line: str,
        event: str = "waits for a message",
    ) -> Pending:
        """Let a process wait, until it does."""
        self.does(f"{process.name} waits in {line}", ("CHAN-4",))
        pending = wait(self.actor(process))
        process.becomes(event)
        wait_until(lambda: pending.is_waiting() or pending.has_answered(), TIMEOUT)
        return pending

    def task_done(self, process: ProcessModel, route: Route) -> None:
        """Let a process say that a message has been dealt with."""
        self.does(f"{process.name}.task_done({route.name})", ("CHAN-8",))
        route.proxy.task_done(self.actor(process))
        route.model.unfinished -= 1

    def was_counted(self, route: Route, receiver: ProcessModel) -> None:
        """Say that a message was dealt with which the model does not know."""
        if route.model.counts:
            route.proxy.task_done(self.actor(receiver))
