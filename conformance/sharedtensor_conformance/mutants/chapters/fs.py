"""Mutants of the strategy `file_system`."""

import fcntl
import itertools
import os
import weakref

from sharedtensor_conformance.mutants.held import held_alone
from sharedtensor_conformance.mutants.registry import mutant


def _is_named(fd):
    return os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/shm/")


@mutant(
    "shared_has_two_names",
    "FS-1",
    replaces=("protocol.move_storage", "strategies.release_segment"),
)
def shared_has_two_names(move_storage, release_segment):
    """Who shares a storage gives its file a second name, and removes that one too."""
    names = {}

    def move(storage):
        move_storage(storage)
        token = storage.segment.token
        if storage.segment.fd < 0:
            names[token] = f"/dev/shm/{token[:-1]}x"
            os.link(f"/dev/shm/{token}", names[token])

    def release(segment):
        release_segment(segment)
        if segment.token in names:
            os.unlink(names.pop(segment.token))

    return move, release


@mutant(
    "receiver_holds_the_name",
    "FS-2",
    "LIFE-7",
    replaces=("protocol.move_storage", "strategies.release_segment"),
)
def receiver_holds_the_name(move_storage, release_segment):
    """A receiver that drops the last tensor does not say so to the manager."""
    made = set()

    def move(storage):
        move_storage(storage)
        made.add(storage.segment.token)

    def release(segment):
        if segment.token in made or segment.fd >= 0:
            release_segment(segment)

    return move, release


@mutant(
    "named_keeps_a_descriptor",
    "FS-3",
    "LIFE-7",
    replaces=("memory.move", "memory.map_segment"),
)
def named_keeps_a_descriptor(move, map_segment):
    """A segment with a name is mapped through a descriptor that stays open."""

    def move_and_keep(source, fd, then):
        move(source, fd, then)
        if _is_named(fd):
            os.dup(fd)

    def map_and_keep(target, fd):
        map_segment(target, fd)
        if _is_named(fd):
            os.dup(fd)

    return move_and_keep, map_and_keep


@mutant("name_says_the_parent", "FS-4", replaces="segments.new_name")
def name_says_the_parent(new_name):
    """A name has the id of the parent of the process that shared the storage."""
    return lambda: new_name().replace(f"-{os.getpid()}-", f"-{os.getppid()}-")


@mutant("names_come_round", "FS-5", replaces="names.program.new_token")
def names_come_round(new_token):
    """A process has eight names, and uses the first again after the last."""
    numbers = itertools.cycle(range(8))

    def one_of_eight():
        number = next(numbers)
        return f"{number:08x}{new_token()[8:20]}{number:012x}"

    return one_of_eight


@mutant("view_makes_a_file", "FS-6", replaces="tensors.Tensor.as_strided")
def view_makes_a_file(as_strided):
    """Making a view of a tensor moves the storage of both into a segment."""

    def share_and_view(self, *window):
        self.storage.share()
        return as_strided(self, *window)

    return share_and_view


@mutant("large_storage_has_a_file", "FS-6", replaces="storage.Storage.__init__")
def large_storage_has_a_file(init):
    """Under `file_system` a storage of more than 1 MiB has a file from the start."""
    from sharedtensor import segments, state

    def remove(path, pid):
        if os.getpid() == pid:
            os.unlink(path)

    def init_with_a_file(self, nbytes):
        init(self, nbytes)
        if nbytes > 1 << 20 and state.strategy == "file_system":
            path = f"/dev/shm/sharedtensor-{os.getpid()}-{segments.new_token()}"
            os.close(os.open(path, segments.TO_CREATE, 0o600))
            weakref.finalize(self, remove, path, os.getpid())

    return init_with_a_file


@mutant("files_have_room_to_grow", "FS-7", replaces="memory.move")
def files_have_room_to_grow(move):
    """The file of a segment is twice as large as need be, and two pages more."""

    def move_and_grow(source, fd, then):
        move(source, fd, then)
        if _is_named(fd):
            os.ftruncate(fd, 2 * os.fstat(fd).st_size + 8192)

    return move_and_grow


@mutant("heirs_of_one_manager", "FS-8", "LIFE-22", replaces="protocol.remember_segment")
def heirs_of_one_manager(remember_segment):
    """A forked child holds what it inherits if its parent's manager knows the name."""
    from sharedtensor import memory, segments
    from sharedtensor.names import keeper, program

    def map_without_locks():
        for storage in held_alone():
            name = storage.segment.token
            if "-" in name and keeper.program_of(name) != program._id:
                fd = os.open(f"{segments.DIRECTORY}/{name}", segments.TO_OPEN)
                memory.map_segment(storage.memory, fd)
                os.close(fd)

    os.register_at_fork(after_in_child=map_without_locks)
    return remember_segment


