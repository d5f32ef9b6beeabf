"""Mutants of what is left when the system refuses."""

import errno
import os
import resource
import signal

from sharedtensor_conformance.mutants.registry import mutant


@mutant("queue_drops_what_has_no_descriptor", "FAIL-1")
def queue_drops_what_has_no_descriptor(steps):
    """A put that finds no descriptor returns, and its message never comes."""
    original = steps.put_message

    def put_message(obj):
        try:
            return original(obj)
        except OSError:
            return original(None)

    steps.put_message = put_message


@mutant("is_shared_before_it_is", "FAIL-1", "FAIL-3")
def is_shared_before_it_is(steps):
    """A storage whose move was refused says that it is shared."""
    move, is_shared, tried = steps.move_storage, steps.is_shared, set()

    def move_storage(storage):
        tried.add(id(storage))
        move(storage)

    steps.move_storage = move_storage
    steps.is_shared = lambda storage: is_shared(storage) or id(storage) in tried


@mutant("receiver_gets_zeros_without_descriptors", "FAIL-2", "FAIL-7")
def receiver_gets_zeros_without_descriptors(steps):
    """A receiver that cannot map a segment gets private zeros in its place."""
    original = steps.rebuild_storage

    def rebuild_storage(storage_class, handle):
        try:
            return original(storage_class, handle)
        except OSError:
            return storage_class(handle[2])

    steps.rebuild_storage = rebuild_storage


@mutant("receiver_gives_up_after_a_refusal", "FAIL-2")
def receiver_gives_up_after_a_refusal(steps):
    """A connection whose message was refused has lost the next one, too."""
    original = steps.read_message

    def read_message(connection, wait=True):
        try:
            return original(connection, wait)
        except BlockingIOError:
            raise
        except OSError:
            connection.poll(0.2) and original(connection, wait)
            raise

    steps.read_message = read_message


@mutant("room_is_taken_at_the_first_touch", "FAIL-3", "FAIL-4")
def room_is_taken_at_the_first_touch(steps):
    """A segment gets its size at once and its memory when somebody writes to it."""
    from sharedtensor import memory

    original, parts = memory.remap, {}

    def write(fd, source):
        parts[source.address] = bytes(source.bytes)
        os.ftruncate(fd, source.capacity)

    def remap(target, fd, sharing=1):
        original(target, fd, sharing)
        if (part := parts.pop(target.address, None)) is not None:
            target.bytes[:] = part

    memory.write, memory.remap = write, remap


@mutant("zeros_take_no_room", "FAIL-4")
def zeros_take_no_room(steps):
    """A tensor of zeros is shared as a file with a hole, in `/dev/shm` always."""
    from sharedtensor import memory

    original = memory.write

    def write(fd, source):
        if any(source.bytes):
            original(fd, source)
        else:
            os.ftruncate(fd, source.capacity)

    memory.write = write


@mutant("refused_file_stays", "FAIL-3", "FAIL-8")
def refused_file_stays(steps):
    """A file that could not be filled keeps a name."""
    from sharedtensor import memory

    original = memory.write

    def write(fd, source):
        try:
            original(fd, source)
        except OSError:
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("/dev/shm/"):
                os.rename(name, name + "0")
                open(name, "x").close()
            raise

    memory.write = write


@mutant("file_limit_kills", "FAIL-5")
def file_limit_kills(steps):
    """What is larger than a file may be ends the process by SIGXFSZ."""
    original = steps.move_storage

    def move_storage(storage):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        original(storage)

    steps.move_storage = move_storage


@mutant("empties_before_it_maps", "FAIL-6")
def empties_before_it_maps(steps):
    """The old memory is cleared before the segment is mapped over it."""
    original = steps.map_segment

    def map_segment(target, fd):
        with open("/proc/self/maps") as file:
            scarce = sum(1 for _ in file) > 30_000
        if scarce:
            target.bytes[:] = bytes(target.bytes.nbytes)
        original(target, fd)

    steps.map_segment = map_segment


@mutant("dies_without_mappings", "FAIL-7")
def dies_without_mappings(steps):
    """A receiver that can map no more memory ends itself."""
    original = steps.rebuild_storage

    def rebuild_storage(storage_class, handle):
        try:
            return original(storage_class, handle)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                os.kill(os.getpid(), signal.SIGABRT)
            raise

    steps.rebuild_storage = rebuild_storage


@mutant("refusal_keeps_a_descriptor", "FAIL-8")
def refusal_keeps_a_descriptor(steps):
    """A segment that cannot be made keeps a descriptor for the next attempt."""
    original, kept = steps.share_storage, []

    def share_storage(storage):
        try:
            original(storage)
        except OSError:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            kept.append(os.open("/dev/shm", os.O_RDONLY))
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            raise

    steps.share_storage = share_storage


@mutant("signal_ends_the_wait", "FAIL-9")
def signal_ends_the_wait(steps):
    """A receiver that is interrupted while it waits raises instead of going on."""
    original = steps.read_message

    def read_message(connection, wait=True):
        before = signal.getsignal(signal.SIGALRM)
        if not wait or not callable(before):
            return original(connection, wait)

        def interrupt(*ignored):
            raise InterruptedError(errno.EINTR, "the wait was interrupted")

        signal.signal(signal.SIGALRM, interrupt)
        try:
            return original(connection, wait)
        finally:
            signal.signal(signal.SIGALRM, before)

    steps.read_message = read_message


@mutant("no_strategy_is_the_default", "FAIL-10")
def no_strategy_is_the_default(steps):
    """None as a strategy sets the default, whatever was set before."""
    import sharedtensor.multiprocessing as module

    original = module.set_sharing_strategy
    default = steps.current_strategy()
    module.set_sharing_strategy = lambda name: original(
        default if name is None else name
    )


@mutant("refused_put_stops_the_receiver", "FAIL-11")
def refused_put_stops_the_receiver(steps):
    """Who is refused a move takes what is shared back into private memory."""
    from sharedtensor import memory

    original = steps.move_storage

    def move_storage(storage):
        try:
            original(storage)
        except OSError:
            for other in list(steps.known.values()):
                kept = other.bytes.copy()
                fd = other.segment.descriptor
                if fd is not None:
                    memory.remap(other.memory, fd, 2)  # MAP_PRIVATE
                    other.bytes[:] = kept
            raise

    steps.move_storage = move_storage
