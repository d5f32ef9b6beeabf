"""The steps of random histories, one method for each kind of step.

A step gets the choices by which it picks processes, channels, tensors and sizes. If
nothing fits, it does nothing. When it returns, no process waits in a call.

A new kind of step is a method `step_<kind>`, under `@needs` if it uses more than the
profile `core`, and an entry in `FAMILIES` of `random_histories`.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from typing import Any

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.chapters.history_model import (
    ABRUPT_ENDS_BUT_KILL,
    CHANNEL_CAPACITY,
    MAX_IN_FLIGHT,
    ChannelModel,
    HeldTensor,
    ProcessModel,
    TensorModel,
)
from sharedtensor_conformance.chapters.history_search import Choices, NothingFits
from sharedtensor_conformance.chapters.history_state import HistoryState
from sharedtensor_conformance.chapters.message_actions import (
    get_messages_of_sizes,
    is_padding,
    make_padding,
    offer,
    put_messages_of_sizes,
    put_numbered_messages,
)
from sharedtensor_conformance.chapters.process_actions import end
from sharedtensor_conformance.chapters.shared_steps import (
    kill_managers,
    other_program,
    share_separately,
    wait_for_all,
)
from sharedtensor_conformance.chapters.tensor_actions import (
    make_many,
    positions_with_wrong_values,
)
from sharedtensor_conformance.chapters.thread_actions import (
    start_idle_thread,
    stop_idle_threads,
)
from sharedtensor_conformance.harness import check, eventually
from sharedtensor_conformance.harness.case.checks import wait_until
from sharedtensor_conformance.harness.ledger import ledger
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.calls import Pending
from sharedtensor_conformance.harness.remote.channels import Channel

READER_TIMEOUT = 0.3
"""Seconds that a reader waits where it may find that there is no message.

A step waits no longer than this for a process to block in a call.
"""

PILE_COUNT, PILE_SIZE = 128, 3 << 13
"""A number of messages that no socket or pipe can contain, and their largest size.

The size in bytes is below that of a packet of the reference. The reference puts larger
messages into memory files, so that they would not fill the socket.
"""

LIMITS = (4096, 1 << 15, 1 << 16, 212_992, 1 << 20)
"""Sizes in bytes at which the behaviour of a channel may change.

In this order: `PIPE_BUF`, the largest packet of the reference, the capacity of a pipe,
the default buffer of a socket, and the buffer that the reference requests (pipe(7),
socket(7)).
"""

PICKLE_OVERHEAD = 520
"""Bytes that pickling may add. Padding is smaller than its limit by up to as much."""

SWEEP_COUNT = 100
"""The number of consecutive sizes that `step_sizes` sends, each of them once."""

TENSOR_COUNTS = (250, 251, 252, 253, 254, 255, 256, 505, 506, 507)
"""Numbers of tensors in one message, near multiples of 253.

