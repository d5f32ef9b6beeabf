"""Mutants of the channels."""

import copy
import dataclasses
import errno
import multiprocessing
import pickle
import queue
import threading
import time
import weakref
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler

from sharedtensor_conformance.mutants.held import held_alone
from sharedtensor_conformance.mutants.registry import mutant

DEEP = 12
"""The number of containers around a tensor from which on a mutant copies it."""

LARGEST_BOUND = 1000
"""More places than this has a queue without a bound alone."""


def _copy_where(condition, export_tensor):
    from sharedtensor_conformance.adapters.copy import export_copy

    return lambda tensor: (export_copy if condition() else export_tensor)(tensor)


@mutant("pool_tasks_are_copies", "CHAN-1", replaces="protocol.export_tensor")
def pool_tasks_are_copies(export_tensor):
    """What a pool's thread sends to its workers is a copy."""
    return _copy_where(
        lambda: "_handle_tasks" in threading.current_thread().name, export_tensor
    )


def _copy_of_tensors(message):
    """Return a message in which each tensor is a copy."""
    import sharedtensor

    return _copy_in(message, lambda part: isinstance(part, sharedtensor.Tensor))


@mutant(
    "named_arguments_of_tasks_are_copies",
    "CHAN-1",
    replaces="multiprocessing.pool.Pool",
)
def named_arguments_of_tasks_are_copies(pool):
    """A pool sends copies of the tensors among the named arguments of a task."""

    class CopyingPool(pool):
        def apply_async(self, func, args=(), kwds=None, *callbacks):
            named = _copy_of_tensors(kwds or {})
            return super().apply_async(func, args, named, *callbacks)

    return CopyingPool


@mutant("unordered_tasks_are_copies", "CHAN-1", replaces="multiprocessing.pool.Pool")
def unordered_tasks_are_copies(pool):
    """A pool whose results may come in any order sends copies of tensors."""

    class CopyingPool(pool):
        def imap_unordered(self, func, iterable, *chunks):
            return super().imap_unordered(
                func, map(_copy_of_tensors, iterable), *chunks
            )

    return CopyingPool


@mutant("pool_results_are_copies", "CHAN-2", replaces="protocol.export_tensor")
def pool_results_are_copies(export_tensor):
    """What a pool's worker sends is a copy."""
    return _copy_where(
        lambda: "PoolWorker" in multiprocessing.current_process().name, export_tensor
    )


@mutant("nested_tensors_are_copies", "CHAN-3", replaces="protocol.pack_message")
def nested_tensors_are_copies(pack_message):
    """Tensors in a dictionary that is in a list arrive as copies."""

    def pack(obj):
        if isinstance(obj, list):
            obj = [copy.deepcopy(x) if isinstance(x, dict) else x for x in obj]
        return pack_message(obj)

    return pack


def _copy_in(message, is_copied):
    """Return a message in which each object for which `is_copied` is true is a copy."""
    if is_copied(message):
        return copy.deepcopy(message)
    if type(message) in (list, tuple):
        return type(message)(_copy_in(part, is_copied) for part in message)
    if isinstance(message, dict):
        return {key: _copy_in(part, is_copied) for key, part in message.items()}
    return message


@mutant("named_tuples_are_copies", "CHAN-3", replaces="protocol.pack_message")
def named_tuples_are_copies(pack_message):
    """Tensors in a named tuple arrive as copies; those in a tuple are shared."""
    return lambda obj: pack_message(
        _copy_in(obj, lambda part: isinstance(part, tuple) and hasattr(part, "_fields"))
    )


@mutant("attributes_are_copies", "CHAN-3", replaces="protocol.pack_message")
def attributes_are_copies(pack_message):
    """Tensors in the attributes of a dataclass instance arrive as copies."""
    return lambda obj: pack_message(_copy_in(obj, dataclasses.is_dataclass))


