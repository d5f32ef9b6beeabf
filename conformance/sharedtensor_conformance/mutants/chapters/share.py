"""Mutants of the move into shared memory."""

import copy
import mmap
import os
import weakref
from typing import Any

from sharedtensor_conformance.mutants.registry import mutant


def _map_privately_during(step, map_segment):
    """Return `step` and a `map_segment` that maps privately during the step."""
    entered = []

    def step_and_note(*arguments):
        entered.append(step)
        try:
            return step(*arguments)
        finally:
            entered.pop()

    def map_one_way(target, fd):
        map_segment(target, fd, mmap.MAP_PRIVATE if entered else mmap.MAP_SHARED)

    return step_and_note, map_one_way


@mutant("sender_keeps_its_memory", "SHARE-1", "SHARE-2", replaces="memory.move")
def sender_keeps_its_memory(move):
    """The bytes are copied into the segment, and the sender stays where it was."""
    from sharedtensor import atomic, memory

    def copy_bytes(source, fd, then):
        if isinstance(source, memory.Group):
            move(source, fd, then)
            return
        memory.write_bytes(fd, source)
        content = bytes(source.bytes)
        memory.map_segment(source, fd, mmap.MAP_PRIVATE)
        source.bytes[:] = content  # a page is private once it was written
        atomic.call_each(then)

    return copy_bytes


@mutant(
    "receiver_maps_privately",
    "SHARE-2",
    replaces=("protocol.rebuild_segment", "memory.map_segment"),
)
def receiver_maps_privately(rebuild_segment, map_segment):
    """The receiver sees the sender's writes and keeps its own to itself."""
    return _map_privately_during(rebuild_segment, map_segment)


@mutant("moves_one_page", "SHARE-3", replaces="protocol.move_storage")
def moves_one_page(move_storage):
    """The move copies the first page of a storage and no more."""

    def move(storage):
        move_storage(storage)
        storage.bytes[4096:] = 0

    return move


@mutant(
    "second_send_is_a_copy",
    "SHARE-4",
    "RESHARE-2",
    "CHAN-5",
    replaces="protocol.export_storage",
)
def second_send_is_a_copy(export_storage):
    """A storage that is sent for the second time is sent as a copy, that time only."""
    sends = {}

    def export(storage):
        token = storage.segment.token if storage.segment else ""
        sends[token] = sends.get(token, 0) + 1
        again = token and sends[token] == 1
        return export_storage(storage.clone() if again else storage)

    return export


@mutant(
    "always_says_shared", "SHARE-5", "SHARE-11", replaces="storage.Storage.is_shared"
)
def always_says_shared(is_shared):
    """Every storage says that it is shared."""
    return lambda storage: True


@mutant("share_returns_nothing", "SHARE-5", replaces="tensors.Tensor.share_memory_")
def share_returns_nothing(share_memory):
    """`share_memory_()` shares and returns None."""

    def share(self):
        share_memory(self)

    return share


@mutant(
    "receiver_says_private",
    "SHARE-6",
    replaces=("protocol.move_storage", "storage.Storage.is_shared"),
)
def receiver_says_private(move_storage, is_shared):
    """A received storage says that it is not shared."""
    moved = set()

    def move(storage):
        move_storage(storage)
        moved.add(storage.segment.token)

    return move, lambda one: is_shared(one) and one.segment.token in moved


def _make_empty():
    from sharedtensor import Storage

    return Storage(0)


@mutant("empty_storages_are_not_shared", "SHARE-6", replaces="protocol.export_storage")
def empty_storages_are_not_shared(export_storage):
    """A storage without bytes is sent as it is, and the receiver makes another."""

    def export(storage):
        is_new = storage.nbytes == 0 and not storage.is_shared()
        return (_make_empty, ()) if is_new else export_storage(storage)

    return export


