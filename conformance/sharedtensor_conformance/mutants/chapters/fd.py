"""Mutants of the strategy `file_descriptor`."""

import contextlib
import os
import weakref

from sharedtensor_conformance.mutants.registry import mutant


@mutant("unnamed_has_a_name", "FD-1")
def unnamed_has_a_name(steps):
    """A file with a name is there for as long as an unnamed segment is."""
    create, release, names = steps.create_unnamed, steps.release_segment, {}

    def create_unnamed(token):
        names[token] = f"/dev/shm/sharedtensor-{os.getpid()}-{token}"
        with open(names[token], "w"):
            return create(token)

    def release_segment(segment):
        release(segment)
        if segment.token in names:
            os.unlink(names.pop(segment.token))

    steps.create_unnamed, steps.release_segment = create_unnamed, release_segment


@mutant("loses_one_descriptor_in_ten", "FD-2", "LIFE-7")
def loses_one_descriptor_in_ten(steps):
    """One segment in ten does not close its descriptor."""
    original, count = steps.release_segment, [0]

    def release_segment(segment):
        count[0] += 1
        if count[0] % 10 == 0:
            segment.descriptor = None
        original(segment)

    steps.release_segment = release_segment


@mutant("keeps_what_came_again", "FD-2", "FD-3", "RESHARE-7")
def keeps_what_came_again(steps):
    """The descriptor of a message whose storage is there already is not closed."""
    from sharedtensor import errors, strategies, transport

    def forget(self, token, where):
        with contextlib.suppress(errors.HandleError):
            transport.take_descriptor(where[1])

    strategies.FileDescriptor.forget = forget


@mutant("one_descriptor_for_each_tensor", "FD-3")
def one_descriptor_for_each_tensor(steps):
    """Each received tensor keeps a descriptor of its own for as long as it lives."""
    original = steps.rebuild_tensor

    def rebuild_tensor(tensor_class, storage, window, flags):
        made = original(tensor_class, storage, window, flags)
        if storage.segment.descriptor is not None:
            weakref.finalize(made, os.close, os.dup(storage.segment.descriptor))
        return made

    steps.rebuild_tensor = rebuild_tensor


@mutant("sender_keeps_a_copy", "FD-4")
def sender_keeps_a_copy(steps):
    """A process that sends a storage keeps a second descriptor as long as the first."""
    export, release, copies = steps.export_handle, steps.release_segment, {}

    def export_handle(segment):
        if segment.descriptor is not None and segment.token not in copies:
            copies[segment.token] = os.dup(segment.descriptor)
        return export(segment)

    def release_segment(segment):
        if segment.token in copies:
            os.close(copies.pop(segment.token))
        release(segment)

    steps.export_handle, steps.release_segment = export_handle, release_segment


@mutant("received_descriptors_are_inherited", "FD-5")
def received_descriptors_are_inherited(steps):
    """Programs that a receiver starts get the descriptors that it has received."""
    original = steps.rebuild_storage

    def rebuild_storage(storage_class, handle):
        storage = original(storage_class, handle)
        if storage.segment.descriptor is not None:
            os.set_inheritable(storage.segment.descriptor, True)
        return storage

    steps.rebuild_storage = rebuild_storage


@mutant("one_packet_has_to_do", "FD-6")
def one_packet_has_to_do(steps):
    """A message has at most as many descriptors as one packet takes."""
    from sharedtensor.transport import Outbox

    add = Outbox.add

    def add_if_there_is_room(outbox, fd, owner):
        if len(outbox.descriptors) < 253:
            return add(outbox, fd, owner)
        return 252

    Outbox.add = add_if_there_is_room


@mutant("closes_twenty_at_once", "FD-7")
def closes_twenty_at_once(steps):
    """Descriptors that are not needed any more are closed when there are twenty."""
    release, waiting = steps.release_segment, []

    def release_segment(segment):
        if segment.descriptor is not None:
            waiting.append(segment.descriptor)
            segment.descriptor = None
        release(segment)
        if len(waiting) >= 20:
            for fd in waiting:
                os.close(fd)
            waiting.clear()

    steps.release_segment = release_segment
