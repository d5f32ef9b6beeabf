"""Chapter CHAN: what is shared does not depend on the channel that carried it."""

from functools import partial
from itertools import count

import pytest

from sharedtensor_conformance.chapters.chan_actions import (
    finish_tasks,
    get_bytes_of_sizes,
    get_containers,
    pass_on_in_a_fork,
    put_bytes_of_sizes,
    put_containers,
    start_and_write,
)
from sharedtensor_conformance.chapters.exhaustion import interrupted
from sharedtensor_conformance.chapters.manager_actions import (
    CLASSES_OF_MANAGER,
    STORES,
    close_manager,
    managed,
    open_manager,
    store,
    stored,
)
from sharedtensor_conformance.chapters.message_actions import (
    get_messages_of_sizes,
    made_when_pickled,
    makes_when_pickled,
    offer,
    put_messages_of_sizes,
    try_get,
    unpicklable,
    unreceivable,
)
from sharedtensor_conformance.chapters.pool_actions import (
    add_in_tasks,
    run_task_by_name,
    strategy_in_pool,
)
from sharedtensor_conformance.chapters.pools import pool_in
from sharedtensor_conformance.chapters.record_actions import (
    RECORDS,
    describe_record,
    make_record,
)
from sharedtensor_conformance.chapters.shared_steps import (
    check_shared_memory,
    judging,
    several_strategies,
    share_separately,
    strategy_set,
    wait_for_all,
)
from sharedtensor_conformance.chapters.tensor_actions import (
    make_many,
    positions_with_wrong_values,
)
from sharedtensor_conformance.chapters.thread_actions import (
    get_in_threads,
    put_from_threads,
)
from sharedtensor_conformance.chapters.worker_tasks import (
    make_and_keep,
    read_kept,
    write_and_return,
    write_kept,
)
from sharedtensor_conformance.harness import attempt, check, clause, eventually, refusal
from sharedtensor_conformance.harness.kernel.process_tree import wait_until
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.channels import Arguments, Channel
from sharedtensor_conformance.harness.remote.threads import (
    answer_of_thread,
    in_a_thread,
    start_waiting,
)

