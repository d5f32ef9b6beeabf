"""The steps of random histories with deaths, one method for each kind of step.

A step gets three numbers, by which it picks processes, channels, tensors and sizes. If
nothing fits, it does nothing. When it returns, no process waits in a call.

A new kind of step is a method `step_<kind>`, with entries in `PROFILE_OF_STEP` and
`FAMILIES` of `lifetime_histories`.
"""

from __future__ import annotations

import resource
from functools import partial
from typing import Any

from sharedtensor_conformance.chapters.lifetime_base import (
    INITIAL_PROCESSES,
    MAX_CHILDREN,
    MAX_HELD,
    MAX_IN_FLIGHT,
    HistoryChannel,
)
from sharedtensor_conformance.chapters.lifetime_messages import (
    READER_TIMEOUT,
    MessagePassing,
)
from sharedtensor_conformance.chapters.lifetime_model import (
    ABRUPT_ENDS_BUT_KILL,
    ProcessModel,
)
from sharedtensor_conformance.chapters.message_actions import (
    get_messages_of_sizes,
    is_padding,
    make_padding,
    offer,
    put_messages_of_sizes,
    put_numbered_messages,
)
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
from sharedtensor_conformance.harness import check, eventually, ledger
from sharedtensor_conformance.harness.actor import Actor
from sharedtensor_conformance.harness.channels import Channel
from sharedtensor_conformance.harness.proxies.calls import Pending

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


def tensor_count(number: int) -> int:
    """Return one of `TENSOR_COUNTS`, or 253 less where a process may not open so many.

    An implementation may need two descriptors for each tensor that it sends.
    """
    count = TENSOR_COUNTS[number % len(TENSOR_COUNTS)]
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return count if 2 * count + OTHER_DESCRIPTORS < limit else count - 253


