"""Mutants of the move into shared memory."""

import mmap

from sharedtensor_conformance.mutants.registry import mutant


@mutant("sender_keeps_its_memory", "SHARE-1", "SHARE-2")
def sender_keeps_its_memory(steps):
    """The bytes are copied into the segment, and the sender stays where it was."""
    move, map_segment = steps.move_storage, steps.map_segment

    def move_storage(storage):
        steps.map_segment = lambda target, fd: None
        try:
            move(storage)
        finally:
            steps.map_segment = map_segment

    steps.move_storage = move_storage


@mutant("receiver_maps_privately", "SHARE-2")
def receiver_maps_privately(steps):
    """The receiver sees the sender's writes and keeps its own to itself."""
    from sharedtensor import memory

    rebuild, map_segment = steps.rebuild_storage, steps.map_segment

    def map_privately(target, fd):
        memory.remap(target, fd, mmap.MAP_PRIVATE)

    def rebuild_storage(storage_class, handle):
        steps.map_segment = map_privately
        try:
            return rebuild(storage_class, handle)
        finally:
            steps.map_segment = map_segment

    steps.rebuild_storage = rebuild_storage


@mutant("moves_one_page", "SHARE-3")
def moves_one_page(steps):
    """The move copies the first page of a storage and no more."""
    original = steps.move_storage

    def move_storage(storage):
        original(storage)
        storage.bytes[4096:] = 0

    steps.move_storage = move_storage


@mutant("second_send_is_a_copy", "SHARE-4", "RESHARE-2", "CHAN-5")
def second_send_is_a_copy(steps):
    """A storage that is sent for the second time is sent as a copy, that time only."""
    original = steps.export_storage
    sends = {}

    def export_storage(storage):
        token = storage.segment.token if storage.segment else ""
        sends[token] = sends.get(token, 0) + 1
        return original(storage.clone() if token and sends[token] == 1 else storage)

    steps.export_storage = export_storage


@mutant("always_says_shared", "SHARE-5", "SHARE-11")
def always_says_shared(steps):
    """Every storage says that it is shared."""
    steps.is_shared = lambda storage: True


@mutant("share_returns_nothing", "SHARE-5")
def share_returns_nothing(steps):
    """`share_memory_()` shares and returns None."""
    from sharedtensor import Tensor

    Tensor.share_memory_ = lambda self: steps.share_tensor(self)


@mutant("receiver_says_private", "SHARE-6")
def receiver_says_private(steps):
    """A received storage says that it is not shared."""
    original, moved = steps.move_storage, set()

    def move_storage(storage):
        original(storage)
        moved.add(storage.segment.token)

    steps.move_storage = move_storage
    steps.is_shared = lambda one: one.segment is not None and one.segment.token in moved


@mutant("sharing_packs_a_view", "SHARE-7")
def sharing_packs_a_view(steps):
    """`share_memory_()` makes a view that has gaps contiguous."""
    from sharedtensor.tensors import Tensor

    original = steps.share_tensor

    def share_tensor(tensor):
        if not tensor.is_contiguous():
            packed = Tensor(tensor.numpy().copy())
            tensor.storage, tensor._offset = packed.storage, 0
            tensor._strides = packed.stride()
        original(tensor)

    steps.share_tensor = share_tensor


@mutant("resizes_what_is_shared", "SHARE-8")
def resizes_what_is_shared(steps):
    """A shared storage grows, in memory that nobody shares."""
    from sharedtensor import memory

    def resize_storage(storage, nbytes):
        old, kept = storage.memory, min(storage.nbytes, nbytes)
        storage.memory = memory.Memory(nbytes)
        storage.memory.bytes[:kept] = old.bytes[:kept]
        storage.nbytes = nbytes

    steps.resize_storage = resize_storage


@mutant("leaves_its_views_behind", "SHARE-9")
def leaves_its_views_behind(steps):
    """The first send gives the tensor a storage of its own; its views stay behind."""
    original = steps.export_tensor

    def export_tensor(tensor):
        if tensor.storage.segment is None:
            tensor.storage = tensor.storage.clone()
        return original(tensor)

    steps.export_tensor = export_tensor


@mutant("moves_to_another_address", "SHARE-10")
def moves_to_another_address(steps):
    """The move takes new pages: tensors follow it, and arrays do not."""
    from sharedtensor import memory

    original = steps.move_storage

    def move_storage(storage):
        moved = memory.Memory(storage.nbytes)
        moved.bytes[:] = storage.memory.bytes
        storage.memory = moved
        original(storage)

    steps.move_storage = move_storage


@mutant("clone_is_a_view", "SHARE-11")
def clone_is_a_view(steps):
    """A clone of a shared tensor is over the same memory."""
    original = steps.clone_tensor

    def clone_tensor(tensor):
        shared = tensor.storage.segment is not None
        return tensor.detach() if shared else original(tensor)

    steps.clone_tensor = clone_tensor


@mutant("second_arrival_is_private", "SHARE-12")
def second_arrival_is_private(steps):
    """A storage that was dropped and arrives once more in a process is a copy there."""
    from sharedtensor import memory

    rebuild, map_segment = steps.rebuild_storage, steps.map_segment
    arrived = set()

    def rebuild_storage(storage_class, handle):
        if handle[1] in arrived:
            steps.map_segment = lambda target, fd: memory.remap(
                target, fd, mmap.MAP_PRIVATE
            )
        arrived.add(handle[1])
        try:
            return rebuild(storage_class, handle)
        finally:
            steps.map_segment = map_segment

    steps.rebuild_storage = rebuild_storage
