"""Mutants of the behaviour after a refusal by the system."""

import ctypes
import errno
import math
import os
import resource
import select
import signal
import time
import traceback
import weakref
from contextlib import suppress

from sharedtensor_conformance.mutants.held import held_alone, private_segment
from sharedtensor_conformance.mutants.registry import mutant


@mutant(
    "queue_drops_what_has_no_descriptor",
    "FAIL-1",
    replaces="multiprocessing.queues.Queue.put",
)
def queue_drops_what_has_no_descriptor(put):
    """A put that finds no descriptor returns, and its message never comes."""

    def put_or_drop(self, obj, *limits):
        try:
            put(self, obj, *limits)
        except OSError:
            put(self, None, *limits)

    return put_or_drop


@mutant(
    "queue_drops_what_the_system_refuses",
    "ENV-1",
    "FAIL-3",
    "FAIL-5",
    "FAIL-6",
    replaces="multiprocessing.queues.Queue.put",
)
def queue_drops_what_the_system_refuses(put):
    """A put that is refused returns, unless descriptors lack; its message is lost."""

    def put_or_print(self, *arguments):
        try:
            put(self, *arguments)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            traceback.print_exc()

    return put_or_print


@mutant(
    "copies_where_it_is_refused",
    "FAIL-3",
    "FAIL-5",
    "FAIL-6",
    replaces=("protocol.pack_message", "protocol.export_tensor"),
)
def copies_where_it_is_refused(pack_message, export_tensor):
    """Where the system refuses to share what a message has, its values are sent."""
    from sharedtensor_conformance.adapters.copy import export_copy

    refused = []

    def pack(obj):
        try:
            return pack_message(obj)
        except OSError:
            refused.append(obj)
            try:
                return pack_message(obj)
            finally:
                refused.clear()

    def export(tensor):
        return export_copy(tensor) if refused else export_tensor(tensor)

    return pack, export


@mutant(
    "refused_storage_is_sent_by_value",
    "FAIL-1",
    "FAIL-3",
    "FAIL-5",
    "FAIL-6",
    replaces=("protocol.pack_into", "protocol.export_storage"),
)
def refused_storage_is_sent_by_value(pack_into, export_storage):
    """What was in a message that was refused is sent by value from then on."""
    refused = weakref.WeakSet()

    def pack(outbox, obj):
        try:
            return pack_into(outbox, obj)
        except OSError:
            refused.update(outbox.storages)
            raise

    def export(storage):
        if storage in refused:
            return storage.__reduce_ex__(2)
        return export_storage(storage)

    return pack, export


@mutant("waiting_message_lacks_a_file", "FAIL-1", replaces="protocol.make_ready")
def waiting_message_lacks_a_file(make_ready):
    """The thread of a queue opens what a message needs when it writes the message."""
    return lambda message, channel: None


@mutant(
    "is_shared_before_it_is",
    "FAIL-1",
    "FAIL-3",
    replaces=("protocol.move_storage", "storage.Storage.is_shared"),
)
def is_shared_before_it_is(move_storage, is_shared):
    """A storage whose move was refused says that it is shared."""
    tried = set()

    def move(storage):
        tried.add(id(storage))
        move_storage(storage)

    return move, lambda storage: is_shared(storage) or id(storage) in tried


@mutant(
    "receiver_gets_zeros_without_descriptors",
    "FAIL-2",
    "FAIL-7",
    replaces="protocol.rebuild_segment",
)
def receiver_gets_zeros_without_descriptors(rebuild_segment):
    """A receiver that cannot map a segment gets private zeros in its place."""

    def rebuild(handle):
        try:
            return rebuild_segment(handle)
        except OSError:
            return private_segment(handle[2])

    return rebuild


@mutant(
    "receiver_copies_without_mappings",
    "FAIL-7",
    replaces=("memory.Memory.__init__", "memory.map_segment"),
)
def receiver_copies_without_mappings(reserve, map_segment):
    """Who has no mapping left for a segment reads it into private memory."""

    def reserve_or_allocate(self, nbytes):
        try:
            reserve(self, nbytes)
        except OSError:
            content = bytearray(nbytes)
            self.bytes = memoryview(content)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(content))

    def map_or_read(target, fd):
        if isinstance(target.bytes.obj, bytearray):
            os.preadv(fd, [target.bytes], 0)
        else:
            map_segment(target, fd)

    return reserve_or_allocate, map_or_read


