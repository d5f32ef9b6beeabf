"""Mutants of who must outlive whom."""

import os
import sys
import tempfile
from multiprocessing import resource_sharer, util

from sharedtensor_conformance.mutants import mutant


@mutant("wipes_on_release", "LIFE-1", "LIFE-2")
def wipes_on_release(steps):
    """Who made a segment clears it when it drops its tensor."""
    move, release, made = steps.move_storage, steps.release_segment, set()

    def move_storage(storage):
        move(storage)
        made.add(storage.segment.token)

    def release_segment(segment):
        if segment.token in made and segment.descriptor is not None:
            os.pwrite(segment.descriptor, bytes(segment.nbytes), 0)
        release(segment)

    steps.move_storage, steps.release_segment = move_storage, release_segment


@mutant("nothing_is_in_flight", "LIFE-2", "LIFE-5")
def nothing_is_in_flight(steps):
    """The manager is not told of messages: a name goes with those who hold it."""
    steps.post_names = lambda outbox: None


@mutant("wipes_at_exit", "LIFE-3")
def wipes_at_exit(steps):
    """A process that exits normally clears all that it shares."""

    def wipe():
        for storage in list(steps.known.values()):
            storage.bytes[:] = 0

    util.Finalize(None, wipe, exitpriority=1)


@mutant("needs_the_maker_alive", "LIFE-3", "LIFE-4")
def needs_the_maker_alive(steps):
    """A storage cannot be sent on when the process that made it has gone."""
    export, storage_of = steps.export_handle, steps.rebuild_storage
    makers = {}

    def export_handle(segment):
        maker = makers.get(segment.token, os.getpid())
        os.kill(maker, 0)
        name, token, nbytes, where = export(segment)
        return name, token, nbytes, (where, maker)

    def rebuild_storage(storage_class, handle):
        name, token, nbytes, (where, maker) = handle
        makers[token] = maker
        return storage_of(storage_class, (name, token, nbytes, where))

    steps.export_handle, steps.rebuild_storage = export_handle, rebuild_storage


@mutant("sender_hands_out_descriptors", "LIFE-5")
def sender_hands_out_descriptors(steps):
    """A descriptor stays with its sender until the receiver asks for it."""
    from sharedtensor import transport

    spawned = transport.export_descriptor

    def export_descriptor(fd, owner=None):
        sending = transport._current.outbox is not None
        return resource_sharer.DupFd(fd) if sending else spawned(fd, owner)

    transport.export_descriptor = export_descriptor


@mutant("gives_zeros_for_what_is_lost", "LIFE-6", "LIFE-5")
def gives_zeros_for_what_is_lost(steps):
    """What its sender can no longer hand out arrives as zeros."""
    sender_hands_out_descriptors(steps)
    original = steps.rebuild_storage

    def rebuild_storage(storage_class, handle):
        try:
            return original(storage_class, handle)
        except Exception:
            return storage_class(handle[2])

    steps.rebuild_storage = rebuild_storage


@mutant("keeps_one_storage_in_ten", "LIFE-7", "FD-2")
def keeps_one_storage_in_ten(steps):
    """One shared storage in ten is never let go of."""
    original, count, kept = steps.remember_storage, [0], []

    def remember_storage(storage):
        count[0] += 1
        if count[0] % 10 == 0:
            kept.append(storage)
        return original(storage)

    steps.remember_storage = remember_storage


@mutant("refused_message_stays_posted", "LIFE-7")
def refused_message_stays_posted(steps):
    """What was collected for a message that is then refused is never let go of."""
    from sharedtensor.transport import Outbox

    clear, kept = Outbox.clear, []

    def clear_what_was_sent(outbox):
        if sys.exc_info()[0]:
            kept.append(outbox.keep)
        clear(outbox)

    Outbox.clear = clear_what_was_sent


@mutant("sender_keeps_its_end", "LIFE-8", "FS-2")
def sender_keeps_its_end(steps):
    """A name counts as in flight until the process that sent it ends."""
    post, kept = steps.post_names, []

    def post_names(outbox):
        post(outbox)
        kept.extend(os.dup(fd) for fd in outbox.descriptors)

    steps.post_names = post_names


@mutant("leaves_a_file", "LIFE-9")
def leaves_a_file(steps):
    """A process that shares leaves a temporary file behind when it exits."""
    util.Finalize(None, lambda: tempfile.mkstemp("-shared"), exitpriority=1)


@mutant("manager_stays", "MGR-3", "MGR-2", "LIFE-9", "LIFE-10")
def manager_stays(steps):
    """The manager waits for an hour after its last user has gone."""
    from sharedtensor.manager import launch

    launch.grace_period = lambda: 3600.0


@mutant("forked_child_gives_up_for_its_parent", "LIFE-11")
def forked_child_gives_up_for_its_parent(steps):
    """A forked child that drops what it inherited clears it, or removes its name."""
    move, release, makers = steps.move_storage, steps.release_segment, {}

    def move_storage(storage):
        move(storage)
        makers[storage.segment.token] = os.getpid()

    def release_segment(segment):
        if makers.get(segment.token, os.getpid()) != os.getpid():
            if segment.descriptor is None:
                os.unlink(f"/dev/shm/{segment.token}")
            else:
                os.pwrite(segment.descriptor, bytes(segment.nbytes), 0)
        release(segment)

    steps.move_storage, steps.release_segment = move_storage, release_segment
