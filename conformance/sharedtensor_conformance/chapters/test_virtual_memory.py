"""Chapter CUDA: device memory that processes map, and that no process owns.

What the chapter says of all device memory is judged here again where virtual memory is
shared in another way: by the tests of `test_cuda`, whose tensors then lie in it.
"""

from contextlib import contextmanager

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.chapters import test_cuda
from sharedtensor_conformance.chapters.exhaustion import exhausted
from sharedtensor_conformance.chapters.message_actions import unpicklable
from sharedtensor_conformance.chapters.shared_steps import (
    unthreaded_channel,
    wait_until_receivable,
)
from sharedtensor_conformance.chapters.test_cuda import (
    SIZE_TOLERANCE,
    check_shared,
    drop_all,
    make_with_block,
    memory_used,
    overwrite_freed_blocks,
    values_after_waiting,
    wait_until_freed,
    warm_up,
    write_and_wait,
)
from sharedtensor_conformance.harness import attempt, check, clause, refusal
from sharedtensor_conformance.harness.case.outcomes import Unsupported
from sharedtensor_conformance.harness.remote.channels import Channel

PROFILE = ("virtual-memory",)

FEW_DESCRIPTORS = 16
"""The number of descriptors that a process near its limit can still open."""

TENSORS_OF_ONE = 60
"""The number of tensors of a message that lie in one allocation."""


@contextmanager
def virtual_memory(*actors):
    """Have the device tensors that actors make in the block lie in virtual memory."""
    for actor in actors:
        actor.use_virtual_memory(True)
    try:
        yield
    finally:
        for actor in actors:
            if actor.is_alive():
                actor.use_virtual_memory(False)


# Lifetime


@clause("CUDA-39", vary=("start_method",), profiles=PROFILE, dtypes=("float64",))
def test_virtual_memory_stays_when_its_maker_drops_it(
    sender, receiver, bystander, stage, device
):
    """The sender drops and collects; two receivers still share; they drop in turn."""
    with virtual_memory(sender):
        warm_up(sender, receiver, bystander)
        before = memory_used(sender, receiver, bystander)
        sent = make_with_block(sender, [1.5, 2.5, 3.5])
        one, other = (sender.send(sent, actor) for actor in (receiver, bystander))
        drop_all(sent)
        held = overwrite_freed_blocks(sender)
        values = check_shared([one[0], other[0]], [1.5, 2.5, 3.5])
        drop_all(one)
        held += overwrite_freed_blocks(sender)
        check.equal(values_after_waiting(other[0]), values, "the last one keeps it")
        drop_all(held)
        check(memory_used(sender) > before + SIZE_TOLERANCE, "the allocation is there")
        drop_all(other)
        wait_until_freed(before, stage, sender, receiver, bystander)


@clause("CUDA-39", vary=(), profiles=PROFILE, dtypes=("float64",))
def test_virtual_memory_stays_when_its_maker_ends(owner, stage, device):
    """Children send a tensor twice and end, one by SIGKILL; the owner drops it."""
    warm_up(owner)
    before = memory_used(owner)
    for end in ("leave", "kill"):
        child = owner.start_peer()
        with virtual_memory(child, owner):
            sent = make_with_block(child, [4.5, 5.5])
            one, other = (child.send(sent, owner) for _ in range(2))
            getattr(child, end)()
            held = overwrite_freed_blocks(owner)
            values = check_shared([one[0], other[0]], [4.5, 5.5])
            drop_all(one)
            held += overwrite_freed_blocks(owner)
            check.equal(values_after_waiting(other[0]), values, "the other one stays")
        drop_all(held)
        check(memory_used(owner) > before + SIZE_TOLERANCE, "the allocation is there")
        drop_all(other)
        wait_until_freed(before, stage, owner)