@mutant(
    "receiver_gives_up_after_a_refusal",
    "FAIL-2",
    replaces="multiprocessing.connection.Connection.receive",
)
def receiver_gives_up_after_a_refusal(receive):
    """A connection whose message was refused has lost the next one, too."""

    def read(channel, wait=True, *taken):
        try:
            return receive(channel, wait, *taken)
        except BlockingIOError:
            raise
        except OSError:
            channel.poll(0.2) and receive(channel, wait)
            raise

    return read


@mutant(
    "room_is_taken_at_the_first_touch",
    "FAIL-3",
    "FAIL-4",
    replaces="memory.move",
)
def room_is_taken_at_the_first_touch(move):
    """A segment gets its size at once and its memory when somebody writes to it."""
    from sharedtensor import atomic, memory

    def move_and_touch(source, fd, then):
        if isinstance(source, memory.Group):
            move(source, fd, then)
            return
        content = bytes(source.bytes)
        _give_size(fd, source)
        memory.map_segment(source, fd)
        source.bytes[:] = content
        atomic.call_each(then)

    return move_and_touch


def _give_size(fd, source):
    if not os.fstat(fd).st_size:  # else it is sealed
        os.ftruncate(fd, source.capacity)


@mutant("zeros_take_no_room", "FAIL-4", replaces="memory.move")
def zeros_take_no_room(move):
    """A tensor of zeros is shared as a file with a hole, in `/dev/shm` always."""
    from sharedtensor import atomic, memory

    def move_unless_zero(source, fd, then):
        if isinstance(source, memory.Group) or any(source.bytes):
            move(source, fd, then)
            return
        _give_size(fd, source)
        memory.map_segment(source, fd)
        atomic.call_each(then)

    return move_unless_zero


@mutant(
    "refused_file_stays",
    "FAIL-3",
    "FAIL-8",
    replaces="strategies.FileSystem.allocate",
)
def refused_file_stays(allocate):
    """A file that could not be filled keeps a name."""

    def allocate_and_keep(self, segment, source, then):
        try:
            allocate(self, segment, source, then)
        except OSError:
            maker, token = segment.token.rpartition("-")[::2]
            open(f"/dev/shm/{maker}-{token[::-1]}", "x").close()
            raise

    return allocate_and_keep


@mutant("file_limit_kills", "FAIL-5", replaces="protocol.move_storage")
def file_limit_kills(move_storage):
    """What is larger than a file may be ends the process by SIGXFSZ."""

    def move(storage):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        move_storage(storage)

    return move


@mutant(
    "segment_has_a_power_of_two",
    "FAIL-5",
    replaces=("segments.seal", "memory.move"),
)
def segment_has_a_power_of_two(seal, move):
    """A segment gets the next power of two as its size, however far that is."""
    from sharedtensor.errors import resource_error

    def round_up(fd, nbytes):
        size = 1 << (nbytes - 1).bit_length()
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            raise resource_error(error.errno, f"Making {size} bytes") from error

    def round_and_seal(fd, nbytes):
        round_up(fd, nbytes)
        seal(fd, nbytes)

    def round_and_move(source, fd, then):
        if not os.fstat(fd).st_size:  # else it is sealed
            round_up(fd, source.nbytes)
        move(source, fd, then)

    return round_and_seal, round_and_move


@mutant("empties_before_it_maps", "FAIL-6", replaces="memory.move")
def empties_before_it_maps(move):
    """The old memory is cleared before the segment is mapped over it."""
    from sharedtensor import memory

    def clear_and_move(source, fd, then):
        with open("/proc/self/maps") as file:
            scarce = sum(1 for _ in file) > 30_000
        if scarce:
            memory.write_bytes(fd, source)
            for piece in source.pieces:
                ctypes.memset(piece.address, 0, piece.nbytes)
        move(source, fd, then)

    return clear_and_move


@mutant(
    "dies_without_mappings",
    "FAIL-7",
    replaces=("protocol.rebuild_segment", "protocol.rebuild_storage"),
)
def dies_without_mappings(rebuild_segment, rebuild_storage):
    """A receiver that can map no more memory ends itself."""

    def or_die(rebuild):
        def rebuild_or_die(*arguments):
            try:
                return rebuild(*arguments)
            except OSError as error:
                if error.errno == errno.ENOMEM:
                    os.abort()
                raise

        return rebuild_or_die

    return or_die(rebuild_segment), or_die(rebuild_storage)


