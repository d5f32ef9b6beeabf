"""Chapter FS: segments with a name, which a process has to remove."""

import contextlib
import os
import re
from collections import Counter
from functools import partial
from itertools import product
from typing import Any

from sharedtensor_conformance.chapters.exhaustion import exhausted
from sharedtensor_conformance.chapters.process_actions import (
    end_forked,
    fork_one_that_shares,
    let_it_share,
    start_in_parallel,
)
from sharedtensor_conformance.chapters.shared_steps import (
    check_shared_memory,
    file_of,
    files_of_storages,
    fork_with,
    judging,
    new_segment_name,
    require_segment_per_storage,
    several_strategies,
    share_once_more,
    share_separately,
    strategy_set,
    tensors_after_strategy_change,
    unthreaded_channel,
)
from sharedtensor_conformance.chapters.tensor_actions import (
    make_long,
    make_many,
    remove_name,
    share_each,
)
from sharedtensor_conformance.harness import attempt, check, clause, eventually
from sharedtensor_conformance.harness.case.axes import layouts_of
from sharedtensor_conformance.harness.kernel.process_tree import wait_until
from sharedtensor_conformance.harness.remote.actor import Actor

TIME_TO_NOTICE = 3.0
"""The number of seconds in which whoever removes names should notice a death."""

ARGUMENT_COUNT, FREE_DESCRIPTORS = 100, 50
"""The number of tensors among the arguments of a process, and the smaller number of
descriptors that its parent can open when it starts the process.
"""

WAITING_COUNT, FREE_TO_WAIT = 1000, 64
"""The number of messages that wait in a queue, and the smaller number of descriptors
that their sender can open.
"""

MANY_STORAGES = 20
"""The number of storages that a process holds at the same time. The test finds an
implementation that keeps a descriptor for each of them.
"""

LARGE_LENGTH = 1 << 20
"""The number of elements of a tensor of 4 MiB."""

PAGE = os.sysconf("SC_PAGESIZE")

LENGTHS = (1, 3, 1023, 1024, 1025, 4096, *(2**power + 1 for power in range(12, 21)))
"""Lengths in elements of 4 bytes: less than a page, whole pages, and a little more.

They go up to 4 MiB, because an implementation may round sizes up to a power of two, or
to huge pages.
"""


FASTEST_START: dict[str, Any] = {"vary": (), "prefers": "fork", "isolated": True}
"""For tests whose result does not depend on the start method: the fastest is used."""


def wait_until_removed(stage, name):
    """Wait until the file with this name has been removed."""
    gone = lambda: name not in stage.ledger.segments()  # noqa: E731
    eventually(gone, "the file is removed", within=stage.grace)


def share_named(actor, stage, values):
    """Make `actor` share a tensor; return the tensor and the name of its file."""
    before = stage.ledger.segments()
    tensor = actor.make(values)
    tensor.share()
    check.equal(tensor.values(), values, "the tensor is shared")
    return tensor, new_segment_name(stage, before)


@clause("FS-1")
def test_shared_storage_has_one_name(sender, receiver, bystander, channel, stage):
    """The ledger is read in flight and while all three hold the tensor."""
    before = stage.ledger.segments()
    tensor = sender.make([1, 2, 3])
    sender.put(tensor, receiver, channel)
    name = new_segment_name(stage, before)
    arrived = receiver.get(sender, channel)
    onward = receiver.send(arrived, bystander, channel)
    again = sender.send(tensor, bystander, channel)
    for held in (tensor, arrived, onward, again):
        check.equal(held.values(), [1, 2, 3], "each has the values")
    check.equal(
        new_segment_name(stage, before), name, "it is the same file as in flight"
    )


@clause("FS-1", profiles=("share",))
def test_storage_shared_on_request_has_one_name(owner, peer, stage):
    """The owner shares a tensor, sends it, and shares it again."""
    before = stage.ledger.segments()
    tensor = owner.make([4, 5, 6])
    tensor.share()
    name = new_segment_name(stage, before)
    arrived = owner.send(tensor, peer)
    for held in (tensor, arrived):
        held.share()
        check.equal(new_segment_name(stage, before), name, "it is still the same file")


