"""Chapter RESHARE: a shared tensor that is sent again is neither moved nor copied."""

import itertools

from sharedtensor_conformance.chapters.shared_steps import (
    LEAK_ROUNDS,
    LENGTHS,
    check_no_growth,
    check_shared_memory,
    holdings_of,
    judging,
    sender_and_receiver,
    several_strategies,
    strategy_set,
)
from sharedtensor_conformance.chapters.tensor_actions import make_long
from sharedtensor_conformance.harness import check, clause
from sharedtensor_conformance.harness.case.axes import LAYOUTS

MANY_STORAGES = 200
"""A number of storages, larger than an implementation is expected to search through."""


@clause("RESHARE-1")
def test_sharing_a_sent_tensor_again_keeps_the_receiver(sender, receiver):
    """Both sides share again a tensor that one has sent; both write afterwards."""
    tensor = sender.make([1, 2, 3])
    arrived = sender.send(tensor, receiver)
    for shared in (tensor, arrived, tensor):
        shared.share()
        check_shared_memory(tensor, arrived)


@clause("RESHARE-1", profiles=("identity",))
def test_sharing_a_shared_tensor_again_leaves_its_address(sender, receiver, channel):
    """Both sides note the address, share again, and compare; both write."""
    tensor = sender.make([4, 5, 6])
    tensor.share()
    shared_at = tensor.address()
    arrived = sender.send(tensor, receiver, channel)
    arrived_at = arrived.address()
    for _ in range(2):
        tensor.share()
        arrived.share()
        check.equal(tensor.address(), shared_at, "the sender's address is the same")
        check.equal(arrived.address(), arrived_at, "and so is the receiver's")
    check_shared_memory(tensor, arrived)


@clause("RESHARE-2", vary=("strategy", "start_method"))
def test_tensor_sent_again_is_the_same_memory(sender, receiver, channel):
    """The sender sends one tensor three times to one process; all write in turn."""
    tensor = sender.make([7, 8, 9, 10])
    arrived = [sender.send(tensor, receiver, channel) for _ in range(3)]
    check_shared_memory(*arrived, tensor)


@clause("RESHARE-2")
def test_tensor_sent_later_to_another_process_is_the_same_memory(
    sender, receiver, bystander
):
    """The sender sends, writes, and sends the tensor to the third process."""
    tensor = sender.make([11, 12, 13])
    first = sender.send(tensor, receiver)
    tensor.write(0, 110)
    second = sender.send(tensor, bystander)
    check.equal(second.values(), [110, 12, 13], "the later one reads the write")
    check_shared_memory(second, first, tensor)


@clause("RESHARE-2")
def test_tensor_sent_again_after_the_first_was_dropped_is_shared(sender, receiver):
    """The receiver drops what it received before it receives the tensor again."""
    tensor = sender.make([14, 15, 16])
    for _ in range(3):
        arrived = sender.send(tensor, receiver)
        check_shared_memory(arrived, tensor)
        arrived.drop()


@clause("RESHARE-2", "LIFE-22", start_methods=("fork",))
def test_forked_child_does_what_its_parent_did_last(owner, peer):
    """The owner sends or receives tensors and forks; owner and child send them again.

    What the owner remembers of its last message is not true in the child.
    """
    made = [owner.make([number, 33]) for number in range(2)]
    elsewhere = peer.make([34, 35])
    last = {
        "sends a tensor alone": lambda: owner.send(made[0], peer),
        "sends two": lambda: owner.send(made, peer)[0],
        "receives one": lambda: peer.send(elsewhere, owner),
    }
    for number, does in enumerate(last.values()):
        there = does()
        held, there = (there, elsewhere) if there.actor is owner else (made[0], there)
        child = owner.start_peer(arguments=[held], start_method="fork")
        inherited = child.arguments[0]
        ways = [(child, inherited, owner), (owner, held, child)]
        arrived = [
            sender.send(tensor, receiver)
            for sender, tensor, receiver in ways[:: -1 if number % 2 else 1]
        ]
        check_shared_memory(held, there, inherited, *arrived)


