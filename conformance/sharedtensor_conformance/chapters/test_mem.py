"""Chapter MEM: which writes a process is certain to see.

The processes of a test write and read in turn in many rounds, without remote calls in
between. So a test finds a write that becomes visible a few microseconds too late.
"""

from sharedtensor_conformance.chapters.mem_actions import (
    add_under_a_lock,
    make_lock,
    make_turns,
    read_while_written,
    take_turns,
    write_and_end,
    write_in_turn_by_messages,
    write_while_read,
)
from sharedtensor_conformance.chapters.shared_steps import (
    unthreaded_channel,
    wait_for_all,
)
from sharedtensor_conformance.harness import check, clause

ROUNDS = 100
WRITES = 5_000
HALVES_DIFFER = [0x0101010101010101, 0x7E7E7E7E7E7E7E7E]
"""Two values that differ in each byte, so every mixture of them is a third value."""

PRIMITIVES = (
    *("lock", "semaphore", "bounded semaphore"),
    *("event", "condition", "barrier"),
)
LOCKS = ("Lock", "RLock")
WAYS_TO_END = ("by returning", "by os._exit", "by SIGTERM", "by SIGKILL")


def share_with_all(actors):
    """Make as many tensors as there are actors, and share them with all actors.

    Returns:
        A list for each actor, with all tensors.
    """
    first, *others = actors
    made = [first.make([0, 0, 0, 0]) for _ in actors]
    return [made, *(first.send(made, other) for other in others)]


def write_in_turn(actors, channel):
    """Make actors write in turn, ordered by messages; check what each reads.

    The messages go from each actor to the next one, and from the last to the first.
    """
    names = [actor.name for actor in actors]
    tensors = share_with_all(actors)
    pending = [
        actor.start(write_in_turn_by_messages, names, channel, own, ROUNDS)
        for actor, own in zip(actors, tensors, strict=True)
    ]
    for actor, wrong in zip(actors, wait_for_all(*pending), strict=True):
        check.equal(wrong, [], f"{actor.name} reads what was written before")


@clause("MEM-1", vary=("strategy", "start_method"))
def test_what_was_written_before_a_message_is_read(sender, receiver, channel):
    """Two processes write to a tensor each in turn; empty messages go to and fro."""
    write_in_turn([sender, receiver], channel)


@clause("MEM-1")
def test_later_message_orders_a_write_to_what_is_in_flight(sender, receiver, channel):
    """The sender puts a tensor, writes, and puts a number; both are then received."""
    for number in range(3):
        tensor = sender.make([1, 2, 3])
        sender.put(tensor, receiver, channel)
        tensor.write(1, 20 + number)
        sender.put(number, receiver, channel)
        arrived = receiver.get(sender, channel)
        check.equal(receiver.get(sender, channel), number, "the number arrives")
        check.equal(arrived.values(), [1, 20 + number, 3], "the write is read")


@clause("MEM-2", vary=("strategy", "start_method"))
def test_order_by_messages_holds_through_another_process(
    owner, peer, bystander, channel
):
    """Three processes write to a tensor each; empty messages go round the circle."""
    write_in_turn([owner, peer, bystander], channel)


@clause("MEM-3", isolated=True)
def test_what_a_process_wrote_before_it_ended_is_read_after_join(stage):
    """A child writes to the owner's tensor and ends at once; the owner joins it."""
    with stage.fresh() as fresh:
        tensor = fresh.owner.make([0, 0, 0, 0])
        for number, how in enumerate(WAYS_TO_END):
            child = fresh.owner.start_peer()
            arrived = fresh.owner.send(tensor, child)
            child.run_to_end(write_and_end, arrived, 30 + number, how)
            check.equal(tensor.values(), [30 + number] * 4, f"it ended {how}")


@clause("MEM-4", isolated=True, vary=("strategy", "start_method"))
def test_primitives_order_writes(stage, start_method):
    """Owner and a child write to a tensor each in turn, by each of the primitives."""
    with stage.fresh() as fresh:  # the standard library keeps the memory of a barrier
        owner = fresh.owner
        made = [owner.run(make_turns, p, start_method) for p in PRIMITIVES]
        child = owner.start_peer(arguments=made)
        received = child.arguments
        for primitive, own, its in zip(PRIMITIVES, made, received, strict=True):
            write_in_turn_by(primitive, (owner, child), (own, its))


def write_in_turn_by(primitive, actors, turns):
    """Make two actors write in turn, ordered by a primitive; check what each reads.

    `turns` has the synchronization object of each actor.
    """
    tensors = share_with_all(actors)
    pending = [
        actor.start(take_turns, turns[place], place, tensors[place], ROUNDS)
        for place, actor in enumerate(actors)
    ]
    for actor, wrong in zip(actors, wait_for_all(*pending), strict=True):
        read = f"{actor.name} reads what was written before the {primitive}"
        check.equal(wrong, [], read)


@clause("MEM-4", vary=("strategy", "start_method"))
def test_no_update_under_a_lock_is_lost(owner, start_method):
    """Owner and a child add to one element at once, each time under a lock."""
    locks = [owner.run(make_lock, k, start_method) for k in LOCKS]
    child = owner.start_peer(arguments=locks)
    for own, its in zip(locks, child.arguments, strict=True):
        tensor = owner.make([0, 0])
        arrived = owner.send(tensor, child)
        wait_for_all(
            owner.start(add_under_a_lock, own, tensor, ROUNDS),
            child.start(add_under_a_lock, its, arrived, ROUNDS),
        )
        check.equal(tensor.values(), [2 * ROUNDS, 0], "each update is there")


@clause("MEM-5", dtypes=("int64",), vary=("strategy", "start_method"))
def test_element_that_is_written_meanwhile_is_read_whole(sender, receiver, stage):
    """The sender writes two values by turns; the receiver reads until it is done."""
    channel = unthreaded_channel(stage)
    tensor = sender.make(HALVES_DIFFER[:1], dtype="int64")
    arrived = sender.send(tensor, receiver, channel)
    written = HALVES_DIFFER, WRITES, receiver.name, channel
    _, found = wait_for_all(
        sender.start(write_while_read, tensor, *written),
        receiver.start(read_while_written, arrived, sender.name, channel),
    )
    check(set(found) <= set(HALVES_DIFFER), f"each value was written: {found[:5]}")