@clause("FS-1", profiles=("views",), vary=())
def test_base_and_views_have_one_name(sender, receiver, layout, stage):
    """The sender sends a view, its base, and both in one message."""
    before = stage.ledger.segments()
    base = sender.make(list(range(900, 924)))
    view = sender.view(base, layout)
    arrived = [sender.send(sent, receiver) for sent in (view, base, [base, view])]
    check.equal(arrived[1].values(), list(range(900, 924)), "the base arrives")
    new_segment_name(stage, before)


@clause("FS-2", vary=("strategy", "start_method"))
def test_name_goes_with_the_last_reference(sender, receiver, bystander, stage):
    """Three processes drop one storage, each of them last in its turn."""
    for last in range(3):
        before = stage.ledger.segments()
        tensor = sender.make([7, 8, 9])
        held = [tensor, *(sender.send(tensor, to) for to in (receiver, bystander))]
        kept = held.pop(last)
        name = new_segment_name(stage, before)
        for dropped in held:
            dropped.drop()
        check(
            name in stage.ledger.segments(), "it is there while one holds the storage"
        )
        check.equal(kept.values(), [7, 8, 9], "and has its values")
        kept.drop()
        gone = lambda name=name: name not in stage.ledger.segments()  # noqa: E731
        eventually(gone, "the file is removed", within=stage.grace)


@clause("FS-2")
def test_name_goes_though_one_process_received_it_twice(
    sender, receiver, channel, stage
):
    """The receiver gets one tensor three times; all are dropped, in either order."""
    for order in (1, -1):
        before = stage.ledger.segments()
        tensor = sender.make([13, 14, 15])
        arrived = [sender.send(tensor, receiver, channel) for _ in range(3)]
        name = new_segment_name(stage, before)
        for dropped in [tensor, *arrived][::order]:
            check.equal(dropped.values(), [13, 14, 15], "it has its values till then")
            check(name in stage.ledger.segments(), "and the file is there")
            dropped.drop()
        gone = lambda name=name: name not in stage.ledger.segments()  # noqa: E731
        eventually(gone, "the file is removed", within=stage.grace)


@clause("FS-2", profiles=("share",), start_methods=("fork",), isolated=True)
def test_name_goes_in_a_child_that_was_forked_without_multiprocessing(stage):
    """A message with a tensor of its parent waits, while the child shares and drops.

    Parent and child make their names after the fork.
    """
    require_segment_per_storage(stage)
    with stage.fresh() as fresh:
        forked = fresh.owner.run(fork_one_that_shares, OWN_SEGMENT_LENGTH)
        tensor = fresh.owner.run(make_long, OWN_SEGMENT_LENGTH, 20)
        tensor.share()
        fresh.owner.put(tensor, fresh.peer)
        before = fresh.ledger.segments()
        check(fresh.owner.run(let_it_share, forked), "the child shares a tensor")
        gone = lambda: not fresh.ledger.segments() - before  # noqa: E731
        eventually(gone, "the file of the child is removed", within=stage.grace)
        arrived = fresh.peer.get(fresh.owner)
        check.equal(arrived.read(0), 20, "the parent's tensor arrives")
        fresh.owner.run(end_forked, forked)


OWN_SEGMENT_LENGTH = 20_000
"""The number of elements of a tensor that is too large to share a file with others."""


@clause("FS-2")
def test_name_goes_though_others_of_its_message_are_held(
    sender, receiver, channel, stage
):
    """The receiver gets two tensors, each with its file, drops one and holds the other.

    It has neither before, or either of them.
    """
    require_segment_per_storage(stage)
    for known, dropped in product((None, 0, 1), (0, 1)):
        before = stage.ledger.segments()
        made = [
            sender.run(make_long, OWN_SEGMENT_LENGTH, number) for number in (16, 17)
        ]
        early = [] if known is None else [sender.send(made[known], receiver, channel)]
        arrived = sender.send(made, receiver, channel)
        sender.run(Actor.drop, *(each.key for each in made))
        if known == dropped:
            early.pop().drop()
        arrived[dropped].drop()
        new = lambda before=before: stage.ledger.segments() - before  # noqa: E731
        one = lambda new=new: len(new()) == 1  # noqa: E731
        eventually(one, "one file is there", within=stage.grace, found=new)
        kept = arrived[1 - dropped]
        check.equal(
            kept.read(OWN_SEGMENT_LENGTH - 1),
            17 - dropped,
            "the other has its values",
        )
        receiver.run(Actor.drop, *(each.key for each in (kept, *early)))
        none = lambda new=new: not new()  # noqa: E731
        eventually(none, "no file is there", within=stage.grace, found=new)


