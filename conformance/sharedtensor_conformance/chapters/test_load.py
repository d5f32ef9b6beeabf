"""Chapter LOAD: data loaders that end in a way that their authors did not plan.

The owner is the consumer, and starts the workers. Some tests cite clauses of other
chapters, and test them as a loader depends on them.
"""

import signal
from contextlib import contextmanager

import pytest

from sharedtensor_conformance.chapters.load_actions import (
    fill_buffers,
    get_batches,
    put_batches,
    send_from_reading_end,
    use_buffers,
)
from sharedtensor_conformance.chapters.message_actions import (
    get_numbered_messages,
    put_numbered_messages,
)
from sharedtensor_conformance.chapters.shared_steps import (
    check_no_growth,
    claimed_queues,
    holdings_of,
    judging,
    process_counts,
    wait_for_all,
)
from sharedtensor_conformance.harness import attempt, check, clause, eventually
from sharedtensor_conformance.harness.case.outcomes import Broken, DeadlineExceeded
from sharedtensor_conformance.harness.remote.channels import Channel

ENDLESS_BATCHES = 100_000
"""A number of batches so large that a worker never puts the last one."""

EPOCH_BATCHES = 100
"""The number of batches of an epoch."""

PER_WORKER = 3
"""The number of batches of each of several workers."""

SMALL_SIZE, LARGE_SIZE = 100, 30_000
"""The sizes of a batch in bytes, without its tensor. A pipe has room for only a few
large batches, and for a part of the next one.
"""

BUFFERS, ELEMENTS, ROUNDS = 3, 16, 100


def with_room_limit(kind):
    """Return a queue like `kind` whose `put` waits for room.

    The `put` of a simple queue always waits for room.
    """
    return "queue_of_two" if kind == "queue" else kind


def keep_putting(worker, channel, size=LARGE_SIZE):
    """Make a worker put batches without end; return the pending request."""
    return worker.start(put_batches, channel, 0, ENDLESS_BATCHES, size)


def partly_written_size(kind):
    """Return a size of batches in bytes of which the last one is written only in part.

    A pipe takes 64 KiB. The bounded queue takes only two batches, so these have to be
    larger.
    """
    return 100_000 if kind == "queue" else LARGE_SIZE


def wait_until_blocked(worker, pending, channel, consumer):
    """Wait until batches can be received and the worker waits in `put`.

    If a batch is written in parts, the worker has then written only a part of one.
    """
    there = lambda: channel.use(consumer, Channel.has_message)  # noqa: E731
    eventually(there, "batches can be received", worker.deadline)
    # The worker puts several batches before there is no room.
    eventually(pending.is_waiting, f"{worker.name} waits for room", worker.deadline)


def end_by_signal(worker, name):
    """End a worker by the signal `name`, whatever it does, and wait for its end."""
    if name == "SIGKILL":
        worker.kill()
    else:
        code = worker.terminate()
        check.equal(code, -signal.SIGTERM, f"SIGTERM ends {worker.name}")


@clause("LOAD-1", starts=True)
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_loader_that_is_left_early_leaves_nothing(owner, peer, stage, how):
    """The owner receives two of endless batches, ends two workers, drops the queue.

    It keeps what it has received.
    """

    def leave_early(kind):
        channel = owner.open_channel(with_room_limit(kind))
        workers = [owner.start_peer(arguments=channel) for _ in range(2)]
        pending = [keep_putting(worker, channel) for worker in workers]
        received = [channel.get(owner) for _ in range(2)]
        for worker, waiting in zip(workers, pending, strict=True):
            wait_until_blocked(worker, waiting, channel, owner)
        for worker in workers:
            end_by_signal(worker, how)
        for number, tensor, _ in received:
            check.equal(tensor.values(), [number, -number], "what was received stays")
            tensor.write(0, 7)
            onward = owner.send(tensor, peer)
            check.equal(onward.values(), [7, -number], "it can be written and sent on")
        channel.use(owner, Channel.close)
        channel.drop(owner)
        stage.end_extra()
        for actor in (owner, peer):
            actor.drop_all()

    for kind in claimed_queues(stage):
        leave_early(kind)
    before = holdings_of(stage, owner, peer)
    for kind in claimed_queues(stage):
        leave_early(kind)
    check_no_growth(before, stage, owner, peer)


@clause("LOAD-2", channels=("queue",), starts=True)
def test_worker_that_has_cancelled_the_join_exits_though_nobody_receives(owner):
    """A child puts 3 MB that nobody receives, calls `cancel_join_thread`, and exits."""
    channel = owner.open_channel("queue")
    worker = owner.start_peer(arguments=channel)
    worker.run(put_batches, channel, 0, EPOCH_BATCHES, LARGE_SIZE)
    channel.use(worker, Channel.cancel_join_thread)
    check.equal(worker.leave(), 0, "it exits normally")