@mutant("sharing_packs_a_view", "SHARE-7", replaces="tensors.Tensor.share_memory_")
def sharing_packs_a_view(share_memory):
    """`share_memory_()` makes a view that has gaps contiguous."""

    def pack_and_share(self):
        if not self.is_contiguous():
            packed = type(self)(self.numpy().copy())
            self.storage, self._offset = packed.storage, 0
            self._strides = packed.stride()
        return share_memory(self)

    return pack_and_share


@mutant("resizes_what_is_shared", "SHARE-8", replaces="storage.Storage.resize")
def resizes_what_is_shared(resize):
    """A shared storage grows, in memory that nobody shares."""
    from sharedtensor.memory import Memory

    def grow(self, nbytes):
        grown = Memory(nbytes)
        grown.bytes[: self.nbytes] = self.memory.bytes[:nbytes]
        self.memory, self.nbytes = grown, nbytes

    return grow


@mutant("leaves_its_views_behind", "SHARE-9", replaces="protocol.export_tensor")
def leaves_its_views_behind(export_tensor):
    """The first send gives the tensor a storage of its own; its views stay behind."""

    def export(tensor):
        if tensor.storage.segment is None:
            tensor.storage = tensor.storage.clone()
        return export_tensor(tensor)

    return export


@mutant("moves_to_another_address", "SHARE-10", replaces="protocol.move_storage")
def moves_to_another_address(move_storage):
    """The move takes new pages: tensors follow it, and arrays do not."""
    from sharedtensor import memory

    def move(storage):
        moved = memory.Memory(storage.nbytes)
        moved.bytes[:] = storage.memory.bytes
        storage.memory = moved
        move_storage(storage)

    return move


@mutant("arrays_of_received_copy", "SHARE-10", replaces="tensors.Tensor.numpy")
def arrays_of_received_copy(numpy):
    """An array that is taken of a tensor in shared memory has memory of its own."""
    return lambda self: numpy(self).copy() if self.is_shared() else numpy(self)


@mutant("clone_is_a_view", "SHARE-11", replaces="tensors.Tensor.clone")
def clone_is_a_view(clone):
    """A clone of a shared tensor is over the same memory."""

    def clone_or_detach(self):
        return clone(self) if self.storage.segment is None else self.detach()

    return clone_or_detach


@mutant(
    "second_arrival_is_private",
    "SHARE-12",
    replaces=("protocol.rebuild_segment", "memory.map_segment"),
)
def second_arrival_is_private(rebuild_segment, map_segment):
    """A storage that was dropped and arrives once more in a process is a copy there."""
    arrived = set()
    rebuild_privately, map_one_way = _map_privately_during(rebuild_segment, map_segment)

    def rebuild(handle):
        again = handle[1] in arrived
        arrived.add(handle[1])
        return (rebuild_privately if again else rebuild_segment)(handle)

    return rebuild, map_one_way


@mutant("windows_have_31_bits", "SHARE-12", replaces="protocol.export_window")
def windows_have_31_bits(export_window):
    """The offset and the shape of a tensor are sent as numbers of 31 bits."""

    def export(tensor):
        dtype, offset, shape, strides = export_window(tensor)
        mask = (1 << 31) - 1
        return dtype, offset & mask, tuple(length & mask for length in shape), strides

    return export


@mutant("moves_two_gib", "SHARE-12", replaces="protocol.move_storage")
def moves_two_gib(move_storage):
    """The move copies the first 2 GiB of a storage and no more."""

    def move(storage):
        move_storage(storage)
        storage.bytes[1 << 31 :] = 0

    return move


@mutant("tokens_come_again", "SHARE-12", "LIFE-22", replaces="segments.new_token")
def tokens_come_again(new_token):
    """A process has twelve tokens, and takes the first again after the last.

    A forked child has the same twelve as its parent, so what one makes is taken for
    what the other has.
    """
    tokens = []

    def next_token():
        tokens.append(new_token() if len(tokens) < 12 else tokens.pop(0))
        return tokens[-1]

    return next_token


