"""Chapter LIFE: how long tensors and messages stay valid, and what is left of them."""

import os
from collections import Counter
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from sharedtensor_conformance.chapters.groups import start_together
from sharedtensor_conformance.chapters.life_actions import (
    drop_in_a_thread,
    execute_program,
    get_clones,
    hide,
    put_clones,
)
from sharedtensor_conformance.chapters.message_actions import (
    UNPICKLING_ERRORS,
    forget_exceptions,
    get_and_keep_exception,
    get_numbered_messages,
    make_padding,
    put_numbered_messages,
    unpicklable,
    unreceivable,
)
from sharedtensor_conformance.chapters.pool_actions import (
    add_beside,
    results_of_recycled_workers,
    terminate_early,
)
from sharedtensor_conformance.chapters.pools import pool_in
from sharedtensor_conformance.chapters.process_actions import (
    end,
    fork_by_hand,
    start_in_parallel,
    start_in_vain,
)
from sharedtensor_conformance.chapters.shared_steps import (
    LEAK_ROUNDS,
    LENGTHS,
    PROMPT_EXIT,
    QUEUE_KINDS,
    check_no_growth,
    check_shared_memory,
    claimed_queues,
    file_of,
    fork_with,
    holdings_of,
    judging,
    leftovers,
    overwrite_freed_memory,
    process_counts,
    sends_when_pickled,
    share_in_another_program,
    share_once_more,
    share_separately,
    unthreaded_channel,
    wait_until_receivable,
)
from sharedtensor_conformance.chapters.storage_actions import (
    drop_storages,
    new_storages,
)
from sharedtensor_conformance.chapters.system_changes import require_no_other_cleaner
from sharedtensor_conformance.chapters.tensor_actions import (
    collect_garbage,
    drop_others,
    make_long,
    make_many,
    make_many_long,
    mapped_sizes,
    positions_with_wrong_first_value,
    positions_with_wrong_values,
)
from sharedtensor_conformance.chapters.worker_tasks import (
    add_and_return,
    add_and_return_in_vain,
)
from sharedtensor_conformance.harness import attempt, check, clause, eventually, refusal
from sharedtensor_conformance.harness.case.checks import tally
from sharedtensor_conformance.harness.kernel.process_tree import wait_until
from sharedtensor_conformance.harness.remote import wire
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.channels import Channel

MANY_STORAGES = 300
"""The number of storages in one message: more than the descriptors of one packet."""


FILLING_COUNT = 1000
FILLING_SIZE = 10_000
"""The size in bytes of each of `FILLING_COUNT` messages, which do not fit into a pipe
or socket.
"""

LONG_MESSAGE_COUNT, LONG_MESSAGE_SIZE = 10, 100_000
"""The number of messages, and the size in bytes of each, of which none fits into a pipe
of bytes.
"""

TENSOR_MESSAGE_COUNT, TENSOR_MESSAGE_SIZE = 24, 30_000
"""The number of messages with many tensors each, and the number of bytes beside them.
Several such messages do not fit into a pipe or socket. Together they have fewer tensors
than most systems permit a process to have descriptors.
"""

LARGE_SIZE, LARGE_COUNT = 1 << 20, 20
"""The size of a tensor in bytes, and the number of these tensors. Together they are
larger than a segment of several storages may be.
"""

EXIT_CODES = {"by os._exit": 0, "by an exception": 1, "by SIGTERM": -15}
"""The ways in which processes end, other than by returning, and their exit codes."""

ERROR_NAMES = tuple(UNPICKLING_ERRORS)
"""The names of the exceptions that an object raises when it is unpickled."""


def check_values_writable(tensor, expected):
    """Check the values of `tensor`, write one of them, and check all values again."""
    check.equal(tensor.values(), expected, "it has its values")
    changed = [-expected[0], *expected[1:]]
    tensor.write(0, changed[0])
    check.equal(tensor.values(), changed, "it can be written")


@clause("LIFE-1")
def test_received_tensor_outlives_the_tensor_of_its_sender(sender, receiver, channel):
    """The sender drops its tensor and makes others; the receiver keeps what it got."""
    tensor = sender.make([1, 2, 3, 4])
    arrived = sender.send(tensor, receiver, channel)
    tensor.drop()
    held = overwrite_freed_memory(sender)
    check_values_writable(arrived, [1, 2, 3, 4])
    check.equal(held[0].values(), [200, 201, 202, 203], "no other tensor is hit")


@clause("LIFE-1", profiles=("lifetime",))
def test_receivers_share_when_the_sender_has_dropped_its_tensor(
    sender, receiver, bystander
):
    """The sender sends to both others and drops; each of them keeps the tensor."""
    tensor = sender.make([5, 6, 7])
    first, second = (sender.send(tensor, to) for to in (receiver, bystander))
    tensor.drop()
    onward = receiver.send(first, sender)
    first.drop()
    for kept in (second, onward):
        check.equal(kept.values(), [5, 6, 7], "it has its values")
    check_values_writable(second, [5, 6, 7])


@clause("LIFE-2", vary=("strategy", "start_method"))
def test_message_in_flight_keeps_its_data(sender, receiver, channel):
    """The sender drops each of three tensors before the receiver gets the first."""
    rows = [[10 * n + 1, 10 * n + 2, 10 * n + 3, 10 * n + 4] for n in range(3)]
    for row in rows:
        tensor = sender.make(row)
        sender.put(tensor, receiver, channel)
        tensor.drop()
    held = overwrite_freed_memory(sender)
    arrived = [receiver.get(sender, channel) for _ in rows]
    for tensor, row in zip(arrived, rows, strict=True):
        check_values_writable(tensor, row)
    check.equal(held[-1].values(), [270, 271, 272, 273], "no other tensor is hit")


@clause("LIFE-2")
def test_message_in_flight_keeps_what_its_sender_had_received(
    sender, receiver, bystander, channel
):
    """The receiver sends on what it got; it and the sender drop before the receive."""
    tensor = sender.make([15, 16, 17])
    arrived = sender.send(tensor, receiver, channel)
    receiver.put(arrived, bystander, channel)
    arrived.drop()
    tensor.drop()
    check_values_writable(bystander.get(receiver, channel), [15, 16, 17])


@clause("LIFE-3", vary=("strategy", "start_method"))
def test_received_tensor_outlives_the_exit_of_its_sender(owner, peer):
    """A child sends a tensor to the owner and exits; the owner sends it on."""
    child = owner.start_peer()
    arrived = child.send(child.make([21, 22, 23]), owner)
    check.equal(child.leave(), 0, "the child exits normally")
    check_values_writable(arrived, [21, 22, 23])
    onward = owner.send(arrived, peer)
    check.equal(onward.values(), [-21, 22, 23], "it arrives where it is sent on")


@clause("LIFE-3", isolated=True)
def test_tensor_of_an_exited_sender_is_kept_by_two_receivers(stage):
    """The peer sends to both others and exits; they keep the tensor in turn."""
    with stage.fresh() as fresh:
        tensor = fresh.peer.make([24, 25, 26])
        first = fresh.peer.send(tensor, fresh.bystander)
        second = fresh.peer.send(tensor, fresh.owner)
        fresh.peer.leave()
        check.equal(first.values(), [24, 25, 26], "the bystander has the values")
        second.drop()
        check_values_writable(first, [24, 25, 26])
        onward = fresh.bystander.send(first, fresh.owner)
        check.equal(onward.values(), [-24, 25, 26], "the owner gets it again")


@clause("LIFE-4", vary=("strategy", "start_method"))
def test_received_tensor_outlives_the_killing_of_its_sender(owner, peer):
    """A child sends a tensor to the owner and is killed; the owner sends it on."""
    child = owner.start_peer()
    arrived = child.send(child.make([31, 32, 33]), owner)
    child.kill()
    check_values_writable(arrived, [31, 32, 33])
    onward = owner.send(arrived, peer)
    check.equal(onward.values(), [-31, 32, 33], "it arrives where it is sent on")


@clause("LIFE-4", isolated=True)
def test_tensor_of_a_killed_owner_is_kept_by_two_peers(stage):
    """The owner sends to both peers and is killed; one sends it to the other."""
    with stage.fresh() as fresh:
        tensor = fresh.owner.make([34, 35, 36])
        first = fresh.owner.send(tensor, fresh.peer)
        second = fresh.owner.send(tensor, fresh.bystander)
        fresh.owner.kill()
        for kept in (first, second):
            check.equal(kept.values(), [34, 35, 36], "each peer has the values")
        second.drop()
        check_values_writable(first, [34, 35, 36])
        onward = fresh.peer.send(first, fresh.bystander)
        check.equal(onward.values(), [-34, 35, 36], "the bystander gets it again")


