"""Mutants of the channels."""

import copy
import multiprocessing
import pickle
import sys
import threading
import time

from sharedtensor_conformance.mutants.registry import mutant


def _copy_where(steps, condition):
    original = steps.export_tensor

    def export_tensor(tensor):
        return tensor.__reduce_ex__(4) if condition() else original(tensor)

    steps.export_tensor = export_tensor


@mutant("pool_tasks_are_copies", "CHAN-1")
def pool_tasks_are_copies(steps):
    """What a pool's thread sends to its workers is a copy."""
    _copy_where(steps, lambda: "_handle_tasks" in threading.current_thread().name)


@mutant("pool_results_are_copies", "CHAN-2")
def pool_results_are_copies(steps):
    """What a pool's worker sends is a copy."""
    _copy_where(steps, lambda: "PoolWorker" in multiprocessing.current_process().name)


@mutant("nested_tensors_are_copies", "CHAN-3")
def nested_tensors_are_copies(steps):
    """Tensors in a dictionary that is in a list arrive as copies."""
    original = steps.pack_message

    def pack_message(obj):
        if isinstance(obj, list):
            obj = [copy.deepcopy(x) if isinstance(x, dict) else x for x in obj]
        return original(obj)

    steps.pack_message = pack_message


@mutant("pipe_copies", "SHARE-1", "SHARE-2", "CHAN-3")
def pipe_copies(steps):
    """On a pipe, and on no other channel, what arrives is a copy."""
    original = steps.pack_message

    def pack_message(obj):
        sending = sys._getframe(1).f_code.co_name == "send"
        return original(copy.deepcopy(obj) if sending else obj)

    steps.pack_message = pack_message


@mutant("swaps_messages", "CHAN-4")
def swaps_messages(steps):
    """Where two messages wait, the second is received before the first."""
    original, waiting = steps.read_message, {}

    def read_message(connection, wait=True):
        if connection in waiting:
            return waiting.pop(connection)
        first = original(connection, wait)
        if not connection.poll(0):
            return first
        waiting[connection] = first
        return original(connection, wait)

    steps.read_message = read_message


@mutant("put_waits_for_its_receiver", "CHAN-4")
def put_waits_for_its_receiver(steps):
    """A queue without bound takes no more than the system does at once."""

    def write_at_once(message, connection):
        steps.write_message(message, connection)
        return True

    steps.write_at_once = write_at_once


@mutant("finds_another_storage", "CHAN-4")
def finds_another_storage(steps):
    """A handle may lead to another storage of the same size that is held already."""
    original = steps.rebuild_storage

    def rebuild_storage(storage_class, handle):
        storage = original(storage_class, handle)
        same = [one for one in steps.known.values() if one.nbytes == handle[2]]
        return same[0] if same else storage

    steps.rebuild_storage = rebuild_storage


@mutant("message_tuples_are_lists", "CHAN-6")
def message_tuples_are_lists(steps):
    """A message that is a tuple arrives as a list."""
    original = steps.unpack_message

    def unpack_message(payload, descriptors):
        obj = original(payload, descriptors)
        return list(obj) if type(obj) is tuple else obj

    steps.unpack_message = unpack_message


@mutant("queue_packs_in_its_thread", "CHAN-7", "GRAD-5")
def queue_packs_in_its_thread(steps):
    """`Queue.put` returns before anything is shared or refused; a thread does it."""
    original = steps.write_message

    def write_message(message, connection):
        if not hasattr(message, "outbox"):
            message = steps.pack_message(message)
        original(message, connection)

    steps.put_message = lambda obj: obj
    steps.write_at_once = lambda message, connection: False
    steps.write_message = write_message


@mutant("joinable_queue_copies", "CHAN-8")
def joinable_queue_copies(steps):
    """A joinable queue pickles as `pickle` does, which copies."""
    from sharedtensor.multiprocessing.queues import JoinableQueue

    put, get = JoinableQueue.put, JoinableQueue.get
    JoinableQueue.put = lambda self, obj: put(self, pickle.dumps(obj))
    JoinableQueue.get = lambda self: pickle.loads(get(self))


@mutant("foreign_connections_get_copies", "CHAN-9", "CHAN-10")
def foreign_connections_get_copies(steps):
    """On connections that are not the drop-in's own, a clone of a tensor travels."""
    from sharedtensor import transport

    original = steps.export_storage

    def export_storage(storage):
        own = transport._current.outbox or transport._current.spawning
        return original(storage if own is not None else storage.clone())

    steps.export_storage = export_storage


@mutant("servers_keep_copies", "CHAN-10")
def servers_keep_copies(steps):
    """The process of a `Manager()` keeps what it is sent to itself."""
    original = steps.rebuild_storage

    def rebuild_storage(storage_class, handle):
        storage = original(storage_class, handle)
        server = multiprocessing.current_process().name.startswith("SyncManager")
        return storage.clone() if server else storage

    steps.rebuild_storage = rebuild_storage


@mutant("bytes_are_not_waited_for", "CHAN-11")
def bytes_are_not_waited_for(steps):
    """Whoever asks a connection for bytes gets those that are there, or an error."""
    from sharedtensor.multiprocessing.connection import Connection

    read = Connection.read
    Connection.read = lambda self, wait=False: read(self, wait)


@mutant("an_empty_queue_is_waited_for", "CHAN-12")
def an_empty_queue_is_waited_for(steps):
    """A queue waits for a second at least where a timeout was given."""
    from sharedtensor.multiprocessing.queues import Queue

    def arrives(self, block, deadline):
        late = deadline and max(deadline, time.monotonic() + 1)
        return original(self, block, late)

    original, Queue._arrives = Queue._arrives, arrives
