"""Chapter GRAD: flags and gradients that travel with a tensor."""

from contextlib import contextmanager
from functools import partial
from math import nan, prod

from sharedtensor_conformance.chapters.extremes import extremes_of
from sharedtensor_conformance.chapters.pools import pool_in
from sharedtensor_conformance.chapters.record_actions import RECORDS, make_record
from sharedtensor_conformance.chapters.shared_steps import (
    DIFFERENTIABLE,
    LENGTHS,
    check_private_memory,
    check_shared_memory,
    judging,
)
from sharedtensor_conformance.chapters.tensor_actions import make_long
from sharedtensor_conformance.chapters.worker_tasks import (
    make_non_leaf,
    write_and_return,
)
from sharedtensor_conformance.harness import attempt, check, clause, refusal
from sharedtensor_conformance.harness.case.axes import (
    BASE_ELEMENTS,
    layouts_of,
)


def make_leaf(actor, values, grad=None):
    """Return a leaf that requires grad; `grad` are the values of its grad, if any."""
    tensor = actor.make(values)
    tensor.set_requires_grad(True)
    if grad is not None:
        tensor.set_grad(actor.make(grad))
    return tensor


GRAD_VALUES = {
    "zeros": [0.0, 0.0, 0.0],
    "one zero": [0.0],
    "zeros with a sign": [-0.0, -0.0],
    "ones": [1.0, 1.0, 1.0],
    "no numbers": [nan, nan],
    "extremes": extremes_of("float32"),
    "none": [],
}
"""Values of grads that an implementation may confuse with something else."""


@contextmanager
def grad_mode(actor, on):
    """Set the grad mode of `actor` during the block, then record operations again."""
    actor.set_grad_mode(on)
    try:
        yield
    finally:
        actor.set_grad_mode(True)


@clause("GRAD-1")
def test_leaf_arrives_as_a_leaf_with_its_flag(sender, receiver, channel):
    """The sender sends a leaf that requires grad between two that do not."""
    for flag in (False, True, False):
        tensor = sender.make([1, 2, 3])
        tensor.set_requires_grad(flag)
        arrived = sender.send(tensor, receiver, channel)
        check.equal(arrived.requires_grad(), flag, "the flag is the sender's")
        check.equal(arrived.is_leaf(), True, "it is a leaf")
        check.equal(arrived.values(), [1, 2, 3], "it has its values")


@clause("GRAD-1")
def test_flag_of_each_send_is_the_one_at_that_send(sender, receiver):
    """The sender changes the flag between two sends of one tensor."""
    tensor = sender.make([4, 5, 6])
    for flag in (False, True, False):
        tensor.set_requires_grad(flag)
        arrived = sender.send(tensor, receiver)
        check.equal(arrived.requires_grad(), flag, "the flag is that of the send")
        arrived.drop()


@clause("GRAD-1")
def test_flag_arrives_with_leaves_of_each_dtype(sender, receiver, implementation):
    """The sender sends a leaf of each dtype with either flag, where it can be set.

    Whole numbers have no derivative, so a library may refuse the flag for them.
    """
    for name in implementation.dtypes:
        for flag in (True, False):
            tensor = sender.make([1, 0, 1], dtype=name)
            _, refused = attempt(partial(tensor.set_requires_grad, flag))
            if name in DIFFERENTIABLE:
                check(refused is None, f"the flag of a leaf of {name} can be set")
            expected = tensor.requires_grad()
            arrived = sender.send(tensor, receiver)
            check.equal(arrived.requires_grad(), expected, f"{name} has its flag")
            check.equal(arrived.dtype(), name, "the dtype is the sender's")


@clause("GRAD-2", vary=("strategy", "start_method"))
def test_grad_that_is_present_arrives_with_its_values(sender, receiver, channel):
    """The sender sends a leaf with a grad; the receiver reads both."""
    tensor = make_leaf(sender, [1, 2, 3], grad=[0.25, -0.5, 0.75])
    arrived = sender.send(tensor, receiver, channel)
    grad = arrived.grad()
    check(grad is not None, "the grad has arrived")
    check.equal(grad.values(), [0.25, -0.5, 0.75], "it has the sender's values")
    check.equal(arrived.values(), [1, 2, 3], "the tensor has its own values")


