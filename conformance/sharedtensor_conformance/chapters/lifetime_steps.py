"""The steps of random histories with deaths, one method for each kind of step.

A step gets three numbers, by which it picks processes, channels, tensors and sizes. If
nothing fits, it does nothing. When it returns, no process waits in a call.

A new kind of step is a method `step_<kind>`, with entries in `NEEDED` and `FAMILIES` of
`lifetime_histories`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sharedtensor_conformance.chapters.lifetime_ground import (
    IN_FLIGHT,
    MAX_HELD,
    PROCESSES,
    STARTED,
    Route,
)
from sharedtensor_conformance.chapters.lifetime_messages import TIMEOUT, Messages
from sharedtensor_conformance.chapters.lifetime_model import ProcessModel
from sharedtensor_conformance.chapters.shared_steps import (
    kill_managers,
    share_separately,
    wait_for_all,
)
from sharedtensor_conformance.harness import check, eventually, ledger
from sharedtensor_conformance.harness.proxies.calls import Pending

PILE, PILED = 128, 3 << 13
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

SPREAD = 520
"""Bytes that pickling may add. Ballast is smaller than its limit by up to as much."""

SWEEP = 100
"""The number of consecutive sizes that `step_sizes` sends, each of them once."""

CROWDS = (250, 251, 252, 253, 254, 255, 256, 505, 506, 507)
"""Numbers of tensors in one message, near multiples of 253.

