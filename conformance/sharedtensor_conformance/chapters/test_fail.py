"""Chapter FAIL: the state that a refused system call leaves.

Each test takes a resource from a process, makes the process try an operation, restores
the resource, and tries again. An implementation that does not need the resource
succeeds at the first attempt, and then the result must be right.
"""

from itertools import product

import pytest

from sharedtensor_conformance.chapters.chan_actions import finish_tasks
from sharedtensor_conformance.chapters.exhaustion import exhausted, interrupted
from sharedtensor_conformance.chapters.exhaustion_actions import (
    MAX_EXHAUSTED_MAPPINGS,
    allowed_mappings,
)
from sharedtensor_conformance.chapters.module_actions import look_up_context
from sharedtensor_conformance.chapters.shared_steps import (
    LEAK_ROUNDS,
    check_no_growth,
    check_shared_memory,
    holdings_of,
    require_segment_per_storage,
    unthreaded_channel,
    wait_until_receivable,
)
from sharedtensor_conformance.chapters.system_changes import limited_shm
from sharedtensor_conformance.harness import attempt, check, clause, eventually, refusal
from sharedtensor_conformance.harness.case.outcomes import NotRun
from sharedtensor_conformance.harness.remote.channels import Channel
from sharedtensor_conformance.report.verdicts import Need

LENGTH = 4096
"""The number of elements of a tensor of four pages."""

SIZE = 4 * LENGTH
PAGE = SIZE // 4
TOO_LITTLE = 3 * SIZE + SIZE // 2
"""The number of bytes that three and a half of these tensors need."""

SHORTAGES = (("descriptors", 1), ("memory", 0), ("descriptors", 2), ("descriptors", 0))
"""The resources that the actors lack in turn, and how much of each is left."""

MEMORY_SHORTAGES = (("memory", 0), ("memory", SIZE))
"""The limits that permit no mapping, or too few for a message of two tensors."""

MAPPING_SHORTAGES = (("mappings", 0),)
"""The same by the number of mappings."""


def make_large(actor, number):
    """Return a tensor of four pages and its values."""
    values = [number + 0.25 * n for n in range(LENGTH)]
    return actor.make(values), values


def make_several(actor, number, count=3):
    """Return `count` tensors, and the values of each."""
    rows = [[10 * number + n, 20 + n, 30 + n] for n in range(count)]
    return [actor.make(row) for row in rows], rows


def check_values(tensors, rows, sentence):
    """Check that each tensor has the values of its row."""
    check.equal([tensor.values() for tensor in tensors], rows, sentence)


def check_writable(tensor, values):
    """Write the first element of each page, and the last one; check all elements.

    Returns:
        The values after the writes.
    """
    changed = list(values)
    for index in {*range(0, len(values), 1024), len(values) - 1}:
        changed[index] += 0.5
        tensor.write(index, changed[index])
    check.equal(tensor.values(), changed, "every element can be written")
    return changed


def require_exhaustible_mappings():
    """Check that a process can be given all mappings that the system allows.

    Raises:
        NotRun: the system allows too many of them.
    """
    if (allowed := allowed_mappings()) > MAX_EXHAUSTED_MAPPINGS:
        raise NotRun(
            f"the system allows {allowed} mappings to each process, and no more than "
            f"{MAX_EXHAUSTED_MAPPINGS} are used up; lower vm.max_map_count",
            Need.FEW_MAPPINGS,
        )


def check_added_files(count, before, stage):
    """Wait until at most `count` files have been added since `before`."""
    few = lambda: len(stage.ledger.segments() - before) <= count  # noqa: E731
    eventually(few, "no file is left of what was refused", within=stage.grace)


def drop_all(*tensors):
    """Drop all tensors."""
    for tensor in tensors:
        tensor.drop()


def send_in_new_thread(sender, payload, receiver, channel):
    """Send from a new thread, in which nothing was refused; return what arrives."""
    sender.put_in_parallel(payload, receiver, channel=channel)
    return receiver.get(sender, channel)


def send(sender, payload, receiver, channel):
    """Send from the thread in which something was refused; return what arrives."""
    return sender.send(payload, receiver, channel)


def check_shared_element(tensor, arrived, index):
    """Check that two tensors share memory, by a write of one element through each.

    The second write restores the value.
    """
    value = tensor.read(index)
    arrived.write(index, value + 1)
    check.equal(tensor.read(index), value + 1, "what arrives is shared with the sender")
    tensor.write(index, value)
    check.equal(arrived.read(index), value, "in both directions")


