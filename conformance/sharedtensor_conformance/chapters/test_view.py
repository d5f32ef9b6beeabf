"""Chapter VIEW: a message describes a window on the storage that it shares."""

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.chapters.extremes import extremes_of
from sharedtensor_conformance.chapters.shared_steps import (
    LENGTHS,
    check_shared_memory,
    judging,
)
from sharedtensor_conformance.chapters.tensor_actions import make_long
from sharedtensor_conformance.harness import attempt, check, clause
from sharedtensor_conformance.harness.case.axes import (
    BASE_ELEMENTS,
    layouts_of,
    permitted_layouts,
)

REINTERPRETED = ("reinterpreted",)
"""The kind of views that interpret the bytes of their base as another dtype."""


def is_contiguous(layout):
    """Return whether a window is contiguous, in row-major order."""
    expected = 1
    for length, stride in zip(layout.shape[::-1], layout.strides[::-1], strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def position_of(layout, index):
    """Return the position, in the base, of the element `index` of a window."""
    steps = zip(index, layout.strides, strict=True)
    return layout.offset + sum(place * stride for place, stride in steps)


def corners(layout):
    """Return the indices of the first and the last element of a window."""
    return [(0,) * len(layout.shape), tuple(length - 1 for length in layout.shape)]


@clause("VIEW-1")
def test_view_arrives_with_its_window_and_values(sender, receiver, layout):
    """The sender sends a view of a base of distinct values; the receiver reads it."""
    base = sender.make(list(range(100, 124)))
    view = sender.view(base, layout)
    arrived = sender.send(view, receiver)
    check.equal(arrived.shape(), layout.shape, "the shape is the view's")
    check.equal(arrived.values(), view.values(), "the values are the view's")
    if not is_contiguous(layout):
        check.equal(arrived.strides(), layout.strides, "the strides are the view's")


LENGTH_ONE_LAYOUTS = (
    Layout("one row of steps", offset=7, shape=(1, 3), strides=(6, 2)),
    Layout("one column of steps", offset=2, shape=(3, 1), strides=(5, 2)),
    Layout("steps in the middle", offset=1, shape=(2, 1, 3), strides=(12, 7, 3)),
)
"""Layouts that are not contiguous and have a dimension of length 1."""


@clause("VIEW-1", views=("steps",))
def test_view_with_a_dimension_of_one_element_arrives_with_its_strides(
    sender, receiver, channel
):
    """The sender sends views of which a dimension has one element, and steps."""
    base = sender.make(list(range(100, 124)))
    for layout in LENGTH_ONE_LAYOUTS:
        view = sender.view(base, layout)
        arrived = sender.send(view, receiver, channel)
        check.equal(arrived.shape(), layout.shape, f"the shape of {layout.name}")
        check.equal(arrived.values(), view.values(), f"the values of {layout.name}")
        check.equal(arrived.strides(), view.strides(), f"the strides of {layout.name}")


LAYOUTS_OF_MANY_DIMENSIONS = (
    Layout("four", offset=7, shape=(2, 3, 2, 4), strides=(1, 90, 45, 11)),
    Layout("five", offset=1, shape=(3, 2, 2, 2, 3), strides=(160, 70, 30, 9, 2)),
    Layout("eight", offset=5, shape=8 * (2,), strides=(256, 128, 64, 32, 16, 8, 4, 2)),
)
"""Layouts of views of a tensor of 600 elements, by their numbers of dimensions."""


@clause("VIEW-1", views=("steps",))
def test_view_of_many_dimensions_arrives_with_its_window(
    sender, receiver, implementation
):
    """The sender sends views of a base of distinct values; the receiver reads them."""
    base = sender.make(list(range(600)))
    for layout in permitted_layouts(LAYOUTS_OF_MANY_DIMENSIONS, implementation):
        view = sender.view(base, layout)
        arrived = sender.send(view, receiver)
        check.equal(arrived.shape(), layout.shape, f"the shape of {layout.name}")
        check.equal(arrived.strides(), layout.strides, f"the strides of {layout.name}")
        check.equal(arrived.values(), view.values(), f"the values of {layout.name}")


@clause("VIEW-1", dtypes=("int64",))
def test_views_arrive_over_each_channel(sender, receiver, channel, implementation):
    """The sender sends a view of each layout; the receiver reads them by index."""
    layouts = layouts_of(implementation)
    base = sender.make([5 * n + 3 for n in range(24)], dtype="int64")
    for layout in layouts:
        arrived = sender.send(sender.view(base, layout), receiver, channel)
        check.equal(arrived.shape(), layout.shape, "the shape is the view's")
        for index in corners(layout):
            expected = 5 * position_of(layout, index) + 3
            check.equal(arrived.read(index), expected, "the element is the view's")


def distinct_values(dtype):
    """Return values for a base of a dtype. Adjacent values are different."""
    return [bool(n % 2) if dtype == "bool" else n for n in range(BASE_ELEMENTS)]


def other_value(value, dtype):
    """Return another value; except for bool, one not in `distinct_values`."""
    return not value if dtype == "bool" else value + 50


@clause(
    "VIEW-1",
    "VIEW-5",
    pairwise=True,
    mainly="VIEW-1",
    vary=("strategy", "start_method"),
)
def test_view_of_each_dtype_arrives_on_each_way(
    sender, receiver, channel, dtype, layout
):
    """The sender sends a view; the receiver reads its dtype, shape and values."""
    view = sender.view(sender.make(distinct_values(dtype), dtype=dtype), layout)
    arrived = sender.send(view, receiver, channel)
    with judging("VIEW-5"):
        check.equal(arrived.dtype(), dtype, "the dtype is the view's")
    check.equal(arrived.shape(), layout.shape, "the shape is the view's")
    check.equal(arrived.values(), view.values(), "the values are the view's")


@clause(
    "VIEW-2",
    "VIEW-6",
    pairwise=True,
    mainly="VIEW-2",
    vary=("strategy", "start_method"),
)
def test_view_of_each_dtype_is_shared_on_each_way(
    sender, receiver, channel, dtype, layout
):
    """The receiver writes to the first element of a view, the sender to the last."""
    base = sender.make(distinct_values(dtype), dtype=dtype)
    expected = base.values()
    arrived = sender.send(sender.view(base, layout), receiver, channel)
    first, last = corners(layout)
    for writer, index in ((arrived, first), (base, position_of(layout, last))):
        place = position_of(layout, first) if writer is arrived else index
        expected[place] = other_value(expected[place], dtype)
        writer.write(index, expected[place])
        check.equal(base.values(), expected, "that element changed and no other")
    found, place = arrived.read(last), position_of(layout, last)
    check.equal(found, expected[place], "the receiver reads what the sender wrote")


@clause("VIEW-2")
def test_write_through_a_received_view_lands_on_its_element(sender, receiver, layout):
    """The receiver writes to both ends of a view; the sender reads its whole base."""
    expected = list(range(100, 124))
    base = sender.make(expected)
    arrived = sender.send(sender.view(base, layout), receiver)
    for number, index in enumerate(corners(layout)):
        arrived.write(index, 51 + number)
        expected[position_of(layout, index)] = 51 + number
        check.equal(base.values(), expected, "that element changed and no other")


@clause("VIEW-2", dtypes=("float64",))
def test_writes_to_the_base_are_read_through_received_views(
    sender, receiver, channel, implementation
):
    """The sender writes to its base at both ends of each view that it sent."""
    layouts = layouts_of(implementation)
    base = sender.make([n * n for n in range(24)], dtype="float64")
    for number, layout in enumerate(layouts):
        arrived = sender.send(sender.view(base, layout), receiver, channel)
        for sign, index in zip((1, -1), corners(layout), strict=True):
            written = sign * (1000 + number)
            base.write(position_of(layout, index), written)
            check.equal(arrived.read(index), written, "the view reads the write")


@clause("VIEW-2", "SHARE-1", "SHARE-2", mainly="VIEW-2")
def test_one_element_of_a_private_storage_of_any_size_is_shared(
    sender, receiver, channel
):
    """The sender sends one element of a tensor of each order of magnitude.

    Nothing of it is shared before, and the rest of it is sent by nobody.
    """
    for length in LENGTHS:
        base = sender.run(make_long, length, 5)
        place = length // 2
        layout = Layout("one", offset=place, shape=(1,), strides=(1,))
        view = sender.view(base, layout)
        arrived = sender.send(view, receiver, channel)
        view.write(0, 6)
        with judging("SHARE-1"):
            check.equal(arrived.read(0), 6, f"the write is read (of {length} elements)")
        arrived.write(0, 7)
        with judging("SHARE-2"):
            check.equal(view.read(0), 7, f"so is the other's (of {length})")
        check.equal(base.read(place), 7, f"and in its base (of {length})")
        base.write(place, 8)
        check.equal(arrived.read(0), 8, f"a write to the base is read (of {length})")
        for actor in (sender, receiver):
            actor.drop_all()


@clause("VIEW-3")
def test_base_and_view_in_one_message_alias_in_the_receiver(sender, receiver, layout):
    """The sender sends base and view together; the receiver writes through each."""
    base = sender.make(list(range(300, 324)))
    arrived = sender.send([base, sender.view(base, layout)], receiver)
    first, last = corners(layout)
    arrived[1].write(last, 81)
    found = arrived[0].read(position_of(layout, last))
    check.equal(found, 81, "the base reads the write to the view")
    arrived[0].write(position_of(layout, first), 82)
    check.equal(arrived[1].read(first), 82, "the view reads the write to the base")


@clause("VIEW-3", dtypes=("int32",))
def test_views_before_their_base_in_one_message_alias_it(
    sender, receiver, channel, implementation
):
    """The sender names a view of each layout first and the base last."""
    layouts = layouts_of(implementation)
    base = sender.make([3 * n for n in range(24)], dtype="int32")
    views = [sender.view(base, layout) for layout in layouts]
    arrived = sender.send({"views": views, "base": base}, receiver, channel)
    for number, (layout, view) in enumerate(
        zip(layouts, arrived["views"], strict=True)
    ):
        for sign, index in zip((1, -1), corners(layout), strict=True):
            view.write(index, sign * (2000 + number))
            found = arrived["base"].read(position_of(layout, index))
            check.equal(found, sign * (2000 + number), "the base reads the write")


@clause("VIEW-4")
def test_view_sent_after_its_base_aliases_it(sender, receiver, layout):
    """The receiver holds the base when it receives the view; it writes to both."""
    base = sender.make(list(range(400, 424)))
    view = sender.view(base, layout)
    first, second = sender.send(base, receiver), sender.send(view, receiver)
    start, end = corners(layout)
    second.write(end, 91)
    check.equal(first.read(position_of(layout, end)), 91, "the base reads the write")
    first.write(position_of(layout, start), 92)
    check.equal(second.read(start), 92, "the view reads the write")


@clause("VIEW-4", dtypes=("int64",))
def test_base_sent_after_a_view_of_it_aliases_it(
    sender, receiver, channel, implementation
):
    """The receiver holds a view when it receives the base; it writes to both."""
    layouts = layouts_of(implementation)
    for number, layout in enumerate(layouts):
        base = sender.make([2 * n for n in range(24)], dtype="int64")
        first = sender.send(sender.view(base, layout), receiver, channel)
        second = sender.send(base, receiver, channel)
        for sign, index in zip((1, -1), corners(layout), strict=True):
            first.write(index, sign * (3000 + number))
            found = second.read(position_of(layout, index))
            check.equal(found, sign * (3000 + number), "the base reads the write")


@clause("VIEW-5", vary=())
def test_dtype_arrives_with_its_extremes(sender, receiver, dtype):
    """The sender sends both ends of the range of a dtype; each bit arrives."""
    tensor = sender.make(extremes_of(dtype), dtype=dtype)
    made = tensor.values()
    arrived = sender.send(tensor, receiver)
    check.equal(arrived.dtype(), dtype, "the dtype is the sender's")
    check.equal(repr(arrived.values()), repr(made), "the values are the sender's")
    check.equal(arrived.shape(), tensor.shape(), "the shape is the sender's")


@clause("VIEW-5")
def test_every_dtype_arrives_in_one_message(sender, receiver, channel, implementation):
    """The sender sends one tensor of each dtype in one dictionary."""
    dtypes = implementation.dtypes
    message = {name: sender.make(extremes_of(name), dtype=name) for name in dtypes}
    made = {name: repr(tensor.values()) for name, tensor in message.items()}
    arrived = sender.send(message, receiver, channel)
    for name in dtypes:
        check.equal(arrived[name].dtype(), name, "the dtype is the sender's")
        check.equal(repr(arrived[name].values()), made[name], f"{name} has its values")


@clause("VIEW-6")
def test_dtype_is_shared_in_both_directions(sender, receiver, dtype):
    """Sender and receiver each write a value of the dtype; the other reads it."""
    values = extremes_of(dtype)
    tensor = sender.make(values, dtype=dtype)
    arrived = sender.send(tensor, receiver)
    tensor.write(1, values[0])
    check.equal(arrived.read(1), values[0], "the receiver reads the write")
    arrived.write(2, values[-1])
    check.equal(tensor.read(2), values[-1], "the sender reads the write")
    check.equal(repr(arrived.values()), repr(tensor.values()), "both read the same")


@clause("VIEW-7", dtypes=("int64", "uint8"))
def test_empty_tensor_arrives_and_leaves_the_channel_usable(sender, receiver, channel):
    """The sender sends empty tensors of several shapes and a full one after each."""
    for shape, dtype in [((0,), "float32"), ((3, 0, 2), "int64"), ((0, 4), "uint8")]:
        empty = sender.make([], shape=shape, dtype=dtype)
        arrived = sender.send(empty, receiver, channel)
        check.equal(arrived.shape(), shape, "the shape is the sender's")
        check.equal(arrived.dtype(), dtype, "the dtype is the sender's")
        check.equal(arrived.values(), [], "there are no values")
        after = sender.send(sender.make([6, 7, 8]), receiver, channel)
        check.equal(after.values(), [6, 7, 8], "the next message arrives")


@clause("VIEW-7")
def test_empty_tensor_arrives_beside_a_full_one(sender, receiver):
    """The sender sends an empty tensor, a full one and the empty one again."""
    empty, full = sender.make([], shape=(0, 5)), sender.make([9, 10])
    arrived = sender.send([empty, full, empty], receiver)
    shapes = [tensor.shape() for tensor in arrived]
    check.equal(shapes, [(0, 5), (2,), (0, 5)], "each has its shape")
    check.equal(arrived[1].values(), [9, 10], "the full one has its values")


@clause("VIEW-8")
def test_tensor_of_no_dimensions_is_shared(sender, receiver, channel, implementation):
    """Sender and receiver write in turn to tensors of shape () and of each dtype."""
    for dtype in implementation.dtypes:
        tensor = sender.make(single_value(dtype), shape=(), dtype=dtype)
        arrived = sender.send(tensor, receiver, channel)
        check_scalar_shared(tensor, arrived, dtype)


@clause("VIEW-8", profiles=("views",))
def test_view_of_no_dimensions_is_shared(sender, receiver, implementation):
    """The sender sends one element of a base of each dtype as a view of shape ()."""
    window = Layout("element", offset=5, shape=(), strides=())
    for dtype in implementation.dtypes:
        base = sender.make(distinct_values(dtype), dtype=dtype)
        view = sender.view(base, window)
        arrived = sender.send(view, receiver)
        check_scalar_shared(view, arrived, dtype)
        check.equal(base.read(5), arrived.read(()), "it is that element of the base")


def single_value(dtype):
    """Return a list with one value of a dtype."""
    return [True] if dtype == "bool" else [17]


def check_scalar_shared(tensor, arrived, dtype):
    """Check that a received tensor of shape () is equal and shares memory."""
    check.equal(arrived.shape(), (), f"the shape is () ({dtype})")
    check.equal(arrived.dtype(), dtype, "the dtype is the sender's")
    check.equal(arrived.values(), tensor.values(), "the value is the sender's")
    value = tensor.read(())
    for writer, reader in ((tensor, arrived), (arrived, tensor)):
        value = not value if dtype == "bool" else value + 1
        writer.write((), value)
        check.equal(reader.read(()), value, f"one reads the other's write ({dtype})")


def complex_dtype(implementation):
    """Return the first claimed complex dtype; ``complex64`` if none is claimed."""
    names = [name for name in implementation.dtypes if name.startswith("complex")]
    return names[0] if names else "complex64"


@clause("VIEW-9")
def test_conjugated_view_arrives_equal_or_is_refused(
    sender, receiver, channel, implementation
):
    """The sender sends a conjugated view, then conjugates that view and sends it."""
    tensor = sender.make([1 + 2j, 3 - 4j, 5j], dtype=complex_dtype(implementation))
    view = sender.conjugate(tensor)
    check.equal(view.values(), [1 - 2j, 3 + 4j, -5j], "the view is the conjugate")
    for sent in (view, sender.conjugate(view), tensor):
        arrived, refused = attempt(
            lambda sent=sent: sender.send(sent, receiver, channel)
        )
        if refused is None:
            check.equal(arrived.values(), sent.values(), "the values are the sender's")


@clause("VIEW-9")
def test_conjugated_view_beside_its_base_arrives_equal_or_is_refused(
    sender, receiver, implementation
):
    """The sender sends a base and its conjugate in one message."""
    tensor = sender.make([2 + 7j, 4 - 9j], dtype=complex_dtype(implementation))
    view = sender.conjugate(tensor)
    arrived, refused = attempt(lambda: sender.send([tensor, view], receiver))
    check.equal(view.values(), [2 - 7j, 4 + 9j], "the sender's view is as it was")
    if refused is None:
        check.equal(arrived[0].values(), [2 + 7j, 4 - 9j], "the base is the sender's")
        check.equal(arrived[1].values(), [2 - 7j, 4 + 9j], "and so is the conjugate")


@clause("VIEW-9")
def test_conjugated_view_that_arrives_is_over_the_storage_that_was_sent(
    sender, receiver, implementation
):
    """The sender sends a conjugated view and writes to its base; the receiver writes.

    The receiver writes through the view, if the view can be written.
    """
    tensor = sender.make([3 + 1j, 8 - 6j], dtype=complex_dtype(implementation))
    view = sender.conjugate(tensor)
    check.equal(view.values(), [3 - 1j, 8 + 6j], "the view is the conjugate")
    arrived, refused = attempt(lambda: sender.send(view, receiver))
    if refused is None:
        tensor.write(1, 5 + 2j)
        found = arrived.values()
        check.equal(found, [3 - 1j, 5 - 2j], "the receiver reads the sender's write")
        _, refused = attempt(lambda: arrived.write(0, 7 - 4j))
        if refused is None:
            found = tensor.values()
            check.equal(found, [7 + 4j, 5 + 2j], "the base reads the receiver's write")
            tensor.write(1, 9 + 6j)
            found = arrived.values()
            check.equal(found, [7 - 4j, 9 - 6j], "the view is over the base as before")


@clause("VIEW-10", dtypes=("int32",), views=REINTERPRETED)
def test_views_of_two_dtypes_alias_in_the_receiver(sender, receiver, channel):
    """The receiver writes bits through int32 and reads them through float32."""
    floats = sender.make([1.5, -2.0, 8.25], dtype="float32")
    message = [floats, sender.reinterpret(floats, "int32")]
    arrived = sender.send(message, receiver, channel)
    arrived[1].write(2, 0x40200000)
    check.equal(arrived[0].values(), [1.5, -2.0, 2.5], "float32 reads int32's bits")
    arrived[0].write(0, 0.5)
    check.equal(arrived[1].read(0), 0x3F000000, "int32 reads float32's bits")
    check.equal(arrived[0].dtype(), "float32", "the first has its dtype")
    check.equal(arrived[1].dtype(), "int32", "the second has its dtype")


@clause("VIEW-10", dtypes=("int32", "uint8"), views=REINTERPRETED)
def test_view_of_another_item_size_aliases_in_the_receiver(sender, receiver):
    """The receiver writes a byte of one element and reads the element."""
    numbers = sender.make([1, 2, 3], dtype="int32")
    message = {"bytes": sender.reinterpret(numbers, "uint8"), "numbers": numbers}
    arrived = sender.send(message, receiver)
    check.equal(arrived["bytes"].shape(), (12,), "four bytes to an element")
    arrived["bytes"].write(5, 4)
    check.equal(arrived["numbers"].values(), [1, 1026, 3], "the element has the byte")


@clause("VIEW-2")
def test_received_view_that_is_sent_back_lands_on_its_element(
    sender, receiver, implementation
):
    """The receiver sends a view of each layout back; the sender writes through it."""
    layouts = layouts_of(implementation)
    expected = list(range(600, 624))
    base = sender.make(expected)
    for number, layout in enumerate(layouts):
        arrived = sender.send(sender.view(base, layout), receiver)
        back = receiver.send(arrived, sender)
        index = corners(layout)[1]
        back.write(index, 51 + number)
        expected[position_of(layout, index)] = 51 + number
        check.equal(base.values(), expected, "that element changed and no other")
        check.equal(arrived.read(index), 51 + number, "the receiver's view reads it")


@clause("VIEW-6", vary=(), dtypes=("float64", "uint8"))
def test_tensors_of_two_dtypes_are_shared_beside_each_other(sender, receiver, channel):
    """The sender sends two tensors of different dtypes; both sides write to both."""
    narrow = sender.make([1, 2, 3], dtype="uint8")
    wide = sender.make([1.25, 2.5, 3.75], dtype="float64")
    arrived = sender.send((wide, narrow), receiver, channel)
    check_shared_memory(narrow, arrived[1])
    check_shared_memory(wide, arrived[0])


CONJUGATED_LAYOUTS = (
    Layout("step", offset=1, shape=(4,), strides=(2,)),
    Layout("turned", offset=0, shape=(2, 3), strides=(1, 2)),
    Layout("element", offset=5, shape=(), strides=()),
    Layout("empty", offset=3, shape=(0,), strides=(1,)),
)


@clause("VIEW-9", profiles=("views",), pairwise=True)
def test_conjugated_views_of_each_sort_arrive_equal_or_are_refused(
    sender, receiver, channel, implementation
):
    """The sender sends conjugates of views of each complex dtype, twice, and back.

    Between the sends it writes to the base.
    """
    names = [name for name in implementation.dtypes if name.startswith("complex")]
    for name in names:
        base = sender.make([n + 1j * (n + 1) for n in range(9)], dtype=name)
        for turn, layout in enumerate(
            permitted_layouts(CONJUGATED_LAYOUTS, implementation)
        ):
            view = sender.conjugate(sender.view(base, layout))
            held = []
            for _ in range(2):
                base.write(layout.offset, 20j + turn)
                arrived, refused = attempt(
                    lambda view=view: sender.send(view, receiver, channel)
                )
                check.equal(
                    base.read(layout.offset),
                    20j + turn,
                    "the base keeps what was written",
                )
                if refused is None:
                    held.append(arrived)
            for arrived in held:
                check.equal(arrived.values(), view.values(), "they are the sender's")
                back, refused = attempt(
                    lambda a=arrived: receiver.send(a, sender, channel)
                )
                if refused is None:
                    check.equal(back.values(), view.values(), "also when it comes back")


BIT_INCOMPLETE = ("bool",)


def bit_complete_dtypes(dtypes):
    """Return the dtypes in which every bit pattern is a value: all except bool."""
    return [name for name in dtypes if name not in BIT_INCOMPLETE]


@clause("VIEW-10", pairwise=True, dtypes=("float64",), views=REINTERPRETED)
def test_views_of_every_dtype_alias_in_one_message_and_in_several(
    sender, receiver, channel, implementation
):
    """A base is sent with views of its bytes of every dtype, and later once more each.

    The receiver writes to the base, the sender reads through the views, and vice versa.
    """
    base = sender.make([0.5 * n for n in range(8)], dtype="float64")
    names = bit_complete_dtypes(implementation.dtypes)
    views = [base.reinterpret(name) for name in names]
    arrived, *there = sender.send([base, *views], receiver, channel)
    apart = [sender.send(view, receiver, channel) for view in views]
    for turn, writer in enumerate((arrived, base)):
        writer.write(7 * turn, 1234.5678 + turn)
        for name, view, one, other in zip(names, views, there, apart, strict=True):
            expected = repr(view.values())
            check.equal(one.dtype(), name, "the view has its dtype")
            check.equal(repr(one.values()), expected, f"{name} reads the same bytes")
            check.equal(repr(other.values()), expected, "so does one sent by itself")
