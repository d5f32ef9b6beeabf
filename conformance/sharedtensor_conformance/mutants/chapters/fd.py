"""Mutants of the strategy `file_descriptor`."""

import contextlib
import os
import weakref

from sharedtensor_conformance.mutants.registry import mutant


@mutant(
    "unnamed_has_a_name",
    "FD-1",
    replaces=("segments.create_unnamed", "strategies.release_segment"),
)
def unnamed_has_a_name(create_unnamed, release_segment):
    """A file with a name is there for as long as an unnamed segment is."""
    names = {}

    def create(token, owner):
        names[token] = f"/dev/shm/sharedtensor-{os.getpid()}-{token}"
        with open(names[token], "w"):
            return create_unnamed(token, owner)

    def release(segment):
        release_segment(segment)
        if segment.token in names:
            os.unlink(names.pop(segment.token))

    return create, release


def _with_names(is_named, release_segment):
    """Return what gives a segment a file with a name, and what releases both.

    The file is made for the segments of which `is_named` is true.
    """
    names = {}

    def give_name(segment):
        if is_named(segment) and segment.token not in names:
            names[segment.token] = (
                f"/dev/shm/sharedtensor-{os.getpid()}-{segment.token}"
            )
            with open(names[segment.token], "w"):
                pass

    def release(segment):
        release_segment(segment)
        if segment.token in names:
            os.unlink(names.pop(segment.token))

    return give_name, release


@mutant(
    "large_or_common_segment_has_a_name",
    "FD-1",
    replaces=("protocol.remember_segment", "strategies.release_segment"),
)
def large_or_common_segment_has_a_name(remember_segment, release_segment):
    """A segment of more than 1 MiB, or of several storages, has a file with a name."""

    def is_named(segment):
        return segment.nbytes > 1 << 20 or len(segment.storages) > 1

    give_name, release = _with_names(is_named, release_segment)

    def remember(segment):
        if segment.strategy.name == "file_descriptor":
            give_name(segment)
        return remember_segment(segment)

    return remember, release


@mutant(
    "current_strategy_gives_names",
    "FD-1",
    replaces=("strategies.FileDescriptor.export", "strategies.release_segment"),
)
def current_strategy_gives_names(export, release_segment):
    """Who sends a storage while `file_system` is current gives it a name."""
    from sharedtensor import state

    def is_named(segment):
        return state.strategy == "file_system"

    give_name, release = _with_names(is_named, release_segment)

    def export_with_a_name(self, segment):
        give_name(segment)
        return export(self, segment)

    return export_with_a_name, release


@mutant(
    "loses_one_descriptor_in_ten",
    "FD-2",
    "LIFE-7",
    replaces="strategies.release_segment",
)
def loses_one_descriptor_in_ten(release_segment):
    """One segment in ten does not close its descriptor."""
    count = [0]

    def release(segment):
        count[0] += 1
        if count[0] % 10 == 0:
            segment._descriptor.fd = -1
        release_segment(segment)

    return release


@mutant(
    "keeps_what_came_again",
    "FD-2",
    "FD-3",
    "RESHARE-7",
    replaces="strategies.FileDescriptor.discard_handle",
)
def keeps_what_came_again(discard_handle):
    """The descriptor of a message whose storage is there already is not closed."""
    from sharedtensor import errors, transport

    def keep(self, token, where):
        with contextlib.suppress(errors.HandleError):
            owned = transport.take_descriptor(where[1])
            owned._descriptor.fd = -1

    return keep


@mutant(
    "fetches_nothing_that_comes_again",
    "FD-4",
    replaces="strategies.FileDescriptor.discard_handle",
)
def fetches_nothing_that_comes_again(discard_handle):
    """What a message has of a storage that is there already stays with its sender."""
    return lambda self, token, where: None


@mutant("one_descriptor_for_each_tensor", "FD-3", replaces="protocol.rebuild_tensor")
def one_descriptor_for_each_tensor(rebuild_tensor):
    """Each received tensor keeps a descriptor of its own for as long as it lives."""

    def rebuild(tensor_class, storage, window, flags):
        made = rebuild_tensor(tensor_class, storage, window, flags)
        if storage.segment.fd >= 0:
            weakref.finalize(made, os.close, os.dup(storage.segment.fd))
        return made

    return rebuild


@mutant(
    "sender_keeps_a_copy",
    "FD-4",
    replaces=("protocol.export_handle", "strategies.release_segment"),
)
def sender_keeps_a_copy(export_handle, release_segment):
    """A process that sends a storage keeps a second descriptor as long as the first."""
    copies = {}

    def export(segment):
        if segment.fd >= 0 and segment.token not in copies:
            copies[segment.token] = os.dup(segment.fd)
        return export_handle(segment)

    def release(segment):
        if segment.token in copies:
            os.close(copies.pop(segment.token))
        release_segment(segment)

    return export, release


