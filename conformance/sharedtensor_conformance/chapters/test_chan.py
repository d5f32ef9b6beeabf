"""Chapter CHAN: what is shared does not depend on the channel that carried it."""

from functools import partial
from itertools import count

import pytest

from sharedtensor_conformance.chapters.stories import (
    each_sees_the_writes_of_the_others,
    shared_apart,
)
from sharedtensor_conformance.harness import attempt, check, clause, eventually

PLAIN = [
    None,
    True,
    False,
    -7,
    2**70,
    0.1,
    -0.0,
    float("inf"),
    1.5 - 2.5j,
    "",
    "grüße \x00 🙂",
    b"\x00\xff bytes",
    [],
    (),
    {},
    [1, (2, [3, {"four": (5.0, b"6")}])],
    {"key": None, 3: [True, "x"], (4, "t"): {"deep": {"deeper": 1}}},
]
"""Plain values, of each kind that a message can have, nested and empty ones too."""

RACES = 20
"""Tensors that two threads put: where they race, a good part of them goes wrong."""

MANY = 100
TENSORS = 400
"""Tensors in one message: more than one packet or request has room for."""

FEW = 4
"""Tensors in a message that two threads put."""

UNCOUNTED = 1000
"""The same, where no descriptor limits how many a process may have."""

SIZES = (5, 0, 600_000, 1, 4096, 4097, 16_384, 16_385, 65_536, 65_537, 0)
"""Bytes in one message: none, a few, more than a pipe holds, and around its limits."""

TEXT = "x" * 30_000
"""So much text in so many messages is more than a pipe or a socket holds."""


@clause("CHAN-1")
def test_pool_worker_shares_the_tensors_of_its_tasks(owner):
    """The owner submits two tasks; the worker writes to the tensors of each."""
    tensor, other = owner.make([1, 2, 3]), owner.make([4, 5, 6])
    with owner.pool() as pool:
        pool.write_and_return(tensor, 1, 20)
        check.equal(tensor.values(), [1, 20, 3], "the owner reads the worker's write")
        pool.write_and_return({"tensors": [tensor, other]}, 2, 30)
        check.equal(tensor.values(), [1, 20, 30], "and that of the second task")
        check.equal(other.values(), [4, 5, 30], "to both of its tensors")


@clause("CHAN-1", vary=("strategy",))
def test_pool_worker_shares_a_tensor_that_the_peer_holds(owner, peer):
    """The owner submits a tensor that it got from the peer; all three share it."""
    tensor = peer.make([7, 8, 9])
    arrived = peer.send(tensor, owner)
    with owner.pool() as pool:
        pool.write_and_return(arrived, 0, 70)
        check.equal(arrived.values(), [70, 8, 9], "the owner reads the worker's write")
        check.equal(tensor.values(), [70, 8, 9], "and so does the peer")


@clause("CHAN-2")
def test_pool_result_is_shared_with_its_worker(owner):
    """The worker keeps what it returned; owner and worker write in turn."""
    with owner.pool() as pool:
        result = pool.make_and_keep([10, 11, 12])
        check.equal(result.values(), [10, 11, 12], "the result has its values")
        pool.write_kept(0, 100)
        check.equal(result.values(), [100, 11, 12], "the owner reads the write")
        result.write(2, 120)
        check.equal(pool.read_kept(2), 120, "the worker reads the owner's write")
        check.equal(pool.read_kept(1), 11, "and its own value beside it")


@clause("CHAN-2", vary=("strategy",))
def test_later_results_of_a_pool_are_shared_with_its_worker(owner):
    """The worker returns three tensors, one after another, and writes to each."""
    with owner.pool() as pool:
        for number in range(3):
            result = pool.make_and_keep([number + 13, number + 14])
            pool.write_kept(1, 140 + number)
            expected = [number + 13, 140 + number]
            check.equal(result.values(), expected, "the owner reads the write")


@clause("CHAN-3")
def test_every_tensor_in_a_container_is_shared(sender, receiver, channel):
    """The sender nests four tensors; each is found in its place and shared."""
    tensors = [sender.make([10 * n + 1, 10 * n + 2, 10 * n + 3]) for n in range(4)]
    message = [tensors[0], {"two": (tensors[1], [[tensors[2]]])}, ({"x": tensors[3]},)]
    arrived = sender.send(message, receiver, channel)
    pair = arrived[1]["two"]
    places = [arrived[0], pair[0], pair[1][0][0], arrived[2][0]["x"]]
    for tensor, found in zip(tensors, places, strict=True):
        check.equal(found.values(), tensor.values(), "each is in its place")
        each_sees_the_writes_of_the_others(tensor, found)