@clause("LIFE-5", vary=("strategy", "start_method"))
def test_message_survives_the_exit_of_its_sender(owner, channel, stage):
    """A child puts messages and exits; the owner receives them afterwards.

    An object in the last one puts another message meanwhile, on a channel of its own
    where there is one: so do objects that log what is sent.
    """
    child, logs = owner.start_peer(), unthreaded_channel(stage)
    child.put(child.make([41, 42, 43]), owner, channel)
    child.put({"later": child.make([44, 45])}, owner, channel)
    logging = sends_when_pickled(child, [child.make([46])], owner, logs)
    child.put([child.make([47]), logging, child.make([48])], owner, channel)
    check.equal(child.leave(), 0, "the child exits normally")
    check_values_writable(owner.get(child, channel), [41, 42, 43])
    later = owner.get(child, channel)["later"]
    check.equal(later.values(), [44, 45], "the second message arrives as well")
    check.equal(owner.get(child, logs)[0].values(), [46], "and what the object put")
    before, said, after = owner.get(child, channel)
    check.equal(said, "it was sent", "and the object itself")
    check.equal(before.values(), [47], "and the tensor before it")
    check.equal(after.values(), [48], "and the one after it")


@clause("LIFE-5", channels=("queue",), starts=True)
@pytest.mark.parametrize("queues_are", ["closed", "open"])
def test_messages_that_wait_for_room_survive_the_exit_of_their_sender(
    owner, stage, queues_are
):
    """A child puts 10 MB on each of two queues, closes both or none, and exits.

    It has to wait until all is written. One that does not is given the time to end
    before the owner receives, and so makes room.
    """
    channels = [owner.open_channel(kind) for kind in ("queue", "joinable_queue")]
    child = owner.start_peer(arguments=channels)
    for channel in channels:
        child.run(put_numbered_messages, channel, 0, FILLING_COUNT, FILLING_SIZE)
        channel.put(child, {"last": child.make([49, 50])})
        if queues_are == "closed":
            channel.use(child, Channel.close)
    child.start_leaving()
    wait_until(child.process.has_ended, PROMPT_EXIT)
    for channel in channels:
        pile = (channel, 0, FILLING_COUNT, FILLING_SIZE, stage.grace)
        lost = owner.run(get_numbered_messages, *pile)
        check.equal(lost, [], "the numbers of messages that do not arrive")
        arrived = channel.get(owner)["last"]
        check.equal(arrived.values(), [49, 50], "the tensor behind them arrives")
    status = stage.ends.wait_for_exit(child.process)
    check.equal(status, 0, "the child exits normally")


@clause("LIFE-5", channels=("queue",), starts=True, vary=(), prefers="fork")
def test_only_message_that_waits_for_room_survives_the_exit_of_its_sender(owner, stage):
    """Children put more or fewer messages, and exit; all that they have put arrive.

    One that ends before the owner receives has put at most what a queue takes. The
    numbers approach that from both sides, so they include the one more that waits.
    """
    fits, waits = 0, FILLING_COUNT
    while waits - fits > 1:
        count = (fits + waits) // 2
        channel = owner.open_channel("queue")
        child = owner.start_peer(arguments=[channel])
        pile = (channel, 0, count, FILLING_SIZE)
        child.run(put_numbered_messages, *pile)
        child.start_leaving()
        has_ended = wait_until(child.process.has_ended, PROMPT_EXIT)
        lost = owner.run(get_numbered_messages, *pile, stage.grace)
        check.equal(lost, [], f"the numbers of messages, of {count}, that are lost")
        status = stage.ends.wait_for_exit(child.process)
        check.equal(status, 0, "the child exits normally")
        stage.end_extra()
        fits, waits = (count, waits) if has_ended else (fits, count)


@clause("LIFE-5", vary=(), isolated=True)
def test_message_between_peers_survives_the_exit_of_its_sender(stage, channel):
    """The peer puts a message for the bystander and exits; the bystander gets it."""
    with stage.fresh() as fresh:
        tensor = fresh.peer.make([46, 47, 48])
        fresh.peer.put(tensor, fresh.bystander, channel)
        fresh.peer.leave()
        check_values_writable(fresh.bystander.get(fresh.peer, channel), [46, 47, 48])


@clause("LIFE-5", isolated=True, vary=("strategy", "start_method"))
def test_message_survives_the_exit_of_the_program_that_put_it(stage):
    """The owner, which is the main program, puts on each channel and exits.

    It waits for the peer, its child, which receives once the owner has had the time to
    do all that it does before that.
    """
    with stage.fresh() as fresh:
        channels = fresh.implementation.channels
        for number, channel in enumerate(channels):
            tensor = fresh.owner.make([141 + number, 142])
            fresh.owner.put(tensor, fresh.peer, channel)
            tensor.drop()
        fresh.owner.start_leaving()
        fresh.owner.process.disconnect()
        wait_until(fresh.owner.process.has_ended, PROMPT_EXIT)
        for number, channel in enumerate(channels):
            wait_until_receivable(fresh.owner, fresh.peer, channel)
            arrived = fresh.peer.get(fresh.owner, channel)
            check_values_writable(arrived, [141 + number, 142])
        for child in fresh.running():
            child.start_leaving()
        check.equal(fresh.owner.wait_for_exit(), 0, "the program exits normally")


@clause("LIFE-6", vary=("strategy", "start_method"))
def test_receiving_from_a_killed_child_gives_the_data_or_an_exception(owner, channel):
    """A child sends a message and is killed; the owner receives."""
    child = owner.start_peer()
    child.put(child.make([51, 52, 53]), owner, channel)
    wait_until_receivable(child, owner, channel)
    child.kill()
    arrived, raised = attempt(lambda: owner.get(child, channel))
    if raised is None:
        check.equal(arrived.values(), [51, 52, 53], "it has the values that were sent")


@clause("LIFE-6", starts=True)
def test_receiving_from_a_child_that_ended_gives_the_data_or_an_exception(
    owner, channel, stage
):
    """Children send a message and end in each way but normally; the owner receives."""
    for how in EXIT_CODES:
        child = owner.start_peer()
        child.put(child.make([57, 58, 59]), owner, channel)
        wait_until_receivable(child, owner, channel)
        child.run_to_end(end, how)
        arrived, raised = attempt(lambda child=child: owner.get(child, channel))
        if raised is None:
            check.equal(arrived.values(), [57, 58, 59], f"it has its values ({how})")
        stage.end_extra()


@clause("LIFE-6", vary=(), isolated=True)
def test_receiving_from_a_killed_owner_gives_the_data_or_an_exception(stage, channel):
    """The owner sends a message to the peer and is killed; the peer receives."""
    with stage.fresh() as fresh:
        fresh.owner.put(fresh.owner.make([54, 55, 56]), fresh.peer, channel)
        wait_until_receivable(fresh.owner, fresh.peer, channel)
        fresh.owner.kill()
        arrived, raised = attempt(lambda: fresh.peer.get(fresh.owner, channel))
        if raised is None:
            check.equal(arrived.values(), [54, 55, 56], "it has the values sent")


@clause("LIFE-6", channels=("pipe",), starts=True)
def test_pipe_of_a_child_that_was_killed_amid_a_message_ends(owner, stage):
    """A child, the only writer, is killed while it waits; then the owner receives.

    Where long messages are written in parts, the child waits for room, and a part of
    one is in the pipe. Where all have room, the child waits for the next request.
    """
    pipe = owner.open_channel("pipe")
    child = owner.start_peer(arguments=pipe)
    pipe.use(owner, Channel.close_writer)
    pile = (pipe, 0, LONG_MESSAGE_COUNT, LONG_MESSAGE_SIZE)
    more = (pipe, 0, LONG_MESSAGE_COUNT + 1, LONG_MESSAGE_SIZE, stage.grace)
    writing = child.start(put_numbered_messages, *pile)
    has_come = lambda: pipe.use(owner, Channel.has_message)  # noqa: E731
    eventually(has_come, "a message, or a part of one, has come", owner.deadline)
    eventually(writing.is_waiting, "the child waits", child.deadline)
    child.kill()
    with refusal("receiving raises when all whole messages are received") as refused:
        owner.run(get_numbered_messages, *more)
    kinds = {"EOFError", "OSError"} & set(refused.error.bases)
    check(kinds, f"it says that the pipe has ended, not: {refused.error}")


