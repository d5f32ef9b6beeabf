"""Messages with tensors of every dtype and layout, sent in every way and repeatedly.

A clause that names no dtype, no channel and no number of messages holds for every
combination of them. So these tests send bundles, which contain everything that can be
sent. They send a bundle once, again, from another thread, back, and to a third process.
They send it from forked children and grandchildren, and end the sender before the
message is received.
"""

from sharedtensor_conformance.chapters.bundle_actions import get_and_write_bundle
from sharedtensor_conformance.chapters.bundle_checks import (
    ARRIVAL_CLAUSES,
    BUNDLE_CLAUSES,
    GRAD_CLAUSES,
    SHARING_CLAUSES,
    check_bundles_private,
    check_bundles_shared,
    check_reads_writes,
    check_received_and_shared,
    check_same_description,
    make_bundle,
    make_bundle_with_flags,
    make_bundle_with_grads,
    send_on_plain_channel,
)
from sharedtensor_conformance.chapters.pools import pool_in
from sharedtensor_conformance.chapters.shared_steps import judging
from sharedtensor_conformance.chapters.worker_tasks import describe_and_write
from sharedtensor_conformance.harness import attempt, check, clause
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.threads import in_a_child

BY_FORK = ("fork",)
BY_MESSAGE = ("spawn", "forkserver")


def send(bundle, receiver, channel=""):
    """Send a bundle; return the received one."""
    return bundle.received_by(
        receiver, bundle.actor.send(bundle.remote, receiver, channel)
    )


def send_between_threads(bundle, receiver, channel):
    """Send a bundle from a new thread to a new thread; return the received one."""
    sender = bundle.actor
    sender.put_in_a_thread(bundle.remote, receiver, channel)
    return bundle.received_by(receiver, receiver.get_in_a_thread(sender, channel))


def check_repeated_sends(bundle, receiver, bystander, channel):
    """Send a bundle three times, back, and on; check that all share memory."""
    first = send(bundle, receiver, channel)
    check_received_and_shared(first, bundle)
    with judging("RESHARE-2"):
        again = send_between_threads(bundle, receiver, channel)
        check_received_and_shared(again, bundle, "RESHARE-2")
        first.drop()
        third = send(bundle, receiver, channel)
        check_received_and_shared(third, again, "RESHARE-2")
        again.drop()
    with judging("RESHARE-5", "GRAD-8"):
        back = send(third, bundle.actor, channel)
        check_received_and_shared(back, third, "RESHARE-5")
        onward = send(third, bystander, channel)
        check_same_description(onward.description(), bundle.description(), "RESHARE-5")
    check_bundles_shared([bundle, third, onward, back], "SHARE-4", "RESHARE-5")


@clause(
    *(*BUNDLE_CLAUSES, "SHARE-4", "RESHARE-2", "RESHARE-5", "VIEW-4", "CHAN-5"),
    pairwise=True,
    mainly="VIEW-5",
)
def test_bundle_is_one_memory_however_often_it_is_sent(
    sender, receiver, bystander, channel, implementation
):
    """A bundle goes over one channel, again, between threads, back and on."""
    send_on_plain_channel(make_bundle(sender, implementation), receiver)
    turn = implementation.channels.index(channel) + 3 * (sender.name == "owner")
    bundle = make_bundle(sender, implementation, turn)
    check_repeated_sends(bundle, receiver, bystander, channel)


@clause(*GRAD_CLAUSES, "GRAD-8", profiles=("views",), pairwise=True, mainly="GRAD-2")
def test_bundle_keeps_its_grads_however_often_it_is_sent(
    sender, receiver, bystander, channel, implementation
):
    """A bundle with flags and grads goes over one channel, again, back and on."""
    send_on_plain_channel(make_bundle_with_grads(sender, implementation), receiver)
    bundle = make_bundle_with_grads(sender, implementation)
    check_repeated_sends(bundle, receiver, bystander, channel)