@clause("CUDA-43", vary=(), profiles=PROFILE, dtypes=("float64",))
def test_message_with_virtual_memory_outlives_its_sender(owner, channel, stage, device):
    """Children write, put a tensor and end, one by SIGKILL; then it is received."""
    warm_up(owner)
    before = memory_used(owner)
    for end in ("leave", "kill"):
        child = owner.start_peer()
        with virtual_memory(child):
            sent = make_with_block(child, [6.5, 7.5])
            child.synchronize()
            sent[0].write_later(1, 8.5)
            child.put(sent, owner, channel)
            wait_until_receivable(child, owner, channel)
            getattr(child, end)()
        held = overwrite_freed_blocks(owner)
        arrived = owner.get(child, channel)
        check.equal(values_after_waiting(arrived[0]), [6.5, 8.5], "it has its values")
        drop_all(arrived + held)
        wait_until_freed(before, stage, owner)


# Descriptors


@clause("CUDA-40", vary=("start_method",), profiles=PROFILE)
def test_virtual_memory_costs_no_descriptor_where_it_is_held(
    sender, receiver, channel, stage, device
):
    """Tensors in three allocations are sent; both sides hold them, and more arrive."""
    with virtual_memory(sender):
        sender.send(sender.make_on_device([1], "float32"), receiver, channel).drop()
        before = stage.holdings(sender, receiver)
        sent = [sender.make_on_device([n], "float32") for n in range(3)]
        sent.append(sender.make_across([4, 5], "float32"))
        arrived = [sender.send(sent, receiver, channel) for _ in range(2)]
        none = {sender: 0, receiver: 0}
        stage.check_descriptors(before, none, "held memory costs no descriptor")
        check_shared([sent[3], arrived[0][3], arrived[1][3]], [4, 5])


@clause("CUDA-40", vary=(), profiles=PROFILE)
def test_many_tensors_in_one_allocation_cost_one_descriptor(
    sender, receiver, channel, device
):
    """Both sides can open a few descriptors more, and many tensors are in a message."""
    parts = [([n, 0], "float32") for n in range(TENSORS_OF_ONE)]
    with virtual_memory(sender):
        sender.send(sender.make_on_device([1], "float32"), receiver, channel).drop()
        tensors = sender.carve(parts)
        with (
            exhausted(sender, "descriptors", FEW_DESCRIPTORS),
            exhausted(receiver, "descriptors", FEW_DESCRIPTORS),
        ):
            arrived = sender.send(tensors, receiver, channel)
            for number in (0, TENSORS_OF_ONE - 1):
                check_shared([tensors[number], arrived[number]], [number, 0])


@clause("CUDA-40", "CUDA-39", vary=(), profiles=PROFILE, mainly="CUDA-40")
def test_message_that_is_not_received_leaves_nothing(owner, channel, stage, device):
    """A message is refused, one is lost with its channel, and a sender is killed."""
    warm_up(owner)
    used = memory_used(owner)
    bad, child = owner.run(unpicklable), owner.start_peer()
    before = stage.holdings(owner)
    with virtual_memory(owner):
        refused, lost = (make_with_block(owner, [n]) for n in (1.5, 2.5))
        opened = owner.open_channel(channel)
        attempt(lambda: opened.put(owner, [*refused, bad]))
        opened.put(owner, lost)
        opened.use(owner, Channel.close)
        opened.drop(owner)
        drop_all(refused + lost)
    with virtual_memory(child):
        sent = make_with_block(child, [3.5])
        child.put(sent, owner, channel)
        wait_until_receivable(child, owner, channel)
        child.kill()
        drop_all(owner.get(child, channel))
    stage.check_descriptors(before, {owner: 0}, "no message left a descriptor")
    wait_until_freed(used, stage, owner)


# Windows


@clause("CUDA-41", vary=("start_method",), profiles=PROFILE)
def test_tensor_across_two_allocations_arrives(sender, receiver, channel, device):
    """Each side writes on both sides of the border; the tensor is sent on, and back."""
    tensor = sender.make_across([1, 2, 3, 4, 5, 6], "float32")
    arrived = sender.send(tensor, receiver, channel)
    values = check_shared([tensor, arrived], [1, 2, 3, 4, 5, 6])
    for index, writer in ((3, tensor), (2, arrived), (5, arrived)):
        values[index] = 70 + index
        write_and_wait(writer, index, values[index])
        found = [values_after_waiting(reader) for reader in (tensor, arrived)]
        check.equal(found, [values, values], "the write is where it belongs")