class TensorSteps(MessagePassing):
    """Steps that use tensors and send messages."""

    # Tensors

    def step_read(self, _: int, __: int, ___: int) -> None:
        """Check the values of every usable tensor."""
        self.verify()

    def step_make(self, process_number: int, length_number: int, _: int) -> None:
        """Let a process make a tensor."""
        process = self.pick_process(process_number)
        if process is not None and len(self.held) < MAX_HELD:
            self.make(process, length_number)

    def step_idle(self, process_number: int, _: int, __: int) -> None:
        """Let a process start a thread that does nothing, or end all such threads."""
        process = self.pick_process(process_number)
        if process is None:
            return
        ends = process_number // 5 % 3 == 0
        action = stop_idle_threads if ends else start_idle_thread
        self.log(f"{process.name}.run({action.__name__})", ("SHARE-12",))
        self.actor(process).run(action)

    def step_write(self, tensor_number: int, index_number: int, _: int) -> None:
        """Let a process write one element."""
        if tensor := self.pick_tensor(tensor_number, lambda held: True):
            index = index_number % len(tensor.values)
            (value,) = self.new_values(1)
            line = f"{tensor.name}.write({index}, {value})"
            self.log(line, self.clauses_of(tensor))
            tensor.remote.write(index, value)
            self.model.record_write(tensor.model, index, value)
            self.verify()

    def step_share(self, tensor_number: int, _: int, __: int) -> None:
        """Let a process share a tensor."""
        if tensor := self.pick_tensor(tensor_number, lambda held: True):
            self.log(f"{tensor.name}.share()", ("SHARE-5", "SHARE-7"))
            tensor.remote.share()
            self.model.record_share(tensor.model)
            self.verify_names()

    def step_drop(self, tensor_number: int, _: int, __: int) -> None:
        """Let a process drop a tensor, even one whose storage may be moving."""
        droppable = [one for one in self.held if not one.model.pinned]
        if droppable:
            self.drop(droppable[tensor_number % len(droppable)])
            self.verify()
            self.verify_names()

    def step_strategy(self, process_number: int, strategy_number: int, _: int) -> None:
        """Let a process change its strategy."""
        process = self.pick_process(process_number)
        if process is None:
            return
        strategies = self.implementation.strategies
        strategy = strategies[strategy_number % len(strategies)]
        self.set_strategy(process, strategy)
        self.verify()

    def set_strategy(self, process: ProcessModel, strategy: str) -> None:
        """Set the strategy of a process, unless it is set already."""
        if process.strategy == strategy:
            return
        self.log(
            f'{process.name}.module.set_sharing_strategy("{strategy}")', ("STRAT-4",)
        )
        self.actor(process).module.set_sharing_strategy(strategy)
        self.model.record_strategy(process, strategy)

    # Messages

    def pick_size(self, number: int) -> int:
        """Return the bytes of padding of a message.

        This is zero, or less than `PICKLE_OVERHEAD` bytes below one of `LIMITS`.
        """
        number, which = divmod(number, 2 * len(LIMITS))
        if which >= len(LIMITS):
            return 0
        return LIMITS[which] - number % PICKLE_OVERHEAD

    def step_put(
        self, process_number: int, channel_number: int, tensor_number: int
    ) -> None:
        """Let a process put a message while no process waits for it."""
        process = self.pick_process(process_number)
        size = self.pick_size(process_number // 7)
        channel = self.pick_channel(channel_number, lambda one: one.has_room_for(size))
        if process is not None and channel is not None:
            self.put(process, channel, self.pick_or_make(process, tensor_number), size)

    def step_get(self, process_number: int, channel_number: int, _: int) -> None:
        """Let a process receive a message."""
        process = self.pick_process(process_number)
        channel = self.pick_channel(channel_number, lambda one: one.model.messages)
        if process is not None and channel is not None:
            self.receive(process, channel)
            self.verify()

    def step_hand_over(
        self, process_number: int, channel_number: int, tensor_number: int
    ) -> None:
        """Let a process put a message of any size, which another already waits for."""
        exchange = self.pick_exchange(process_number, channel_number)
        if exchange is None:
            return
        sender, receiver, channel = exchange
        size = self.pick_size(channel_number // 7)
        tensors = self.pick_or_make(sender, tensor_number)
        payload = self.payload(sender, tensors, size)
        pending = self.start_waiting(
            receiver, channel.proxy.waiting, f"get({channel.name})"
        )
        self.log_put(sender, channel, tensors, size, "put")
        channel.proxy.put(self.actor(sender), payload)
        self.record_put(sender, channel, tensors, size, payload)
        self.clauses = ("CHAN-4", "LIFE-15")
        received = pending.answer()
        receiver.apply("gets a message")
        self.check_received(receiver, channel, received)

    def step_pile(
        self, process_number: int, channel_number: int, size_number: int
    ) -> None:
        """Let a process put more on a queue than a socket or a pipe can contain."""
        process = self.pick_process(process_number)
        channel = self.pick_channel(
            channel_number, lambda one: one.is_queue and not one.model.bound
        )
        if process is None or channel is None:
            return
        if len(channel.model.messages) > MAX_IN_FLIGHT:
            return
        size = PILE_SIZE - size_number % PICKLE_OVERHEAD
        first = self.model.message_count + 1
        line = f"{PILE_COUNT} messages from #{first} on, of {size} bytes each"
        self.log(f"{process.name}.put({channel.name}, {line})", ("CHAN-4",))
        act = (channel.proxy, first, PILE_COUNT, size)
        self.actor(process).run(put_numbered_messages, *act)
        for _ in range(PILE_COUNT):
            self.model.record_put([], process, channel.model, size)

    def step_fill(
        self, process_number: int, channel_number: int, tensor_number: int
    ) -> None:
        """Let a process put messages on a bounded queue until it refuses one."""
        process = self.pick_process(process_number)
        channel = self.pick_channel(
            channel_number, lambda one: one.model.bound and one.count_is_known
        )
        if process is None or channel is None:
            return
        for _ in range(channel.model.bound + 1):
            is_full = channel.model.is_full
            tensors = self.pick_or_make(process, tensor_number)
            if is_full:  # no clause says whether a refused tensor is shared
                tensors = [one for one in tensors if one.model.storage.is_shared]
            payload = self.payload(process, tensors, 0)
            self.log_put(process, channel, tensors, 0, "offer")
            was_put = self.actor(process).run(offer, channel.proxy, payload)
            self.record_put(process, channel, tensors, 0, payload)
            sentence = f"{channel.name} takes what it has room for"
            check.equal(was_put, not is_full, sentence)
            if is_full:
                break

    # Limits

    def step_many(
        self, process_number: int, channel_number: int, count_number: int
    ) -> None:
        """Send a message with about as many tensors as a packet takes descriptors."""
        exchange = self.pick_exchange(process_number, channel_number)
        if exchange is None:
            return
        sender, receiver, channel = exchange
        count = tensor_count(count_number)
        size = self.pick_size(count_number // 13)
        putting, getting = self.actor(sender), self.actor(receiver)
        line = f"{count} tensors and {size} bytes"
        self.log(f"{sender.name}.put({channel.name}, {line})", ("FD-6", "CHAN-4"))
        made = putting.run(make_many, count, 1)
        tensors = share_separately(self.stage, putting, made)
        beside = putting.run(make_padding, size)
        pending = self.start_waiting(
            receiver, channel.proxy.waiting, f"get({channel.name})"
        )
        self.clauses = ("FD-6", "CHAN-4")
        channel.proxy.put(putting, [*tensors, beside])
        received = pending.answer()
        receiver.apply("gets a message")
        self.mark_task_done(channel, receiver)
        check(isinstance(received, list) and len(received) == count + 1, "all arrive")
        wrong = getting.run(positions_with_wrong_values, received[:-1], 1)
        check.equal(wrong, [], "the places of tensors that arrive with other values")
        is_whole = getting.run(is_padding, received[-1], size)
        check(is_whole, "the bytes beside them arrive whole")
        putting.run(Actor.drop, *(sent.key for sent in [*tensors, beside]))
        getting.run(Actor.drop, *(remote.key for remote in received))
        self.verify_names()

    def step_sizes(
        self, process_number: int, channel_number: int, size_number: int
    ) -> None:
        """Send messages of `SWEEP_COUNT` consecutive sizes near one of `LIMITS`."""
        tensor = self.pick_tensor(
            process_number // 11, lambda held: not held.model.storage.is_long
        )
        if tensor is None:
            return
        sender = tensor.process
        receiver = self.pick_process(process_number // 7, but=[sender])
        channel = self.pick_channel(
            channel_number, lambda one: one.is_empty and not one.model.is_joinable
        )
        if receiver is None or channel is None:
            return
        limit = LIMITS[size_number % len(LIMITS)]
        offset = size_number // 5 % (PICKLE_OVERHEAD - SWEEP_COUNT)
        first = max(0, limit - PICKLE_OVERHEAD + offset)
        line = f"{tensor.name} and {first} to {first + SWEEP_COUNT - 1} bytes"
        self.log(f"{sender.name}.put({channel.name}, {line})", ("CHAN-4", "CHAN-6"))
        sizes = list(range(first, first + SWEEP_COUNT))
        get = (channel.proxy, tensor.values, sizes)
        pending = self.actor(receiver).start(get_messages_of_sizes, *get)
        put = (channel.proxy, tensor.remote, sizes)
        self.actor(sender).run(put_messages_of_sizes, *put)
        wrong = pending.answer()
        tensor.model.storage.move("sent", sender.strategy)
        tensor.model.storage.has_moved = True
        check.equal(wrong, [], "the sizes of messages that arrive otherwise")


class ReaderSteps(TensorSteps):
    """Steps with empty queues, and with several processes that wait on one queue."""

    def step_poll(self, process_number: int, channel_number: int, _: int) -> None:
        """Let a process call `get` on an empty queue without waiting."""
        process = self.pick_process(process_number)
        channel = self.pick_channel(
            channel_number, lambda one: one.is_queue and not one.model.messages
        )
        if process is None or channel is None:
            return
        self.log(f"{process.name}.get_within({channel.name}, 0)", ("CHAN-12",))
        payloads = channel.proxy.get_within(self.actor(process), 0)
        process.apply("asks an empty queue")
        self.clauses = ("LIFE-15", "CHAN-4")
        check.equal(payloads, [], f"nothing is in {channel.name}")

    # Several readers

    def step_race(self, process_number: int, channel_number: int, choice: int) -> None:
        """Let several processes wait on one queue at the same time.

        If they wait with a timeout, one message is put for all of them. Otherwise one
        is put for each. One of the processes may be killed before the first message.
        """
        sender = self.pick_process(process_number)
        readers = [one for one in self.model.running() if one is not sender]
        channel = self.pick_channel(
            channel_number,
            lambda one: (
                one.is_queue
                and one.is_empty
                and (not one.model.bound or one.model.bound >= len(readers))
            ),
        )
        if sender is None or len(readers) < 2 or channel is None:
            return
        has_timeout = choice % 2 == 0
        pending: dict[ProcessModel, Pending] = {}
        for reader in readers:
            if has_timeout:
                line = f"get_within({channel.name}, {READER_TIMEOUT})"
                wait = partial(self.start_getting, channel)
            else:
                line, wait = f"get({channel.name})", channel.proxy.waiting
            pending[reader] = self.start_waiting(reader, wait, line)
        if self.may_kill and sender is self.owner and choice // 2 % 2 == 0:
            self.kill_a_reader(pending, choice)
        for _ in range(1 if has_timeout else len(pending)):
            self.put(sender, channel, self.pick_or_make(sender, choice // 7))
        if has_timeout:
            self.check_timed_readers(channel, pending)
        else:
            self.check_untimed_readers(channel, pending)
        self.verify()

    def start_getting(self, channel: HistoryChannel, actor: Any) -> Pending:
        """Let an actor wait for a message, for `READER_TIMEOUT` seconds at most."""
        pending: Pending = actor.start(Actor.get_within, channel.proxy, READER_TIMEOUT)
        return pending

    def kill_a_reader(self, pending: dict[ProcessModel, Pending], number: int) -> None:
        """Kill one of the waiting processes.

        Its parent must not wait, so that it can reap the process.
        """
        victim = list(pending)[number % len(pending)]
        del pending[victim]
        self.end_child(victim, "killed")

    def check_timed_readers(
        self, channel: HistoryChannel, pending: dict[ProcessModel, Pending]
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
        self, channel: HistoryChannel, pending: dict[ProcessModel, Pending]
    ) -> None:
        """Check that each waiting process gets one message, in any order."""
        self.clauses = ("LIFE-15", "LIFE-16", "CHAN-4")
        received = zip(pending, wait_for_all(*pending.values()), strict=True)
        for reader, payload in sorted(received, key=lambda one: _sort_key(one[1])):
            reader.apply("gets a message")
            self.lines.append(f"    {reader.name} gets #{_number(payload)}")
            self.check_received(reader, channel, payload)

    # Tasks

    def step_join(
        self, process_number: int, channel_number: int, tensor_number: int
    ) -> None:
        """Let several processes join a queue, and another one do its tasks.

        No `join` may return before all tasks are done, and all have to return then.
        """
        worker = self.pick_process(process_number)
        channel = self.pick_channel(
            channel_number,
            lambda one: (
                one.model.is_joinable
                and one.count_is_known
                and not one.model.has_uncertain
            ),
        )
        waiting = [one for one in self.model.running() if one is not worker]
        if worker is None or channel is None or not waiting:
            return
        if not channel.model.messages:
            self.put(worker, channel, self.pick_or_make(worker, tensor_number))
        while channel.model.unfinished > len(channel.model.messages):
            self.task_done(worker, channel)
        line, join = (
            f"{channel.name}.join()",
            partial(channel.proxy.using, method=Channel.join),
        )
        pending = {
            process: self.start_waiting(process, join, line, event="joins a queue")
            for process in waiting
        }
        while channel.model.messages:
            self.receive(worker, channel)
            early = [
                process.name for process, call in pending.items() if call.has_answered()
            ]
            self.clauses = ("CHAN-8",)
            check.equal(early, [], "those whose join returned before all was done")
            self.task_done(worker, channel)
        for process, call in pending.items():
            self.clauses = ("CHAN-8",)
            call.answer()
            process.apply("sees all tasks done")


class ProcessSteps(ReaderSteps):
    """Steps in which processes start and end, in addition to all others."""

    def step_start(self, count_number: int, tensor_number: int, _: int) -> None:
        """Let the owner start a child, while messages may be in the channels."""
        running = self.model.running()
        if len(running) >= INITIAL_PROCESSES + 1 or len(self.actors) > MAX_CHILDREN:
            return
        tensors = [
            one
            for one in self.pick_or_make(self.owner, tensor_number)
            if one.model.storage.is_settled
        ]
        self.start_child(tensors[: count_number % 3])
        self.verify_names()

    def step_program(self, process_number: int, _: int, __: int) -> None:
        """Let a process start a program, and check the descriptors that it inherits.

        None of them may be that of a storage.
        """
        process = self.pick_process(process_number)
        if process is None or not self.storage_descriptor_kinds:
            return
        self.log(f"other_program({process.name})", ("FD-5",))
        with other_program(self.actor(process)) as pid:
            # Between fork and exec it still has all descriptors of its parent.
            sentence = "the program has no descriptor of a storage"
            eventually(
                lambda: not self.inherited_storage_kinds(pid),
                sentence,
                self.stage.grace,
                found=lambda: self.inherited_storage_kinds(pid),
            )
        process.apply("starts a program")

    def inherited_storage_kinds(self, pid: int) -> set[str]:
        """Return the kinds of descriptors of storages that a program has open."""
        targets = self.stage.ledger.details(pid)["targets"]
        return set(ledger.kinds(targets)) & self.storage_descriptor_kinds

    def step_exit(self, process_number: int, _: int, __: int) -> None:
        """Let a child exit, unless a queue is so full that it might be unable to."""
        child = self.pick_child(process_number)
        if child is None or self.has_full_queue:
            return
        self.log(f"{child.name}.leave()", ("LIFE-20", "MGR-13", "LIFE-5"))
        status = self.actor(child).leave()
        self.record_end(child, "exited")
        check.equal(status, 0, f"{child.name} exits normally")
        self.verify()
        self.verify_names()

    def step_kill(self, process_number: int, _: int, __: int) -> None:
        """Kill a child by SIGKILL."""
        child = self.pick_child(process_number)
        if child is not None and self.may_kill:
            self.end_child(child, "killed")

    def step_end(self, process_number: int, end_number: int, _: int) -> None:
        """End a child abruptly in one of `ABRUPT_ENDS_BUT_KILL`."""
        child = self.pick_child(process_number)
        if child is not None and not self.has_full_queue:
            how = ABRUPT_ENDS_BUT_KILL[end_number % len(ABRUPT_ENDS_BUT_KILL)]
            self.end_child(child, how)

    def step_kill_manager(self, _: int, __: int, ___: int) -> None:
        """Kill the manager of the names, if there is one."""
        if not self.stage.ledger.managers():
            return
        self.log("the manager is killed", ("MGR-12", "MGR-13"))
        kill_managers(self.stage, self.stage)
        self.model.record_manager_kill()
        self.verify()


def _number(payload: Any) -> Any:
    return payload.get("number", "?") if isinstance(payload, dict) else "?"


def _sort_key(payload: Any) -> int:
    number = _number(payload)
    return number if isinstance(number, int) else 0