@mutant(
    "first_tensor_is_registered_too_late",
    "CHAN-3",
    replaces=("protocol._Reducers.__missing__", "storage.Storage.__init__"),
)
def first_tensor_is_registered_too_late(missing, make):
    """The first tensor registers its class, which a pickler in use does not notice."""
    from sharedtensor import Storage, Tensor

    registered = ForkingPickler._extra_reducers
    late = {each: registered.pop(each) for each in (Storage, Tensor)}

    def make_registered(self, nbytes):
        registered.update(late)
        make(self, nbytes)

    return {}.__getitem__, make_registered


@mutant("deep_tensors_are_copies", "CHAN-3", replaces="protocol.pack_message")
def deep_tensors_are_copies(pack_message):
    """Tensors below a dozen levels of containers arrive as copies."""

    def cut(message, levels=DEEP):
        if levels == 0:
            return copy.deepcopy(message)
        if type(message) in (list, tuple):
            return type(message)(cut(part, levels - 1) for part in message)
        if isinstance(message, dict):
            return {key: cut(part, levels - 1) for key, part in message.items()}
        return message

    return lambda obj: pack_message(cut(obj))


@mutant(
    "pipe_copies",
    "SHARE-1",
    "SHARE-2",
    "CHAN-3",
    replaces="multiprocessing.connection.Connection.send",
)
def pipe_copies(send):
    """On a pipe, and on no other channel, what arrives is a copy."""
    return lambda self, obj: send(self, copy.deepcopy(obj))


@mutant(
    "swaps_messages",
    "CHAN-4",
    replaces="multiprocessing.connection.Connection.receive",
)
def swaps_messages(receive):
    """Where two messages wait, the second is received before the first."""
    waiting = {}

    def read(channel, wait=True, taken=None):
        taken = [] if taken is None else taken
        if channel in waiting:
            first, packet = waiting.pop(channel)
            taken.append(packet)
            return first
        first = receive(channel, wait, taken)
        if not channel.poll(0):
            return first
        waiting[channel] = first, taken.pop()
        return receive(channel, wait, taken)

    return read


@mutant("put_waits_for_its_receiver", "CHAN-4", replaces="protocol.write_at_once")
def put_waits_for_its_receiver(write_at_once):
    """A queue without bound takes no more than the system does at once."""

    def write(message, channel):
        channel.write(message.payload, message.descriptors)
        message.clear()
        return True

    return write


@mutant("finds_another_storage", "CHAN-4", replaces="protocol.rebuild_storage")
def finds_another_storage(rebuild_storage):
    """A handle may lead to another storage of the same size that is held already."""

    def rebuild(segment, *part):
        storage = rebuild_storage(segment, *part)
        same = [one for one in held_alone() if one.nbytes == segment.nbytes]
        return same[0] if same else storage

    return rebuild


@mutant("threads_move_it_twice", "CHAN-5", replaces="protocol.share_storage")
def threads_move_it_twice(share_storage):
    """Two threads that share one storage at the same time make two segments."""
    from sharedtensor import protocol

    def share(storage):
        if storage.segment is None:
            protocol.move_storage(storage)

    return share


@mutant("threads_move_lists_twice", "CHAN-5", replaces="protocol.share_small")
def threads_move_lists_twice(share_small):
    """Two threads that send some storages at the same time make two segments."""
    from sharedtensor import protocol

    def share(storages):
        private = [each for each in storages if each.segment is None]
        if len(private) > 1:
            protocol.move_together(private)

    return share


@mutant("message_tuples_are_lists", "CHAN-6", replaces="protocol.unpack_message")
def message_tuples_are_lists(unpack_message):
    """A message that is a tuple arrives as a list."""

    def unpack(payload, descriptors):
        obj = unpack_message(payload, descriptors)
        return list(obj) if type(obj) is tuple else obj

    return unpack


@mutant("sets_are_lists", "CHAN-6", replaces="protocol.unpack_message")
def sets_are_lists(unpack_message):
    """A set arrives as a list of its elements."""

    def unpack(payload, descriptors):
        obj = unpack_message(payload, descriptors)
        return list(obj) if isinstance(obj, set) else obj

    return unpack