The kernel passes at most 253 descriptors with one packet (unix(7), SCM_RIGHTS).
"""

OTHER_DESCRIPTORS = 100
"""More descriptors than a process of a history has for other things."""

THREAD_INTERVAL = 4
"""One in this many messages between two processes is put, or received, by a thread."""

MAX_RUNNING = 4
"""Processes that run at the same time, the owner included."""

MAX_CHILDREN = 5
"""Children in one history, those that have ended included."""

StepMethod = Callable[[Any, Choices], None]


def needs(profile: str) -> Callable[[StepMethod], StepMethod]:
    """Return a decorator for a step that uses operations of a profile."""

    def mark(step: StepMethod) -> StepMethod:
        step.profile = profile  # type: ignore[attr-defined]
        return step

    return mark


def profile_of(kind: str) -> str:
    """Return the profile that a kind of step needs."""
    profile: str = getattr(getattr(Steps, f"step_{kind}"), "profile", "core")
    return profile


def all_kinds() -> list[str]:
    """Return all kinds of steps."""
    return [name.removeprefix("step_") for name in dir(Steps) if name[:5] == "step_"]


def tensor_count(choose: Choices) -> int:
    """Return one of `TENSOR_COUNTS`, or 253 less where a process may not open so many.

    An implementation may need two descriptors for each tensor that it sends.
    """
    count = choose.of(TENSOR_COUNTS)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return count if 2 * count + OTHER_DESCRIPTORS < limit else count - 253


def pick_size(choose: Choices) -> int:
    """Return the bytes of padding of a message.

    In half of the cases this is zero, and otherwise less than `PICKLE_OVERHEAD` bytes
    below one of `LIMITS`.
    """
    if choose.one_in(2):
        return 0
    return choose.of(LIMITS) - choose.number(PICKLE_OVERHEAD)


class TensorSteps(HistoryState):
    """Steps with the tensors of one process."""

    def step_read(self, _: Choices) -> None:
        """Check the values of every usable tensor."""
        self.verify()

    def step_make(self, choose: Choices) -> None:
        """Let a process make a tensor."""
        self.require_room()
        self.make(self.pick_process(choose), choose)

    def step_idle(self, choose: Choices) -> None:
        """Let a process start a thread that does nothing, or end all such threads."""
        process = self.pick_process(choose)
        action = stop_idle_threads if choose.one_in(3) else start_idle_thread
        self.log(f"{process.name}.run({action.__name__})", ("SHARE-12",))
        process.actor.run(action)

    def step_write(self, choose: Choices) -> None:
        """Let a process write one element."""
        held = self.pick_tensor(choose)
        index = choose.number(len(held.tensor.indices))
        (value,) = self.new_values(1)
        self.log(f"{held.name}.write({index}, {value})", held.storage.clauses)
        held.remote.write(index, value)
        self.model.record_write(held.tensor, index, value)
        self.verify()

    @needs("share")
    def step_share(self, choose: Choices) -> None:
        """Let a process share a tensor; its grad may be shared with it or not."""
        held = self.pick_tensor(choose)
        self.log(f"{held.name}.share()", ("SHARE-5", "SHARE-7"))
        held.remote.share()
        self.model.record_share(held.storage, held.process.strategy)
        self.verify_names()

    @needs("share")
    def step_clone(self, choose: Choices) -> None:
        """Let a process clone a tensor, which copies its values to another storage."""
        self.require_room()
        held = self.pick_tensor(choose, lambda one: not one.storage.is_long)
        self.log(f"{self.next_name} = {held.name}.clone()", ("SHARE-12",))
        tensor = self.model.record_make(held.process, held.tensor.values)
        self.hold(held.process, held.remote.clone(), tensor)

    @needs("views")
    def step_view(self, choose: Choices) -> None:
        """Let a process make a view: all elements from an offset, or every second."""
        self.require_room()
        held = self.pick_tensor(choose, lambda one: one.tensor.is_whole)
        indices = held.tensor.indices
        start = choose.number(max(len(indices) - 1, 1))
        stride = choose.of((1, 2) if "steps" in self.implementation.views else (1,))
        viewed = indices[start::stride]
        layout = Layout("window", start, (len(viewed),), (stride,))
        self.log(f"{self.next_name} = {held.name}.view({layout})", ("SHARE-12",))
        tensor = TensorModel(held.storage, viewed)
        self.hold(held.process, held.remote.view(layout), tensor)

    def step_drop(self, choose: Choices) -> None:
        """Let a process drop a tensor. Other tensors and messages keep their values."""
        self.drop(choose.of([one for one in self.model.held if self.may_drop(one)]))
        self.verify()
        self.verify_names()

    def may_drop(self, held: HeldTensor) -> bool:
        """Return whether a step may drop a tensor, even if its storage is moving."""
        return not held.pinned

    @needs("strategies")
    def step_strategy(self, choose: Choices) -> None:
        """Let a process change its strategy."""
        process = self.pick_process(choose)
        self.set_strategy(process, choose.of(self.implementation.strategies))
        self.verify()

    def set_strategy(self, process: ProcessModel, strategy: str) -> None:
        """Set the strategy of a process, unless it is set already."""
        if process.strategy == strategy:
            return
        call = f'module.set_sharing_strategy("{strategy}")'
        self.log(f"{process.name}.{call}", ("STRAT-4",))
        process.actor.module.set_sharing_strategy(strategy)
        self.model.record_strategy(process, strategy)

    # Grads

    @needs("grad")
    def step_set_grad(self, choose: Choices) -> None:
        """Let a process set the grad of a tensor that has none and is in no message."""
        self.require_room()
        held = self.pick_tensor(
            choose, lambda one: not one.tensor.grad and not one.storage.messages
        )
        values = self.new_values(len(held.tensor.indices))
        self.log(f"{self.next_name} = {held.process.name}.make({values})")
        tensor = self.model.record_make(held.process, values)
        grad = self.hold(held.process, held.process.actor.make(values), tensor)
        self.log(f"{held.name}.set_grad({grad.name})")
        held.remote.set_grad(grad.remote)
        self.model.record_grad(held.tensor, tensor)

    @needs("grad")
    def step_clear_grad(self, choose: Choices) -> None:
        """Let a process set the grad of a tensor to None.

        Tensors of other processes keep theirs.
        """
        held = self.pick_tensor(
            choose, lambda one: one.tensor.grad and not one.storage.messages
        )
        self.log(f"{held.name}.set_grad(None)")
        held.remote.set_grad(None)
        self.model.record_grad(held.tensor, None)

    @needs("grad")
    def step_take_grad(self, choose: Choices) -> None:
        """Let a process read the grad of a tensor, which may have arrived with it."""
        self.require_room()
        self.hold_grad(self.pick_tensor(choose))

    def hold_grad(self, held: HeldTensor) -> HeldTensor | None:
        """Check whether a tensor has a grad, as in the model; hold it and return it."""
        expected = held.tensor.grad
        sentence = f"{held.name} has {'a' if expected else 'no'} grad at the end of"
        self.log(f"{held.name}.grad()")
        grad = held.remote.grad()
        check.equal(grad is not None, expected is not None, f"{sentence} this")
        if expected is None:
            return None
        taken = self.hold(held.process, grad, expected)
        self.lines.append(f"    as {taken.name}")
        return taken


class MessageSteps(TensorSteps):
    """Steps that send and receive messages."""

    def pick_message(
        self, choose: Choices
    ) -> tuple[ProcessModel, ChannelModel, list[HeldTensor], int]:
        """Return a sender, a channel with room, tensors, and a number of bytes."""
        process = self.pick_process(choose)
        size = pick_size(choose)
        channel = self.pick_channel(choose, lambda one: one.has_room_for(size))
        return process, channel, self.pick_or_make(process, choose), size

    def pick_exchange(
        self, choose: Choices, fits: Callable[[ChannelModel], object] = lambda one: True
    ) -> tuple[ProcessModel, ProcessModel, ChannelModel]:
        """Return a sender, a receiver and an empty channel."""
        sender = self.pick_process(choose)
        receiver = self.pick_process(choose, but=sender)
        channel = self.pick_channel(choose, lambda one: one.is_empty and fits(one))
        return sender, receiver, channel

    def pick_call(self, call: str, channel: ChannelModel, choose: Choices) -> str:
        """Return `call`, or its name in a thread, which the pairs of a stage have."""
        in_a_thread = channel.receiver and choose.one_in(THREAD_INTERVAL)
        return f"{call}_in_a_thread" if in_a_thread else call

    def step_put(self, choose: Choices) -> None:
        """Let a process put a message while no process waits for it."""
        self.put_message(choose)

    def put_message(self, choose: Choices) -> ChannelModel:
        """Let a process put a message, and return the channel."""
        process, channel, tensors, size = self.pick_message(choose)
        call = self.pick_call("put", channel, choose)
        self.put(process, channel, tensors, size, call)
        return channel

    def step_get(self, choose: Choices) -> None:
        """Let a process receive a message."""
        channel = self.pick_channel(choose, lambda one: one.messages)
        self.get_message(channel, choose)

    def get_message(self, channel: ChannelModel, choose: Choices) -> None:
        """Let a process receive a message from a channel."""
        process = channel.receiver or self.pick_process(choose)
        self.receive(process, channel, self.pick_call("get", channel, choose))
        self.verify()

    def step_send(self, choose: Choices) -> None:
        """Let a process put a message, and receive the oldest one of the channel."""
        self.get_message(self.put_message(choose), choose)

    def step_hand_over(self, choose: Choices) -> None:
        """Let a process put a message of any size, which another already waits for."""
        sender, receiver, channel = self.pick_exchange(choose)
        size = pick_size(choose)
        tensors = self.pick_or_make(sender, choose)
        payload = self.payload(sender, channel, tensors, size)
        pending = self.start_getting(receiver, channel)
        self.log_put(sender, channel, tensors, size, "put")
        channel.proxy.put(sender.actor, payload)
        self.record_put(sender, channel, tensors, size, payload)
        self.clauses = ("CHAN-4", "LIFE-15")
        received = pending.answer()
        receiver.apply("gets a message")
        self.check_received(receiver, channel, received)

    def step_pile(self, choose: Choices) -> None:
        """Let a process put more on a queue than a socket or a pipe can contain."""
        process = self.pick_process(choose)
        channel = self.pick_channel(choose, has_room_for_a_pile)
        size = PILE_SIZE - choose.number(PICKLE_OVERHEAD)
        first = self.model.message_count + 1
        line = f"{PILE_COUNT} messages from #{first} on, of {size} bytes each"
        self.log(f"{process.name}.put({channel.name}, {line})", ("CHAN-4",))
        pile = (channel.proxy, first, PILE_COUNT, size)
        process.actor.run(put_numbered_messages, *pile)
        for _ in range(PILE_COUNT):
            self.model.record_put([], process, channel, size)

    @needs("drop-in")
    def step_fill(self, choose: Choices) -> None:
        """Let a process put messages on a bounded queue until it refuses one."""
        process = self.pick_process(choose)
        channel = self.pick_channel(
            choose, lambda one: one.bound and one.count_is_known
        )
        while not channel.is_full:
            self.offer(process, channel, self.pick_or_make(process, choose))
        # No clause says whether a refused tensor is shared.
        tensors = self.pick_or_make(process, choose)
        self.offer(process, channel, [o for o in tensors if o.storage.is_shared])

    def offer(
        self, process: ProcessModel, channel: ChannelModel, tensors: list[HeldTensor]
    ) -> None:
        """Let a process put a message only if the queue has room for it."""
        is_full = channel.is_full
        payload = self.payload(process, channel, tensors, 0)
        self.log_put(process, channel, tensors, 0, "offer")
        was_put = process.actor.run(offer, channel.proxy, payload)
        self.record_put(process, channel, tensors, 0, payload)
        sentence = f"{channel.name} takes what it has room for"
        check.equal(was_put, not is_full, sentence)

    @needs("drop-in")
    def step_poll(self, choose: Choices) -> None:
        """Let a process call `get` on an empty queue without waiting."""
        process = self.pick_process(choose)
        channel = self.pick_channel(
            choose, lambda one: one.is_queue and not one.messages
        )
        self.log(f"{process.name}.get_within({channel.name}, 0)", ("CHAN-12",))
        payloads = channel.proxy.get_within(process.actor, 0)
        process.apply("asks an empty queue")
        self.clauses = ("LIFE-15", "CHAN-4")
        check.equal(payloads, [], f"nothing is in {channel.name}")

    # Limits

    def step_many(self, choose: Choices) -> None:
        """Send a message with about as many tensors as a packet takes descriptors."""
        sender, receiver, channel = self.pick_exchange(choose)
        count, size = tensor_count(choose), pick_size(choose)
        line = f"{count} tensors and {size} bytes"
        self.log(f"{sender.name}.put({channel.name}, {line})", ("FD-6", "CHAN-4"))
        putting, getting = sender.actor, receiver.actor
        made = putting.run(make_many, count, 1)
        sent = share_separately(self.stage, putting, made)
        sent = [*sent, putting.run(make_padding, size)]
        pending = self.start_getting(receiver, channel)
        self.clauses = ("FD-6", "CHAN-4")
        channel.proxy.put(putting, sent)
        received = pending.answer()
        receiver.apply("gets a message")
        if channel.is_joinable:
            channel.proxy.use(getting, Channel.task_done)
        check(isinstance(received, list) and len(received) == count + 1, "all arrive")
        wrong = getting.run(positions_with_wrong_values, received[:-1], 1)
        check.equal(wrong, [], "the places of tensors that arrive with other values")
        is_whole = getting.run(is_padding, received[-1], size)
        check(is_whole, "the bytes beside them arrive whole")
        putting.run(Actor.drop, *(remote.key for remote in sent))
        getting.run(Actor.drop, *(remote.key for remote in received))
        self.verify_names()

    def step_sizes(self, choose: Choices) -> None:
        """Send messages of `SWEEP_COUNT` consecutive sizes near one of `LIMITS`."""
        held = self.pick_tensor(choose, lambda one: not one.storage.is_long)
        sender = held.process
        receiver = self.pick_process(choose, but=sender)
        channel = self.pick_channel(
            choose, lambda one: one.is_empty and not one.is_joinable
        )
        offset = choose.number(PICKLE_OVERHEAD - SWEEP_COUNT)
        first = max(0, choose.of(LIMITS) - PICKLE_OVERHEAD + offset)
        line = f"{held.name} and {first} to {first + SWEEP_COUNT - 1} bytes"
        self.log(f"{sender.name}.put({channel.name}, {line})", ("CHAN-4", "CHAN-6"))
        sizes = list(range(first, first + SWEEP_COUNT))
        get = (channel.proxy, held.tensor.values, sizes)
        pending = receiver.actor.start(get_messages_of_sizes, *get)
        put = (channel.proxy, held.remote, sizes)
        sender.actor.run(put_messages_of_sizes, *put)
        wrong = pending.answer()
        held.storage.move("sent", sender.strategy)
        held.storage.has_moved = True
        check.equal(wrong, [], "the sizes of messages that arrive otherwise")

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
        pending = wait(process.actor)
        process.apply(event)
        wait_until(
            lambda: pending.is_waiting() or pending.has_answered(), READER_TIMEOUT
        )
        return pending

    def start_getting(self, process: ProcessModel, channel: ChannelModel) -> Pending:
        """Let a process wait for a message, without a timeout."""
        line = f"get({channel.name})"
        return self.start_waiting(process, channel.proxy.waiting, line)

    def start_getting_within(
        self, process: ProcessModel, channel: ChannelModel
    ) -> Pending:
        """Let a process wait for a message for `READER_TIMEOUT` seconds at most."""
        wait = lambda actor: actor.start(  # noqa: E731
            Actor.get_within, channel.proxy, READER_TIMEOUT
        )
        line = f"get_within({channel.name}, {READER_TIMEOUT})"
        return self.start_waiting(process, wait, line)


class ProcessSteps(MessageSteps):
    """Steps in which processes start and end."""

    def start_child(self, tensors: list[HeldTensor]) -> None:
        """Let the owner start a child, with all channels and some of its tensors."""
        raise NotImplementedError

    @property
    def may_kill(self) -> bool:
        """Whether a step may kill a process.

        It may not after the manager was killed, because no clause then says what a
        killed process leaves behind.
        """
        return "kill" in self.kinds and self.model.has_manager

    def pick_child(self, choose: Choices) -> ProcessModel:
        """Return one of the running children."""
        return self.pick_process(choose, but=self.owner)

    def step_start(self, choose: Choices) -> None:
        """Let the owner start a child, while messages may be in the channels."""
        children = len(self.model.processes) - 1
        if len(self.model.running()) >= MAX_RUNNING or children >= MAX_CHILDREN:
            return
        tensors = self.pick_or_make(self.owner, choose)
        self.start_child(tensors[: choose.number(3)])
        self.verify_names()

    def require_no_full_queue(self) -> None:
        """Raise `NothingFits` if senders may be unable to exit.

        They may if a queue contains more than a channel of any kind takes.
        """
        if any(
            one.is_queue and one.total_size > CHANNEL_CAPACITY
            for one in self.model.channels
        ):
            raise NothingFits

    @needs("lifetime")
    def step_exit(self, choose: Choices) -> None:
        """Let a child exit, unless a queue is so full that it might be unable to."""
        child = self.pick_child(choose)
        self.require_no_full_queue()
        self.exit_normally(child, ("LIFE-20", "MGR-13", "LIFE-5"))
        self.verify()
        self.verify_names()

    def exit_normally(
        self, process: ProcessModel, clauses: tuple[str, ...] = ("LIFE-9", "MGR-13")
    ) -> None:
        """Let a process exit normally."""
        self.log(f"{process.name}.leave()", clauses)
        status = process.actor.leave()
        self.model.record_end(process, "exited")
        check.equal(status, 0, f"{process.name} exits normally")

    @needs("lifetime")
    def step_kill(self, choose: Choices) -> None:
        """Kill a child by SIGKILL."""
        child = self.pick_child(choose)
        if self.may_kill:
            self.end_child(child, "killed")

    @needs("lifetime")
    def step_end(self, choose: Choices) -> None:
        """End a child abruptly in one of `ABRUPT_ENDS_BUT_KILL`."""
        child = self.pick_child(choose)
        self.require_no_full_queue()
        self.end_child(child, choose.of(ABRUPT_ENDS_BUT_KILL))

    def end_child(self, child: ProcessModel, how: str) -> None:
        """End a child abruptly, then check the tensors and names of the others."""
        clauses = ("LIFE-20", "LIFE-8")
        if how == "killed":
            self.kill(child, clauses)
        else:
            self.log(f'{child.name}.end("{how}")', clauses)
            child.actor.run_to_end(end, how)
            self.model.record_end(child, how)
        self.verify()
        self.verify_names()

    def kill(self, process: ProcessModel, clauses: tuple[str, ...]) -> None:
        """Kill a process by SIGKILL."""
        self.log(f"{process.name}.kill()", clauses)
        process.actor.kill()
        self.model.record_end(process, "killed")

    @needs("manager")
    def step_kill_manager(self, _: Choices) -> None:
        """Kill the manager of the names, if there is one."""
        if not self.stage.ledger.managers():
            return
        self.log("the manager is killed", ("MGR-12", "MGR-13"))
        kill_managers(self.stage, self.stage)
        self.model.record_manager_kill()
        self.verify()

    # Programs

    storage_descriptor_kinds: frozenset[str] = frozenset()
    """The kinds of descriptors that refer to storages."""

    @needs("strategy-fd")
    def step_program(self, choose: Choices) -> None:
        """Let a process start a program, and check the descriptors that it inherits.

        None of them may be that of a storage.
        """
        process = self.pick_process(choose)
        if not self.storage_descriptor_kinds:
            return
        self.log(f"other_program({process.name})", ("FD-5",))
        with other_program(process.actor) as pid:
            # Between fork and exec it still has all descriptors of its parent.
            inherited = partial(self.inherited_storage_kinds, pid)
            sentence = "the program has no descriptor of a storage"
            nothing = lambda: not inherited()  # noqa: E731
            eventually(nothing, sentence, self.stage.grace, found=inherited)
        process.apply("starts a program")

    def inherited_storage_kinds(self, pid: int) -> set[str]:
        """Return the kinds of descriptors of storages that a program has open."""
        targets = self.stage.ledger.details(pid)["targets"]
        return set(ledger.kinds(targets)) & self.storage_descriptor_kinds


class Steps(ProcessSteps):
    """All steps: also those in which several processes wait on one queue."""

    @needs("drop-in")
    def step_race(self, choose: Choices) -> None:
        """Let several processes wait on one queue at the same time.

        If they wait with a timeout, one message is put for all of them. Otherwise one
        is put for each. One of the processes may be killed before the first message.
        """
        sender = self.pick_process(choose)
        readers = self.model.running(but=sender)
        channel = self.pick_channel(
            choose, lambda one: can_be_waited_for(one, len(readers))
        )
        if len(readers) < 2:
            return
        has_timeout = choose.one_in(2)
        wait = self.start_getting_within if has_timeout else self.start_getting
        pending = {reader: wait(reader, channel) for reader in readers}
        if self.may_kill and sender is self.owner and choose.one_in(2):
            victim = choose.of(readers)  # its parent does not wait, and can reap it
            del pending[victim]
            self.end_child(victim, "killed")
        for _ in range(1 if has_timeout else len(pending)):
            self.put(sender, channel, self.pick_or_make(sender, choose))
        if has_timeout:
            self.check_timed_readers(channel, pending)
        else:
            self.check_untimed_readers(channel, pending)
        self.verify()

    def check_timed_readers(
        self, channel: ChannelModel, pending: dict[ProcessModel, Pending]
    ) -> None:
        """Check that all waiting calls return, with a message or after the timeout."""
        for reader, call in pending.items():
            self.clauses = ("CHAN-12", "LIFE-15", "LIFE-16")
            payloads = call.answer()
            check(isinstance(payloads, list), "it is a message or nothing")
            reader.apply("gets a message" if payloads else "sees the timeout pass")
            if payloads:
                self.lines.append(f"    {reader.name} gets it")
                self.check_received(reader, channel, payloads[0])

    def check_untimed_readers(
        self, channel: ChannelModel, pending: dict[ProcessModel, Pending]
    ) -> None:
        """Check that each waiting process gets one message, in any order."""
        self.clauses = ("LIFE-15", "LIFE-16", "CHAN-4")
        received = zip(pending, wait_for_all(*pending.values()), strict=True)
        for reader, payload in sorted(received, key=lambda one: _number(one[1])):
            reader.apply("gets a message")
            self.lines.append(f"    {reader.name} gets #{_number(payload)}")
            self.check_received(reader, channel, payload)

    @needs("drop-in")
    def step_join(self, choose: Choices) -> None:
        """Let several processes join a queue, and another one do its tasks.

        No `join` may return before all tasks are done, and all have to return then.
        """
        worker = self.pick_process(choose)
        channel = self.pick_channel(
            choose,
            lambda one: one.is_joinable and one.count_is_known and not one.uncertain,
        )
        waiting = self.model.running(but=worker)
        if not channel.messages:
            self.put(worker, channel, self.pick_or_make(worker, choose))
        while channel.unfinished > len(channel.messages):
            self.task_done(worker, channel)
        pending = {process: self.start_joining(process, channel) for process in waiting}
        while channel.messages:
            self.receive(worker, channel)
            early = [one.name for one, call in pending.items() if call.has_answered()]
            self.clauses = ("CHAN-8",)
            check.equal(early, [], "those whose join returned before all was done")
            self.task_done(worker, channel)
        for process, call in pending.items():
            self.clauses = ("CHAN-8",)
            call.answer()
            process.apply("sees all tasks done")

    def start_joining(self, process: ProcessModel, channel: ChannelModel) -> Pending:
        """Let a process wait until all tasks of a queue are done."""
        join = partial(channel.proxy.using, method=Channel.join)
        line = f"{channel.name}.join()"
        return self.start_waiting(process, join, line, event="joins a queue")

    def task_done(self, process: ProcessModel, channel: ChannelModel) -> None:
        """Let a process call `task_done()` for a message."""
        self.log(f"{process.name}.task_done({channel.name})", ("CHAN-8",))
        channel.proxy.use(process.actor, Channel.task_done)
        channel.unfinished -= 1


def has_room_for_a_pile(channel: ChannelModel) -> bool:
    """Return whether a queue has no bound and few messages."""
    is_queue = channel.is_queue and not channel.bound
    return is_queue and len(channel.messages) <= MAX_IN_FLIGHT


def can_be_waited_for(channel: ChannelModel, readers: int) -> bool:
    """Return whether `readers` processes can wait on a channel for a message each."""
    has_room = not channel.bound or channel.bound >= readers
    return channel.is_queue and channel.is_empty and has_room


def _number(payload: Any) -> int:
    number = payload.get("number") if isinstance(payload, dict) else None
    return number if isinstance(number, int) else 0