def check_arrived(tensors, arrived, rows, sentence):
    """Check that tensors have arrived with the values of `rows`, and are shared."""
    check_values(arrived, rows, sentence)
    for tensor, one in zip(tensors, arrived, strict=True):
        check_shared_element(tensor, one, len(rows[0]) - 1)


def check_put_or_refusal(tensors, rows, sender, receiver, channel):
    """Put tensors; check that they arrive and are shared, unless `put` raises.

    Returns:
        The exception of `put`, or None.
    """
    _, refused = attempt(lambda: sender.put(tensors, receiver, channel))
    if refused is None:
        # Wait while the resource is missing: a thread may still write the message.
        sentence = "what put accepted can be received"
        wait_until_receivable(sender, receiver, channel, sentence)
        arrived = receiver.get(sender, channel)
        check_arrived(tensors, arrived, rows, "what put accepted arrives")
        drop_all(*arrived)
    check_values(tensors, rows, "the sender's tensors have their values")
    return refused


def check_get_or_refusal(tensors, rows, receiver, sender, channel):
    """Receive `tensors`; check that all arrive and are shared, unless `get` raises."""
    arrived, refused = receiver.try_get(sender, channel)
    if refused is not None:
        return
    sentence = "what is received is all of the message"
    check_arrived(tensors, arrived["tensors"], rows, sentence)
    drop_all(*arrived["tensors"])


def put_three_messages(turn, tensors, sender, receiver, channel):
    """Put a message that the receiver may refuse, and two more messages.

    Returns:
        For each of the two later messages its tensors, and the values of each.
    """
    later = [make_several(sender, turn + after, count=1) for after in (100, 200)]
    sender.put({"turn": turn, "tensors": tensors}, receiver, channel)
    for after, (others, _) in zip((100, 200), later, strict=True):
        sender.put({"turn": turn + after, "tensors": others}, receiver, channel)
    return later


def check_later_messages(turn, later, sender, receiver, channel):
    """Receive the two later messages. The refused one may arrive before them."""
    arrived = receiver.get(sender, channel)
    if arrived["turn"] == turn:
        drop_all(*arrived["tensors"])
        arrived = receiver.get(sender, channel)
    check.equal(arrived["turn"], turn + 100, "the next message arrives")
    check_values(arrived["tensors"], later[0][1], "with its values")
    last = receiver.get(sender, channel)
    check.equal(last["turn"], turn + 200, "the one after it arrives")
    check_values(last["tensors"], later[1][1], "with its values")
    drop_all(*arrived["tensors"], *last["tensors"], *later[0][0], *later[1][0])


@clause("FAIL-1")
def test_put_without_descriptors_works_or_is_refused(sender, receiver, channel):
    """The sender puts three tensors with descriptors for none, some and all of them.

    Afterwards the same thread sends them, or another one.
    """
    for spare, send_again in product((3, 0, 1, 2, 5), (send, send_in_new_thread)):
        tensors, rows = make_several(sender, spare)
        with exhausted(sender, "descriptors", spare):
            check_put_or_refusal(tensors, rows, sender, receiver, channel)
        arrived = send_again(sender, tensors, receiver, channel)
        check_arrived(tensors, arrived, rows, "the same tensors can be sent afterwards")
        drop_all(*tensors, *arrived)


@clause("FAIL-1", profiles=("share",))
def test_sharing_without_descriptors_works_or_is_refused(owner, peer):
    """Owner and peer share a tensor with no, one and two descriptors left."""
    for actor, other in ((owner, peer), (peer, owner)):
        for spare in (0, 1, 2):
            tensor = actor.make([spare, 8, 9])
            with exhausted(actor, "descriptors", spare):
                _, refused = attempt(tensor.share)
                shared = tensor.is_shared()
                check.equal(shared, refused is None, "it is shared if nothing raised")
                tensor.write(1, 80)
            tensor.share()
            check.equal(tensor.is_shared(), True, "it can be shared afterwards")
            arrived = actor.send(tensor, other)
            check.equal(arrived.values(), [spare, 80, 9], "it has its values")
            check_shared_memory(tensor, arrived)