@clause("LOAD-7", channels=("queue",), starts=True)
@pytest.mark.parametrize("how", ["killed", "exits"])
@pytest.mark.parametrize("kind", ["queue", "joinable_queue"])
def test_worker_exits_though_its_consumer_has_gone(owner, kind, how):
    """A child puts 3 MB, its consumer is killed or exits, the owner drops the queue.

    The child itself could receive the messages; no other process can.
    """
    channel = owner.open_channel(kind)
    consumer, worker = (owner.start_peer(arguments=channel) for _ in range(2))
    worker.run(put_batches, channel, 0, EPOCH_BATCHES, LARGE_SIZE)
    channel.use(owner, Channel.close)
    channel.drop(owner)
    if how == "killed":
        consumer.kill()
    else:
        consumer.leave()
    check.equal(worker.leave(), 0, "it exits normally")


@clause("LOAD-7", prefers="fork", channels=("queue",), starts=True)
def test_workers_that_could_receive_from_each_other_exit_at_once(owner):
    """Two children have two queues. Each puts 3 MB on its own queue, and exits."""
    channels = [owner.open_channel("queue") for _ in range(2)]
    workers = [owner.start_peer(arguments=channels) for _ in channels]
    for worker, channel in zip(workers, channels, strict=True):
        worker.run(put_batches, channel, 0, EPOCH_BATCHES, LARGE_SIZE)
    for channel in channels:
        channel.use(owner, Channel.close)
        channel.drop(owner)
    for worker in workers:
        worker.start_leaving()
    for worker in workers:
        check.equal(worker.wait_for_exit(), 0, "it exits normally")


FILLING_COUNT, FILLING_SIZE = 1000, 10_000
"""The number of small messages, and the bytes in each. They fill the pipe even if the
implementation puts the content of large messages elsewhere.
"""


def fill_pipe(worker, channel):
    """Put more than fits into a pipe, in large messages and in many small ones."""
    worker.run(put_batches, channel, 0, EPOCH_BATCHES, LARGE_SIZE)
    worker.run(put_numbered_messages, channel, 0, FILLING_COUNT, FILLING_SIZE)


ORDERS = (
    ("cancel", "put", "put a pile"),
    ("put", "cancel", "put a pile"),
    ("put a pile", "cancel", "close"),
    ("put a pile", "close", "cancel"),
    ("cancel", "put a pile", "close"),
)
"""Sequences of what a worker does with a queue before it exits."""


@clause("LOAD-2", prefers="fork", channels=("queue",))
@pytest.mark.parametrize("kind", ["queue", "joinable_queue"])
def test_worker_may_cancel_the_join_at_any_time(owner, kind):
    """Children put on two queues, cancel the join of both, now earlier and now later.

    Nobody receives what they put.
    """
    does = {
        "cancel": lambda worker, channel: channel.use(
            worker, Channel.cancel_join_thread
        ),
        "close": lambda worker, channel: channel.use(worker, Channel.close),
        "put": lambda worker, channel: channel.put(worker, worker.make([1, 2])),
        "put a pile": fill_pipe,
    }
    for order in ORDERS:
        channels = [owner.open_channel(kind) for _ in range(2)]
        worker = owner.start_peer(arguments=channels)
        for step in order:
            for channel in channels:
                does[step](worker, channel)
        check.equal(worker.leave(), 0, f"it exits normally ({', '.join(order)})")


@clause("LIFE-5", channels=("queue",), starts=True)
def test_batches_without_room_arrive_from_a_worker_that_exits(owner):
    """A child puts 3 MB and returns; the owner receives all while it is exiting."""
    channel = owner.open_channel("queue")
    worker = owner.start_peer(arguments=channel)
    worker.run(put_batches, channel, 0, EPOCH_BATCHES, LARGE_SIZE)
    worker.start_leaving()
    wrong = owner.run(get_batches, channel, 0, EPOCH_BATCHES, LARGE_SIZE)
    check.equal(wrong, [], "each batch arrives")
    check.equal(worker.wait_for_exit(), 0, "the worker exits normally")