@mutant(
    "clone_of_a_view_with_gaps_is_a_view", "SHARE-11", replaces="tensors.Tensor.clone"
)
def clone_of_a_view_with_gaps_is_a_view(clone):
    """A view that is not contiguous is not cloned, but looked at through another."""
    return lambda self: clone(self) if self.is_contiguous() else self.detach()


@mutant(
    "forked_child_denies_sharing",
    "SHARE-5",
    "SHARE-6",
    replaces=("protocol.move_storage", "storage.Storage.is_shared"),
)
def forked_child_denies_sharing(move_storage, is_shared):
    """What a process has shared is not shared, as a forked child of it says."""
    movers = weakref.WeakKeyDictionary()

    def move(storage):
        movers[storage] = os.getpid()
        move_storage(storage)

    def ask(self):
        return is_shared(self) and movers.get(self, os.getpid()) == os.getpid()

    return move, ask


@mutant("wide_elements_may_grow", "SHARE-8", replaces="tensors.Tensor.resize_")
def wide_elements_may_grow(resize):
    """A tensor of elements of eight bytes grows to twice its shared storage."""

    def grow(self, *shape):
        if self.dtype.itemsize == 8 and self.storage.is_shared():
            self._shape, self._strides = tuple(shape), (1,) * len(shape)
            return self
        return resize(self, *shape)

    return grow


@mutant(
    "parts_are_the_first_one", "SHARE-3", "CHAN-3", replaces="protocol.rebuild_storage"
)
def parts_are_the_first_one(rebuild_storage):
    """All storages of a common segment arrive as the one at its beginning."""

    def rebuild(segment, storage_class, offset, nbytes):
        return rebuild_storage(segment, storage_class, 0, nbytes)

    return rebuild


@mutant("neighbours_are_left_behind", "CHAN-3", replaces="memory.Group.pieces")
def neighbours_are_left_behind(pieces):
    """Of storages that move together, all but the first stay where they were."""

    def first_mapped(group):
        first, *others = pieces.fget(group)
        _, size = group.pages[0]
        rest = first._replace(nbytes=first.nbytes, capacity=size)
        return [rest, *others]

    return property(first_mapped)


@mutant("deep_copies_are_views", "SHARE-13", replaces="tensors.Tensor.__deepcopy__")
def deep_copies_are_views(deepcopy):
    """A deep copy of a tensor has the memory of the tensor."""

    def view(self, memo):
        made = memo[id(self)] = self.detach()
        return made

    return view


LARGE = 64 << 10
"""Bytes from which on a library may treat a tensor in another way."""


@mutant("large_storages_move_away", "SHARE-10", replaces="protocol.move_storage")
def large_storages_move_away(move_storage):
    """The move of 64 KiB or more takes new pages, and arrays do not follow it."""
    move_away = moves_to_another_address(move_storage)

    def move(storage):
        (move_away if storage.nbytes >= LARGE else move_storage)(storage)

    return move


@mutant("arrays_lose_what_is_dropped", "SHARE-10", replaces="protocol.move_storage")
def arrays_lose_what_is_dropped(move_storage):
    """The end of a storage empties its memory, though an array may be over it."""

    from sharedtensor import memory

    def empty(address, size):
        flags = memory.PRIVATE | memory.MAP_FIXED
        memory._libc.mmap(address, size, memory.PROTECTION, flags, -1, 0)

    def move(storage):
        move_storage(storage)
        weakref.finalize(storage, empty, storage.address, storage.memory.capacity)

    return move


@mutant(
    "clones_of_large_tensors_see_writes",
    "SHARE-11",
    replaces=("tensors.Tensor.clone", "memory.map_segment"),
)
def clones_of_large_tensors_see_writes(clone, map_segment):
    """A clone of 64 KiB or more is a private mapping, which shows what others write."""

    def map_or_clone(self):
        segment = self.storage.segment
        if segment is None or self.storage.nbytes < LARGE:
            return clone(self)
        made = type(self.storage)(self.storage.nbytes)
        segment.strategy.map_again(made.memory, segment.resource)
        window = self.storage_offset(), self.shape, self.stride()
        return self.detach().look_at(made, self.dtype.str, *window)

    return _map_privately_during(map_or_clone, map_segment)


