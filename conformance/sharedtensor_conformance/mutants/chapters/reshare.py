"""Mutants of sharing what is shared already."""

import io
import threading
from multiprocessing.reduction import ForkingPickler

from sharedtensor_conformance.mutants.registry import mutant


@mutant("moves_again_on_share", "RESHARE-1", replaces="tensors.Tensor.share_memory_")
def moves_again_on_share(share_memory):
    """`share_memory_()` moves a shared storage to a new segment at its old address."""

    def share_again(self):
        self.storage.segment = None
        return share_memory(self)

    return share_again


@mutant(
    "copies_on_reshare",
    "RESHARE-2",
    "CHAN-5",
    "SHARE-4",
    replaces="protocol.export_storage",
)
def copies_on_reshare(export_storage):
    """A storage that is shared already is moved again when it is sent."""

    def export(storage):
        storage.segment = None
        return export_storage(storage)

    return export


@mutant(
    "maps_again",
    "RESHARE-3",
    "RESHARE-4",
    "FD-3",
    replaces=("protocol.find_segment", "protocol.remember_segment"),
)
def maps_again(find_segment, remember_segment):
    """A storage that the receiver holds is mapped once more, shared as it should be."""
    return lambda token: None, lambda segment: segment


@mutant(
    "maps_large_storages_again",
    "RESHARE-3",
    "RESHARE-4",
    replaces=("protocol.find_segment", "protocol.remember_segment"),
)
def maps_large_storages_again(find_segment, remember_segment):
    """A storage of 64 KiB or more is mapped once more each time that it arrives."""

    def is_large(segment):
        return segment is not None and segment.nbytes >= 64 << 10

    def find(token):
        found = find_segment(token)
        return None if is_large(found) else found

    def remember(segment):
        return segment if is_large(segment) else remember_segment(segment)

    return find, remember


@mutant("owner_maps_again", "RESHARE-4", replaces="protocol.move_storage")
def owner_maps_again(move_storage):
    """Only storages that were received are found again, not those made here."""
    from sharedtensor import state

    def move(storage):
        move_storage(storage)
        del state.segments[storage.segment.token]

    return move


@mutant(
    "sends_on_a_copy",
    "RESHARE-5",
    "RESHARE-4",
    "GRAD-8",
    replaces=("protocol.export_storage", "protocol.rebuild_storage"),
)
def sends_on_a_copy(export_storage, rebuild_storage):
    """A storage that was received is sent on as a copy."""
    received = set()

    def export(storage):
        token = storage.segment.token if storage.segment else None
        return export_storage(storage.clone() if token in received else storage)

    def rebuild(segment, *part):
        storage = rebuild_storage(segment, *part)
        if segment.resource.mapping is not None:
            received.add(segment.token)
        return storage

    return export, rebuild


@mutant("forgets_identity", "RESHARE-6", replaces="protocol.pickle_object")
def forgets_identity(pickle_object):
    """Each mention of a tensor in a message arrives as a tensor of its own."""

    def without_memo(obj):
        buffer = io.BytesIO()
        pickler = ForkingPickler(buffer)
        pickler.fast = True
        pickler.dump(obj)
        return buffer.getbuffer()

    return without_memo


@mutant("round_trip_keeps_a_mapping", "RESHARE-7", replaces="protocol.verify_known")
def round_trip_keeps_a_mapping(verify_known):
    """Each time that a known storage comes again, a mapping of it stays."""
    from sharedtensor import Storage

    kept = []

    def verify(storage, nbytes):
        kept.append(Storage(nbytes).share())
        return verify_known(storage, nbytes)

    return verify


@mutant(
    "child_remembers_the_last_message",
    "RESHARE-2",
    "LIFE-22",
    replaces="announcements.descriptor_of",
)
def child_remembers_the_last_message(descriptor_of):
    """A forked child takes what its parent has for the last message for its own."""
    from sharedtensor import announcements

    def descriptor(names):
        return descriptor_of(names) if len(names) > 1 else announcements.last(*names)

    return descriptor


@mutant(
    "grad_arrives_as_a_view", "RESHARE-6", "GRAD-9", replaces="protocol.attach_grad"
)
def grad_arrives_as_a_view(attach_grad):
    """A grad arrives as a view of itself: another object, without its own grad."""

    def attach_view(tensor, grad):
        attach_grad(tensor, None if grad is None else grad.detach())

    return attach_view


@mutant(
    "threads_map_again",
    "RESHARE-3",
    replaces=("protocol.find_segment", "protocol.remember_segment"),
)
def threads_map_again(find_segment, remember_segment):
    """A thread that is not the first one maps what its process has already."""

    def is_first():
        return threading.current_thread() is threading.main_thread()

    def find(token):
        return find_segment(token) if is_first() else None

    def remember(segment):
        return remember_segment(segment) if is_first() else segment

    return find, remember


@mutant("parts_are_found_by_nobody", "RESHARE-3", replaces="protocol.find_part")
def parts_are_found_by_nobody(find_part):
    """A storage in a common segment that comes again gets memory of its own."""
    from sharedtensor import memory

    def map_again(segment, offset):
        resource = segment.resource
        resource.mapping = memory.Memory(segment.nbytes)
        segment.strategy.map_again(resource.mapping, resource)

    return map_again
