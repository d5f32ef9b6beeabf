"""Mutants of lifetimes: of storages, messages, processes and their resources."""

import atexit
import fcntl
import mmap
import os
import queue
import signal
import socket
import stat
import struct
import sys
import tempfile
import termios
import threading
import time
import weakref
from multiprocessing import parent_process, queues, resource_sharer, util

from sharedtensor_conformance.mutants.held import held_alone, private_segment
from sharedtensor_conformance.mutants.registry import mutant


def _once(prepare, remember_segment):
    """Return a `remember_segment` that first calls `prepare`, once in each process."""
    prepared = set()

    def remember(segment):
        if os.getpid() not in prepared:
            prepared.add(os.getpid())
            prepare()
        return remember_segment(segment)

    return remember


def _wipe_all():
    for storage in held_alone():
        storage.bytes[:] = 0


@mutant(
    "wipes_on_release",
    "LIFE-1",
    "LIFE-2",
    replaces=("protocol.move_storage", "strategies.release_segment"),
)
def wipes_on_release(move_storage, release_segment):
    """Who made a segment clears it when it drops its tensor."""
    made = set()

    def move(storage):
        move_storage(storage)
        made.add(storage.segment.token)

    def release(segment):
        if segment.token in made and segment.fd >= 0:
            os.pwrite(segment.fd, bytes(segment.nbytes), 0)
        release_segment(segment)

    return move, release


@mutant("nothing_is_in_flight", "LIFE-2", "LIFE-5", replaces="protocol.announce_names")
def nothing_is_in_flight(announce_names):
    """Messages hold no names: a name goes with the processes that hold it."""
    return lambda outbox: None


@mutant("wipes_at_exit", "LIFE-3", replaces="protocol.remember_segment")
def wipes_at_exit(remember_segment):
    """A process that exits normally clears all that it shares."""
    return _once(
        lambda: util.Finalize(None, _wipe_all, exitpriority=1), remember_segment
    )


@mutant(
    "needs_the_maker_alive",
    "LIFE-3",
    "LIFE-4",
    replaces=("protocol.export_handle", "protocol.rebuild_segment"),
)
def needs_the_maker_alive(export_handle, rebuild_segment):
    """A storage cannot be sent on when the process that made it has gone."""
    makers = {}

    def export(segment):
        maker = makers.get(segment.token, os.getpid())
        os.kill(maker, 0)
        name, token, nbytes, where = export_handle(segment)
        return name, token, nbytes, (where, maker)

    def rebuild(handle):
        name, token, nbytes, (where, maker) = handle
        makers[token] = maker
        return rebuild_segment((name, token, nbytes, where))

    return export, rebuild


@mutant(
    "exit_of_the_program_empties_its_channels",
    "LIFE-5",
    "FAULT-1",
    replaces="multiprocessing.connection.Connection.__init__",
)
def exit_of_the_program_empties_its_channels(init):
    """A main program that exits discards what its children have not received yet."""
    readers = []

    def discard():
        for reader in readers if parent_process() is None else ():
            while not reader.closed and reader.poll(0):
                reader.receive()

    atexit.register(discard)

    def make(self, *arguments, **options):
        init(self, *arguments, **options)
        if self.readable:
            readers.append(self)

    return make


@mutant(
    "sender_hands_out_descriptors", "LIFE-5", replaces="transport.export_descriptor"
)
def sender_hands_out_descriptors(export_descriptor):
    """A descriptor stays with its sender until the receiver asks for it."""
    from sharedtensor import transport

    def export(fd, owner=None):
        if transport.current_outbox() is not None:
            return resource_sharer.DupFd(fd)
        return export_descriptor(fd, owner)

    return export


@mutant(
    "gives_zeros_for_what_is_lost",
    "LIFE-6",
    "LIFE-5",
    replaces=("transport.export_descriptor", "protocol.rebuild_segment"),
)
def gives_zeros_for_what_is_lost(export_descriptor, rebuild_segment):
    """What its sender can no longer hand out arrives as zeros."""

    def rebuild(handle):
        try:
            return rebuild_segment(handle)
        except Exception:
            return private_segment(handle[2])

    return sender_hands_out_descriptors(export_descriptor), rebuild