@clause("CUDA-41", vary=(), profiles=(*PROFILE, "views"), views=("steps",))
def test_view_across_two_allocations_arrives(sender, receiver, device):
    """A view with steps lies across the border; the sender writes through the whole."""
    base = sender.make_across(list(range(16)), "float32")
    view = base.view(Layout("step", offset=5, shape=(4,), strides=(2,)))
    arrived = sender.send(view, receiver)
    check.equal(arrived.strides(), (2,), "it has its strides")
    check.equal(values_after_waiting(arrived), [5, 7, 9, 11], "it has its values")
    for place, value in ((7, 77), (9, 99)):
        write_and_wait(base, place, value)
    check.equal(values_after_waiting(arrived), [5, 77, 99, 11], "it is shared")


@clause("CUDA-41", "CUDA-2", vary=(), profiles=PROFILE, dtypes=("float64", "int32"))
def test_tensors_in_virtual_memory_arrive_at_their_offsets(sender, receiver, device):
    """The test of CUDA-2 with an allocation of virtual memory."""
    with virtual_memory(sender):
        test_cuda.test_tensors_in_one_allocation_arrive_at_their_offsets(
            sender, receiver, device
        )


# Refusals


@clause("CUDA-42", vary=(), profiles=PROFILE, dtypes=("float64",))
def test_virtual_memory_that_cannot_be_exported_is_refused(
    sender, receiver, channel, stage, device
):
    """It is sent alone, and beside another tensor; what follows arrives."""
    warm_up(sender, receiver)
    before, used = stage.holdings(sender), memory_used(sender, receiver)
    for _ in range(3):
        tensor = sender.make_unexportable([0.5] * (1 << 19), "float64")
        if tensor is None:
            raise Unsupported("every virtual memory is made to be exported")
        with virtual_memory(sender):
            beside = sender.make_on_device([1, 2], "float32")
        for what in (tensor, [beside, tensor]):
            with refusal("sending it is refused"):
                sender.put(what, receiver, unthreaded_channel(stage))
        found = values_after_waiting(tensor)
        check.equal((found[0], found[-1]), (0.5, 0.5), "the tensor is as it was")
        arrived = sender.send(beside, receiver, channel)
        check_shared([beside, arrived], [1, 2])
        drop_all([tensor, beside, arrived])
    stage.check_descriptors(before, {sender: 0}, "no refusal left a descriptor")
    wait_until_freed(used, stage, sender, receiver)


# What holds for all device memory


@clause("CUDA-6", vary=("start_method",), profiles=PROFILE)
def test_write_to_virtual_memory_that_is_pending_at_the_send_is_there(
    sender, receiver, channel, device
):
    """The test of CUDA-6 with virtual memory."""
    with virtual_memory(sender):
        test_cuda.test_write_that_is_pending_at_the_send_is_there_when_the_receiver_reads(
            sender, receiver, channel, device
        )


@clause("CUDA-9", vary=(), profiles=PROFILE, dtypes=("float64",))
def test_virtual_memory_that_is_received_twice_stays_until_both_are_dropped(
    sender, receiver, stage, device
):
    """The test of CUDA-9 with virtual memory."""
    with virtual_memory(sender, receiver):
        test_cuda.test_device_tensor_that_is_received_twice_stays_until_both_are_dropped(
            sender, receiver, stage, device
        )


@clause(
    "CUDA-10", vary=(), profiles=(*PROFILE, "identity"), dtypes=("float64", "int32")
)
def test_tensors_in_virtual_memory_lie_apart_as_in_the_sender(sender, receiver, device):
    """The test of CUDA-10 with virtual memory."""
    with virtual_memory(sender):
        test_cuda.test_tensors_of_one_allocation_lie_apart_as_in_the_sender(
            sender, receiver, device
        )


@clause("CUDA-12", vary=(), profiles=PROFILE)
def test_virtual_memory_that_is_used_again_arrives_as_what_it_is_now(
    sender, receiver, device
):
    """The test of CUDA-12 with virtual memory."""
    with virtual_memory(sender):
        test_cuda.test_memory_that_is_used_again_arrives_as_what_it_is_now(
            sender, receiver, device
        )


