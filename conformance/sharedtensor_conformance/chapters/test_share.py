"""Chapter SHARE: all processes that have a sent storage use the same memory."""

from functools import partial
from math import prod

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.chapters.bundle_checks import (
    check_bundles_private,
    check_same_values,
    make_bundle,
    make_bundle_with_grads,
)
from sharedtensor_conformance.chapters.exhaustion_actions import free_memory
from sharedtensor_conformance.chapters.extremes import extremes_of
from sharedtensor_conformance.chapters.message_actions import pickles_when_pickled
from sharedtensor_conformance.chapters.record_actions import (
    RECORDS,
    describe_record,
    make_record,
)
from sharedtensor_conformance.chapters.shared_steps import (
    LENGTHS,
    check_no_growth,
    check_private_memory,
    check_shared_memory,
    holdings_of,
    judging,
    unthreaded_channel,
)
from sharedtensor_conformance.chapters.tensor_actions import (
    deep_copy,
    make_large,
    make_long,
    pickled,
    read_array,
    shallow_copy,
    unpickled,
    write_array,
)
from sharedtensor_conformance.harness import attempt, check, clause, refusal
from sharedtensor_conformance.harness.case.axes import (
    LAYOUTS,
    layouts_of,
)
from sharedtensor_conformance.harness.case.outcomes import NotRun
from sharedtensor_conformance.report.verdicts import Need


@clause("SHARE-1", vary=("strategy", "start_method"))
def test_receiver_sees_what_the_sender_writes_after_the_send(sender, receiver, channel):
    """The sender writes twice after the receive; the receiver reads each write."""
    tensor = sender.make([1, 2, 3, 4])
    arrived = sender.send(tensor, receiver, channel)
    tensor.write(1, 40)
    check.equal(arrived.values(), [1, 40, 3, 4], "the receiver reads the write")
    tensor.write(3, 50)
    check.equal(arrived.values(), [1, 40, 3, 50], "and the second one")


@clause("SHARE-1")
def test_receiver_sees_what_is_written_to_later_tensors(sender, receiver):
    """The sender sends three tensors, one after another, and writes to each."""
    for number in range(3):
        tensor = sender.make([10 * number + 1, 10 * number + 2])
        arrived = sender.send(tensor, receiver)
        tensor.write(0, 77)
        check.equal(arrived.values(), [77, 10 * number + 2], "the write is read")


@clause("SHARE-2", vary=("strategy", "start_method"))
def test_sender_sees_what_the_receiver_writes(sender, receiver, channel):
    """The receiver writes twice; the sender reads each write."""
    tensor = sender.make([5, 6, 7, 8])
    arrived = sender.send(tensor, receiver, channel)
    arrived.write(2, 70)
    check.equal(tensor.values(), [5, 6, 70, 8], "the sender reads the write")
    arrived.write(0, 90)
    check.equal(tensor.values(), [90, 6, 70, 8], "and the second one")


@clause("SHARE-2")
def test_sender_sees_what_is_written_to_later_tensors(sender, receiver):
    """The receiver gets three tensors, one after another, and writes to each."""
    for number in range(3):
        tensor = sender.make([10 * number + 3, 10 * number + 4])
        arrived = sender.send(tensor, receiver)
        arrived.write(1, 78)
        check.equal(tensor.values(), [10 * number + 3, 78], "the write is read")


@clause("SHARE-3", dtypes=("float64", "int32"), vary=("strategy", "start_method"))
def test_receiver_finds_values_shape_and_dtype(sender, receiver, channel):
    """The sender sends two tensors of different shapes; the receiver reads them."""
    row = sender.make([1.5, -2.25, 3.125], dtype="float64")
    grid = sender.make([1, 2, 3, 4, 5, 6], shape=(3, 2), dtype="int32")
    for tensor in (row, grid):
        arrived = sender.send(tensor, receiver, channel)
        check.equal(arrived.values(), tensor.values(), "the values are the sender's")
        check.equal(arrived.shape(), tensor.shape(), "the shape is the sender's")
        check.equal(arrived.dtype(), tensor.dtype(), "the dtype is the sender's")
    check.equal(arrived.values(), [1, 2, 3, 4, 5, 6], "the values are those made")


@clause("SHARE-3")
def test_receiver_finds_what_was_written_just_before_the_send(sender, receiver):
    """The sender writes between two sends of one tensor; both find what was there."""
    tensor = sender.make([4, 5, 6])
    tensor.write(1, 55)
    arrived = sender.send(tensor, receiver)
    check.equal(arrived.values(), [4, 55, 6], "the first write is there")
    tensor.write(2, 66)
    again = sender.send(tensor, receiver)
    check.equal(again.values(), [4, 55, 66], "and so is the second, later")


