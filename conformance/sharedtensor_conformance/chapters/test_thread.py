"""Chapter THREAD: threads of one process, and calls that are interrupted."""

from collections import Counter
from itertools import chain, product
from typing import Any

import pytest

from sharedtensor_conformance.chapters.interruption_actions import (
    HANDLER_MESSAGE,
    HANDLERS,
    KINDS,
    count_places,
    interrupt_drops,
    write_in_child,
)
from sharedtensor_conformance.chapters.interruptions import (
    interrupt_at_each_place,
    raising,
    send_signal,
)
from sharedtensor_conformance.chapters.process_actions import start_in_parallel
from sharedtensor_conformance.chapters.shared_steps import (
    check_no_growth,
    check_shared_memory,
    claimed_queues,
    holdings_of,
    judging,
    sends_when_pickled,
    share_separately,
    unthreaded_channel,
    wait_for_all,
)
from sharedtensor_conformance.chapters.tensor_actions import (
    make_long,
    make_many,
    positions_with_wrong_values,
)
from sharedtensor_conformance.chapters.thread_actions import (
    count_thread_starts,
    counted_thread_starts,
    get_in_threads,
    make_ones,
    put_and_get_in_threads,
    put_from_threads,
    share_and_put_in_parallel,
    start_exchange,
    stop_exchange,
    use_while_it_moves,
)
from sharedtensor_conformance.harness import check, clause, eventually, refusal
from sharedtensor_conformance.harness.remote.actor import Actor

THREADS = 4
PER_THREAD = 40
FORKS = 5
INTERRUPTIONS = 3
MOVES = 3

ALL_MESSAGES = sorted(
    [thread, number, True] for thread in range(THREADS) for number in range(PER_THREAD)
)
"""All expected messages: the thread that put it, its number there, and whether it
arrived complete.
"""


@clause("THREAD-1", starts=True)
def test_threads_that_put_on_one_queue_lose_and_mix_nothing(owner, stage):
    """Four threads of the owner put forty messages each; a child gets all of them."""
    for kind in claimed_queues(stage):
        channel = owner.open_channel(kind)
        child = owner.start_peer(arguments=channel)
        _, (received,) = wait_for_all(
            owner.start(put_from_threads, channel, THREADS, PER_THREAD),
            child.start(get_in_threads, channel, 1, THREADS * PER_THREAD),
        )
        check.equal(
            sorted(received), ALL_MESSAGES, "each message arrives once and whole"
        )
        for thread in range(THREADS):
            numbers = [number for other, number, _ in received if other == thread]
            check.equal(numbers, sorted(numbers), "those of a thread are in order")


@clause("THREAD-2", starts=True)
def test_threads_that_get_from_one_queue_receive_each_message_once(owner, stage):
    """A child puts 160 messages from four threads; four of the owner get them."""
    for kind in claimed_queues(stage):
        channel = owner.open_channel(kind)
        child = owner.start_peer(arguments=channel)
        _, received = wait_for_all(
            child.start(put_from_threads, channel, THREADS, PER_THREAD),
            owner.start(get_in_threads, channel, THREADS, PER_THREAD),
        )
        check.equal(
            sorted(chain(*received)), ALL_MESSAGES, "each message is got once, whole"
        )


@clause("THREAD-2")
def test_threads_of_one_process_send_to_each_other(owner, stage):
    """Four threads of the owner put, and four others of it get at the same time."""
    for kind in claimed_queues(stage):
        channel = owner.open_channel(kind)
        arguments = channel, THREADS, PER_THREAD
        returned = owner.run(put_and_get_in_threads, *arguments)
        received = returned[THREADS:]
        check.equal(
            sorted(chain(*received)), ALL_MESSAGES, "each message is got once, whole"
        )