@clause("FS-2")
def test_name_goes_when_a_message_in_flight_was_received_and_dropped(
    sender, receiver, channel, stage
):
    """The sender drops before the receive; the receiver drops last, three times."""
    for number in range(3):
        before = stage.ledger.segments()
        tensor = sender.make([number, 11, 12])
        sender.put(tensor, receiver, channel)
        tensor.drop()
        name = new_segment_name(stage, before)
        arrived = receiver.get(sender, channel)
        check.equal(arrived.values(), [number, 11, 12], "the tensor arrives")
        arrived.drop()
        gone = lambda name=name: name not in stage.ledger.segments()  # noqa: E731
        eventually(gone, "the file is removed", within=stage.grace)


@clause("FS-2", profiles=("share",))
def test_name_of_a_storage_that_was_never_sent_goes(owner, peer, stage):
    """Owner and peer share a tensor and drop it."""
    for actor in (owner, peer):
        before = stage.ledger.segments()
        tensor = actor.make([13, 14, 15])
        tensor.share()
        new_segment_name(stage, before)
        tensor.drop()
        gone = lambda before=before: stage.ledger.segments() <= before  # noqa: E731
        eventually(gone, "the file is removed", within=stage.grace)


@clause("FS-3")
def test_shared_storages_keep_no_descriptors_open(sender, receiver, channel, stage):
    """The sender sends twenty tensors; both sides hold all of them."""
    held = [sender.make([1, 2])]
    held.append(sender.send(held[0], receiver, channel))
    before = [sender.descriptors(), receiver.descriptors()]
    for number in range(MANY_STORAGES):
        held.append(sender.make([number, 22, 23]))
        held.append(sender.send(held[-1], receiver, channel))
    check.equal(held[-1].values(), [MANY_STORAGES - 1, 22, 23], "the last one arrives")

    def settled():
        now = [sender.descriptors(), receiver.descriptors()]
        return all(count <= then for count, then in zip(now, before, strict=True))

    sentence = "neither side has more descriptors open than with one storage"
    eventually(settled, sentence, within=stage.grace)


def common_files(tensors):
    """Return how many files there are that several of these tensors lie in."""
    return sum(count > 1 for count in Counter(map(file_of, tensors)).values())


@clause("FS-3")
def test_large_storages_keep_no_descriptors_open(sender, receiver, stage):
    """The sender sends tensors of 4 MiB, one and then three at once; both hold all.

    A file that several of them lie in may cost one descriptor.
    """
    first = sender.send(sender.make([1, 2]), receiver)
    check.equal(first.values(), [1, 2], "the first one arrives")
    before = stage.holdings(sender, receiver)
    allowed = 0
    for count in (1, 3):
        made = [sender.run(make_long, LARGE_LENGTH, number) for number in range(count)]
        arrived = sender.send(made, receiver)
        check.equal(arrived[-1].read(LARGE_LENGTH - 1), count - 1, "they arrive")
        allowed += common_files(made)
        sentence = f"{count} large storages cost no descriptor"
        stage.check_descriptors(before, {sender: allowed, receiver: allowed}, sentence)


@clause("FS-3", profiles=("share",))
def test_storages_shared_on_request_keep_no_descriptors_open(owner, stage):
    """The owner shares twenty tensors and holds them."""
    held = [owner.make([1, 2])]
    held[0].share()
    before = owner.descriptors()
    for number in range(MANY_STORAGES):
        held.append(owner.make([number, 24, 25]))
        held[-1].share()
        check.equal(held[-1].values(), [number, 24, 25], "sharing keeps the values")
    sentence = "the owner has no more descriptors open than with one storage"
    eventually(lambda: owner.descriptors() <= before, sentence, within=stage.grace)


