"""Mutants of views: of the offset, shape, strides and dtype in a message."""

from sharedtensor_conformance.mutants.registry import mutant


def _change_window(change, export_window):
    return lambda tensor: change(tensor, *export_window(tensor))


def _copy_where(condition, export_tensor):
    """Return an export of contiguous copies of the tensors for which that is so."""
    from sharedtensor_conformance.adapters.copy import export_copy

    def export(tensor):
        if condition(tensor):
            return export_copy(tensor.detach().clone())
        return export_tensor(tensor)

    return export


@mutant(
    "packs_expanded_views",
    "VIEW-1",
    "VIEW-2",
    "VIEW-3",
    replaces="protocol.export_tensor",
)
def packs_expanded_views(export_tensor):
    """A view with a stride of 0 is sent as a contiguous copy."""
    return _copy_where(lambda tensor: 0 in tensor.stride(), export_tensor)


@mutant("swaps_strides", "VIEW-1", "VIEW-2", replaces="protocol.export_window")
def swaps_strides(export_window):
    """A view of two dimensions arrives with their strides in order of size."""

    def change(tensor, dtype, offset, shape, strides):
        fits = tensor.storage_offset() == 0
        return dtype, offset, shape, tuple(sorted(strides)[::-1]) if fits else strides

    return _change_window(change, export_window)


@mutant("runs_forwards", "VIEW-1", "VIEW-2", replaces="protocol.export_window")
def runs_forwards(export_window):
    """A view that runs backwards arrives running forwards over the same elements."""

    def change(tensor, dtype, offset, shape, strides):
        steps = zip(shape, strides, strict=True)
        lowest = offset + sum(min(0, (n - 1) * stride) for n, stride in steps if n)
        return dtype, lowest, shape, tuple(map(abs, strides))

    return _change_window(change, export_window)


@mutant(
    "windows_have_three_dimensions",
    "VIEW-1",
    "SHARE-3",
    replaces="protocol.export_window",
)
def windows_have_three_dimensions(export_window):
    """A message has the first three dimensions of a tensor, and no more."""

    def change(tensor, dtype, offset, shape, strides):
        return dtype, offset, shape[:3], strides[:3]

    return _change_window(change, export_window)


@mutant("forgets_the_offset", "VIEW-1", "VIEW-2", replaces="protocol.export_window")
def forgets_the_offset(export_window):
    """A contiguous view arrives at the begin of its storage."""

    def change(tensor, dtype, offset, shape, strides):
        return dtype, 0 if tensor.is_contiguous() else offset, shape, strides

    return _change_window(change, export_window)


@mutant("view_gets_a_storage", "VIEW-3", "VIEW-4", replaces="protocol.rebuild_tensor")
def view_gets_a_storage(rebuild_tensor):
    """What does not begin where its storage does arrives over a storage of its own."""

    def rebuild(tensor_class, storage, window, flags):
        own = storage.clone() if window[1] else storage
        return rebuild_tensor(tensor_class, own, window, flags)

    return rebuild


@mutant(
    "second_message_is_a_copy",
    "VIEW-4",
    "RESHARE-2",
    "RESHARE-3",
    replaces="protocol.verify_known",
)
def second_message_is_a_copy(verify_known):
    """A storage that the receiver holds already arrives as a copy of it."""
    from sharedtensor import Storage

    def verify(known, nbytes):
        verify_known(known, nbytes)
        return known.clone() if isinstance(known, Storage) else known

    return verify


@mutant("confuses_signs", "VIEW-5", replaces="protocol.export_window")
def confuses_signs(export_window):
    """Unsigned numbers of 16 bits arrive as signed ones."""

    def change(tensor, dtype, *window):
        return (dtype.replace("<u2", "<i2"), *window)

    return _change_window(change, export_window)


@mutant("copies_booleans", "VIEW-6", replaces="protocol.export_tensor")
def copies_booleans(export_tensor):
    """Tensors of booleans arrive with their values, as copies."""
    return _copy_where(lambda tensor: tensor.dtype.kind == "b", export_tensor)


@mutant("copies_complex_numbers", "VIEW-6", replaces="protocol.export_tensor")
def copies_complex_numbers(export_tensor):
    """Tensors of complex128 arrive with their values, as copies."""
    return _copy_where(lambda tensor: tensor.dtype == "complex128", export_tensor)