@clause("GRAD-2")
def test_grads_in_a_container_arrive_at_their_tensors(sender, receiver):
    """The sender sends two leaves with grads and one without between them."""
    message = {
        "first": make_leaf(sender, [1, 2], grad=[10, 20]),
        "bare": make_leaf(sender, [3, 4]),
        "second": make_leaf(sender, [5, 6], grad=[50, 60]),
    }
    arrived = sender.send(message, receiver)
    check(arrived["bare"].grad() is None, "the one without has none")
    for name, expected in (("first", [10, 20]), ("second", [50, 60])):
        grad = arrived[name].grad()
        check(grad is not None, f"{name} has a grad")
        check.equal(grad.values(), expected, "its values are its own")


@clause("GRAD-2")
def test_grad_made_between_two_sends_arrives_with_the_second(sender, receiver):
    """The sender sends a leaf, gives it a grad, and sends it again."""
    tensor = make_leaf(sender, [7, 8, 9])
    first = sender.send(tensor, receiver)
    check(first.grad() is None, "the first has none")
    first.drop()
    tensor.set_grad(sender.make([70, 80, 90]))
    second = sender.send(tensor, receiver)
    grad = second.grad()
    check(grad is not None, "the second has a grad")
    check.equal(grad.values(), [70, 80, 90], "it has the sender's values")


@clause("GRAD-3", vary=("strategy", "start_method"))
def test_grad_that_is_present_is_shared(sender, receiver, channel):
    """Sender and receiver write to the grad in turn, and to the tensor."""
    tensor = make_leaf(sender, [1, 2, 3], grad=[4, 5, 6])
    arrived = sender.send(tensor, receiver, channel)
    grad = arrived.grad()
    check(grad is not None, "the grad has arrived")
    check_shared_memory(grad, tensor.grad())
    detached = [sender.detach(tensor), receiver.detach(arrived)]
    check_shared_memory(*detached)
    check.equal(grad.values(), tensor.grad().values(), "both grads are as they were")


@clause("GRAD-3")
def test_grad_of_a_tensor_that_was_shared_before_is_shared(sender, receiver):
    """The sender sends a leaf, gives it a grad, sends it again; both write."""
    tensor = make_leaf(sender, [11, 12, 13])
    first = sender.send(tensor, receiver)
    tensor.set_grad(sender.make([14, 15, 16]))
    first.drop()
    second = sender.send(tensor, receiver)
    grad = second.grad()
    check(grad is not None, "the grad has arrived")
    check_shared_memory(tensor.grad(), grad)


@clause("GRAD-3")
def test_grad_of_any_size_is_shared(sender, receiver):
    """The sender sends tensors with grads of any size; both write to the grads."""
    for length in LENGTHS:
        last = length - 1
        tensor = sender.run(make_long, length, 5)
        tensor.set_grad(sender.run(make_long, length, 6))
        own, grad = tensor.grad(), sender.send(tensor, receiver).grad()
        check(grad is not None, f"the grad of {length} elements has arrived")
        for value, (writer, reader) in enumerate(((grad, own), (own, grad)), 7):
            writer.write(last, value)
            check.equal(reader.read(last), value, f"the write is read ({length})")
        for actor in (sender, receiver):
            actor.drop_all()