@clause(
    *("RESHARE-1", "RESHARE-3", "RESHARE-4"),
    profiles=("views", "identity", "share"),
    pairwise=True,
    mainly="RESHARE-3",
)
def test_bundle_is_mapped_once_however_often_it_is_received(
    sender, receiver, bystander, channel, implementation
):
    """A bundle is received again and again, by threads too, and comes back twice.

    The second time it comes from a third process, when those before it were dropped.
    """
    bundle = make_bundle(sender, implementation)
    bundle.share()
    own = bundle.addresses()
    first = send(bundle, receiver, channel)
    where = first.addresses()
    again = send_between_threads(bundle, receiver, channel)
    check.equal(again.addresses(), where, "each storage has one address")
    again.share()
    first.drop()
    third = send(bundle, receiver, channel)
    check.equal(third.addresses(), where, "and so it has later")
    back = send(third, sender, channel)
    check.equal(back.addresses(), own, "what comes back is the sender's memory")
    onward = send(third, bystander, channel)
    for dropped in (again, third, back):
        dropped.drop()
    back = send(onward, sender, channel)
    bundle.share()
    check.equal(back.addresses(), own, "from a third process too")
    check.equal(bundle.addresses(), own, "which has stayed where it was")


@clause(
    *("RESHARE-1", "RESHARE-3", "RESHARE-4", "START-3"),
    profiles=("views", "identity", "share"),
    start_methods=BY_FORK,
    mainly="RESHARE-3",
)
def test_bundle_that_was_inherited_is_mapped_once(owner, peer, implementation):
    """A child gets what it has inherited, twice, and sends it back to its parent."""
    made, received = (make_bundle(actor, implementation) for actor in (owner, peer))
    made.share()
    held = [made, send(received, owner)]
    own = [one.addresses() for one in held]
    child = owner.start_peer(arguments=[one.remote for one in held])
    pairs = zip(held, child.arguments, strict=True)
    inherited = [one.received_by(child, remote) for one, remote in pairs]
    for one, parents, where in zip(inherited, held, own, strict=True):
        one.share()
        check.equal(one.addresses(), where, "it lies in the child where it was")
        first, second = (send(parents, child) for _ in range(2))
        check.equal(second.addresses(), first.addresses(), "what comes is mapped once")
        for held_there in (one, second):
            back = send(held_there, owner)
            check.equal(back.addresses(), where, "it comes back to where it was")
    at_the_peer = send(send(inherited[1], owner), peer)
    check.equal(at_the_peer.addresses(), received.addresses(), "and to who made it")


@clause(
    *("GRAD-1", "GRAD-4", "RESHARE-6", "SHARE-1", "SHARE-2", "VIEW-1"),
    profiles=("views",),
    pairwise=True,
    mainly="GRAD-1",
)
def test_bundle_keeps_its_flags_however_often_it_is_sent(
    sender, receiver, bystander, channel, implementation
):
    """A bundle of leaves with flags and without grads goes over one channel, and on."""
    send_on_plain_channel(make_bundle_with_flags(sender, implementation), receiver)
    bundle = make_bundle_with_flags(sender, implementation)
    check_repeated_sends(bundle, receiver, bystander, channel)


@clause(
    *BUNDLE_CLAUSES,
    "CHAN-4",
    "CHAN-5",
    "LIFE-2",
    "LIFE-17",
    pairwise=True,
    mainly="LIFE-2",
)
def test_bundles_in_flight_keep_what_they_have(
    sender, receiver, channel, implementation
):
    """Three bundles, one of them twice, are dropped before the first is received."""
    send_on_plain_channel(make_bundle(sender, implementation), receiver)
    sent = [make_bundle(sender, implementation, turn) for turn in range(3)]
    sent.insert(1, sent[2])
    due = [bundle.description() for bundle in sent]
    for bundle in sent:
        sender.put(bundle.remote, receiver, channel)
    for bundle in sent[1:]:
        bundle.drop()
    arrived = [
        bundle.received_by(receiver, receiver.get(sender, channel)) for bundle in sent
    ]
    for one, described in zip(arrived, due, strict=True):
        check_same_description(one.description(), described, "LIFE-2")
    check_bundles_shared(arrived[1::2], "CHAN-5")
    arrived[1].drop()
    check_bundles_shared([sent[0], arrived[0]], "LIFE-17")
    back = send(arrived[3], sender, channel)
    check_received_and_shared(back, arrived[3], "LIFE-17")


@clause(
    *BUNDLE_CLAUSES,
    "START-1",
    "START-2",
    start_methods=BY_MESSAGE,
    mainly="START-1",
    vary=("strategy", "start_method"),
)
def test_bundle_among_the_arguments_of_a_process_is_shared(
    owner, peer, implementation, start_method
):
    """A child gets a bundle, and one that the peer has made and still has."""
    send_on_plain_channel(make_bundle(owner, implementation), peer)
    bundle = make_bundle(owner, implementation, BY_MESSAGE.index(start_method))
    made = make_bundle(peer, implementation, 5)
    passed_on = send(made, owner)
    child = owner.start_peer(arguments=[bundle.remote, passed_on.remote])
    first, second = child.arguments
    check_received_and_shared(
        bundle.received_by(child, first), bundle, "START-1", "START-2"
    )
    second = made.received_by(child, second)
    check_same_description(second.description(), made.description(), "START-1")
    check_bundles_shared([made, second, passed_on], "START-2")


