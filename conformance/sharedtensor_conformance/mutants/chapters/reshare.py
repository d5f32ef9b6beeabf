"""Mutants of sharing what is shared already."""

import io
from multiprocessing.reduction import ForkingPickler

from sharedtensor_conformance.mutants.registry import mutant


@mutant("moves_again_on_share", "RESHARE-1")
def moves_again_on_share(steps):
    """`share_memory_()` moves a shared storage to a new segment at its old address."""
    original = steps.share_tensor

    def share_tensor(tensor):
        tensor.storage.segment = None
        original(tensor)

    steps.share_tensor = share_tensor


@mutant("copies_on_reshare", "RESHARE-2", "CHAN-5", "SHARE-4")
def copies_on_reshare(steps):
    """A storage that is shared already is moved again when it is sent."""
    original = steps.export_storage

    def export_storage(storage):
        storage.segment = None
        return original(storage)

    steps.export_storage = export_storage


@mutant("maps_again", "RESHARE-3", "RESHARE-4", "FD-3")
def maps_again(steps):
    """A storage that the receiver holds is mapped once more, shared as it should be."""
    steps.find_storage = lambda token: None
    steps.remember_storage = lambda storage: storage


@mutant("owner_maps_again", "RESHARE-4")
def owner_maps_again(steps):
    """Only storages that were received are found again, not those made here."""
    original, move = steps.remember_storage, steps.move_storage

    def move_storage(storage):
        steps.remember_storage = lambda storage: storage
        try:
            move(storage)
        finally:
            steps.remember_storage = original

    steps.move_storage = move_storage


@mutant("sends_on_a_copy", "RESHARE-5", "RESHARE-4", "GRAD-8")
def sends_on_a_copy(steps):
    """A storage that was received is sent on as a copy."""
    export, rebuild, received = steps.export_storage, steps.rebuild_storage, set()

    def rebuild_storage(storage_class, handle):
        found = steps.find_storage(handle[1]) is None
        storage = rebuild(storage_class, handle)
        if found:
            received.add(handle[1])
        return storage

    def export_storage(storage):
        token = storage.segment.token if storage.segment else None
        return export(storage.clone() if token in received else storage)

    steps.rebuild_storage = rebuild_storage
    steps.export_storage = export_storage


@mutant("forgets_identity", "RESHARE-6")
def forgets_identity(steps):
    """Each mention of a tensor in a message arrives as a tensor of its own."""
    dumps = ForkingPickler.dumps

    def without_memo(obj, protocol=None):
        buffer = io.BytesIO()
        pickler = ForkingPickler(buffer, protocol)
        pickler.fast = True
        pickler.dump(obj)
        return buffer.getbuffer()

    original = steps.pack_message

    def pack_message(obj):
        ForkingPickler.dumps = staticmethod(without_memo)
        try:
            return original(obj)
        finally:
            ForkingPickler.dumps = dumps

    steps.pack_message = pack_message


@mutant("round_trip_keeps_a_mapping", "RESHARE-7")
def round_trip_keeps_a_mapping(steps):
    """Each time that a known storage comes again, a mapping of it stays."""
    from sharedtensor import Storage

    original, kept = steps.verify_known, []

    def verify_known(storage, nbytes):
        extra = Storage(nbytes)
        steps.share_storage(extra)
        kept.append(extra)
        return original(storage, nbytes)

    steps.verify_known = verify_known