The kernel passes at most 253 descriptors with one packet (unix(7), SCM_RIGHTS).
"""

# Abrupt ends other than by SIGKILL, which has a step of its own.
ENDS = ("by os._exit", "by SIGTERM", "by an exception")


class TensorSteps(Messages):
    """Steps that use tensors and send messages."""

    # Tensors

    def step_read(self, _: int, __: int, ___: int) -> None:
        """Check the values of every usable tensor."""
        self.verify()

    def step_make(self, who: int, length: int, _: int) -> None:
        """Let a process make a tensor."""
        process = self.process(who)
        if process is not None and len(self.held) < MAX_HELD:
            self.make(process, length)

    def step_idle(self, who: int, _: int, __: int) -> None:
        """Let a process start a thread that does nothing, or end all such threads."""
        process = self.process(who)
        if process is None:
            return
        action = "end_idle_threads" if who // 5 % 3 == 0 else "begin_idle_thread"
        self.does(f'{process.name}.request("act", "{action}")', ("SHARE-12",))
        self.actor(process).request("act", action)

    def step_write(self, which: int, where: int, _: int) -> None:
        """Let a process write one element."""
        if one := self.pick(which, lambda held: True):
            index = where % len(one.values)
            (value,) = self.new_values(1)
            self.does(f"{one.name}.write({index}, {value})", self.bound(one))
            one.remote.write(index, value)
            self.world.writes(one.reference, index, value)
            self.verify()

    def step_share(self, which: int, _: int, __: int) -> None:
        """Let a process share a tensor."""
        if one := self.pick(which, lambda held: True):
            self.does(f"{one.name}.share()", ("SHARE-5", "SHARE-7"))
            one.remote.share()
            self.world.shares(one.reference)
            self.verify_names()

    def step_drop(self, which: int, _: int, __: int) -> None:
        """Let a process drop a tensor, even one whose storage may be moving."""
        droppable = [one for one in self.held if not one.reference.pinned]
        if droppable:
            self.drop(droppable[which % len(droppable)])
            self.verify()
            self.verify_names()

    def step_strategy(self, who: int, which: int, _: int) -> None:
        """Let a process change its strategy."""
        process = self.process(who)
        if process is None:
            return
        strategies = self.implementation.strategies
        strategy = strategies[which % len(strategies)]
        self.set_strategy(process, strategy)
        self.verify()

    def set_strategy(self, process: ProcessModel, strategy: str) -> None:
        """Set the strategy of a process, unless it is set already."""
        if process.strategy == strategy:
            return
        self.does(
            f'{process.name}.module.set_sharing_strategy("{strategy}")', ("STRAT-4",)
        )
        self.actor(process).module.set_sharing_strategy(strategy)
        self.world.changes_strategy(process, strategy)

    # Messages

    def size(self, number: int) -> int:
        """Return the bytes of ballast of a message.

        This is zero, or less than `SPREAD` bytes below one of `LIMITS`.
        """
        number, which = divmod(number, 2 * len(LIMITS))
        if which >= len(LIMITS):
            return 0
        return LIMITS[which] - number % SPREAD

    def step_put(self, who: int, where: int, what: int) -> None:
        """Let a process put a message while no process waits for it."""
        process = self.process(who)
        size = self.size(who // 7)
        route = self.route(where, lambda one: one.has_room_for(size))
        if process is not None and route is not None:
            self.put(process, route, self.some_of(process, what), size)

    def step_get(self, who: int, where: int, _: int) -> None:
        """Let a process receive a message."""
        process = self.process(who)
        route = self.route(where, lambda one: one.model.waiting)
        if process is not None and route is not None:
            self.receive(process, route)
            self.verify()

    def step_hand_over(self, who: int, where: int, what: int) -> None:
        """Let a process put a message of any size, which another already waits for."""
        sender = self.process(who)
        receiver = self.process(who // 7, but=[sender])
        route = self.route(where, lambda one: one.is_free)
        if sender is None or receiver is None or route is None:
            return
        size, tensors = self.size(where // 7), self.some_of(sender, what)
        payload = self.payload(sender, tensors, size)
        pending = self.waits(receiver, route.proxy.waiting, f"get({route.name})")
        self.says_put(sender, route, tensors, size, "put")
        route.proxy.put(self.actor(sender), payload)
        self.was_put(sender, route, tensors, size, payload)
        self.clauses = ("CHAN-4", "LIFE-15")
        arrived = pending.answer()
        receiver.becomes("gets a message")
        self.arrived(receiver, route, arrived)

    def step_pile(self, who: int, where: int, what: int) -> None:
        """Let a process put more on a queue than a socket or a pipe can contain."""
        process = self.process(who)
        route = self.route(where, lambda one: one.is_queue and not one.model.bound)
        if process is None or route is None or len(route.model.waiting) > IN_FLIGHT:
            return
        size, first = PILED - what % SPREAD, self.world.messages + 1
        line = f"{PILE} messages from #{first} on, of {size} bytes each"
        self.does(f"{process.name}.put({route.name}, {line})", ("CHAN-4",))
        act = ("put_pile", route.proxy, first, PILE, size)
        self.actor(process).request("act", *act)
        for _ in range(PILE):
            self.world.puts([], process, route.model, size)

    def step_fill(self, who: int, where: int, what: int) -> None:
        """Let a process put messages on a bounded queue until it refuses one."""
        process = self.process(who)
        route = self.route(where, lambda one: one.model.bound and one.counts_are_known)
        if process is None or route is None:
            return
        for _ in range(route.model.bound + 1):
            full = route.model.is_full
            tensors = self.some_of(process, what)
            if full:  # no clause says whether a refused tensor is shared
                tensors = [one for one in tensors if one.reference.storage.is_shared]
            payload = self.payload(process, tensors, 0)
            self.says_put(process, route, tensors, 0, "offer")
            taken = route.proxy.offer(self.actor(process), payload)
            self.was_put(process, route, tensors, 0, payload)
            check.equal(taken, not full, f"{route.name} takes what it has room for")
            if full:
                break

    # Limits

    def step_many(self, who: int, where: int, what: int) -> None:
        """Send a message with about as many tensors as a packet takes descriptors."""
        sender = self.process(who)
        receiver = self.process(who // 7, but=[sender])
        route = self.route(where, lambda one: one.is_free)
        if sender is None or receiver is None or route is None:
            return
        count = CROWDS[what % len(CROWDS)]
        size = self.size(what // 13)
        one, other = self.actor(sender), self.actor(receiver)
        line = f"{count} tensors and {size} bytes"
        self.does(f"{sender.name}.put({route.name}, {line})", ("FD-6", "CHAN-4"))
        made = one.request("act", "make_many", count, 1)
        tensors = share_separately(self.stage, one, made)
        ballast = one.request("act", "ballast", size)
        pending = self.waits(receiver, route.proxy.waiting, f"get({route.name})")
        self.clauses = ("FD-6", "CHAN-4")
        route.proxy.put(one, [*tensors, ballast])
        arrived = pending.answer()
        receiver.becomes("gets a message")
        self.was_counted(route, receiver)
        check(isinstance(arrived, list) and len(arrived) == count + 1, "all arrive")
        wrong = other.request("act", "wrong_ones", arrived[:-1], 1)
        check.equal(wrong, [], "the places of tensors that arrive with other values")
        whole = other.request("act", "is_ballast", arrived[-1], size)
        check(whole, "the bytes beside them arrive whole")
        one.request("drop", *(each.key for each in [*tensors, ballast]))
        other.request("drop", *(each.key for each in arrived))
        self.verify_names()

    def step_sizes(self, who: int, where: int, what: int) -> None:
        """Send messages of `SWEEP` consecutive sizes near one of `LIMITS`."""
        tensor = self.pick(who // 11, lambda held: not held.reference.storage.is_long)
        if tensor is None:
            return
        sender = tensor.process
        receiver = self.process(who // 7, but=[sender])
        route = self.route(where, lambda one: one.is_free and not one.model.counts)
        if receiver is None or route is None:
            return
        limit = LIMITS[what % len(LIMITS)]
        first = max(0, limit - SPREAD + what // 5 % (SPREAD - SWEEP))
        line = f"{tensor.name} and {first} to {first + SWEEP - 1} bytes"
        self.does(f"{sender.name}.put({route.name}, {line})", ("CHAN-4", "CHAN-6"))
        one, other = self.actor(sender), self.actor(receiver)
        sizes = first, SWEEP
        pending = Pending(other, "act", "get_sizes", route.proxy, tensor.values, *sizes)
        one.request("act", "put_sizes", route.proxy, tensor.remote, *sizes)
        wrong = pending.answer()
        tensor.reference.storage.move("sent", sender.strategy)
        tensor.reference.storage.has_moved = True
        check.equal(wrong, [], "the sizes of messages that arrive otherwise")


class ReaderSteps(TensorSteps):
    """Steps with empty queues, and with several processes that wait on one queue."""

    def step_poll(self, who: int, where: int, _: int) -> None:
        """Let a process call `get` on an empty queue without waiting."""
        process = self.process(who)
        route = self.route(where, lambda one: one.is_queue and not one.model.waiting)
        if process is None or route is None:
            return
        self.does(f"{process.name}.get_within({route.name}, 0)", ("CHAN-12",))
        found = route.proxy.get_within(self.actor(process), 0)
        process.becomes("asks an empty queue")
        self.clauses = ("LIFE-15", "CHAN-4")
        check.equal(found, [], f"nothing is in {route.name}")

    # Several readers

    def step_race(self, who: int, where: int, what: int) -> None:
        """Let several processes wait on one queue at the same time.

        If they wait with a timeout, one message is put for all of them. Otherwise one
        is put for each. One of the processes may be killed before the first message.
        """
        sender = self.process(who)
        readers = [one for one in self.world.running() if one is not sender]
        route = self.route(
            where,
            lambda one: (
                one.is_queue
                and one.is_free
                and (not one.model.bound or one.model.bound >= len(readers))
            ),
        )
        if sender is None or len(readers) < 2 or route is None:
            return
        timed = what % 2 == 0
        pending: dict[ProcessModel, Pending] = {}
        for reader in readers:
            if timed:
                line = f"get_within({route.name}, {TIMEOUT})"
                wait = partial(route.proxy.waiting_within, seconds=TIMEOUT)
            else:
                line, wait = f"get({route.name})", route.proxy.waiting
            pending[reader] = self.waits(reader, wait, line)
        if self.may_kill and sender is self.owner and what // 2 % 2 == 0:
            self.kill_a_reader(pending, what)
        for _ in range(1 if timed else len(pending)):
            self.put(sender, route, self.some_of(sender, what // 7))
        if timed:
            self.readers_with_a_timeout(route, pending)
        else:
            self.readers_without_end(route, pending)
        self.verify()

    def kill_a_reader(self, pending: dict[ProcessModel, Pending], what: int) -> None:
        """Kill one of the waiting processes.

        Its parent must not wait, so that it can reap the process.
        """
        victim = list(pending)[what % len(pending)]
        del pending[victim]
        self.end_of(victim, "killed")

    def readers_with_a_timeout(
        self, route: Route, pending: dict[ProcessModel, Pending]
    ) -> None:
        """Check that all waiting calls return, with a message or after the timeout."""
        for reader, one in pending.items():
            self.clauses = ("CHAN-12", "LIFE-15", "LIFE-16")
            found = one.answer()
            check(isinstance(found, list), "it is a message or nothing")
            reader.becomes("gets a message" if found else "sees the timeout pass")
            if found:
                self.lines.append(f"    {reader.name} gets it")
                self.arrived(reader, route, found[0])

    def readers_without_end(
        self, route: Route, pending: dict[ProcessModel, Pending]
    ) -> None:
        """Check that each waiting process gets one message, in any order."""
        self.clauses = ("LIFE-15", "LIFE-16", "CHAN-4")
        received = zip(pending, wait_for_all(*pending.values()), strict=True)
        for reader, payload in sorted(received, key=lambda one: _order(one[1])):
            reader.becomes("gets a message")
            self.lines.append(f"    {reader.name} gets #{_number(payload)}")
            self.arrived(reader, route, payload)

    # Tasks

    def step_join(self, who: int, where: int, what: int) -> None:
        """Let several processes join a queue, and another one do its tasks.

        No `join` may return before all tasks are done, and all have to return then.
        """
        worker = self.process(who)
        route = self.route(
            where,
            lambda one: (
                one.model.counts
                and one.counts_are_known
                and not one.model.has_uncertain
            ),
        )
        joining = [one for one in self.world.running() if one is not worker]
        if worker is None or route is None or not joining:
            return
        if not route.model.waiting:
            self.put(worker, route, self.some_of(worker, what))
        while route.model.unfinished > len(route.model.waiting):
            self.task_done(worker, route)
        pending = {
            one: self.waits(
                one, route.proxy.joining, f"{route.name}.join()", event="joins a queue"
            )
            for one in joining
        }
        while route.model.waiting:
            self.receive(worker, route)
            early = [one.name for one, waits in pending.items() if waits.has_answered()]
            self.clauses = ("CHAN-8",)
            check.equal(early, [], "those whose join returned before all was done")
            self.task_done(worker, route)
        for one, waits in pending.items():
            self.clauses = ("CHAN-8",)
            waits.answer()
            one.becomes("sees all tasks done")


class Steps(ReaderSteps):
    """All steps; this class adds those in which processes start and end."""

    def step_start(self, what: int, which: int, _: int) -> None:
        """Let the owner start a child, while messages may be in the channels."""
        running = self.world.running()
        if len(running) >= PROCESSES + 1 or len(self.actors) > STARTED:
            return
        tensors = [
            one
            for one in self.some_of(self.owner, which)
            if one.reference.storage.settled
        ]
        self.start(tensors[: what % 3])
        self.verify_names()

    def step_program(self, who: int, _: int, __: int) -> None:
        """Let a process start a program, and check the descriptors that it inherits.

        None of them may be that of a storage.
        """
        process = self.process(who)
        if process is None or not self.of_storages:
            return
        self.does(f"{process.name}.system.program()", ("FD-5",))
        with self.actor(process).system.program() as pid:
            # Between fork and exec it still has all descriptors of its parent.
            sentence = "the program has no descriptor of a storage"
            eventually(
                lambda: not self.inherited(pid),
                sentence,
                self.stage.grace,
                found=lambda: self.inherited(pid),
            )
        process.becomes("starts a program")

    def inherited(self, pid: int) -> set[str]:
        """Return the kinds of descriptors of storages that a program has open."""
        targets = self.stage.ledger.details(pid)["targets"]
        return set(ledger.kinds(targets)) & self.of_storages

    def step_exit(self, who: int, _: int, __: int) -> None:
        """Let a child exit, unless a queue is so full that it might be unable to."""
        child = self.child(who)
        if child is None or self.is_full:
            return
        self.does(f"{child.name}.leave()", ("LIFE-20", "MGR-13", "LIFE-5"))
        status = self.actor(child).leave()
        self.has_ended(child, "exited")
        check.equal(status, 0, f"{child.name} exits normally")
        self.verify()
        self.verify_names()

    def step_kill(self, who: int, _: int, __: int) -> None:
        """Kill a child by SIGKILL."""
        child = self.child(who)
        if child is not None and self.may_kill:
            self.end_of(child, "killed")

    def step_end(self, who: int, how: int, _: int) -> None:
        """End a child abruptly in one of `ENDS`."""
        child = self.child(who)
        if child is not None and not self.is_full:
            self.end_of(child, ENDS[how % len(ENDS)])

    def step_kill_manager(self, _: int, __: int, ___: int) -> None:
        """Kill the manager of the names, if there is one."""
        if not self.stage.ledger.managers():
            return
        self.does("the manager is killed", ("MGR-12", "MGR-13"))
        kill_managers(self.stage, self.stage)
        self.world.manager_was_killed()
        self.verify()


def _number(payload: Any) -> Any:
    return payload.get("number", "?") if isinstance(payload, dict) else "?"


def _order(payload: Any) -> int:
    number = _number(payload)
    return number if isinstance(number, int) else 0