@clause("CUDA-20", vary=(), profiles=PROFILE, dtypes=("int32",), channels=("pipe",))
def test_received_virtual_memory_can_be_sent_on(sender, receiver, bystander, device):
    """The test of CUDA-20 with virtual memory."""
    with virtual_memory(sender):
        test_cuda.test_received_tensor_can_be_sent_on(
            sender, receiver, bystander, device
        )


@clause("CUDA-20", vary=(), profiles=PROFILE, dtypes=("float64",), channels=("pipe",))
def test_virtual_memory_that_comes_home_is_shared(sender, receiver, device):
    """The test of CUDA-20 for a tensor that comes home, with virtual memory."""
    with virtual_memory(sender, receiver):
        test_cuda.test_tensor_that_comes_home_is_shared(sender, receiver, device)


@clause("CUDA-35", vary=(), profiles=PROFILE, dtypes=("float64",), channels=("pipe",))
def test_virtual_memory_stays_for_the_one_to_whom_it_was_sent_on(
    sender, receiver, bystander, stage, device
):
    """The test of CUDA-35 with virtual memory."""
    with virtual_memory(sender, receiver):
        test_cuda.test_allocation_stays_for_the_one_to_whom_a_tensor_was_sent_on(
            sender, receiver, bystander, stage, device
        )


@clause("CUDA-21", vary=(), profiles=PROFILE, channels=("simple_queue", "pipe"))
def test_virtual_memory_that_is_received_where_it_was_sent_is_shared_or_refused(
    owner, device
):
    """The test of CUDA-21 with virtual memory."""
    with virtual_memory(owner):
        test_cuda.test_tensor_that_is_received_where_it_was_sent_is_shared_or_refused(
            owner, device
        )


@clause("CUDA-25", vary=(), profiles=PROFILE, dtypes=("float64",))
def test_pending_writes_do_not_outlive_tensors_in_virtual_memory(
    sender, receiver, device
):
    """Both tests of CUDA-25 with virtual memory."""
    with virtual_memory(sender, receiver):
        for test in (
            test_cuda.test_pending_writes_of_a_receiver_do_not_outlive_its_tensor,
            test_cuda.test_pending_writes_of_the_sender_do_not_outlive_its_tensor,
        ):
            test(sender, receiver, device)


@clause("CUDA-26", vary=(), profiles=PROFILE)
def test_virtual_memory_for_which_there_is_no_room_collects_first(
    sender, receiver, device
):
    """Most of the device is sent, dropped on both sides, and asked for as virtual."""
    most = test_cuda.send_and_drop_most(sender, receiver)
    with virtual_memory(sender):
        again = sender.make_block(most)
    check.equal(again.shape(), (most,), "there is room again")


@clause("CUDA-28", vary=("start_method",), profiles=PROFILE)
def test_virtual_memory_among_the_arguments_of_a_process_is_shared(owner, device):
    """The test of CUDA-28 with virtual memory."""
    with virtual_memory(owner):
        test_cuda.test_device_tensors_among_the_arguments_of_a_process_are_shared(
            owner, device
        )


@clause("CUDA-30", vary=(), profiles=PROFILE)
def test_virtual_memory_arrives_on_the_device_on_which_it_lies(
    sender, receiver, device
):
    """The test of CUDA-30 with virtual memory."""
    with virtual_memory(sender):
        test_cuda.test_tensor_arrives_on_the_device_on_which_it_lies(
            sender, receiver, device
        )


@clause("CUDA-30", vary=(), start_methods=("spawn",), profiles=PROFILE)
def test_virtual_memory_arrives_where_its_device_has_another_index(owner, device):
    """The test of CUDA-30 for devices in another order, with virtual memory."""
    with virtual_memory(owner):
        test_cuda.test_tensor_arrives_on_its_device_where_that_has_another_index(
            owner, device
        )


@clause(
    *("CUDA-30", "CUDA-4"),
    vary=(),
    start_methods=("spawn",),
    profiles=PROFILE,
    dtypes=("float64",),
    mainly="CUDA-30",
)
def test_virtual_memory_on_a_device_that_the_receiver_cannot_use_is_refused(
    owner, stage, device
):
    """The test of CUDA-30 for a device that the receiver lacks, with virtual memory."""
    with virtual_memory(owner):
        test_cuda.test_tensor_on_a_device_that_the_receiver_cannot_use_is_refused(
            owner, stage, device
        )