@clause("GRAD-2", "GRAD-3", profiles=("views",))
def test_grad_that_is_a_view_arrives_with_its_values_and_is_shared(
    sender, receiver, implementation
):
    """The grad of a tensor is a view of each layout; both sides write to it.

    Programs keep the grads of all parameters in one large tensor.
    """
    base = sender.make(list(range(BASE_ELEMENTS)))
    for layout in layouts_of(implementation):
        tensor = sender.make([1] * prod(layout.shape), shape=layout.shape)
        tensor.set_grad(sender.view(base, layout))
        own, grad = tensor.grad(), sender.send(tensor, receiver).grad()
        check(grad is not None, f"the grad has arrived ({layout.name})")
        check.equal(grad.shape(), layout.shape, "it has the shape of the sender's")
        check.equal(grad.values(), own.values(), f"it has its values ({layout.name})")
        last = tuple(length - 1 for length in layout.shape)
        for value, (writer, reader) in enumerate(((grad, own), (own, grad)), 70):
            writer.write(last, value)
            with judging("GRAD-3"):
                due = writer.values()
                check.equal(reader.values(), due, f"it is shared ({layout.name})")


@clause("GRAD-2")
def test_grad_arrives_whatever_its_values_are(sender, receiver):
    """The sender sends leaves with grads of zeros, of infinities, of no elements."""
    for name, values in GRAD_VALUES.items():
        tensor = make_leaf(sender, [1] * len(values), grad=values)
        grad = sender.send(tensor, receiver).grad()
        check(grad is not None, f"the grad has arrived ({name})")
        expected = repr(tensor.grad().values())
        check.equal(repr(grad.values()), expected, "it has the sender's values")


@clause("GRAD-3")
def test_grad_is_shared_whatever_its_values_are(sender, receiver):
    """The sender sends such leaves; the receiver writes to each grad, then it does."""
    for name, values in GRAD_VALUES.items():
        tensor = make_leaf(sender, [1] * len(values), grad=values)
        grad = sender.send(tensor, receiver).grad()
        check(grad is not None, f"the grad has arrived ({name})")
        for index in range(min(len(values), 1)):
            grad.write(index, 2)
            check.equal(tensor.grad().read(index), 2, "the sender reads the write")
            tensor.grad().write(index, 3)
            check.equal(grad.read(index), 3, "the receiver reads the sender's")


@clause("GRAD-4")
def test_grad_made_after_the_send_is_private(sender, receiver, channel):
    """Both sides give their tensor a grad after the receive and write to it."""
    tensor = make_leaf(sender, [1, 2, 3])
    arrived = sender.send(tensor, receiver, channel)
    check(arrived.grad() is None, "the receiver's grad is None")
    arrived.set_grad(receiver.make([10, 20, 30]))
    check(tensor.grad() is None, "the sender's is still None")
    tensor.set_grad(sender.make([40, 50, 60]))
    check.equal(arrived.grad().values(), [10, 20, 30], "the receiver's is its own")
    check_private_memory(arrived.grad(), tensor.grad())


@clause("GRAD-5", vary=("strategy", "start_method"))
def test_non_leaf_that_requires_grad_is_refused_in_put(sender, receiver, channel):
    """The sender puts a non-leaf alone and in a container; both calls raise."""
    leaf = make_leaf(sender, [1, 2, 3])
    non_leaf = sender.non_leaf(leaf)
    check.equal(non_leaf.is_leaf(), False, "it is no leaf")
    for message in (non_leaf, {"deep": [sender.make([4, 5]), non_leaf]}):
        with refusal("the put raises"):
            sender.put(message, receiver, channel)


@clause("GRAD-5")
def test_non_leaf_is_refused_while_nothing_is_recorded(sender, receiver, channel):
    """The sender makes a non-leaf, ceases to record operations, and puts it.

    So do programs that compute a loss, and send results while they measure.
    """
    leaf = make_leaf(sender, [11, 12, 13])
    non_leaf = sender.non_leaf(leaf)
    with grad_mode(sender, False):
        check.equal(non_leaf.requires_grad(), True, "it requires grad as before")
        with refusal("the put raises"):
            sender.put(non_leaf, receiver, channel)
        arrived = sender.send(leaf, receiver, channel)
    check.equal(arrived.requires_grad(), True, "the leaf arrives with its flag")


@clause("GRAD-5")
def test_non_leaf_in_an_object_is_refused_in_put(sender, receiver, channel):
    """The sender puts objects of each kind with a non-leaf in either attribute."""
    non_leaf = sender.non_leaf(make_leaf(sender, [21, 22]))
    for kind in RECORDS:
        for attributes in ((non_leaf, None), (sender.make([23]), [non_leaf])):
            record = sender.run(make_record, kind, *attributes)
            with refusal(f"the put of a {kind} raises"):
                sender.put({"deep": [record]}, receiver, channel)


