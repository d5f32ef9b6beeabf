"""Runs one random history in processes, and checks the processes by the model.

`HistoryState` has what the steps of all histories are made of. It holds tensors, puts
and receives messages, and keeps the model (`history_model`) in step with the processes.
It also writes the script, in which each process, channel and tensor has a name.

`HistoryState.clauses` is set before an action or a check. If the action or the check
fails, these are the clauses that the implementation breaks.

A message contains its number. So a receiver can check that it is the next message of
its sender. On a channel with a single sender and a single receiver a message is only
the tensor, or a list of tensors. A message whose sender ended abruptly need not arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from sharedtensor_conformance.chapters.history_model import (
    ChannelModel,
    HeldTensor,
    HistoryModel,
    MessageModel,
    ProcessModel,
    TensorModel,
)
from sharedtensor_conformance.chapters.history_search import (
    Choices,
    History,
    HistoryFailed,
    NothingFits,
)
from sharedtensor_conformance.chapters.message_actions import is_padding, make_padding
from sharedtensor_conformance.chapters.tensor_actions import first_values
from sharedtensor_conformance.harness import attempt, check, eventually
from sharedtensor_conformance.harness.case.outcomes import RemoteRaised
from sharedtensor_conformance.harness.remote.calls import Remote

GENERAL_CLAUSE = "SHARE-12"
"""The clause about any sequence of steps. It is broken if no other clause applies."""

MAX_HELD = 8
"""Tensors that exist at once. They are few, so that steps often pick the same one."""

TENSORS_PER_MESSAGE = (0, 1, 1, 1, 2, 2, 3)
"""Numbers of tensors in a message. A number that occurs more often is more likely."""

LONG_PADDING = 20_000
"""Zeros after the first elements of a long tensor.