@clause("RESHARE-3")
def test_storage_received_twice_is_mapped_once(sender, receiver, channel):
    """The receiver holds a tensor when it arrives again; it drops all, and once more.

    What is remembered of a storage that was dropped must not stand in the way.
    """
    tensor = sender.make([17, 18, 19])
    for _ in range(2):
        first = sender.send(tensor, receiver, channel)
        second = sender.send(tensor, receiver, channel)
        check.equal(second.address(), first.address(), "both have one address")
        first.drop()
        third = sender.send(tensor, receiver, channel)
        check.equal(third.address(), second.address(), "and so has a third, later one")
        second.drop()
        third.drop()


@clause("RESHARE-3", profiles=("views",), dtypes=("int32",))
def test_storage_of_a_base_and_its_view_is_mapped_once(sender, receiver):
    """The receiver holds a base when a view of it arrives in another message."""
    layout = next(layout for layout in LAYOUTS if layout.name == "slice")
    base = sender.make(list(range(700, 724)), dtype="int32")
    first = sender.send(base, receiver)
    second = sender.send(sender.view(base, layout), receiver)
    distance = second.address() - first.address()
    check.equal(distance, 4 * layout.offset, "the view lies at its offset in the base")


@clause("RESHARE-3")
def test_storage_received_again_among_many_is_mapped_once(sender, receiver):
    """The receiver holds two hundred tensors when the first of them come again."""
    tensors = [sender.make([number, 34]) for number in range(MANY_STORAGES)]
    held = sender.send(tensors, receiver)
    for number in (0, 1, MANY_STORAGES - 1):
        again = sender.send(tensors[number], receiver)
        check.equal(again.address(), held[number].address(), "both have one address")
        check_shared_memory(tensors[number], held[number], again)


@clause("RESHARE-3", "RESHARE-4")
def test_storage_of_any_size_is_mapped_once(sender, receiver):
    """The sender sends tensors of any size twice; the receiver sends each back."""
    for length in LENGTHS:
        tensor = sender.run(make_long, length, 5)
        first, second = (sender.send(tensor, receiver) for _ in range(2))
        found = second.address()
        check.equal(found, first.address(), f"both have one address ({length})")
        back = receiver.send(second, sender)
        with judging("RESHARE-4"):
            found = back.address()
            check.equal(found, tensor.address(), f"it is the original's ({length})")
        for actor in (sender, receiver):
            actor.drop_all()


@clause("RESHARE-4")
def test_tensor_that_comes_back_is_the_memory_of_its_owner(sender, receiver, channel):
    """The receiver sends a tensor back while the sender holds it, twice."""
    tensor = sender.make([20, 21, 22])
    for _ in range(2):
        arrived = sender.send(tensor, receiver, channel)
        back = receiver.send(arrived, sender, channel)
        check.equal(back.address(), tensor.address(), "it has the original's address")


@clause("RESHARE-4")
def test_tensor_that_comes_back_from_a_third_is_the_memory_of_its_owner(
    sender, receiver, bystander
):
    """The tensor goes from the sender to the receiver, on to the third, and back."""
    tensor = sender.make([23, 24, 25])
    arrived = sender.send(tensor, receiver)
    onward = receiver.send(arrived, bystander)
    arrived.drop()
    back = bystander.send(onward, sender)
    check.equal(back.address(), tensor.address(), "it has the original's address")


@clause(
    "RESHARE-3",
    "RESHARE-4",
    profiles=("strategies",),
    vary=(),
    several_strategies=True,
    prefers="fork",
    isolated=True,
)
def test_change_of_strategy_maps_nothing_again(stage, direction):
    """Sender and receiver have each strategy in turn when a tensor comes again."""
    with stage.fresh() as fresh:
        sender, receiver = sender_and_receiver(fresh, direction)
        tensor = sender.make([35, 36, 37])
        arrived = sender.send(tensor, receiver)
        for name in several_strategies(receiver):
            with strategy_set(receiver, name):
                again = sender.send(tensor, receiver)
            check.equal(again.address(), arrived.address(), "it is mapped once")
        for name in several_strategies(sender):
            with strategy_set(sender, name):
                back = receiver.send(arrived, sender)
            check.equal(back.address(), tensor.address(), "it is the owner's memory")