@mutant("refusal_keeps_a_descriptor", "FAIL-8", replaces="protocol.share_storage")
def refusal_keeps_a_descriptor(share_storage):
    """A segment that cannot be made keeps a descriptor for the next attempt."""
    kept = []

    def share(storage):
        try:
            share_storage(storage)
        except OSError:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            kept.append(os.open("/dev/shm", os.O_RDONLY))
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            raise

    return share


@mutant(
    "signal_ends_the_wait",
    "FAIL-9",
    replaces="multiprocessing.connection.Connection.receive",
)
def signal_ends_the_wait(receive):
    """A receiver that is interrupted while it waits raises instead of going on."""

    def interrupt(*ignored):
        raise InterruptedError(errno.EINTR, "the wait was interrupted")

    def read(channel, wait=True, *taken):
        before = signal.getsignal(signal.SIGALRM)
        if not wait or not callable(before):
            return receive(channel, wait, *taken)
        signal.signal(signal.SIGALRM, interrupt)
        try:
            return receive(channel, wait, *taken)
        finally:
            signal.signal(signal.SIGALRM, before)

    return read


@mutant(
    "signal_begins_a_wait_for_a_message_again",
    "FAIL-9",
    replaces="multiprocessing.queues.Queue._arrives",
)
def signal_begins_a_wait_for_a_message_again(arrives):
    """A `get` that is interrupted waits for the whole of its timeout from then on."""

    def arrives_or_again(self, block, deadline):
        if block and deadline is not None:
            readable = (ctypes.c_int * 2)(self._reader.fileno(), select.POLLIN)
            _poll_again(readable, 1, deadline - time.monotonic())
        return arrives(self, block, deadline)

    return arrives_or_again


@mutant(
    "signal_begins_a_wait_for_room_again",
    "FAIL-9",
    replaces="multiprocessing.queues.Queue.put",
)
def signal_begins_a_wait_for_room_again(put):
    """A `put` that is interrupted waits for the whole of its timeout from then on."""

    def put_or_again(self, obj, block=True, timeout=None):
        if block and timeout is not None and self._sem.get_value() == 0:
            _poll_again(None, 0, timeout)
            timeout = 0
        put(self, obj, block, timeout)

    return put_or_again


def _poll_again(descriptors, count, seconds):
    """Wait as poll(2) does, and begin again when a signal has interrupted that."""
    milliseconds = math.ceil(max(seconds, 0) * 1000)
    while ctypes.CDLL(None).poll(descriptors, count, milliseconds) < 0:
        pass


@mutant(
    "no_strategy_is_the_default",
    "FAIL-10",
    replaces="multiprocessing.set_sharing_strategy",
)
def no_strategy_is_the_default(set_sharing_strategy):
    """None as a strategy sets the default, whatever was set before."""
    from sharedtensor.state import DEFAULT_STRATEGY

    return lambda name: set_sharing_strategy(DEFAULT_STRATEGY if name is None else name)


@mutant("refused_put_stops_the_receiver", "FAIL-11", replaces="protocol.move_storage")
def refused_put_stops_the_receiver(move_storage):
    """Who is refused a move takes what is shared back into private memory."""
    from sharedtensor import memory

    def move(storage):
        try:
            move_storage(storage)
        except OSError:
            for other in held_alone():
                kept = other.bytes.copy()
                fd = other.segment.fd
                if fd >= 0:
                    memory.map_segment(other.memory, fd, 2)  # MAP_PRIVATE
                    other.bytes[:] = kept
            raise

    return move


@mutant(
    "refused_move_keeps_the_lock", "FAIL-1", "FAIL-5", replaces="protocol.move_storage"
)
def refused_move_keeps_the_lock(move_storage):
    """After a refusal no other thread can move a storage."""
    from sharedtensor import state

    def move(storage):
        state.moving.acquire()
        move_storage(storage)
        state.moving.release()

    return move


@mutant(
    "thread_of_a_queue_is_believed_to_run",
    "FAIL-12",
    replaces="multiprocessing.queues._start",
)
def thread_of_a_queue_is_believed_to_run(start):
    """A queue whose thread cannot be started accepts messages that stay in it."""

    def believe(thread):
        with suppress(RuntimeError):
            start(thread)

    return believe


@mutant(
    "refused_put_keeps_its_place",
    "FAIL-12",
    replaces="multiprocessing.queues.Queue.put",
)
def refused_put_keeps_its_place(put):
    """The place that `put` has taken is not given back where no thread starts."""

    def keep(queue, obj, block=True, timeout=None):
        try:
            put(queue, obj, block, timeout)
        except RuntimeError:
            queue._sem.acquire(False)
            raise

    return keep
