"""Chapter FD: segments without a name, and their descriptors."""

from collections import Counter

from sharedtensor_conformance.chapters import env_actions
from sharedtensor_conformance.chapters.env_actions import release_descriptors
from sharedtensor_conformance.chapters.exhaustion import exhausted
from sharedtensor_conformance.chapters.pools import pool_in
from sharedtensor_conformance.chapters.process_actions import close_descriptor
from sharedtensor_conformance.chapters.shared_steps import (
    LEAK_ROUNDS,
    LENGTHS,
    check_shared_memory,
    file_of,
    other_program,
    several_strategies,
    share_separately,
    strategy_set,
    tensors_after_strategy_change,
    wait_until_receivable,
)
from sharedtensor_conformance.chapters.tensor_actions import (
    make_long,
    make_many,
    positions_with_wrong_values,
)
from sharedtensor_conformance.chapters.worker_tasks import (
    make_and_keep,
    targets_of_a_program,
    write_and_return,
)
from sharedtensor_conformance.harness import check, clause, eventually
from sharedtensor_conformance.harness.case.axes import layouts_of
from sharedtensor_conformance.harness.case.outcomes import NotRun
from sharedtensor_conformance.report.verdicts import Need

TENSORS_HELD = 6
"""The number of tensors over one storage that a process holds at the same time."""

FEW_DESCRIPTORS = 16
"""The number of descriptors that many small storages of a message may cost."""

MANY_STORAGES = 300
"""The number of storages in one message: more than the descriptors of one packet."""

LONG_SIZE = 50_000
"""The number of bytes in one message: more than fit into one write."""

FREE_DESCRIPTORS = 16
"""The number of descriptors that a process near its limit can still open."""


@clause("FD-1")
def test_storage_that_is_sent_has_no_name(sender, receiver, channel, stage):
    """The ledger is read while a tensor is in flight, received, and sent on."""
    before = stage.ledger.segments()
    tensor = sender.make([1, 2, 3])
    sender.put(tensor, receiver, channel)
    # Until then a thread of the channel may open the file by a name that it removes.
    wait_until_receivable(sender, receiver, channel)
    check.equal(stage.ledger.segments() - before, set(), "no name in flight")
    arrived = receiver.get(sender, channel)
    check.equal(arrived.values(), [1, 2, 3], "the tensor arrives")
    check.equal(stage.ledger.segments() - before, set(), "no name when it is received")
    receiver.send(arrived, sender, channel)
    check.equal(stage.ledger.segments() - before, set(), "no name when it is sent on")


@clause("FD-1", profiles=("share",))
def test_storage_that_is_shared_on_request_has_no_name(owner, peer, stage):
    """Owner and peer share tensors; the ledger is read while they are held."""
    before = stage.ledger.segments()
    for actor in (owner, peer):
        tensor = actor.make([4, 5, 6])
        tensor.share()
        check.equal(tensor.is_shared(), True, "the tensor is shared")
        check.equal(stage.ledger.segments() - before, set(), "no name belongs to it")


@clause("FD-1")
def test_storages_of_any_size_and_number_have_no_name(sender, receiver, stage):
    """One tensor of each size is sent and held, and then six small ones at once."""
    before, held = stage.ledger.segments(), []

    def check_no_name(what):
        check.equal(stage.ledger.segments() - before, set(), f"no name for {what}")

    for length in LENGTHS:
        held.append(sender.run(make_long, length, 81))
        held.append(sender.send(held[-1], receiver))
        check.equal(held[-1].read(length - 1), 81, "the tensor arrives")
        check_no_name(f"{4 * length} bytes")
    made = sender.run(make_many, TENSORS_HELD, 82)
    arrived = sender.send(made, receiver)
    check.equal(arrived[-1].values(), [81 + TENSORS_HELD], "the tensors arrive")
    check_no_name("several storages of one message")


@clause("FD-1", profiles=("strategies",), several_strategies=True)
def test_storage_sent_on_under_another_strategy_has_no_name(
    sender, receiver, bystander, stage, strategy
):
    """Sender and receiver change to another strategy, and send the tensor again."""
    before = stage.ledger.segments()
    tensor = sender.make([26, 27, 28])
    arrived = sender.send(tensor, receiver)
    for other in sorted(set(several_strategies(receiver)) - {strategy}):
        for actor, held in ((receiver, arrived), (sender, tensor)):
            with strategy_set(actor, other):
                onward = actor.send(held, bystander)
                named = stage.ledger.segments() - before
                check.equal(named, set(), f"no name, though {other} is current")
                check_shared_memory(tensor, onward)