@clause("FS-3", start_methods=("spawn", "forkserver"), vary=("start_method",))
def test_storages_among_arguments_keep_no_descriptors_open(owner, peer, stage):
    """The owner starts a child with few tensors, and one with twenty in each way.

    It shares them by that; or before, all by one message or each by a call of its own.
    The first child has two in each way. A file that several of the tensors of a child
    lie in may cost one descriptor.
    """
    ways = {
        "by the start": lambda tensors: tensors,
        "by one message": lambda tensors: owner.send(tensors, peer) and tensors,
        "by separate calls": lambda tensors: share_separately(stage, owner, tensors),
    }

    def make(count, share):
        return share(owner.run(make_many, count, 26))

    few = owner.start_peer([make(2, share) for share in ways.values()])
    for way, share in ways.items():
        many = owner.start_peer(make(MANY_STORAGES, share))
        held = many.arguments
        values = [tensor.values() for tensor in held]
        check.equal(values, [[26 + n] for n in range(MANY_STORAGES)], "they arrive")
        in_common = common_files(held)

        def counts():
            return [child.descriptors() for child in (few, many)]  # noqa: B023

        settled = lambda: counts()[1] <= counts()[0] + in_common  # noqa: B023, E731
        sentence = (
            f"with twenty tensors shared {way} a child has no more descriptors than "
            f"with two, apart from one for each common file, here {in_common}"
        )
        eventually(settled, sentence, within=stage.grace, found=counts)


@clause(
    *("FS-3", "START-2"),
    profiles=("share",),
    start_methods=("spawn", "forkserver"),
    vary=("start_method",),
    starts=True,
    mainly="FS-3",
)
def test_process_can_be_started_with_more_storages_than_there_are_descriptors(
    owner, start_method
):
    """The owner can open few descriptors and starts a process with many tensors."""
    tensors = owner.run(make_many, ARGUMENT_COUNT, 27)
    owner.run(share_each, tensors)
    for each in (tensors[:1], tensors):  # descriptors of the first start may stay open
        with exhausted(owner, "descriptors", FREE_DESCRIPTORS):
            ended = owner.run(start_in_parallel, [each], start_method)
        check.equal(
            owner.exit_codes(ended), [0], "the process finds its tensors, and ends"
        )
    check.equal(
        tensors[-1].read(0), 27 + ARGUMENT_COUNT, "it has written to the last one"
    )


@clause(
    *("FS-1", "STRAT-4"),
    profiles=("strategies", "share", "identity"),
    several_strategies=True,
    prefers="fork",
    starts=True,
    mainly="FS-1",
)
def test_storage_lies_in_a_file_with_a_name_whatever_the_strategy_was_before(
    owner, channel, stage, strategy
):
    """A new process shares under the other strategy first, then under this one."""
    for held in tensors_after_strategy_change(owner, channel, strategy):
        named = file_of(held) in stage.ledger.named_files()
        check(named, "it lies in a file that has a name")


@clause("FS-1", profiles=("strategies",), several_strategies=True)
def test_storage_received_under_another_strategy_has_one_name(
    sender, receiver, bystander, stage, strategy
):
    """The receiver's strategy is another; it receives, sends on and drops last."""
    before = stage.ledger.segments()
    tensor = sender.make([26, 27, 28])
    for other in set(several_strategies(receiver)) - {strategy}:
        with strategy_set(receiver, other):
            arrived = sender.send(tensor, receiver)
            name = new_segment_name(stage, before)
            onward = receiver.send(arrived, bystander)
            onward.write(1, 29)
            check.equal(tensor.values(), [26, 29, 28], "all share one storage")
            check.equal(new_segment_name(stage, before), name, "which has one file")
            arrived.drop()
            onward.drop()
    name = new_segment_name(stage, before)
    tensor.drop()
    wait_until_removed(stage, name)


@clause("FS-1", profiles=("share",), vary=(), start_methods=("fork",))
def test_storage_that_children_inherited_has_one_name(owner, stage):
    """Two children inherit a tensor by fork, and one of them sends it back."""
    tensor, name = share_named(owner, stage, [30, 31, 32])
    before = stage.ledger.segments() - {name}
    children = [owner.start_peer([tensor], start_method="fork") for _ in range(2)]
    inherited = [child.arguments[0] for child in children]
    back = children[1].send(inherited[1], owner)
    for held in (tensor, *inherited, back):
        check.equal(held.values(), [30, 31, 32], "each has the values")
    check.equal(new_segment_name(stage, before), name, "there is no other file")