@clause(
    *GRAD_CLAUSES,
    "START-1",
    profiles=("views",),
    start_methods=BY_MESSAGE,
    mainly="START-1",
    vary=("strategy", "start_method"),
)
def test_bundle_with_grads_among_the_arguments_keeps_them(owner, peer, implementation):
    """A child gets a bundle with flags and grads."""
    send_on_plain_channel(make_bundle_with_grads(owner, implementation), peer)
    bundle = make_bundle_with_grads(owner, implementation)
    child = owner.start_peer(arguments=[bundle.remote])
    check_received_and_shared(bundle.received_by(child, child.arguments[0]), bundle)


@clause(
    *BUNDLE_CLAUSES,
    "START-3",
    "LIFE-22",
    profiles=("share",),
    start_methods=BY_FORK,
    mainly="START-3",
    vary=("strategy", "start_method"),
)
def test_bundle_that_was_shared_is_inherited_as_one_memory(owner, peer, implementation):
    """A child inherits bundles that its parent has shared, sent and received."""
    send_on_plain_channel(make_bundle(owner, implementation), peer)
    shared, sent = (make_bundle(owner, implementation, turn) for turn in range(2))
    shared.share()
    there = send(sent, peer)
    received = send(make_bundle(peer, implementation, 2), owner)
    held = [shared, sent, received]
    child = owner.start_peer(arguments=[one.remote for one in held])
    inherited = [
        one.received_by(child, remote)
        for one, remote in zip(held, child.arguments, strict=True)
    ]
    for here, in_child in zip(held, inherited, strict=True):
        check_received_and_shared(in_child, here, "START-3")
        back = send(in_child, owner)
        check_received_and_shared(back, in_child, "LIFE-22", "RESHARE-2")
    check_bundles_shared([there, sent, inherited[1]], "START-3")


@clause(
    "START-4",
    "VIEW-1",
    *SHARING_CLAUSES,
    profiles=("views",),
    start_methods=BY_FORK,
    mainly="START-4",
    private=True,
    vary=("strategy", "start_method"),
)
def test_bundle_that_was_not_shared_is_inherited_as_a_copy(owner, peer, implementation):
    """Children inherit a bundle that nobody has shared; one of them sends its own."""
    send_on_plain_channel(make_bundle(owner, implementation), peer)
    bundle = make_bundle(owner, implementation)
    children = [owner.start_peer(arguments=[bundle.remote]) for _ in range(2)]
    own = [bundle.received_by(child, child.arguments[0]) for child in children]
    for one in own:
        check_bundles_private(one, bundle, "START-4")
    arrived = send(own[0], owner)
    check_received_and_shared(arrived, own[0], "START-4")
    check_bundles_private(own[1], arrived, "START-4")
    check_bundles_private(bundle, arrived, "START-4")


DESCENDANTS = [[in_a_child], [in_a_child, in_a_child]]
"""What executes a function in a child of a process, and in a grandchild."""


@clause(
    *(*BUNDLE_CLAUSES, "START-3", "LIFE-11", "LIFE-22", "RESHARE-5"),
    profiles=("share",),
    pairwise=True,
    forks=True,
    prefers="fork",
    mainly="LIFE-22",
)
def test_forked_children_of_forked_children_receive(
    sender, receiver, channel, implementation
):
    """Children and grandchildren of the receiver get a bundle, write to it, and end.

    The first two get one that they have inherited, the others one that is new to them.
    """
    send_on_plain_channel(make_bundle(sender, implementation), receiver)
    for turn, in_a_descendant in enumerate(2 * DESCENDANTS):
        bundle = make_bundle(sender, implementation, turn)
        held = send(bundle, receiver, channel) if turn < 2 else None
        due = bundle.description()
        sender.put(bundle.remote, receiver, channel)
        arguments = sender.name, channel, bundle.with_grads
        found = receiver.run(*in_a_descendant, get_and_write_bundle, *arguments)
        receiver.unreceived.clear()
        check_same_description(found[0], due, "START-3")
        who = f"{sender.name}, after a forked child has written,"
        check_reads_writes(bundle.description(), found[1], who, "SHARE-2")
        if held is not None:
            who = f"{receiver.name}, after its forked child has written,"
            check_reads_writes(held.description(), found[1], who, "START-3")
        check_received_and_shared(send(bundle, receiver, channel), bundle, "LIFE-11")