@mutant(
    "received_descriptors_are_inherited", "FD-5", replaces="protocol.rebuild_storage"
)
def received_descriptors_are_inherited(rebuild_storage):
    """Programs that a receiver starts get the descriptors that it has received."""

    def rebuild(segment, *part):
        storage = rebuild_storage(segment, *part)
        if storage.segment.fd >= 0:
            os.set_inheritable(storage.segment.fd, True)
        return storage

    return rebuild


@mutant("one_packet_has_to_do", "FD-6", replaces="transport.Outbox.add")
def one_packet_has_to_do(add):
    """A message has at most as many descriptors as one packet takes."""

    def add_if_there_is_room(outbox, fd, owner):
        return add(outbox, fd, owner) if len(outbox.descriptors) < 253 else 252

    return add_if_there_is_room


@mutant("arguments_are_all_inherited", "FD-6", replaces="transport.SENT_TO_FORK_SERVER")
def arguments_are_all_inherited(inherited_at_most):
    """A child inherits all descriptors, of which the fork server accepts 256."""
    return 1 << 20


@mutant("closes_twenty_at_once", "FD-7", replaces="strategies.release_segment")
def closes_twenty_at_once(release_segment):
    """Descriptors that are not needed any more are closed when there are twenty."""
    waiting = []

    def release(segment):
        if segment.fd >= 0:
            waiting.append(segment.fd)
            segment._descriptor.fd = -1
        release_segment(segment)
        if len(waiting) >= 20:
            for fd in waiting:
                os.close(fd)
            waiting.clear()

    return release


@mutant(
    "arguments_are_inherited",
    "FD-5",
    replaces="transport.take_inherited",
    histories="test_histories_with_programs*-spawn",
)
def arguments_are_inherited(take_inherited):
    """What a spawned process got among its arguments goes to the programs it starts."""

    def take(handles):
        received = take_inherited(handles)
        for fd in received.places:
            os.set_inheritable(fd, True)
        return received

    return take


@mutant(
    "batch_is_inherited",
    "FD-5",
    "LIFE-23",
    replaces="multiprocessing.packets.open_batch",
)
def batch_is_inherited(open_batch):
    """Programs that a receiver starts get what came beside a packet that was full."""

    def open_for_all(descriptors, count):
        open_batch(descriptors, count)
        for fd in descriptors.places:
            os.set_inheritable(fd, True)

    return open_for_all


@mutant(
    "last_large_storage_is_kept",
    "FD-4",
    "LIFE-7",
    replaces="protocol.rebuild_storage",
)
def last_large_storage_is_kept(rebuild_storage):
    """A receiver keeps the last storage of 1 MiB or more, should it come again."""
    last = []

    def rebuild_and_keep(segment, *part):
        storage = rebuild_storage(segment, *part)
        if storage.segment is not None and storage.segment.nbytes >= 1 << 20:
            last[:] = [storage]
        return storage

    return rebuild_and_keep


@mutant(
    "descriptor_zero_is_none",
    "FD-2",
    "FD-4",
    replaces="strategies.FileDescriptor.release",
)
def descriptor_zero_is_none(release):
    """A segment whose descriptor is 0 is released as one that has none."""

    def release_but_zero(self, segment):
        segment._descriptor.fd = segment.fd or -1
        release(self, segment)

    return release_but_zero


class _ClosedTogether:
    """Descriptors that are closed with the last reference to this object."""

    def __init__(self):
        self.descriptors = []

    def __del__(self):
        for fd in self.descriptors:
            os.close(fd)


@mutant(
    "message_is_given_back_as_a_whole",
    "FD-4",
    replaces=("strategies.FileDescriptor.open", "strategies.FileDescriptor.release"),
)
def message_is_given_back_as_a_whole(open_segment, release):
    """A receiver closes the descriptors of a message with the last of its storages."""
    from sharedtensor import transport

    together, of_segments = weakref.WeakKeyDictionary(), {}

    def open_and_bind(self, target, token, nbytes, where):
        segment = open_segment(self, target, token, nbytes, where)
        inbox = transport.current_inbox()
        bound = together.setdefault(inbox, _ClosedTogether())
        bound.descriptors.append(segment.fd)
        of_segments[token] = bound
        return segment

    def release_unless_bound(self, segment):
        if of_segments.pop(segment.token, None):
            segment._descriptor.fd = -1
        release(self, segment)

    return open_and_bind, release_unless_bound


@mutant("small_storages_move_alone", "FD-8", replaces="protocol.is_small")
def small_storages_move_alone(is_small):
    """Each storage gets a segment of its own, however small it is."""
    return lambda storage: False