def _packing_in_its_thread(write_at_once, make_ready, write_message):
    """Return a `put` that shares and refuses nothing, and what does so in the thread.

    Messages that another `put` has packed are written as they are.
    """
    from sharedtensor import protocol, transport

    class Unpacked(transport.Outbox):
        pass

    def put_unpacked(self, obj, block=True, timeout=None):
        if not self._sem.acquire(block, timeout):
            raise queue.Full
        message = Unpacked()
        message.payload = obj
        self._append(message)

    def write_packed_at_once(message, channel):
        is_packed = not isinstance(message, Unpacked)
        return is_packed and write_at_once(message, channel)

    def make_packed_ready(message, channel):
        if not isinstance(message, Unpacked):
            make_ready(message, channel)

    def pack_and_write(message, channel):
        if isinstance(message, Unpacked):
            message = protocol.pack_message(message.payload)
        write_message(message, channel)

    return put_unpacked, write_packed_at_once, make_packed_ready, pack_and_write


@mutant(
    "queue_packs_in_its_thread",
    "CHAN-7",
    "GRAD-5",
    replaces=(
        "multiprocessing.queues.Queue.put",
        "protocol.write_at_once",
        "protocol.make_ready",
        "protocol.write_message",
    ),
)
def queue_packs_in_its_thread(put, *writing):
    """`Queue.put` returns before anything is shared or refused; a thread does it."""
    return _packing_in_its_thread(*writing)


@mutant(
    "joinable_queue_packs_in_its_thread",
    "CHAN-7",
    replaces=(
        "multiprocessing.queues.JoinableQueue.put",
        "protocol.write_at_once",
        "protocol.make_ready",
        "protocol.write_message",
    ),
)
def joinable_queue_packs_in_its_thread(put, *writing):
    """A joinable queue leaves the packing to its thread, where other queues do not."""
    return _packing_in_its_thread(*writing)


@mutant(
    "start_packs_in_a_thread",
    "CHAN-7",
    replaces="multiprocessing.context._ChildOfThisProgram.start",
)
def start_packs_in_a_thread(start):
    """A thread sends lists with tensors to a child when its `start` has returned."""
    import sharedtensor
    from sharedtensor.multiprocessing.connection import Pipe

    def is_late(argument):
        tensor = sharedtensor.Tensor
        return type(argument) is list and any(isinstance(x, tensor) for x in argument)

    def start_and_send(self):
        late = [argument for argument in self._args if is_late(argument)]
        if not late or self._start_method == "fork":
            return start(self)
        reader, writer = Pipe(duplex=False)
        early = [None if is_late(argument) else argument for argument in self._args]
        self._target, self._args = _call_with_late, (self._target, early, reader)
        start(self)
        threading.Thread(target=writer.send, args=(late,)).start()

    return start_and_send


def _call_with_late(function, arguments, reader):
    late = iter(reader.recv())
    function(*(next(late) if one is None else one for one in arguments))


@mutant(
    "joinable_queue_copies",
    "CHAN-8",
    replaces=(
        "multiprocessing.queues.JoinableQueue.put",
        "multiprocessing.queues.JoinableQueue.get",
    ),
)
def joinable_queue_copies(put, get):
    """A joinable queue pickles as `pickle` does, which copies."""
    return (
        lambda self, obj: put(self, pickle.dumps(obj)),
        lambda self: pickle.loads(get(self)),
    )


@mutant(
    "foreign_connections_get_copies",
    "CHAN-9",
    "CHAN-10",
    replaces="protocol.export_storage",
)
def foreign_connections_get_copies(export_storage):
    """On connections that are not the drop-in's own, a clone of a tensor travels."""
    from sharedtensor import transport

    def export(storage):
        own = transport.current_outbox() is not None
        return export_storage(storage if own else storage.clone())

    return export


@mutant("strangers_get_copies", "CHAN-14", replaces="protocol.export_tensor")
def strangers_get_copies(export_tensor):
    """On a connection that is not the drop-in's own, the values of a tensor travel."""
    from sharedtensor import transport

    from sharedtensor_conformance.adapters.copy import export_copy

    def export(tensor):
        own = transport.current_outbox() is not None
        return export_tensor(tensor) if own else export_copy(tensor)

    return export


