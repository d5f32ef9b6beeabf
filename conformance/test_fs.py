"""Chapter FS: segments with a name, which somebody has to remove."""

from sharedtensor_conformance.harness import check, clause, eventually

MANY = 20
"""Storages that a process holds at once: with a descriptor for each it would show."""


def only_name(stage, before):
    """Return the one name that is there and was not `before`.

    After a put it may come a little later: whether it may is the matter of CHAN-7.
    """
    is_there = lambda: stage.segments() - before  # noqa: E731
    eventually(is_there, "the storage has a file", within=stage.grace)
    names = stage.segments() - before
    check.equal(len(names), 1, "exactly one file belongs to the storage")
    return names.pop()


@clause("FS-1", vary=("strategy",))
def test_shared_storage_has_one_name(sender, receiver, bystander, channel, stage):
    """The ledger is read in flight and while all three hold the tensor."""
    before = stage.segments()
    tensor = sender.make([1, 2, 3])
    sender.put(tensor, receiver, channel)
    name = only_name(stage, before)
    arrived = receiver.get(sender, channel)
    onward = receiver.send(arrived, bystander, channel)
    again = sender.send(tensor, bystander, channel)
    for held in (tensor, arrived, onward, again):
        check.equal(held.values(), [1, 2, 3], "each has the values")
    check.equal(only_name(stage, before), name, "it is the same file as in flight")


@clause("FS-1", profiles=("share",), vary=("strategy",))
def test_storage_shared_on_request_has_one_name(owner, peer, stage):
    """The owner shares a tensor, sends it, and shares it again."""
    before = stage.segments()
    tensor = owner.make([4, 5, 6])
    tensor.share()
    name = only_name(stage, before)
    arrived = owner.send(tensor, peer)
    for held in (tensor, arrived):
        held.share()
        check.equal(only_name(stage, before), name, "it is still the same file")


@clause("FS-1", profiles=("views",), vary=())
def test_base_and_views_have_one_name(sender, receiver, layout, stage):
    """The sender sends a view, its base, and both in one message."""
    before = stage.segments()
    base = sender.make(list(range(900, 924)))
    view = sender.view(base, layout)
    arrived = [sender.send(sent, receiver) for sent in (view, base, [base, view])]
    check.equal(arrived[1].values(), list(range(900, 924)), "the base arrives")
    only_name(stage, before)


@clause("FS-2")
def test_name_goes_with_the_last_reference(sender, receiver, bystander, stage):
    """Three processes drop one storage, each of them last in its turn."""
    for last in range(3):
        before = stage.segments()
        tensor = sender.make([7, 8, 9])
        held = [tensor, *(sender.send(tensor, to) for to in (receiver, bystander))]
        kept = held.pop(last)
        name = only_name(stage, before)
        for dropped in held:
            dropped.drop()
        check(name in stage.segments(), "it is there while one holds the storage")
        check.equal(kept.values(), [7, 8, 9], "and has its values")
        kept.drop()
        gone = lambda name=name: name not in stage.segments()  # noqa: E731
        eventually(gone, "the file is removed", within=stage.grace)


@clause("FS-2", vary=("strategy",))
def test_name_goes_when_a_message_in_flight_was_received_and_dropped(
    sender, receiver, channel, stage
):
    """The sender drops before the receive; the receiver drops last, three times."""
    for number in range(3):
        before = stage.segments()
        tensor = sender.make([number, 11, 12])
        sender.put(tensor, receiver, channel)
        tensor.drop()
        name = only_name(stage, before)
        arrived = receiver.get(sender, channel)
        check.equal(arrived.values(), [number, 11, 12], "the tensor arrives")
        arrived.drop()
        gone = lambda name=name: name not in stage.segments()  # noqa: E731
        eventually(gone, "the file is removed", within=stage.grace)


@clause("FS-2", profiles=("share",), vary=("strategy",))
def test_name_of_a_storage_that_was_never_sent_goes(owner, peer, stage):
    """Owner and peer share a tensor and drop it."""
    for actor in (owner, peer):
        before = stage.segments()
        tensor = actor.make([13, 14, 15])
        tensor.share()
        only_name(stage, before)
        tensor.drop()
        gone = lambda before=before: stage.segments() <= before  # noqa: E731
        eventually(gone, "the file is removed", within=stage.grace)


@clause("FS-3", vary=("strategy",))
def test_shared_storages_keep_no_descriptors_open(sender, receiver, channel, stage):
    """The sender sends twenty tensors; both sides hold all of them."""
    held = [sender.make([1, 2])]
    held.append(sender.send(held[0], receiver, channel))
    before = [sender.descriptors(), receiver.descriptors()]
    for number in range(MANY):
        held.append(sender.make([number, 22, 23]))
        held.append(sender.send(held[-1], receiver, channel))
    check.equal(held[-1].values(), [MANY - 1, 22, 23], "the last one arrives")

    def settled():
        now = [sender.descriptors(), receiver.descriptors()]
        return all(count <= then for count, then in zip(now, before, strict=True))

    sentence = "neither side has more descriptors open than with one storage"
    eventually(settled, sentence, within=stage.grace)


@clause("FS-3", profiles=("share",), vary=("strategy",))
def test_storages_shared_on_request_keep_no_descriptors_open(owner, stage):
    """The owner shares twenty tensors and holds them."""
    held = [owner.make([1, 2])]
    held[0].share()
    before = owner.descriptors()
    for number in range(MANY):
        held.append(owner.make([number, 24, 25]))
        held[-1].share()
        check.equal(held[-1].values(), [number, 24, 25], "sharing keeps the values")
    sentence = "the owner has no more descriptors open than with one storage"
    eventually(lambda: owner.descriptors() <= before, sentence, within=stage.grace)