@clause("FS-2", "FS-8", start_methods=("fork",))
def test_name_goes_when_a_forked_child_has_dropped_what_it_inherited(
    owner, peer, stage
):
    """The owner sends or receives a tensor, and has a child that inherits it.

    The peer has dropped it. Owner and child drop it, in either order, and live on.
    """
    for received, child_is_first in product((False, True), (True, False)):
        before = stage.ledger.segments()
        maker, other = (peer, owner) if received else (owner, peer)
        made = maker.make([70, 71])
        arrived = maker.send(made, other)
        name = new_segment_name(stage, before)
        held, elsewhere = (arrived, made) if received else (made, arrived)
        elsewhere.drop()
        ((inherited,),) = fork_with(owner, [held])
        first, last = (inherited, held)[:: 1 if child_is_first else -1]
        first.drop()
        who = f"{first.actor.name} has dropped it, {last.actor.name} has not"
        with judging("FS-8"):
            check.equal(last.values(), [70, 71], f"it has its values: {who}")
            check(name in stage.ledger.segments(), f"the file is there: {who}")
        last.drop()
        with judging("FS-2"):
            gone = lambda name=name: name not in stage.ledger.segments()  # noqa: E731
            sentence = f"the file is removed: {first.actor.name} and then "
            sentence += f"{last.actor.name} have dropped it"
            eventually(gone, sentence, within=stage.grace)
            check(inherited.actor.is_alive(), "the child lives on")
        stage.end_extra()


@clause("FS-2")
def test_nothing_is_left_of_a_storage_without_elements(
    sender, receiver, channel, stage
):
    """The sender sends tensors of no elements, which both drop."""
    before = stage.ledger.segments()
    for shape in ((0,), (3, 0)):
        tensor = sender.make([], shape=shape)
        arrived = sender.send(tensor, receiver, channel)
        check.equal(arrived.shape(), shape, "it arrives")
        arrived.drop()
        tensor.drop()
    gone = lambda: stage.ledger.segments() <= before  # noqa: E731
    eventually(gone, "no file is left", within=stage.grace)


def check_name_shows_process(actor, stage):
    """Make `actor` share a tensor; check that the name of its file shows its process.

    Check that the file belongs to the user. If the implementation keeps segments for
    later use, the file may be an older one.

    Returns:
        The tensor.
    """
    before = stage.ledger.segments()
    tensor = actor.make([33, 34, 35])
    tensor.share()
    pattern = stage.implementation.segment_pattern.replace("{pid}", str(actor.pid))
    names = files_of_storages(stage, before, 1)
    theirs = [name for name in names if re.fullmatch(pattern, name)]
    check(theirs, f"a name is the implementation's for this process: {sorted(names)}")
    told = [name for name in theirs if str(actor.pid) in re.findall(r"\d+", name)]
    check(told, f"and names the process: {theirs}")
    uid = stage.ledger.segment_status(told[0])["uid"]
    check.equal(uid, os.geteuid(), "the file is the user's")
    return tensor


@clause("FS-4", profiles=("share",), vary=("strategy", "start_method"))
def test_name_says_whose_it_is(owner, peer, stage):
    """Owner and peer share tensors; each name has the process id of its maker."""
    held = [check_name_shows_process(actor, stage) for actor in (owner, peer, owner)]
    check.equal(len(held), 3, "all are shared at once")


@clause("FS-4", profiles=("share",), vary=(), start_methods=("fork",))
def test_name_says_that_a_forked_child_made_it(owner, peer, stage):
    """The owner shares and receives, and forks; child and owner share in turn.

    What a process knows of itself at its first use is not true in the child.
    """
    held = [check_name_shows_process(owner, stage)]
    arrived = peer.send(peer.make([36, 37]), owner)
    child = owner.start_peer(start_method="fork")
    held += [check_name_shows_process(actor, stage) for actor in (child, owner, child)]
    check.equal(arrived.values(), [36, 37], "what the owner received is as it was")


