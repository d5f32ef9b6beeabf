"""Mutants of the window that a message describes."""

from sharedtensor_conformance.mutants.registry import mutant


def _change_window(steps, change):
    original = steps.export_window
    steps.export_window = lambda tensor: change(tensor, *original(tensor))


def _copy_where(steps, condition):
    original = steps.export_tensor

    def export_tensor(tensor):
        return tensor.__reduce_ex__(4) if condition(tensor) else original(tensor)

    steps.export_tensor = export_tensor


@mutant("packs_expanded_views", "VIEW-1", "VIEW-2", "VIEW-3")
def packs_expanded_views(steps):
    """A view with a stride of 0 is sent as a contiguous copy."""
    _copy_where(steps, lambda tensor: 0 in tensor.stride())


@mutant("swaps_strides", "VIEW-1", "VIEW-2")
def swaps_strides(steps):
    """A view of two dimensions arrives with their strides in order of size."""

    def change(tensor, dtype, offset, shape, strides):
        fits = tensor.storage_offset() == 0
        return dtype, offset, shape, tuple(sorted(strides)[::-1]) if fits else strides

    _change_window(steps, change)


@mutant("forgets_the_offset", "VIEW-1", "VIEW-2")
def forgets_the_offset(steps):
    """A contiguous view arrives at the begin of its storage."""

    def change(tensor, dtype, offset, shape, strides):
        return dtype, 0 if tensor.is_contiguous() else offset, shape, strides

    _change_window(steps, change)


@mutant("view_gets_a_storage", "VIEW-3", "VIEW-4")
def view_gets_a_storage(steps):
    """What does not begin where its storage does arrives over a storage of its own."""
    original = steps.rebuild_tensor

    def rebuild_tensor(tensor_class, storage, window, flags):
        own = storage.clone() if window[1] else storage
        return original(tensor_class, own, window, flags)

    steps.rebuild_tensor = rebuild_tensor


@mutant("second_message_is_a_copy", "VIEW-4", "RESHARE-2", "RESHARE-3")
def second_message_is_a_copy(steps):
    """A storage that the receiver holds already arrives as a copy of it."""
    original = steps.verify_known
    steps.verify_known = lambda storage, nbytes: original(storage, nbytes).clone()


@mutant("confuses_signs", "VIEW-5")
def confuses_signs(steps):
    """Unsigned numbers of 16 bits arrive as signed ones."""

    def change(tensor, dtype, *window):
        return (dtype.replace("<u2", "<i2"), *window)

    _change_window(steps, change)


@mutant("copies_booleans", "VIEW-6")
def copies_booleans(steps):
    """Tensors of booleans arrive with their values, as copies."""
    _copy_where(steps, lambda tensor: tensor.dtype.kind == "b")


@mutant("copies_complex_numbers", "VIEW-6")
def copies_complex_numbers(steps):
    """Tensors of complex128 arrive with their values, as copies."""
    _copy_where(steps, lambda tensor: tensor.dtype == "complex128")


@mutant("repeats_of_two_bytes_are_packed", "VIEW-1")
def repeats_of_two_bytes_are_packed(steps):
    """A view that repeats elements of two bytes arrives as its elements in a row."""

    def change(tensor, dtype, offset, shape, strides):
        repeats = tensor.dtype.itemsize == 2 and 0 in strides
        return dtype, offset, shape, (1,) * len(strides) if repeats else strides

    _change_window(steps, change)


@mutant("copies_steps_of_one_byte", "VIEW-2")
def copies_steps_of_one_byte(steps):
    """A view with gaps of elements of one byte arrives with its values, as a copy."""

    def gaps(tensor):
        return tensor.dtype.itemsize == 1 and tensor.stride() == (3,)

    _copy_where(steps, gaps)


@mutant("flattens_empty_tensors", "VIEW-7")
def flattens_empty_tensors(steps):
    """An empty tensor arrives with the shape (0,)."""

    def change(tensor, dtype, offset, shape, strides):
        return (dtype, offset, (0,), (1,)) if 0 in shape else (
            dtype, offset, shape, strides
        )  # fmt: skip

    _change_window(steps, change)


@mutant("copies_scalars", "VIEW-8")
def copies_scalars(steps):
    """A tensor of no dimensions arrives with its value, as a copy."""
    _copy_where(steps, lambda tensor: tensor.shape == ())


@mutant("forgets_conjugation", "VIEW-9")
def forgets_conjugation(steps):
    """A lazily conjugated view arrives without its flag."""
    original = steps.export_flags
    steps.export_flags = lambda tensor: (original(tensor)[0], False)


@mutant("one_storage_for_each_dtype", "VIEW-10")
def one_storage_for_each_dtype(steps):
    """Views of other dtypes than the first one's arrive over copies."""
    original, first = steps.rebuild_tensor, {}

    def rebuild_tensor(tensor_class, storage, window, flags):
        dtype = first.setdefault(storage.segment.token, window[0])
        own = storage if dtype == window[0] else storage.clone()
        return original(tensor_class, own, window, flags)

    steps.rebuild_tensor = rebuild_tensor