@clause(
    "THREAD-3",
    start_methods=("fork",),
    isolated=True,
    vary=("strategy", "start_method"),
)
def test_child_that_is_forked_while_a_thread_shares_can_share(stage):
    """The owner forks five times while a thread of it puts on a queue and gets there.

    Each child shares with the owner, and puts a message on that queue and gets one
    there. The message that it gets may be one of the thread.
    """
    with stage.fresh() as fresh:
        for kind in claimed_queues(stage):
            channel = fresh.owner.open_channel(kind)
            exchange = fresh.owner.run(start_exchange, channel)
            children, sent, received = [], [], []
            for number in range(1, FORKS + 1):
                child = fresh.owner.start_peer(arguments=channel)
                children.append(child)
                there, back = child.make([number, 2, 3]), fresh.owner.make([number, 5])
                check_shared_memory(there, child.send(there, fresh.owner))
                check_shared_memory(fresh.owner.send(back, child), back)
                sent.append(child.make([number, 7]))
                channel.put(child, sent[-1])
                received.append(channel.get(child).values())
            rounds, got = fresh.owner.run(stop_exchange, exchange)
            expected = Counter((0, n) for n in range(rounds))
            expected.update(tuple(one.values()) for one in sent)
            found = Counter(map(tuple, [*got, *received]))
            lost, others = (sorted(c) for c in (expected - found, found - expected))
            check.equal(lost, [], "each message on the queue is received")
            check.equal(others, [], "once, and nothing else")
            for child in children:
                check.equal(child.leave(), 0, "the child ends")


@clause(
    "THREAD-4",
    isolated=True,
    channels=("simple_queue",),
    vary=("strategy", "start_method"),
)
def test_simple_queue_uses_no_thread(stage):
    """Owner and peer send each other tensors and drop them; no thread starts in them.

    An object beside the last one sends a tensor of its own while it is pickled.
    """
    logs = unthreaded_channel(stage)
    with stage.fresh() as fresh:
        pair = (fresh.owner, fresh.peer)
        for actor in pair:
            actor.make([1])  # makes what a process needs for its first tensor
            actor.run(count_thread_starts)
        before = threads_of(fresh, pair)
        for sender, receiver in (pair, pair[::-1]):
            for number in range(3):
                tensor = sender.make([number, 2, 3])
                arrived = sender.send(tensor, receiver, "simple_queue")
                check.equal(arrived.values(), [number, 2, 3], "it arrives")
                for dropped in (tensor, arrived):
                    dropped.drop()
            logging = sends_when_pickled(sender, [sender.make([4])], receiver, logs)
            message = [logging, sender.make([5])]
            sender.put(message, receiver, "simple_queue")
            check.equal(receiver.get(sender, logs)[0].values(), [4], "it is sent")
            arrived = receiver.get(sender, "simple_queue")[1]
            check.equal(arrived.values(), [5], "and what is beside it arrives")
        check.equal(threads_of(fresh, pair), before, "neither has more threads")
        check.equal(thread_starts(pair), [0, 0], "and none has started and ended")


STORAGE_COUNTS = (1, 60, 200)
"""The numbers of storages in the messages. Receivers keep all of them: in total more
than a cache may have.
"""


@clause("THREAD-4", isolated=True, channels=("simple_queue",))
def test_simple_queue_uses_no_thread_however_much_it_carries(stage):
    """Owner and peer send each other more and more tensors, and keep all of them."""
    with stage.fresh() as fresh:
        pair = (fresh.owner, fresh.peer)
        for actor in pair:
            actor.make([1])
            actor.run(count_thread_starts)
        before = threads_of(fresh, pair)
        for count in STORAGE_COUNTS:
            for sender, receiver in (pair, pair[::-1]):
                made = sender.run(make_many, count, 1)
                made = share_separately(fresh, sender, made)
                with receiver.getting(sender, "simple_queue") as waiting:
                    sender.put(made, receiver, "simple_queue")
                wrong = receiver.run(positions_with_wrong_values, waiting.payload, 1)
                check.equal(wrong, [], "each tensor arrives with its value")
                said = f"({count} tensors)"
                after = threads_of(fresh, pair)
                check.equal(after, before, f"neither has more threads {said}")
                starts = thread_starts(pair)
                check.equal(starts, [0, 0], f"and none has started and ended {said}")


