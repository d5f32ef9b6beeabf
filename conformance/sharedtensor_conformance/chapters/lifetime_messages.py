"""Puts and receives the messages of random histories with deaths, and checks them.

Each message contains its number. So a receiver can check that it is the next message of
its sender. A message whose sender ended abruptly need not arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sharedtensor_conformance.chapters.lifetime_base import (
    HeldTensor,
    HistoryChannel,
    HistoryState,
)
from sharedtensor_conformance.chapters.lifetime_model import (
    MessageModel,
    ProcessModel,
    TensorModel,
)
from sharedtensor_conformance.chapters.message_actions import is_padding, make_padding
from sharedtensor_conformance.harness import attempt, check
from sharedtensor_conformance.harness.channels import Channel
from sharedtensor_conformance.harness.checks import wait_until
from sharedtensor_conformance.harness.proxies import Remote
from sharedtensor_conformance.harness.proxies.calls import Pending

READER_TIMEOUT = 0.3
"""Seconds that a reader waits where it may find that there is no message.

A step waits no longer than this for a process to block in a call.
"""

LOST_TIMEOUT = 0.05
"""Seconds to wait for a message that may be lost, before it counts as lost."""


class MessagePassing(HistoryState):
    """Puts and receives messages, both in the processes and in the model."""

    # Putting

    def payload(
        self, process: ProcessModel, tensors: list[HeldTensor], size: int
    ) -> dict[str, Any]:
        """Return the payload of the next message, with `size` bytes of padding."""
        padding = None
        if size:
            padding = self.actor(process).run(make_padding, size)
        return {
            "number": self.model.message_count + 1,
            "tensors": [one.remote for one in tensors],
            "padding": padding,
        }

    def put(
        self,
        process: ProcessModel,
        channel: HistoryChannel,
        tensors: list[HeldTensor],
        size: int = 0,
    ) -> MessageModel:
        """Let a process put a message on a channel that has room for it.

        Returns the message in the model.
        """
        payload = self.payload(process, tensors, size)
        self.log_put(process, channel, tensors, size, "put")
        channel.proxy.put(self.actor(process), payload)
        return self.record_put(process, channel, tensors, size, payload)

    def log_put(
        self,
        process: ProcessModel,
        channel: HistoryChannel,
        tensors: list[HeldTensor],
        size: int,
        call: str,
    ) -> None:
        """Add the line of the script that puts a message by ``put`` or ``offer``."""
        names = ", ".join(tensor.name for tensor in tensors)
        padding = f" and {size} bytes" if size else ""
        number = self.model.message_count + 1
        clauses = (id for tensor in tensors for id in self.clauses_of(tensor))
        self.log(
            f"{process.name}.{call}({channel.name}, #{number} [{names}]{padding})",
            ("CHAN-4", *clauses),
        )

    def record_put(
        self,
        process: ProcessModel,
        channel: HistoryChannel,
        tensors: list[HeldTensor],
        size: int,
        payload: dict[str, Any],
    ) -> MessageModel:
        """Record a message in the model, and drop its padding in the sender."""
        if payload["padding"] is not None:
            payload["padding"].drop()
        models = [tensor.model for tensor in tensors]
        return self.model.record_put(models, process, channel.model, size)

    # Receiving

    def receive(self, process: ProcessModel, channel: HistoryChannel) -> None:
        """Let a process receive the next message, and check it.

        A message that may be lost need not arrive, and receiving it may raise.
        """
        model, actor = channel.model, self.actor(process)
        if not model.certain:
            self.receive_uncertain(process, channel)
            return
        self.log(f"{process.name}.get({channel.name})", model.receivable()[0].clauses)
        if model.has_uncertain:
            payload, raised = attempt(lambda: channel.proxy.get(actor))
            if raised:
                self.record_loss(channel, raised=True)
                return
        else:
            payload = channel.proxy.get(actor)
        self.check_received(process, channel, payload)

    def receive_uncertain(self, process: ProcessModel, channel: HistoryChannel) -> None:
        """Let a process receive from a channel whose messages may all be lost.

        It waits for `LOST_TIMEOUT` seconds at most.
        """
        call = f"get_within({channel.name}, {LOST_TIMEOUT})"
        self.log(f"{process.name}.{call}", ("LIFE-6",))
        actor = self.actor(process)
        payloads, raised = attempt(
            lambda: channel.proxy.get_within(actor, LOST_TIMEOUT)
        )
        if raised or not payloads:
            self.record_loss(channel, raised=raised is not None)
        else:
            self.check_received(process, channel, payloads[0])

    def record_loss(self, channel: HistoryChannel, *, raised: bool) -> None:
        """Record the loss of messages, after a receive that got none.

        If the receive raised, the first uncertain message is lost. Otherwise all
        uncertain messages are lost.
        """
        lost = [one for one in channel.model.messages if one.state == "uncertain"]
        for message in lost[:1] if raised else lost:
            self.model.record_loss(channel.model, message)
        channel.count_is_known = False

    def check_received(
        self, process: ProcessModel, channel: HistoryChannel, payload: Any
    ) -> None:
        """Check a payload that a process received, and record it in the model.

        It must be a whole message, and one of `ChannelModel.receivable`.
        """
        is_message = isinstance(payload, dict) and set(payload) == {
            "number",
            "tensors",
            "padding",
        }
        check(is_message, "what arrives is a message")
        expected = {message.number: message for message in channel.model.receivable()}
        sentence = f"message #{payload['number']} is the next of its sender"
        check(payload["number"] in expected, f"{sentence}, of {sorted(expected)}")
        message = expected[payload["number"]]
        self.clauses = message.clauses
        tensors, padding = payload["tensors"], payload["padding"]
        count = len(message.storages)
        are_complete = isinstance(tensors, list) and len(tensors) == count
        check(are_complete, f"message #{message.number} has {count} tensors")
        self.clauses = ("CHAN-6", *message.clauses)
        if message.size:
            actor = self.actor(process)
            is_whole = isinstance(padding, Remote) and actor.run(
                is_padding, padding, message.size
            )
            check(is_whole, f"the {message.size} bytes beside them arrive whole")
            padding.drop()
        self.clauses = message.clauses
        models = self.model.record_receive(process, channel.model, message)
        for remote, model in zip(tensors, models, strict=True):
            self.hold_received(remote, model)

    def hold_received(self, remote: Any, model: TensorModel) -> None:
        """Check a received tensor, and hold it under a new name.

        If the process holds the same object already, the old name is removed.
        """
        check(isinstance(remote, Remote), "what arrives is a tensor")
        same = [one for one in self.held if one.remote.is_same_reference_as(remote)]
        for tensor in same:
            self.held.remove(tensor)
            model.pinned = model.pinned or tensor.model.pinned
            self.model.record_drop(tensor.model)
        held = self.hold(remote, model)
        self.lines.append(f"    as {held.name}")
        values = self.values_of(remote, model.storage)
        check.equal(values, held.values, f"{held.name} arrives as {held.values}")

    # Waiting

    def start_waiting(
        self,
        process: ProcessModel,
        wait: Callable[[Any], Pending],
        line: str,
        event: str = "waits for a message",
    ) -> Pending:
        """Let a process wait in a call, and return when it waits.

        After `READER_TIMEOUT` seconds this returns in any case.

        Args:
            process: the process.
            wait: starts the call by the given actor, and returns the request.
            line: the call, as the script shows it.
            event: the event of the process in the model.
        """
        self.log(f"{process.name} waits in {line}", ("CHAN-4",))
        pending = wait(self.actor(process))
        process.apply(event)
        wait_until(
            lambda: pending.is_waiting() or pending.has_answered(), READER_TIMEOUT
        )
        return pending

    def task_done(self, process: ProcessModel, channel: HistoryChannel) -> None:
        """Let a process call `task_done()` for a message."""
        self.log(f"{process.name}.task_done({channel.name})", ("CHAN-8",))
        channel.proxy.use(self.actor(process), Channel.task_done)
        channel.model.unfinished -= 1

    def mark_task_done(self, channel: HistoryChannel, receiver: ProcessModel) -> None:
        """Call `task_done()` for a message that is not in the model, if needed."""
        if channel.model.is_joinable:
            channel.proxy.use(self.actor(receiver), Channel.task_done)