@clause("SHARE-3", dtypes=("uint8",))
def test_tensor_of_odd_size_over_several_pages_arrives_whole(sender, receiver):
    """The sender sends 9001 bytes, a length that is no multiple of a page."""
    values = [(7 * number + number // 256) % 251 for number in range(9001)]
    tensor = sender.make(values, dtype="uint8")
    arrived = sender.send(tensor, receiver)
    check.equal(arrived.values(), values, "every element arrives, to the last")


LARGE_SIZES = ((1 << 32) + 4105, (1 << 31) + 4105)
"""Sizes in bytes that do not fit into 32 bits, or into 31; the first is preferred."""


def largest_that_fits(actor):
    """Return the first of `LARGE_SIZES` for which the machine has room, and to spare.

    Raises:
        NotRun: it has room for none of them.
    """
    free = actor.run(free_memory)
    for size in LARGE_SIZES:
        if free > 2 * size:
            return size
    raise NotRun(f"{free >> 20} MiB of memory are free", Need.MEMORY)


@clause(
    "SHARE-12",
    profiles=("resize", "views"),
    dtypes=("uint8",),
    isolated=True,
    large=True,
    vary=(),
)
def test_tensor_of_more_than_four_gib_arrives_whole(stage):
    """The owner sends it to the peer, and a view of its end to the bystander.

    Peer and owner write to places on both sides of 2 and 4 GiB. Then the peer sends
    such a view back.
    """
    with stage.fresh() as fresh:
        owner, peer, bystander = fresh.owner, fresh.peer, fresh.bystander
        small = owner.make([1, 2])
        check_shared_memory(small, owner.send(small, peer))  # not copied: that is large
        size = largest_that_fits(owner)
        large = owner.run(make_large, size)
        edges = {edge for edge in (1 << 31, 1 << 32) if edge < size}
        places = sorted({0, size - 1} | edges | {edge - 1 for edge in edges})
        for number, place in enumerate(places):
            large.write(place, number)
        # A thread that moves it would have only as long as the receiver may wait.
        arrived = owner.send(large, peer, unthreaded_channel(fresh))
        check.equal(arrived.shape(), (size,), "the shape is the sender's")
        for number, place in enumerate(places):
            said = f"of {size} bytes, at {place}"
            check.equal(arrived.read(place), number, f"it has its value ({said})")
            arrived.write(place, 50 + number)
            sentence = f"the sender reads the write ({said})"
            check.equal(large.read(place), 50 + number, sentence)
            large.write(place, 100 + number)
            sentence = f"the receiver reads the write ({said})"
            check.equal(arrived.read(place), 100 + number, sentence)
        layout = Layout("at the end", size - 3, (3,), (1,))
        view = owner.view(large, layout)
        there = owner.send(view, bystander)
        back = peer.send(peer.view(arrived, layout), owner)
        check_shared_memory(view, there, back)
        check.equal(large.read(size - 1), view.read(2), "it is the end")


@clause("SHARE-3")
def test_tensor_of_many_dimensions_arrives_as_it_was(sender, receiver, channel):
    """The sender sends tensors of four, five and eight dimensions."""
    for count in (4, 5, 8):
        shape = (2, 3, *[1, 2] * count)[:count]
        tensor = sender.make(list(range(prod(shape))), shape=shape)
        arrived = sender.send(tensor, receiver, channel)
        check.equal(arrived.shape(), shape, "the shape is the sender's")
        check.equal(arrived.values(), list(range(prod(shape))), "and so are the values")


@clause("SHARE-4", vary=("strategy", "start_method"))
def test_three_processes_share_one_memory(sender, receiver, bystander, channel):
    """The sender sends one tensor to both others; all three write in turn."""
    tensor = sender.make([2, 4, 6, 8])
    first = sender.send(tensor, receiver, channel)
    second = sender.send(tensor, bystander, channel)
    check_shared_memory(tensor, first, second)


@clause("SHARE-5")
def test_sharing_a_tensor_says_so(sender):
    """A process makes two tensors and shares one."""
    tensor, other = sender.make([3, 5, 7]), sender.make([4, 6, 8])
    check.equal(tensor.is_shared(), False, "a new tensor is not shared")
    tensor.share()
    check.equal(tensor.is_shared(), True, "it is shared once the call has returned")
    check.equal(other.is_shared(), False, "the other tensor is not")


@clause("SHARE-5")
def test_sharing_a_tensor_returns_the_tensor(sender):
    """A process shares a tensor twice and looks at what each call returns."""
    tensor = sender.make([9, 11, 13])
    for call in ("first", "second"):
        returned = tensor.share()
        check(returned is not None, f"the {call} call returns something")
        check(returned.same_object_as(tensor), f"the {call} call returns the tensor")


@clause("SHARE-5")
def test_sharing_a_tensor_of_any_shape_says_so(sender):
    """A process shares tensors of no dimensions, of one element and of none."""
    for shape in ((), (1,), (1, 1), (0,), (3, 0, 2)):
        tensor = sender.make([7] * prod(shape), shape=shape)
        check.equal(tensor.is_shared(), False, f"a new tensor {shape} is not shared")
        returned = tensor.share()
        check.equal(tensor.is_shared(), True, "it is shared when the call has returned")
        check(returned.same_object_as(tensor), "which returns the tensor")


@clause("SHARE-5", profiles=("views",))
def test_sharing_a_view_shares_its_storage_though_it_may_be_empty(sender, receiver):
    """A process shares views of one element and of none; the base is sent then."""
    for number, count in enumerate((1, 0)):
        for offset in (0, 2, 4 - count):
            base = sender.make([number, 2, 3, offset])
            view = sender.view(base, Layout("window", offset, (count,), (1,)))
            check.equal(view.is_shared(), False, "a view of a new tensor is not shared")
            view.share()
            check.equal(view.is_shared(), True, "the view is shared after the call")
            check.equal(base.is_shared(), True, "and so is the base: it is one storage")
            arrived = sender.send(base, receiver)
            check.equal(arrived.values(), [number, 2, 3, offset], "it is sent as ever")


@clause("SHARE-6")
def test_tensor_that_was_sent_is_shared_on_both_sides(sender, receiver, channel):
    """Sender and receiver ask the tensor whether it is shared after the receive."""
    tensor = sender.make([14, 15, 16])
    arrived = sender.send(tensor, receiver, channel)
    check.equal(tensor.is_shared(), True, "the sender's tensor is shared")
    check.equal(arrived.is_shared(), True, "the receiver's tensor is shared")


@clause("SHARE-6")
def test_tensor_of_any_shape_that_was_sent_is_shared_on_both_sides(
    sender, receiver, channel
):
    """The sender sends tensors of several shapes, the last ones without elements."""
    for shape in ((), (1,), (2, 3), (0,), (3, 0, 2)):
        tensor = sender.make([7] * prod(shape), shape=shape)
        arrived = sender.send(tensor, receiver, channel)
        check.equal(tensor.is_shared(), True, f"the sender's {shape} is shared")
        check.equal(arrived.is_shared(), True, f"the receiver's {shape} is shared")


@clause("SHARE-7", vary=())
def test_sharing_changes_neither_values_shape_nor_dtype(owner, dtype):
    """The owner shares a tensor of two dimensions and reads it again."""
    values = extremes_of(dtype)[:4]
    tensor = owner.make(values, shape=(2, 2), dtype=dtype)
    before = repr(tensor.values())
    tensor.share()
    check.equal(repr(tensor.values()), before, "the values are as they were")
    check.equal(tensor.shape(), (2, 2), "the shape is as it was")
    check.equal(tensor.dtype(), dtype, "the dtype is as it was")


@clause("SHARE-7", profiles=("views",))
def test_sharing_a_view_changes_neither_its_window_nor_its_base(owner, layout):
    """A process shares a view and writes through it; base and view still agree."""
    base = owner.make(list(range(100, 124)))
    view = owner.view(base, layout)
    values, shape, strides = view.values(), view.shape(), view.strides()
    view.share()
    check.equal(view.values(), values, "the values are as they were")
    check.equal(view.shape(), shape, "the shape is as it was")
    check.equal(view.strides(), strides, "the strides are as they were")
    check.equal(base.values(), list(range(100, 124)), "the base is as it was")
    view.write((0,) * len(shape), 7)
    check.equal(base.read(layout.offset), 7, "the offset is as it was")


@clause("SHARE-8", may_corrupt=True, profiles=("share",))
def test_growing_a_shared_tensor_is_refused_and_changes_nothing(sender):
    """A process shares a tensor and asks for more elements than there are."""
    tensor = sender.make([17, 18, 19, 20])
    tensor.share()
    for count in (5, 100_000):
        with refusal("growing the tensor is refused"):
            tensor.resize(count)
        check.equal(tensor.values(), [17, 18, 19, 20], "the values are as before")
        check.equal(tensor.shape(), (4,), "the shape is as before")
        check.equal(tensor.is_shared(), True, "it is shared as before")


@clause("SHARE-8", may_corrupt=True)
def test_growing_a_sent_tensor_is_refused_on_both_sides(sender, receiver):
    """The receiver asks its tensor to grow, then the sender does."""
    tensor = sender.make([27, 28, 29])
    arrived = sender.send(tensor, receiver)
    for asked in (arrived, tensor):
        with refusal("growing the tensor is refused"):
            asked.resize(50_000)
        check.equal(asked.values(), tensor.values(), "the values are as before")
        check.equal(asked.shape(), (3,), "the shape is as before")
        check_shared_memory(tensor, arrived)


@clause("SHARE-8", may_corrupt=True, profiles=("share", "views"))
def test_growing_a_view_beyond_the_storage_is_refused(sender):
    """A view asks for as many elements as its base has, though it begins later."""
    base = sender.make(list(range(24)))
    view = sender.view(base, LAYOUTS[0])
    base.share()
    for count in (24, 24 - LAYOUTS[0].offset + 1):
        with refusal("growing the view is refused"):
            view.resize(count)
        check.equal(view.shape(), LAYOUTS[0].shape, "the shape is as before")
        check.equal(view.values(), list(range(5, 12)), "the values are as before")
    view.write(6, 111)
    check.equal(base.read(11), 111, "the base reads the view's write")


@clause("SHARE-9", may_corrupt=True)
def test_view_taken_before_the_send_still_aliases_the_tensor(sender, receiver, layout):
    """The sender takes a view, sends the base, and writes through each of the three."""
    base = sender.make(list(range(200, 224)))
    view = sender.view(base, layout)
    arrived = sender.send(base, receiver)
    start = (0,) * len(view.shape())
    for number, writer in enumerate((base, arrived)):
        writer.write(layout.offset, 61 + number)
        check.equal(view.read(start), 61 + number, "the view reads the write")
    view.write(start, 63)
    check.equal(arrived.read(layout.offset), 63, "the receiver reads the view's write")
    check.equal(base.read(layout.offset), 63, "and so does the base")


@clause("SHARE-9", may_corrupt=True)
def test_base_still_aliases_a_view_that_was_sent(sender, receiver):
    """The sender sends a view alone; its base stays over the same memory."""
    layout = next(layout for layout in LAYOUTS if layout.name == "slice")
    base = sender.make(list(range(300, 324)))
    view = sender.view(base, layout)
    arrived = sender.send(view, receiver)
    base.write(layout.offset, 71)
    check.equal(arrived.read(0), 71, "the receiver reads the write to the base")
    arrived.write(0, 72)
    check.equal(base.read(layout.offset), 72, "the base reads the receiver's write")
    check.equal(view.read(0), 72, "and so does the view")


@clause("SHARE-10", may_corrupt=True)
def test_array_over_the_tensor_survives_the_send(sender, receiver, channel):
    """The sender takes an array over a tensor, sends the tensor, and uses the array."""
    tensor = sender.make([31, 32, 33, 34])
    array = tensor.array()
    arrived, refused = attempt(lambda: sender.send(tensor, receiver, channel))
    others = [sender.make([60, 61, 62, 63]) for _ in range(8)]
    check.equal(
        array.actor.run(read_array, array, 2), 33, "the array reads what it read before"
    )
    array.actor.run(write_array, array, 1, 320)
    check.equal(tensor.values(), [31, 320, 33, 34], "the tensor reads its write")
    check.equal(others[-1].values(), [60, 61, 62, 63], "no other tensor is hit")
    if refused is None:
        check.equal(arrived.values(), [31, 320, 33, 34], "and so does the receiver")
        arrived.write(3, 340)
        check.equal(
            array.actor.run(read_array, array, 3),
            340,
            "the array reads the receiver's write",
        )


@clause("SHARE-10", may_corrupt=True, profiles=("share",))
def test_array_over_the_tensor_survives_sharing(sender, receiver):
    """The sender takes an array, shares the tensor, and sends it afterwards."""
    tensor = sender.make([41, 42, 43])
    array = tensor.array()
    _, refused = attempt(tensor.share)
    array.actor.run(write_array, array, 0, 410)
    check.equal(tensor.values(), [410, 42, 43], "the tensor reads the array's write")
    if refused is None:
        arrived = sender.send(tensor, receiver)
        array.actor.run(write_array, array, 2, 430)
        check.equal(arrived.values(), [410, 42, 430], "and so does the receiver")


@clause(
    *("SHARE-10", "LIFE-7"),
    may_corrupt=True,
    profiles=("arrays",),
    mainly="SHARE-10",
)
def test_array_outlives_the_tensor_that_it_was_taken_of(sender, receiver, stage):
    """The receiver takes arrays over what it gets, and drops the tensors.

    Sender and arrays read each other's writes. Then the sender drops its tensors, and
    nothing is left when the arrays are dropped, too.
    """

    def take_arrays(number):
        tensors = [sender.make([number, 42, 43]) for _ in range(3)]
        arrived = sender.send(tensors, receiver)
        arrays = [one.array() for one in arrived]
        for one in arrived:
            one.drop()
        for tensor, array in zip(tensors, arrays, strict=True):
            tensor.write(1, 420)
            found = receiver.run(read_array, array, 1)
            check.equal(found, 420, "the array reads the sender's write")
            receiver.run(write_array, array, 2, 430)
            check.equal(tensor.values(), [number, 420, 430], "and the sender its")
            tensor.drop()
            found = receiver.run(read_array, array, 2)
            check.equal(found, 430, "the array stays when all tensors have gone")
            array.drop()

    take_arrays(41)
    before = holdings_of(stage, sender, receiver)
    take_arrays(44)
    with judging("LIFE-7"):
        check_no_growth(before, stage, sender, receiver)


@clause("SHARE-10", may_corrupt=True, profiles=("share",))
def test_array_over_a_tensor_of_any_size_survives_the_move(sender, receiver):
    """The sender takes arrays, sends tensors or shares them first, and drops them.

    The last element is written through the array while the sender has the tensor, and
    after it has dropped the tensor.
    """
    for length in LENGTHS:
        last = length - 1
        for is_asked in (True, False):
            tensor = sender.run(make_long, length, 5)
            array = tensor.array()
            if is_asked:
                attempt(tensor.share)
            arrived, refused = attempt(partial(sender.send, tensor, receiver))
            array.actor.run(write_array, array, last, 6)
            check.equal(tensor.read(last), 6, f"the tensor reads the write ({length})")
            if refused is None:
                check.equal(arrived.read(last), 6, "and so does the receiver")
                arrived.write(last, 7)
                found = array.actor.run(read_array, array, last)
                check.equal(found, 7, f"the array reads that of the other ({length})")
            before = array.actor.run(read_array, array, last)
            tensor.drop()
            found = array.actor.run(read_array, array, last)
            check.equal(found, before, f"also without the sender's tensor ({length})")
            array.actor.run(write_array, array, last, 8)
            check.equal(
                array.actor.run(read_array, array, last),
                8,
                "the array reads its own write",
            )
            if refused is None:
                found = arrived.read(last)
                check.equal(found, 8, f"the receiver reads that write ({length})")
        for actor in (sender, receiver):
            actor.drop_all()


@clause("SHARE-11")
def test_clone_of_a_shared_tensor_is_private(sender, receiver):
    """Sender and receiver clone one shared tensor; nobody sees writes to a clone."""
    tensor = sender.make([51, 52, 53])
    arrived = sender.send(tensor, receiver)
    for original in (tensor, arrived):
        clone = original.clone()
        check.equal(clone.is_shared(), False, "the clone is not shared")
        check.equal(clone.values(), original.values(), "it has the original's values")
        check_private_memory(original, clone)


@clause("SHARE-11")
def test_clone_of_a_tensor_shared_on_request_is_private(owner):
    """The owner shares a tensor and clones it."""
    tensor = owner.make([54, 55, 56])
    tensor.share()
    clone = tensor.clone()
    check.equal(clone.is_shared(), False, "the clone is not shared")
    check.equal(tensor.is_shared(), True, "the tensor still is")
    check_private_memory(clone, tensor)


@clause("SHARE-11")
def test_clone_of_a_shared_tensor_of_any_size_is_private(sender, receiver):
    """Both sides clone tensors of any size, and write to them after that."""
    for length in LENGTHS:
        last = length - 1
        tensor = sender.run(make_long, length, 5)
        arrived = sender.send(tensor, receiver)
        clones = [tensor.clone(), arrived.clone()]
        for value, writer in enumerate((arrived, tensor), 6):
            writer.write(last, value)
            for clone in clones:
                check.equal(clone.is_shared(), False, "the clone is not shared")
                check.equal(clone.read(last), 5, f"it keeps its value ({length})")
        before = [tensor.read(last), arrived.read(last)]
        for clone in clones:
            clone.write(last, 8)
        after = [tensor.read(last), arrived.read(last)]
        check.equal(after, before, f"the tensors keep theirs ({length})")
        for actor in (sender, receiver):
            actor.drop_all()


@clause("SHARE-3", "SHARE-12", vary=("start_method", "strategy"), isolated=True)
def test_first_tensors_of_new_processes_are_told_apart(stage):
    """Three processes that share nothing yet send their first tensors round."""
    with stage.fresh() as fresh:
        actors = [fresh.owner, fresh.peer, fresh.bystander]
        made = [actor.make([n, 7, 8]) for n, actor in enumerate(actors)]
        for number, actor in enumerate(actors):
            for other in actors[number + 1 :] + actors[:number]:
                arrived = actor.send(made[number], other)
                check.equal(arrived.values(), [number, 7, 8], "each has its own values")
        for number, tensor in enumerate(made):
            tensor.write(1, 20 + number)
        found = [tensor.values() for tensor in made]
        expected = [[number, 20 + number, 8] for number in range(3)]
        check.equal(found, expected, "and none is another's memory")


@clause("SHARE-11", profiles=("views",))
def test_clones_of_shared_views_are_private(sender, receiver, implementation):
    """Both sides clone a view of each layout, and the clones; the base is as it was."""
    dtypes = implementation.dtypes
    for number, layout in enumerate(layouts_of(implementation)):
        dtype = dtypes[number % len(dtypes)]
        values = [bool(n % 2) if dtype == "bool" else n for n in range(24)]
        base = sender.make(values, dtype=dtype)
        view = sender.view(base, layout)
        for original in (view, sender.send(view, receiver)):
            check_clones_private(original, layout, dtype)
            check.equal(base.values(), values, "the base is as it was")


def check_clones_private(original, layout, dtype):
    """Check that a clone of a view and a clone of the clone are private copies."""
    before = original.values()
    clone = original.clone()
    second = clone.clone()
    for one in (clone, second):
        check.equal(one.values(), before, "a clone has the values of the view")
        check.equal(one.shape(), layout.shape, "and its shape")
        check.equal(one.dtype(), dtype, "and its dtype")
        check.equal(one.is_shared(), False, "it is not shared")
    first = (0,) * len(layout.shape)
    changed = not before[0] if dtype == "bool" else before[0] + 50
    clone.write(first, changed)
    check.equal(second.values(), before, "the clone of the clone is as it was")
    check.equal(original.values(), before, "and so is the view")
    original.write(first, changed)
    check.equal(second.read(first), before[0], "it does not read the view's writes")
    original.write(first, before[0])
    clone.share()
    check.equal(second.is_shared(), False, "nor is it shared with the other clone")


@clause("SHARE-11", "START-3", start_methods=("fork",))
def test_clones_in_forked_children_are_private(owner, peer):
    """A child clones tensors that it has inherited; of a clone it inherits a copy."""
    tensor = owner.make([61, 62, 63])
    there = owner.send(tensor, peer)
    clone = tensor.clone()
    child = owner.start_peer(arguments=[tensor, clone])
    inherited, its_clone = child.arguments
    check.equal(its_clone.is_shared(), False, "the clone is private there too")
    own = inherited.clone()
    check.equal(own.is_shared(), False, "and so is one that the child has made")
    check_private_memory(tensor, clone, its_clone, own)
    with judging("START-3"):
        check_shared_memory(tensor, inherited, there)


@clause("SHARE-5", "SHARE-6", "RESHARE-1", start_methods=("fork",))
def test_forked_child_says_what_is_shared(owner, peer):
    """A child that inherited tensors asks them, and shares those that are not."""
    shared, sent, private = (owner.make([number, 64]) for number in range(3))
    shared.share()
    there = owner.send(sent, peer)
    received = peer.send(peer.make([3, 64]), owner)
    child = owner.start_peer(arguments=[shared, sent, received, private])
    *inherited, its_own = child.arguments
    for one in inherited:
        with judging("SHARE-6"):
            check.equal(one.is_shared(), True, "what was shared is so in the child")
        check(one.share().same_object_as(one), "sharing it again returns it")
    check.equal(its_own.is_shared(), False, "what was not is not")
    check(its_own.share().same_object_as(its_own), "sharing returns the tensor")
    check.equal(its_own.is_shared(), True, "and shares it in the child")
    check.equal(private.is_shared(), False, "and not in its parent")
    with judging("SHARE-6"):
        check_private_memory(private, its_own)
        check_shared_memory(sent, there, inherited[1])
        check_shared_memory(shared, inherited[0])


GROWING_SHAPES = {
    "one element": (1,),
    "several dimensions": (2, 3),
    "no dimensions": (),
    "a page": (1024,),
}
"""The shapes of tensors that a test tries to grow."""


@clause("SHARE-8", may_corrupt=True, profiles=("share",))
def test_growing_by_one_element_is_refused_for_any_dtype_and_shape(
    sender, receiver, implementation
):
    """Both sides ask shared tensors of each dtype and of each shape for one more."""
    for number, dtype in enumerate(implementation.dtypes):
        shape = list(GROWING_SHAPES.values())[number % len(GROWING_SHAPES)]
        count = prod(shape)
        value = True if dtype == "bool" else 7
        tensor = sender.make([value] * count, shape=shape, dtype=dtype)
        tensor.share()
        arrived = sender.send(tensor, receiver)
        for asked in (tensor, arrived):
            for more in (count + 1, count + 4096):
                with refusal(f"growing a {dtype} of shape {shape} is refused"):
                    asked.resize(more)
                check.equal(asked.shape(), shape, "the shape is as before")
                check.equal(asked.values(), [value] * count, "and so are the values")


@clause("SHARE-13")
def test_pickle_that_no_channel_carries_copies_the_values(sender, receiver):
    """Both sides pickle a tensor that they share; each reads both pickles, twice.

    The values are those that the tensor had; later writes to either are not seen.
    """
    for pickler, other in ((sender, receiver), (receiver, sender)):
        tensor = pickler.make([61, 62, 63])
        arrived = pickler.send(tensor, other)
        for actor, own in ((pickler, tensor), (other, arrived)):
            before = own.values()
            content, refused = attempt(partial(actor.run, pickled, {"state": [own]}))
            if refused:
                check.equal(own.values(), before, "what is refused has its values")
                continue
            own.write(2, 64 + own.read(2))
            copies = [
                reader.run(unpickled, content)["state"][0]
                for reader in (pickler, other, pickler, other)
            ]
            for made in copies:
                check.equal(made.values(), before, "it has the values of before")
            check_private_memory(*copies, own)


@clause("SHARE-13", starts=True)
def test_pickle_outlives_the_tensor_and_its_process(owner):
    """A child sends the owner a tensor, pickles another one and that, and ends."""
    child = owner.start_peer()
    private, shared = child.make([65, 66]), child.make([67, 68])
    child.send(shared, owner).drop()
    content, refused = attempt(partial(child.run, pickled, [private, shared]))
    check.equal(child.leave(), 0, "the child exits normally")
    if refused is None:
        first, second = owner.run(unpickled, content)
        check.equal(first.values(), [65, 66], "the pickle of a private tensor is whole")
        check.equal(second.values(), [67, 68], "and so is that of a shared one")
        check_private_memory(first, second)


@clause("SHARE-13")
def test_deep_copy_copies_the_values(sender, receiver):
    """Both sides copy a tensor that they share, alone and in a container."""
    tensor = sender.make([71, 72, 73])
    arrived = sender.send(tensor, receiver)
    for actor, own in ((sender, tensor), (receiver, arrived)):
        before = own.values()
        made, refused = attempt(
            lambda actor=actor, own=own: [
                actor.run(deep_copy, own),
                actor.run(deep_copy, {"deep": (own,)})["deep"][0],
            ]
        )
        check.equal(own.values(), before, "the tensor has its values")
        if refused is None:
            for one in made:
                check.equal(one.values(), before, "a copy has the same")
            check_private_memory(*made, own)


@clause("SHARE-13", profiles=("modules", "grad"))
def test_grads_of_a_deep_copy_of_a_module_are_copies(sender, receiver):
    """Both sides of a module that was sent with a grad copy it and its parameter."""
    module = sender.make_module({"weight": [78, 79]})
    sender.parameters(module)["weight"].set_grad(sender.make([80, 81]))
    there = sender.send(module, receiver)
    for actor, of in ((sender, module), (receiver, there)):
        own = actor.parameters(of)["weight"]
        whole, refused = attempt(partial(actor.run, deep_copy, of))
        made = [] if refused else [actor.parameters(whole)["weight"]]
        alone, refused = attempt(partial(actor.run, deep_copy, own))
        made += [] if refused else [alone]
        grads = [one.grad() for one in (own, *made)]
        check_private_memory(*(grad for grad in grads if grad is not None))


@clause("SHARE-13", profiles=("modules",))
def test_module_that_is_pickled_or_copied_is_another_module(sender, receiver):
    """Both sides of a module that was sent pickle it and copy it."""
    module = sender.make_module({"weight": [74, 75]})
    sender.add_buffer(module, "mean", [76, 77], True)
    there = sender.send(module, receiver)
    for actor, own in ((sender, module), (receiver, there)):
        made = []
        deep, refused = attempt(partial(actor.run, deep_copy, own))
        if refused is None:
            made.append(deep)
        content, refused = attempt(partial(actor.run, pickled, own))
        if refused is None:
            made.append(actor.run(unpickled, content))
        for of in (actor.parameters, actor.buffers):
            for name, tensor in of(own).items():
                alike = [of(one)[name] for one in made]
                values = [one.values() for one in alike]
                expected = len(alike) * [tensor.values()]
                check.equal(values, expected, f"{name} has its values")
                check_private_memory(tensor, *alike)


LARGE_LENGTH = 1 << 20
"""The number of elements of a tensor of 4 MiB, which a library may treat in another way
than a small one.
"""


def deep_copies(value, actor, other):
    """Return a deep copy of a value in `actor`, in a list; an empty list if refused."""
    made, refused = attempt(partial(actor.run, deep_copy, value))
    return [] if refused else [made]


def copies_by_pickle(value, actor, other):
    """Pickle a value in `actor`; return what both processes read from the pickle.

    The list is empty if the value cannot be pickled.
    """
    content, refused = attempt(partial(actor.run, pickled, value))
    if refused:
        return []
    return [one.run(unpickled, content) for one in (actor, other)]


def first_and_last(tensor):
    """Return the first and the last of the `LARGE_LENGTH` elements of a tensor."""
    return [tensor.read(0), tensor.read(LARGE_LENGTH - 1)]


def check_large_copies(sender, receiver, copies):
    """Check on both sides that copies of a tensor of 4 MiB are private.

    `copies` is `deep_copies` or `copies_by_pickle`.
    """
    tensor = sender.run(make_long, LARGE_LENGTH, 81)
    arrived = sender.send(tensor, receiver)
    for actor, own, other in (
        (sender, tensor, receiver),
        (receiver, arrived, sender),
    ):
        before = first_and_last(own)
        for number, one in enumerate([*copies(own, actor, other), own]):
            check.equal(
                first_and_last(one), before, f"tensor {number} has its own values"
            )
            for place in (0, LARGE_LENGTH - 1):
                one.write(place, 82 + number)


@clause("SHARE-13")
def test_pickle_of_a_large_tensor_copies_the_values(sender, receiver):
    """Both sides of a tensor of 4 MiB pickle it; each reads both pickles."""
    check_large_copies(sender, receiver, copies_by_pickle)


@clause("SHARE-13")
def test_deep_copy_of_a_large_tensor_copies_the_values(sender, receiver):
    """Both sides of a tensor of 4 MiB copy it."""
    check_large_copies(sender, receiver, deep_copies)


def check_view_copies(sender, receiver, layouts, copies):
    """Check on both sides that copies of a view of each layout are private.

    `copies` is `deep_copies` or `copies_by_pickle`.
    """
    for layout in layouts:
        base = sender.make([3 * n + 7 for n in range(24)])
        arrived = sender.send(base, receiver)
        begin = (0,) * len(layout.shape)
        for actor, own, other in (
            (sender, sender.view(base, layout), receiver),
            (receiver, receiver.view(arrived, layout), sender),
        ):
            before, below = own.values(), base.values()
            made = copies(own, actor, other)
            for one in made:
                check.equal(one.shape(), layout.shape, f"it has the shape: {layout}")
                check.equal(one.values(), before, f"it has the values: {layout}")
                one.write(begin, 1 + one.read(begin))
                check.equal(base.values(), below, f"the base has its own: {layout}")
            copied = [one.values() for one in made]
            own.write(begin, 2 + own.read(begin))
            now = [one.values() for one in made]
            check.equal(now, copied, f"the copies keep theirs: {layout}")


@clause("SHARE-13", profiles=("views",))
def test_pickle_of_a_view_copies_the_values(sender, receiver, implementation):
    """Both sides of a base pickle a view of each layout; each reads both pickles."""
    check_view_copies(sender, receiver, layouts_of(implementation), copies_by_pickle)


@clause("SHARE-13", profiles=("views",))
def test_deep_copy_of_a_view_copies_the_values(sender, receiver, implementation):
    """Both sides of a base copy a view of each layout."""
    check_view_copies(sender, receiver, layouts_of(implementation), deep_copies)


def check_object_copies(sender, receiver, copies):
    """Check on both sides that copies of objects with tensors are private.

    One attribute of an object is a tensor, the other one is a container of a tensor.
    `copies` is `deep_copies` or `copies_by_pickle`.
    """
    for number, kind in enumerate(RECORDS):
        tensors = [sender.make([10 * number + n, 83]) for n in range(2)]
        rest = {"deep": [tensors[1]]}
        record = sender.run(make_record, kind, tensors[0], rest)
        arrived = sender.send([record], receiver)[0]
        for actor, own, other in (
            (sender, record, receiver),
            (receiver, arrived, sender),
        ):
            _, first, second = actor.run(describe_record, own)
            ours = [first, second["deep"][0]]
            before = [one.values() for one in ours]
            theirs = []
            for made in copies(own, actor, other):
                found, first, second = made.actor.run(describe_record, made)
                check.equal(found, kind, "the copy is of the class of the object")
                theirs.append([first, second["deep"][0]])
                values = [one.values() for one in theirs[-1]]
                check.equal(values, before, f"it has the values ({kind})")
            for alike in zip(ours, *theirs, strict=True):
                check_private_memory(*alike)


@clause("SHARE-13")
def test_pickle_of_an_object_copies_its_tensors(sender, receiver):
    """Both sides of an object of each kind pickle it; each reads both pickles."""
    check_object_copies(sender, receiver, copies_by_pickle)


@clause("SHARE-13")
def test_deep_copy_of_an_object_copies_its_tensors(sender, receiver):
    """Both sides of an object of each kind copy it."""
    check_object_copies(sender, receiver, deep_copies)


@clause("SHARE-13", vary=())
def test_copies_of_a_tensor_of_each_dtype_have_dtype_and_values(owner, peer, dtype):
    """The owner pickles and copies a tensor of extremes; both read the pickle."""
    tensor = owner.make(extremes_of(dtype), dtype=dtype)
    before = repr(tensor.values())
    for copies in (copies_by_pickle, deep_copies):
        for made in copies(tensor, owner, peer):
            check.equal(repr(made.values()), before, "the copy has the values")
            check.equal(made.dtype(), dtype, "the copy has the dtype")
        check.equal(repr(tensor.values()), before, "the tensor has its values")


def check_bundle_copies(sender, receiver, make, channel):
    """Check that deep copies of a bundle are private, before and after it is sent.

    `make` returns a new bundle of the sender. The send may be refused.
    """
    for is_sent in (False, True):
        bundle = make()
        if is_sent:
            attempt(partial(sender.send, bundle.remote, receiver, channel))
        before = bundle.description()
        copies = deep_copies(bundle.remote, sender, receiver)
        check_same_values(bundle.description(), before)
        for remote in copies:
            copy = bundle.received_by(sender, remote)
            check_same_values(copy.description(), before)
            check_bundles_private(copy, bundle)


@clause("SHARE-13", profiles=("views",))
def test_deep_copy_of_a_bundle_copies_its_tensors(
    sender, receiver, implementation, stage
):
    """The sender copies tensors of every dtype and layout, before and after a send."""
    make = partial(make_bundle, sender, implementation)
    check_bundle_copies(sender, receiver, make, unthreaded_channel(stage))


@clause("SHARE-13", profiles=("views", "grad"))
def test_deep_copy_of_a_bundle_copies_its_grads(
    sender, receiver, implementation, stage
):
    """The sender copies tensors with flags and grads, before and after a send."""
    make = partial(make_bundle_with_grads, sender, implementation)
    check_bundle_copies(sender, receiver, make, unthreaded_channel(stage))


@clause("SHARE-5", profiles=("drop-in",))
def test_copies_of_a_shared_tensor_are_not_shared(sender, receiver):
    """Both sides pickle and copy a tensor that was sent, and ask each copy."""
    tensor = sender.make([84, 85])
    arrived = sender.send(tensor, receiver)
    for actor, own, other in (
        (sender, tensor, receiver),
        (receiver, arrived, sender),
    ):
        was_shared = own.is_shared()
        for copies in (copies_by_pickle, deep_copies):
            for made in copies(own, actor, other):
                check.equal(made.is_shared(), False, "nobody asked to share the copy")
            check.equal(own.is_shared(), was_shared, "the tensor is as it was")


@clause("SHARE-13")
def test_pickle_made_while_a_message_is_made_copies_the_values(
    sender, receiver, channel
):
    """The sender sends an object that pickles a tensor while it is pickled itself.

    The receiver reads the pickle twice; the tensor is private at first, shared then.
    """
    tensor = sender.make([86, 87])
    for _ in range(2):
        before = tensor.values()
        made = sender.run(pickles_when_pickled, tensor)
        if content := sender.send(made, receiver, channel):
            copies = [receiver.run(unpickled, content) for _ in range(2)]
            for one in copies:
                check.equal(one.values(), before, "a copy has the values")
            check_private_memory(tensor, *copies)
        else:
            check.equal(tensor.values(), before, "what is refused has its values")
        sender.send(tensor, receiver, channel)


PART = Layout("part", 1, (2,), (2,))
"""The first and the third element of a tensor after its first one."""


def check_base_and_view_in_copies(sender, receiver, copies):
    """Check on both sides that a base and a view are aliases in copies of both.

    `copies` is `deep_copies` or `copies_by_pickle`.
    """
    base = sender.make([91, 92, 93, 94])
    arrived = sender.send(base, receiver)
    for actor, own, other in ((sender, base, receiver), (receiver, arrived, sender)):
        both = [own, actor.view(own, PART)]
        for whole, part in copies(both, actor, other):
            check.equal(part.values(), [92, 94], "the view has its values")
            whole.write(3, 95)
            check.equal(part.values(), [92, 95], "it reads what is written")
            part.write(0, 96)
            check.equal(whole.values(), [91, 96, 93, 95], "and so does its base")
    check.equal(base.values(), [91, 92, 93, 94], "the original has its values")


@clause("SHARE-14", profiles=("views",))
def test_base_and_view_are_aliases_in_a_pickle(sender, receiver):
    """Both sides of a base and a view pickle them together; each reads both pickles."""
    check_base_and_view_in_copies(sender, receiver, copies_by_pickle)


@clause("SHARE-14", profiles=("views",))
def test_base_and_view_are_aliases_in_a_deep_copy(sender, receiver):
    """Both sides of a base and a view copy them together."""
    check_base_and_view_in_copies(sender, receiver, deep_copies)


def check_module_and_state_in_copies(sender, receiver, copies):
    """Check on both sides that a module and its state are aliases in copies of both.

    `copies` is `deep_copies` or `copies_by_pickle`.
    """
    module = sender.make_module({"weight": [97, 98]})
    there = sender.send(module, receiver)
    for actor, own, other in ((sender, module, receiver), (receiver, there, sender)):
        both = [own, actor.state_dict(own)]
        for made, state in copies(both, actor, other):
            weight = made.actor.parameters(made)["weight"]
            check_shared_memory(weight, state["weight"])
    weight = sender.parameters(module)["weight"]
    check.equal(weight.values(), [97, 98], "the original has its values")


@clause("SHARE-14", profiles=("modules",))
def test_module_and_its_state_are_aliases_in_a_pickle(sender, receiver):
    """Both sides of a module pickle it with its state; each reads both pickles."""
    check_module_and_state_in_copies(sender, receiver, copies_by_pickle)


@clause("SHARE-14", profiles=("modules",))
def test_module_and_its_state_are_aliases_in_a_deep_copy(sender, receiver):
    """Both sides of a module copy it with its state."""
    check_module_and_state_in_copies(sender, receiver, deep_copies)


def check_grad_in_copies(sender, receiver, copies):
    """Check on both sides that a grad and that of its tensor are one in copies of both.

    They are copied before and after they are sent, either of them first. `copies` is
    `deep_copies` or `copies_by_pickle`, where a copy may have no grad.
    """
    for actor, other in ((sender, receiver), (receiver, sender)):
        tensor = actor.make([1, 2])
        tensor.set_requires_grad(True)
        tensor.set_grad(actor.make([3, 4]))
        for order in (1, -1):
            for made in copies([tensor, tensor.grad()][::order], actor, other):
                whole, grad = made[::order]
                check.equal(grad.values(), [3, 4], "it has its values")
                if whole.grad() is not None:
                    check_shared_memory(whole.grad(), grad)
            actor.send(tensor, other)
        check.equal(tensor.grad().values(), [3, 4], "the original has its values")


@clause("SHARE-14", profiles=("grad",))
def test_tensor_and_its_grad_are_together_in_a_pickle(sender, receiver):
    """Both processes pickle a tensor with its grad; each reads both pickles."""
    check_grad_in_copies(sender, receiver, copies_by_pickle)


@clause("SHARE-14", profiles=("grad",))
def test_tensor_and_its_grad_are_together_in_a_deep_copy(sender, receiver):
    """Both processes copy a tensor with its grad."""
    check_grad_in_copies(sender, receiver, deep_copies)


@clause("SHARE-15")
def test_shallow_copy_is_an_alias(sender, receiver):
    """Both sides copy a tensor, before and after it is sent."""
    tensor = sender.make([1, 2, 3, 4, 5, 6], shape=(6,))
    early = sender.run(shallow_copy, tensor)
    arrived = sender.send(tensor, receiver)
    late = receiver.run(shallow_copy, {"in": arrived})["in"]
    made = [early, sender.run(shallow_copy, tensor)]
    made.append(receiver.run(shallow_copy, arrived))
    for one, own in zip(made, (tensor, tensor, arrived), strict=True):
        check.equal(one.same_object_as(own), False, "it is another tensor")
        check.equal(one.shape(), own.shape(), "of the same shape")
        check.equal(one.dtype(), own.dtype(), "and dtype")
        check_shared_memory(own, one)
    check.equal(late.same_object_as(arrived), True, "a container has the same tensor")