@clause(
    *("FD-1", "STRAT-4"),
    profiles=("strategies", "share", "identity"),
    several_strategies=True,
    prefers="fork",
    starts=True,
    mainly="FD-1",
)
def test_storage_lies_in_a_file_without_a_name_whatever_the_strategy_was_before(
    owner, channel, stage, strategy
):
    """A new process shares under the other strategy first, then under this one."""
    for held in tensors_after_strategy_change(owner, channel, strategy):
        named = file_of(held) in stage.ledger.named_files()
        check(not named, "it lies in a file that has no name")


@clause("FD-2", vary=("strategy", "start_method"))
def test_descriptors_do_not_grow_with_rounds(sender, receiver, channel, stage):
    """Tensors are sent and dropped, the sender's first and the receiver's in turn."""

    def go_round(number):
        tensor = sender.make([number, 8, 9])
        arrived = sender.send(tensor, receiver, channel)
        check.equal(arrived.values(), [number, 8, 9], "the tensor arrives")
        for dropped in (tensor, arrived)[:: -1 if number % 2 else 1]:
            dropped.drop()

    go_round(50)
    before = stage.holdings(sender, receiver)
    for number in range(LEAK_ROUNDS):
        go_round(number)
    sentence = "sender and receiver have as many descriptors as before"
    stage.check_descriptors(before, {sender: 0, receiver: 0}, sentence)


@clause("FD-2", profiles=("share",))
def test_descriptors_do_not_grow_with_tensors_that_are_shared(owner, peer, stage):
    """Owner and peer share tensors, send some of them twice, and drop all."""

    def go_round(number):
        tensor = owner.make([number, 18, 19])
        tensor.share()
        tensors = [tensor, *(owner.send(tensor, peer) for _ in range(number % 3))]
        for dropped in tensors:
            check.equal(dropped.values(), [number, 18, 19], "each has the values")
            dropped.drop()

    go_round(2)
    before = stage.holdings(owner, peer)
    for number in range(LEAK_ROUNDS):
        go_round(number)
    sentence = "owner and peer have as many descriptors as before"
    stage.check_descriptors(before, {owner: 0, peer: 0}, sentence)


@clause("FD-3")
def test_one_storage_received_often_costs_one_descriptor(
    sender, receiver, channel, stage
):
    """The receiver gets and holds one tensor six times; it drops all, and once more."""
    sender.send(sender.make([1, 2]), receiver, channel).drop()
    before = stage.holdings(sender, receiver)
    tensor = sender.make([21, 22, 23])
    for _ in range(2):
        arrived = [sender.send(tensor, receiver, channel) for _ in range(TENSORS_HELD)]
        check.equal(arrived[-1].values(), [21, 22, 23], "the tensor arrives")
        sentence = "each side has at most one descriptor for the storage"
        stage.check_descriptors(before, {sender: 1, receiver: 1}, sentence)
        for one in arrived:
            one.drop()


@clause("FD-3", profiles=("views",))
def test_views_over_one_storage_cost_one_descriptor(
    sender, receiver, stage, implementation
):
    """The sender sends its base and a view of each layout, apart and together."""
    sender.send(sender.make([1, 2]), receiver).drop()
    before = stage.holdings(sender, receiver)
    base = sender.make(list(range(800, 824)))
    views = [sender.view(base, layout) for layout in layouts_of(implementation)]
    together = sender.send([base, *views], receiver)
    apart = [sender.send(view, receiver) for view in views]
    check.equal(apart[0].values(), together[1].values(), "the views arrive")
    sentence = "each side has at most one descriptor for the storage"
    stage.check_descriptors(before, {sender: 1, receiver: 1}, sentence)


@clause("FD-4", profiles=("share",))
def test_descriptors_are_counted_at_each_step(sender, receiver, channel, stage):
    """A storage is shared, sent twice, received twice, and dropped by its sender."""

    def costs_at_most(sentence, of_sender, of_receiver):
        more = {sender: of_sender, receiver: of_receiver}
        stage.check_descriptors(before, more, sentence)

    sender.send(sender.make([1, 2]), receiver, channel).drop()
    before = stage.holdings(sender, receiver)
    tensor = sender.make([31, 32, 33])
    tensor.share()
    costs_at_most("sharing costs one", 1, 0)
    sender.put(tensor, receiver, channel)
    sender.put([tensor, tensor], receiver, channel)
    first = receiver.get(sender, channel)
    second, alias = receiver.get(sender, channel)
    check.equal(second.values(), [31, 32, 33], "the tensor arrives")
    costs_at_most("receiving costs each side one", 1, 1)
    tensor.drop()
    costs_at_most("its drop frees the sender's", 0, 1)
    back = receiver.send(second, sender, channel)
    check.equal(back.values(), [31, 32, 33], "the last holder sends it")
    costs_at_most("the way back costs one", 1, 1)
    for kept in (first, second, alias):
        kept.drop()
    check.equal(back.values(), [31, 32, 33], "it stays")
    costs_at_most("its drop frees the receiver's", 1, 0)