def threads_of(stage, actors):
    """Return the number of threads in the process of each actor."""
    for actor in actors:
        actor.ensure_started()
    processes = stage.ledger.read()["processes"]
    return [processes[str(actor.pid)]["threads"] for actor in actors]


def thread_starts(actors):
    """Return how many threads have started in each actor since they are counted."""
    return [actor.run(counted_thread_starts) for actor in actors]


@clause("THREAD-5")
def test_receive_that_is_interrupted_while_it_waits_loses_nothing(
    sender, receiver, channel
):
    """The receiver waits and is interrupted; then it receives two messages.

    The handlers raise one exception or another, also one that is an `OSError`.
    """
    for number, kind in enumerate([*HANDLERS] * INTERRUPTIONS):
        with (
            raising(receiver, kind),
            refusal("the call is interrupted") as refused,
            receiver.getting(sender, channel) as waiting,
        ):
            interrupt_waiting(waiting, kind)
        check_raised_by_handler(refused, kind)
        tensors = [sender.make([number, turn, 7]) for turn in range(2)]
        for tensor in tensors:
            sender.put(tensor, receiver, channel)
        for tensor in tensors:
            arrived = receiver.get(sender, channel)
            check.equal(arrived.values(), tensor.values(), "the message arrives")


def interrupt_waiting(waiting, kind):
    """Wait until an actor waits for a message, and let a handler raise in it."""
    eventually(waiting.is_waiting, "it waits", waiting.actor.deadline)
    send_signal(waiting.actor, kind)


def check_raised_by_handler(refused, kind):
    """Check that a call raised the exception of a handler, one of the `HANDLERS`."""
    expected = [HANDLERS[kind][1].__name__, HANDLER_MESSAGE]
    found = [refused.error.type, refused.error.message]
    check.equal(found, expected, "it raises what the handler raised")


LONG_TIMEOUT = 1000
"""A timeout in seconds that no case reaches."""


def ways_to_wait(kind):
    """Return the timeouts of a `get` on a queue of this kind; None for no timeout."""
    return (None,) if kind == "simple_queue" else (None, LONG_TIMEOUT)


def wait_in_turn(channel, actor, timeout):
    """Make an actor wait in `get`, with or without a timeout; return when it does."""
    if timeout is None:
        waiting = channel.waiting(actor)
    else:
        waiting = actor.start(Actor.get_within, channel, timeout)
    eventually(waiting.is_waiting, "it waits", actor.deadline)
    return waiting


@clause("THREAD-5", vary=("start_method",))
def test_consumer_that_is_interrupted_does_not_keep_the_others_from_receiving(
    owner, stage
):
    """Two children wait on one queue; one is interrupted, and the other receives.

    So does the interrupted one, which waits again. It waited first or second, with or
    without a timeout, and the handlers raise one exception or another.
    """
    for kind in claimed_queues(stage):
        channel = owner.open_channel(kind)
        children = [owner.start_peer(arguments=channel) for _ in range(2)]
        for timeout, raised, turn in product(ways_to_wait(kind), HANDLERS, (0, 1)):
            said = f"({raised}, timeout: {timeout})"
            with raising(children[turn], raised):
                both = [wait_in_turn(channel, actor, timeout) for actor in children]
                interrupted, other = both[turn], both[1 - turn]
                interrupt_waiting(interrupted, raised)
                with refusal(f"the call is interrupted {said}") as refused:
                    interrupted.answer()
            check_raised_by_handler(refused, raised)
            again = wait_in_turn(channel, interrupted.actor, timeout)
            for number in range(2):
                channel.put(owner, {"tensor": owner.make([number, 8, 9])})
            arrived = [waiting.answer() for waiting in (other, again)]
            if timeout is not None:
                found = [len(messages) for messages in arrived]
                check.equal(found, [1, 1], f"neither says that it is empty {said}")
                arrived = [message for (message,) in arrived]
            values = sorted(message["tensor"].values() for message in arrived)
            expected = [[0, 8, 9], [1, 8, 9]]
            check.equal(values, expected, f"both receive what comes later {said}")