@mutant(
    "waits_for_the_rest_of_a_message",
    "LIFE-6",
    replaces=("multiprocessing.packets.write", "multiprocessing.packets.read"),
)
def waits_for_the_rest_of_a_message(write, read):
    """A long message is written in many parts, and its reader waits for all of them.

    It does so though its only writer has gone.
    """
    from sharedtensor.multiprocessing import packets

    def write_in_parts(end, payload, descriptors, *how):
        size = memoryview(payload).nbytes
        for _ in range(10_000 if size > packets.LARGEST_PACKET else 0):
            write(end, b"the rest comes", (), *how[:2])
        write(end, payload, descriptors, *how)

    def read_all(*how):
        found = read(*how)
        while bytes(found[0]) == b"the rest comes":
            try:
                found = read(*how[:2])
            except (BlockingIOError, EOFError):
                time.sleep(0.01)
        return found

    return write_in_parts, read_all


@mutant(
    "keeps_one_storage_in_ten",
    "LIFE-7",
    "FD-2",
    replaces="protocol.remember_segment",
)
def keeps_one_storage_in_ten(remember_segment):
    """One shared storage in ten is never let go of."""
    count, kept = [0], []

    def remember(segment):
        count[0] += 1
        if count[0] % 10 == 0:
            kept.append(segment)
        return remember_segment(segment)

    return remember


@mutant("refused_message_stays_posted", "LIFE-7", replaces="transport.Outbox.clear")
def refused_message_stays_posted(clear):
    """What was collected for a message that is then refused is never let go of."""
    kept = []

    def clear_what_was_sent(outbox):
        if sys.exc_info()[0]:
            kept.append((outbox.keep, outbox.storages))
        clear(outbox)

    return clear_what_was_sent


@mutant("sender_keeps_its_end", "LIFE-8", "FS-2", replaces="protocol.announce_names")
def sender_keeps_its_end(announce_names):
    """A name counts as in flight until the process that sent it ends."""
    kept = []

    def announce(outbox):
        announce_names(outbox)
        kept.extend(os.dup(fd) for fd in outbox.descriptors)

    return announce


@mutant("leaves_a_file", "LIFE-9", replaces="protocol.remember_segment")
def leaves_a_file(remember_segment):
    """A process that shares leaves a temporary file behind when it exits."""

    def prepare():
        util.Finalize(None, tempfile.mkstemp, ("-shared",), exitpriority=1)

    return _once(prepare, remember_segment)


@mutant("file_of_a_call_to_exit", "LIFE-9", replaces="multiprocessing.spawning._call")
def file_of_a_call_to_exit(call):
    """Of a group's process that calls `sys.exit` a temporary file is left."""

    def call_with_a_file(*arguments):
        descriptor, path = tempfile.mkstemp("-outcome")
        os.close(descriptor)
        call(*arguments)
        os.unlink(path)

    return call_with_a_file


@mutant(
    "child_keeps_what_its_parent_has_put",
    "LIFE-7",
    replaces="multiprocessing.queues._withdraw",
)
def child_keeps_what_its_parent_has_put(withdraw):
    """A forked child keeps the messages that wait in a queue of its parent."""
    kept = []
    return lambda buffer: kept.append(list(buffer))


@mutant("one_large_storage_in_twenty_stays", "LIFE-7", replaces="protocol.move_storage")
def one_large_storage_in_twenty_stays(move_storage):
    """Each twentieth large storage that a process shares stays in it as it is."""
    kept, count = [], [0]

    def move(storage):
        move_storage(storage)
        count[0] += storage.nbytes >= 1 << 20
        if count[0] == 20:
            kept.append(storage)
            count[0] = 0

    return move


@mutant(
    "manager_stays",
    "MGR-3",
    "MGR-2",
    "LIFE-9",
    "LIFE-10",
    replaces="names.program.grace_period",
)
def manager_stays(grace_period):
    """The manager waits for an hour after its last user has gone."""
    return lambda: 3600.0


@mutant(
    "forked_child_gives_up_for_its_parent",
    "LIFE-11",
    replaces=("protocol.move_storage", "strategies.release_segment"),
)
def forked_child_gives_up_for_its_parent(move_storage, release_segment):
    """A forked child that drops what it inherited clears it, or removes its name."""
    makers = {}

    def move(storage):
        move_storage(storage)
        makers[storage.segment.token] = os.getpid()

    def release(segment):
        if makers.get(segment.token, os.getpid()) != os.getpid():
            if segment.fd < 0:
                os.unlink(f"/dev/shm/{segment.token}")
            else:
                os.pwrite(segment.fd, bytes(segment.nbytes), 0)
        release_segment(segment)

    return move, release