@clause("FAIL-1", profiles=("share",))
def test_tensor_whose_sharing_was_refused_can_be_sent_by_a_thread(
    sender, receiver, stage
):
    """The sender shares a tensor without descriptors; another thread sends it later."""
    for spare in (0, 1, 2):
        tensor = sender.make([spare, 11, 12])
        with exhausted(sender, "descriptors", spare):
            attempt(tensor.share)
        arrived = send_in_new_thread(
            sender, tensor, receiver, unthreaded_channel(stage)
        )
        check_shared_memory(tensor, arrived)


@clause("FAIL-1", profiles=("share",), isolated=True)
def test_first_sharing_without_descriptors_works_or_is_refused(stage):
    """An owner that has never shared tries with more and more descriptors left."""
    with stage.fresh() as fresh:
        made = []
        for spare in range(10):
            tensor = fresh.owner.make([spare, 8, 9])
            with exhausted(fresh.owner, "descriptors", spare):
                _, refused = attempt(tensor.share)
            check.equal(tensor.is_shared(), refused is None, "shared or refused")
            made.append(tensor)
        for spare, tensor in enumerate(made):
            tensor.share()
            check.equal(tensor.is_shared(), True, "each can be shared afterwards")
            check.equal(tensor.values(), [spare, 8, 9], "each has its values")
        check(
            len(fresh.ledger.managers()) <= 1,
            "no manager is left of what was refused",
        )


@clause("FAIL-2")
def test_receive_without_descriptors_works_or_is_refused(sender, receiver, channel):
    """The receiver gets three tensors with descriptors for none, some and all."""
    for spare in (3, 0, 1, 2, 4):
        tensors, rows = make_several(sender, spare)
        later = put_three_messages(spare, tensors, sender, receiver, channel)
        with exhausted(receiver, "descriptors", spare):
            check_get_or_refusal(tensors, rows, receiver, sender, channel)
        check_values(tensors, rows, "the sender's tensors have their values")
        check_later_messages(spare, later, sender, receiver, channel)
        drop_all(*tensors)


@clause("FAIL-3", "FAIL-4", profiles=("share",))
def test_sharing_in_a_full_shm_works_or_is_refused(owner, peer, stage):
    """The owner shares six tensors where three and a half have room."""
    before = stage.ledger.segments()
    made = [make_large(owner, number) for number in range(6)]
    with limited_shm(stage, TOO_LITTLE):
        refused = [attempt(tensor.share)[1] for tensor, _ in made]
        shared = [tensor.is_shared() for tensor, _ in made]
        check.equal(shared, [r is None for r in refused], "shared if nothing raised")
        check_added_files(sum(shared), before, stage)
        for tensor, values in made:
            check.equal(tensor.values(), values, "each has its values")
        made = [(tensor, check_writable(tensor, values)) for tensor, values in made]
    for tensor, values in made:
        tensor.share()
        check.equal(tensor.is_shared(), True, "each can be shared when there is room")
        arrived = owner.send(tensor, peer)
        check_arrived([tensor], [arrived], [values], "and sent, with its values")
        arrived.drop()


@clause("FAIL-3", "FAIL-4")
def test_put_in_a_full_shm_works_or_is_refused(sender, receiver, channel, stage):
    """The sender puts tensors of which three and a half have room; both sides write."""
    before = stage.ledger.segments()
    made = [make_large(sender, number) for number in range(5)]
    arrived = []
    with limited_shm(stage, TOO_LITTLE):
        for tensor, values in made:
            _, refused = attempt(lambda t=tensor: sender.put(t, receiver, channel))
            check.equal(tensor.values(), values, "the sender's has its values")
            if refused is None:
                sentence = "what put accepted arrives"
                wait_until_receivable(sender, receiver, channel, sentence)
                arrived.append(receiver.get(sender, channel))
                check.equal(arrived[-1].values(), values, "it arrives with its values")
                check_writable(arrived[-1], values)
            check_writable(tensor, tensor.values())
        check_added_files(len(arrived), before, stage)
    drop_all(*arrived)
    for tensor, _ in made:
        again, values = sender.send(tensor, receiver, channel), tensor.values()
        check_arrived([tensor], [again], [values], "each can be sent afterwards")
        drop_all(again, tensor)