LAYER = {"weight": [1, 2, 7], "bias": [1, 7]}
OWN_SEGMENT_LENGTH = 1 << 15
"""The number of elements of a tensor too large to share a segment with small ones."""


INTERRUPTION_TESTS: dict[str, Any] = {
    "profiles": ("share",),
    "start_methods": ("fork",),
    "channels": ("pipe",),
    "isolated": True,
}


@clause("THREAD-6", **INTERRUPTION_TESTS)
def test_share_that_is_interrupted_leaves_the_tensor_private_or_shared(
    sender, receiver, stage
):
    """A forked child writes to it: `is_shared` has said before who sees that."""

    def interrupt(one):
        tensor = sender.make([one.place, 7])
        has_returned = one.run(sender, "share", tensor)
        if one.judges_leaks:
            check_is_shared(sender, [tensor], one, has_returned)
            tensor.share()
            check.equal(tensor.is_shared(), True, f"it can be shared then ({one})")
            sender.put(tensor, receiver, "pipe")
            check_shared_memory(tensor, receiver.get(sender, "pipe"))

    def places():
        return sender.run(count_places, "share", sender.make([6, 7]))

    interrupt_at_each_place(stage, (sender, receiver), places, interrupt)


@clause(
    "THREAD-6", profiles=("modules", "share"), start_methods=("fork",), isolated=True
)
def test_share_of_a_module_that_is_interrupted_leaves_each_parameter_so(owner, stage):
    """Each parameter is private or shared, and all are shared by the next call."""

    def interrupt(one):
        module = owner.make_module(LAYER)
        has_returned = one.run(owner, "share_module", module)
        if one.judges_leaks:
            parameters = list(owner.parameters(module).values())
            check_is_shared(owner, parameters, one, has_returned)
            owner.share_module(module)
            shared = [parameter.is_shared() for parameter in parameters]
            check.equal(shared, [True, True], f"it can be shared then ({one})")

    def places():
        module = owner.make_module(LAYER)
        return owner.run(count_places, "share_module", module)

    interrupt_at_each_place(stage, (owner,), places, interrupt)


@clause("THREAD-6", channels=("pipe",), isolated=True)
def test_send_that_is_interrupted_loses_its_own_message_at_most(
    sender, receiver, stage
):
    """After each interrupted message the same tensor is sent once more."""

    def interrupt(one):
        tensor = sender.make([one.place, 7])
        has_returned = interrupt_put(one, sender, receiver, tensor)
        found, again = receive_up_to_next(sender, receiver, tensor)
        if one.judges_leaks:
            check_arrived_once(found, one, has_returned)
            check_shared_memory(tensor, again, *found)

    def places():
        return count_places_of_put(sender, receiver, sender.make([6, 7]))

    interrupt_at_each_place(stage, (sender, receiver), places, interrupt)


@clause("THREAD-6", **INTERRUPTION_TESTS)
def test_send_of_several_that_is_interrupted_leaves_each_private_or_shared(
    owner, peer, stage
):
    """Two small tensors and a large one; then the same ones are sent once more."""

    def make():
        return [
            owner.make([1, 7]),
            owner.make([2, 3, 7]),
            owner.run(make_long, OWN_SEGMENT_LENGTH, 7),
        ]

    def interrupt(one):
        tensors = make()
        has_returned = interrupt_put(one, owner, peer, tensors)
        if one.judges_leaks:
            check_is_shared(owner, tensors, one, has_returned)
        found, again = receive_up_to_next(owner, peer, tensors)
        if one.judges_leaks:
            check_arrived_once(found, one, has_returned)
            for number, tensor in enumerate(tensors):
                tensor.write(0, one.place)
                read = [message[number].read(0) for message in (again, *found)]
                said = f"each message has the tensors that were sent ({one})"
                check.equal(read, [one.place] * len(read), said)

    def places():
        return count_places_of_put(owner, peer, make())

    interrupt_at_each_place(stage, (owner, peer), places, interrupt)