@clause("FD-4")
def test_drop_gives_a_descriptor_back_however_large_the_storage_is(
    sender, receiver, stage
):
    """A storage of each size is sent; one side drops, looks, and then the other."""
    sender.send(sender.make([1, 2]), receiver).drop()
    before = stage.holdings(sender, receiver)
    for length in LENGTHS:
        for first in (sender, receiver):
            tensor = sender.run(make_long, length, 39)
            arrived = sender.send(tensor, receiver)
            check.equal(arrived.read(length - 1), 39, "the tensor arrives")
            dropped, kept = (tensor, arrived)[:: 1 if first is sender else -1]
            dropped.drop()
            sentence = f"of {4 * length} bytes the {first.name} keeps nothing"
            stage.check_descriptors(before, {first: 0, kept.actor: 1}, sentence)
            check.equal(kept.read(0), 39, "the other keeps its tensor")
            kept.drop()


@clause("FD-4")
def test_drop_gives_back_the_descriptor_of_one_of_several_in_a_message(
    sender, receiver, stage
):
    """Three storages of 4 MiB come in one message; each side drops one by one."""
    sender.send(sender.make([1, 2]), receiver).drop()
    before = stage.holdings(sender, receiver)
    made = [sender.run(make_long, LENGTHS[-1], number) for number in range(3)]
    arrived = sender.send(made, receiver)
    counts = {sender: len(made), receiver: len(arrived)}
    for tensors in (arrived, made):
        while tensors:
            number = len(tensors) - 1
            check.equal(tensors[-1].read(0), number, "it has its values until then")
            dropped = tensors.pop()
            dropped.drop()
            counts[dropped.actor] = number
            sentence = f"with {number} left, the {dropped.actor.name} has as many"
            stage.check_descriptors(before, counts, sentence)


@clause("FD-4", start_methods=("fork",))
def test_storage_that_was_inherited_costs_no_descriptor_when_it_is_received(
    owner, peer, stage
):
    """A child inherits tensors that its parent has sent and received, and gets them."""
    made = [owner.make([number, 34]) for number in (32, 33)]
    received = peer.send([peer.make([35, 36]), peer.make([37, 38])], owner)
    owner.send(made, peer)
    held = [*made, *received]
    child = owner.start_peer(arguments=held, start_method="fork")
    owner.send(owner.make([1, 2]), child).drop()
    inherited = child.arguments
    before = stage.holdings(child)
    for one, again in zip(inherited, owner.send(held, child), strict=True):
        check_shared_memory(one, again)
    stage.check_descriptors(before, {child: 0}, "receiving costs the child nothing")


@clause("FD-4", profiles=("drop-in",), prefers="fork", isolated=True)
def test_storage_that_a_worker_keeps_costs_nothing_when_it_is_submitted(stage):
    """The owner gets a tensor that an executor's worker keeps, and submits it often.

    Calls go by a queue of the standard library, which carries no descriptors: each one
    stays with the owner until the worker has fetched it.
    """
    with stage.fresh() as fresh, pool_in(fresh.owner, kind="executor") as pool:
        kept = pool.run(make_and_keep, [35, 36])
        pool.run(write_and_return, kept, 0, 37).drop()
        before = fresh.holdings(fresh.owner)
        for number in range(LEAK_ROUNDS):
            pool.run(write_and_return, kept, 1, number).drop()
        check.equal(kept.values(), [37, LEAK_ROUNDS - 1], "the owner reads the writes")
        fresh.check_descriptors(before, {fresh.owner: 0}, "submitting costs nothing")


def check_inherited_descriptors(own, actor, stage):
    """Start a program from `actor`; check that it inherits no descriptor except `own`.

    `own` counts the descriptors of `actor` by their targets.
    """

    def more():
        return stage.ledger.opened_since(own, pid)

    with other_program(actor) as pid:
        sentence = "the program has nothing that its parent had not before"
        eventually(lambda: not more(), sentence, stage.grace, found=more)
        check(pid in stage.ledger.processes(), "the program runs")