@clause(
    *(*BUNDLE_CLAUSES, "START-3", "LIFE-5", "LIFE-22", "RESHARE-2"),
    profiles=("share",),
    pairwise=True,
    forks=True,
    prefers="fork",
    mainly="LIFE-5",
)
def test_forked_children_of_forked_children_send_and_end(
    sender, receiver, channel, implementation
):
    """Children and grandchildren of the sender put what they have inherited, and end.

    The first two have a bundle that is shared, the others one that is not.
    """
    send_on_plain_channel(make_bundle(sender, implementation), receiver)
    for turn, in_a_descendant in enumerate(2 * DESCENDANTS):
        bundle = make_bundle(sender, implementation, turn)
        if turn < 2:
            bundle.share()
        put = (Actor.put, receiver.name, channel, bundle.remote)
        sender.run(*in_a_descendant, *put)
        arrived = bundle.received_by(receiver, receiver.get(sender, channel))
        check_same_description(arrived.description(), bundle.description(), "LIFE-5")
        if turn < 2:
            check_bundles_shared([bundle, arrived], "START-3")
        else:
            check_bundles_private(arrived, bundle, "LIFE-5")
        check_received_and_shared(send(arrived, sender, channel), arrived, "LIFE-22")


# Pools, executors and the other queues


def check_tasks_share(pool, owner, peer, implementation, *way_clauses):
    """Submit bundles to a pool; check what arrives, what returns, and who sees writes.

    One bundle belongs to the owner. The other one belongs to the peer, which sends it
    to the owner; it is submitted twice.
    """
    made = make_bundle(peer, implementation, 1)
    for number, bundle in enumerate((make_bundle(owner, implementation), made, made)):
        sent = send(bundle, owner) if bundle.actor is peer else bundle
        expected = sent.description()
        result, before, after = pool.run(describe_and_write, sent.remote)
        check_same_description(
            before, expected, *way_clauses, moment=f"in task {number} it arrives"
        )
        returned = sent.received_by(owner, result)
        for one in {bundle, sent, returned}:
            who = f"{one.actor.name}, after the worker has written,"
            check_reads_writes(one.description(), after, who, *way_clauses)
        check_bundles_shared([returned, sent], *way_clauses)


@clause(*BUNDLE_CLAUSES, "CHAN-1", prefers="fork", mainly="CHAN-1")
def test_bundles_of_tasks_are_shared_with_the_worker(owner, peer, implementation):
    """A pool's worker looks at bundles, writes to them, and returns them."""
    send_on_plain_channel(make_bundle(owner, implementation), peer)
    with pool_in(owner) as pool:
        check_tasks_share(pool, owner, peer, implementation, "CHAN-1")


@clause(*GRAD_CLAUSES, "CHAN-1", profiles=("views",), prefers="fork", mainly="CHAN-1")
def test_bundle_with_grads_of_a_task_keeps_them(owner, peer, implementation):
    """A pool's worker looks at a bundle with flags and grads, and writes to it."""
    send_on_plain_channel(make_bundle_with_grads(owner, implementation), peer)
    with pool_in(owner) as pool:
        bundle = make_bundle_with_grads(owner, implementation)
        due = bundle.description()
        result, before, after = pool.run(describe_and_write, bundle.remote, True)
        check_same_description(before, due, "GRAD-2")
        who = "the owner, after the worker has written,"
        check_reads_writes(bundle.description(), after, who, "GRAD-3")
        returned = bundle.received_by(owner, result)
        check_same_description(
            returned.description(), after, "GRAD-2", moment="it is returned"
        )


@clause(*BUNDLE_CLAUSES, "CHAN-9", prefers="fork", isolated=True, mainly="CHAN-9")
def test_bundles_of_calls_are_shared_with_the_executor(stage, implementation):
    """An executor's worker looks at bundles, writes to them, and returns them."""
    with stage.fresh() as fresh, pool_in(fresh.owner, kind="executor") as pool:
        send_on_plain_channel(make_bundle(fresh.owner, implementation), fresh.peer)
        check_tasks_share(pool, fresh.owner, fresh.peer, implementation, "CHAN-9")


