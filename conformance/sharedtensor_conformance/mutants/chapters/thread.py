"""Mutants of threads and of interrupted calls."""

import os
import queue
import threading
import time
import weakref
from contextlib import suppress

from sharedtensor_conformance.mutants.registry import mutant

HUNDRED = 100
SOON = 1.0  # seconds


def _shared_by_threads(current, name):
    """Return a replacement of `current` in which all threads share the value `name`."""
    common = [None]

    class Current(type(current)):
        pass

    def assign(self, value):
        common[0] = value
        time.sleep(0)  # which lets another thread go on

    setattr(Current, name, property(lambda self: common[0], assign))
    return Current()


@mutant("threads_share_an_outbox", "THREAD-1", replaces="transport._current")
def threads_share_an_outbox(current):
    """What is collected for a message may come along with that of another thread."""
    return _shared_by_threads(current, "outbox")


@mutant("threads_share_an_inbox", "THREAD-2", replaces="transport._current")
def threads_share_an_inbox(current):
    """What came with a message may be taken for that of another thread."""
    return _shared_by_threads(current, "inbox")


@mutant(
    "lock_is_held_in_the_child",
    "THREAD-3",
    replaces=("protocol.share_storage", "protocol.share_small"),
)
def lock_is_held_in_the_child(share_storage, share_small):
    """A storage is shared under a lock that a forked child inherits as it is."""
    lock = threading.RLock()

    def under_the_lock(share):
        def share_alone(what):
            with lock:
                share(what)
                time.sleep(0.002)  # so most forks come while it is held

        return share_alone

    return under_the_lock(share_storage), under_the_lock(share_small)


@mutant(
    "first_use_is_in_progress_in_the_child",
    "THREAD-3",
    replaces="storage.Storage.__init__",
)
def first_use_is_in_progress_in_the_child(make):
    """A process makes its first storage under a lock, as if it imported something."""
    lock = threading.Lock()
    used = []

    def make_first(self, nbytes):
        if not used:
            with lock:
                time.sleep(0.2)  # as long as an import
                used.append(True)
        make(self, nbytes)

    return make_first


@mutant(
    "lock_of_a_queue_is_held_in_the_child",
    "THREAD-3",
    replaces=(
        "multiprocessing.queues.Queue.put",
        "multiprocessing.queues.SimpleQueue.put",
    ),
)
def lock_of_a_queue_is_held_in_the_child(put, put_on_simple_queue):
    """Threads put on a queue under its lock, which a forked child inherits as it is."""
    locks = weakref.WeakKeyDictionary()

    def under_the_lock(put):
        def put_alone(self, *arguments):
            with locks.setdefault(self, threading.RLock()):
                put(self, *arguments)
                time.sleep(0.002)  # so most forks come while it is held

        return put_alone

    return under_the_lock(put), under_the_lock(put_on_simple_queue)


@mutant(
    "simple_queue_has_a_thread",
    "THREAD-4",
    replaces="multiprocessing.queues.SimpleQueue.put",
)
def simple_queue_has_a_thread(put):
    """A simple queue leaves the writing to a thread, one in each process."""
    from sharedtensor import protocol

    waiting = {}

    def write_all(messages):
        while True:
            protocol.write_message(*messages.get())

    def put_by_thread(self, obj):
        message = protocol.pack_message(obj)
        if os.getpid() not in waiting:
            messages = waiting[os.getpid()] = queue.SimpleQueue()
            threading.Thread(target=write_all, args=(messages,), daemon=True).start()
        waiting[os.getpid()].put((message, self._writer))

    return put_by_thread


@mutant(
    "simple_queue_waits_for_a_thread",
    "THREAD-4",
    replaces="multiprocessing.queues.SimpleQueue.put",
)
def simple_queue_waits_for_a_thread(put):
    """A thread writes each message, and the call returns when that thread has ended."""
    from sharedtensor import protocol

    def put_by_thread(self, obj):
        message = protocol.pack_message(obj), self._writer
        thread = threading.Thread(target=protocol.write_message, args=message)
        thread.start()
        thread.join()

    return put_by_thread


@mutant("drop_leaves_it_to_a_thread", "THREAD-4", replaces="strategies.release_segment")
def drop_leaves_it_to_a_thread(release_segment):
    """What is dropped is given back by a thread, which ends then."""

    def release_by_thread(segment):
        thread = threading.Thread(target=segment.strategy.release, args=(segment,))
        thread.start()
        thread.join()

    return release_by_thread


@mutant(
    "thread_forgets_what_has_gone", "THREAD-4", replaces="protocol.remember_segment"
)
def thread_forgets_what_has_gone(remember_segment):
    """A process that has more than a hundred storages starts a thread for them."""
    from sharedtensor import state

    def remember(segment):
        if len(state.segments) > HUNDRED:
            sweep = threading.Timer(SOON, list, (state.segments,))
            sweep.daemon = True
            sweep.start()
        return remember_segment(segment)

    return remember


@mutant(
    "interrupted_receive_takes_the_next",
    "THREAD-5",
    replaces="multiprocessing.packets._receive",
)
def interrupted_receive_takes_the_next(receive):
    """The message that an interrupted call was waiting for goes to nobody."""
    interrupted = []

    def receive_later(end, wait, taken):
        try:
            if interrupted:
                receive(end, wait, [])
                interrupted.clear()
            return receive(end, wait, taken)
        except KeyboardInterrupt:
            interrupted.append(end)
            raise

    return receive_later