_pickled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def _find_pickled(pid, key, rebuild, arguments):
    found = _pickled.get(key) if pid == os.getpid() else None
    return rebuild(*arguments) if found is None else found.detach()


@mutant("pickles_name_the_tensor", "SHARE-13", replaces="tensors.Tensor.__reduce__")
def pickles_name_the_tensor(reduce):
    """A pickle that is read in the process of its tensor gives the same memory."""

    def reduce_to_name(self):
        rebuild, arguments, *_ = reduce(self)
        _pickled[id(self)] = self
        return _find_pickled, (os.getpid(), id(self), rebuild, arguments)

    return reduce_to_name


@mutant(
    "large_pickles_name_the_tensor",
    "SHARE-13",
    replaces="tensors.Tensor.__reduce__",
)
def large_pickles_name_the_tensor(reduce):
    """A pickle of 64 KiB or more that its tensor's process reads has its memory."""
    named = pickles_name_the_tensor(reduce)
    return lambda self: (named if self.storage.nbytes >= LARGE else reduce)(self)


@mutant(
    "pickles_of_views_name_the_tensor",
    "SHARE-13",
    replaces="tensors.Tensor.__reduce__",
)
def pickles_of_views_name_the_tensor(reduce):
    """A pickle of a view of a part that is read in its process has its memory."""
    named = pickles_name_the_tensor(reduce)
    return lambda self: (named if _is_a_part(self) else reduce)(self)


@mutant(
    "large_deep_copies_are_views",
    "SHARE-13",
    replaces="tensors.Tensor.__deepcopy__",
)
def large_deep_copies_are_views(deepcopy):
    """A deep copy of a tensor of 64 KiB or more has the memory of the tensor."""
    view = deep_copies_are_views(deepcopy)
    return lambda self, memo: (
        view(self, memo) if self.storage.nbytes >= LARGE else deepcopy(self, memo)
    )


@mutant(
    "deep_copies_of_views_are_views",
    "SHARE-13",
    replaces="tensors.Tensor.__deepcopy__",
)
def deep_copies_of_views_are_views(deepcopy):
    """A deep copy of a view of a part of its storage has the memory of the view."""
    view = deep_copies_are_views(deepcopy)
    return lambda self, memo: (
        view(self, memo) if _is_a_part(self) else deepcopy(self, memo)
    )


def _is_a_part(tensor):
    return tensor.nbytes < tensor.storage.nbytes


def _rebuild_while_it_lives(pid, rebuild, arguments):
    os.kill(pid, 0)
    return rebuild(*arguments)


@mutant("pickles_need_their_maker", "SHARE-13", replaces="tensors.Tensor.__reduce__")
def pickles_need_their_maker(reduce):
    """A pickle cannot be read when the process that made it has gone."""

    def reduce_with_maker(self):
        rebuild, arguments, *state = reduce(self)
        return _rebuild_while_it_lives, (os.getpid(), rebuild, arguments), *state

    return reduce_with_maker


@mutant(
    "pickles_narrow_the_numbers",
    "SHARE-13",
    replaces="tensors.Tensor.__reduce__",
)
def pickles_narrow_the_numbers(reduce):
    """A pickle has numbers of 64 bits with a fraction as numbers of 32 bits."""

    def reduce_narrowed(self):
        if self.dtype == "float64":
            self = type(self)(self.detach().numpy().astype("float32"))
        return reduce(self)

    return reduce_narrowed


@mutant(
    "pickles_widen_the_numbers",
    "SHARE-13",
    replaces="tensors.Tensor.__reduce__",
)
def pickles_widen_the_numbers(reduce):
    """A pickle has numbers of 32 bits with a fraction as numbers of 64 bits."""

    def reduce_widened(self):
        if self.dtype == "float32":
            self = type(self)(self.detach().numpy().astype("float64"))
        return reduce(self)

    return reduce_widened


