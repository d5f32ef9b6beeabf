"""Chapter FD: segments without a name, and the descriptors that stand for them."""

from sharedtensor_conformance.harness import check, clause, eventually
from sharedtensor_conformance.matrix import LAYOUTS
from sharedtensor_conformance.stories import ROUNDS

HELD = 6
"""Tensors over one storage that a process holds at once."""


@clause("FD-1", vary=("strategy",))
def test_storage_that_is_sent_has_no_name(sender, receiver, channel, stage):
    """The ledger is read while a tensor is in flight, received, and sent on."""
    before = stage.segments()
    tensor = sender.make([1, 2, 3])
    sender.put(tensor, receiver, channel)
    check.equal(stage.segments() - before, set(), "no name in flight")
    arrived = receiver.get(sender, channel)
    check.equal(arrived.values(), [1, 2, 3], "the tensor arrives")
    check.equal(stage.segments() - before, set(), "no name when it is received")
    receiver.send(arrived, sender, channel)
    check.equal(stage.segments() - before, set(), "no name when it is sent on")


@clause("FD-1", profiles=("share",), vary=("strategy",))
def test_storage_that_is_shared_on_request_has_no_name(owner, peer, stage):
    """Owner and peer share tensors; the ledger is read while they are held."""
    before = stage.segments()
    for actor in (owner, peer):
        tensor = actor.make([4, 5, 6])
        tensor.share()
        check.equal(tensor.is_shared(), True, "the tensor is shared")
        check.equal(stage.segments() - before, set(), "no name belongs to it")


def returns_to(before, *actors):
    """Tell whether no actor has more descriptors open than `before`."""
    now = [actor.descriptors() for actor in actors]
    return all(count <= then for count, then in zip(now, before, strict=True))


@clause("FD-2")
def test_descriptors_do_not_grow_with_rounds(sender, receiver, channel, stage):
    """Tensors are sent and dropped, the sender's first and the receiver's in turn."""

    def go_round(number):
        tensor = sender.make([number, 8, 9])
        arrived = sender.send(tensor, receiver, channel)
        check.equal(arrived.values(), [number, 8, 9], "the tensor arrives")
        for dropped in (tensor, arrived)[:: -1 if number % 2 else 1]:
            dropped.drop()

    go_round(50)
    before = [sender.descriptors(), receiver.descriptors()]
    for number in range(ROUNDS):
        go_round(number)
    sentence = "sender and receiver have as many descriptors as before"
    eventually(lambda: returns_to(before, sender, receiver), sentence, stage.grace)


@clause("FD-2", profiles=("share",), vary=("strategy",))
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
    before = [owner.descriptors(), peer.descriptors()]
    for number in range(ROUNDS):
        go_round(number)
    sentence = "owner and peer have as many descriptors as before"
    eventually(lambda: returns_to(before, owner, peer), sentence, stage.grace)


@clause("FD-3", vary=("strategy",))
def test_one_storage_received_often_costs_one_descriptor(
    sender, receiver, channel, stage
):
    """The receiver gets and holds one tensor six times, in six messages."""
    sender.send(sender.make([1, 2]), receiver, channel).drop()
    before = [sender.descriptors() + 1, receiver.descriptors() + 1]
    tensor = sender.make([21, 22, 23])
    arrived = [sender.send(tensor, receiver, channel) for _ in range(HELD)]
    check.equal(arrived[-1].values(), [21, 22, 23], "the tensor arrives")
    sentence = "each side has at most one descriptor for the storage"
    eventually(lambda: returns_to(before, sender, receiver), sentence, stage.grace)


@clause("FD-3", profiles=("views",), vary=("strategy",))
def test_views_over_one_storage_cost_one_descriptor(sender, receiver, stage):
    """The sender sends its base and a view of each layout, apart and together."""
    sender.send(sender.make([1, 2]), receiver).drop()
    before = [sender.descriptors() + 1, receiver.descriptors() + 1]
    base = sender.make(list(range(800, 824)))
    views = [sender.view(base, layout) for layout in LAYOUTS]
    together = sender.send([base, *views], receiver)
    apart = [sender.send(view, receiver) for view in views]
    check.equal(apart[0].values(), together[1].values(), "the views arrive")
    sentence = "each side has at most one descriptor for the storage"
    eventually(lambda: returns_to(before, sender, receiver), sentence, stage.grace)