OTHER_QUEUES = ("joinable_queue", "queue_of_two")
"""Kinds of queues in addition to the claimed channels."""


@clause(
    *(*BUNDLE_CLAUSES, "CHAN-8", "RESHARE-2"),
    prefers="fork",
    channels=("queue",),
    mainly="CHAN-8",
)
def test_bundles_on_other_queues_are_shared(owner, peer, implementation):
    """Bundles go to a child and back on queues that count or have a bound, twice."""
    send_on_plain_channel(make_bundle(owner, implementation), peer)
    channels = [owner.open_channel(kind) for kind in OTHER_QUEUES]
    child = owner.start_peer(arguments=channels)
    for turn, channel in enumerate(2 * channels):
        bundle = make_bundle(owner, implementation, turn)
        for _ in range(2):
            channel.put(owner, bundle.remote)
        arrived = [bundle.received_by(child, channel.get(child)) for _ in range(2)]
        for one in arrived:
            check_received_and_shared(one, bundle, "CHAN-8")
        channel.put(child, arrived[0].remote)
        back = bundle.received_by(owner, channel.get(owner))
        check_received_and_shared(back, arrived[1], "CHAN-8", "RESHARE-5")


@clause(*BUNDLE_CLAUSES, "CHAN-10", prefers="fork", isolated=True, mainly="CHAN-10")
def test_bundle_on_the_queue_of_a_manager_is_shared_or_refused(stage, implementation):
    """The owner puts a bundle on a manager's queue for a child, twice."""
    with stage.fresh() as fresh:
        send_on_plain_channel(make_bundle(fresh.owner, implementation), fresh.peer)
        channel = fresh.owner.open_channel("proxy")
        child = fresh.owner.start_peer(arguments=channel)
        bundle = make_bundle(fresh.owner, implementation)
        before = bundle.description()
        for _ in range(2):
            _, refused = attempt(lambda: channel.put(fresh.owner, bundle.remote))
            if refused:
                check.equal(bundle.description(), before, "it is as it was")
                return
            arrived = bundle.received_by(child, channel.get(child))
            check_received_and_shared(arrived, bundle, "CHAN-10")
            before = bundle.description()


# Bundles whose sender has ended


@clause(*BUNDLE_CLAUSES, "LIFE-3", "LIFE-5", prefers="fork", mainly="LIFE-5")
def test_bundle_survives_the_exit_of_its_sender(owner, peer, channel, implementation):
    """A child puts bundles of its own and of the peer, receives one, and exits.

    The owner receives afterwards what the child had put, and sends it on.
    """
    send_on_plain_channel(make_bundle(owner, implementation), peer)
    child = owner.start_peer()
    made = make_bundle(peer, implementation, 1)
    passed_on = send(send(made, owner), child)
    own, kept = (make_bundle(child, implementation, turn) for turn in (2, 3))
    held = send(kept, owner)
    due = [bundle.description() for bundle in (own, passed_on, kept)]
    for bundle in (own, passed_on, kept):
        child.put(bundle.remote, owner, channel)
    check.equal(child.leave(), 0, "the child exits normally")
    arrived = [own.received_by(owner, owner.get(child, channel)) for _ in due]
    for one, described in zip(arrived, due, strict=True):
        check_same_description(one.description(), described, "LIFE-5")
        check_received_and_shared(send(one, peer, channel), one, "LIFE-3")
    check_bundles_shared([made, arrived[1]], "LIFE-5")
    check_bundles_shared([held, arrived[2]], "LIFE-3")


@clause(*ARRIVAL_CLAUSES, "LIFE-4", prefers="fork", mainly="LIFE-4")
def test_bundle_survives_the_killing_of_its_sender(owner, peer, implementation):
    """The owner has received bundles from a child, which is killed; it sends them on.

    One of them the child had received from the owner, who has dropped it since.
    """
    send_on_plain_channel(make_bundle(owner, implementation), peer)
    child = owner.start_peer()
    held = send(make_bundle(child, implementation, 4), owner)
    first = make_bundle(owner, implementation, 5)
    back = send(send(first, child), owner)
    due = [one.description() for one in (held, back)]
    first.drop()
    child.kill()
    for one, described in zip((held, back), due, strict=True):
        check_same_description(one.description(), described, "LIFE-4")
        check_received_and_shared(send(one, peer), one, "LIFE-4")