@mutant("repeats_of_two_bytes_are_packed", "VIEW-1", replaces="protocol.export_window")
def repeats_of_two_bytes_are_packed(export_window):
    """A view that repeats elements of two bytes arrives as its elements in a row."""

    def change(tensor, dtype, offset, shape, strides):
        repeats = tensor.dtype.itemsize == 2 and 0 in strides
        return dtype, offset, shape, (1,) * len(strides) if repeats else strides

    return _change_window(change, export_window)


@mutant("copies_steps_of_one_byte", "VIEW-2", replaces="protocol.export_tensor")
def copies_steps_of_one_byte(export_tensor):
    """A view with gaps of elements of one byte arrives with its values, as a copy."""

    def gaps(tensor):
        return tensor.dtype.itemsize == 1 and tensor.stride() == (3,)

    return _copy_where(gaps, export_tensor)


@mutant("flattens_empty_tensors", "VIEW-7", replaces="protocol.export_window")
def flattens_empty_tensors(export_window):
    """An empty tensor arrives with the shape (0,)."""

    def change(tensor, dtype, offset, shape, strides):
        return (dtype, offset, (0,), (1,)) if 0 in shape else (
            dtype, offset, shape, strides
        )  # fmt: skip

    return _change_window(change, export_window)


@mutant("copies_scalars", "VIEW-8", replaces="protocol.export_tensor")
def copies_scalars(export_tensor):
    """A tensor of no dimensions arrives with its value, as a copy."""
    return _copy_where(lambda tensor: tensor.shape == (), export_tensor)


@mutant("forgets_conjugation", "VIEW-9", replaces="protocol.export_flags")
def forgets_conjugation(export_flags):
    """A lazily conjugated view arrives without its flag."""
    return lambda tensor: (export_flags(tensor)[0], False)


@mutant("conjugated_view_is_copied", "VIEW-9", replaces="protocol.rebuild_tensor")
def conjugated_view_is_copied(rebuild_tensor):
    """A lazily conjugated view arrives as one, over a copy."""

    def rebuild(tensor_class, storage, window, flags):
        own = storage.clone() if flags[1] else storage
        return rebuild_tensor(tensor_class, own, window, flags)

    return rebuild


@mutant(
    "conjugated_view_is_copied_when_written",
    "VIEW-9",
    replaces="tensors.Tensor.__setitem__",
)
def conjugated_view_is_copied_when_written(setitem):
    """A write through a lazily conjugated view of a shared storage goes to a copy."""

    def write(self, index, value):
        if self.is_conj() and self.storage.is_shared():
            self.storage = self.storage.clone()
        setitem(self, index, value)

    return write


@mutant("one_storage_for_each_dtype", "VIEW-10", replaces="protocol.rebuild_tensor")
def one_storage_for_each_dtype(rebuild_tensor):
    """Views of other dtypes than the first one's arrive over copies."""
    first = {}

    def rebuild(tensor_class, storage, window, flags):
        dtype = first.setdefault(storage.segment.token, window[0])
        own = storage if dtype == window[0] else storage.clone()
        return rebuild_tensor(tensor_class, own, window, flags)

    return rebuild


@mutant("copies_counters", "VIEW-8", replaces="protocol.export_tensor")
def copies_counters(export_tensor):
    """A tensor of no dimensions arrives as a copy if it has whole numbers or bits."""
    return _copy_where(
        lambda tensor: tensor.shape == () and tensor.dtype.kind in "biu", export_tensor
    )


@mutant(
    "later_sends_begin_elsewhere",
    "VIEW-1",
    "RESHARE-2",
    replaces="protocol.export_window",
)
def later_sends_begin_elsewhere(export_window):
    """A view of wide elements that are shared already loses its offset."""

    def change(tensor, dtype, offset, *window):
        again = tensor.storage.is_shared() and tensor.dtype.itemsize == 8
        return dtype, 0 if again else offset, *window

    return _change_window(change, export_window)


@mutant("number_loses_conjugation", "VIEW-9", replaces="protocol.export_flags")
def number_loses_conjugation(export_flags):
    """A lazily conjugated tensor of no dimensions arrives without its flag."""

    def export(tensor):
        requires_grad, conjugated = export_flags(tensor)
        return requires_grad, conjugated and tensor.shape != ()

    return export


@mutant("bytes_of_the_known_are_copies", "VIEW-10", replaces="protocol.export_tensor")
def bytes_of_the_known_are_copies(export_tensor):
    """Small elements over a storage that is shared already arrive as copies."""

    def is_so(tensor):
        return tensor.dtype.itemsize < 4 and tensor.storage.is_shared()

    return _copy_where(is_so, export_tensor)