@mutant("sends_on_at_its_own_manager", "FS-8", replaces="segments.open_named")
def sends_on_at_its_own_manager(open_named):
    """A process holds names that its own manager knows, and no others."""
    from sharedtensor.names import keeper, program

    def hold_own(name):
        owned = open_named(name)
        if keeper.program_of(name) != program._id:
            fcntl.flock(owned.fd, fcntl.LOCK_UN)
        return owned

    return hold_own


@mutant("files_are_huge_pages", "FS-7", replaces="memory.move")
def files_are_huge_pages(move):
    """The file of a segment of 2 MiB or more is rounded up to whole huge pages."""
    huge = 1 << 21

    def move_and_round(source, fd, then):
        move(source, fd, then)
        size = os.fstat(fd).st_size
        if _is_named(fd) and size >= huge:
            os.ftruncate(fd, -(-size // huge) * huge)

    return move_and_round


@mutant("name_keeps_the_first_pid", "FS-4", replaces="segments.new_name")
def name_keeps_the_first_pid(new_name):
    """A process asks for its id at its first name, and its forked children do not."""
    own = []

    def name_of_the_first():
        own.append(os.getpid())
        return new_name().replace(f"-{os.getpid()}-", f"-{own[0]}-")

    return name_of_the_first


@mutant(
    "held_by_what_stands_for_others",
    "FS-2",
    replaces=("transport.Inbox.close", "protocol.rebuild_storage"),
)
def held_by_what_stands_for_others(close, rebuild_storage):
    """What holds the names of a message stays open while its last tensor lives."""
    from sharedtensor import transport

    rebuilt = weakref.WeakKeyDictionary()

    def rebuild(segment, *part):
        storage = rebuild_storage(segment, *part)
        rebuilt.setdefault(transport.current_inbox(), []).append(storage)
        return storage

    def close_but_the_last(inbox):
        places, storages = inbox.descriptors.places, rebuilt.pop(inbox, [])
        if len(storages) > 1 and places and places[-1] is not None:
            weakref.finalize(storages[-1], os.close, places[-1])
            places[-1] = None
        close(inbox)

    return close_but_the_last, rebuild


@mutant("each_argument_has_a_pipe", "FS-3", replaces="protocol.announce_names")
def each_argument_has_a_pipe(announce_names):
    """Each name among the arguments of a process is announced by itself."""
    from sharedtensor import announcements, transport

    def announce(outbox):
        if outbox is transport._current.spawning:
            for name in outbox.names:
                outbox.keep.append(announcements.descriptor_of([name]))
        announce_names(outbox)

    return announce


@mutant("waiting_message_has_a_pipe", "FS-11", replaces="protocol.pack_into")
def waiting_message_has_a_pipe(pack_into):
    """A message is announced when it is packed, however long it waits then."""
    from sharedtensor import announcements

    def pack(outbox, obj):
        payload = pack_into(outbox, obj)
        if outbox.names:
            outbox.keep.append(announcements.descriptor_of(outbox.names))
        return payload

    return pack


@mutant("child_keeps_what_it_inherited", "FS-2", replaces="protocol.remember_segment")
def child_keeps_what_it_inherited(remember_segment):
    """A forked child does not give up the names that it has inherited."""
    from sharedtensor import segments, state

    def hold_for_good():
        for name in list(state.segments):
            if "-" in name:
                fd = os.open(f"{segments.DIRECTORY}/{name}", segments.TO_OPEN)
                fcntl.flock(fd, fcntl.LOCK_SH)

    os.register_at_fork(after_in_child=hold_for_good)
    return remember_segment


@mutant(
    "large_file_stays_open",
    "FS-3",
    replaces=(
        "strategies.FileSystem.allocate",
        "strategies.FileSystem.open",
        "strategies.FileSystem.release",
    ),
)
def large_file_stays_open(allocate, open_segment, release):
    """The file of a segment of more than 1 MiB is open as long as the segment lives."""

    def keep_open(segment):
        if segment.nbytes > 1 << 20:
            path = f"/dev/shm/{segment.token}"
            segment._descriptor.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def allocate_and_keep(self, segment, source, then):
        allocate(self, segment, source, then)
        keep_open(segment)

    def open_and_keep(self, target, token, nbytes, where):
        segment = open_segment(self, target, token, nbytes, where)
        keep_open(segment)
        return segment

    def close_and_release(self, segment):
        segment.close()
        release(self, segment)

    return allocate_and_keep, open_and_keep, close_and_release


@mutant("missing_file_is_made", "FS-12", replaces="strategies.FileSystem.open")
def missing_file_is_made(open_segment):
    """A receiver makes the file of a segment whose name has been removed."""

    def open_or_make(self, target, token, nbytes, where):
        fd = os.open(f"/dev/shm/{token}", os.O_RDWR | os.O_CREAT, 0o600)
        if not os.fstat(fd).st_size:
            os.ftruncate(fd, nbytes)
        os.close(fd)
        return open_segment(self, target, token, nbytes, where)

    return open_or_make