@mutant("servers_keep_copies", "CHAN-10", replaces="protocol.rebuild_storage")
def servers_keep_copies(rebuild_storage):
    """The process of a `Manager()` keeps what it is sent to itself."""

    def rebuild(segment, *part):
        storage = rebuild_storage(segment, *part)
        server = multiprocessing.current_process().name.startswith("SyncManager")
        return storage.clone() if server else storage

    return rebuild


@mutant(
    "servers_of_a_program_keep_copies", "CHAN-10", replaces="protocol.rebuild_storage"
)
def servers_of_a_program_keep_copies(rebuild_storage):
    """The process of a manager that is no `SyncManager` itself keeps copies."""

    def rebuild(segment, *part):
        storage = rebuild_storage(segment, *part)
        name = multiprocessing.current_process().name
        return storage.clone() if name.startswith("Manager") else storage

    return rebuild


@mutant(
    "bytes_are_not_waited_for",
    "CHAN-11",
    replaces="multiprocessing.connection.Connection._recv_bytes",
)
def bytes_are_not_waited_for(recv_bytes):
    """Whoever asks a connection for bytes gets those that are there, or an error."""

    def receive(self, *maxsize):
        if not self.poll():
            raise BlockingIOError
        return recv_bytes(self, *maxsize)

    return receive


@mutant(
    "two_way_pipe_cuts_bytes",
    "CHAN-11",
    replaces="multiprocessing.connection.Connection._send_bytes",
)
def two_way_pipe_cuts_bytes(send_bytes):
    """A pipe with two directions sends the first 64 KiB of what is longer."""

    def send(self, content):
        is_two_way = self.readable and self.writable
        send_bytes(self, content[: 1 << 16] if is_two_way else content)

    return send


@mutant(
    "an_empty_queue_is_waited_for",
    "CHAN-12",
    replaces="multiprocessing.queues.Queue._arrives",
)
def an_empty_queue_is_waited_for(arrives):
    """A queue waits for two seconds at least where a timeout was given."""

    def arrives_late(self, block, deadline):
        late = deadline and max(deadline, time.monotonic() + 2)
        return arrives(self, block, late)

    return arrives_late


@mutant(
    "an_empty_queue_rounds_its_timeout_up",
    "CHAN-12",
    replaces="multiprocessing.queues.Queue.get",
)
def an_empty_queue_rounds_its_timeout_up(get):
    """Who waits for a tenth of a second or longer waits for two seconds at least."""
    return lambda self, block=True, timeout=None: get(
        self, block, max(timeout, 2) if timeout and timeout >= 0.1 else timeout
    )


@mutant(
    "an_empty_queue_gives_up_early",
    "CHAN-12",
    replaces="multiprocessing.queues.Queue._arrives",
)
def an_empty_queue_gives_up_early(arrives):
    """A queue waits for half of the time that it was given."""

    def arrives_early(self, block, deadline):
        now = time.monotonic()
        return arrives(self, block, deadline and now + (deadline - now) / 2)

    return arrives_early


@mutant(
    "a_full_queue_is_waited_for", "CHAN-13", replaces="multiprocessing.queues.Queue.put"
)
def a_full_queue_is_waited_for(put):
    """A queue waits for room for two seconds at least."""

    def put_late(self, obj, block=True, timeout=None):
        if not block or timeout is not None:
            block, timeout = True, max(timeout or 0, 2)
        put(self, obj, block, timeout)

    return put_late


@mutant(
    "a_full_queue_rounds_its_timeout_up",
    "CHAN-13",
    replaces="multiprocessing.queues.Queue.put",
)
def a_full_queue_rounds_its_timeout_up(put):
    """Who waits for a tenth of a second or longer waits for two seconds at least."""
    return lambda self, obj, block=True, timeout=None: put(
        self, obj, block, max(timeout, 2) if timeout and timeout >= 0.1 else timeout
    )