@mutant(
    "deep_copies_widen_the_numbers",
    "SHARE-13",
    replaces="tensors.Tensor.__deepcopy__",
)
def deep_copies_widen_the_numbers(deepcopy):
    """A deep copy of numbers of 16 bits has numbers of 32 bits."""

    def copy(self, memo):
        if self.dtype == "int16":
            self = type(self)(self.detach().numpy().astype("int32"))
        return deepcopy(self, memo)

    return copy


@mutant(
    "deep_copies_of_private_tensors_are_views",
    "SHARE-13",
    replaces="tensors.Tensor.__deepcopy__",
)
def deep_copies_of_private_tensors_are_views(deepcopy):
    """A deep copy of a tensor that is not shared has the memory of the tensor."""
    view = deep_copies_are_views(deepcopy)
    return lambda self, memo: (deepcopy if self.is_shared() else view)(self, memo)


@mutant(
    "deep_copies_have_the_grad",
    "SHARE-13",
    replaces="tensors.Tensor.__deepcopy__",
)
def deep_copies_have_the_grad(deepcopy):
    """A deep copy of a tensor has the grad of the tensor, and no copy of it."""

    def copy(self, memo):
        memo[id(self.grad)] = self.grad
        return deepcopy(self, memo)

    return copy


@mutant(
    "deep_copies_are_shared_again",
    "SHARE-5",
    replaces="tensors.Tensor.__deepcopy__",
)
def deep_copies_are_shared_again(deepcopy):
    """A deep copy of a shared tensor is shared, in memory of its own."""

    def copy(self, memo):
        made = deepcopy(self, memo)
        return made.share_memory_() if self.is_shared() else made

    return copy


@mutant(
    "pickles_in_a_message_are_handles",
    "SHARE-13",
    replaces="storage.Storage.__reduce_ex__",
)
def pickles_in_a_message_are_handles(reduce_ex):
    """What is pickled while a message is made is taken for a part of the message."""
    from sharedtensor import protocol, transport

    def reduce(self, version):
        is_part = transport.current_outbox() is not None
        return protocol.export_storage(self) if is_part else reduce_ex(self, version)

    return reduce


@mutant("aliases_part_in_pickles", "SHARE-14", replaces="tensors.Tensor.__reduce__")
def aliases_part_in_pickles(reduce):
    """A pickle has the memory of each tensor once more."""

    def reduce_alone(self):
        rebuild, (kind, storage, *rest), *state = reduce(self)
        return rebuild, (kind, storage.clone(), *rest), *state

    return reduce_alone


@mutant(
    "aliases_part_in_deep_copies", "SHARE-14", replaces="tensors.Tensor.__deepcopy__"
)
def aliases_part_in_deep_copies(deepcopy):
    """A deep copy of a tensor does not know what is copied with it."""
    return lambda self, memo: deepcopy(self, {})


@mutant(
    "deep_copies_of_parameters_part", "SHARE-14", replaces="tensors.Tensor.__deepcopy__"
)
def deep_copies_of_parameters_part(deepcopy):
    """A deep copy of a parameter does not know what is copied with it."""
    from sharedtensor import Parameter

    return lambda self, memo: deepcopy(
        self, {} if isinstance(self, Parameter) else memo
    )


@mutant("shallow_copies_copy", "SHARE-15", replaces="tensors.Tensor.__copy__")
def shallow_copies_copy(shallow_copy):
    """A shallow copy of a tensor has its own memory, like that of a NumPy array."""
    return lambda self: copy.deepcopy(self)


@mutant("shallow_copy_is_the_tensor", "SHARE-15", replaces="tensors.Tensor.__copy__")
def shallow_copy_is_the_tensor(shallow_copy):
    """A shallow copy of a tensor is the tensor itself."""
    return lambda self: self