@clause("GRAD-5", vary=("start_method",), start_methods=("spawn", "forkserver"))
def test_non_leaf_among_the_arguments_of_a_process_is_refused(owner):
    """The owner starts processes with a non-leaf; each start raises."""
    non_leaf = owner.non_leaf(make_leaf(owner, [14, 15, 16]))
    for on in (True, False):
        with grad_mode(owner, on), refusal("the start raises"):
            owner.start_peer(arguments={"deep": [non_leaf]})


@clause("GRAD-5", vary=(), prefers="fork")
def test_non_leaf_among_the_arguments_of_a_task_is_refused(owner):
    """The owner submits tasks with a non-leaf to a pool; each submission raises."""
    non_leaf = owner.non_leaf(make_leaf(owner, [17, 18, 19]))
    with pool_in(owner) as pool:
        for on in (True, False):
            with grad_mode(owner, on), refusal("the submission raises"):
                pool.run(write_and_return, non_leaf, 0, 20)


@clause("GRAD-5", vary=(), prefers="fork")
def test_non_leaf_that_is_the_result_of_a_task_is_refused(owner):
    """Workers of a pool return a non-leaf; asking for each result raises."""
    with pool_in(owner) as pool:
        for _ in range(2):
            with refusal("asking for the result raises"):
                pool.run(make_non_leaf, [24, 25])


@clause("GRAD-5", vary=(), prefers="fork", isolated=True)
def test_non_leaf_that_is_the_result_of_a_call_is_refused(stage):
    """Workers of an executor return a non-leaf; asking for each result raises."""
    with stage.fresh() as fresh, pool_in(fresh.owner, kind="executor") as pool:
        for _ in range(2):
            with refusal("asking for the result raises"):
                pool.run(make_non_leaf, [26, 27])


@clause("GRAD-5")
def test_non_leaf_is_refused_each_time(sender, receiver, channel):
    """The sender puts one non-leaf twice, after the leaf that it came from."""
    leaf = make_leaf(sender, [6, 7, 8])
    arrived = sender.send(leaf, receiver, channel)
    check.equal(arrived.values(), [6, 7, 8], "the leaf is accepted")
    non_leaf = sender.non_leaf(leaf)
    for attempted in ("first", "second"):
        with refusal(f"the {attempted} put raises"):
            sender.put(non_leaf, receiver, channel)


@clause("GRAD-5", profiles=("views",))
def test_view_of_a_leaf_is_refused_as_any_result(
    sender, receiver, channel, implementation
):
    """The sender puts a view of a leaf that requires grad, which is no leaf."""
    leaf = make_leaf(sender, list(range(24)))
    for layout in layouts_of(implementation)[:2]:
        view = sender.view(leaf, layout)
        check.equal(view.is_leaf(), False, "it is no leaf")
        with refusal("the put raises"):
            sender.put(view, receiver, channel)


@clause("GRAD-6")
def test_refused_message_leaves_the_channel_usable(sender, receiver, channel):
    """The sender puts messages with a non-leaf in them, and a good one after each.

    The non-leaf is bare, alone in a list, the first item, the last or in between.
    """
    non_leaf = sender.non_leaf(make_leaf(sender, [1, 2, 3]))
    first, last = sender.make([90, 91]), sender.make([92])
    messages = [
        *(non_leaf, [non_leaf], [first, non_leaf], [non_leaf, last]),
        [first, non_leaf, last],
    ]
    for number, refused in enumerate(messages, 1):
        attempt(lambda refused=refused: sender.put(refused, receiver, channel))
        good = sender.make([10 * number, 10 * number + 1])
        arrived = sender.send({"number": number, "good": good}, receiver, channel)
        check(isinstance(arrived, dict), "the good message arrives")
        check.equal(sorted(arrived), ["good", "number"], "as it was sent")
        check.equal(arrived["number"], number, "in its turn")
        check.equal(arrived["good"].values(), good.values(), "with its values")