They make its storage too large for the segments in which the reference puts several
small storages together (clause LIFE-26).
"""

LOST_TIMEOUT = 0.05
"""Seconds to wait for a message that may be lost, before it counts as lost."""

MESSAGE_PARTS = {"number", "tensors", "padding"}
"""The keys of a message on a channel that every process has."""


class HistoryState:
    """The state of one history: its processes, and the model.

    Args:
        stage: the stage of the processes.
        kinds: the kinds of steps of the history.

    Attributes:
        model: the model of the history.
        owner: the process that starts the others.
        lines: the script.
        last_value: the last number that an element got.
        counts_names: whether all names on the stage are those of this history.
    """

    owner: ProcessModel
    counts_names = True
    makes_long_tensors = True

    def __init__(self, stage: Any, kinds: Iterable[str]) -> None:
        self.stage = stage
        self.implementation = stage.implementation
        self.kinds = frozenset(kinds)
        self.model = HistoryModel(stage.configuration.strategy)
        self.lines: list[str] = []
        self.clauses: tuple[str, ...] = ()
        self.last_value = 0

    # The history

    def run(self, steps: History) -> None:
        """Run the steps, from the start of the processes to the end of the history.

        Raises:
            HistoryFailed: the implementation or the suite failed.
        """
        try:
            self.start()
            for kind, seed in steps:
                self.clauses = ()
                self.perform(kind, Choices(seed))
            self.finish()
        except Exception as error:
            raise self.failure(error, self.failed_clauses(error)) from error

    def start(self) -> None:
        """Prepare the processes and the channels."""
        raise NotImplementedError

    def finish(self) -> None:
        """End the history, and check what is left."""
        raise NotImplementedError

    def perform(self, kind: str, choose: Choices) -> None:
        """Perform one step; do nothing if nothing fits."""
        with suppress(NothingFits):
            getattr(self, f"step_{kind}")(choose)

    def failure(self, error: Exception, clauses: tuple[str, ...]) -> HistoryFailed:
        """Return the exception that reports the failure of the history."""
        script = "\n".join(f"    {line}" for line in self.lines)
        return HistoryFailed(error, script, clauses)

    def failed_clauses(self, error: Exception) -> tuple[str, ...]:
        """Return the clauses that a failure is about, the most specific first.

        The last one is `GENERAL_CLAUSE`.
        """
        if isinstance(error, RemoteRaised) and not self.model.has_manager:
            return ("MGR-14", GENERAL_CLAUSE)
        return (*(id for id in self.clauses if id != GENERAL_CLAUSE), GENERAL_CLAUSE)

    def log(self, line: str, clauses: tuple[str, ...] = ()) -> None:
        """Add a line to the script, and set the clauses that the action is about."""
        self.lines.append(line)
        self.clauses = clauses

    # Tensors

    def new_values(self, count: int) -> list[int]:
        """Return `count` numbers that no element has had before.

        A history needs so few of them that they are exact in any dtype.
        """
        first = self.last_value + 1
        self.last_value += count
        return list(range(first, self.last_value + 1))

    def make(self, process: ProcessModel, choose: Choices) -> HeldTensor:
        """Let a process make a tensor. One in four is long: see `LONG_PADDING`."""
        values = self.new_values(2 + choose.number(4))
        is_long = self.makes_long_tensors and choose.one_in(4)
        padding = [0] * LONG_PADDING if is_long else []
        text = f"{values} + [0] * {LONG_PADDING}" if is_long else f"{values}"
        self.log(f"{self.next_name} = {process.name}.make({text})", ("SHARE-12",))
        remote = process.actor.make([*values, *padding])
        tensor = self.model.record_make(process, values, is_long=is_long)
        if not self.implementation.private:  # making is a request to share
            self.model.record_share(tensor.storage, process.strategy)
        return self.hold(process, remote, tensor)

    @property
    def next_name(self) -> str:
        """The name that the next tensor gets."""
        return f"t{self.model.name_count + 1}"

    def hold(
        self,
        process: ProcessModel,
        remote: Any,
        tensor: TensorModel,
        *,
        pinned: bool = False,
    ) -> HeldTensor:
        """Record that a process holds a tensor under a new name, and return it.

        If the process holds the same object already, such as a grad that was read
        twice, the old name is removed.

        Raises:
            CheckFailed: `remote` is not a tensor.
        """
        check(isinstance(remote, Remote), f"{self.next_name} is a tensor")
        same = [o for o in self.model.held if o.remote.is_same_reference_as(remote)]
        pinned = pinned or any(one.pinned for one in same)
        held = self.model.hold(process, tensor, remote, pinned=pinned)
        for one in same:
            self.model.record_drop(one)
        return held

    def drop(self, held: HeldTensor) -> None:
        """Let its process drop a tensor."""
        self.log(f"{held.name}.drop()", held.storage.clauses)
        held.remote.drop()
        self.model.record_drop(held)

    # Picking

    def usable(self, fits: Callable[[HeldTensor], object]) -> list[HeldTensor]:
        """Return the tensors that a step may use, and that fit."""
        return [one for one in self.model.held if one.is_settled and fits(one)]

    def pick_tensor(
        self, choose: Choices, fits: Callable[[HeldTensor], object] = lambda held: True
    ) -> HeldTensor:
        """Return one of the usable tensors that fit."""
        return choose.of(self.usable(fits))

    def pick_process(
        self, choose: Choices, *, but: ProcessModel | None = None
    ) -> ProcessModel:
        """Return a running process that is not `but`."""
        return choose.of(self.model.running(but=but))

    def pick_channel(
        self, choose: Choices, fits: Callable[[ChannelModel], object]
    ) -> ChannelModel:
        """Return one of the channels that fit."""
        return choose.of([one for one in self.model.channels if fits(one)])

    def require_room(self) -> None:
        """Raise `NothingFits` if no more tensors may exist."""
        if len(self.model.held) >= MAX_HELD:
            raise NothingFits

    def pick_or_make(self, process: ProcessModel, choose: Choices) -> list[HeldTensor]:
        """Return up to three tensors of a process, some of them newly made."""
        tensors: list[HeldTensor] = []
        for _ in range(choose.of(TENSORS_PER_MESSAGE)):
            others = self.usable(
                lambda one: one.process is process and one not in tensors
            )
            wants_new = choose.one_in(3) or not others
            if wants_new and len(self.model.held) < MAX_HELD:
                tensors.append(self.make(process, choose))
            elif others:
                tensors.append(choose.of(others))
        return tensors

    # Putting

    def put(
        self,
        process: ProcessModel,
        channel: ChannelModel,
        tensors: list[HeldTensor],
        size: int = 0,
        call: str = "put",
    ) -> MessageModel:
        """Let a process put a message on a channel that has room for it.

        `call` is the method of the channel's proxy. Returns the message in the model.
        """
        payload = self.payload(process, channel, tensors, size)
        self.log_put(process, channel, tensors, size, call)
        getattr(channel.proxy, call)(process.actor, payload)
        return self.record_put(process, channel, tensors, size, payload)

    def payload(
        self,
        process: ProcessModel,
        channel: ChannelModel,
        tensors: list[HeldTensor],
        size: int,
    ) -> Any:
        """Return the payload of the next message, with `size` bytes of padding."""
        remotes = [one.remote for one in tensors]
        if channel.receiver:
            return remotes if len(remotes) > 1 else remotes[0]
        padding = process.actor.run(make_padding, size) if size else None
        number = self.model.message_count + 1
        return {"number": number, "tensors": remotes, "padding": padding}

    def log_put(
        self,
        process: ProcessModel,
        channel: ChannelModel,
        tensors: list[HeldTensor],
        size: int,
        call: str,
    ) -> None:
        """Add the line of the script that puts a message."""
        names = ", ".join(one.name for one in tensors)
        padding = f" and {size} bytes" if size else ""
        message = f"#{self.model.message_count + 1} [{names}]{padding}"
        clauses = (id for one in tensors for id in one.storage.clauses)
        line = f"{process.name}.{call}({channel.name}, {message})"
        self.log(line, ("CHAN-4", *clauses))

    def record_put(
        self,
        process: ProcessModel,
        channel: ChannelModel,
        tensors: list[HeldTensor],
        size: int,
        payload: Any,
    ) -> MessageModel:
        """Record a message in the model, and drop its padding in the sender."""
        if size:
            payload["padding"].drop()
        models = [one.tensor for one in tensors]
        return self.model.record_put(models, process, channel, size)

    # Receiving

    def receive(
        self, process: ProcessModel, channel: ChannelModel, call: str = "get"
    ) -> None:
        """Let a process receive the next message, and check it.

        A message that may be lost need not arrive, and receiving it may raise. `call`
        is the method of the channel's proxy.
        """
        if not channel.certain:
            self.receive_uncertain(process, channel)
            return
        clauses = channel.receivable()[0].clauses
        self.log(f"{process.name}.{call}({channel.name})", clauses)
        get = partial(getattr(channel.proxy, call), process.actor)
        payload, raised = attempt(get) if channel.uncertain else (get(), None)
        if raised:
            self.record_loss(channel, channel.uncertain[:1])
        else:
            self.check_received(process, channel, payload)

    def receive_uncertain(self, process: ProcessModel, channel: ChannelModel) -> None:
        """Let a process receive from a channel whose messages may all be lost.

        It waits for `LOST_TIMEOUT` seconds at most. If the receive raises, the first
        message is lost. If nothing arrives, all messages are lost.
        """
        call = f"get_within({channel.name}, {LOST_TIMEOUT})"
        self.log(f"{process.name}.{call}", ("LIFE-6",))
        payloads, raised = attempt(
            lambda: channel.proxy.get_within(process.actor, LOST_TIMEOUT)
        )
        if raised or not payloads:
            lost = channel.uncertain
            self.record_loss(channel, lost[:1] if raised else lost)
        else:
            self.check_received(process, channel, payloads[0])

    def record_loss(self, channel: ChannelModel, lost: list[MessageModel]) -> None:
        """Record the loss of messages, after a receive that got none."""
        for message in lost:
            self.model.record_loss(channel, message)
        channel.count_is_known = False

    def check_received(
        self, process: ProcessModel, channel: ChannelModel, payload: Any
    ) -> None:
        """Check a payload that a process received, and hold its tensors."""
        if channel.receiver:
            message, padding = channel.messages[0], None
            remotes = payload if len(message.tensors) > 1 else [payload]
        else:
            message = self.message_of(channel, payload)
            remotes, padding = payload["tensors"], payload["padding"]
        self.clauses = message.clauses
        tensors = self.model.record_receive(channel, message)
        are_complete = isinstance(remotes, list) and len(remotes) == len(tensors)
        check(are_complete, f"message #{message.number} has {len(tensors)} tensors")
        if message.size:
            self.check_padding(process, message, padding)
        for remote, tensor in zip(remotes, tensors, strict=True):
            self.hold_received(process, remote, tensor)

    def message_of(self, channel: ChannelModel, payload: Any) -> MessageModel:
        """Return the message that a payload is.

        Check that it is whole, and one of `ChannelModel.receivable`.
        """
        is_message = isinstance(payload, dict) and set(payload) == MESSAGE_PARTS
        check(is_message, "what arrives is a message")
        expected = {message.number: message for message in channel.receivable()}
        sentence = f"message #{payload['number']} is the next of its sender"
        check(payload["number"] in expected, f"{sentence}, of {sorted(expected)}")
        return expected[payload["number"]]

    def check_padding(
        self, process: ProcessModel, message: MessageModel, padding: Any
    ) -> None:
        """Check the bytes of padding that a process received, and drop them."""
        self.clauses = ("CHAN-6", *message.clauses)
        is_whole = isinstance(padding, Remote) and process.actor.run(
            is_padding, padding, message.size
        )
        check(is_whole, f"the {message.size} bytes beside them arrive whole")
        padding.drop()
        self.clauses = message.clauses

    def hold_received(
        self, process: ProcessModel, remote: Any, tensor: TensorModel
    ) -> None:
        """Hold a received tensor under a new name, and check its values."""
        held = self.hold(process, remote, tensor)
        self.lines.append(f"    as {held.name}")
        sentence = f"{held.name} arrives as {tensor.values}"
        check.equal(self.values_of(held), tensor.values, sentence)

    def receive_all(self) -> None:
        """Receive all messages; check that queues have no others."""
        for channel in self.model.channels:
            receiver = channel.receiver or self.owner
            while channel.messages:
                self.receive(receiver, channel)
            if not channel.receiver:
                line = f"{receiver.name}.get_within({channel.name}, 0)"
                self.log(line, ("CHAN-4", "LIFE-15"))
                payloads = channel.proxy.get_within(receiver.actor, 0)
                check.equal(payloads, [], f"nothing more is in {channel.name}")
        self.verify()

    # Checks

    def values_of(self, held: HeldTensor) -> list[Any]:
        """Return the values of the elements that the model knows.

        These are all elements, or the first ones of a long tensor.
        """
        if not held.storage.is_long:
            return list(held.remote.values())
        count = len(held.storage.values)
        return list(held.remote.actor.run(first_values, held.remote, count))

    def verify(self) -> None:
        """Check the values of every usable tensor of a running process."""
        for held in self.usable(lambda one: one.process.is_running):
            self.clauses = held.storage.clauses
            expected = held.tensor.values
            sentence = f"{held.name} holds {expected} at the end of this"
            check.equal(self.values_of(held), expected, sentence)

    def verify_names(self) -> None:
        """Check the number of segments that have names (`HistoryModel.name_range`).

        It must be at least the minimum now. Unless the manager was killed, it must fall
        to the maximum within the grace period.
        """
        if not self.counts_names or "strategy-fs" not in self.implementation.claims:
            return
        self.clauses = self.model.clauses_of_names()
        least, most = self.model.name_range()
        if self.implementation.kept_segments:
            least = min(least, 1)  # one file may contain all storages
            most += self.stage.kept
        count = len(self.stage.ledger.segments())
        check(count >= least, f"{least} segments have names (there are {count})")
        if self.model.has_manager:
            self.clauses = ("FS-2", "FS-9", "LIFE-8", "LIFE-20", "LIFE-17", "LIFE-7")
            eventually(
                lambda: len(self.stage.ledger.segments()) <= most,
                f"no more than {most} segments have names",
                self.stage.grace,
                found=lambda: sorted(self.stage.ledger.segments()),
            )