@mutant(
    "counts_what_is_in_flight",
    "LIFE-13",
    "FS-10",
    replaces=("protocol.announce_names", "protocol.unpack_message"),
)
def counts_what_is_in_flight(announce_names, unpack_message):
    """A sender holds the names of a message until its receiver says that it has them.

    If the message is never received, it holds them until it ends.
    """
    from sharedtensor.descriptors import OwnedDescriptor
    from sharedtensor.names import program

    unreceived = []

    def wait_for_receiver(held, here):
        if os.read(here.fd, 1):
            held.close()
        else:
            unreceived.append(held)

    def announce(outbox):
        if outbox.names:
            held = program.in_flight(outbox.names)
            here, there = OwnedDescriptor.pair_opened_by(os.pipe)
            outbox.add(there.fd, there)
            waiting = held, here
            threading.Thread(
                target=wait_for_receiver, args=waiting, daemon=True
            ).start()

    def unpack_and_say_so(payload, descriptors):
        for fd in descriptors.places:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b"+")
        return unpack_message(payload, descriptors)

    return announce, unpack_and_say_so


@mutant(
    "waiting_messages_keep_their_reader",
    "LIFE-13",
    replaces="multiprocessing.queues.Queue._start_thread",
)
def waiting_messages_keep_their_reader(start_thread):
    """The thread of a queue holds the end to receive from until it has written all.

    Where it alone holds that, it waits for room for ever.
    """
    from sharedtensor.descriptors import OwnedDescriptor

    def start(self):
        start_thread(self)
        reader = self._reader.fileno()
        self._thread.reader = OwnedDescriptor.opened_by(os.dup, reader)

    return start


@mutant("arguments_are_asked_for", "LIFE-13", replaces="transport.leave_to_child")
def arguments_are_asked_for(leave_to_child):
    """A process that is started asks its parent for what is among its arguments."""
    from multiprocessing import resource_sharer

    return resource_sharer.DupFd


@mutant(
    "refused_start_keeps_its_segments",
    "LIFE-18",
    replaces=("protocol.pack_for_child", "protocol.export_handle"),
)
def refused_start_keeps_its_segments(pack_for_child, export_handle):
    """Where a process cannot be started, what was exported for it stays."""
    from sharedtensor import transport

    exported, kept = [], []

    def export(segment):
        if transport.is_spawning():
            exported.append(segment)
        return export_handle(segment)

    def pack(obj):
        try:
            return pack_for_child(obj)
        except BaseException:
            kept.extend(exported)
            raise
        finally:
            exported.clear()

    return pack, export


@mutant(
    "waits_until_its_messages_are_read", "LIFE-14", replaces="protocol.write_at_once"
)
def waits_until_its_messages_are_read(write_at_once):
    """A process does not exit before everything that it has put is received."""

    def wait(fd):
        while struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))[0]:
            time.sleep(0.01)

    def write(message, channel):
        util.Finalize(None, wait, (os.dup(channel.fileno()),), exitpriority=20)
        return write_at_once(message, channel)

    return write


@mutant(
    "every_fifth_message_goes_twice",
    "LIFE-15",
    replaces=("protocol.write_message", "protocol.write_at_once"),
)
def every_fifth_message_goes_twice(write_message, write_at_once):
    """One message in five is written to its queue again."""
    count = [0]

    def write_again(message, channel):
        count[0] += 1
        if count[0] % 5 == 0:
            channel.write(message.payload, message.descriptors)
        write_message(message, channel)

    return write_again, lambda *arguments: write_again(*arguments) or True


@mutant(
    "waiting_reader_has_the_lock",
    "LIFE-16",
    replaces=(
        "multiprocessing.queues.Queue.get",
        "multiprocessing.queues.SimpleQueue.get",
    ),
)
def waiting_reader_has_the_lock(get, get_from_simple_queue):
    """Who waits for a message on a queue has a lock that its other readers need."""

    def locked(get):
        def get_alone(queue, *arguments):
            with queue._rlock:
                return get(queue, *arguments)

        return get_alone

    return locked(get), locked(get_from_simple_queue)


@mutant(
    "first_drop_gives_up_the_storage", "LIFE-17", replaces="protocol.rebuild_tensor"
)
def first_drop_gives_up_the_storage(rebuild_tensor):
    """Of several tensors over a received storage, the first that goes takes it along.

    The memory stays mapped, so that only sending another one shows it.
    """
    from sharedtensor import strategies

    def rebuild(tensor_class, storage, window, flags):
        made = rebuild_tensor(tensor_class, storage, window, flags)
        weakref.finalize(made, strategies.release_segment, storage.segment.resource)
        return made

    return rebuild