@clause("FAIL-4")
def test_tensor_that_was_shared_can_be_written_when_shm_is_full(
    sender, receiver, stage
):
    """A tensor of zeros is sent; then `/dev/shm` is filled, and both sides write."""
    tensor = sender.make([0.0] * LENGTH)
    arrived = sender.send(tensor, receiver)
    with limited_shm(stage, 0):
        values = check_writable(arrived, [0.0] * LENGTH)
        check_writable(tensor, tensor.values())
    check.equal(len(arrived.values()), len(values), "the receiver lives")


@clause("FAIL-5")
def test_limit_of_file_sizes_refuses_and_does_not_kill(sender, receiver, channel):
    """The sender puts four pages where a file may have two, and then little.

    Afterwards the same thread sends the four pages, or another one.
    """
    for send_again in (send, send_in_new_thread):
        tensor, values = make_large(sender, 5)
        with exhausted(sender, "file_size", SIZE // 2):
            check_put_or_refusal([tensor], [values], sender, receiver, channel)
            little, rows = make_several(sender, 6)
            arrived = sender.send(little, receiver, channel)
            check_values(arrived, rows, "what is small enough can be sent")
        values = check_writable(tensor, values)
        again = send_again(sender, tensor, receiver, channel)
        sentence = "the same tensor can be sent afterwards"
        check_arrived([tensor], [again], [values], sentence)


@clause("FAIL-5")
def test_tensor_that_fits_into_the_largest_file_can_be_shared(sender, receiver, stage):
    """The sender sends tensors where a file may have one page more than each of them.

    A size that is rounded to a power of two is too large for two of them.
    """
    require_segment_per_storage(stage)
    for pages in (1, 3, 5, 9):
        values = [pages + 0.25 * n for n in range(pages * PAGE // 4)]
        tensor = sender.make(values)
        with exhausted(sender, "file_size", (pages + 1) * PAGE):
            arrived = sender.send(tensor, receiver)
            check_arrived([tensor], [arrived], [values], f"{pages} pages can be sent")
        drop_all(tensor, arrived)


def check_put_in_shortages(shortages, sender, receiver, channel):
    """Put two tensors in each shortage; check that they can be sent afterwards."""
    for number, (what, spare) in enumerate(shortages):
        made = [make_large(sender, number), make_large(sender, number + 0.125)]
        tensors, rows = [m[0] for m in made], [m[1] for m in made]
        with exhausted(sender, what, spare):
            check_put_or_refusal(tensors, rows, sender, receiver, channel)
        rows = [check_writable(tensor, values) for tensor, values in made]
        arrived = sender.send(tensors, receiver, channel)
        check_arrived(tensors, arrived, rows, "the same tensors can be sent afterwards")
        drop_all(*tensors, *arrived)


def check_receive_in_shortages(shortages, sender, receiver, channel):
    """Receive two tensors in each shortage; check that later messages arrive."""
    for number, (what, spare) in enumerate(shortages):
        made = [make_large(sender, number), make_large(sender, number + 0.125)]
        tensors, rows = [m[0] for m in made], [m[1] for m in made]
        later = put_three_messages(number, tensors, sender, receiver, channel)
        with exhausted(receiver, what, spare):
            check_get_or_refusal(tensors, rows, receiver, sender, channel)
        check_values(tensors, rows, "the sender's tensors have their values")
        check_later_messages(number, later, sender, receiver, channel)
        drop_all(*tensors)


@clause("FAIL-6", pairwise=True)
def test_put_without_address_space_works_or_is_refused(sender, receiver, channel):
    """The sender puts two tensors when its address space may grow too little."""
    check_put_in_shortages(MEMORY_SHORTAGES, sender, receiver, channel)


@clause("FAIL-6", pairwise=True)
def test_put_without_mappings_works_or_is_refused(sender, receiver, channel):
    """The sender puts two tensors when it has all mappings that it may have."""
    require_exhaustible_mappings()
    check_put_in_shortages(MAPPING_SHORTAGES, sender, receiver, channel)


@clause("FAIL-7", pairwise=True)
def test_receive_without_address_space_works_or_is_refused(sender, receiver, channel):
    """The receiver gets two tensors when its address space may grow too little."""
    check_receive_in_shortages(MEMORY_SHORTAGES, sender, receiver, channel)


@clause("FAIL-7", pairwise=True)
def test_receive_without_mappings_works_or_is_refused(sender, receiver, channel):
    """The receiver gets two tensors when it has all mappings that it may have."""
    require_exhaustible_mappings()
    check_receive_in_shortages(MAPPING_SHORTAGES, sender, receiver, channel)


@clause("FAIL-8", pairwise=True)
def test_nothing_is_left_of_many_refusals(sender, receiver, channel, stage):
    """Many messages are refused, by the sender and by the receiver in turn."""

    def go_round(turn):
        what, spare = SHORTAGES[turn % len(SHORTAGES)]
        tensors, rows = make_several(sender, turn)
        with exhausted(sender, what, spare):
            check_put_or_refusal(tensors, rows, sender, receiver, channel)
        later = put_three_messages(turn, tensors, sender, receiver, channel)
        with exhausted(receiver, what, spare):
            check_get_or_refusal(tensors, rows, receiver, sender, channel)
        check_later_messages(turn, later, sender, receiver, channel)
        drop_all(*tensors)

    go_round(0)
    before = holdings_of(stage, sender, receiver)
    for turn in range(LEAK_ROUNDS // 2):
        go_round(turn)
    check_no_growth(before, stage, sender, receiver)


@clause("FAIL-8", pairwise=True)
def test_nothing_is_left_of_refusals_for_want_of_room(sender, receiver, channel, stage):
    """Messages for which `/dev/shm` has no room are put and dropped."""
    first, _ = make_several(sender, 1)
    drop_all(*first, *sender.send(first, receiver, channel))
    before = holdings_of(stage, sender, receiver)
    with limited_shm(stage, SIZE + SIZE // 2):
        for turn in range(LEAK_ROUNDS // 2):
            made = [make_large(sender, turn), make_large(sender, turn + 0.125)]
            tensors, rows = [m[0] for m in made], [m[1] for m in made]
            check_put_or_refusal(tensors, rows, sender, receiver, channel)
            drop_all(*tensors)
    check_no_growth(before, stage, sender, receiver)


@clause("FAIL-8", pairwise=True)
def test_nothing_is_left_of_refusals_for_want_of_file_size(
    sender, receiver, channel, stage
):
    """Messages of tensors that are larger than a file may be are put and dropped."""
    first, _ = make_several(sender, 1)
    drop_all(*first, *sender.send(first, receiver, channel))
    before = holdings_of(stage, sender, receiver)
    with exhausted(sender, "file_size", SIZE // 2):
        for turn in range(LEAK_ROUNDS // 2):
            tensor, values = make_large(sender, turn)
            check_put_or_refusal([tensor], [values], sender, receiver, channel)
            drop_all(tensor)
    check_no_growth(before, stage, sender, receiver)


@clause("FAIL-9")
def test_signals_disturb_no_message(sender, receiver, channel):
    """Both sides are interrupted all the time while batches of messages cross."""
    with (
        interrupted(sender) as at_sender,
        interrupted(receiver) as at_receiver,
    ):
        for turn in range(LEAK_ROUNDS // 2):
            made = [make_large(sender, turn), make_large(sender, turn + 0.125)]
            for number, (tensor, _) in enumerate(made):
                sender.put([turn, number, tensor], receiver, channel)
            for number, (tensor, values) in enumerate(made):
                *order, arrived = receiver.get(sender, channel)
                check.equal(order, [turn, number], "they arrive in order, each once")
                check.equal(arrived.values(), values, "with their values")
                drop_all(tensor, arrived)
    check(at_sender.times > 0, "the sender was interrupted")
    check(at_receiver.times > 0, "the receiver was interrupted")


@clause("FAIL-9")
def test_signals_do_not_end_the_wait_for_a_message(sender, receiver, channel):
    """The receiver waits and is interrupted; then the sender, interrupted, sends."""
    tensor = sender.make([91, 92, 93])
    with interrupted(sender), interrupted(receiver):
        with receiver.getting(sender, channel) as pending:
            before = pending.times_woken()
            woken = lambda: pending.times_woken() > before + 5  # noqa: E731
            eventually(woken, "the waiting receiver is interrupted", receiver.deadline)
            sender.put(tensor, receiver, channel)
        check.equal(pending.payload.values(), [91, 92, 93], "the tensor arrives")


@clause("FAIL-9", vary=("start_method",))
def test_signals_do_not_disturb_the_start_of_a_process(owner, peer):
    """An owner that is interrupted starts a child with a tensor, which it reads."""
    tensor = owner.make([94, 95, 96])
    owner.send(tensor, peer).drop()
    with interrupted(owner) as at_owner:
        child = owner.start_peer(arguments=[tensor])
        (arrived,) = child.arguments
        check.equal(arrived.values(), [94, 95, 96], "the tensor arrives")
    check(at_owner.times > 0, "the owner was interrupted")


@clause("FAIL-10", profiles=("strategies",))
def test_strategy_of_a_wrong_type_is_refused_and_changes_nothing(owner, peer):
    """Owner and peer set what is no string; both can share afterwards."""
    for actor, other in ((owner, peer), (peer, owner)):
        before = actor.module.get_sharing_strategy()
        for wrong in (None, 3, b"file_system", [before], {"name": before}, True):
            with refusal(f"{wrong!r} is refused"):
                actor.module.set_sharing_strategy(wrong)
            found = actor.module.get_sharing_strategy()
            check.equal(found, before, "the strategy is the one it was before")
        tensor = actor.make([101, 102])
        arrived = actor.send(tensor, other)
        check.equal(arrived.values(), [101, 102], "it shares as before")


@clause("FAIL-10", profiles=("drop-in",), vary=())
def test_start_method_of_a_wrong_type_is_refused_and_changes_nothing(owner):
    """The owner asks for contexts of wrong types, and sets them."""
    before = owner.module.get_start_method(True)
    for wrong in (3, b"spawn", ["spawn"], "Spawn", True):
        with refusal(f"get_context({wrong!r}) is refused"):
            owner.run(look_up_context, wrong)
        with refusal(f"set_start_method({wrong!r}) is refused"):
            owner.module.set_start_method(wrong, True)
        found = owner.module.get_start_method(True)
        check.equal(found, before, "the start method is the one it was before")


@clause("FAIL-11")
def test_shortage_of_one_process_leaves_the_others_unharmed(
    sender, receiver, bystander, channel
):
    """The sender is refused while the others go on; what all share stays shared."""
    shared = sender.make([111, 112, 113])
    first = sender.send(shared, receiver, channel)
    second = receiver.send(first, bystander, channel)
    refused, rows = make_several(sender, 114)
    for what in ("descriptors", "memory"):
        with exhausted(sender, what):
            attempt(lambda: sender.put(make_large(sender, 1)[0], receiver, channel))
            tensor = receiver.make([115, 116])
            arrived = receiver.send(tensor, bystander, channel)
            check_shared_memory(tensor, arrived)
            check_shared_memory(shared, first, second)
    check_shared_memory(first, shared, second)
    check_values(refused, rows, "the sender's other tensors have their values")


TEXT_SIZES = (0, 60_000)
"""The number of bytes beside a tensor: none, and more than fit into one packet."""

TEXT = "x" * 1000
"""What is beside each tensor, so that some of such messages fill a pipe."""


@clause("FAIL-1", prefers="fork", channels=("queue",))
def test_put_on_a_bounded_queue_without_descriptors_takes_no_place(owner):
    """The owner puts on queues with few places while it has too few descriptors.

    What put accepts arrives; what it refuses takes no place, and counts as no task.
    """
    kinds = ("queue_of_one", "joinable_queue_of_three")
    channels = [owner.open_channel(kind) for kind in kinds]
    child = owner.start_peer(arguments=channels)
    for channel, kind in zip(channels, kinds, strict=True):
        channel.put(owner, owner.make([1]))  # makes what is made only once
        channel.get(child).drop()
        if kind.startswith("joinable"):
            channel.use(child, Channel.task_done)
        for size, spare in product(TEXT_SIZES, (0, 1, 2, 3)):
            tensor = owner.make([size, spare])
            payload = ["x" * size, tensor]
            with exhausted(owner, "descriptors", spare):
                _, refused = attempt(lambda c=channel, p=payload: c.put(owner, p))
                check.equal(tensor.values(), [size, spare], "it has its values")
                found = channel.get_within(child, 0 if refused else child.deadline)
            arrived = [tensor.values() for _, tensor in found]
            due = [] if refused else [[size, spare]]
            check.equal(arrived, due, "what put accepted arrives, and nothing else")
            channel.put(owner, payload)
            text, arrived = channel.get(child)
            check.equal(len(text), size, "afterwards all of it arrives")
            check.equal(arrived.values(), [size, spare], "with its tensor")
            if kind.startswith("joinable"):
                for _ in (0,) * (1 if refused else 2):
                    channel.use(child, Channel.task_done)
                channel.use(owner, Channel.join)


MOST_PUT = {
    "joinable_queue_of_three": 3,
    "queue": 100,
    "queue_of_many": 100,
    "queue_of_one": 1,
}
"""How many messages are put on a queue of each kind, at most what it takes."""


@clause("FAIL-12", prefers="fork", channels=("queue",))
@pytest.mark.parametrize("kind", MOST_PUT)
def test_put_on_a_queue_without_threads_works_or_is_refused(owner, kind):
    """The owner puts on a new queue, up to the first refusal, and later once more."""
    channel = owner.open_channel(kind)
    child = owner.start_peer(arguments=[channel])
    rows = [[number, 12] for number in range(MOST_PUT[kind])]
    tensors = [owner.make(row) for row in rows]
    refused = []
    with exhausted(owner, "threads"):
        for tensor in tensors:
            _, error = attempt(lambda one=tensor: channel.put(owner, [TEXT, one]))
            if error is not None:
                refused.append(tensor)
                break
        check_values(tensors, rows, "the tensors have their values")
        accepted = tensors.index(refused[0]) if refused else len(tensors)
        found = channel_content(channel, child, accepted)
    check_values(found, rows[:accepted], "what was accepted arrives, nothing else")
    check.equal(channel.use(owner, Channel.size), 0, "the places that are taken")
    last = refused or tensors[:1]
    channel.put(owner, [TEXT, *last])
    (arrived,) = channel_content(channel, child, 1)
    check_shared_memory(last[0], arrived)
    if kind.startswith("joinable"):
        child.run(finish_tasks, channel, accepted + 1)
        channel.use(owner, Channel.join)


def channel_content(channel, receiver, count):
    """Return the tensors of so many messages, and look that there is no other one."""
    found = []
    for number in range(count):
        message = channel.get_within(receiver, receiver.deadline)
        check(message, f"message {number} of {count} arrives")
        found.append(message[0][1])
    check.equal(channel.get_within(receiver, 0), [], "no other message is there")
    return found


@clause("FAIL-2", prefers="fork", channels=("queue",))
def test_message_that_is_lost_for_want_of_descriptors_gives_its_place_back(owner):
    """A child gets from a queue with two places while it has too few descriptors."""
    channel = owner.open_channel("queue_of_two")
    child = owner.start_peer(arguments=channel)
    channel.put(owner, owner.make([1]))
    channel.get(child).drop()
    for spare in (0, 1, 0, 2, 1, 0):
        tensors = [owner.make([spare, number]) for number in range(3)]
        channel.put(owner, ["x" * TEXT_SIZES[spare % 2], *tensors])
        with exhausted(child, "descriptors", spare):
            got, refused = attempt(lambda: channel.get(child))
        if refused is None:
            rows = [[spare, number] for number in range(3)]
            check_values(got[1:], rows, "what is received is all of the message")
        for number in range(2):
            channel.put(owner, owner.make([spare, 40 + number]))
        for number in range(2):
            arrived = channel.get(child)
            check.equal(arrived.values(), [spare, 40 + number], "the next ones arrive")


FILLINGS = ((200, 30_000), (20, 200_000))
"""The number of messages that are put, and the number of characters in each."""


@clause("FAIL-1", prefers="fork", channels=("queue",))
def test_what_waits_in_a_queue_arrives_though_descriptors_run_out(owner):
    """The owner puts more than the system takes, and has no descriptor left then.

    Only now a child begins to receive, so the owner has to write what still waits. It
    holds the one tensor that is among it, so no descriptor of that becomes free.
    """
    channel = owner.open_channel("queue")
    child = owner.start_peer(arguments=[channel])
    tensor = owner.make([1, 2])
    for count, size in FILLINGS:
        for _ in range(count):
            channel.put(owner, "x" * size)
    channel.put(owner, [tensor])
    with exhausted(owner, "descriptors", 0):
        for count, size in FILLINGS:
            found = {len(channel.get(child)) for _ in range(count)}
            check.equal(found, {size}, "what put accepted arrives")
        found = channel.get_within(child, child.deadline)
    check.equal(len(found), 1, "the tensor that put accepted arrives")
    check_shared_memory(tensor, *found[0])