@mutant(
    "a_full_queue_gives_up_early",
    "CHAN-13",
    replaces="multiprocessing.queues.Queue.put",
)
def a_full_queue_gives_up_early(put):
    """A queue waits for room for half of the time that it was given."""
    return lambda self, obj, block=True, timeout=None: put(
        self, obj, block, timeout and timeout / 2
    )


@mutant(
    "one_thread_waits_for_a_message",
    "CHAN-12",
    replaces="multiprocessing.queues.Queue.get",
)
def one_thread_waits_for_a_message(get):
    """While one thread waits in `get`, the others of its process wait for it."""
    return _in_one_thread(get)


@mutant(
    "one_thread_waits_for_room",
    "CHAN-13",
    replaces="multiprocessing.queues.Queue.put",
)
def one_thread_waits_for_room(put):
    """While one thread waits in `put`, the others of its process wait for it."""
    return _in_one_thread(put)


def _in_one_thread(method):
    locks = weakref.WeakKeyDictionary()

    def call(self, *arguments, **options):
        with locks.setdefault(self, threading.Lock()):
            return method(self, *arguments, **options)

    return call


@mutant(
    "one_process_waits_for_room",
    "CHAN-13",
    replaces="multiprocessing.queues.JoinableQueue.put",
)
def one_process_waits_for_room(put):
    """Who waits for room in a joinable queue has the lock that each `put` takes."""

    def put_locked(self, *arguments, **options):
        with self._cond:
            put(self, *arguments, **options)

    return put_locked


@mutant(
    "size_leaves_out_what_waits_to_be_written",
    "CHAN-13",
    replaces="multiprocessing.queues.Queue",
)
def size_leaves_out_what_waits_to_be_written(queue_class):
    """The size of a queue is the number of messages that can be received at once."""
    qsize = queue_class.qsize
    queue_class.qsize = lambda self: qsize(self) - len(self._buffer)
    return queue_class


@mutant(
    "size_counts_what_was_refused",
    "CHAN-13",
    replaces="multiprocessing.queues.Queue.put",
)
def size_counts_what_was_refused(put):
    """The size of a queue includes what it had no room for."""
    from sharedtensor.multiprocessing.queues import Queue

    refused, qsize = weakref.WeakKeyDictionary(), Queue.qsize
    Queue.qsize = lambda self: qsize(self) + refused.get(self, 0)

    def count(self, *arguments, **options):
        try:
            put(self, *arguments, **options)
        except queue.Full:
            refused[self] = refused.get(self, 0) + 1
            raise

    return count


@mutant(
    "size_keeps_what_cannot_be_rebuilt",
    "CHAN-13",
    replaces="multiprocessing.queues.Queue.get",
)
def size_keeps_what_cannot_be_rebuilt(get):
    """A message whose receive raises keeps its place in the queue."""

    def get_or_keep(self, block=True, timeout=None):
        try:
            return get(self, block, timeout)
        except queue.Empty:
            raise
        except Exception:
            self._sem.acquire(block=False)
            raise

    return get_or_keep


@mutant(
    "places_without_end_are_not_counted",
    "CHAN-13",
    replaces="multiprocessing.queues.Queue.get",
)
def places_without_end_are_not_counted(get):
    """A queue without a bound never gets a place back, of which it has a great many."""

    def get_and_keep_its_place(self, block=True, timeout=None):
        received = get(self, block, timeout)
        if self._maxsize > LARGEST_BOUND:
            self._sem.acquire(block=False)
        return received

    return get_and_keep_its_place


# Those that random histories find, and no other test


@mutant(
    "full_packet_is_cut",
    "CHAN-4",
    "CHAN-6",
    "CHAN-11",
    replaces="multiprocessing.packets._receive",
)
def full_packet_is_cut(receive):
    """A message that fills its packet to the last byte arrives without that byte."""
    from sharedtensor.multiprocessing import packets

    full = packets.HEADER.size + packets.LARGEST_PACKET

    def receive_less(end, *how):
        packet, descriptors, lost = receive(end, *how)
        return packet[: full - 1], descriptors, lost

    return receive_less