def check_is_shared(actor, tensors, interruption, has_returned):
    """Check `is_shared` of each tensor: `actor` reads a child's write if it is true.

    The last element of each tensor is 7, and a forked child writes 8 to it.

    Args:
        actor: the process that has the tensors.
        tensors: the tensors that the interrupted call shares.
        interruption: the interruption, for the evidence.
        has_returned: whether the call returned. Then all tensors must be shared.
    """
    for is_shared, before, after in actor.run(write_in_child, tensors, 8):
        expected = [before[0], 8 if is_shared else 7]
        said = f"a child's write is seen as `is_shared` says ({interruption})"
        check.equal(after, expected, said)
        check.equal(before[1], 7, f"it keeps its values ({interruption})")
        if has_returned:
            said = f"what has returned has shared it ({interruption})"
            check.equal(is_shared, True, said)


def count_places_of_put(sender, receiver, message):
    """Put a message and receive it; return the number of places in the `put`."""
    to = receiver.name, "pipe"
    found = sender.run(count_places, "put", *to, message)
    receiver.get(sender, "pipe")
    return found


def interrupt_put(interruption, sender, receiver, message):
    """Interrupt the `put` of a message; return whether the call has returned."""
    receiver.unreceived[sender.name] += 1  # it may arrive, until all is received
    return interruption.run(sender, "put", receiver.name, "pipe", message)


def receive_up_to_next(sender, receiver, message):
    """Put a message once more; return what arrives before it, and what it contains.

    What arrives before it was put by the interrupted call.
    """
    sender.put({"again": message}, receiver, "pipe")
    found = []
    while not isinstance(arrived := receiver.get(sender, "pipe"), dict):
        found.append(arrived)
    receiver.unreceived.clear()
    return found, arrived["again"]


def check_arrived_once(received, interruption, has_returned):
    """Check that a message arrived once; it may be lost if its `put` did not return."""
    allowed = [1] if has_returned else [0, 1]
    said = f"it arrives once, or not at all if it is interrupted ({interruption})"
    check.equal(len(received) in allowed, True, said)


@clause("THREAD-9", channels=("pipe",), isolated=True)
def test_receive_that_is_interrupted_loses_its_own_message_at_most(owner, peer, stage):
    """The peer is interrupted while it gets a message; another one follows.

    What the interrupted call has not taken arrives before that.
    """

    def interrupt(one):
        tensor = owner.make([one.place, 8])
        owner.put(tensor, peer, "pipe")
        has_returned = one.run(peer, "get", owner.name, "pipe")
        found, again = receive_up_to_next(owner, peer, tensor)
        if one.judges_leaks:
            allowed = [0] if has_returned else [0, 1]
            said = f"it is received once, or lost if it is interrupted ({one})"
            check(len(found) in allowed, said)
            check_shared_memory(tensor, again, *found)

    def places():
        owner.put(owner.make([6, 8]), peer, "pipe")
        count = peer.run(count_places, "get", owner.name, "pipe")
        peer.unreceived.clear()
        return count

    interrupt_at_each_place(stage, (owner, peer), places, interrupt)


RACE_ROUNDS = 8