@clause("CHAN-3", vary=("strategy",), dtypes=("int32",))
def test_every_tensor_in_a_long_list_is_shared(sender, receiver, channel):
    """The sender sends forty tensors at once; the receiver writes to each."""
    tensors = [sender.make([n, n + 100], dtype="int32") for n in range(40)]
    arrived = sender.send(tensors, receiver, channel)
    for number, found in enumerate(arrived):
        found.write(0, 200 + number)
    for number, tensor in enumerate(tensors):
        check.equal(tensor.values(), [200 + number, number + 100], "each is its own")


@clause("CHAN-3", vary=("strategy",))
def test_every_tensor_in_a_very_long_list_is_shared(sender, receiver, strategy, stage):
    """The sender sends hundreds of tensors at once; both write to some of them."""
    counted = strategy == "file_descriptor"
    for many in (TENSORS,) if counted else (TENSORS, UNCOUNTED):
        tensors = sender.request("act", "make_many", many, 1)
        if many == UNCOUNTED:
            shared_apart(stage, sender, tensors)
        arrived = sender.send(tensors, receiver)
        check.equal(len(arrived), many, "all arrive")
        wrong = receiver.request("act", "wrong_ones", arrived, 1)
        check.equal(wrong, [], "the places of tensors that arrive with other values")
        for place in (0, many // 2, many - 1):
            each_sees_the_writes_of_the_others(tensors[place], arrived[place])
        for actor in (sender, receiver):
            actor.drop_all()


@clause("CHAN-4", vary=("strategy",))
def test_messages_arrive_in_the_order_in_which_they_were_sent(
    sender, receiver, channel
):
    """The sender puts ten messages before the receiver gets the first."""
    for number in range(10):
        tensor = sender.make([number + 20, 2 * number, 3 * number + 1])
        sender.put({"number": number, "tensor": tensor}, receiver, channel)
    for number in range(10):
        arrived = receiver.get(sender, channel)
        expected = [number + 20, 2 * number, 3 * number + 1]
        check.equal(arrived["number"], number, "the message is the next one")
        check.equal(arrived["tensor"].values(), expected, "with its own tensor")


@clause("CHAN-4", vary=("strategy",), channels=("queue",))
def test_order_is_kept_when_more_is_put_than_the_system_takes(owner):
    """The owner puts two messages for each that a child gets, until 3 MB wait.

    Where the system takes no more, the child makes room for one message, and the owner
    puts another at once: that must not pass those which have waited for room.
    """
    channel = owner.open_channel("queue")  # whose thread goes with it: see LIFE-12
    child = owner.start_peer(arguments=channel)
    put, got = count(), count()

    def put_next():
        number = next(put)
        message = {"number": number, "tensor": owner.make([number, 7]), "text": TEXT}
        channel.put(owner, message)

    def get_next():
        arrived, number = channel.get(child), next(got)
        check.equal(arrived["number"], number, "the message is the next one")
        check.equal(arrived["tensor"].values(), [number, 7], "with its own tensor")

    for _ in range(MANY):
        put_next()
        get_next()
        put_next()
    for _ in range(MANY):
        get_next()


@clause("CHAN-4", vary=("strategy",))
def test_messages_of_two_senders_keep_their_own_order(owner, peer, bystander, channel):
    """Owner and peer each put three messages for the bystander, in turn."""
    for number in range(3):
        for sender, base in ((owner, 30), (peer, 60)):
            sender.put([number, sender.make([base + number, 5])], bystander, channel)
    for sender, base in ((peer, 60), (owner, 30)):
        for number in range(3):
            counted, tensor = bystander.get(sender, channel)
            check.equal(counted, number, "the message is the next of its sender")
            check.equal(tensor.values(), [base + number, 5], "with its own tensor")


@clause("CHAN-5")
def test_tensor_in_several_messages_at_once_is_one_memory(sender, receiver, channel):
    """The sender puts one tensor three times before the receiver gets the first."""
    tensor = sender.make([41, 42, 43, 44])
    for _ in range(3):
        sender.put(tensor, receiver, channel)
    arrived = [receiver.get(sender, channel) for _ in range(3)]
    each_sees_the_writes_of_the_others(*arrived, tensor)


@clause("CHAN-5", vary=("strategy",))
def test_tensor_in_messages_to_two_processes_at_once_is_one_memory(
    sender, receiver, bystander, channel
):
    """The sender puts one tensor for both others before either gets it."""
    tensor = sender.make([45, 46, 47])
    sender.put(tensor, receiver, channel)
    sender.put([tensor], bystander, channel)
    second = bystander.get(sender, channel)[0]
    first = receiver.get(sender, channel)
    each_sees_the_writes_of_the_others(first, second, tensor)


@clause("CHAN-5", vary=("strategy",))
def test_tensor_on_every_channel_at_once_is_one_memory(
    sender, receiver, implementation
):
    """The sender puts one tensor on each channel before the receiver gets any."""
    tensor = sender.make([48, 49, 50, 51])
    for channel in implementation.channels:
        sender.put(tensor, receiver, channel)
    arrived = [receiver.get(sender, channel) for channel in implementation.channels]
    each_sees_the_writes_of_the_others(tensor, *arrived)


@clause("CHAN-5", vary=("strategy",))
def test_tensor_put_by_two_threads_at_once_is_one_memory(
    sender, receiver, bystander, channel
):
    """Two threads of the sender put a new tensor for both others, again and again."""
    for number in range(RACES):
        tensor = sender.make([number, 47, 48])
        sender.put_at_once(tensor, receiver, bystander, channel=channel)
        first, second = (to.get(sender, channel) for to in (receiver, bystander))
        each_sees_the_writes_of_the_others(tensor, first, second)
        for one in (tensor, first, second):
            one.drop()


@clause("CHAN-5", vary=("strategy",))
def test_tensors_put_by_two_threads_at_once_are_one_memory_each(
    sender, receiver, bystander, channel
):
    """Two threads of the sender put a list of new tensors for both others."""
    for number in range(RACES):
        tensors = sender.request("act", "make_many", FEW, number)
        sender.put_at_once(tensors, receiver, bystander, channel=channel)
        lists = [to.get(sender, channel) for to in (receiver, bystander)]
        for place in (0, FEW - 1):
            same = [found[place] for found in (tensors, *lists)]
            each_sees_the_writes_of_the_others(*same)
        for one in (*tensors, *lists[0], *lists[1]):
            one.drop()


@clause("CHAN-6", vary=("strategy",))
def test_plain_objects_travel_unchanged(sender, receiver, channel):
    """The sender sends plain values one by one and all in one message."""
    for value in PLAIN:
        arrived = sender.send(value, receiver, channel)
        check.equal(repr(arrived), repr(value), "the value arrives as it was")
    together = sender.send(PLAIN, receiver, channel)
    check.equal(repr(together), repr(PLAIN), "and so do all of them at once")


@clause("CHAN-6", vary=("strategy",))
def test_plain_objects_travel_beside_tensors_unchanged(sender, receiver, channel):
    """The sender sends a message of plain values with tensors between them."""
    message = {"before": PLAIN, "tensor": sender.make([52, 53, 54]), "after": [-1, "z"]}
    arrived = sender.send(message, receiver, channel)
    check.equal(list(arrived), ["before", "tensor", "after"], "the keys are in order")
    check.equal(repr(arrived["before"]), repr(PLAIN), "what came before is as it was")
    check.equal(arrived["tensor"].values(), [52, 53, 54], "the tensor has its values")
    check.equal(arrived["after"], [-1, "z"], "what came after is as it was")


@clause("CHAN-7", vary=("strategy",))
def test_what_is_written_after_put_has_returned_is_seen(sender, receiver, channel):
    """The sender writes to each element right after the put; the receiver reads."""
    tensor = sender.make([67, 68, 69])
    sender.put(tensor, receiver, channel)
    for index in range(3):
        tensor.write(index, 670 + index)
    arrived = receiver.get(sender, channel)
    check.equal(arrived.values(), [670, 671, 672], "the receiver reads the writes")
    each_sees_the_writes_of_the_others(tensor, arrived)


@clause("CHAN-7", profiles=("share",), vary=("strategy",), channels=("queue",))
def test_tensor_is_shared_when_put_returns_to_a_queue_that_is_full(owner):
    """The owner puts 3 MB on a queue, and a tensor behind it, before a child gets any.

    Who leaves the move to a thread has to have moved it though the thread waits.
    """
    channel = owner.open_channel("queue")
    child = owner.start_peer(arguments=channel)
    for _ in range(MANY):
        channel.put(owner, TEXT)
    tensor = owner.make([64, 65, 66])
    channel.put(owner, tensor)
    check.equal(tensor.is_shared(), True, "it is shared when put has returned")
    tensor.write(1, 650)
    for _ in range(MANY):
        check.equal(channel.get(child), TEXT, "what is before it arrives")
    arrived = channel.get(child)
    check.equal(arrived.values(), [64, 650, 66], "the child reads the later write")


@clause("CHAN-7", profiles=("share",))
def test_tensor_is_shared_when_put_returns(sender, receiver, channel):
    """The sender asks the tensor right after each put, then writes to it."""
    for number in range(5):
        tensor = sender.make([number + 1, number + 2, number + 3])
        sender.put(tensor, receiver, channel)
        check.equal(tensor.is_shared(), True, "it is shared when put has returned")
        tensor.write(1, 90 + number)
        arrived = receiver.get(sender, channel)
        expected = [number + 1, 90 + number, number + 3]
        check.equal(arrived.values(), expected, "the receiver reads the later write")
        check.equal(tensor.values(), expected, "and so does the sender")


@clause("CHAN-7", profiles=("identity",), vary=("strategy",))
def test_nothing_moves_a_tensor_after_put_has_returned(sender, receiver, channel):
    """The sender notes the address after the put and after the receive."""
    tensor = sender.make([61, 62, 63])
    sender.put(tensor, receiver, channel)
    address = tensor.address()
    tensor.write(0, 610)
    arrived = receiver.get(sender, channel)
    check.equal(tensor.address(), address, "the address is the same")
    check.equal(arrived.values(), [610, 62, 63], "the receiver reads the write")


@clause("CHAN-8")
def test_joinable_queue_carries_tensors(owner):
    """The owner puts two tensors for a child, and joins when both were dealt with."""
    channel = owner.open_channel("joinable_queue")
    child = owner.start_peer(arguments=channel)
    tensors = [owner.make([number, 171, 172]) for number in (170, 180)]
    for tensor in tensors:
        channel.put(owner, {"tensor": tensor})
    for tensor in tensors:
        arrived = channel.get(child)["tensor"]
        each_sees_the_writes_of_the_others(arrived, tensor)
        channel.task_done(child)
    channel.join(owner)
    check(child.is_alive(), "joining waits for the tasks and not for the process")


@clause("CHAN-9", isolated=True)
def test_executor_shares_the_tensors_of_calls_and_results(stage):
    """The owner submits a tensor; the worker writes, and keeps a result of its own.

    The standard library keeps a thread and a socket for channels that are its own, so
    the processes are new ones.
    """
    with stage.fresh() as fresh:
        tensor = fresh.owner.make([191, 192, 193])
        with fresh.owner.pool(kind="executor") as pool:
            pool.write_and_return({"tensor": tensor}, 1, 20)
            check.equal(tensor.values(), [191, 20, 193], "the owner reads the write")
            result = pool.make_and_keep([194, 195])
            pool.write_kept(0, 40)
            check.equal(
                result.values(), [40, 195], "the owner reads that to the result"
            )
            result.write(1, 50)
            check.equal(pool.read_kept(1), 50, "and the worker reads the owner's")


@clause("CHAN-10", isolated=True)
def test_queue_of_a_manager_carries_tensors(stage):
    """The owner puts a tensor on a manager's queue, and a child gets it."""
    with stage.fresh() as fresh:
        channel = fresh.owner.open_channel("proxy")
        child = fresh.owner.start_peer(arguments=channel)
        tensor = fresh.owner.make([201, 202, 203])
        put = partial(channel.put, fresh.owner, tensor)
        _, refused = attempt(put)
        if refused:
            check.equal(tensor.values(), [201, 202, 203], "nothing is lost")
            return
        arrived = channel.get(child)
        each_sees_the_writes_of_the_others(arrived, tensor)


@clause("CHAN-11", vary=("start_method",))
def test_pipe_carries_bytes_and_their_receiver_waits(owner, stage):
    """A child waits for bytes of each size; then come a tensor and more bytes."""
    channel = owner.open_channel("pipe")
    child = owner.start_peer(arguments=channel)
    for size in SIZES:
        content = ("second" * size)[:size]
        waiting = channel.waiting_for_bytes(child)
        eventually(waiting.is_waiting, "the child waits for bytes", within=stage.grace)
        channel.put_bytes(owner, content)
        check(waiting.answer() == content, f"{size} bytes arrive whole")
    channel.put(owner, {"tensor": owner.make([211, 212])})
    for content in ("", "last"):
        channel.put_bytes(owner, content)
    arrived = channel.get(child)["tensor"]
    check.equal(arrived.values(), [211, 212], "the tensor comes before the bytes")
    check.equal(channel.get_bytes(child), "", "no bytes after it")
    check.equal(channel.get_bytes(child), "last", "and some after those")


@clause("CHAN-12", vary=("start_method",))
@pytest.mark.parametrize("kind", ["queue", "joinable_queue"])
def test_empty_queue_says_so_when_the_timeout_has_passed(owner, kind):
    """The owner asks an empty queue so often that waits would not fit in its deadline.

    So nothing is measured that a busy machine makes longer.
    """
    channel = owner.open_channel(kind)
    for how in ({"timeout": 0}, {"timeout": 0.001}, {"block": False}):
        empty = channel.count_empty(owner, 100, how)
        check.equal(empty, 100, f"it is empty each time: get({how})")
    channel.put(owner, {"tensor": owner.make([221])})
    arrived = channel.get(owner)["tensor"]
    check.equal(arrived.values(), [221], "what was put after that arrives")