@clause("FD-5", profiles=("share",))
def test_program_that_is_started_has_no_descriptor_of_a_storage(
    sender, receiver, stage
):
    """Both sides hold few and then many tensors of one message, and start a program.

    The program inherits what it can.
    """
    sender.send(sender.make([1, 2]), receiver).drop()
    before = {actor: Counter(actor.targets()) for actor in (sender, receiver)}
    shared = sender.make([41, 42])
    shared.share()
    for number in (3, MANY_STORAGES):
        made = sender.run(make_many, number, 43)
        sent = share_separately(stage, sender, made)
        arrived = sender.send(sent, receiver)
        check.equal(arrived[0].values(), [43], "the tensors arrive")
        for actor, own in before.items():
            check_inherited_descriptors(own, actor, stage)
        check_shared_memory(sent[-1], arrived[-1])


@clause("FD-5", profiles=("drop-in",), vary=("start_method",), isolated=True)
def test_program_that_a_worker_starts_has_no_descriptor_of_a_storage(stage):
    """Workers of a pool and of an executor start a program with a tensor and without.

    Their queues are made by others than the channels of processes. What sends the
    descriptors of an executor's calls stays with the owner, which is another matter.
    """
    with stage.fresh() as fresh:
        for kind in ("pool", "executor"):
            check_worker_program(fresh.owner, kind)


def check_worker_program(owner, kind):
    """Check that a worker's program inherits no descriptor of the worker's tensors.

    The worker belongs to a pool or an executor (`kind`). It starts one program before
    it gets tensors, and one while it has them. The second has no more descriptors.
    """
    with pool_in(owner, kind=kind) as pool:
        without = Counter(pool.run(targets_of_a_program, []))
        tensors = [owner.make([44, 45]), owner.run(make_long, LONG_SIZE, 46)]
        with_both = Counter(pool.run(targets_of_a_program, tensors))
    more = dict(with_both - without)
    check.equal(more, {}, f"the program of the {kind}'s worker has nothing more")


@clause("FD-6", in_flight=MANY_STORAGES)
def test_message_has_more_storages_than_a_packet_has_descriptors(
    sender, receiver, channel, stage
):
    """Three hundred tensors are sent in one message; some are written, all dropped."""
    sender.send(sender.make([1, 2]), receiver, channel)
    for actor in (sender, receiver):
        actor.drop_all()
    before = stage.holdings(sender, receiver)
    made = [sender.make([number, 50]) for number in range(MANY_STORAGES)]
    tensors = share_separately(stage, sender, made)
    arrived = sender.send(tensors, receiver, channel)
    values = [tensor.values() for tensor in arrived]
    expected = [[number, 50] for number in range(MANY_STORAGES)]
    check.equal(values, expected, "all arrive with their values")
    for number in (0, 252, 253, MANY_STORAGES - 1):
        check_shared_memory(tensors[number], arrived[number])
    for actor in (sender, receiver):
        actor.drop_all()
    stage.check_descriptors(before, {sender: 0, receiver: 0}, "nothing is left")


@clause("FD-8", in_flight=MANY_STORAGES)
def test_small_storages_of_one_message_cost_few_descriptors(sender, receiver, stage):
    """The sender sends hundreds of tensors; each side holds them, and drops them."""
    sender.send(sender.make([1, 2]), receiver).drop()
    before = stage.holdings(sender, receiver)
    made = sender.run(make_many, MANY_STORAGES, 91)
    arrived = sender.send(made, receiver)
    wrong = receiver.run(positions_with_wrong_values, arrived, 91)
    check.equal(wrong, [], "the places of tensors that arrive with other values")
    few = {sender: FEW_DESCRIPTORS, receiver: FEW_DESCRIPTORS}
    stage.check_descriptors(before, few, "all of them cost few descriptors")
    for one in (*made, *arrived):
        one.drop()


@clause("FD-6", "CHAN-3", in_flight=MANY_STORAGES)
def test_message_fills_a_packet_to_the_last_descriptor(sender, receiver, stage):
    """About as many tensors as a packet has descriptors, with few bytes and many."""
    for count, length in ((253, 0), (254, 0), (252, LONG_SIZE), (253, LONG_SIZE)):
        made = [sender.make([number, 51]) for number in range(count)]
        tensors = share_separately(stage, sender, made)
        text, *arrived = sender.send(["x" * length, *tensors], receiver)
        check.equal(len(text), length, "what is beside them arrives")
        values = [tensor.values() for tensor in arrived]
        expected = [[number, 51] for number in range(count)]
        check.equal(values, expected, "all arrive with their values")
        check_shared_memory(tensors[-1], arrived[-1])
        for actor in (sender, receiver):
            actor.drop_all()