@mutant(
    "interrupted_reader_keeps_the_lock",
    "THREAD-5",
    replaces="multiprocessing.queues.SimpleQueue.get",
)
def interrupted_reader_keeps_the_lock(get):
    """Who is interrupted while it waits at a simple queue keeps the readers' lock."""

    def get_under_the_lock(self):
        self._rlock.acquire()
        received = get(self)
        self._rlock.release()
        return received

    return get_under_the_lock


@mutant(
    "timeout_of_a_handler_is_told_otherwise",
    "THREAD-5",
    replaces="multiprocessing.packets._receive",
)
def timeout_of_a_handler_is_told_otherwise(receive):
    """The `TimeoutError` of a handler, in a receive, is told as one of the system."""
    from sharedtensor.errors import ResourceError

    def receive_and_tell(end, wait, taken):
        try:
            return receive(end, wait, taken)
        except TimeoutError as error:
            raise ResourceError("this system cannot receive a message") from error

    return receive_and_tell


@mutant(
    "interrupted_timeout_keeps_the_lock",
    "THREAD-5",
    replaces="multiprocessing.queues.Queue.get",
)
def interrupted_timeout_keeps_the_lock(get):
    """Who is interrupted in a `get` with a timeout keeps a lock of the other ones."""

    def get_under_the_lock(self, block=True, timeout=None):
        if not block or timeout is None:
            return get(self, block, timeout)
        if not self._rlock.acquire(True, timeout):
            raise queue.Empty
        try:
            received = get(self, block, timeout)
        except queue.Empty:
            self._rlock.release()
            raise
        self._rlock.release()
        return received

    return get_under_the_lock


@mutant(
    "message_in_a_message_ends_it",
    "THREAD-4",
    "LIFE-5",
    replaces="transport.sending",
)
def message_in_a_message_ends_it(sending):
    """Who sends while it is pickled takes what is collected for the outer message."""
    from sharedtensor import transport

    def send_without_the_outer_one(*arguments):
        try:
            return sending(*arguments)
        finally:
            transport._current.outbox = None

    return send_without_the_outer_one


@mutant("tells_after_the_mapping", "THREAD-6", replaces="memory.move")
def tells_after_the_mapping(move):
    """A storage learns that its memory has moved when the call that did it is over."""

    def move_and_tell(source, fd, then):
        move(source, fd, ())
        for function, *of in then:
            function(*of)

    return move_and_tell


@mutant("interrupted_message_is_kept", "THREAD-6", replaces="transport.sending")
def interrupted_message_is_kept(sending):
    """What a message has collected is let go where an error ends its packing alone."""
    kept = []

    def send_and_keep(outbox, pack, *arguments, **options):
        def packing(*arguments, **options):
            try:
                return pack(*arguments, **options)
            except Exception:
                raise
            except BaseException:
                kept.append(list(outbox.keep))
                raise

        return sending(outbox, packing, *arguments, **options)

    return send_and_keep


@mutant("group_is_told_after_the_mapping", "THREAD-6", replaces="memory.move")
def group_is_told_after_the_mapping(move):
    """Storages that move together learn of it when the call that did it is over."""
    from sharedtensor import memory

    def move_and_tell(source, fd, then):
        if not isinstance(source, memory.Group):
            move(source, fd, then)
            return
        move(source, fd, ())
        for function, *of in then:
            function(*of)

    return move_and_tell


@mutant("notes_before_the_block", "THREAD-6", replaces="protocol.write_message")
def notes_before_the_block(write_message):
    """A message is kept if an interrupt comes between a note of it and the block."""
    noted = []

    def note_and_write(message, channel):
        noted.append(list(message.keep))
        try:
            return write_message(message, channel)
        finally:
            noted.pop()

    return note_and_write


@mutant("interrupted_share_returns", "THREAD-6", replaces="protocol.share_storage")
def interrupted_share_returns(share_storage):
    """A share that is interrupted returns, as if it had shared the storage."""

    def share(storage):
        with suppress(BaseException):
            share_storage(storage)

    return share


@mutant("interrupted_send_returns", "THREAD-6", replaces="protocol.write_message")
def interrupted_send_returns(write_message):
    """A send that an interrupt ends returns, as if it had sent the message."""

    def write(message, channel):
        try:
            write_message(message, channel)
        except Exception:
            raise
        except BaseException:
            return

    return write


@mutant("handler_is_taken_for_the_system", "THREAD-6", replaces="errors.is_of_handler")
def handler_is_taken_for_the_system(is_of_handler):
    """The `TimeoutError` of a signal handler is taken for a refusal of the system."""
    return lambda error: False


@mutant(
    "interrupted_finalizer_is_forgotten",
    "THREAD-7",
    replaces="descriptors.finish_ended",
)
def interrupted_finalizer_is_forgotten(finish_ended):
    """What an interrupted finalizer has left open stays open."""
    return lambda: None


@mutant("memory_is_empty_during_the_move", "THREAD-8", replaces="memory.move")
def memory_is_empty_during_the_move(move):
    """The segment is mapped over the old memory before the bytes are written to it."""
    from sharedtensor import atomic, memory

    def map_first(source, fd, then):
        if isinstance(source, memory.Group):
            move(source, fd, then)
            return
        content = bytes(source.bytes)
        os.ftruncate(fd, source.nbytes)
        memory.map_segment(source, fd)
        source.bytes[:] = content
        atomic.call_each(then)

    return map_first


@mutant(
    "interrupted_receive_loses_two", "THREAD-9", replaces="multiprocessing.packets.read"
)
def interrupted_receive_loses_two(read):
    """After a receive that was interrupted, the next one drops a message."""
    unfinished = []

    def read_next(*given):
        if unfinished:
            unfinished.clear()
            read(*given)
        unfinished.append(read)
        message = read(*given)
        unfinished.clear()
        return message

    return read_next