@mutant("keeps_what_it_could_not_pickle", "LIFE-18", replaces="protocol.pack_message")
def keeps_what_it_could_not_pickle(pack_message):
    """The object of a put that failed is kept."""
    kept = []

    def pack(obj):
        try:
            return pack_message(obj)
        except ValueError:
            kept.append(obj)
            raise

    return pack


@mutant("tells_another_exception", "LIFE-19", replaces="protocol.unpack_message")
def tells_another_exception(unpack_message):
    """What an object of a message raises while it is rebuilt is told as a bad handle.

    The words are those of the object.
    """
    from sharedtensor import HandleError

    def unpack(*message):
        try:
            return unpack_message(*message)
        except Exception as error:
            raise HandleError(f"The message cannot be rebuilt: {error}") from error

    return unpack


@mutant(
    "pool_waits_for_what_is_not_rebuilt",
    "LIFE-19",
    replaces=("multiprocessing.pool.Tasks.get", "multiprocessing.pool.Results.get"),
)
def pool_waits_for_what_is_not_rebuilt(*gets):
    """A task or a result that raises while it is rebuilt ends who receives it."""
    from sharedtensor.multiprocessing.queues import SimpleQueue

    return tuple(SimpleQueue.get for _ in gets)


@mutant("failed_receive_keeps_the_rest", "LIFE-19", replaces="transport.Inbox.close")
def failed_receive_keeps_the_rest(close):
    """What an exception leaves in a received message is not closed."""

    def close_unless_it_failed(inbox):
        if sys.exc_info()[0]:
            inbox.descriptors.places.clear()  # else they are closed with the list
        close(inbox)

    return close_unless_it_failed


@mutant("wipes_when_it_is_terminated", "LIFE-20", replaces="protocol.remember_segment")
def wipes_when_it_is_terminated(remember_segment):
    """A process that gets SIGTERM clears all that it shares, and ends."""

    def wipe(number, frame):
        _wipe_all()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    return _once(lambda: signal.signal(signal.SIGTERM, wipe), remember_segment)


@mutant(
    "wipes_at_exit_what_it_sent_on",
    "LIFE-21",
    replaces=("protocol.export_storage", "protocol.rebuild_storage"),
)
def wipes_at_exit_what_it_sent_on(export_storage, rebuild_storage):
    """A process that exits clears what it has received and sent on."""
    received = []

    def export(storage):
        if storage.segment and storage.segment.token in received:
            util.Finalize(None, storage.bytes.fill, (0,), exitpriority=1)
        return export_storage(storage)

    def rebuild(segment, *part):
        received.append(segment.token)
        return rebuild_storage(segment, *part)

    return export, rebuild


@mutant(
    "wipes_what_it_sent_on_without_its_maker",
    "LIFE-21",
    replaces=("protocol.export_handle", "protocol.rebuild_segment"),
)
def wipes_what_it_sent_on_without_its_maker(export_handle, rebuild_segment):
    """A process that exits after the maker of a storage clears it if it sent it on."""
    makers = {}

    def wipe_if_gone(mapping, maker):
        try:
            os.kill(maker, 0)
        except ProcessLookupError:
            mapping.bytes[:] = bytes(mapping.nbytes)

    def export(segment):
        name, token, nbytes, where = export_handle(segment)
        maker = makers.get(token, os.getpid())
        if maker != os.getpid():
            sent = segment.resource.mapping, maker
            util.Finalize(None, wipe_if_gone, sent, exitpriority=1)
        return name, token, nbytes, (where, maker)

    def rebuild(handle):
        name, token, nbytes, (where, maker) = handle
        makers[token] = maker
        return rebuild_segment((name, token, nbytes, where))

    return export, rebuild


@mutant(
    "parent_gives_up_for_its_children",
    "LIFE-22",
    replaces="strategies.release_segment",
)
def parent_gives_up_for_its_children(release_segment):
    """A parent that drops what a forked child has inherited clears it."""
    inherited = {}

    def note():
        inherited.update({one.segment.token: one.bytes for one in held_alone()})

    def release(segment):
        if segment.token in inherited:
            inherited.pop(segment.token)[:] = 0
        release_segment(segment)

    os.register_at_fork(after_in_parent=note, after_in_child=inherited.clear)
    return release


@mutant("thread_for_each_message", "LIFE-12", replaces="protocol.rebuild_storage")
def thread_for_each_message(rebuild_storage):
    """Each tensor that arrives starts a thread that waits for ever."""

    def rebuild(segment, *part):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return rebuild_storage(segment, *part)

    return rebuild