@mutant(
    "refused_message_is_put",
    "CHAN-4",
    "CHAN-8",
    "CHAN-12",
    replaces="multiprocessing.queues.Queue.put",
    histories="test_histories_of_queues",
)
def refused_message_is_put(put):
    """A queue without room says so, and takes the message all the same."""
    from sharedtensor import protocol

    def put_anyway(self, obj, block=True, timeout=None):
        try:
            put(self, obj, block, timeout)
        except queue.Full:
            self._append(protocol.pack_message(obj))
            raise

    return put_anyway


@mutant(
    "last_task_wakes_one",
    "CHAN-8",
    replaces="multiprocessing.queues.JoinableQueue._append",
    histories="test_histories_of_queues",
)
def last_task_wakes_one(append):
    """When all tasks are done, one of those who wait for that goes on."""

    def append_and_forget_the_others(self, message):
        self._cond.notify_all = self._cond.notify
        append(self, message)

    return append_and_forget_the_others


@mutant(
    "loser_of_a_race_waits",
    "CHAN-12",
    replaces="multiprocessing.connection.Connection.receive",
    histories="test_histories_of_queues",
)
def loser_of_a_race_waits(receive):
    """Who has seen a message that another reader takes waits for the next one."""
    return lambda channel, wait=True, *taken: receive(channel, True, *taken)


@mutant(
    "put_passes_what_waits",
    "CHAN-4",
    replaces="multiprocessing.queues.Queue._append",
)
def put_passes_what_waits(append):
    """A message for which there is room is written before those that wait for room."""
    from sharedtensor import protocol

    def write_or_append(self, message):
        if not protocol.write_at_once(message, self._writer):
            append(self, message)

    return write_or_append


@mutant("names_overfill_a_packet", "CHAN-3", replaces="names.program.in_flight")
def names_overfill_a_packet(in_flight):
    """A message whose names do not fit into one packet is refused."""
    from sharedtensor.errors import resource_error

    def hold_a_packet(names):
        if sum(map(len, names)) > 1 << 12:
            raise resource_error(errno.EMSGSIZE, "Sending the names of shared storages")
        return in_flight(names)

    return hold_a_packet


@mutant(
    "no_bytes_are_the_end",
    "CHAN-11",
    replaces="multiprocessing.connection.Connection._recv_bytes",
)
def no_bytes_are_the_end(recv_bytes):
    """A message of no bytes is taken for the end of its pipe."""

    def receive(self, maxsize=None):
        stream = recv_bytes(self, maxsize)
        if stream is not None and not stream.getbuffer():
            raise EOFError
        return stream

    return receive


@mutant(
    "bound_of_bytes_is_their_number",
    "CHAN-11",
    replaces="multiprocessing.connection.Connection._recv_bytes",
)
def bound_of_bytes_is_their_number(recv_bytes):
    """Who says how many bytes it takes at most gets no fewer."""

    def receive(self, maxsize=None):
        stream = recv_bytes(self, maxsize)
        fewer = stream is not None and len(stream.getbuffer()) != maxsize
        return None if maxsize is not None and fewer else stream

    return receive


@mutant(
    "full_packet_loses_its_end",
    "CHAN-6",
    "CHAN-11",
    replaces="multiprocessing.packets.write",
)
def full_packet_loses_its_end(write):
    """A message of 32 KiB to the byte loses the last one."""

    def write_less(end, payload, *rest):
        view = memoryview(payload)
        write(end, view[:-1] if view.nbytes == 1 << 15 else payload, *rest)

    return write_less


@mutant(
    "time_is_never_negative", "CHAN-12", replaces="multiprocessing.queues.Queue.get"
)
def time_is_never_negative(get):
    """Who asks a queue with a time that has passed already gets another exception."""

    def get_later(self, block=True, timeout=None):
        if timeout is not None and timeout < 0:
            raise ValueError(f"a timeout of {timeout} seconds")
        return get(self, block, timeout)

    return get_later


