"""Chapter CUDA: device memory, whose allocations are shared by handle."""

from functools import partial

from sharedtensor_conformance.chapters.meeting_actions import set_authentication_key
from sharedtensor_conformance.chapters.message_actions import offer, unpicklable
from sharedtensor_conformance.chapters.process_actions import set_variable, variable
from sharedtensor_conformance.chapters.shared_steps import judging
from sharedtensor_conformance.chapters.tensor_actions import pickled_to_share, unpickled
from sharedtensor_conformance.harness import attempt, check, clause, eventually, refusal
from sharedtensor_conformance.harness.case.axes import (
    LAYOUTS,
    permitted_layouts,
)
from sharedtensor_conformance.harness.case.outcomes import NotRun
from sharedtensor_conformance.harness.remote.channels import Channel
from sharedtensor_conformance.report.verdicts import ONE_DEVICE

BLOCK_SIZE = 4 << 20
"""The size in bytes of a block that the driver's memory figures show. A smaller block
may be part of memory that the driver has already allocated.
"""

SIZE_TOLERANCE = 1 << 20
"""The number of bytes by which the driver may change these figures by itself."""

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The environment variable that selects and orders the devices that a process sees."""

TENSORS_IN_FLIGHT = 75
"""The number of tensors in each of two messages in flight. A pipe can hold one."""


def write_and_wait(tensor, index, value):
    """Write one element on the device, and wait until it is written."""
    tensor.write_later(index, value)
    tensor.actor.synchronize()


def values_after_waiting(tensor):
    """Wait for pending work of the device, and return the values of the tensor."""
    tensor.actor.synchronize()
    return tensor.device_values()


def overwrite_freed_blocks(*actors):
    """Make the actors collect garbage and allocate again; return the new tensors.

    If memory was freed too early, the new tensors overwrite it.
    """
    made = []
    for actor in actors:
        actor.collect()
        made += [actor.make_on_device([-1.5] * 4, "float64") for _ in range(3)]
        actor.synchronize()
    return made


def memory_used(*actors):
    """Return the bytes of device memory in use, after the actors collect garbage."""
    for actor in actors:
        actor.collect()
    return actors[0].device_memory_used()


def make_with_block(actor, values):
    """Return a float64 tensor with these values, and a block of `BLOCK_SIZE` bytes."""
    return [actor.make_on_device(values, "float64"), actor.make_block(BLOCK_SIZE)]


def segments_of_a_block(stage):
    """Return the segments that are large enough for the data of a block."""
    sizes = stage.ledger.sizes_of_files()
    return {file for file, size in sizes.items() if size >= BLOCK_SIZE}


def drop_all(tensors):
    """Drop all tensors."""
    for tensor in tensors:
        tensor.drop()


def warm_up(sender, *receivers):
    """Share once. At its first use a driver loads code and fills its pools."""
    sent = make_with_block(sender, [0.5])
    for receiver in receivers:
        drop_all(sender.send(sent, receiver))
    drop_all(sent)


def wait_until_freed(before, stage, *actors):
    """Wait until no more device memory is in use than `before`, in bytes."""
    eventually(
        lambda: memory_used(*actors) <= before + SIZE_TOLERANCE,
        "as much device memory is in use as before",
        within=stage.grace,
    )


def check_shared(tensors, expected):
    """Write to each tensor in turn; check that all show every write.

    Returns:
        The values after the writes.
    """
    expected = list(expected)
    for number, writer in enumerate(tensors):
        index = number % len(expected)
        expected[index] += 31
        write_and_wait(writer, index, expected[index])
        found = [values_after_waiting(reader) for reader in tensors]
        check.equal(found, [expected] * len(tensors), "a write is read by all")
    return expected


def devices_but_the_first(owner):
    """Return the names of the devices that the owner sees, without the first one."""
    given = owner.run(variable, VISIBLE_DEVICES)
    count = owner.device_count()
    names = map(str, range(count)) if given is None else given.split(",")
    return list(names)[1:count]


def start_peer_with_devices(owner, device, names):
    """Start a peer that sees only the devices `names`, in this order.

    Raises:
        NotRun: the environment variable has no effect on this kind of device.
    """
    before = owner.run(variable, VISIBLE_DEVICES)
    owner.run(set_variable, VISIBLE_DEVICES, ",".join(names))
    try:
        child = owner.start_peer(needs_device=False)
    finally:
        if owner.is_alive():
            owner.run(set_variable, VISIBLE_DEVICES, before)
    found = 0 if child.device_unavailable(device) else child.device_count()
    if found != len(names):
        raise NotRun(
            f"{VISIBLE_DEVICES} does not choose what a process sees of this device"
        )
    return child


@clause("CUDA-1", vary=(), forks=True)
def test_device_tensor_is_refused_in_a_forked_child(owner, device):
    """The owner forks with a device tensor; the child uses it and makes another."""
    tensor = owner.make_on_device([1, 2, 3], "float32")
    child = owner.start_peer(arguments=[tensor], start_method="fork")
    with refusal("using the tensor is refused"):
        child.arguments[0].device_values()
    for _ in range(2):
        with refusal("making a tensor is refused"):
            child.make_on_device([4, 5, 6], "float32")
    check.equal(values_after_waiting(tensor), [1, 2, 3], "the owner's is as it was")


@clause("CUDA-2", vary=("start_method",), dtypes=("float64", "int32"))
def test_tensors_in_one_allocation_arrive_at_their_offsets(sender, receiver, device):
    """The sender carves one allocation in three and sends the parts apart."""
    parts = [([1, 2, 3], "float32"), ([4, 5], "float64"), ([6, 7, 8, 9], "int32")]
    tensors = sender.carve(parts)
    sender.synchronize()
    order = (2, 0, 1)
    arrived = {n: sender.send(tensors[n], receiver) for n in order}
    for number, (values, dtype) in enumerate(parts):
        found = values_after_waiting(arrived[number])
        check.equal(found, values, "it has its own values")
        check.equal(arrived[number].dtype(), dtype, "it has its own dtype")
    for number in order:
        write_and_wait(arrived[number], 1, 50 + number)
        parts[number][0][1] = 50 + number
        found = [values_after_waiting(tensor) for tensor in tensors]
        expected = [values for values, _ in parts]
        check.equal(found, expected, "the sender reads the write where it belongs")


@clause("CUDA-2", vary=(), dtypes=("float64", "uint8"))
def test_tensors_in_one_allocation_arrive_in_one_message(sender, receiver, device):
    """The sender carves one allocation in two and sends both; it writes to each."""
    tensors = sender.carve([([11, 12], "float64"), ([13, 14, 15], "uint8")])
    sender.synchronize()
    arrived = sender.send(tensors, receiver)
    write_and_wait(tensors[0], 0, 16)
    write_and_wait(tensors[1], 2, 17)
    check.equal(values_after_waiting(arrived[0]), [16, 12], "the first is shared")
    check.equal(values_after_waiting(arrived[1]), [13, 14, 17], "so is the second")


@clause("CUDA-3", vary=("start_method",))
def test_writes_to_device_memory_are_seen_in_both_directions(
    sender, receiver, channel, device
):
    """Both sides write in turn and wait for their devices; both read."""
    tensor = sender.make_on_device([21, 22, 23], "float32")
    arrived = sender.send(tensor, receiver, channel)
    expected = [21, 22, 23]
    for index, writer in ((1, tensor), (2, arrived), (0, tensor), (1, arrived)):
        expected[index] += 31
        write_and_wait(writer, index, expected[index])
        for reader in (tensor, arrived):
            found = values_after_waiting(reader)
            check.equal(found, expected, "the write is read on both sides")


@clause("CUDA-4", vary=("start_method",), dtypes=("float64",))
def test_allocation_stays_while_a_receiver_holds_it(sender, receiver, stage, device):
    """The sender drops and collects; the receiver still reads; then it drops too."""
    warm_up(sender, receiver)
    before = memory_used(sender, receiver)
    values = [n + 0.25 for n in range(4)]
    sent = make_with_block(sender, values)
    arrived = sender.send(sent, receiver)
    drop_all(sent)
    others = overwrite_freed_blocks(sender)
    check.equal(values_after_waiting(arrived[0]), values, "the receiver's is as it was")
    drop_all(others)
    check(memory_used(sender) > before + SIZE_TOLERANCE, "the allocation is there")
    drop_all(arrived)
    wait_until_freed(before, stage, receiver, sender)


@clause("CUDA-4", vary=("start_method",))
def test_allocation_stays_while_a_message_is_in_flight(
    sender, receiver, channel, device
):
    """The sender drops and collects between the send and the receive."""
    tensor = sender.make_on_device([27, 28, 29], "float32")
    sender.synchronize()
    sender.put(tensor, receiver, channel)
    tensor.drop()
    sender.collect()
    others = [sender.make_on_device([90, 91, 92], "float32") for _ in range(3)]
    arrived = receiver.get(sender, channel)
    check.equal(values_after_waiting(arrived), [27, 28, 29], "it has its values")
    check.equal(values_after_waiting(others[0]), [90, 91, 92], "no other is hit")


@clause("CUDA-5")
def test_strategy_does_not_matter_to_device_memory(
    sender, receiver, channel, stage, device
):
    """A tensor and a block are sent under a strategy; the segments are listed.

    A smaller segment is not for the data: an implementation may count in it.
    """
    before = segments_of_a_block(stage)
    sent = [
        sender.make_on_device([31, 32, 33], "float32"),
        sender.make_block(BLOCK_SIZE),
    ]
    sender.synchronize()
    sender.put(sent, receiver, channel)
    in_flight = segments_of_a_block(stage) - before
    arrived = receiver.get(sender, channel)
    check.equal(values_after_waiting(arrived[0]), [31, 32, 33], "it has its values")
    check.equal(in_flight, set(), "no segment was there for the data in flight")
    held = segments_of_a_block(stage) - before
    check.equal(held, set(), "no segment is there for the data that arrived")


@clause("CUDA-6", vary=("start_method",))
def test_write_that_is_pending_at_the_send_is_there_when_the_receiver_reads(
    sender, receiver, channel, device
):
    """The sender enqueues a write and sends without waiting, twice."""
    tensor = sender.make_on_device([41, 42, 43], "float32")
    sender.synchronize()
    expected = [41, 42, 43]
    for index in (1, 0):
        expected[index] = 60 + index
        tensor.write_later(index, expected[index])
        arrived = sender.send(tensor, receiver, channel)
        found = values_after_waiting(arrived)
        check.equal(found, expected, "the receiver reads the pending write")


@clause("CUDA-7", vary=(), profiles=("views",))
def test_view_of_device_memory_arrives_as_a_view(
    sender, receiver, implementation, device
):
    """The sender sends windows on a tensor and writes through the whole of it."""
    base = sender.make_on_device(list(range(24)), "float32")
    for number, layout in enumerate(permitted_layouts(LAYOUTS, implementation)):
        view = base.view(layout)
        arrived = sender.send(view, receiver)
        check.equal(arrived.shape(), layout.shape, "it has its shape")
        check.equal(arrived.strides(), layout.strides, "it has its strides")
        check.equal(
            values_after_waiting(arrived),
            values_after_waiting(view),
            "it has its values",
        )
        write_and_wait(base, layout.offset, 100 + number)
        found = values_after_waiting(arrived)
        check.equal(found[0], 100 + number, "it begins where it began")
        check.equal(found, values_after_waiting(view), "it is still the same window")


@clause("CUDA-8", vary=())
def test_every_dtype_arrives_as_it_was_on_a_device(
    sender, receiver, implementation, device
):
    """The sender makes a tensor of each claimed dtype and sends all."""
    dtypes = implementation.dtypes
    tensors = [sender.make_on_device([1, 0, 1], dtype) for dtype in dtypes]
    arrived = sender.send(tensors, receiver)
    for dtype, tensor in zip(dtypes, arrived, strict=True):
        check.equal(tensor.dtype(), dtype, "it has its dtype")
        check.equal(values_after_waiting(tensor), [1, 0, 1], "it has its values")


@clause("CUDA-9", vary=("start_method",), dtypes=("float64",))
def test_device_tensor_that_is_received_twice_stays_until_both_are_dropped(
    sender, receiver, stage, device
):
    """The receiver gets a tensor twice and drops one, then the other."""
    warm_up(sender, receiver)
    before = memory_used(sender, receiver)
    sent = make_with_block(sender, [n + 0.5 for n in range(4)])
    first, second = (sender.send(sent, receiver) for _ in range(2))
    values = check_shared([sent[0], first[0], second[0]], [n + 0.5 for n in range(4)])
    drop_all(first)
    values = check_shared([second[0], sent[0]], values)
    drop_all(sent)
    held = overwrite_freed_blocks(sender, receiver)
    check.equal(values_after_waiting(second[0]), values, "the second stays")
    drop_all(held)
    drop_all(second)
    wait_until_freed(before, stage, sender, receiver)


@clause("CUDA-10", vary=(), profiles=("identity",), dtypes=("float64", "int32"))
def test_tensors_of_one_allocation_lie_apart_as_in_the_sender(sender, receiver, device):
    """The receiver gets three parts of an allocation, apart, and one of them again."""
    parts = [([1, 2, 3], "float64"), ([4, 5, 6], "int32"), ([7, 8, 9], "float32")]
    tensors = sender.carve(parts)
    arrived = [sender.send(tensors[n], receiver) for n in (1, 2, 0, 2)]
    sent = [tensors[n].address() for n in (1, 2, 0, 2)]
    found = [tensor.address() for tensor in arrived]
    apart = [address - sent[0] for address in sent]
    check.equal([address - found[0] for address in found], apart, "they lie as sent")
    check_shared([tensors[2], arrived[1], arrived[3]], [7, 8, 9])


@clause("CUDA-11", vary=())
def test_allocations_of_several_senders_are_not_mixed_up(
    sender, receiver, bystander, device
):
    """The receiver gets tensors of one size from two processes, in turn."""
    pairs = []
    for number, actor in enumerate((sender, bystander, sender, bystander)):
        values = [10 * number + 1, 10 * number + 2]
        tensor = actor.make_on_device(values, "float32")
        pairs.append((values, tensor, actor.send(tensor, receiver)))
    after = [check_shared([one, other], values) for values, one, other in pairs]
    for expected, (_, tensor, arrived) in zip(after, pairs, strict=True):
        check.equal(values_after_waiting(tensor), expected, "no other write hit it")
        check.equal(values_after_waiting(arrived), expected, "nor its other end")


@clause("CUDA-12", vary=())
def test_memory_that_is_used_again_arrives_as_what_it_is_now(sender, receiver, device):
    """A tensor is sent, dropped and freed; the next one is sent, three times."""
    for number in range(3):
        values = [10 * number + 1, 10 * number + 2, 10 * number + 3]
        tensor = sender.make_on_device(values, "float32")
        arrived = sender.send(tensor, receiver)
        check.equal(values_after_waiting(arrived), values, "it has its own values")
        check_shared([tensor, arrived], values)
        arrived.drop()
        tensor.drop()
        receiver.collect()
        sender.collect()


@clause("CUDA-13", vary=(), dtypes=("float64",))
def test_receiver_that_drops_early_takes_nothing_away(sender, receiver, device):
    """The receiver drops; the sender writes, sends again, and drops in turn."""
    tensor = sender.make_on_device([51, 52, 53], "float32")
    sender.send(tensor, receiver).drop()
    held = overwrite_freed_blocks(receiver, sender)
    check.equal(values_after_waiting(tensor), [51, 52, 53], "the sender's is there")
    write_and_wait(tensor, 0, 54)
    arrived = sender.send(tensor, receiver)
    tensor.drop()
    held += overwrite_freed_blocks(sender)
    check.equal(values_after_waiting(arrived), [54, 52, 53], "the receiver's stays")


@clause("CUDA-14", vary=(), dtypes=("float64",))
def test_each_receiver_keeps_the_allocation_by_itself(
    sender, receiver, bystander, stage, device
):
    """Two processes get a tensor; the sender drops it, then one of them, then both."""
    warm_up(sender, receiver, bystander)
    before = memory_used(sender, receiver, bystander)
    values = [n + 0.75 for n in range(4)]
    sent = make_with_block(sender, values)
    one, other = (sender.send(sent, actor) for actor in (receiver, bystander))
    drop_all(sent)
    drop_all(one)
    held = overwrite_freed_blocks(sender, receiver)
    check.equal(values_after_waiting(other[0]), values, "the other receiver's stays")
    drop_all(held)
    drop_all(other)
    wait_until_freed(before, stage, sender, receiver, bystander)


@clause("CUDA-15", vary=(), dtypes=("float64",))
def test_death_of_a_receiver_takes_nothing_from_the_others(owner, peer, device):
    """Two processes get a tensor, one is killed, and the owner drops its own."""
    kept = owner.make_on_device([61, 62, 63], "float32")
    tensor = owner.make_on_device([64, 65, 66], "float32")
    child = owner.start_peer()
    for sent in (kept, tensor):
        owner.send(sent, child).write_later(0, 99)
    arrived = owner.send(tensor, peer)
    child.kill()
    owner.collect()
    tensor.drop()
    held = overwrite_freed_blocks(owner, peer)
    check.equal(values_after_waiting(arrived)[1:], [65, 66], "the peer's stays")
    check.equal(values_after_waiting(kept)[1:], [62, 63], "the owner's stays")
    again = owner.send(held[0], peer)
    check.equal(values_after_waiting(again), [-1.5] * 4, "the owner goes on sending")


@clause("CUDA-4", "CUDA-15", vary=(), dtypes=("float64",), mainly="CUDA-4")
def test_death_of_a_receiver_takes_nothing_from_messages_in_flight(owner, peer, device):
    """A child has dropped one of two tensors when it is killed; the owner collects.

    A message to the peer is in flight at that time, and another one is sent later. Each
    may be counted where a tensor of the child was counted before it.
    """
    child = owner.start_peer()
    sent = [owner.make_on_device([number] * 4, "float64") for number in (54, 55)]
    dropped, _ = (owner.send(tensor, child) for tensor in sent)
    dropped.drop()
    put_and_drop(56, owner, peer)
    child.kill()
    overwrite_freed_blocks(owner)
    put_and_drop(57, owner, peer)
    overwrite_freed_blocks(owner)
    for number in (56, 57):
        arrived = peer.get(owner)
        found = values_after_waiting(arrived)
        check.equal(found, [number] * 4, "a message that was in flight has its values")


def put_and_drop(number, sender, receiver):
    """Make the sender put a new tensor and drop it."""
    tensor = sender.make_on_device([number] * 4, "float64")
    sender.synchronize()
    sender.put(tensor, receiver)
    tensor.drop()


@clause("CUDA-16", vary=(), dtypes=("float64",))
def test_memory_that_a_killed_receiver_held_is_freed(owner, peer, stage, device):
    """A child gets a tensor, the owner drops its own, and the child is killed.

    What was in use is looked at before the child starts: on a real device a process has
    a context, and the end of that gives back more than the child held.
    """
    warm_up(owner, peer)
    before = memory_used(owner, peer)
    child = owner.start_peer()
    sent = make_with_block(owner, [1.5] * 4)
    arrived = owner.send(sent, child)
    drop_all(sent)
    check.equal(values_after_waiting(arrived[0]), [1.5] * 4, "the child holds it")
    child.kill()
    wait_until_freed(before, stage, owner)


@clause("CUDA-17", vary=())
def test_receiver_goes_on_when_the_owner_of_an_allocation_has_ended(
    owner, peer, device
):
    """Children send a tensor and end, one by SIGKILL; the receiver drops it."""
    for end in ("leave", "kill"):
        child = owner.start_peer()
        tensor = child.make_on_device([71, 72, 73], "float32")
        arrived = child.send(tensor, owner)
        check.equal(values_after_waiting(arrived), [71, 72, 73], "it arrived")
        getattr(child, end)()
        arrived.drop()
        owner.collect()
        own = owner.make_on_device([74, 75, 76], "float32")
        check_shared([own, owner.send(own, peer)], [74, 75, 76])


@clause("CUDA-18", vary=())
def test_message_whose_sender_has_ended_is_refused(owner, channel, device):
    """A child sends a tensor and ends before it is received, if it still can be."""
    child = owner.start_peer()
    tensor = child.make_on_device([77, 78, 79], "float32")
    child.put(tensor, owner, channel)
    child.leave()
    arrived, refused = attempt(lambda: owner.get(child, channel))
    if refused is None:
        values = values_after_waiting(arrived)
        check.equal(values, [77, 78, 79], "it has the values that were sent")
    own = owner.make_on_device([80, 81], "float32")
    check.equal(values_after_waiting(own), [80, 81], "the receiver goes on")


@clause("CUDA-19", vary=("start_method",), dtypes=("int32",), channels=("pipe",))
def test_received_tensor_that_is_sent_on_is_shared_or_refused(
    sender, receiver, bystander, device
):
    """The receiver sends a device tensor on, if it can; all three write and read."""
    tensor = sender.make_on_device([24, 25, 26], "int32")
    arrived = sender.send(tensor, receiver)
    onward, refused = attempt(lambda: receiver.send(arrived, bystander, "pipe"))
    tensors = [tensor, arrived] if refused else [tensor, arrived, onward]
    check_shared(tensors, [24, 25, 26])


@clause("CUDA-20", vary=(), dtypes=("int32",), channels=("pipe",))
def test_received_tensor_can_be_sent_on(sender, receiver, bystander, device):
    """The receiver writes, sends the tensor on, and all three write and read."""
    tensor = sender.make_on_device([44, 45, 46], "int32")
    arrived = sender.send(tensor, receiver)
    receiver.synchronize()
    arrived.write_later(2, 64)
    onward = receiver.send(arrived, bystander, "pipe")
    check.equal(values_after_waiting(onward), [44, 45, 64], "the third reads it")
    check_shared([tensor, arrived, onward], [44, 45, 64])


@clause("CUDA-35", vary=(), dtypes=("float64",), channels=("pipe",))
def test_allocation_stays_for_the_one_to_whom_a_tensor_was_sent_on(
    sender, receiver, bystander, stage, device
):
    """Sender and receiver drop a tensor that was sent on; then the third does."""
    warm_up(sender, receiver, bystander)
    before = memory_used(sender, receiver, bystander)
    sent = make_with_block(sender, [2.5] * 4)
    arrived = sender.send(sent, receiver)
    receiver.put(arrived, bystander, "pipe")
    drop_all(arrived)
    drop_all(sent)
    held = overwrite_freed_blocks(receiver, sender)
    onward = bystander.get(receiver, "pipe")
    check.equal(values_after_waiting(onward[0]), [2.5] * 4, "it has its values")
    drop_all(held)
    drop_all(onward)
    wait_until_freed(before, stage, sender, receiver, bystander)


@clause("CUDA-20", vary=(), dtypes=("float64",), channels=("pipe",))
def test_tensor_that_comes_home_is_shared(sender, receiver, device):
    """The receiver sends a device tensor back, whose owner has dropped it."""
    tensor = sender.make_on_device([84, 85, 86], "float32")
    arrived = sender.send(tensor, receiver)
    home = receiver.send(arrived, sender, "pipe")
    check_shared([tensor, home, arrived], [84, 85, 86])
    last = values_after_waiting(home)
    tensor.drop()
    home.drop()
    home = receiver.send(arrived, sender, "pipe")
    arrived.drop()
    held = overwrite_freed_blocks(receiver, sender)
    check.equal(values_after_waiting(home), last, "its owner has it again")
    check.equal(values_after_waiting(held[-1]), [-1.5] * 4, "no other is hit")


@clause("CUDA-21", vary=(), channels=("simple_queue", "pipe"))
def test_tensor_that_is_received_where_it_was_sent_is_shared_or_refused(owner, device):
    """The owner puts a device tensor on a channel of its own and gets it."""
    tensor = owner.make_on_device([87, 88, 89], "float32")
    for kind in ("simple_queue", "pipe"):
        channel = owner.open_channel(kind)
        channel.put(owner, tensor)
        again, refused = attempt(lambda channel=channel: channel.get(owner))
        channel.use(owner, Channel.close)
        both = [tensor] if refused else [tensor, again]
        check_shared(both, values_after_waiting(tensor))


@clause("CUDA-4", vary=(), dtypes=("float64",), channels=("simple_queue",))
def test_allocation_that_its_owner_received_is_freed(owner, stage, device):
    """The owner gets a message of its own, if it can, and drops both tensors."""
    warm_up(owner)
    before = memory_used(owner)
    sent = make_with_block(owner, [90.5])
    channel = owner.open_channel("simple_queue")
    channel.put(owner, sent)
    again, refused = attempt(lambda: channel.get(owner))
    channel.use(owner, Channel.close)
    check(memory_used(owner) > before + SIZE_TOLERANCE, "the allocation is there")
    drop_all(sent)
    if not refused:  # a refused message counts as one that was never received
        drop_all(again)
        wait_until_freed(before, stage, owner)


@clause("CUDA-4", "CUDA-27", vary=(), dtypes=("float64",), mainly="CUDA-4")
def test_allocation_whose_send_is_refused_is_freed(owner, channel, stage, device):
    """Something that cannot be pickled is beside two tensors; a queue is full."""
    warm_up(owner)
    bad = owner.run(unpicklable)
    full, other = owner.open_channel("queue_of_one"), owner.open_channel(channel)
    full.put(owner, "the only one for which there is room")
    before = memory_used(owner)
    for number in range(3):
        sent = make_with_block(owner, [number + 0.5])
        attempt(lambda sent=sent: other.put(owner, [*sent, bad]))
        for how in ({"block": False}, {"timeout": 0}):
            taken = owner.run(offer, full, sent, how)
            check.equal(taken, False, f"it has room for no more ({how})")
        found = values_after_waiting(sent[0])
        check.equal(found, [number + 0.5], "what is refused has its values")
        drop_all(sent)
    wait_until_freed(before, stage, owner)
    for each in (full, other):
        each.use(owner, Channel.close)


@clause("CUDA-22", vary=(), dtypes=("int16",))
def test_device_tensor_without_elements_arrives(sender, receiver, channel, device):
    """A tensor without elements is sent between two that have some."""
    parts = [sender.make_on_device(values, "int16") for values in ([91], [], [92])]
    arrived = sender.send(parts, receiver, channel)
    check.equal(arrived[1].shape(), (0,), "it has its shape")
    check.equal(arrived[1].dtype(), "int16", "it has its dtype")
    found = [values_after_waiting(tensor) for tensor in arrived]
    check.equal(found, [[91], [], [92]], "all have their values")


@clause("CUDA-23", vary=(), profiles=("resize",))
def test_received_device_tensor_does_not_grow(sender, receiver, device):
    """The receiver asks for more elements than the allocation can have."""
    tensor = sender.make_on_device([93, 94, 95], "float32")
    arrived = sender.send(tensor, receiver)
    with refusal("growing is refused"):
        arrived.resize(1 << 24)
    check.equal(arrived.shape(), (3,), "it has the shape that it had")
    check_shared([tensor, arrived], [93, 94, 95])


@clause("CUDA-24", vary=(), channels=("queue", "simple_queue", "pipe"))
def test_order_holds_with_many_tensors_in_flight(sender, receiver, device):
    """Many tensors are in flight when the sender writes and sends the last one."""
    tensors = sender.carve([([n], "float32") for n in range(2 * TENSORS_IN_FLIGHT + 1)])
    sender.synchronize()
    sender.put(tensors[:TENSORS_IN_FLIGHT], receiver, "simple_queue")
    sender.put(tensors[TENSORS_IN_FLIGHT:-1], receiver, "pipe")
    tensors[-1].write_later(0, -5)
    last = sender.send(tensors[-1], receiver, "queue")
    check.equal(values_after_waiting(last), [-5], "the pending write is there")
    arrived = receiver.get(sender, "simple_queue") + receiver.get(sender, "pipe")
    for number in (0, TENSORS_IN_FLIGHT, 2 * TENSORS_IN_FLIGHT - 1):
        found = values_after_waiting(arrived[number])
        check.equal(found, [number], "those before have their values")


@clause("CUDA-25", vary=(), dtypes=("float64",))
def test_pending_writes_of_a_receiver_do_not_outlive_its_tensor(
    sender, receiver, device
):
    """The receiver writes without waiting; the sender uses the memory again."""
    tensor = sender.make_on_device([96, 97, 98, 99], "float64")
    arrived = sender.send(tensor, receiver)
    receiver.synchronize()
    arrived.write_later(1, 11)
    arrived.drop()
    tensor.drop()
    held = overwrite_freed_blocks(sender)
    receiver.synchronize()
    for other in held:
        check.equal(values_after_waiting(other), [-1.5] * 4, "no other is hit")


@clause("CUDA-25", vary=(), dtypes=("float64",))
def test_pending_writes_of_the_sender_do_not_outlive_its_tensor(
    sender, receiver, device
):
    """The sender writes without waiting; the receiver uses the memory again."""
    tensor = sender.make_on_device([86, 87, 88, 89], "float64")
    sender.synchronize()
    sender.send(tensor, receiver).drop()
    tensor.write_later(2, 12)
    tensor.drop()
    held = overwrite_freed_blocks(receiver)
    sender.synchronize()
    for other in held:
        check.equal(values_after_waiting(other), [-1.5] * 4, "no other is hit")


def send_and_drop_most(sender, receiver):
    """Send most of the device and drop it on both sides; return how many bytes."""
    sender.collect()
    most = sender.device_memory_free() * 6 // 10
    block = sender.make_block(most)
    arrived = sender.send(block, receiver)
    block.drop()
    arrived.drop()
    return most


@clause("CUDA-26", vary=())
def test_allocation_for_which_there_is_no_room_collects_first(sender, receiver, device):
    """More than half of the device is sent, dropped on both sides, and asked again."""
    most = send_and_drop_most(sender, receiver)
    again = sender.make_block(most)
    check.equal(again.shape(), (most,), "there is room again")


@clause("CUDA-27", vary=("start_method",), dtypes=("float64",))
def test_many_sends_leave_nothing_behind(sender, receiver, channel, stage, device):
    """A tensor is made, sent, and dropped on both sides, many times."""
    warm_up(sender, receiver)
    before = memory_used(sender, receiver)
    for number in range(12):
        sent = make_with_block(sender, [number + 0.5])
        arrived = sender.send(sent, receiver, channel)
        check.equal(arrived[0].device_values(), [number + 0.5], "it has its values")
        for dropped in (arrived, sent) if number % 2 else (sent, arrived):
            drop_all(dropped)
    wait_until_freed(before, stage, sender, receiver)


@clause("CUDA-28", vary=("start_method",))
def test_device_tensors_among_the_arguments_of_a_process_are_shared(owner, device):
    """The owner starts a child with a device tensor, whose last write is pending."""
    tensor = owner.make_on_device([13, 14, 15], "float32")
    owner.synchronize()
    tensor.write_later(1, 16)
    child = owner.start_peer(arguments=[tensor])
    arrived = child.arguments[0]
    check.equal(values_after_waiting(arrived), [13, 16, 15], "it has its values")
    check_shared([tensor, arrived], [13, 16, 15])


@clause("CUDA-29", vary=("start_method",), profiles=("events",))
def test_event_can_be_sent_and_orders_the_work_of_two_processes(
    sender, receiver, channel, device
):
    """The sender writes to what is shared and sends an event, four times."""
    tensor = sender.make_on_device([17, 18, 19], "float32")
    arrived = sender.send(tensor, receiver)
    expected = check_shared([tensor, arrived], [17, 18, 19])
    for number in range(4):
        expected[number % 3] = 100 + number
        tensor.write_later(number % 3, 100 + number)
        event = sender.record_event()
        receiver.wait_event(sender.send(event, receiver, channel))
        found = values_after_waiting(arrived)
        check.equal(found, expected, "what was before the event is there")


@clause("CUDA-30", vary=("start_method",))
def test_tensor_arrives_on_the_device_on_which_it_lies(sender, receiver, device):
    """A tensor on each of two devices is sent, that of the second one first."""
    if sender.device_count() < 2:
        raise NotRun(ONE_DEVICE)  # with one device it always arrives on the right one
    for index in (1, 0):
        values = [30 + index, 40 + index]
        tensor = sender.make_on(index, values, "float32")
        check.equal(tensor.device_of(), index, "it lies there")
        arrived = sender.send(tensor, receiver)
        check.equal(arrived.device_of(), index, "it arrives there")
        check.equal(values_after_waiting(arrived), values, "it has its values")


@clause("CUDA-30", "CUDA-3", vary=())
def test_tensors_on_two_devices_are_shared_in_one_message(sender, receiver, device):
    """One on each device, where there are two; each side writes, and neither mixes."""
    if sender.device_count() < 2:
        raise NotRun(ONE_DEVICE)
    sent = [sender.make_on(index, [index, 0], "float32") for index in (1, 0)]
    arrived = sender.send(sent, receiver)
    with judging("CUDA-30"):
        check.equal([one.device_of() for one in arrived], [1, 0], "where they arrive")
    for index, (mine, theirs) in enumerate(zip(sent, arrived, strict=True)):
        write_and_wait(mine, 0, 50 + index)
        write_and_wait(theirs, 1, 60 + index)
    with judging("CUDA-3"):
        for index, tensors in enumerate(zip(sent, arrived, strict=True)):
            found = [values_after_waiting(tensor) for tensor in tensors]
            check.equal(found, [[50 + index, 60 + index]] * 2, "each shows both writes")


@clause("CUDA-30", vary=(), start_methods=("spawn",))
def test_tensor_arrives_on_its_device_where_that_has_another_index(owner, device):
    """Each device but the first has another index in the child; both sides send."""
    count = owner.device_count()
    if count < 2:
        raise NotRun(ONE_DEVICE)
    child = start_peer_with_devices(owner, device, devices_but_the_first(owner)[::-1])
    for index in range(1, count):
        there = count - 1 - index
        tensor = owner.make_on(index, [70 + index, 80], "float32")
        arrived = owner.send(tensor, child)
        check.equal(arrived.device_of(), there, "it arrives on the device it lies on")
        check.equal(values_after_waiting(arrived), [70 + index, 80], "with its values")
        tensor = child.make_on(there, [90, 50 + index], "float32")
        arrived = child.send(tensor, owner)
        check.equal(arrived.device_of(), index, "so does one that the child sends")
        check.equal(values_after_waiting(arrived), [90, 50 + index], "with its values")


@clause(
    "CUDA-30",
    "CUDA-4",
    vary=(),
    start_methods=("spawn",),
    dtypes=("float64",),
    mainly="CUDA-30",
)
def test_tensor_on_a_device_that_the_receiver_cannot_use_is_refused(
    owner, stage, device
):
    """The child sees all devices but the first, or none; it gets a tensor on that.

    What was refused is in flight no more, so its memory is given back.
    """
    child = start_peer_with_devices(owner, device, devices_but_the_first(owner))
    arrived = owner.send(owner.make([15, 16]), child)
    check.equal(arrived.values(), [15, 16], "what is in host memory arrives")
    tensor = owner.make_on(0, [25, 35], "float32")
    owner.put(tensor, child)
    with refusal("receiving it is refused"):
        child.get_or_lose(owner)
    check.equal(values_after_waiting(tensor), [25, 35], "the owner's is as it was")
    tensor.drop()
    before = memory_used(owner)
    refused = make_with_block(owner, [1.5] * 4)
    for one in refused:
        owner.put(one, child)
        with refusal("so is each of the next ones"):
            child.get_or_lose(owner)
    drop_all(refused)
    with judging("CUDA-4"):
        wait_until_freed(before, stage, owner)


@clause("CUDA-31", vary=(), profiles=("grad",))
def test_grad_of_a_device_tensor_arrives_and_is_shared(sender, receiver, device):
    """A leaf is sent before it has a grad, and again when it has one."""
    tensor = sender.make_on_device([1, 2, 3], "float32")
    tensor.set_requires_grad(True)
    arrived = sender.send(tensor, receiver)
    check.equal(arrived.requires_grad(), True, "it has its flag")
    check.equal(arrived.grad(), None, "it has no grad either")
    grad = sender.make_on_device([0.5, 1.5, 2.5], "float32")
    tensor.set_grad(grad)
    arrived = sender.send(tensor, receiver).grad()
    check(arrived is not None, "the grad arrives")
    check.equal(values_after_waiting(arrived), [0.5, 1.5, 2.5], "it has its values")
    check_shared([grad, arrived], [0.5, 1.5, 2.5])


@clause("CUDA-32", vary=(), profiles=("share", "identity"))
def test_moving_a_device_tensor_into_shared_memory_does_nothing(
    sender, receiver, device
):
    """Sender and receiver ask a device tensor whether it is shared, and share it."""
    tensor = sender.make_on_device([7, 8, 9], "float32")
    for held in (tensor, sender.send(tensor, receiver)):
        address = held.address()
        check.equal(held.is_shared(), True, "it says that it is shared")
        held.share()
        check.equal(held.is_shared(), True, "it still says so")
        check.equal(held.address(), address, "it lies where it lay")
        check.equal(values_after_waiting(held), [7, 8, 9], "it has its values")


@clause("CUDA-33")
def test_tensor_in_host_memory_is_not_bound_to_the_life_of_its_sender(owner, device):
    """A child sends two tensors in one message and ends."""
    child = owner.start_peer()
    on_device = child.make_on_device([3, 2, 1], "float32")
    on_host = child.make([4, 5, 6])
    arrived = child.send([on_device, on_host], owner)
    check.equal(values_after_waiting(arrived[0]), [3, 2, 1], "both arrive")
    child.leave()
    arrived[0].drop()
    check.equal(arrived[1].values(), [4, 5, 6], "the one in host memory is there")
    arrived[1].write(1, 50)
    check.equal(arrived[1].values(), [4, 50, 6], "it can be written to")


@clause(
    "CUDA-34", vary=(), profiles=("forgery",), dtypes=("float64",), channels=("pipe",)
)
def test_message_that_is_loaded_a_second_time_takes_nothing_away(
    sender, receiver, device
):
    """The sender sends the very same message twice and drops its tensor."""
    tensor = sender.make_on_device([4, 3, 2], "float32")
    forged = sender.forge(tensor, "again", 0)
    first = sender.send(forged, receiver, "pipe")
    second, refused = attempt(lambda: sender.send(forged, receiver, "pipe"))
    check_shared([tensor, first] if refused else [tensor, first, second], [4, 3, 2])
    expected = values_after_waiting(first)
    tensor.drop()
    if second is not None:
        second.drop()
    held = overwrite_freed_blocks(receiver, sender)
    check.equal(values_after_waiting(first), expected, "the first one stays")
    check.equal(values_after_waiting(held[-1]), [-1.5] * 4, "no other is hit")


@clause("CUDA-36", vary=("start_method",), profiles=("drop-in",))
def test_bytes_of_device_tensors_are_shared_with_each_process_that_reads_them(
    sender, receiver, bystander, device
):
    """Two of three pickle two tensors each; the last write is pending.

    Both others read all bytes, those of the second tensor first.
    """
    actors = (sender, receiver, bystander)
    for first, maker in enumerate(actors[:2]):
        readers = [actor for actor in actors if actor is not maker]
        pickled = []
        for number in (10 * first, 10 * first + 5):
            tensor = maker.make_on_device([number, 0, number + 2], "float32")
            maker.synchronize()
            tensor.write_later(1, number + 1)
            pickled.append((number, tensor, maker.run(pickled_to_share, tensor)))
        for number, tensor, content in reversed(pickled):
            arrived = [reader.run(unpickled, content) for reader in readers]
            expected = [number, number + 1, number + 2]
            for one in arrived:
                found = values_after_waiting(one)
                check.equal(found, expected, "it has the values at the pickling")
            check_shared([tensor, *arrived], expected)


@clause("CUDA-36", vary=(), dtypes=("float64",), profiles=("drop-in",))
def test_bytes_of_a_received_device_tensor_are_good_while_their_process_has_it(
    sender, receiver, bystander, device
):
    """The receiver pickles what arrived, if it can; then the sender drops its own."""
    tensor = sender.make_on_device([1, 2, 3, 4], "float64")
    arrived = sender.send(tensor, receiver)
    content, refused = attempt(partial(receiver.run, pickled_to_share, arrived))
    tensor.drop()
    held = overwrite_freed_blocks(sender)
    if refused is None:
        onward = bystander.run(unpickled, content)
        check_shared([arrived, onward], [1, 2, 3, 4])
        check.equal(values_after_waiting(held[-1]), [-1.5] * 4, "no other is hit")


@clause("CUDA-36", vary=(), profiles=("drop-in",))
def test_bytes_lead_to_the_device_on_which_the_tensor_lies(sender, receiver, device):
    """A tensor on each of two devices is pickled, that of the second one first."""
    if sender.device_count() < 2:
        raise NotRun(ONE_DEVICE)
    for maker, reader in ((sender, receiver), (receiver, sender)):
        for index in (1, 0):
            tensor = maker.make_on(index, [20 + index, 30], "float32")
            arrived = reader.run(unpickled, maker.run(pickled_to_share, tensor))
            check.equal(arrived.device_of(), index, "it arrives there")
            check.equal(values_after_waiting(arrived), [20 + index, 30], "its values")


@clause("CUDA-36", vary=(), start_methods=("spawn",), profiles=("drop-in",))
def test_bytes_lead_to_the_device_where_that_has_another_index_or_none(owner, device):
    """Each device but the first has another index in the child, and that has none."""
    count = owner.device_count()
    if count < 2:
        raise NotRun(ONE_DEVICE)
    child = start_peer_with_devices(owner, device, devices_but_the_first(owner)[::-1])
    for index in range(1, count):
        there = count - 1 - index
        for maker, reader, its, other in (
            (owner, child, index, there),
            (child, owner, there, index),
        ):
            tensor = maker.make_on(its, [its, 40], "float32")
            arrived = reader.run(unpickled, maker.run(pickled_to_share, tensor))
            check.equal(arrived.device_of(), other, "it is the device it lies on")
            check_shared([tensor, arrived], [its, 40])
    tensor = owner.make_on(0, [50, 60], "float32")
    content = owner.run(pickled_to_share, tensor)
    with refusal("a device that the reader cannot use is refused"):
        child.run(unpickled, content)
    check.equal(values_after_waiting(tensor), [50, 60], "the owner's is as it was")


@clause("CUDA-37", vary=(), dtypes=("float64",), profiles=("drop-in",))
def test_bytes_keep_no_device_memory_whether_they_are_read_or_not(
    sender, receiver, stage, device
):
    """Each pickles tensors three times, of which none, one or all are read."""
    warm_up(sender, receiver)
    before = memory_used(sender, receiver)
    for maker, reader in ((sender, receiver), (receiver, sender)):
        for times in (0, 1, 3):
            sent = make_with_block(maker, [times + 0.5] * 4)
            payloads = [
                [maker.run(pickled_to_share, tensor) for tensor in sent]
                for _ in range(3)
            ]
            arrived = [
                reader.run(unpickled, content)
                for contents in payloads[:times]
                for content in contents
            ]
            for one in arrived[::2]:
                found = values_after_waiting(one)
                check.equal(found, [times + 0.5] * 4, "it has its values")
            drop_all(sent if times == 1 else arrived)
            drop_all(arrived if times == 1 else sent)
            wait_until_freed(before, stage, reader, maker)


def check_leads_there_or_nowhere(reader, content, expected, *holders):
    """Read bytes; check that what arrives shares with `holders`, or is refused.

    Returns:
        The values of the holders afterwards.
    """
    arrived, refused = attempt(partial(reader.run, unpickled, content))
    if refused is None:
        expected = check_shared([*holders, arrived], expected)
        arrived.drop()
        reader.collect()
    for holder in holders:
        check.equal(values_after_waiting(holder), expected, "a holder's is as it was")
    return expected


@clause("CUDA-38", vary=("start_method",), dtypes=("float64",), profiles=("drop-in",))
def test_bytes_lead_to_their_device_memory_or_nowhere_however_often_they_are_read(
    sender, receiver, bystander, device
):
    """Each of the three reads the same bytes again, the maker included.

    The maker drops the tensor then, and makes others, and each reads once more: while
    the receiver holds what it has read, and afterwards.
    """
    tensor = sender.make_on_device([1, 2, 3, 4], "float64")
    content = sender.run(pickled_to_share, tensor)
    first = receiver.run(unpickled, content)
    values = check_shared([tensor, first], [1, 2, 3, 4])
    readers = (receiver, bystander, sender)
    for reader in readers:
        values = check_leads_there_or_nowhere(reader, content, values, tensor, first)
    tensor.drop()
    held = overwrite_freed_blocks(sender)
    check.equal(values_after_waiting(first), values, "the receiver's stays")
    for reader in readers:
        values = check_leads_there_or_nowhere(reader, content, values, first)
        held += overwrite_freed_blocks(sender)
    first.drop()
    held += overwrite_freed_blocks(receiver, sender)
    for reader in readers:
        arrived, refused = attempt(partial(reader.run, unpickled, content))
        if refused is None:
            found = values_after_waiting(arrived)
            check.equal(found, values, "it has the values that were last written")
            write_and_wait(arrived, 0, 99)
    for other in held:
        check.equal(values_after_waiting(other), [-1.5] * 4, "no other is hit")


@clause("CUDA-38", vary=(), profiles=("drop-in",))
def test_bytes_whose_maker_has_ended_lead_to_their_values_or_nowhere(
    owner, peer, device
):
    """A child pickles a tensor that the owner holds, and exits or is killed.

    Before, a process with another authentication key reads the bytes.
    """
    for number, end in enumerate(("leave", "kill")):
        child, stranger = owner.start_peer(), owner.start_peer()
        tensor = child.make_on_device([number, 7, 8], "float32")
        content = child.run(pickled_to_share, tensor)
        held = child.send(tensor, owner)
        stranger.run(set_authentication_key)
        expected = check_leads_there_or_nowhere(
            stranger, content, [number, 7, 8], tensor, held
        )
        getattr(child, end)()
        for reader in (owner, peer, stranger):
            arrived, refused = attempt(partial(reader.run, unpickled, content))
            if refused is None:
                found = values_after_waiting(arrived)
                check.equal(found, expected, "it has the values that were last written")
            own = reader.make_on_device([number, 9], "float32")
            check.equal(values_after_waiting(own), [number, 9], "the reader goes on")