@clause("RESHARE-5", vary=("strategy", "start_method"))
def test_received_tensor_that_is_sent_on_is_one_memory(
    sender, receiver, bystander, channel
):
    """The receiver sends what it received on to the third; all three write."""
    tensor = sender.make([26, 27, 28, 29])
    arrived = sender.send(tensor, receiver, channel)
    onward = receiver.send(arrived, bystander, channel)
    check_shared_memory(tensor, arrived, onward)


@clause("RESHARE-5")
def test_tensor_that_went_round_is_still_one_memory(sender, receiver, bystander):
    """The third process sends the tensor to the receiver again; all four write."""
    tensor = sender.make([30, 31, 32, 33])
    arrived = sender.send(tensor, receiver)
    onward = receiver.send(arrived, bystander)
    again = bystander.send(onward, receiver)
    check_shared_memory(tensor, arrived, onward, again)


@clause("RESHARE-6")
def test_tensor_named_twice_in_a_message_arrives_as_one_tensor(
    sender, receiver, channel
):
    """The sender names a tensor three times, and another once, in one message."""
    tensor, other = sender.make([34, 35]), sender.make([36, 37])
    message = [tensor, other, {"again": tensor, "deep": (tensor,)}]
    arrived = sender.send(message, receiver, channel)
    first, names = arrived[0], arrived[2]
    check(names["again"].same_object_as(first), "the second name is the same tensor")
    check(names["deep"][0].same_object_as(first), "and so is the third")
    check(not arrived[1].same_object_as(first), "the other is another tensor")
    check.equal(arrived[1].values(), [36, 37], "with its own values")


@clause("RESHARE-6", "GRAD-9", profiles=("grad",))
def test_grad_named_beside_its_tensor_arrives_as_one_tensor(sender, receiver):
    """The sender names a tensor, its grad, and the grad of that, in several orders."""
    tensor, grad, second = (sender.make([n, 45, 46]) for n in range(3))
    tensor.set_grad(grad)
    grad.set_grad(second)
    for message in itertools.permutations([tensor, grad, second]):
        arrived = sender.send(list(message), receiver)
        found = dict(zip((one.key for one in message), arrived, strict=True))
        there, its_grad, its_second = (found[t.key] for t in (tensor, grad, second))
        for one, name in ((there, its_grad), (its_grad, its_second)):
            with judging("GRAD-9"):
                check(one.grad() is not None, "the grad has arrived")
            check(one.grad().same_object_as(name), "both names are one tensor")
        with judging("GRAD-9"):
            check(its_second.grad() is None, "the last one has none")
            check_shared_memory(second, its_second)
        for one in arrived:
            one.drop()


@clause("RESHARE-6", profiles=("modules",))
def test_tied_parameters_arrive_as_one_parameter(sender, receiver):
    """The sender ties two of three parameters of a module and sends it."""
    module = sender.make_module({"a": [1, 2], "b": [3, 4], "c": [5, 6]})
    sender.tie(module, "a", "b")
    arrived = receiver.parameters(sender.send(module, receiver))
    check(arrived["b"].same_object_as(arrived["a"]), "the tied ones are one parameter")
    check(not arrived["c"].same_object_as(arrived["a"]), "the third is not")
    check.equal(arrived["c"].values(), [5, 6], "and has its own values")


@clause("RESHARE-7")
def test_buffer_that_goes_round_and_round_costs_nothing(
    sender, receiver, channel, stage
):
    """The sender sends one tensor to the receiver and back, many times."""
    tensor = sender.make([38, 39, 40])

    def go_round():
        arrived = sender.send(tensor, receiver, channel)
        back = receiver.send(arrived, sender, channel)
        back.drop()
        arrived.drop()

    go_round()
    before = holdings_of(stage, sender, receiver)
    for _ in range(LEAK_ROUNDS):
        go_round()
    check_no_growth(before, stage, sender, receiver)
