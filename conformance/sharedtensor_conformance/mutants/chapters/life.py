"""Mutants of who must outlive whom."""

import fcntl
import mmap
import os
import signal
import socket
import struct
import sys
import tempfile
import termios
import threading
import time
import weakref
from multiprocessing import resource_sharer, util

from sharedtensor_conformance.mutants.registry import mutant


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


@mutant("counts_what_is_in_flight", "LIFE-13", "FS-10")
def counts_what_is_in_flight(steps):
    """A message's names are counted when it is put, and counted down by its receiver.

    So nobody counts down for a message that is never received.
    """
    from sharedtensor import transport

    transport.export_name = lambda *ignored: transport.COUNTED


@mutant("waits_until_its_messages_are_read", "LIFE-14")
def waits_until_its_messages_are_read(steps):
    """A process does not exit before everything that it has put is received."""
    write = steps.write_at_once

    def wait(fd):
        while struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))[0]:
            time.sleep(0.01)

    def write_at_once(message, connection):
        util.Finalize(None, wait, (os.dup(connection.fileno()),), exitpriority=20)
        return write(message, connection)

    steps.write_at_once = write_at_once


@mutant("every_fifth_message_goes_twice", "LIFE-15")
def every_fifth_message_goes_twice(steps):
    """One message in five is written to its queue again."""
    write, count = steps.write_message, [0]

    def write_again(message, connection):
        count[0] += 1
        if count[0] % 5 == 0:
            connection.write(message.payload, message.outbox.descriptors)
        write(message, connection)

    steps.write_message = write_again
    steps.write_at_once = lambda *arguments: write_again(*arguments) or True


@mutant("waiting_reader_has_the_lock", "LIFE-16")
def waiting_reader_has_the_lock(steps):
    """Who waits for a message on a queue has a lock that its other readers need."""
    from sharedtensor.multiprocessing import queues

    def locked(get):
        def get_alone(queue, *arguments):
            with queue._rlock:
                return get(queue, *arguments)

        return get_alone

    for kind in (queues.Queue, queues.SimpleQueue):
        kind.get = locked(kind.get)


@mutant("first_drop_gives_up_the_storage", "LIFE-17")
def first_drop_gives_up_the_storage(steps):
    """Of several tensors over a received storage, the first that goes takes it along.

    The memory stays mapped, so that only sending another one shows it.
    """
    original = steps.rebuild_tensor

    def rebuild_tensor(tensor_class, storage, window, flags):
        made = original(tensor_class, storage, window, flags)
        weakref.finalize(made, steps.release_segment, storage.segment)
        return made

    steps.rebuild_tensor = rebuild_tensor


@mutant("keeps_what_it_could_not_pickle", "LIFE-18")
def keeps_what_it_could_not_pickle(steps):
    """The object of a put that failed is kept."""
    pack, kept = steps.pack_message, []

    def pack_message(obj):
        try:
            return pack(obj)
        except ValueError:
            kept.append(obj)
            raise

    steps.pack_message = pack_message


@mutant("failed_receive_keeps_the_rest", "LIFE-19")
def failed_receive_keeps_the_rest(steps):
    """What an exception leaves in a received message is not closed."""
    from sharedtensor.transport import Inbox

    close = Inbox.close

    def close_unless_it_failed(inbox):
        if not sys.exc_info()[0]:
            close(inbox)

    Inbox.close = close_unless_it_failed


@mutant("wipes_when_it_is_terminated", "LIFE-20")
def wipes_when_it_is_terminated(steps):
    """A process that gets SIGTERM clears all that it shares, and ends."""

    def wipe(number, frame):
        for storage in list(steps.known.values()):
            storage.bytes[:] = 0
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, wipe)


@mutant("wipes_at_exit_what_it_sent_on", "LIFE-21")
def wipes_at_exit_what_it_sent_on(steps):
    """A process that exits clears what it has received and sent on."""
    received, export, rebuild = [], steps.export_storage, steps.rebuild_storage

    def rebuild_storage(storage_class, handle):
        received.append(handle[1])
        return rebuild(storage_class, handle)

    def export_storage(storage):
        if storage.segment and storage.segment.token in received:
            util.Finalize(None, storage.bytes.fill, (0,), exitpriority=1)
        return export(storage)

    steps.rebuild_storage, steps.export_storage = rebuild_storage, export_storage


@mutant("parent_gives_up_for_its_children", "LIFE-22")
def parent_gives_up_for_its_children(steps):
    """A parent that drops what a forked child has inherited clears it."""
    release, inherited = steps.release_segment, {}

    def note():
        held = steps.known.values()
        inherited.update({s.segment.token: s.bytes for s in list(held)})

    def release_segment(segment):
        if segment.token in inherited:
            inherited.pop(segment.token)[:] = 0
        release(segment)

    os.register_at_fork(after_in_parent=note, after_in_child=inherited.clear)
    steps.release_segment = release_segment


@mutant("thread_for_each_message", "LIFE-12")
def thread_for_each_message(steps):
    """Each tensor that arrives starts a thread that waits for ever."""
    rebuild = steps.rebuild_storage

    def rebuild_storage(storage_class, handle):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return rebuild(storage_class, handle)

    steps.rebuild_storage = rebuild_storage


@mutant("file_for_each_message", "LIFE-12")
def file_for_each_message(steps):
    """Each tensor that is sent leaves an empty temporary file."""
    export = steps.export_handle

    def export_handle(segment):
        os.close(tempfile.mkstemp()[0])
        return export(segment)

    steps.export_handle = export_handle


@mutant("socket_for_each_message", "LIFE-12")
def socket_for_each_message(steps):
    """Each tensor that is sent leaves a socket open."""
    export = steps.export_handle

    def export_handle(segment):
        socket.socket(socket.AF_UNIX).detach()
        return export(segment)

    steps.export_handle = export_handle


@mutant("descriptors_survive_exec", "LIFE-23")
def descriptors_survive_exec(steps):
    """Another program that replaces a process has the descriptors of its storages."""
    map_segment = steps.map_segment

    def map_inheritable(target, fd):
        os.set_inheritable(fd, True)
        map_segment(target, fd)

    steps.map_segment = map_inheritable


@mutant("closed_channel_ends_the_sharing", "LIFE-24")
def closed_channel_ends_the_sharing(steps):
    """When a channel is closed, what came over it becomes a copy at its next write."""
    from sharedtensor import memory
    from sharedtensor.multiprocessing.connection import Connection

    rebuild, close, received = steps.rebuild_storage, Connection._close, []

    def rebuild_storage(storage_class, handle):
        received.append(rebuild(storage_class, handle))
        return received[-1]

    def close_all(connection, *ignored):
        close(connection)
        for storage in received:
            if storage.segment.descriptor is not None:
                fd = storage.segment.descriptor
                memory.remap(storage.memory, fd, mmap.MAP_PRIVATE)
        received.clear()

    steps.rebuild_storage, Connection._close = rebuild_storage, close_all


@mutant("main_thread_alone_gives_back", "LIFE-25")
def main_thread_alone_gives_back(steps):
    """What another thread drops is not given back."""
    release = steps.release_segment

    def release_segment(segment):
        if threading.current_thread() is threading.main_thread():
            release(segment)

    steps.release_segment = release_segment