@clause("LOAD-3", starts=True)
def test_worker_that_was_killed_takes_nothing_from_the_others(owner, stage):
    """Two children put three batches each, one is killed, the other puts more."""
    for kind in claimed_queues(stage):
        channel = owner.open_channel(kind)
        killed, other = (owner.start_peer(arguments=channel) for _ in range(2))
        for number in range(PER_WORKER):
            for worker, first in ((killed, 0), (other, 10)):
                worker.run(put_batches, channel, first + number, 1, SMALL_SIZE)
        channel.use(killed, Channel.flush)
        killed.kill()
        other.run(put_batches, channel, 10 + PER_WORKER, PER_WORKER, SMALL_SIZE)
        attempts = [
            attempt(lambda c=channel: c.get(owner)) for _ in range(3 * PER_WORKER)
        ]
        received = [arrived for arrived, refused in attempts if refused is None]
        for number, tensor, _ in received:
            check.equal(tensor.values(), [number, -number], "each has its values")
        numbers = [number for number, _, _ in received]
        others = [number for number in numbers if number >= 10]
        check.equal(
            others, list(range(10, 10 + 2 * PER_WORKER)), "the other's are all there"
        )
        of_killed = [number for number in numbers if number < 10]
        check.equal(of_killed, sorted(set(of_killed)), "each comes once, in order")
        check.equal(channel.get_within(owner, 0), [], "the queue is empty then")
        check.equal(other.leave(), 0, "the other ends")


@clause("LOAD-4", starts=True)
def test_worker_that_is_killed_while_it_puts_does_not_stop_the_others(owner, stage):
    """A child is killed while it waits in the middle of a batch; another puts one.

    The owner receives until it has the other's.
    """
    for kind in claimed_queues(stage):
        channel = owner.open_channel(with_room_limit(kind))
        killed, other = (owner.start_peer(arguments=channel) for _ in range(2))
        pending = keep_putting(killed, channel, partly_written_size(kind))
        wait_until_blocked(killed, pending, channel, owner)
        killed.kill()
        waiting = other.start(put_batches, channel, ENDLESS_BATCHES, 1, SMALL_SIZE)
        found = []
        while ENDLESS_BATCHES not in found:
            arrived, refused = attempt(lambda c=channel: c.get(owner))
            found.append(None if refused else arrived[0])
            check(
                len(found) < EPOCH_BATCHES * PER_WORKER, "the other's batch is received"
            )
        numbers = [number for number in found if number is not None]
        check.equal(numbers, sorted(set(numbers)), "each batch is received once")
        waiting.answer()
        check.equal(other.leave(), 0, "the other ends")


@clause("LOAD-5", channels=("pipe",), vary=("strategy", "start_method"))
def test_pipe_whose_writers_have_gone_says_so(owner):
    """A child closes its writing end of one pipe, and is killed with that of another.

    The second time the consumer, which is another child, waits already.
    """
    pipes = [owner.open_channel("pipe") for _ in range(2)]
    consumer, worker = (owner.start_peer(arguments=pipes) for _ in range(2))
    for pipe in pipes:
        pipe.use(owner, Channel.close)
        pipe.use(consumer, Channel.close_writer)
        worker.run(put_batches, pipe, 0, PER_WORKER, SMALL_SIZE)
    closed, killed = pipes
    closed.use(worker, Channel.close_writer)
    for pipe in pipes:
        wrong = consumer.run(get_batches, pipe, 0, PER_WORKER, SMALL_SIZE)
        check.equal(wrong, [], "what was sent arrives")
    check_end_of_pipe(lambda: closed.get(consumer), "its writing end was closed")
    waiting = killed.waiting(consumer)
    eventually(waiting.is_waiting, "the consumer waits", consumer.deadline)
    worker.kill()
    check_end_of_pipe(waiting.answer, "its writer was killed")


def check_end_of_pipe(receive, why):
    """Check that a pipe reports its end: `receive` raises `EOFError`."""
    _, refused = attempt(receive)
    found = refused.type if refused else None
    check.equal(found, "EOFError", f"the pipe says that it has ended: {why}")


UNREAD_COUNTS = (0, 1, 40)
"""The numbers of messages that a process has not read when it ends."""


@clause(
    *("LOAD-5", "LIFE-5"), prefers="fork", channels=("pipe",), profiles=("lifetime",)
)
@pytest.mark.parametrize("ends_by", ["closing", "exiting"])
def test_what_was_sent_arrives_though_its_sender_has_read_nothing(owner, ends_by):
    """Children send on pipes of two directions, and end before they read what came."""
    for unread in UNREAD_COUNTS:
        pipe = owner.open_channel("duplex_pipe")
        child = owner.start_peer(arguments=pipe)
        pipe.use(owner, Channel.close_writer)
        pipe.use(child, Channel.close_reader)
        owner.run(send_from_reading_end, pipe, unread)
        worker_puts = (pipe, 0, PER_WORKER, SMALL_SIZE)
        child.run(put_numbered_messages, *worker_puts)
        pipe.put(child, {"last": child.make([unread, 9])})
        if ends_by == "closing":
            pipe.use(child, Channel.close_writer)
        else:
            check.equal(child.leave(), 0, "it exits normally")
        lost = owner.run(get_numbered_messages, *worker_puts, 0)
        check.equal(lost, [], f"what is lost where {unread} messages were not read")
        with judging("LIFE-5"):
            arrived = pipe.get(owner)["last"]
            check.equal(arrived.values(), [unread, 9], "the tensor behind arrives")
        _, refused = attempt(lambda p=pipe: p.get(owner))
        # If messages were not read, the kernel may report a reset connection.
        told = ("EOFError", *(("ConnectionResetError",) if unread else ()))
        check(refused and refused.type in told, "the pipe says that it has ended")