@clause("GRAD-6", channels=("queue",), starts=True)
def test_refused_message_takes_no_place_in_a_bounded_queue(owner):
    """The owner puts non-leaves on a queue with one place, then a good message."""
    channel = owner.open_channel("queue_of_one")
    child = owner.start_peer(arguments=channel)
    non_leaf = owner.non_leaf(make_leaf(owner, [1, 2, 3]))
    for number in (10, 20):
        attempt(partial(channel.put, owner, non_leaf))
        good = owner.make([number, number + 1])
        channel.put(owner, good)
        arrived = channel.get(child)
        check.equal(arrived.values(), good.values(), "the good message arrives")


@clause("GRAD-7")
def test_detached_tensor_is_sent_and_shares_its_memory(sender, receiver, channel):
    """The sender detaches a leaf and a non-leaf and sends what it detached."""
    leaf = make_leaf(sender, [1, 2, 3])
    for original in (leaf, sender.non_leaf(leaf)):
        detached = sender.detach(original)
        arrived = sender.send(detached, receiver, channel)
        check.equal(arrived.requires_grad(), False, "what arrives requires no grad")
        arrived.write(1, 25)
        check.equal(original.read(1), 25, "the original reads the receiver's write")
        detached.write(2, 35)
        check.equal(original.read(2), 35, "and that of the detached one")
        check.equal(arrived.values(), original.values(), "both are one memory")


@clause("GRAD-8")
def test_grad_keeps_its_role_when_the_tensor_is_sent_on(
    sender, receiver, bystander, channel
):
    """The receiver sends a tensor with a grad on; all three write to the grad."""
    tensor = make_leaf(sender, [1, 2, 3, 4], grad=[5, 6, 7, 8])
    arrived = sender.send(tensor, receiver, channel)
    onward = receiver.send(arrived, bystander, channel)
    grad = onward.grad()
    check(grad is not None, "the grad has arrived at the third process")
    check.equal(onward.values(), [1, 2, 3, 4], "the tensor is not its grad")
    check_shared_memory(grad, tensor.grad(), arrived.grad())


@clause("GRAD-8", "GRAD-9")
def test_grad_that_has_a_grad_keeps_it(sender, receiver, bystander):
    """The sender sends a tensor whose grad has a grad; the receiver sends it on."""
    tensor, grad = make_leaf(sender, [1, 2, 3]), sender.make([4, 5, 6])
    second = sender.make([7, 8, 9])
    grad.set_grad(second)
    tensor.set_grad(grad)
    arrived = sender.send(tensor, receiver)
    onward = receiver.send(arrived, bystander)
    for there in (arrived, onward):
        check(there.grad() is not None, "the grad has arrived")
        check(there.grad().grad() is not None, "and has its own")
        check(there.grad().grad().grad() is None, "which has none")
    grads = [there.grad().grad() for there in (arrived, onward)]
    check_shared_memory(second, *grads)
    check.equal(onward.grad().values(), [4, 5, 6], "the grad is not its grad")


@clause("GRAD-8")
def test_grad_keeps_its_role_when_the_tensor_comes_back(sender, receiver):
    """The receiver sends a tensor with a grad back to the sender; both write."""
    tensor = make_leaf(sender, [9, 8, 7], grad=[6, 5, 4])
    arrived = sender.send(tensor, receiver)
    back = receiver.send(arrived, sender)
    grad = back.grad()
    check(grad is not None, "the grad has come back")
    check_shared_memory(tensor.grad(), grad, arrived.grad())