@mutant("rest_of_a_chunk_is_copied", "CHAN-1", replaces="protocol.export_tensor")
def rest_of_a_chunk_is_copied(export_tensor):
    """Of the tasks that a pool sends at once only the first has tensors shared."""

    def export(tensor):
        outbox = transport.current_outbox()
        in_pool = "_handle_tasks" in threading.current_thread().name
        met = 0 if outbox is None else len(outbox.keep) + len(outbox.storages)
        later = in_pool and met > 1
        return (export_copy if later else export_tensor)(tensor)

    from sharedtensor import transport

    from sharedtensor_conformance.adapters.copy import export_copy

    return export


@mutant(
    "queue_of_the_module_copies",
    "CHAN-3",
    replaces="multiprocessing.context.DefaultContext.get_context",
)
def queue_of_the_module_copies(get_context):
    """A simple queue that is made without a context carries copies."""
    from sharedtensor.multiprocessing import context, queues

    class CopyingQueue(queues.SimpleQueue):
        def put(self, obj):
            super().put(copy.deepcopy(obj))

    def make(self):
        return CopyingQueue(ctx=get_context(self))

    context.DefaultContext.SimpleQueue = make
    import sharedtensor.multiprocessing as module

    module.SimpleQueue = context.default_context.SimpleQueue
    return get_context


@mutant(
    "refused_offer_counts_as_a_task",
    "LIFE-18",
    replaces="multiprocessing.queues.Queue.put",
)
def refused_offer_counts_as_a_task(put):
    """What a joinable queue has no room for is waited for by those who join it."""

    def count(self, *arguments, **options):
        try:
            put(self, *arguments, **options)
        except queue.Full:
            if hasattr(self, "_unfinished_tasks"):
                self._unfinished_tasks.release()
            raise

    return count


@mutant(
    "later_tasks_are_not_counted",
    "CHAN-8",
    replaces=(
        "multiprocessing.queues.JoinableQueue._append",
        "multiprocessing.queues.Queue._append",
    ),
)
def later_tasks_are_not_counted(append, append_without_counting):
    """A joinable queue counts the first three messages of a process alone."""
    counted = weakref.WeakKeyDictionary()

    def append_some(self, message):
        counted[self] = counted.get(self, 0) + 1
        (append if counted[self] < 4 else append_without_counting)(self, message)

    return append_some, append_without_counting


@mutant(
    "tasks_are_counted_without_a_lock",
    "CHAN-8",
    replaces=(
        "multiprocessing.queues.JoinableQueue._append",
        "multiprocessing.queues.Queue._append",
    ),
)
def tasks_are_counted_without_a_lock(append, append_without_counting):
    """Two that put at once on a joinable queue may count one task."""

    def append_and_count(self, message):
        before = self._unfinished_tasks.get_value()
        append_without_counting(self, message)
        if self._unfinished_tasks.get_value() == before:
            self._unfinished_tasks.release()

    return append_and_count, append_without_counting


@mutant(
    "timeout_counts_by_name_alone",
    *("CHAN-12", "CHAN-13"),
    replaces=("multiprocessing.queues.Queue.get", "multiprocessing.queues.Queue.put"),
)
def timeout_counts_by_name_alone(get, put):
    """A timeout that is given by position is ignored."""

    def get_by_name(self, block=True, *given, **named):
        return get(self, block, **named)

    def put_by_name(self, obj, block=True, *given, **named):
        return put(self, obj, block, **named)

    return get_by_name, put_by_name


@mutant(
    "received_queues_stay_in_forks",
    "LIFE-5",
    replaces="multiprocessing.queues.Queue.__setstate__",
)
def received_queues_stay_in_forks(setstate):
    """A fork relies on the thread of a queue that its parent has received."""

    def become(self, state):
        from sharedtensor.multiprocessing.queues import Queue

        super(Queue, self).__setstate__(state)

    return become


@mutant("sends_what_fits_at_once", "CHAN-6", replaces="multiprocessing.packets.write")
def sends_what_fits_at_once(write):
    """A message for which a pipe has no room now is lost."""

    def write_at_once(end, payload, descriptors, wait, sent=None):
        with suppress(BlockingIOError):
            write(end, payload, descriptors, False, sent)

    return write_at_once
