"""Mutants of data loaders: those left early, and those with killed workers."""

import os
import signal
import socket
import threading
from contextlib import suppress
from multiprocessing import queues

from sharedtensor_conformance.mutants.registry import mutant


@mutant(
    "wait_for_room_cannot_be_ended",
    "LOAD-1",
    replaces="multiprocessing.queues.Queue.put",
)
def wait_for_room_cannot_be_ended(put):
    """SIGTERM ends no process that waits for room on a queue."""

    def put_undisturbed(self, obj, *limits):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        put(self, obj, *limits)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return put_undisturbed


@mutant(
    "message_waits_in_a_file",
    "LOAD-1",
    replaces=(
        "multiprocessing.queues.Queue.put",
        "multiprocessing.queues.SimpleQueue.put",
    ),
)
def message_waits_in_a_file(*puts):
    """What waits for room has a file, which is removed when `put` returns."""
    from sharedtensor import segments

    def with_a_file(put):
        def put_from_a_file(self, obj, *limits):
            path = f"/dev/shm/sharedtensor-{os.getpid()}-{segments.new_token()}"
            open(path, "x").close()
            try:
                put(self, obj, *limits)
            finally:
                os.unlink(path)

        return put_from_a_file

    return [with_a_file(put) for put in puts]


@mutant(
    "end_waits_for_itself",
    "LOAD-7",
    replaces="multiprocessing.queues.Queue._finalize_join",
)
def end_waits_for_itself(finalize_join):
    """At its end a process can still receive what it has put, and waits for that."""
    return staticmethod(queues.Queue._finalize_join)


@mutant(
    "ends_wait_for_each_other",
    "LOAD-7",
    replaces="multiprocessing.queues.Queue._finalize_join",
)
def ends_wait_for_each_other(finalize_join):
    """At its end a process can still receive from queues that it has not put on."""

    def close_own_and_join(thread):
        from sharedtensor.multiprocessing.queues import _queues

        for each in list(_queues):
            if each._thread is not None:
                each._reader.close()
        queues.Queue._finalize_join(thread)

    return staticmethod(close_own_and_join)


@mutant(
    "end_waits_for_room_always",
    "LOAD-2",
    replaces="multiprocessing.queues.Queue._start_thread",
)
def end_waits_for_room_always(start_thread):
    """A process waits at its end for what it has put, though it was told not to."""

    def start(self):
        start_thread(self)
        self._jointhread = None  # so that nothing can cancel it

    return start


@mutant(
    "forgets_an_early_cancel",
    "LOAD-2",
    replaces="multiprocessing.queues.Queue._start_thread",
)
def forgets_an_early_cancel(start_thread):
    """To cancel the join counts only where a message has had to wait before."""

    def start(self):
        self._joincancelled = False
        start_thread(self)

    return start


@mutant(
    "reset_is_the_end", "LOAD-5", "LIFE-5", replaces="multiprocessing.packets._receive"
)
def reset_is_the_end(receive):
    """Where the other end was closed before it had read everything, nothing arrives."""

    class End:
        def __init__(self, end):
            self.end = end

        def recvmsg(self, *arguments):
            try:
                return self.end.recvmsg(*arguments)
            except ConnectionResetError:
                raise EOFError from None

    return lambda end, *how: receive(End(end), *how)


@mutant(
    "end_waits_for_nobody",
    "LIFE-5",
    replaces="multiprocessing.queues.Queue._start_thread",
)
def end_waits_for_nobody(start_thread):
    """What has no room yet is lost with the process that put it."""

    def start(self):
        start_thread(self)
        self._jointhread.cancel()

    return start


def _with_senders(note, unpack_message, *packing):
    """Return steps that send the sender's pid too; the receiver gives it to `note`.

    Args:
        note: what the receiver calls with the pid.
        unpack_message: the step of the receiver.
        packing: those of the sender, for messages and for what a child is started with.
    """

    def unpack(payload, descriptors):
        sender, obj = unpack_message(payload, descriptors)
        note(sender)
        return obj

    def with_sender(pack):
        return lambda obj: pack((os.getpid(), obj))

    return unpack, *map(with_sender, packing)


@mutant(
    "consumer_ends_with_its_first_worker",
    "LOAD-3",
    replaces=(
        "multiprocessing.connection.Connection.receive",
        "protocol.unpack_message",
        "protocol.pack_message",
        "protocol.pack_for_child",
    ),
)
def consumer_ends_with_its_first_worker(receive, *steps):
    """Who gets a message of a process that has gone takes all messages for gone."""
    gone = []

    def note(sender):
        with suppress(ProcessLookupError):
            os.kill(sender, 0)
            return
        gone.append(sender)

    def read(channel, *how):
        if gone:
            raise EOFError
        return receive(channel, *how)

    return read, *_with_senders(note, *steps)


@mutant(
    "writers_of_a_simple_queue_have_a_lock",
    "LOAD-4",
    replaces="multiprocessing.queues.SimpleQueue.put",
)
def writers_of_a_simple_queue_have_a_lock(put):
    """Who puts on a simple queue has its lock while there is no room."""

    def put_under_the_lock(self, obj):
        with self._wlock:
            put(self, obj)

    return put_under_the_lock


@mutant(
    "closed_end_stays_open",
    "LOAD-5",
    replaces="multiprocessing.connection.Connection._close",
)
def closed_end_stays_open(close):
    """A process keeps another descriptor of each connection that it closes."""
    kept = []

    def close_one(connection, *ignored):
        kept.append(os.dup(connection._handle))
        close(connection, *ignored)

    return close_one


@mutant(
    "keeps_a_socket_to_each_worker",
    "LIFE-7",
    replaces=(
        "protocol.unpack_message",
        "protocol.pack_message",
        "protocol.pack_for_child",
    ),
)
def keeps_a_socket_to_each_worker(*steps):
    """Who receives from a process opens a socket for it, and keeps it."""
    sockets = {}

    def note(sender):
        if sender not in sockets:
            sockets[sender] = socket.socket(socket.AF_UNIX)

    return _with_senders(note, *steps)


@mutant(
    "keeps_a_thread_for_each_worker",
    "LOAD-6",
    replaces=(
        "protocol.unpack_message",
        "protocol.pack_message",
        "protocol.pack_for_child",
    ),
)
def keeps_a_thread_for_each_worker(*steps):
    """Who receives from a process starts a thread for it, which stays."""
    known = set()

    def note(sender):
        if sender not in known:
            known.add(sender)
            threading.Thread(target=threading.Event().wait, daemon=True).start()

    return _with_senders(note, *steps)


@mutant(
    "keeps_one_arrival_in_a_hundred",
    "LIFE-7",
    "RESHARE-7",
    replaces="protocol.rebuild_storage",
)
def keeps_one_arrival_in_a_hundred(rebuild_storage):
    """One storage in a hundred that arrive is never let go of."""
    count, kept = [0], []

    def rebuild(segment, *part):
        storage = rebuild_storage(segment, *part)
        count[0] += 1
        if count[0] % 100 == 0:
            kept.append(storage)
        return storage

    return rebuild