@clause(*("GRAD-2", "GRAD-4", "GRAD-9"), pairwise=True, mainly="GRAD-2")
def test_grad_that_was_taken_away_does_not_arrive(sender, receiver, channel):
    """The sender sends a leaf, takes its grad away, sends it, and gives it another."""
    tensor = make_leaf(sender, [21, 22, 23], grad=[1, 2, 3])
    first = sender.send(tensor, receiver, channel)
    check(first.grad() is not None, "the grad has arrived")
    tensor.set_grad(None)
    with judging("GRAD-4"):
        second = sender.send(tensor, receiver, channel)
        check(second.grad() is None, "what was taken away does not arrive")
        check(first.grad() is not None, "and stays where it has arrived")
    tensor.set_grad(sender.make([4, 5, 6]))
    third = sender.send(tensor, receiver, channel)
    check(third.grad() is not None, "another grad arrives")
    check.equal(third.grad().values(), [4, 5, 6], "with its own values")
    with judging("GRAD-4"):
        check(second.grad() is None, "and only with the message that it is in")
        check_private_memory(first.grad(), third.grad())
    with judging("GRAD-9"):
        check_shared_memory(third.grad(), tensor.grad())


@clause("GRAD-4")
def test_taking_a_grad_away_is_private_and_leaves_nothing_behind(sender, receiver):
    """Neither the sender's nor the receiver's grad is seen, nor that it is gone."""
    tensor = make_leaf(sender, [24, 25, 26])
    for turn in range(3):
        arrived = sender.send(tensor, receiver)
        check(arrived.grad() is None, "the receiver's grad is None")
        arrived.set_grad(receiver.make([turn, 27, 28]))
        again = sender.send(tensor, receiver)
        check(again.grad() is None, "and so is that of the next one")
        check(tensor.grad() is None, "the sender's is None")
        arrived.set_grad(None)
        back = receiver.send(arrived, sender)
        check(back.grad() is None, "one that was taken away does not come back")


@clause("GRAD-7", profiles=("views",), pairwise=True)
def test_detached_views_of_each_dtype_share_their_memory(
    sender, receiver, channel, implementation
):
    """The sender detaches leaves and views of leaves, of each dtype that has grads."""
    for name in set(DIFFERENTIABLE) & set(implementation.dtypes):
        leaf = sender.make(list(range(24)), dtype=name)
        leaf.set_requires_grad(True)
        for layout in layouts_of(implementation):
            original = sender.view(leaf, layout)
            detached = sender.detach(original)
            arrived = sender.send(detached, receiver, channel)
            check.equal(arrived.requires_grad(), False, "what arrives requires none")
            check.equal(arrived.is_leaf(), True, "and is a leaf")
            check.equal(original.requires_grad(), True, "the view is as it was")
            first = (0,) * len(layout.shape)
            arrived.write(first, 29)
            found = leaf.read(layout.offset)
            check.equal(found, 29, f"the leaf reads the write ({layout.name})")
            leaf.write(layout.offset, layout.offset)
            check.equal(arrived.values(), original.values(), "both are one memory")


@clause(*("GRAD-5", "GRAD-6"), profiles=("views",), pairwise=True, mainly="GRAD-5")
def test_non_leaf_of_each_sort_is_refused_wherever_it_is(
    sender, receiver, channel, implementation
):
    """Non-leaves of each dtype and shape are last in a message, or first, or deep.

    The leaf that they came from, and each message after them, is sent as ever.
    """
    dtypes = [name for name in DIFFERENTIABLE if name in implementation.dtypes]
    for number, shape in enumerate([(), (1,), (0,), (2, 2), (3,)]):
        name, count = dtypes[number % len(dtypes)], prod(shape)
        leaf = sender.make([1] * count, shape=shape, dtype=name)
        leaf.set_requires_grad(True)
        non_leaf = sender.non_leaf(leaf)
        other = sender.make([number, 31])
        nested = {"a": ({"b": [non_leaf]}, other)}
        for message in ([other, leaf, non_leaf], [non_leaf, other], nested):
            with refusal(f"the put of a {name} of shape {shape} raises"):
                sender.put(message, receiver, channel)
        with judging("GRAD-6"):
            there, beside = sender.send([leaf, other], receiver, channel)
            check.equal(there.requires_grad(), True, "the leaf arrives with its flag")
            check.equal(beside.values(), [number, 31], "and what is beside it")