@clause("LIFE-7")
def test_nothing_is_left_of_tensors_that_were_sent_and_dropped(
    sender, receiver, channel, stage
):
    """Both sides drop what they sent and got, now one first and now the other."""

    def send_and_drop(number):
        tensor = sender.make([number, 62, 63])
        arrived = sender.send([tensor, tensor], receiver, channel)[1]
        check.equal(arrived.values(), [number, 62, 63], "the tensor arrives")
        for dropped in (tensor, arrived)[:: -1 if number % 2 else 1]:
            dropped.drop()

    send_and_drop(60)
    before = holdings_of(stage, sender, receiver)
    for number in range(LEAK_ROUNDS):
        send_and_drop(number)
    check_no_growth(before, stage, sender, receiver)


@clause("LIFE-7")
def test_nothing_is_left_however_large_the_storage_was(sender, receiver, stage):
    """Both sides drop tensors of each size; the largest come last, and once more."""

    def send_and_drop(length):
        tensor = sender.run(make_long, length, 61)
        arrived = sender.send(tensor, receiver)
        check.equal(arrived.read(length - 1), 61, "the tensor arrives")
        tensor.drop()
        arrived.drop()

    send_and_drop(1)
    before = holdings_of(stage, sender, receiver)
    for length in (*LENGTHS, LENGTHS[-1]):
        send_and_drop(length)
    check_no_growth(before, stage, sender, receiver)


OWN_SEGMENT_LENGTH = 8_300
"""The number of elements of 8 bytes of a tensor that is too large to share a segment
with others.
"""

STORAGE_COUNTS = (2, 250, 257, 340, 450)
"""The numbers of storages in one message. The size of their handles grows with them."""


@clause(
    *("LIFE-2", "LIFE-7", "FD-6", "FS-2", "FS-8"),
    channels=("queue",),
    dtypes=("float64",),
    mainly="LIFE-2",
    in_flight=max(STORAGE_COUNTS),
)
def test_message_with_many_large_tensors_outlives_all_of_them(sender, receiver, stage):
    """The sender puts more and more tensors in one message and drops all of them.

    Then the receiver gets them.
    """
    sender.send(sender.make([1, 2]), receiver, "queue").drop()
    before = holdings_of(stage, sender, receiver)
    for count in STORAGE_COUNTS:
        made = sender.run(make_many_long, count, OWN_SEGMENT_LENGTH, "float64")
        sender.put(made, receiver, "queue")
        sender.run(Actor.drop, *(each.key for each in made))
        arrived = receiver.get(sender, "queue")
        check.equal(len(arrived), count, "all tensors arrive")
        wrong = receiver.run(positions_with_wrong_first_value, arrived, 1)
        check.equal(wrong, [], f"of {count}, the places of those with other values")
        receiver.run(Actor.drop, *(each.key for each in arrived))
    check_no_growth(before, stage, sender, receiver)