@clause("LOAD-6", vary=("strategy", "start_method"))
def test_workers_that_come_and_go_add_nothing(owner, peer, stage):
    """In each of three epochs a new child puts batches, the owner gets all of them."""

    def epoch():
        channels = [
            owner.open_channel(with_room_limit(kind)) for kind in claimed_queues(stage)
        ]
        worker = owner.start_peer(arguments=channels)
        for channel in channels:
            pending = worker.start(put_batches, channel, 0, EPOCH_BATCHES, SMALL_SIZE)
            wrong = owner.run(get_batches, channel, 0, EPOCH_BATCHES, SMALL_SIZE)
            check.equal(wrong, [], "each batch arrives")
            pending.answer()
        check.equal(worker.leave(), 0, "the worker exits")
        stage.end_extra()
        for channel in channels:
            channel.use(owner, Channel.close)
            channel.drop(owner)

    owner.send(owner.make([1, 2]), peer).drop()
    epoch()
    before = process_counts(stage, owner, peer)
    for _ in range(2):
        epoch()
    now = lambda: process_counts(stage, owner, peer)  # noqa: E731
    as_before = lambda: all(map(int.__le__, now(), before))  # noqa: E731
    sentence = "threads, processes and temporary files are as before"
    eventually(as_before, sentence, stage.grace, found=lambda: [before, now()])


@clause("LIFE-7", profiles=("lifetime",), starts=True)
def test_nothing_is_left_of_the_batches_of_a_worker_that_outlives_epochs(owner, stage):
    """A child puts three hundred batches; after the first hundred, nothing is added."""
    channels = [
        owner.open_channel(with_room_limit(kind)) for kind in claimed_queues(stage)
    ]
    worker = owner.start_peer(arguments=channels)

    def epoch():
        for channel in channels:
            pending = worker.start(put_batches, channel, 0, EPOCH_BATCHES, SMALL_SIZE)
            wrong = owner.run(get_batches, channel, 0, EPOCH_BATCHES, SMALL_SIZE)
            check.equal(wrong, [], "each batch arrives")
            pending.answer()

    epoch()
    before = holdings_of(stage, owner, worker)
    for _ in range(2):
        epoch()
    check_no_growth(before, stage, owner, worker)


@contextmanager
def circulating_buffers(owner, kind):
    """Start two children that fill three buffers, which circulate in two queues.

    Yield a function and the children. The function makes the owner use the buffers and
    check their content.
    """
    empty, filled = owner.open_channel(kind), owner.open_channel(with_room_limit(kind))
    workers = [owner.start_peer(arguments=[empty, filled]) for _ in range(2)]
    made = [owner.make([-1] * ELEMENTS) for _ in range(BUFFERS)]
    pending = [worker.start(fill_buffers, empty, filled) for worker in workers]

    def use():
        arguments = empty, filled, made, ROUNDS
        wrong = owner.run(use_buffers, *arguments)
        check.equal(wrong, [], "each buffer has what was filled in last, in all places")

    try:
        yield use, workers
    except DeadlineExceeded:
        raise  # the owner may not answer either; all processes are replaced
    except Broken:
        for worker in workers:
            worker.kill()  # it may wait for a buffer
        raise
    for _ in workers:
        empty.put(owner, None)
    wait_for_all(*pending)


@clause("RESHARE-2", "MEM-1", starts=True)
def test_buffers_that_come_back_are_the_same_memory(owner, stage):
    """Two children fill three buffers of the owner a hundred times, in turn."""
    for kind in claimed_queues(stage):
        with circulating_buffers(owner, kind) as (use, _):
            use()


@clause("RESHARE-7", starts=True)
def test_buffers_that_come_back_add_nothing(owner, stage):
    """The same, twice: nothing is added the second time."""
    for kind in claimed_queues(stage):
        with circulating_buffers(owner, kind) as (use, workers):
            use()
            before = holdings_of(stage, owner, *workers)
            use()
            check_no_growth(before, stage, owner, *workers)