@clause("FS-5", profiles=("share",))
def test_name_is_used_once(owner, peer, stage):
    """Owner and peer share and drop, one storage after another."""
    names = []
    for number in range(MANY_STORAGES // 2):
        for actor in (owner, peer):
            tensor, name = share_named(actor, stage, [number, 36])
            names.append(name)
            tensor.drop()
            wait_until_removed(stage, name)
    check.equal(len(set(names)), len(names), "no name comes twice")


@clause("FS-5", profiles=("share",), vary=(), start_methods=("fork",))
def test_children_of_one_process_use_different_names(owner, stage):
    """Children that were forked from one state each share a tensor."""
    require_segment_per_storage(stage)
    before = stage.ledger.segments()
    children = [owner.start_peer(start_method="fork") for _ in range(3)]
    for number, child in enumerate(children):
        tensor = child.make([number, 37])
        tensor.share()
        check.equal(tensor.values(), [number, 37], "the child shares")
        names = stage.ledger.segments() - before
        check.equal(len(names), number + 1, "each storage has a name of its own")


@clause("FS-6", profiles=("share", "views"))
def test_only_sharing_makes_a_file(owner, peer, stage, implementation):
    """Owner and peer make tensors and views; then they share one of them."""
    for actor in (owner, peer):
        before = stage.ledger.segments()
        base = actor.make(list(range(24)))
        views = [base.view(layout) for layout in layouts_of(implementation)]
        check(base.values() and views[0].shape(), "tensors and views are there")
        check.equal(stage.ledger.segments() - before, set(), "no file is")
        base.share()
        new_segment_name(stage, before)


@clause("FS-6", profiles=("share",))
def test_only_sharing_makes_a_file_whatever_the_size(owner, peer, stage):
    """Owner and peer make a tensor of each size; then they share it."""
    for actor, length in product((owner, peer), LENGTHS):
        before = stage.ledger.segments()
        tensor = actor.run(make_long, length, 3)
        check.equal(tensor.read(length - 1), 3, "the tensor is there")
        made = stage.ledger.segments() - before
        check.equal(made, set(), f"a tensor of {4 * length} bytes has no file")
        tensor.share()
        new_segment_name(stage, before)


@clause("FS-7")
def test_file_is_as_large_as_its_storage(sender, receiver, stage):
    """The sender sends storages of less than a page, of whole pages, and of more."""
    for count in LENGTHS:
        before = stage.ledger.segments()
        tensor = sender.run(make_long, count, count)
        arrived = sender.send(tensor, receiver)
        check.equal(arrived.read(count - 1), count, "the last element arrives")
        size = stage.ledger.segment_status(new_segment_name(stage, before))["size"]
        pages = -(-4 * count // PAGE)
        check(size <= (pages + 1) * PAGE, f"the file takes little more: {size} bytes")


@clause("FS-8")
def test_name_stays_when_its_maker_has_dropped(sender, receiver, bystander, stage):
    """The sender drops; the receiver sends on and drops; the bystander sends back."""
    before = stage.ledger.segments()
    tensor = sender.make([38, 39, 40])
    arrived = sender.send(tensor, receiver)
    name = new_segment_name(stage, before)
    tensor.drop()
    onward = receiver.send(arrived, bystander)
    arrived.drop()
    back = bystander.send(onward, sender)
    onward.drop()
    check.equal(back.values(), [38, 39, 40], "it comes back")
    check.equal(new_segment_name(stage, before), name, "under its name")


@clause("FS-8", starts=True)
def test_name_stays_when_its_maker_has_ended(owner, bystander, stage):
    """Children send a tensor and exit or are killed; the receiver sends it on."""
    for end in ("leave", "kill"):
        before = stage.ledger.segments()
        child = owner.start_peer()
        arrived = child.send(child.make([41, 42, 43]), owner)
        name = new_segment_name(stage, before)
        getattr(child, end)()
        stage.end_extra()
        onward = owner.send(arrived, bystander)
        check.equal(onward.values(), [41, 42, 43], "it can be sent on")
        arrived.drop()
        check.equal(onward.values(), [41, 42, 43], "and the last holder has it")
        check.equal(new_segment_name(stage, before), name, "under its name")
        onward.drop()


@clause("FS-8", starts=True)
def test_name_stays_for_a_message_whose_sender_was_killed(owner, stage):
    """A child puts one tensor, holds another one, and is killed; the owner receives.

    Before that, the name of the other tensor goes: so whoever removes names has noticed
    the death. A library that does not remove it is judged without that.
    """
    before, channel = stage.ledger.segments(), unthreaded_channel(stage)
    child = owner.start_peer()
    alone = child.make([65, 66])
    child.send(alone, owner).drop()
    known = before | {new_segment_name(stage, before)}
    child.put(child.make([44, 45, 46]), owner, channel)
    name = new_segment_name(stage, known)
    child.kill()
    alone_is_gone = lambda: not (known - before) & stage.ledger.segments()  # noqa: E731
    wait_until(alone_is_gone, min(stage.grace, TIME_TO_NOTICE))
    check(name in stage.ledger.segments(), "the name in the message is there")
    arrived = owner.get(child, channel)
    check.equal(arrived.values(), [44, 45, 46], "the message can be received")
    check.equal(new_segment_name(stage, known), name, "under its name")
    arrived.drop()


@contextlib.contextmanager
def chain_of_processes(stage, strategy):
    """Yield an isolated stage and three of its processes: maker, middle and last.

    The owner and all of them start before a manager is needed. Then each shares a
    tensor by itself, so each may start a manager of its own.
    """
    with stage.fresh(enter=False) as fresh:
        roles = fresh.peer, fresh.bystander, fresh.owner.start_peer()
        fresh.owner.module.set_sharing_strategy(strategy)
        for actor in (fresh.owner, *roles):
            share_named(actor, fresh, [57, 58])
        yield fresh, *roles


def send_on_and_back(owner, arrived, last):
    """Send a tensor from the owner to the process `last` and back.

    The owner and `last` drop the tensor when they have sent it.

    Returns:
        The tensor as the owner got it back.
    """
    onward = owner.send(arrived, last)
    check_shared_memory(arrived, onward)
    arrived.drop()
    back = last.send(onward, owner)
    onward.drop()
    check_shared_memory(back)
    return back


@clause("FS-2", "FS-8", profiles=("share", "strategies"), **FASTEST_START)
def test_name_stays_and_goes_where_each_process_may_have_a_manager(stage, strategy):
    """A tensor is passed on twice, dropped by the first two, and sent on again."""
    with chain_of_processes(stage, strategy) as (fresh, maker, middle, last):
        before = fresh.ledger.segments()
        tensor = maker.make([59, 60, 61])
        passed_on = maker.send(tensor, middle)
        arrived = middle.send(passed_on, fresh.owner)
        name = new_segment_name(fresh, before)
        tensor.drop()
        passed_on.drop()
        back = send_on_and_back(fresh.owner, arrived, last)
        check(name in fresh.ledger.segments(), "it is the same file")
        back.drop()
        wait_until_removed(fresh, name)


@clause("FS-8", "MGR-11", profiles=("share", "strategies"), **FASTEST_START)
def test_name_stays_where_processes_with_managers_of_their_own_were_killed(
    stage, strategy
):
    """A tensor is passed on twice, the first two are killed, and it is sent on."""
    with chain_of_processes(stage, strategy) as (fresh, maker, middle, last):
        before = fresh.ledger.segments()
        passed_on = maker.send(maker.make([62, 63, 64]), middle)
        arrived = middle.send(passed_on, fresh.owner)
        name = new_segment_name(fresh, before)
        for actor in (maker, middle):
            actor.kill()
        send_on_and_back(fresh.owner, arrived, last)
        check(name in fresh.ledger.segments(), "it is the same file")


@clause("FS-8", "LIFE-22", vary=(), start_methods=("fork",), isolated=True)
def test_name_stays_for_a_child_whose_parent_had_received_the_storage(stage):
    """The owner receives, has a child that inherits, and drops, as does the sender.

    Nothing has made the owner start a manager: whoever keeps names keeps these for the
    peer. Another storage is dropped after the first by both; its name goes no earlier.
    """
    with stage.fresh(enter=False) as fresh:
        owner, peer = fresh.owner, fresh.peer
        held = [peer.make([53, 54, 55])]
        arrived = [peer.send(held[0], owner)]
        name = new_segment_name(fresh, set())
        child = owner.start_peer(arguments=arrived[0], start_method="fork")
        inherited = child.arguments
        held.append(peer.make([56, 57]))
        arrived.append(peer.send(held[1], owner))
        later = new_segment_name(fresh, {name})
        for dropped in (*held, *arrived):
            dropped.drop()
        wait_until_removed(fresh, later)
        check(name in fresh.ledger.segments(), "the name that the child needs is there")
        back = child.send(inherited, owner)
        check.equal(back.values(), [53, 54, 55], "the child can send the tensor")
        check_shared_memory(inherited, back)


@clause("FS-9", starts=True)
def test_name_goes_with_the_last_process_that_holds_the_storage(owner, stage):
    """Children hold a storage that the owner has dropped, and exit or are killed.

    It is small or large.
    """
    for end, length in product(("leave", "kill"), (3, LARGE_LENGTH)):
        before = stage.ledger.segments()
        child = owner.start_peer()
        tensor = owner.run(make_long, length, 44)
        arrived = owner.send(tensor, child)
        tensor.drop()
        name = new_segment_name(stage, before)
        check.equal(arrived.read(length - 1), 44, "the child holds it")
        getattr(child, end)()
        share_once_more(stage, owner)
        wait_until_removed(stage, name)


@clause("FS-9", profiles=("share",), starts=True)
def test_name_goes_with_the_process_that_alone_held_the_storage(owner, stage):
    """Children share tensors that they never send, and exit or are killed."""
    for end in ("leave", "kill"):
        child = owner.start_peer()
        _, name = share_named(child, stage, [47, 48, 49])
        getattr(child, end)()
        share_once_more(stage, owner)
        wait_until_removed(stage, name)


@clause("FS-10", **FASTEST_START)
def test_name_goes_with_a_message_that_nobody_can_receive(stage):
    """Children are killed with a message in their channel, which is then closed.

    It has a small tensor or a large one.
    """
    with stage.fresh() as fresh:
        for channel, length in product(
            stage.implementation.channels, (3, LARGE_LENGTH)
        ):
            child = fresh.owner.start_peer()
            tensor = fresh.owner.run(make_long, length, 50)
            fresh.owner.put(tensor, child, channel)
            name = new_segment_name(fresh, set())
            child.kill()
            tensor.drop()
            fresh.end_extra()
            check(fresh.owner.is_alive(), "the sender lives on")
            share_once_more(fresh, fresh.owner)
            wait_until_removed(fresh, name)


@clause("FS-11", channels=("queue",), **FASTEST_START)
def test_any_number_of_messages_can_wait_in_a_queue(stage):
    """The owner, which can open few descriptors, puts more messages than that.

    Before the peer receives them, the three processes send each other tensors.
    """
    with stage.fresh() as fresh:
        owner, peer, bystander = fresh.owner, fresh.peer, fresh.bystander
        others = ((owner, bystander), (bystander, peer), (peer, bystander))
        channel = unthreaded_channel(fresh)
        for sender, receiver in others:  # what is made once is there
            sender.send(sender.make([51, 52]), receiver, channel).drop()
        owner.send(owner.make([51, 52]), peer, "queue").drop()
        with exhausted(owner, "descriptors", FREE_TO_WAIT):
            for number in range(WAITING_COUNT):
                tensor = owner.make([number, 53])
                owner.put(tensor, peer, "queue")
                tensor.drop()
            for sender, receiver in others:
                arrived = sender.send(sender.make([54, 55]), receiver, channel)
                check.equal(arrived.values(), [54, 55], "others send meanwhile")
            for number in range(WAITING_COUNT):
                arrived = peer.get(owner, "queue")
                check.equal(arrived.values(), [number, 53], "what waited arrives")
                arrived.drop()


@clause("FS-12", profiles=("identity",), **FASTEST_START)
def test_storage_whose_name_somebody_else_removes_stays_what_it_is(stage):
    """Names are removed while owner and peer hold a storage, and while one is sent.

    Both send theirs afterwards, to each other and to the bystander, and drop them.
    """
    with stage.fresh() as fresh:
        require_segment_per_storage(fresh)
        owner, peer, bystander = fresh.owner, fresh.peer, fresh.bystander
        channel = unthreaded_channel(fresh)
        tensor = owner.make([61, 62, 63])
        arrived = owner.send(tensor, peer, channel)
        peer.run(remove_name, arrived)
        pairs = ((owner, peer), (peer, owner), (owner, bystander), (peer, bystander))
        for sender, receiver in pairs:
            own = tensor if sender is owner else arrived
            later, refused = attempt(partial(sender.put, own, receiver, channel))
            if refused is None:
                get = partial(receiver.get_or_lose, sender, channel)
                later, refused = attempt(get)
            held = [tensor, arrived, *([] if refused else [later])]
            check_shared_memory(*held)
        tensor.drop()
        check.equal(arrived.values()[0] > 61, True, "the peer's has what was written")
        arrived.drop()
        sent = owner.make([64, 65])
        owner.put(sent, peer, channel)
        owner.run(remove_name, sent)
        came, refused = attempt(partial(peer.get_or_lose, owner, channel))
        check_shared_memory(sent, *([] if refused else [came]))
        check_shared_memory(owner.send(other := owner.make([66, 67]), peer), other)