@mutant("file_for_each_message", "LIFE-12", replaces="protocol.export_handle")
def file_for_each_message(export_handle):
    """Each tensor that is sent leaves an empty temporary file."""

    def export(segment):
        os.close(tempfile.mkstemp()[0])
        return export_handle(segment)

    return export


@mutant("socket_for_each_message", "LIFE-7", replaces="protocol.export_handle")
def socket_for_each_message(export_handle):
    """Each tensor that is sent leaves a socket open."""

    def export(segment):
        socket.socket(socket.AF_UNIX).detach()
        return export_handle(segment)

    return export


@mutant(
    "descriptors_survive_exec",
    "LIFE-23",
    replaces=("memory.move", "memory.map_segment"),
)
def descriptors_survive_exec(move, map_segment):
    """Another program that replaces a process has the descriptors of its storages."""

    def move_inheritable(source, fd, then):
        os.set_inheritable(fd, True)
        move(source, fd, then)

    def map_inheritable(target, fd):
        os.set_inheritable(fd, True)
        map_segment(target, fd)

    return move_inheritable, map_inheritable


@mutant(
    "closed_channel_ends_the_sharing",
    "LIFE-24",
    replaces=(
        "protocol.rebuild_storage",
        "multiprocessing.connection.Connection._close",
    ),
)
def closed_channel_ends_the_sharing(rebuild_storage, close):
    """When a channel is closed, what came over it becomes a copy at its next write."""
    from sharedtensor import memory

    received = []

    def rebuild(segment, *part):
        received.append(rebuild_storage(segment, *part))
        return received[-1]

    def close_all(connection, *ignored):
        close(connection)
        for storage in received:
            if storage.segment.fd >= 0:
                fd = storage.segment.fd
                memory.map_segment(storage.memory, fd, mmap.MAP_PRIVATE)
        received.clear()

    return rebuild, close_all


@mutant(
    "main_thread_alone_gives_back", "LIFE-25", replaces="strategies.release_segment"
)
def main_thread_alone_gives_back(release_segment):
    """What another thread drops is not given back."""

    def release(segment):
        if threading.current_thread() is threading.main_thread():
            release_segment(segment)

    return release


@mutant(
    "closing_cancels_the_join",
    "LIFE-5",
    replaces="multiprocessing.queues.Queue.close",
)
def closing_cancels_the_join(close):
    """A process that has closed a queue does not wait for the queue's thread."""

    def close_and_cancel(self):
        close(self)
        self.cancel_join_thread()

    return close_and_cancel


@mutant(
    "unbuilt_message_keeps_its_place",
    "LIFE-19",
    "FAIL-2",
    replaces="multiprocessing.queues.Queue.get",
)
def unbuilt_message_keeps_its_place(get):
    """A message whose receive raises keeps its place in a queue with a bound."""

    def get_or_keep(self, *arguments, **options):
        try:
            return get(self, *arguments, **options)
        except queue.Empty:
            raise
        except Exception:
            self._sem.acquire(False)
            raise

    return get_or_keep


@mutant("common_segments_go_in_order", "LIFE-26", replaces="protocol.remember_segment")
def common_segments_go_in_order(remember_segment):
    """A common segment stays until those that a process has had before it have gone."""
    in_order = []

    def remember(segment):
        if len(segment.storages) == 1:
            return remember_segment(segment)
        while in_order and not any(one() for one in in_order[0].storages.values()):
            in_order.pop(0)
        in_order.append(segment)
        return remember_segment(segment)

    return remember


@mutant("common_segments_have_no_bound", "LIFE-26", replaces="protocol.LARGEST_COMMON")
def common_segments_have_no_bound(largest_common):
    """All small storages of a message lie in one segment, however many there are."""
    return 1 << 30


@mutant("last_part_takes_its_segment_along", "LIFE-26", replaces="protocol.find_part")
def last_part_takes_its_segment_along(find_part):
    """Who gets back the last storage of a common segment keeps it."""
    kept = []

    def find(segment, offset):
        found = find_part(segment, offset)
        if found is None and segment.resource.mapping is None:
            kept.append(segment)
        return found

    return find


@mutant(
    "results_need_their_worker",
    "LIFE-27",
    replaces="multiprocessing.pool.Pool._setup_queues",
)
def results_need_their_worker(setup_queues):
    """The results of a pool take the standard library's way: a thread of the worker."""

    def setup(self):
        setup_queues(self)
        self._outqueue = queues.SimpleQueue(ctx=self._ctx)
        self._quick_get = self._outqueue._reader.recv

    return setup