@clause("LIFE-7", profiles=("share",))
def test_nothing_is_left_of_what_its_receiver_held_longest(sender, receiver, stage):
    """The sender drops each tensor when it has put it; the receiver drops many at once.

    They are more than fit into a file that several may have. This is done so often that
    one file that stays each time is more than may be kept.
    """
    source = sender.run(make_long, LARGE_SIZE // 4, 0)
    held = receiver.run(new_storages)
    route = (receiver.name, unthreaded_channel(stage))

    def send_and_drop(first):
        numbers = list(range(first, first + LARGE_COUNT))
        sender.run(put_clones, source, numbers, *route)
        found = receiver.run(
            get_clones,
            held,
            len(numbers),
            sender.name,
            unthreaded_channel(stage),
        )
        check.equal(found, numbers, "each arrives with its value")
        receiver.run(drop_storages, held, numbers)

    send_and_drop(1)
    before = holdings_of(stage, sender, receiver)
    for number in range(stage.kept + 3):
        send_and_drop(100 * number)
    check_no_growth(before, stage, sender, receiver)


@clause("LIFE-7", start_methods=("fork",), channels=("queue",))
def test_child_that_is_forked_while_messages_wait_keeps_nothing_of_them(owner, stage):
    """The owner forks while tensors wait in its queue for room; then it gets all.

    All is dropped, and the child lives on. First it is forked while others wait.
    """

    def put(channel, count):
        owner.run(put_numbered_messages, channel, 0, FILLING_COUNT, FILLING_SIZE)
        for number in range(count):
            tensor = owner.make([number, 68])
            channel.put(owner, tensor)
            tensor.drop()

    def get(channel, count):
        pile = (channel, 0, FILLING_COUNT, FILLING_SIZE, stage.grace)
        lost = owner.run(get_numbered_messages, *pile)
        check.equal(lost, [], "the numbers of messages that do not arrive")
        for number in range(count):
            arrived = channel.get(owner)
            check.equal(arrived.values(), [number, 68], "the tensors arrive")
            arrived.drop()

    check_forked_child_keeps_nothing(put, get, owner, stage)


@clause(
    "LIFE-7",
    start_methods=("fork",),
    channels=("queue",),
    in_flight=LEAK_ROUNDS * TENSOR_MESSAGE_COUNT,
)
def test_child_that_is_forked_while_a_message_is_written_keeps_nothing_of_it(
    owner, stage
):
    """The same while a message with tensors waits in the middle of being written.

    Several such messages are more than the system takes at once.
    """

    def put(channel, count):
        ballast = owner.run(make_padding, TENSOR_MESSAGE_SIZE)
        for _ in range(TENSOR_MESSAGE_COUNT):
            made = owner.run(make_many, count, 66)
            channel.put(owner, [*share_separately(stage, owner, made), ballast])
            owner.run(Actor.drop, *(each.key for each in made))
        ballast.drop()

    def get(channel, count):
        for _ in range(TENSOR_MESSAGE_COUNT):
            *arrived, ballast = channel.get(owner)
            wrong = owner.run(positions_with_wrong_values, arrived, 66)
            check.equal(wrong, [], "the places of tensors with other values")
            owner.run(Actor.drop, *(each.key for each in [*arrived, ballast]))

    check_forked_child_keeps_nothing(put, get, owner, stage)


def check_forked_child_keeps_nothing(put, get, owner, stage):
    """Fork a child between `put` and `get`; check that it keeps none of the messages.

    The descriptors and mappings of a child that was forked while many tensors were
    waiting are compared with those of a child that was forked while none were.

    Args:
        put: puts a number of tensors on a channel, in one message or in several.
        get: receives all of them.
        owner: the process that forks.
        stage: the stage of the owner.
    """
    waiting = stage.implementation.kept_segments + LEAK_ROUNDS

    def fork_with_waiting(count):
        channel = owner.open_channel("queue", "fork")
        try:
            put(channel, count)
            child = owner.start_peer(start_method="fork")
            check.equal(child.make([69]).values(), [69], "the child runs")
            get(channel, count)
        finally:  # otherwise its resources would be reported as leaks, too
            channel.use(owner, Channel.close)
            channel.drop(owner)
        return child

    def resources_of(child):
        account = stage.ledger.read()["processes"][str(child.pid)]
        return [account["descriptors"], account["mappings"]]

    def end_and_count(child):
        found = resources_of(child)
        child.leave()
        stage.end_extra()
        return found

    end_and_count(fork_with_waiting(1))
    allowed = [n + waiting // 2 for n in end_and_count(fork_with_waiting(0))]
    child = fork_with_waiting(waiting)
    few = lambda: all(map(int.__le__, resources_of(child), allowed))  # noqa: E731
    sentence = "the child has no descriptors or mappings of what was put"
    eventually(few, sentence, stage.grace, found=lambda: [resources_of(child), allowed])


@clause("LIFE-7", profiles=("share",))
def test_nothing_is_left_of_tensors_that_were_shared_and_never_sent(owner, stage):
    """The owner shares tensors and drops them without sending any."""
    warm = owner.make([64, 65])
    warm.share()
    warm.drop()
    before = holdings_of(stage, owner)
    for number in range(LEAK_ROUNDS):
        tensor = owner.make([number, 66, 67])
        tensor.share()
        check.equal(tensor.values(), [number, 66, 67], "sharing keeps the values")
        tensor.drop()
    check_no_growth(before, stage, owner)


@clause("LIFE-7", profiles=("grad",))
def test_nothing_is_left_of_messages_that_were_refused(
    sender, receiver, channel, stage
):
    """The sender puts messages that a non-leaf spoils and drops their tensors.

    One of these has been shared before.
    """
    leaf = sender.make([1, 2, 3])
    leaf.set_requires_grad(True)
    non_leaf = sender.non_leaf(leaf)

    def put_and_drop():
        good, sent = sender.make([68, 69]), sender.make([69, 70])
        sender.send(sent, receiver, channel).drop()
        refused = [good, sent, non_leaf]
        _, raised = attempt(lambda: sender.put(refused, receiver, channel))
        check.equal(good.values(), [68, 69], "the good tensor is as it was")
        good.drop()
        sent.drop()
        if raised is None:
            attempt(lambda: receiver.get(sender, channel))

    put_and_drop()
    before = holdings_of(stage, sender, receiver)
    for _ in range(LEAK_ROUNDS):
        put_and_drop()
    check_no_growth(before, stage, sender, receiver)


@clause("LIFE-8", vary=("strategy", "start_method"))
def test_receiver_that_is_killed_leaves_nothing_behind(owner, peer, stage):
    """A child that holds two tensors of the owner is killed; the owner drops them."""
    child = owner.start_peer()
    warm = owner.send(owner.make([1, 2]), child)
    warm.drop()
    before = holdings_of(stage, owner, peer)
    tensors = [owner.make([71 + n, 72, 73]) for n in range(2)]
    arrived = [owner.send(tensor, child) for tensor in tensors]
    check.equal(arrived[1].values(), [72, 72, 73], "the child holds them")
    child.kill()
    for number, tensor in enumerate(tensors):
        check_values_writable(tensor, [71 + number, 72, 73])
        onward = owner.send(tensor, peer)
        check_shared_memory(tensor, onward)
        onward.drop()
        tensor.drop()
    check_no_growth(before, stage, owner, peer)


@clause("LIFE-8", starts=True)
def test_receiver_that_is_killed_after_its_sender_dropped_leaves_nothing(owner, stage):
    """A child is killed when it is the last that holds the owner's tensor."""
    child = owner.start_peer()
    owner.send(owner.make([1, 2]), child).drop()
    before = holdings_of(stage, owner)
    tensor = owner.make([74, 75, 76])
    arrived = owner.send(tensor, child)
    tensor.drop()
    check.equal(arrived.values(), [74, 75, 76], "the child holds it alone")
    child.kill()
    share_once_more(stage, owner)
    check_no_growth(before, stage, owner)


def wait_until_empty(fresh, remaining, sentence):
    """Wait until nothing is left of the processes of a stage, which have all ended.

    `remaining` returns what is left; the evidence has its first item.
    """
    require_no_other_cleaner(fresh)

    def found():
        names = remaining()
        return f"{len(names)} left, such as {names[0]}" if names else "it has just gone"

    eventually(lambda: not remaining(), sentence, within=fresh.grace, found=found)


def share_among_all(fresh):
    """Make each actor hold a tensor that it sent to the others, and those received."""
    actors = (fresh.owner, fresh.peer, fresh.bystander)
    for number, sender in enumerate(actors):
        tensor = sender.make([80 + number, 84, 85])
        for receiver in actors:
            if receiver is not sender:
                arrived = sender.send(tensor, receiver)
                check.equal(arrived.values(), [80 + number, 84, 85], "it arrives")


@clause("LIFE-9", isolated=True, vary=("strategy", "start_method"))
def test_processes_that_exit_with_live_tensors_leave_nothing_behind(stage):
    """All three hold tensors of all others and exit, the owner last."""
    with stage.fresh() as fresh:
        share_among_all(fresh)
        for actor in (fresh.peer, fresh.bystander, fresh.owner):
            check.equal(actor.leave(), 0, "it exits normally")
        sentence = "no segment, temporary file or process is left"
        wait_until_empty(fresh, fresh.ledger.left_behind, sentence)


@clause("LIFE-10", isolated=True, vary=("strategy", "start_method"))
def test_processes_that_are_killed_leave_nothing_behind(stage):
    """All three hold tensors of all others and are killed, the owner last."""
    with stage.fresh() as fresh:
        share_among_all(fresh)
        for actor in (fresh.bystander, fresh.peer, fresh.owner):
            actor.kill()
        share_in_another_program(fresh)
        sentence = "no segment and no process is left"
        wait_until_empty(fresh, lambda: leftovers(fresh), sentence)


@clause("LIFE-10", "LIFE-14", isolated=True)
def test_processes_whose_owner_is_killed_first_leave_nothing_behind(stage):
    """All hold tensors, messages are on all channels; the owner is killed first."""
    with stage.fresh() as fresh:
        share_among_all(fresh)
        put_on_every_channel(fresh)
        for actor in (fresh.owner, fresh.peer, fresh.bystander):
            actor.kill()
        share_in_another_program(fresh)
        sentence = "no segment and no process is left"
        wait_until_empty(fresh, lambda: leftovers(fresh), sentence)


@clause("LIFE-11", start_methods=("fork",), profiles=("share",))
def test_tensor_that_a_forked_child_dropped_can_be_sent_by_its_parent(owner, peer):
    """A child drops all that it inherited and lives on; its parent sends the tensor."""
    tensor = owner.make([91, 92, 93])
    tensor.share()
    child = owner.start_peer(start_method="fork")
    check.equal(child.make([1]).values(), [1], "the child runs, without the tensor")
    arrived = owner.send(tensor, peer)
    check.equal(arrived.values(), [91, 92, 93], "it has its values")
    check_values_writable(arrived, [91, 92, 93])


@clause("LIFE-11", start_methods=("fork",), profiles=("share",))
def test_tensor_outlives_a_forked_child_that_ends_with_it(owner, peer):
    """A child holds what it inherited until it exits; its parent sends the tensor."""
    tensor = owner.make([94, 95, 96])
    tensor.share()
    child = owner.start_peer(arguments=tensor, start_method="fork")
    check.equal(child.arguments.values(), [94, 95, 96], "the child has it")
    child.leave()
    arrived = owner.send(tensor, peer)
    check.equal(arrived.values(), [94, 95, 96], "it has its values")
    check_values_writable(arrived, [94, 95, 96])


@clause("LIFE-11", start_methods=("fork",), profiles=("share",), isolated=True)
def test_tensor_outlives_children_that_were_forked_without_multiprocessing(stage):
    """The owner forks children by `os.fork`, as servers do, and holds what it received.

    One ends by `os._exit`, and one as Python does at a normal exit.
    """
    with stage.fresh() as fresh:
        owner, peer = fresh.owner, fresh.peer
        own, received = owner.make([97, 98]), peer.send(peer.make([99, 98]), owner)
        own.share()
        for value, normally in ((970, False), (971, True)):
            status = owner.run(fork_by_hand, [own, received], value, normally)
            check.equal(status, 0, "the child has written")
            for tensor in (own, received):
                check.equal(tensor.values(), [value, 98], "its parent reads that")
                check_shared_memory(owner.send(tensor, peer), tensor)
                tensor.write(1, 98)


# Messages that nobody receives


FAILED_MESSAGES = 4
"""The number of messages that fail, each of which may leave something."""

MESSAGE_COUNT = 8
"""The number of messages that are lost, or divided between consumers."""

ARGUMENT_COUNTS = {"few": 2, "many": MANY_STORAGES}
"""The numbers of tensors among the arguments of a process, by name."""

ARGUMENT_TESTS: dict[str, Any] = {
    "start_methods": ("spawn", "forkserver"),
    "vary": ("strategy", "start_method"),
    "starts": True,
    "in_flight": MANY_STORAGES,
}
"""For tests of arguments, with the start methods that send them in a message."""


def fill(actor, channel):
    """Put messages without tensors on a queue until later ones wait for room."""
    pile = (channel, 0, FILLING_COUNT, FILLING_SIZE)
    actor.run(put_numbered_messages, *pile)


def put_unreceived(actor, channel, count=MESSAGE_COUNT):
    """Put messages that nobody receives on a channel, and drop their tensors."""
    for number in range(count):
        tensors = [actor.make([100 + number, 1]), actor.make([number, 2, 3])]
        channel.put(actor, tensors)
        check.equal(tensors[0].values(), [100 + number, 1], "sending keeps the values")
        for tensor in tensors:
            tensor.drop()


@clause("LIFE-12")
def test_no_thread_process_socket_or_file_is_added_by_messages(
    sender, receiver, channel, stage
):
    """Messages are sent and dropped, and then more of them: all is as before."""

    def send_some():
        for number in range(LEAK_ROUNDS):
            tensor = sender.make([number, 231])
            arrived = sender.send(tensor, receiver, channel)
            check.equal(arrived.values(), [number, 231], "the tensor arrives")
            arrived.drop()
            tensor.drop()

    send_some()
    before = process_counts(stage, sender, receiver)
    send_some()

    def as_before():
        now = process_counts(stage, sender, receiver)
        return all(count <= then for count, then in zip(now, before, strict=True))

    sentence = "threads, processes and temporary files are as before"
    eventually(as_before, sentence, within=stage.grace)


THREADED = "queue"
"""The kind of channel of which a thread writes what has to wait."""


@clause("LIFE-13")
def test_nothing_is_left_of_messages_whose_channel_is_dropped(owner, peer, stage):
    """Owner and peer put messages on channels of their own, and drop the channels.

    Queues with a thread are lost twice, closed and not. They are full: the messages
    that the test counts wait behind others.
    """
    kinds = stage.implementation.channels

    def lose(actor, kind, closes):
        channel = actor.open_channel(kind)
        if kind == THREADED:
            fill(actor, channel)
        put_unreceived(actor, channel)
        if closes:
            channel.use(actor, Channel.close)
        channel.drop(actor)

    def lose_all(actor):
        for number, kind in enumerate(kinds):
            lose(actor, kind, bool(number % 2))
        if THREADED in kinds:
            lose(actor, THREADED, not kinds.index(THREADED) % 2)

    for actor in (owner, peer):
        lose_all(actor)
    before = holdings_of(stage, owner, peer)
    for actor in (owner, peer):
        lose_all(actor)
    share_once_more(stage, owner, peer)
    check_no_growth(before, stage, owner, peer)


@clause("LIFE-13", starts=True)
def test_nothing_is_left_of_messages_whose_receiver_is_killed(owner, stage):
    """A child is killed before it receives; the owner drops what it has put.

    On one queue, which the child got as an argument, the tensors wait for room.
    """
    before = holdings_of(stage, owner)
    kinds = stage.implementation.channels
    full = [owner.open_channel(THREADED)] if THREADED in kinds else []
    child = owner.start_peer(arguments=full)
    for channel in full:
        fill(owner, channel)
        put_unreceived(owner, channel)
    for channel in kinds:
        tensors = [owner.make([101, 102]), owner.make([103])]
        owner.put(tensors, child, channel)
        for tensor in tensors:
            tensor.drop()
    check.equal(child.make([1]).values(), [1], "the child lives and receives nothing")
    child.kill()
    stage.end_extra()
    for channel in full:
        channel.use(owner, Channel.close)
        channel.drop(owner)
    share_once_more(stage, owner)
    check_no_growth(before, stage, owner)


@clause("LIFE-13", "START-2", mainly="LIFE-13", **ARGUMENT_TESTS)
@pytest.mark.parametrize("arguments", ARGUMENT_COUNTS)
def test_nothing_is_left_of_arguments_whose_process_is_killed(
    owner, stage, start_method, arguments
):
    """A process is killed when it was started with few tensors or many, and again.

    It sends them like any other message, and nobody else can receive them.
    """

    def start_and_kill():
        made = owner.run(make_many, ARGUMENT_COUNTS[arguments], 104)
        tensors = share_separately(stage, owner, made)
        status = owner.run(start_in_vain, tensors, start_method)
        check(status != 0, "it was killed")
        owner.drop_all()

    start_and_kill()
    before = holdings_of(stage, owner)
    start_and_kill()
    check_no_growth(before, stage, owner)


@clause("LIFE-14", isolated=True)
def test_processes_that_exit_with_messages_in_flight_leave_nothing(stage):
    """Each puts messages for the others on all channels; all exit, the owner last."""
    with stage.fresh() as fresh:
        put_on_every_channel(fresh)
        for actor in (fresh.peer, fresh.bystander, fresh.owner):
            check.equal(actor.leave(), 0, "it exits normally")
        sentence = "no segment, temporary file or process is left"
        wait_until_empty(fresh, fresh.ledger.left_behind, sentence)


def put_on_every_channel(fresh):
    """Make each actor put two messages to each other one on each channel.

    Nobody receives the messages.
    """
    actors = (fresh.owner, fresh.peer, fresh.bystander)
    for sender in actors:
        for receiver in actors:
            if receiver is not sender:
                for channel in fresh.implementation.channels:
                    tensor = sender.make([111, 112, 113])
                    sender.put(tensor, receiver, channel)
                    sender.put({"once more": tensor}, receiver, channel)
                    tensor.drop()
        check.equal(sender.make([1, 2]).values(), [1, 2], "it lives")


# Several consumers of one queue


@clause("LIFE-15", vary=(), starts=True)
def test_message_is_received_by_one_of_two_consumers(owner, stage):
    """Two children wait for messages at the same time; the owner puts two, and again.

    Each gets one of them, and owner and consumer see each other's writes.
    """
    channels = [owner.open_channel(kind) for kind in claimed_queues(stage)]
    consumers = [owner.start_peer(arguments=channels) for _ in range(2)]
    for number in range(MESSAGE_COUNT):
        channel = channels[number % len(channels)]
        pending = [channel.waiting(consumer) for consumer in consumers]
        sent = [owner.make([number, 20 + one, 30]) for one in range(2)]
        for tensor in sent:
            channel.put(owner, tensor)
        arrived = sorted((p.answer() for p in pending), key=lambda t: t.read(1))
        for tensor, received in zip(sent, arrived, strict=True):
            check.equal(received.values(), tensor.values(), "each gets another one")
            check_shared_memory(tensor, received)


@clause("LIFE-16", vary=(), starts=True)
def test_consumer_that_is_killed_while_it_waits_takes_no_message(owner, stage):
    """Two children wait on one queue; whoever did so first or last is killed."""
    channels = [owner.open_channel(kind) for kind in claimed_queues(stage)]
    survivor = owner.start_peer(arguments=channels)

    def begin_to_wait(actor, channel):
        waiting = channel.waiting(actor)
        eventually(waiting.is_waiting, f"{actor.name} waits", actor.deadline)
        return waiting

    for channel in channels:
        for victim_is_first in (True, False):
            victim = owner.start_peer(arguments=channel)
            both = (victim, survivor)
            in_order = both if victim_is_first else both[::-1]
            waiting = {actor: begin_to_wait(actor, channel) for actor in in_order}
            victim.kill()
            for turn in range(2):
                channel.put(owner, owner.make([121, turn]))
            arrived = [waiting[survivor].answer(), channel.get(survivor)]
            values = [tensor.values() for tensor in arrived]
            check.equal(values, [[121, 0], [121, 1]], "the other receives all messages")


# References that messages hold


@clause("LIFE-17")
def test_each_message_has_a_reference_of_its_own(sender, receiver, channel, stage):
    """One tensor is in three messages; the first is dropped before the next is got."""

    def send_thrice(number):
        tensor = sender.make([number, 132, 133])
        for payload in (tensor, [tensor, tensor], {"again": tensor}):
            sender.put(payload, receiver, channel)
        tensor.drop()
        held = overwrite_freed_memory(sender, 3)
        first = receiver.get(sender, channel)
        check_values_writable(first, [number, 132, 133])
        first.drop()
        second, alias = receiver.get(sender, channel)
        check_values_writable(second, [-number, 132, 133])
        alias.drop()
        third = receiver.get(sender, channel)["again"]
        second.drop()
        check_values_writable(third, [number, 132, 133])
        for tensor in (third, *held):
            tensor.drop()

    send_thrice(131)
    before = holdings_of(stage, sender, receiver)
    send_thrice(134)
    check_no_growth(before, stage, sender, receiver)


@clause("LIFE-17")
def test_each_receiver_has_a_reference_of_its_own(sender, receiver, bystander, stage):
    """Two get a tensor twice each and drop it in turn; one sends it back."""
    for actor in (receiver, bystander):
        sender.send(sender.make([1]), actor).drop()
    before = holdings_of(stage, sender, receiver, bystander)
    tensor = sender.make([135, 136, 137])
    kept = [sender.send(tensor, to) for to in (receiver, bystander, receiver)]
    sender.put(tensor, bystander)
    kept.pop(0).drop()
    check_shared_memory(tensor, *kept)
    tensor.drop()
    kept.pop(0).drop()
    kept += [bystander.get(sender), receiver.send(kept[0], sender)]
    check_shared_memory(*kept)
    for one in kept:
        one.drop()
    check_no_growth(before, stage, sender, receiver, bystander)


# Messages that fail half-way


@clause("LIFE-18")
def test_message_that_cannot_be_pickled_leaves_nothing(
    sender, receiver, channel, stage
):
    """What cannot be pickled is before, between or behind two tensors.

    The next message arrives.
    """
    bad = sender.run(unpicklable)

    def fail_and_send(number):
        tensors = [sender.make([number, 141]), sender.make([number, 142])]
        message = [*tensors]
        message.insert(number % 3, bad)
        attempt(lambda: sender.put(message, receiver, channel, arrives=False))
        arrived = sender.send({"next": tensors}, receiver, channel)["next"]
        for tensor, received in zip(tensors, arrived, strict=True):
            check.equal(received.values(), tensor.values(), "it can be sent")
            check_shared_memory(tensor, received)
            received.drop()
            tensor.drop()

    fail_and_send(140)
    before = holdings_of(stage, sender, receiver)
    for number in range(FAILED_MESSAGES):
        fail_and_send(number)
    check_no_growth(before, stage, sender, receiver)


@clause("LIFE-18", "START-2", mainly="LIFE-18", **ARGUMENT_TESTS)
@pytest.mark.parametrize("arguments", ARGUMENT_COUNTS)
def test_arguments_that_cannot_be_pickled_leave_nothing(
    owner, stage, start_method, arguments
):
    """What cannot be pickled is behind few tensors or many; then one is started.

    They are sent like any other message.
    """

    def fail_and_start():
        made = owner.run(make_many, ARGUMENT_COUNTS[arguments], 143)
        tensors = share_separately(stage, owner, made)
        payload = [tensors, owner.run(unpicklable)]
        start = lambda: owner.run(start_in_vain, payload, start_method)  # noqa: E731
        _, raised = attempt(start)
        check(raised is not None, "the start raises")
        sent = [tensors[:2]]
        ended = owner.run(start_in_parallel, sent, start_method)
        check.equal(owner.exit_codes(ended), [0], "a process can be started with them")
        check.equal(tensors[0].read(0), 143 + 1, "and writes to them")
        owner.drop_all()

    fail_and_start()
    before = holdings_of(stage, owner)
    fail_and_start()
    check_no_growth(before, stage, owner)


@clause("LIFE-19")
def test_message_that_cannot_be_rebuilt_leaves_nothing(
    sender, receiver, channel, stage
):
    """What cannot be unpickled is before, between or behind two tensors.

    The next message arrives. It raises exceptions that Python has, one of them an
    error of the system, and one that nobody but its program knows. The receiver keeps
    every second one, with its traceback.
    """

    def fail_and_send(number):
        error = ERROR_NAMES[number % len(ERROR_NAMES)]
        bad = sender.run(unreceivable, error)
        tensors = [sender.make([number, 144]), sender.make([number, 145])]
        message = [*tensors]
        message.insert(number % 3, bad)
        sender.put(message, receiver, channel, arrives=False)
        tensors.append(sender.make([number, 146]))
        sender.put(tensors[1:], receiver, channel)
        get = get_and_keep_exception if number % 2 else Actor.get
        with refusal("receiving raises the exception of the object") as refused:
            receiver.run(get, sender.name, channel)
        check.equal(refused.error.type, error, "it is the object's exception")
        check("of the suite" in str(refused.error), "it has the object's words")
        arrived = receiver.get(sender, channel)
        for tensor, received in zip(tensors[1:], arrived, strict=True):
            check.equal(received.values(), tensor.values(), "the next message arrives")
        for tensor in (*tensors, *arrived, bad):
            tensor.drop()
        receiver.run(collect_garbage)

    fail_and_send(143)
    before = holdings_of(stage, sender, receiver)
    for number in range(FAILED_MESSAGES):
        fail_and_send(number)
    check_no_growth(before, stage, sender, receiver)
    receiver.run(forget_exceptions)


POOL_FAILURES = {
    "task is not pickled": "LIFE-18",
    "result is not pickled": "LIFE-18",
    "task is not rebuilt": "LIFE-19",
    "result is not rebuilt": "LIFE-19",
}
"""What of a task of a pool fails, and the clause about it."""


def failing_task(owner, failure, tensor):
    """Return a task that fails so, and its arguments."""
    rebuilt = failure.endswith("rebuilt")
    if failure.startswith("result"):
        return add_and_return_in_vain, [tensor, "OwnError" if rebuilt else ""]
    bad = owner.run(unreceivable, "OwnError") if rebuilt else owner.run(unpicklable)
    return add_and_return, [[bad, tensor]]


@clause("LIFE-18", "LIFE-19", profiles=("drop-in",), prefers="fork", isolated=True)
@pytest.mark.parametrize("kind", ["pool", "executor"])
def test_pool_goes_on_when_a_task_or_its_result_fails_half_way(
    stage, start_method, kind
):
    """Each failing task is submitted between two others, and all are asked for.

    An executor may raise for all three, so each failure gets a new executor.
    """
    with stage.fresh() as fresh:
        owner = fresh.owner
        for number, (failure, clause_id) in enumerate(POOL_FAILURES.items()):
            tensors = [owner.make([number, n, 272]) for n in range(3)]
            task, given = failing_task(owner, failure, tensors[2])
            with judging(clause_id):
                results, raised = owner.run(
                    *(add_beside, kind, start_method, tensors[:2]),
                    *(task, given, fresh.timeouts.answer),
                )
                check(raised, f"asking for the result raises where a {failure}")
                if kind == "executor":
                    continue
                check.equal(len(results), 2, f"the others arrive ({raised})")
                for tensor, result in zip(tensors, results, strict=False):
                    check.equal(result.read(0), number + 1, "a worker has added 1")
                    check_shared_memory(tensor, result)
                own = (
                    "OwnError: this object" if clause_id == "LIFE-19" else "this object"
                )
                check(own in raised[0], f"it is the object's exception: {raised[0]}")


# Ends of processes


@clause("LIFE-20", starts=True)
def test_process_gives_back_what_it_holds_however_it_ends(owner, peer, stage):
    """Children that hold their own and the owner's tensors end; the others drop."""
    owner.send(owner.make([1, 2]), peer).drop()
    before = holdings_of(stage, owner, peer)
    for number, (how, code) in enumerate((EXIT_CODES | {"normally": 0}).items()):
        child = owner.start_peer()
        mine, its = owner.make([150 + number, 1]), child.make([160 + number, 2])
        held = owner.send(mine, child)
        arrived = child.send(its, owner)
        onward = owner.send(arrived, peer)
        check.equal(held.values(), [150 + number, 1], "the child holds both")
        ended = child.leave() if how == "normally" else child.run_to_end(end, how)
        check.equal(ended, code, f"the child ends {how}")
        check.equal(mine.values(), [150 + number, 1], f"it stays ({how})")
        check_shared_memory(arrived, onward)
        again = owner.send([mine, arrived], peer)
        check.equal(again[0].values(), [150 + number, 1], "it can be sent")
        for tensor in (mine, arrived, onward, *again):
            tensor.drop()
        stage.end_extra()
    check_no_growth(before, stage, owner, peer)


@clause("LIFE-9", isolated=True)
def test_processes_that_exit_with_hidden_tensors_leave_nothing_behind(stage):
    """All three hide tensors where no destructor finds them, and exit."""
    places = ("a cycle", "a module", "the main module", "a cycle of a module")
    more = ("a thread", "an exit function", "a class")
    with stage.fresh() as fresh:
        actors = (fresh.peer, fresh.bystander, fresh.owner)
        for actor in actors:
            for place in (*places, *more):
                tensor = actor.make([170, 171])
                for other in actors:
                    if other is not actor:
                        arrived = actor.send(tensor, other)
                        check.equal(arrived.values(), [170, 171], "it arrives")
                        arrived.actor.run(hide, arrived.key, place)
                tensor.actor.run(hide, tensor.key, place)
        for actor in actors:
            check.equal(actor.leave(), 0, "it exits normally")
        sentence = "no segment, temporary file or process is left"
        wait_until_empty(fresh, fresh.ledger.left_behind, sentence)


@clause("LIFE-9", profiles=("spawn", "share"), prefers="fork", isolated=True)
def test_groups_whose_processes_exit_normally_leave_nothing_behind(stage, start_method):
    """The owner starts groups that return or call `sys.exit`; then all exit."""
    with stage.fresh() as fresh:
        owner = fresh.owner
        tensor = owner.make([0, 0])
        tensor.share()
        for number, task in enumerate(("write index", "exit with 0", "exit with None")):
            result = start_together(owner, task, 2, [tensor], start_method)
            check.equal(result, None, "all have ended well")
            written = [(number + 1) * (100 + index) for index in range(2)]
            check.equal(tensor.values(), written, "each has written at its index")
        for actor in (fresh.peer, fresh.bystander, owner):
            check.equal(actor.leave(), 0, "it exits normally")
        sentence = "no segment, temporary file or process is left"
        wait_until_empty(fresh, fresh.ledger.left_behind, sentence)


# Tensors that are sent on


def channels_pipe_last(stage):
    """Return the claimed channels, queues first and the pipe last."""
    claimed = stage.implementation.channels
    return [kind for kind in (*QUEUE_KINDS, "pipe") if kind in claimed]


def start_chain(owner, channel):
    """Start two processes; the first sends a tensor to the second, which sends it on.

    The owner has not received the second message yet.

    Returns:
        Both processes: the maker of the tensor, and the middle.
    """
    onward = owner.open_channel(channel)
    maker, middle = (owner.start_peer(arguments=onward) for _ in range(2))
    onward.put(maker, maker.make([181, 182, 183]))
    arrived = onward.get(middle)
    check.equal(arrived.values(), [181, 182, 183], "it arrives in the middle")
    middle.put({"onward": arrived}, owner, channel)
    return maker, middle


def check_sent_on(arrived, owner, peer):
    """Check that the owner has the tensor of a chain, and can send it on."""
    check_values_writable(arrived, [181, 182, 183])
    onward = owner.send(arrived, peer)
    check_shared_memory(arrived, onward)


@clause("LIFE-21", prefers="forkserver")  # fork shares the manager
def test_tensor_that_was_sent_on_outlives_the_exits_before_it(owner, peer, stage):
    """Maker and middle exit, in either order, before the owner receives."""
    kind = channels_pipe_last(stage)[0]
    for in_order in (reversed, list):
        chain = start_chain(owner, kind)
        for actor in in_order(chain):
            check.equal(actor.leave(), 0, "it exits normally")
        check_sent_on(owner.get(chain[1], kind)["onward"], owner, peer)


@clause("LIFE-21", prefers="forkserver")  # fork shares the manager
def test_tensor_that_was_sent_on_outlives_the_kills_before_it(owner, peer, stage):
    """The maker is killed before the owner receives, the middle after that.

    Then both are killed before, in either order: the receive may be refused.
    """
    kind = channels_pipe_last(stage)[:2][-1]
    maker, middle = start_chain(owner, kind)
    maker.kill()
    arrived = owner.get(middle, kind)["onward"]
    middle.kill()
    check_sent_on(arrived, owner, peer)
    for in_order in (reversed, list):
        chain = start_chain(owner, kind)
        wait_until_receivable(chain[1], owner, kind)
        for actor in in_order(chain):
            actor.kill()
        message, refused = owner.try_get(chain[1], kind)
        if refused is None:
            check_sent_on(message["onward"], owner, peer)


@clause("LIFE-22", start_methods=("fork",), profiles=("share",))
def test_forked_children_keep_what_their_parent_drops(owner, peer, stage):
    """Two children inherit a tensor, the parent drops it; one of them sends it."""
    before = holdings_of(stage, owner, peer)
    tensor = owner.make([191, 192, 193])
    tensor.share()
    held = [inherited for (inherited,) in fork_with(owner, [tensor], count=2)]
    children = [one.actor for one in held]
    tensor.write(1, -192)
    tensor.drop()
    for one in held:
        check.equal(one.values(), [191, -192, 193], "each child has the values")
    check_shared_memory(*held)
    arrived = children[0].send(held[0], owner)
    held[0].drop()
    children[0].kill()
    check_shared_memory(held[1], arrived)
    arrived.drop()
    children[1].kill()
    stage.end_extra()
    check_no_growth(before, stage, owner, peer)


def check_only_own_descriptors(own, program, stage):
    """Check that a program has no descriptors except `own`, and maps no shared memory.

    `own` counts descriptors by their targets.
    """
    more = lambda: stage.ledger.opened_since(own, program.pid)  # noqa: E731
    sentence = "the program has no descriptor that sharing made"
    eventually(lambda: not more(), sentence, stage.grace, found=more)
    check(program.pid in stage.ledger.processes(), "the program runs")
    check.equal(program.mappings(), 0, "it has no mapping of shared memory")


@contextmanager
def as_a_program(actor):
    """Make an actor replace itself by another program, which is killed in the end."""
    actor.ensure_started()
    actor.ask("run", execute_program)
    with suppress(wire.WireClosed):
        answer = actor.process.wire.receive(wire.after(actor.deadline))
        actor.result(answer, "become another program")
    tally.remote_calls += 1
    try:
        yield
    finally:
        actor.kill()


def check_first_to_share_gives_back(stage):
    """Check that what a process makes once, for all that it shares, goes as well."""
    with stage.fresh(alone=True) as fresh:
        first = fresh.owner
        own = Counter(first.targets())
        first.start_peer(arguments=[first.make([200, 201])])
        with as_a_program(first):
            check_only_own_descriptors(own, first, fresh)


@clause("LIFE-23", starts=True, in_flight=MANY_STORAGES)
def test_process_that_becomes_a_program_gives_back_what_it_holds(owner, peer, stage):
    """A child holds its own and many of the owner's tensors; it becomes a program.

    So does a new owner that is the first of its processes to share.
    """
    owner.send(owner.make([1, 2]), peer)
    for actor in (owner, peer):
        actor.drop_all()
    child = owner.start_peer()
    counts = holdings_of(stage, owner, peer)
    own = Counter(child.targets())
    mine, its = owner.make([201, 202]), child.make([203, 204])
    others = share_separately(stage, owner, owner.run(make_many, MANY_STORAGES, 205))
    held, arrived = owner.send([mine, *others], child)[0], child.send(its, owner)
    check.equal(held.values(), [201, 202], "the child holds both")
    with as_a_program(child):
        check_only_own_descriptors(own, child, stage)
        check_values_writable(mine, [201, 202])
        onward = owner.send(arrived, peer)
        check_shared_memory(arrived, onward)
        for actor in (owner, peer):
            actor.drop_all()
        check_no_growth(counts, stage, owner, peer)
    check_first_to_share_gives_back(stage)


@clause("LIFE-24", starts=True)
def test_received_tensor_outlives_its_channel(owner, peer, stage):
    """A child gets tensors on a queue, both close it, and the tensors stay."""
    kinds = stage.implementation.channels
    channels = [owner.open_channel(kind) for kind in kinds]
    child = owner.start_peer(arguments=channels)
    pairs = []
    for channel in channels:
        tensor = owner.make([211, 212, 213])
        channel.put(owner, tensor)
        pairs.append((tensor, channel.get(child)))
        for actor in (child, owner):
            channel.use(actor, Channel.close)
            channel.drop(actor)
    for tensor, arrived in pairs:
        check_shared_memory(tensor, arrived, child.send(arrived, owner))


@clause("LIFE-25")
def test_tensor_is_given_back_however_it_is_let_go_of(sender, receiver, stage):
    """Both sides let go of tensors in cycles and in threads."""

    def let_go(actor, tensor, number):
        if number % 2:
            tensor.actor.run(drop_in_a_thread, tensor.key)
        else:
            tensor.actor.run(hide, tensor.key, "a cycle")
            actor.run(collect_garbage)

    def send_and_let_go(number):
        tensor = sender.make([number, 221])
        arrived = sender.send(tensor, receiver)
        check.equal(arrived.values(), [number, 221], "the tensor arrives")
        let_go(sender, tensor, number)
        check.equal(arrived.values(), [number, 221], "and stays")
        let_go(receiver, arrived, number // 2)

    for number in range(2):
        send_and_let_go(number)
    before = holdings_of(stage, sender, receiver)
    for number in range(LEAK_ROUNDS):
        send_and_let_go(number)
    check_no_growth(before, stage, sender, receiver)


@clause("LIFE-13", profiles=("drop-in",), starts=True)
def test_pool_that_is_terminated_amid_its_tasks_leaves_nothing(owner, stage):
    """A program leaves a loop over the results of a pool after the first one, twice.

    By far more tasks wait than the pool's channel takes.
    """

    def leave_a_pool():
        tensors = owner.run(make_many, FILLING_COUNT, 60)
        with pool_in(owner) as pool:
            pool.actor.run(terminate_early, pool.remote, tensors)
        owner.drop_all()
        owner.run(collect_garbage)

    leave_a_pool()
    share_once_more(stage, owner)
    before = holdings_of(stage, owner)
    leave_a_pool()
    share_once_more(stage, owner)
    check_no_growth(before, stage, owner)


SMALL_COUNT = 8
"""The number of tensors in one message, so small that they may share a segment."""

PAGE = os.sysconf("SC_PAGESIZE")

MAX_COMMON_SEGMENT = 16 << 20
"""The maximum size in bytes of a segment of several storages."""


def drop_all_but(kept, *messages):
    """Drop the tensors of these messages, from the end, except `kept`."""
    for tensors in messages:
        for tensor in reversed(tensors):
            if tensor is not kept:
                tensor.drop()


@clause("LIFE-26")
def test_what_stays_of_one_message_keeps_nothing_of_others(
    sender, receiver, channel, stage
):
    """A tensor of the first message stays on either side; the rest is dropped."""
    for side in (sender, receiver):
        first = sender.run(make_many, SMALL_COUNT, 1)
        arrived = sender.send(first, receiver, channel)
        kept = (first if side is sender else arrived)[SMALL_COUNT // 2]
        drop_all_but(kept, first, arrived)
        before = holdings_of(stage, sender, receiver)
        for number in range(LEAK_ROUNDS):
            made = sender.run(make_many, SMALL_COUNT, number)
            got = sender.send(made, receiver, channel)
            wrong = receiver.run(positions_with_wrong_values, got, number)
            check.equal(wrong, [], "each tensor arrives with its value")
            drop_all_but(None, *((made, got)[:: -1 if number % 2 else 1]))
        check_no_growth(before, stage, sender, receiver)
        check.equal(kept.values(), [1 + SMALL_COUNT // 2], "what stays keeps its value")
        kept.drop()


@clause("LIFE-26", profiles=("modules",))
def test_what_stays_of_one_module_keeps_nothing_of_others(owner, stage):
    """A parameter of the first module stays; modules are shared and dropped."""

    def shared():
        module = owner.make_module(
            {f"p{number}": [number] for number in range(SMALL_COUNT)}
        )
        owner.share_module(module)
        return module, owner.parameters(module)

    module, parameters = shared()
    kept = parameters.pop("p3")
    for one in (module, *parameters.values()):
        one.drop()
    before = holdings_of(stage, owner)
    for _ in range(LEAK_ROUNDS):
        module, parameters = shared()
        check.equal(parameters["p5"].values(), [5], "sharing keeps the values")
        for one in (module, *parameters.values()):
            one.drop()
    check_no_growth(before, stage, owner)
    check.equal(kept.values(), [3], "what stays keeps its value")


def bytes_kept(sizes, before, in_use, stage):
    """Return how many bytes of files were added while only one tensor is held.

    The file of the tensor counts. Of the other files, the largest ones are left out, as
    many as the implementation may keep for later use.

    Args:
        sizes: the size of each file, by its identity.
        before: the earlier sizes.
        in_use: the file that contains the tensor; "" if it is not known.
        stage: the stage, which knows how many segments may be kept.
    """
    more = {file: size - before.get(file, 0) for file, size in sizes.items()}
    needed = more.pop(in_use, 0)
    others = sorted(size for size in more.values() if size > 0)
    return needed + sum(others[: max(len(others) - stage.kept, 0)])


def check_kept_size(tensor, measure, stage):
    """Wait until a tensor keeps a segment of at most `MAX_COMMON_SEGMENT` bytes.

    Args:
        tensor: the tensor.
        measure: returns how many bytes the tensor keeps. It gets the file that contains
            the tensor, or "" if the implementation does not claim `identity`.
        stage: the stage of the tensor.
    """
    in_use = file_of(tensor) if "identity" in stage.implementation.claims else ""
    eventually(
        lambda: measure(in_use) <= MAX_COMMON_SEGMENT,
        f"one tensor keeps a segment of at most {MAX_COMMON_SEGMENT} bytes",
        stage.grace,
        found=lambda: f"{measure(in_use)} bytes",
    )


@clause("LIFE-26")
def test_one_tensor_of_a_message_keeps_a_bounded_segment(sender, receiver, stage):
    """Of more than fits into one segment, one tensor stays on either side."""
    length = 1 << 14  # 64 KiB
    count = MAX_COMMON_SEGMENT // (4 * length) + 4
    for side in (sender, receiver):
        mapped = receiver.run(mapped_sizes)
        files = stage.ledger.sizes_of_files()
        made = sender.run(make_many_long, count, length)
        arrived = sender.send(made, receiver)
        kept = (made if side is sender else arrived)[1]
        drop_all_but(kept, made, arrived)

        def found(in_use):
            named = stage.ledger.sizes_of_files()
            now = receiver.run(mapped_sizes)
            return max(
                bytes_kept(named, files, in_use, stage),  # noqa: B023
                bytes_kept(now, mapped, in_use, stage),  # noqa: B023
            )

        check_kept_size(kept, found, stage)
        check.equal(kept.read(0), 2, "it keeps its value")
        kept.drop()


@clause("LIFE-26", profiles=("strategy-fs",))
def test_one_of_many_small_tensors_of_a_message_keeps_a_bounded_segment(
    sender, receiver, stage
):
    """A message has thousands of tensors of one element, which take a page each.

    They are more pages than a segment may have, and few bytes.
    """
    for side in (sender, receiver):
        files = stage.ledger.sizes_of_files()
        made = sender.run(make_many, MAX_COMMON_SEGMENT // PAGE + SMALL_COUNT, 40)
        arrived = sender.send(made, receiver)
        wrong = receiver.run(positions_with_wrong_values, arrived, 40)
        check.equal(wrong, [], "each tensor arrives with its value")
        kept = (made if side is sender else arrived)[SMALL_COUNT]
        value = kept.values()
        for actor in (sender, receiver):
            actor.run(drop_others, [kept] if actor is side else [])

        def found(in_use):
            named = stage.ledger.sizes_of_files()
            return bytes_kept(named, files, in_use, stage)  # noqa: B023

        check_kept_size(kept, found, stage)
        check.equal(kept.values(), value, "it keeps its value")
        kept.drop()


@clause("LIFE-26")
def test_common_segment_goes_with_the_last_of_its_storages(
    sender, receiver, channel, stage
):
    """Both sides drop what was in a message; a tensor comes back before the last."""
    sender.send(sender.make([1, 2]), receiver, channel).drop()
    before = holdings_of(stage, sender, receiver)
    for _ in range(LEAK_ROUNDS):
        made = sender.run(make_many, SMALL_COUNT, 30)
        arrived = sender.send(made, receiver, channel)
        last = arrived[2]
        drop_all_but(made[0], made)
        drop_all_but(last, arrived)
        back = receiver.send(last, sender, channel)
        check_shared_memory(last, back)
        for one in (last, made[0], back):
            one.drop()
    check_no_growth(before, stage, sender, receiver)


@clause(
    "LIFE-27",
    start_methods=("fork", "spawn"),
    vary=("strategy", "start_method"),
    isolated=True,
)
def test_result_survives_the_worker_that_made_it(stage, start_method):
    """Each task of a pool or an executor runs in a new worker, which ends after it.

    The owner writes to the results and sends them on. The standard library refuses an
    executor that forks such workers.
    """
    with stage.fresh() as fresh:
        owner, lists = fresh.owner, [[number, 271] for number in range(3)]
        for kind in ("pool", "executor")[: 1 if start_method == "fork" else 2]:
            arguments = (kind, start_method, lists, fresh.timeouts.answer)
            results = owner.run(results_of_recycled_workers, *arguments)
            for values, result in zip(lists, results, strict=True):
                check.equal(result.values(), values, f"it has its values ({kind})")
                check_shared_memory(owner.send(result, fresh.peer), result)