@clause(
    "FD-6",
    start_methods=("spawn", "forkserver"),
    isolated=True,
    in_flight=MANY_STORAGES,
    vary=("strategy", "start_method"),
)
def test_process_has_more_storages_among_its_arguments_than_a_packet_has_descriptors(
    stage,
):
    """The owner starts two children with three hundred tensors each, and drops them.

    A child has its arguments until it ends. What is made once for many arguments, and
    kept, does not count: so the second child.
    """
    with stage.fresh() as fresh:
        check_many_arguments(fresh)
        before = fresh.holdings(fresh.owner)
        check_many_arguments(fresh)
        fresh.check_descriptors(before, {fresh.owner: 0}, "nothing is left")


def check_many_arguments(fresh):
    """Start a child with many tensors; check that they are shared, and end the child.

    The owner drops its tensors before the end.
    """
    owner = fresh.owner
    made = [owner.make([number, 52]) for number in range(MANY_STORAGES)]
    tensors = share_separately(fresh, owner, made)
    child = owner.start_peer(arguments=tensors)
    arrived = child.arguments
    expected = [[number, 52] for number in range(MANY_STORAGES)]
    check.equal([tensor.values() for tensor in arrived], expected, "all arrive")
    for number in (0, 252, 253, MANY_STORAGES - 1):
        check_shared_memory(tensors[number], arrived[number])
    owner.drop_all()
    check.equal(child.leave(), 0, "the child exits normally")
    fresh.end_extra()


@clause("FD-7")
def test_process_near_its_limit_goes_on(sender, receiver, channel):
    """Sender and receiver have room for sixteen descriptors and make many rounds."""
    sender.send(sender.make([1, 2]), receiver, channel).drop()
    with (
        exhausted(sender, "descriptors", FREE_DESCRIPTORS),
        exhausted(receiver, "descriptors", FREE_DESCRIPTORS),
    ):
        for number in range(4 * FREE_DESCRIPTORS):
            tensor = sender.make([number, 61])
            arrived = sender.send(tensor, receiver, channel)
            check.equal(arrived.values(), [number, 61], "the tensor arrives")
            for dropped in (tensor, arrived)[:: -1 if number % 2 else 1]:
                dropped.drop()


OCCUPIED_BELOW = 1100
"""All descriptor numbers below this one are occupied.

It is larger than FD_SETSIZE, the limit of select(2).
"""


@clause(*("FD-2", "FD-4", "LIFE-2", "RESHARE-2"), prefers="fork", isolated=True)
def test_descriptors_may_have_any_numbers(stage, channel):
    """Owner and peer close 0, 1 and 2, or occupy all below 1100; both send tensors.

    What is opened next has the least number that is free.
    """
    for numbers_are in ("least", "large"):
        with stage.fresh() as fresh:
            pair = (fresh.owner, fresh.peer)
            for sender, receiver in (pair, pair[::-1]):
                sender.send(sender.make([1, 2]), receiver, channel)
            for actor in pair:
                actor.drop_all()
                if numbers_are == "large":
                    occupy_descriptors(actor)
                for descriptor in range(3) if numbers_are == "least" else ():
                    actor.run(close_descriptor, descriptor)
            before = fresh.holdings(*pair)
            for sender, receiver in (pair, pair[::-1]):
                check_round_trip(sender, receiver, channel)
            sentence = "nothing is left of what was sent"
            fresh.check_descriptors(before, dict.fromkeys(pair, 0), sentence)
            if numbers_are == "large":
                for actor in pair:
                    actor.run(release_descriptors)


def occupy_descriptors(actor):
    """Open all descriptors below 1100 in an actor's process.

    Raises:
        NotRun: it may not have so many.
    """
    if why_not := actor.run(env_actions.occupy_descriptors, OCCUPIED_BELOW):
        raise NotRun(why_not, Need.DESCRIPTORS)


def check_round_trip(sender, receiver, channel):
    """Send a tensor alone, several in one message, one again, and all back; drop all.

    Check that they arrive and are shared.
    """
    made = [sender.make([number, 71, 72]) for number in range(4)]
    sender.put(made[0], receiver, channel)
    made[0].drop()
    sentence = "the receiver can look for a message"
    wait_until_receivable(sender, receiver, channel, sentence)
    arrived = [receiver.get(sender, channel)]
    check.equal(arrived[0].values(), [0, 71, 72], "the tensor arrives")
    arrived += sender.send(made[1:], receiver, channel)
    again = sender.send(made[1], receiver, channel)
    back = receiver.send(arrived, sender, channel)
    check_shared_memory(made[1], arrived[1], again, back[1])
    for number, tensor in enumerate(arrived):
        check.equal(tensor.values(), back[number].values(), "each has its values")
    for actor in (sender, receiver):
        actor.drop_all()