@clause(
    *("CHAN-5", "RESHARE-1", "SHARE-5"), profiles=("share", "identity"), pairwise=True
)
def test_threads_that_share_and_put_one_tensor_move_it_once(
    sender, receiver, bystander, channel
):
    """Threads share a new tensor, put it for both others, and read it, all at once."""
    for number in range(RACE_ROUNDS):
        tensor = sender.make([number, 51, 52])
        routes = [[actor.name, channel] for actor in (receiver, bystander)]
        found = sender.run(share_and_put_in_parallel, tensor, routes)
        addresses, values, shared = found
        check.equal(shared, [True, True], "it is shared when each call has returned")
        check.equal(len(set(addresses)), 1, "and stays where it is then")
        check.equal(values, [number, 51, 52], "who reads it meanwhile reads its values")
        arrived = [receiver.get(sender, channel), bystander.get(sender, channel)]
        with judging("CHAN-5"):
            check_shared_memory(tensor, *arrived)
        for one in (tensor, *arrived):
            one.drop()


@clause("START-1", "START-2", start_methods=("spawn", "forkserver"), vary=())
def test_threads_that_start_processes_at_once_mix_no_arguments(owner, start_method):
    """Three threads start a process each, with tensors of which each has its own."""
    tensors = [[owner.make([n, 53]), owner.make([10 + n, 54, 55])] for n in range(3)]
    limit = 3 * owner.host.timeouts.start
    codes = owner.run_within(limit, start_in_parallel, tensors, start_method)
    check.equal(
        owner.exit_codes(codes), [0, 0, 0], "each process found its tensors, and ended"
    )
    with judging("START-2"):
        for number, (short, long) in enumerate(tensors):
            check.equal(short.values(), [number + 1, 53], "each has written to its own")
            check.equal(long.values(), [11 + number, 54, 55], "once, to each of them")


@clause("THREAD-7", start_methods=("fork",), isolated=True)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_drop_that_is_interrupted_leaves_nothing(owner, stage, kind):
    """The owner drops one tensor after another, interrupted at each place in turn."""
    owner.run(interrupt_drops, kind, [8, 9])
    before = holdings_of(stage, owner)
    owner.run(interrupt_drops, kind, [8, 9])
    check_no_growth(before, stage, owner)


BULK_LENGTH = 9 << 20
"""The number of elements of a tensor of 36 MiB. Memory of this size goes back to the
system when it is freed, so a thread that still reads it crashes.
"""

LIST_LENGTH = 1 << 16
"""The number of elements of a tensor that is read as a list."""


def check_used_while_it_moves(tensor, length, reading, receiver, channel=""):
    """Let two threads use and move a tensor of ones; check what both processes have.

    Without a channel one thread shares it, and it is sent afterwards.
    """
    sender = tensor.actor
    route = [receiver.name, channel] if channel else []
    moving = sender.start(use_while_it_moves, tensor, length, reading, route)
    if channel:  # at once: a copy may not fit into the channel before it is read
        arrived = receiver.get(sender, channel)
    wrong, written = moving.answer()
    check.equal(wrong, [], "each read gives what was there")
    if not channel:
        arrived = sender.send(tensor, receiver)
    for one in (tensor, arrived):
        first, middle, last = (one.read(n) for n in (0, length // 2, length - 1))
        check.equal([first, middle], [2, 1], "what was written before is kept")
        check(last in range(1, written + 1), "what was written meanwhile, or before")
    for one in (tensor, arrived):
        one.drop()


@clause("THREAD-8", profiles=("share", "views"), views=("expanded",), may_corrupt=True)
def test_tensor_can_be_used_by_another_thread_while_it_is_shared(owner, peer):
    """Both share a tensor of 36 MiB, which a thread of theirs writes and clones."""
    for actor, other in ((owner, peer), (peer, owner)) * MOVES:
        tensor = actor.run(make_ones, BULK_LENGTH)
        check_used_while_it_moves(tensor, BULK_LENGTH, "clone", other)


@clause("THREAD-8", may_corrupt=True)
def test_tensor_can_be_used_by_another_thread_while_it_is_sent(
    sender, receiver, channel
):
    """A thread of the sender writes and lists tensors that another one puts."""
    for _ in range(MOVES):
        tensor = sender.run(make_long, LIST_LENGTH, 1)
        check_used_while_it_moves(tensor, LIST_LENGTH, "values", receiver, channel)
