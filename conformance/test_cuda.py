"""Chapter CUDA: device memory, whose allocations are handed over by handle."""

from sharedtensor_conformance.harness import check, clause, eventually, refusal

LARGE = 2048
"""Elements of a tensor whose allocation the driver's figures show."""


def write_and_wait(tensor, index, value):
    """Write one element on the device and wait for it."""
    tensor.write_later(index, value)
    tensor.actor.synchronize()


def values_after_waiting(tensor):
    """Wait for the device and return the values that it holds."""
    tensor.actor.synchronize()
    return tensor.device_values()


@clause("CUDA-1", vary=())
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


@clause("CUDA-2", vary=("start_method",))
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


@clause("CUDA-2", vary=())
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


@clause("CUDA-3", vary=("start_method",))
def test_device_tensor_is_shared_by_three_processes(
    sender, receiver, bystander, device
):
    """The receiver sends a device tensor on; all three write and read."""
    tensor = sender.make_on_device([24, 25, 26], "int32")
    arrived = sender.send(tensor, receiver)
    tensors = [tensor, arrived, receiver.send(arrived, bystander)]
    expected = [24, 25, 26]
    for index, writer in enumerate(tensors):
        expected[index] += 31
        write_and_wait(writer, index, expected[index])
        found = [values_after_waiting(reader) for reader in tensors]
        check.equal(found, [expected] * 3, "the write is read by all three")


@clause("CUDA-4", vary=("start_method",))
def test_allocation_stays_while_a_receiver_holds_it(sender, receiver, stage, device):
    """The sender drops and collects; the receiver still reads; then it drops too."""
    tensor = sender.make_on_device([1, 2], "float32")
    arrived = sender.send(tensor, receiver)
    tensor.drop()
    arrived.drop()
    receiver.collect()
    sender.collect()
    before = sender.device_memory_used()
    values = [n + 0.25 for n in range(LARGE)]
    tensor = sender.make_on_device(values, "float64")
    arrived = sender.send(tensor, receiver)
    tensor.drop()
    sender.collect()
    others = [sender.make_on_device([-1.5] * LARGE, "float64") for _ in range(3)]
    check.equal(values_after_waiting(arrived), values, "the receiver's is as it was")
    for other in others:
        other.drop()
    sender.collect()
    used = sender.device_memory_used()
    check(used > before, "the allocation is there")
    arrived.drop()
    receiver.collect()

    def freed():
        sender.collect()
        return sender.device_memory_used() <= before

    eventually(freed, "the allocation is freed", within=stage.grace)


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


@clause("CUDA-5", vary=("strategy",))
def test_strategy_does_not_matter_to_device_memory(
    sender, receiver, channel, stage, device
):
    """A device tensor is sent under a strategy; the segments are listed."""
    before = stage.segments()
    tensor = sender.make_on_device([31, 32, 33], "float32")
    sender.synchronize()
    sender.put(tensor, receiver, channel)
    check.equal(stage.segments() - before, set(), "no segment is made in flight")
    arrived = receiver.get(sender, channel)
    check.equal(values_after_waiting(arrived), [31, 32, 33], "it has its values")
    check.equal(stage.segments() - before, set(), "no segment is made for its data")


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


@clause("CUDA-6", vary=())
def test_write_that_is_pending_in_the_middle_is_there_at_the_end(
    sender, receiver, bystander, device
):
    """The receiver enqueues a write and sends the tensor on without waiting."""
    tensor = sender.make_on_device([44, 45, 46], "int32")
    arrived = sender.send(tensor, receiver)
    receiver.synchronize()
    arrived.write_later(2, 64)
    onward = receiver.send(arrived, bystander)
    check.equal(values_after_waiting(onward), [44, 45, 64], "the third reads it")