PLAIN_VALUES = [
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
"""Plain values of each type in messages, including empty and nested ones."""

MAX_TIMEOUT = 0.2
"""The longest timeout, in seconds, of a call on an empty or full queue."""

RACE_ROUNDS = 20
"""The number of tensors that two threads put. If there is a race, several fail."""

DEPTH = 50
"""The number of containers around a tensor that is nested deep."""

MANY_MESSAGES = 100
MANY_TENSORS = 400
"""The number of tensors in one message: more than fit into one packet or request."""

TENSORS_PER_RACE = 4
"""The number of tensors in a message that two threads put."""

MANY_NAMED_TENSORS = 1000
"""The same for a strategy without a descriptor for each tensor."""

MESSAGE_SIZES = (5, 0, 600_000, 1, 4096, 4097, 16_384, 16_385, 65_536, 65_537, 0)
"""Sizes of messages in bytes: zero, small, near the limits of a pipe, and larger."""

LONG_TEXT = "x" * 30_000
"""The text of a message. `MANY_MESSAGES` of them do not fit into a pipe or a socket."""


@clause("CHAN-1", vary=("strategy", "start_method"))
def test_pool_worker_shares_the_tensors_of_its_tasks(owner):
    """The owner submits two tasks; the worker writes to the tensors of each."""
    tensor, other = owner.make([1, 2, 3]), owner.make([4, 5, 6])
    with pool_in(owner) as pool:
        pool.run(write_and_return, tensor, 1, 20)
        check.equal(tensor.values(), [1, 20, 3], "the owner reads the worker's write")
        pool.run(write_and_return, {"tensors": [tensor, other]}, 2, 30)
        check.equal(tensor.values(), [1, 20, 30], "and that of the second task")
        check.equal(other.values(), [4, 5, 30], "to both of its tensors")


@clause("CHAN-1", starts=True)
def test_pool_worker_shares_a_tensor_that_the_peer_holds(owner, peer):
    """The owner submits a tensor that it got from the peer; all three share it."""
    tensor = peer.make([7, 8, 9])
    arrived = peer.send(tensor, owner)
    with pool_in(owner) as pool:
        pool.run(write_and_return, arrived, 0, 70)
        check.equal(arrived.values(), [70, 8, 9], "the owner reads the worker's write")
        check.equal(tensor.values(), [70, 8, 9], "and so does the peer")


@clause("CHAN-2", vary=("strategy", "start_method"))
def test_pool_result_is_shared_with_its_worker(owner):
    """The worker keeps what it returned; owner and worker write in turn."""
    with pool_in(owner) as pool:
        result = pool.run(make_and_keep, [10, 11, 12])
        check.equal(result.values(), [10, 11, 12], "the result has its values")
        pool.run(write_kept, 0, 100)
        check.equal(result.values(), [100, 11, 12], "the owner reads the write")
        result.write(2, 120)
        check.equal(pool.run(read_kept, 2), 120, "the worker reads the owner's write")
        check.equal(pool.run(read_kept, 1), 11, "and its own value beside it")


@clause("CHAN-2", starts=True)
def test_later_results_of_a_pool_are_shared_with_its_worker(owner):
    """The worker returns three tensors, one after another, and writes to each."""
    with pool_in(owner) as pool:
        for number in range(3):
            result = pool.run(make_and_keep, [number + 13, number + 14])
            pool.run(write_kept, 1, 140 + number)
            expected = [number + 13, 140 + number]
            check.equal(result.values(), expected, "the owner reads the write")


@clause("CHAN-3", vary=("strategy", "start_method"))
def test_every_tensor_in_a_container_is_shared(sender, receiver, channel):
    """The sender nests four tensors; each is found in its place and shared."""
    tensors = [sender.make([10 * n + 1, 10 * n + 2, 10 * n + 3]) for n in range(4)]
    message = [tensors[0], {"two": (tensors[1], [[tensors[2]]])}, ({"x": tensors[3]},)]
    arrived = sender.send(message, receiver, channel)
    pair = arrived[1]["two"]
    places = [arrived[0], pair[0], pair[1][0][0], arrived[2][0]["x"]]
    for tensor, found in zip(tensors, places, strict=True):
        check.equal(found.values(), tensor.values(), "each is in its place")
        check_shared_memory(tensor, found)


@clause("CHAN-3")
def test_every_tensor_in_the_attributes_of_an_object_is_shared(
    sender, receiver, channel
):
    """The sender sends tensors in named tuples, dataclasses and ordinary objects.

    One of each record's attributes is a tensor, the other one a container of two.
    """
    for number, kind in enumerate(RECORDS):
        tensors = [sender.make([10 * number + n, 61, 62]) for n in range(3)]
        rest = {"deep": [tensors[1], (tensors[2],)]}
        record = sender.run(make_record, kind, tensors[0], rest)
        arrived = sender.send({"records": (7, [record])}, receiver, channel)
        there = arrived["records"][1][0]
        found, first, second = receiver.run(describe_record, there)
        check.equal(found, kind, "the object is of the class of the one that was sent")
        places = [first, second["deep"][0], second["deep"][1][0]]
        for tensor, place in zip(tensors, places, strict=True):
            check.equal(
                place.values(), tensor.values(), f"each is in its place ({kind})"
            )
            check_shared_memory(tensor, place)


@clause("CHAN-3")
def test_tensor_is_shared_however_deep_it_is_nested(sender, receiver, channel):
    """The sender sends one tensor below fifty levels, and one halfway down."""
    lowest, middle = sender.make([71, 72, 73]), sender.make([74, 75])
    message = [lowest]
    for level in range(DEPTH):
        beside = middle if level == DEPTH // 2 else level
        message = ([message, beside], (message, beside), {0: message, 1: beside})[
            level % 3
        ]
    arrived = sender.send(message, receiver, channel)
    for level in reversed(range(DEPTH)):
        arrived, beside = arrived[0], arrived[1]
        if level == DEPTH // 2:
            check_shared_memory(middle, beside)
        else:
            check.equal(beside, level, "what is beside it is of this level")
    check_shared_memory(lowest, arrived[0])


@clause("CHAN-3", dtypes=("int32",))
def test_every_tensor_in_a_long_list_is_shared(sender, receiver, channel):
    """The sender sends forty tensors at once; the receiver writes to each."""
    tensors = [sender.make([n, n + 100], dtype="int32") for n in range(40)]
    arrived = sender.send(tensors, receiver, channel)
    for number, found in enumerate(arrived):
        found.write(0, 200 + number)
    for number, tensor in enumerate(tensors):
        check.equal(tensor.values(), [200 + number, number + 100], "each is its own")


@clause("CHAN-3")
def test_every_tensor_in_a_very_long_list_is_shared(sender, receiver, strategy, stage):
    """The sender sends hundreds of tensors at once; both write to some of them.

    The first one is in the message once more, at its end.
    """
    counted = strategy == "file_descriptor"
    for many in (MANY_TENSORS,) if counted else (MANY_TENSORS, MANY_NAMED_TENSORS):
        tensors = sender.run(make_many, many, 1)
        if many == MANY_NAMED_TENSORS:
            share_separately(stage, sender, tensors)
        *arrived, again = sender.send([*tensors, tensors[0]], receiver)
        check.equal(len(arrived), many, "all arrive")
        wrong = receiver.run(positions_with_wrong_values, arrived, 1)
        check.equal(wrong, [], "the places of tensors that arrive with other values")
        check_shared_memory(tensors[0], again, arrived[0])
        for place in (0, many // 2, many - 1):
            check_shared_memory(tensors[place], arrived[place])
        for actor in (sender, receiver):
            actor.drop_all()


@clause("CHAN-3", isolated=True)
def test_first_tensor_of_a_process_is_shared_that_is_made_while_it_is_pickled(
    stage, channel
):
    """An object makes the first tensor of its process when it is pickled, and keeps it.

    The owner puts it on a channel.
    """
    with stage.fresh() as fresh:
        maker = fresh.owner.run(makes_when_pickled, [1, 2, 3])
        (arrived,) = fresh.owner.send(maker, fresh.peer, channel)
        kept = fresh.owner.run(made_when_pickled, maker)
        check_shared_memory(kept, arrived)


@clause(
    "CHAN-3",
    start_methods=("spawn", "forkserver"),
    isolated=True,
    vary=("strategy", "start_method"),
)
def test_first_tensor_of_a_process_is_shared_that_is_made_at_a_start(stage):
    """An object makes it when it is pickled as an argument of a child, and keeps it."""
    with stage.fresh() as fresh:
        maker = fresh.owner.run(makes_when_pickled, [4, 5, 6])
        child = fresh.owner.start_peer(arguments=maker)
        kept = fresh.owner.run(made_when_pickled, maker)
        check_shared_memory(kept, child.arguments[0])


@clause("CHAN-4")
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


@clause("CHAN-4", channels=("queue",), starts=True)
def test_order_is_kept_when_more_is_put_than_the_system_takes(owner):
    """The owner puts two messages for each that a child gets, until 3 MB wait.

    Where the system takes no more, the child makes room for one message, and the owner
    puts another at once: that must not pass those which have waited for room.
    """
    channel = owner.open_channel("queue")  # its thread ends with it: see LIFE-12
    child = owner.start_peer(arguments=channel)
    put, got = count(), count()

    def put_next():
        number = next(put)
        message = {
            "number": number,
            "tensor": owner.make([number, 7]),
            "text": LONG_TEXT,
        }
        channel.put(owner, message)

    def get_next():
        arrived, number = channel.get(child), next(got)
        check.equal(arrived["number"], number, "the message is the next one")
        check.equal(arrived["tensor"].values(), [number, 7], "with its own tensor")

    for _ in range(MANY_MESSAGES):
        put_next()
        get_next()
        put_next()
    for _ in range(MANY_MESSAGES):
        get_next()


@clause("CHAN-4")
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


@clause("CHAN-5", vary=("strategy", "start_method"))
def test_tensor_in_several_messages_at_once_is_one_memory(sender, receiver, channel):
    """The sender puts one tensor three times before the receiver gets the first."""
    tensor = sender.make([41, 42, 43, 44])
    for _ in range(3):
        sender.put(tensor, receiver, channel)
    arrived = [receiver.get(sender, channel) for _ in range(3)]
    check_shared_memory(*arrived, tensor)


@clause("CHAN-5")
def test_tensor_in_messages_to_two_processes_at_once_is_one_memory(
    sender, receiver, bystander, channel
):
    """The sender puts one tensor for both others before either gets it."""
    tensor = sender.make([45, 46, 47])
    sender.put(tensor, receiver, channel)
    sender.put([tensor], bystander, channel)
    second = bystander.get(sender, channel)[0]
    first = receiver.get(sender, channel)
    check_shared_memory(first, second, tensor)


@clause("CHAN-5")
def test_tensor_on_every_channel_at_once_is_one_memory(
    sender, receiver, implementation
):
    """The sender puts one tensor on each channel before the receiver gets any."""
    tensor = sender.make([48, 49, 50, 51])
    for channel in implementation.channels:
        sender.put(tensor, receiver, channel)
    arrived = [receiver.get(sender, channel) for channel in implementation.channels]
    check_shared_memory(tensor, *arrived)


@clause("CHAN-5")
def test_tensor_put_by_two_threads_at_once_is_one_memory(
    sender, receiver, bystander, channel
):
    """Two threads of the sender put a new tensor for both others, again and again."""
    for number in range(RACE_ROUNDS):
        tensor = sender.make([number, 47, 48])
        sender.put_in_parallel(tensor, receiver, bystander, channel=channel)
        first, second = (to.get(sender, channel) for to in (receiver, bystander))
        check_shared_memory(tensor, first, second)
        for one in (tensor, first, second):
            one.drop()


@clause("CHAN-5")
def test_tensors_put_by_two_threads_at_once_are_one_memory_each(
    sender, receiver, bystander, channel
):
    """Two threads of the sender put a list of new tensors for both others."""
    for number in range(RACE_ROUNDS):
        tensors = sender.run(make_many, TENSORS_PER_RACE, number)
        sender.put_in_parallel(tensors, receiver, bystander, channel=channel)
        lists = [to.get(sender, channel) for to in (receiver, bystander)]
        for place in (0, TENSORS_PER_RACE - 1):
            same = [found[place] for found in (tensors, *lists)]
            check_shared_memory(*same)
        for one in (*tensors, *lists[0], *lists[1]):
            one.drop()


@clause("CHAN-6")
def test_plain_objects_travel_unchanged(sender, receiver, channel):
    """The sender sends plain values one by one and all in one message."""
    for value in PLAIN_VALUES:
        arrived = sender.send(value, receiver, channel)
        check.equal(repr(arrived), repr(value), "the value arrives as it was")
    together = sender.send(PLAIN_VALUES, receiver, channel)
    check.equal(repr(together), repr(PLAIN_VALUES), "and so do all of them at once")


@clause("CHAN-6")
def test_plain_objects_travel_beside_tensors_unchanged(sender, receiver, channel):
    """The sender sends a message of plain values with tensors between them."""
    message = {
        "before": PLAIN_VALUES,
        "tensor": sender.make([52, 53, 54]),
        "after": [-1, "z"],
    }
    arrived = sender.send(message, receiver, channel)
    check.equal(list(arrived), ["before", "tensor", "after"], "the keys are in order")
    check.equal(
        repr(arrived["before"]), repr(PLAIN_VALUES), "what came before is as it was"
    )
    check.equal(arrived["tensor"].values(), [52, 53, 54], "the tensor has its values")
    check.equal(arrived["after"], [-1, "z"], "what came after is as it was")


@clause("CHAN-6")
def test_sets_and_deques_travel_unchanged(sender, receiver, channel):
    """The sender puts such containers one by one, and all of them with a tensor."""
    tensor = sender.make([55, 56])
    sender.run(put_containers, receiver.name, channel, tensor)
    wrong, arrived = receiver.run(get_containers, sender.name, channel)
    check.equal(wrong, [], "what arrives otherwise than it was sent")
    check.equal(arrived.values(), [55, 56], "the tensor has its values")


@clause("CHAN-7")
def test_what_is_written_after_put_has_returned_is_seen(sender, receiver, channel):
    """The sender writes to each element right after the put; the receiver reads."""
    tensor = sender.make([67, 68, 69])
    sender.put(tensor, receiver, channel)
    for index in range(3):
        tensor.write(index, 670 + index)
    arrived = receiver.get(sender, channel)
    check.equal(arrived.values(), [670, 671, 672], "the receiver reads the writes")
    check_shared_memory(tensor, arrived)


QUEUES_THAT_FILL = ("queue", "joinable_queue", "queue_of_many")
"""The queues whose `put` may leave the writing to a thread. Each has room for more
messages than a pipe takes.
"""


@clause("CHAN-7", profiles=("share",), channels=("queue",), starts=True)
def test_tensor_is_shared_when_put_returns_to_a_queue_that_is_full(owner):
    """The owner puts 3 MB on a queue, and a tensor behind it, before a child gets any.

    Who leaves the move to a thread has to have moved it though the thread waits.
    """
    channels = [owner.open_channel(kind) for kind in QUEUES_THAT_FILL]
    child = owner.start_peer(arguments=channels)
    before = [len(LONG_TEXT)] * MANY_MESSAGES
    for channel, kind in zip(channels, QUEUES_THAT_FILL, strict=True):
        owner.run(put_messages_of_sizes, channel, None, before)
        tensor = owner.make([64, 65, 66])
        channel.put(owner, tensor)
        shared = tensor.is_shared()
        check.equal(shared, True, f"it is shared when put has returned ({kind})")
        tensor.write(1, 650)
        wrong = child.run(get_messages_of_sizes, channel, None, before)
        check.equal(wrong, [], f"the sizes of what arrives otherwise ({kind})")
        arrived = channel.get(child).values()
        check.equal(arrived, [64, 650, 66], f"the child reads the later write ({kind})")


@clause(
    "CHAN-7",
    profiles=("share",),
    start_methods=("spawn", "forkserver"),
    vary=("start_method",),
    starts=True,
)
def test_tensor_is_shared_when_start_of_a_process_returns(owner, start_method):
    """The owner starts a process with two tensors, and writes to both at once.

    The process waits for that, and adds to what it reads. Pickling in another thread
    than that of `start` is slowed down, so that it would not be done by then.
    """
    tensors = [owner.make([73, 74]), owner.make([75, 76, 77])]
    shared, status = owner.run(start_and_write, tensors, 650, start_method)
    check.equal(shared, [True, True], "both are shared when start has returned")
    check.equal(owner.exit_codes([status]), [0], "the process ends well")
    found = [tensor.values() for tensor in tensors]
    expected = [[651, 74], [651, 76, 77]]
    check.equal(found, expected, "it has read the later write, and added 1")


@clause("CHAN-7", profiles=("share",), vary=("strategy", "start_method"))
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


@clause("CHAN-7", profiles=("identity",))
def test_nothing_moves_a_tensor_after_put_has_returned(sender, receiver, channel):
    """The sender notes the address after the put and after the receive."""
    tensor = sender.make([61, 62, 63])
    sender.put(tensor, receiver, channel)
    address = tensor.address()
    tensor.write(0, 610)
    arrived = receiver.get(sender, channel)
    check.equal(tensor.address(), address, "the address is the same")
    check.equal(arrived.values(), [610, 62, 63], "the receiver reads the write")


@clause("CHAN-8", vary=("strategy", "start_method"))
def test_joinable_queue_carries_tensors(owner):
    """The owner puts two tensors for a child, and joins when both were dealt with."""
    channel = owner.open_channel("joinable_queue")
    child = owner.start_peer(arguments=channel)
    tensors = [owner.make([number, 171, 172]) for number in (170, 180)]
    for tensor in tensors:
        channel.put(owner, {"tensor": tensor})
    for tensor in tensors:
        arrived = channel.get(child)["tensor"]
        check_shared_memory(arrived, tensor)
        channel.use(child, Channel.task_done)
    channel.use(owner, Channel.join)
    check(child.is_alive(), "joining waits for the tasks and not for the process")


@clause("CHAN-9", isolated=True, vary=("strategy", "start_method"))
def test_executor_shares_the_tensors_of_calls_and_results(stage):
    """The owner submits a tensor; the worker writes, and keeps a result of its own.

    The standard library keeps a thread and a socket for channels that are its own, so
    the processes are new ones.
    """
    with stage.fresh() as fresh:
        tensor = fresh.owner.make([191, 192, 193])
        with pool_in(fresh.owner, kind="executor") as pool:
            pool.run(write_and_return, {"tensor": tensor}, 1, 20)
            check.equal(tensor.values(), [191, 20, 193], "the owner reads the write")
            named = {"payload": [tensor], "position": 2, "value": 30}
            fresh.owner.run(run_task_by_name, pool.remote, write_and_return, named)
            check.equal(tensor.values(), [191, 20, 30], "also to a named argument")
            result = pool.run(make_and_keep, [194, 195])
            pool.run(write_kept, 0, 40)
            check.equal(
                result.values(), [40, 195], "the owner reads that to the result"
            )
            result.write(1, 50)
            check.equal(pool.run(read_kept, 1), 50, "and the worker reads the owner's")


@clause("CHAN-10", isolated=True, vary=("strategy", "start_method"))
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
        check_shared_memory(arrived, tensor)


@clause("CHAN-10", isolated=True, vary=("strategy", "start_method"))
def test_each_object_of_a_manager_carries_tensors(stage, start_method):
    """The owner stores tensors in an object of each class; the peer takes them out.

    They are stored bare and in a list, in the server of the context's `Manager()` and
    in one of the program's own, which has one class more.
    """
    with stage.fresh() as fresh:
        for own in (False, True):
            manager = fresh.owner.run(open_manager, start_method, own)
            for name in STORES if own else CLASSES_OF_MANAGER:
                made = fresh.owner.run(managed, manager, name)
                check_carries(made, name, fresh)
            fresh.owner.run(close_manager, manager)


def check_carries(made, name, fresh):
    """Store tensors in an object of a manager; check that the peer shares them."""
    owner, peer = fresh.owner, fresh.peer
    there = owner.send(made, peer)
    for is_bare in (True, False):
        tensor = owner.make([204, 205])
        payload = tensor if is_bare else [tensor]
        _, refused = attempt(partial(owner.run, store, made, name, payload))
        if refused:
            check.equal(tensor.values(), [204, 205], f"it stays as it was ({name})")
            continue
        arrived = peer.run(stored, there, name)
        check_shared_memory(arrived if is_bare else arrived[0], tensor)


@clause("CHAN-11", vary=("start_method",))
def test_pipe_carries_bytes_and_their_receiver_waits(owner):
    """A child waits for bytes of each size; then come a tensor and more bytes."""
    channel = owner.open_channel("pipe")
    child = owner.start_peer(arguments=channel)
    for size in MESSAGE_SIZES:
        content = ("second" * size)[:size]
        waiting = channel.using(child, Channel.get_bytes)
        eventually(waiting.is_waiting, "the child waits for bytes", child.deadline)
        channel.use(owner, Channel.put_bytes, content)
        check(waiting.answer() == content, f"{size} bytes arrive whole")
    channel.put(owner, {"tensor": owner.make([211, 212])})
    for content in ("", "last"):
        channel.use(owner, Channel.put_bytes, content)
    arrived = channel.get(child)["tensor"]
    check.equal(arrived.values(), [211, 212], "the tensor comes before the bytes")
    check.equal(channel.use(child, Channel.get_bytes), "", "no bytes after it")
    check.equal(channel.use(child, Channel.get_bytes), "last", "and some after those")


BOUNDED_CALLS: tuple[tuple[Arguments, int], ...] = (
    *(({"timeout": 0}, 10), ({"timeout": 0.001}, 10), ({"block": False}, 10)),
    *(([False], 3), ([True, 0], 3), ([True, 0.001], 3), ([False, 1000], 3)),
    *(([True, MAX_TIMEOUT], 1), ({"timeout": MAX_TIMEOUT}, 3)),
)
"""Arguments that limit how long a call on a queue waits; how often each is tried."""

ALLOWED_DELAY = 1.0
"""The number of seconds after its timeout within which a call has to return."""

INTERRUPTED_AT_MOST = MAX_TIMEOUT + ALLOWED_DELAY + 1
"""The number of seconds for which a call is interrupted, longer than it may take."""

CLOCK_TOLERANCE = 0.001
"""The number of seconds by which a call may seem to return early: two clocks differ."""

READER_TIMEOUT = 0.1
"""The timeout, in seconds, of readers of whom one gets the message."""

READER_ROUNDS = 25
"""How often they wait. In most rounds two of them see the message at the same time."""

TOO_MANY_LATE = 3
"""The number of late calls that fails the test. A busy machine may delay one call."""


def timeout_in(limits):
    """Return the timeout among arguments of `get` or `put`; 0 if they do not wait."""
    if not isinstance(limits, dict):
        limits = dict(zip(("block", "timeout"), limits, strict=False))
    return limits.get("timeout", 0) if limits.get("block", True) else 0


def check_timeouts(seconds_until, state):
    """Check that calls on an empty or full queue give up at their timeout.

    Args:
        seconds_until: makes a call with the arguments it gets. It returns after how
            many seconds the call reported the state, or None if it did not.
        state: the state of the queue, ``"empty"`` or ``"full"``.
    """
    for limits, times in BOUNDED_CALLS:
        timeout, late, made = timeout_in(limits), [], 0
        while made < times and len(late) < TOO_MANY_LATE:
            taken = seconds_until(limits)
            made += 1
            check(taken is not None, f"a call with {limits} says that it is {state}")
            early = f"not before the timeout has passed: {limits}, {taken:.3f} s"
            check(taken >= timeout - CLOCK_TOLERANCE, early)
            late += [taken] if taken > timeout + ALLOWED_DELAY else []
        if late:
            said = f"of {made} calls with {limits}, {len(late)} took longer"
            longest = f"the longest of them {max(late):.1f} s"
            limit = f"{timeout + ALLOWED_DELAY:g} s"
            in_time = f"it gives up within {limit} ({said}, {longest})"
            check(len(late) < TOO_MANY_LATE, in_time)


@clause("CHAN-12", vary=("start_method",))
@pytest.mark.parametrize("kind", ["queue", "joinable_queue"])
def test_empty_queue_says_so_when_the_timeout_has_passed(owner, kind):
    """The owner asks an empty queue, in each way that does not wait for ever."""
    channel = owner.open_channel(kind)
    check_timeouts(partial(channel.use, owner, Channel.seconds_until_empty), "empty")
    channel.put(owner, {"tensor": owner.make([221])})
    arrived = channel.get(owner)["tensor"]
    check.equal(arrived.values(), [221], "what was put after that arrives")


@clause("CHAN-12", vary=(), channels=("queue",), starts=True)
def test_reader_whose_message_another_one_takes_gives_up_in_time(owner):
    """Three children wait with a timeout, again and again; the owner puts one message.

    All of them see it and one gets it: the others have to be told that it is gone.
    """
    channel = owner.open_channel("queue")
    readers = [owner.start_peer(arguments=channel) for _ in range(3)]
    late = []
    for number in range(READER_ROUNDS):
        how = {"timeout": READER_TIMEOUT}
        waiting = [
            channel.using(reader, Channel.seconds_until_empty, how)
            for reader in readers
        ]
        for pending in waiting:
            wait_until(pending.is_waiting, READER_TIMEOUT)
        channel.put(owner, {"number": number})
        taken = [pending.answer() for pending in waiting]
        told = [seconds for seconds in taken if seconds is not None]
        check(len(told) >= len(readers) - 1, "one reader gets the message")
        if len(told) == len(readers):  # on a busy machine all may have given up before
            check.equal(channel.get(owner), {"number": number}, "it is there")
        early = f"not before the timeout has passed: {min(told):.3f} s"
        check(min(told) >= READER_TIMEOUT - CLOCK_TOLERANCE, early)
        late += [each for each in told if each > READER_TIMEOUT + ALLOWED_DELAY]
    check(len(late) < TOO_MANY_LATE, f"the others give up in time (late: {late})")


@clause("CHAN-13", vary=("start_method",), channels=("queue",))
@pytest.mark.parametrize("kind", ["queue_of_two", "joinable_queue_of_three"])
def test_full_queue_says_so_when_the_timeout_has_passed(owner, kind):
    """The owner puts on a full queue, in each way that does not wait for ever.

    Then it receives what has had room; there is room again, for whatever timeout.
    """
    channel = owner.open_channel(kind)
    room = 3 if "three" in kind else 2
    for number in range(room):
        channel.put(owner, {"tensor": owner.make([number, 222])})
    check_timeouts(partial(channel.use, owner, Channel.seconds_until_full), "full")
    for number in range(room):
        arrived = channel.get(owner)["tensor"]
        check.equal(arrived.values(), [number, 222], "what has had room arrives")
    again = owner.run(offer, channel, {"tensor": owner.make([223])}, {"timeout": 1000})
    check.equal(again, True, "there is room for another one")
    check.equal(channel.get(owner)["tensor"].values(), [223], "which arrives")


@clause("CHAN-12", vary=(), prefers="fork", channels=("queue",), starts=True)
@pytest.mark.parametrize("kind", ["queue", "joinable_queue"])
def test_empty_queue_says_so_though_others_wait_without_end(owner, kind):
    """The owner asks a queue on which its own thread waits, and a child.

    Then a message comes for each of those two.
    """
    channel = owner.open_channel(kind)
    child = owner.start_peer(arguments=channel)
    thread = owner.run(start_waiting, Actor.get_from, channel)
    waiting = channel.waiting(child)
    eventually(waiting.is_waiting, "the child waits", child.deadline)
    check_timeouts(partial(channel.use, owner, Channel.seconds_until_empty), "empty")
    for number in range(2):
        channel.put(owner, {"tensor": owner.make([number, 225])})
    arrived = [owner.run(answer_of_thread, thread), waiting.answer()]
    found = sorted(message["tensor"].values() for message in arrived)
    check.equal(found, [[0, 225], [1, 225]], "each who waits gets a message")


@clause("CHAN-13", vary=(), prefers="fork", channels=("queue",), starts=True)
@pytest.mark.parametrize("kind", ["queue_of_two", "joinable_queue_of_three"])
def test_full_queue_says_so_though_others_wait_for_room(owner, kind):
    """The owner puts on a full queue while its own thread waits for room, and a child.

    Then it receives what has had room, and what the two put.
    """
    channel = owner.open_channel(kind)
    child = owner.start_peer(arguments=channel)
    room = 3 if "three" in kind else 2
    for number in range(room):
        channel.put(owner, {"tensor": owner.make([number, 226])})
    later = {"tensor": owner.make([10, 227])}
    thread = owner.run(start_waiting, Actor.put_on, channel, later)
    waiting = child.start(Actor.put_on, channel, {"tensor": child.make([11, 227])})
    eventually(waiting.is_waiting, "the child waits", child.deadline)
    check_timeouts(partial(channel.use, owner, Channel.seconds_until_full), "full")
    found = [channel.get(owner)["tensor"].values() for _ in range(room + 2)]
    expected = [[number, 226] for number in range(room)]
    check.equal(found[:room], expected, "what has had room arrives")
    check.equal(sorted(found[room:]), [[10, 227], [11, 227]], "what waited follows it")
    owner.run(answer_of_thread, thread)
    waiting.answer()


@clause(
    *("FAIL-9", "CHAN-12", "CHAN-13"),
    vary=(),
    prefers="fork",
    channels=("queue",),
    mainly="FAIL-9",
)
def test_signals_do_not_prolong_a_wait_with_a_timeout(owner):
    """The owner is interrupted while it asks an empty queue, and puts on a full one.

    The signals of each call end some time after it should have given up.
    """
    empty, full = owner.open_channel("queue"), owner.open_channel("queue_of_one")
    full.put(owner, {"tensor": owner.make([228])})
    counts = []

    def measured(channel, seconds_until, limits):
        with interrupted(owner, at_most=INTERRUPTED_AT_MOST) as at_owner:
            taken = channel.use(owner, seconds_until, limits)
        counts.append(at_owner.times)
        return taken

    with judging("FAIL-9", "CHAN-12"):
        check_timeouts(partial(measured, empty, Channel.seconds_until_empty), "empty")
    with judging("FAIL-9", "CHAN-13"):
        check_timeouts(partial(measured, full, Channel.seconds_until_full), "full")
    check(max(counts) > 0, "the owner was interrupted")
    found = full.get(owner)["tensor"].values()
    check.equal(found, [228], "what has had room arrives")


@clause("CHAN-13", vary=("start_method",), channels=("queue",))
@pytest.mark.parametrize("kind", ["queue", "joinable_queue", "queue_of_two"])
def test_queue_tells_how_many_messages_it_has(owner, kind):
    """Owner and child put a message and receive one, and both ask after each step.

    They put as many then as the queue has room for, or more than a pipe takes, and a
    full queue refuses more. Of what is received, something cannot be rebuilt.
    """
    channel, has_bound = owner.open_channel(kind), kind == "queue_of_two"
    child = owner.start_peer(arguments=channel)

    def check_told(expected, sentence):
        found = [channel.use(actor, Channel.size) for actor in (owner, child)]
        check.equal(found, [expected, expected], sentence)

    check_told(0, "it has none")
    for number, actor in enumerate((owner, child), 1):
        channel.put(actor, {"tensor": actor.make([224])})
        check_told(number, "it has what was put")
    if has_bound:
        for refuser in (owner, child):
            for _ in refused_tensors(refuser, channel, 0):
                check_told(2, "it has what had room")
    for left, actor in ((1, owner), (0, child)):
        check.equal(channel.get(actor)["tensor"].values(), [224], "one is received")
        check_told(left, "it has what is left")
    channel.put(owner, owner.run(unreceivable, "ValueError"))
    check_told(1, "it has what cannot be rebuilt")
    with refusal("receiving raises the exception of the object"):
        channel.get(child)
    check_told(0, "and has it no more when it was received")
    if not has_bound:
        sizes = [len(LONG_TEXT)] * MANY_MESSAGES
        owner.run(put_messages_of_sizes, channel, None, sizes)
        check_told(MANY_MESSAGES, "it has all that was put")
        wrong = child.run(get_messages_of_sizes, channel, None, sizes)
        check.equal(wrong, [], "the sizes of what arrives otherwise")
        check_told(0, "all is received")


SUBMIT_METHODS = (
    *("apply", "apply_async", "map", "map in chunks", "map_async", "starmap"),
    *("imap", "imap in chunks", "imap_unordered", "starmap_async"),
    *("apply by name", "apply_async by name"),
)
"""The methods of a pool by which a program submits tasks."""


@clause("CHAN-1", "CHAN-2", prefers="fork")
def test_tasks_are_shared_however_they_are_submitted(owner, peer):
    """Two workers get five tasks in each way, in which tensors are nested; some twice.

    After each way a task raises, and the next one is done as ever.
    """
    received = peer.send(peer.make([0, 5]), owner)
    with pool_in(owner, 2) as pool:
        for number, way in enumerate(SUBMIT_METHODS):
            own = [owner.make([10 * number + n, 3]) for n in range(3)]
            again = {"at": 1, "again": own[0]}
            payloads = [own[0], {"deep": [own[1]]}, own[2], (received,), again]
            results = pool.actor.run(add_in_tasks, pool.remote, way, payloads)
            check.equal(len(results), len(payloads), f"each has a result ({way})")
            expected = [[10 * number + n + 1, 3 + (n == 0)] for n in range(3)]
            found = [tensor.values() for tensor in own]
            check.equal(found, expected, f"the owner reads the writes ({way})")
            check.equal(received.read(0), number + 1, "also to what came from the peer")
            there = [results[0], results[1]["deep"][0], results[2]]
            there.append(results[4]["again"])
            for tensor, result in zip([*own, own[0]], there, strict=True):
                check_shared_memory(result, tensor)
            with refusal("a task that raises does so where it was submitted"):
                pool.actor.run(add_in_tasks, pool.remote, way, [None])


@clause("START-6", vary=("start_method",), several_strategies=True, isolated=True)
def test_worker_of_a_pool_starts_with_the_strategy_of_its_parent(stage):
    """The owner opens pools under each strategy; each worker says which it has."""
    with stage.fresh() as fresh:
        for name in several_strategies(fresh.owner):
            with (
                strategy_set(fresh.owner, name),
                pool_in(fresh.owner, kind="bare") as pool,
            ):
                found = pool.actor.run(strategy_in_pool, pool.remote)
            check.equal(found, name, "the worker has the strategy of its parent")


OFFSETS = (-17, -16, -9, -8, -1, 0, 1)
"""Offsets in bytes from a power of two. A limit may be there, or a header before it."""

POWERS = [1 << power for power in range(5, 22)]

SIZE_SWEEP = list(range(0, 66_000, 7))
"""Sizes in bytes.

A limit of the implementation need not be near a power of two. The step is shorter than
most headers.
"""

FORMS = (
    *("bytes", "bytearray", "memoryview", "large items", "array"),
    *("from an offset", "a part"),
)
"""The forms in which a program passes bytes to `send_bytes`."""


@clause("CHAN-11", prefers="fork")
def test_bytes_of_every_size_and_form_arrive_whole(owner):
    """A child receives bytes of sizes about each power of two, and of each form.

    It says now and then how many it takes at most, and they are never more.
    """
    channel = owner.open_channel("pipe")
    child = owner.start_peer(arguments=channel)
    sizes = sorted({0, *(power + step for power in POWERS for step in OFFSETS)})
    for number, form in enumerate(FORMS):
        some = [0, *sizes[number : 60 : len(FORMS)], 65_536]
        part = sizes if form == "bytes" else some
        waiting = child.start(get_bytes_of_sizes, channel, part)
        owner.run(put_bytes_of_sizes, channel, part, form)
        check.equal(waiting.answer(), [], f"the sizes that arrive otherwise ({form})")
    waiting = child.start(get_bytes_of_sizes, channel, SIZE_SWEEP)
    owner.run(put_bytes_of_sizes, channel, SIZE_SWEEP, "bytes")
    check.equal(waiting.answer(), [], "of many sizes, those that arrive otherwise")


@clause("CHAN-11", prefers="fork")
def test_bytes_arrive_whole_in_both_directions_of_a_pipe(owner):
    """A child receives bytes of each size on a two-way pipe, and sends as many back."""
    channel = owner.open_channel("duplex_pipe")
    child = owner.start_peer(arguments=channel)
    sizes = list(MESSAGE_SIZES)
    for sender, receiver, back in ((owner, child, False), (child, owner, True)):
        waiting = receiver.start(get_bytes_of_sizes, channel, sizes, back)
        sender.run(put_bytes_of_sizes, channel, sizes, "bytes", back)
        told = f"the sizes of what {receiver.name} receives otherwise"
        check.equal(waiting.answer(), [], told)


PICKLE_OVERHEAD = 48
"""The maximum number of bytes that pickle adds to the bytes in a list."""

SIZE_LIMITS = (4096, 1 << 15, 1 << 16, 1 << 18, 1 << 20)


@clause("CHAN-4", "CHAN-6", prefers="fork")
def test_messages_of_every_size_about_a_limit_arrive_whole(
    owner, channel, implementation
):
    """A child gets messages of each size below each of some powers of two, and others.

    What pickling adds is not known here, so each size is sent that it could make full.
    """
    own = owner.open_channel(channel)
    child = owner.start_peer(arguments=own)
    for limit in SIZE_LIMITS:
        sizes = list(range(limit - PICKLE_OVERHEAD, limit + 3))
        waiting = child.start(get_messages_of_sizes, own, None, sizes)
        owner.run(put_messages_of_sizes, own, None, sizes)
        check.equal(waiting.answer(), [], "the sizes that arrive otherwise")
    waiting = child.start(get_messages_of_sizes, own, None, SIZE_SWEEP)
    owner.run(put_messages_of_sizes, own, None, SIZE_SWEEP)
    check.equal(waiting.answer(), [], "of many sizes, those that arrive otherwise")


PICKLE_OVERHEAD_WITH_TENSOR = 450
"""The same if the list also contains a tensor."""


@clause("CHAN-4", "CHAN-6", "SHARE-3", prefers="fork")
def test_messages_of_every_size_with_a_tensor_arrive_whole(owner, implementation):
    """The same with a tensor in each message, below two of the limits."""
    own = owner.open_channel(implementation.channels[0])
    child = owner.start_peer(arguments=own)
    tensor = owner.make([231, 232])
    for limit in SIZE_LIMITS[1:3]:
        sizes = list(range(limit - PICKLE_OVERHEAD_WITH_TENSOR, limit + 3))
        waiting = child.start(get_messages_of_sizes, own, [231, 232], sizes)
        owner.run(put_messages_of_sizes, own, tensor, sizes)
        check.equal(waiting.answer(), [], "the sizes that arrive otherwise")


LONG_SIZES = 10 * [100_000, 300_000, 70_000, 3]
"""Sizes of so many and so long messages that no pipe takes them all."""


@clause("CHAN-4", "CHAN-6", "SHARE-3", prefers="fork")
def test_long_messages_with_a_tensor_wait_for_a_late_receiver(owner, channel):
    """A child begins to get messages when it can see that the owner is writing them."""
    own = owner.open_channel(channel)
    child = owner.start_peer(arguments=own)
    tensor = owner.make([233, 234])
    writing = owner.start(put_messages_of_sizes, own, tensor, LONG_SIZES)
    began = lambda: own.use(child, Channel.has_message)  # noqa: E731
    eventually(began, "the owner begins to write", owner.deadline)
    wrong = child.run(get_messages_of_sizes, own, [233, 234], LONG_SIZES)
    check.equal(wrong, [], "the sizes that arrive otherwise")
    writing.answer()


TEXTS = [f"text {number}" for number in range(60)]
"""Texts, more of them than the pipe of a queue may take."""


@clause("LIFE-5", forks=True, prefers="forkserver")
def test_fork_of_a_process_uses_the_channels_that_it_received(owner, channel):
    """A child gets two channels, and a fork of it sends on what comes on one of them.

    The child has put texts on the other one itself. A queue has a thread then, which
    the fork does not have.
    """
    texts = TEXTS if channel in QUEUES_THAT_FILL else TEXTS[:1]
    there, back = (owner.open_channel(channel) for _ in range(2))
    child = owner.start_peer(arguments=[there, back])
    for text in texts:
        back.put(child, text)
    tensor = owner.make([235, 236])
    forked = child.start(pass_on_in_a_fork, there, back)
    there.put(owner, tensor)
    arrived = [back.get(owner) for _ in [*texts, tensor]]
    told = [one for one in arrived if isinstance(one, str)]
    check.equal(told, texts, "each text arrives once")
    (returned,) = (one for one in arrived if not isinstance(one, str))
    check.equal(returned.values(), [236, 236], "it has the fork's write")
    check_shared_memory(tensor, returned)
    there.put(owner, "end")
    check.equal(forked.answer(), 0, "the fork ends normally")


BOUNDED_GETS: list[Arguments] = [
    {},
    {"block": False},
    {"timeout": 0},
    {"timeout": 0.0},
    {"timeout": -1},
    {"timeout": 1e-9},
    {"block": False, "timeout": 1000},
    {"block": True, "timeout": 0.01},
    [False],
    [False, 1000],
    [True, 0.01],
]
"""Arguments of `get` that limit its waiting. The first stands for `get_nowait`."""


@clause("CHAN-12", "CHAN-4", prefers="fork", channels=("queue",))
@pytest.mark.parametrize("kind", ["queue", "joinable_queue", "queue_of_two"])
def test_queue_that_is_asked_gives_what_is_there_or_says_that_it_is_empty(owner, kind):
    """Owner, child and threads of both ask a queue that is empty, and one that is not.

    It is empty before anything was put, and again whenever all has been received.
    """
    channel = owner.open_channel(kind)
    child = owner.start_peer(arguments=channel)
    for number, how in enumerate([*BOUNDED_GETS, {"timeout": 1000}]):
        reader, writer = (owner, child)[:: 1 if number % 2 else -1]
        may_wait = how == {"timeout": 1000}
        if not may_wait:
            check.equal(reader.run(try_get, channel, how), [], f"it is empty ({how})")
        channel.put(writer, {"tensor": writer.make([number, 241])})
        there = lambda actor=reader: channel.use(actor, Channel.has_message)  # noqa: E731
        eventually(there, "the message can be received", reader.deadline)
        if number % 3:
            found = reader.run(try_get, channel, how)
        else:
            found = reader.run(in_a_thread, try_get, channel, how)
        check.equal(len(found), 1, f"what is there is received ({how})")
        check.equal(found[0]["tensor"].values(), [number, 241], "with its values")
        if not may_wait:
            check.equal(
                reader.run(try_get, channel, how), [], f"it is empty again ({how})"
            )


BOUNDED_QUEUES = ("queue_of_one", "queue_of_two", "joinable_queue_of_three")


@clause("GRAD-6", "LIFE-18", prefers="fork", channels=("queue",))
def test_message_that_is_refused_takes_no_place_and_counts_as_no_task(owner):
    """A child offers bounded queues what they have no room for, in several ways.

    It puts what cannot be pickled as well. As many messages as ever have room then, and
    who joins a queue waits for those alone.
    """
    channels = [owner.open_channel(kind) for kind in BOUNDED_QUEUES]
    child = owner.start_peer(arguments=channels)
    bad = child.run(unpicklable)
    for bound, channel in enumerate(channels, 1):
        unseen = 0
        for turn in range(3):
            _, refused = attempt(
                lambda c=channel: c.put(child, [child.make([1, 2]), bad])
            )
            unseen += refused is None
            for number in range(bound):
                channel.put(child, child.make([turn, number]))
            for more in refused_tensors(child, channel, turn):
                check.equal(more.values(), [turn, 90], "what is refused has its values")
            for number in range(bound):
                found = channel.get(owner).values()
                check.equal(found, [turn, number], "what had room arrives, in order")
            check.equal(channel.get_within(owner, 0), [], "and nothing else")
        if "joinable" in BOUNDED_QUEUES[bound - 1]:
            for _ in range(3 * bound):
                channel.use(owner, Channel.task_done)
            if not unseen:  # otherwise `put` accepted messages that never arrive
                channel.use(child, Channel.join)


@clause(*("CHAN-8", "LIFE-7"), prefers="fork", channels=("queue",), mainly="LIFE-7")
def test_put_that_a_full_queue_refuses_counts_no_task_and_leaves_nothing(owner, stage):
    """A child fills bounded queues and offers more, in several ways, again and again.

    Who joins a queue waits for what it has taken alone, and nothing stays of the rest.
    """
    channels = [owner.open_channel(kind) for kind in BOUNDED_QUEUES]
    child = owner.start_peer(arguments=channels)
    check_full_queues_refuse(child, owner, channels, 0)
    before = stage.holdings(owner, child)  # includes what the queues need themselves
    for turn in (1, 2):
        check_full_queues_refuse(child, owner, channels, turn)
    stage.check_released(before, owner, child)


def check_full_queues_refuse(sender, receiver, channels, turn):
    """Fill each of the `BOUNDED_QUEUES`, check that it refuses more, and empty it."""
    for bound, channel in enumerate(channels, 1):
        for number in range(bound):
            put_and_drop(sender, channel, [turn, number])
        for more in refused_tensors(sender, channel, turn):
            more.drop()
        for number in range(bound):
            arrived = channel.get(receiver)
            check.equal(arrived.values(), [turn, number], "what had room arrives")
            arrived.drop()
        if "joinable" in BOUNDED_QUEUES[bound - 1]:
            for _ in range(bound):
                channel.use(receiver, Channel.task_done)
            with judging("CHAN-8"):
                channel.use(sender, Channel.join)


def refused_tensors(sender, channel, turn):
    """Yield new tensors that a full queue refused, each with other arguments."""
    for limits in ({}, {"block": False}, {"timeout": 0}, [False], [True, 0.01]):
        more = sender.make([turn, 90])
        taken = sender.run(offer, channel, more, limits)
        check.equal(taken, False, f"it has room for no more ({limits})")
        yield more


def put_and_drop(sender, channel, values):
    """Make the sender put a new tensor and drop it."""
    tensor = sender.make(values)
    channel.put(sender, tensor)
    tensor.drop()


@clause("LIFE-19", "CHAN-8", prefers="fork", channels=("queue",))
def test_message_that_cannot_be_rebuilt_gives_its_place_back(owner):
    """A child gets messages from bounded queues, of which every second one raises."""
    channels = [owner.open_channel(kind) for kind in BOUNDED_QUEUES]
    child = owner.start_peer(arguments=channels)
    bad = owner.run(unreceivable, "ValueError")
    for channel, kind in zip(channels, BOUNDED_QUEUES, strict=True):
        for turn in range(4):
            channel.put(owner, [owner.make([turn]), bad, owner.make([turn, 2])])
            with refusal("receiving raises the exception of the object"):
                channel.get(child)
            channel.put(owner, owner.make([turn, 251]))
            arrived = channel.get(child)
            check.equal(arrived.values(), [turn, 251], "the next message arrives")
            if "joinable" in kind:
                channel.use(child, Channel.task_done)
                channel.use(child, Channel.task_done)
        if "joinable" in kind:
            channel.use(owner, Channel.join)
            channel.use(owner, Channel.join)


@clause("CHAN-8", prefers="fork")
def test_joinable_queue_is_joined_again_and_again(owner):
    """Owner and child join a queue on which nothing was put, and after each tasks.

    Who joins waits for the last task, be it put while it waits.
    """
    channel = owner.open_channel("joinable_queue")
    child = owner.start_peer(arguments=channel)
    for actor in (owner, child):
        channel.use(actor, Channel.join)
    for turn in range(3):
        for number in range(turn + 1):
            channel.put(owner, owner.make([turn, number]))
        waiting = channel.using(child, Channel.join)
        eventually(waiting.is_waiting, "the child waits", child.deadline)
        channel.put(owner, owner.make([turn, turn + 1]))
        for number in range(turn + 2):
            check.equal(waiting.has_answered(), False, "it waits for the last task")
            found = channel.get(owner).values()
            check.equal(found, [turn, number], "each message arrives")
            channel.use(owner, Channel.task_done)
        waiting.answer()
        channel.use(owner, Channel.join)


PUTTING_THREADS, PUTS_PER_THREAD = 4, 80
"""How many threads of each process put, and how often: if they race, some miscount."""


@clause("CHAN-8", vary=(), prefers="fork", starts=True)
def test_each_task_counts_when_threads_and_processes_put_at_once(owner):
    """Threads of the owner and of a child put on a joinable queue; another child gets.

    It says of all messages but one that they are done. Who joins waits for that one.
    """
    channel = owner.open_channel("joinable_queue")
    putter, getter = (owner.start_peer(arguments=channel) for _ in range(2))
    many = (channel, PUTTING_THREADS, PUTS_PER_THREAD)
    tasks = 2 * PUTTING_THREADS * PUTS_PER_THREAD
    wait_for_all(
        owner.start(put_from_threads, *many),
        putter.start(put_from_threads, *many),
        getter.start(get_in_threads, channel, 1, tasks),
    )
    getter.run(finish_tasks, channel, tasks - 1)
    waiting = channel.using(putter, Channel.join)
    eventually(waiting.is_waiting, "who joins waits", putter.deadline)
    check.equal(waiting.has_answered(), False, "it waits for the last task")
    channel.use(getter, Channel.task_done)
    waiting.answer()
