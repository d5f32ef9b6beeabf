"""Chapter KIND: kinds of tensors other than a window on a storage."""

from functools import partial

from sharedtensor_conformance.chapters.shared_steps import judging, unthreaded_channel
from sharedtensor_conformance.chapters.tensor_actions import (
    deep_copy,
    pickled,
    shallow_copy,
    unpickled,
)
from sharedtensor_conformance.harness import attempt, check, clause


def try_send(sender, receiver, tensor, channel):
    """Send a tensor; return what arrives, or None if it was refused."""
    arrived, _ = attempt(lambda: sender.send(tensor, receiver, channel))
    return arrived


@clause("KIND-1", prefers="fork", may_corrupt=True)
def test_tensor_of_any_kind_arrives_as_it_is_or_is_refused(
    sender, receiver, tensor_kind, stage
):
    """The sender sends a tensor alone, and in a list beside an ordinary one."""
    tensor = sender.make_kind(tensor_kind)
    expected = tensor.describe()
    channel = unthreaded_channel(
        stage
    )  # sends in the calling thread, which gets the exception
    arrived = try_send(sender, receiver, tensor, channel)
    if arrived is not None:
        check.equal(arrived.describe(), expected, "it arrives as it was")
    beside = sender.make([1, 2, 3])
    both = try_send(sender, receiver, [beside, tensor], channel)
    if both is not None:
        check.equal(both[0].values(), [1, 2, 3], "what is beside it arrives")
        check.equal(both[1].describe(), expected, "and it as it was")
    check.equal(tensor.describe(), expected, "the sender's is as it was")


@clause("KIND-1", prefers="fork", may_corrupt=True)
def test_tensor_of_any_kind_that_is_sent_on_arrives_as_it_is_or_is_refused(
    sender, receiver, bystander, tensor_kind, stage
):
    """The receiver sends a tensor back to the sender, and on to a third process."""
    tensor = sender.make_kind(tensor_kind)
    expected = tensor.describe()
    channel = unthreaded_channel(stage)
    arrived = try_send(sender, receiver, tensor, channel)
    check.equal(tensor.describe(), expected, "the sender's is as it was")
    if arrived is None:
        return
    for place, to in (("its sender", sender), ("a third process", bystander)):
        onward = try_send(receiver, to, arrived, channel)
        if onward is not None:
            check.equal(onward.describe(), expected, f"it arrives at {place} as it was")


@clause(
    *("KIND-2", "SHARE-5", "START-3"),
    profiles=("share",),
    start_methods=("fork",),
    may_corrupt=True,
    mainly="KIND-2",
)
def test_tensor_of_any_kind_that_was_shared_is_shared_with_a_forked_child(
    owner, tensor_kind
):
    """The owner shares a tensor and forks; both change it in turn, and look at it."""
    tensor = owner.make_kind(tensor_kind)
    seen = tensor.describe()
    _, refused = attempt(tensor.share)
    check.equal(tensor.describe(), seen, "sharing leaves it as it was")
    if refused is not None:
        return
    with judging("SHARE-5"):
        check.equal(tensor.is_shared(), True, "it is shared")
    child = owner.start_peer(arguments=tensor, start_method="fork")
    inherited = child.arguments
    with judging("START-3"):
        for value, (one, other) in ((5, (tensor, inherited)), (6, (inherited, tensor))):
            if one.change(value):
                before, seen = seen, one.describe()
                check(seen != before, "the change is seen where it was made")
                check.equal(other.describe(), seen, "the other side sees it")


@clause("KIND-2", prefers="fork", may_corrupt=True)
def test_tensor_of_any_kind_that_arrives_is_shared(
    sender, receiver, tensor_kind, stage
):
    """Both sides change the tensor in turn, and look at it."""
    tensor = sender.make_kind(tensor_kind)
    seen = tensor.describe()
    arrived = try_send(sender, receiver, tensor, unthreaded_channel(stage))
    check.equal(tensor.describe(), seen, "sending leaves it as it was")
    if arrived is None:
        return
    for value, (one, other) in ((5, (tensor, arrived)), (6, (arrived, tensor))):
        if one.change(value):
            before, seen = seen, one.describe()
            check(seen != before, "the change is seen where it was made")
            check.equal(other.describe(), seen, "the other side sees it")


@clause("KIND-3", prefers="fork", may_corrupt=True)
def test_copy_of_a_tensor_of_any_kind_is_as_it_is_or_is_refused(
    owner, peer, tensor_kind
):
    """The owner copies and pickles a tensor; the owner and a peer read the pickle."""
    tensor = owner.make_kind(tensor_kind)
    expected = tensor.describe()
    for copy in (shallow_copy, deep_copy):
        made, _ = attempt(partial(owner.run, copy, tensor))
        if made is not None:
            sentence = f"the {copy.__name__} is as the tensor"
            check.equal(made.describe(), expected, sentence)
    content, _ = attempt(partial(owner.run, pickled, tensor))
    for reader in (owner, peer) if content else ():
        made, _ = attempt(partial(reader.run, unpickled, content))
        if made is not None:
            check.equal(made.describe(), expected, "what the pickle has is as it")
    check.equal(tensor.describe(), expected, "the tensor is as it was")
