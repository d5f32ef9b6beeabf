"""Puts and receives the messages of random histories with deaths, and checks them.

Each message contains its number. So a receiver can check that it is the next message of
its sender. A message whose sender ended abruptly need not arrive.
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
"""Seconds that a reader waits where it may find that there is no message.

A step waits no longer than this for a process to block in a call.
"""

EMPTY = 0.05
"""Seconds to wait for a message that may be lost, before it counts as lost."""


class Messages(Ground):
    """Puts and receives messages, both in the processes and in the model."""

    # Putting

    def payload(
        self, process: ProcessModel, tensors: list[HeldTensor], size: int
    ) -> dict[str, Any]:
        """Return the payload of the next message, with `size` bytes of ballast."""
        ballast = None
        if size:
            ballast = self.actor(process).request("act", "padding", size)
        return {
            "number": self.world.messages + 1,
            "tensors": [one.remote for one in tensors],
            "padding": ballast,
        }

    def put(
        self,
        process: ProcessModel,
        route: Route,
        tensors: list[HeldTensor],
        size: int = 0,
    ) -> MessageModel:
        """Let a process put a message on a channel that has room for it.

        Returns the message in the model.
        """
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
        """Add the line of the script that puts a message."""
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
        """Record a message in the model, and drop its ballast in the sender."""
        if payload["padding"] is not None:
            payload["padding"].drop()
        references = [one.reference for one in tensors]
        return self.world.puts(references, process, route.model, size)

    # Receiving

    def receive(self, process: ProcessModel, route: Route) -> None:
        """Let a process receive the next message, and check it.

        A message that may be lost need not arrive, and receiving it may raise.
        """
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
        """Let a process receive from a channel whose messages may all be lost.

        It waits for `EMPTY` seconds at most.
        """
        self.does(f"{process.name}.get_within({route.name}, {EMPTY})", ("LIFE-6",))
        actor = self.actor(process)
        found, raised = attempt(lambda: route.proxy.get_within(actor, EMPTY))
        if raised or not found:
            self.nothing_came(route, raised=raised is not None)
        else:
            self.arrived(process, route, found[0])

    def nothing_came(self, route: Route, *, raised: bool) -> None:
        """Record the loss of messages, after a receive that got none.

        If the receive raised, the first uncertain message is lost. Otherwise all
        uncertain messages are lost.
        """
        lost = [m for m in route.model.waiting if m.state == "uncertain"]
        for message in lost[:1] if raised else lost:
            self.world.is_missing(route.model, message)
        route.counts_are_known = False

    def arrived(self, process: ProcessModel, route: Route, payload: Any) -> None:
        """Check a payload that a process received, and record it in the model.

        It must be a whole message, and one of `ChannelModel.next_ones`.
        """
        is_message = isinstance(payload, dict) and set(payload) == {
            "number",
            "tensors",
            "padding",
        }
        check(is_message, "what arrives is a message")
        due = {message.number: message for message in route.model.next_ones()}
        sentence = f"message #{payload['number']} is the next of its sender"
        check(payload["number"] in due, f"{sentence}, of {sorted(due)}")
        message = due[payload["number"]]
        self.clauses = message.clauses
        tensors, ballast = payload["tensors"], payload["padding"]
        count = len(message.storages)
        arrived = isinstance(tensors, list) and len(tensors) == count
        check(arrived, f"message #{message.number} has {count} tensors")
        self.clauses = ("CHAN-6", *message.clauses)
        if message.size:
            actor = self.actor(process)
            there = isinstance(ballast, Remote) and actor.request(
                "act", "is_padding", ballast, message.size
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
        """Check a received tensor, and hold it under a new name.

        If the process holds the same object already, the old name is removed.
        """
        check(isinstance(remote, Remote), "what arrives is a tensor")
        same = [one for one in self.held if one.remote.is_same_reference_as(remote)]
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
        """Let a process wait in a call; return when it does, or after `TIMEOUT`.

        Args:
            process: the process.
            wait: starts the call by the given actor, and returns the request.
            line: the call, as the script shows it.
            event: the event of the process in the model.
        """
        self.does(f"{process.name} waits in {line}", ("CHAN-4",))
        pending = wait(self.actor(process))
        process.becomes(event)
        wait_until(lambda: pending.is_waiting() or pending.has_answered(), TIMEOUT)
        return pending

    def task_done(self, process: ProcessModel, route: Route) -> None:
        """Let a process call `task_done()` for a message."""
        self.does(f"{process.name}.task_done({route.name})", ("CHAN-8",))
        route.proxy.task_done(self.actor(process))
        route.model.unfinished -= 1

    def was_counted(self, route: Route, receiver: ProcessModel) -> None:
        """Call `task_done()` for a message that is not in the model, if needed."""
        if route.model.counts:
            route.proxy.task_done(self.actor(receiver))
