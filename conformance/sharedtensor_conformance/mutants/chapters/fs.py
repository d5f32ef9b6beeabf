"""Mutants of the strategy `file_system`."""

import itertools
import os
import weakref

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
        if storage.segment.descriptor is None:
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
        if segment.token in made or segment.descriptor is not None:
            release_segment(segment)

    return move, release


@mutant("named_keeps_a_descriptor", "FS-3", "LIFE-7", replaces="segments.map_shared")
def named_keeps_a_descriptor(map_shared):
    """A segment with a name is mapped through a descriptor that stays open."""

    def map_and_keep(target, fd):
        map_shared(target, fd)
        if _is_named(fd):
            os.dup(fd)

    return map_and_keep


@mutant("name_says_the_parent", "FS-4", replaces="segments.new_name")
def name_says_the_parent(new_name):
    """A name has the id of the parent of the process that shared the storage."""
    return lambda: new_name().replace(f"-{os.getpid()}-", f"-{os.getppid()}-")


@mutant("names_come_round", "FS-5", replaces="segments.new_token")
def names_come_round(new_token):
    """A process has eight names, and uses the first again after the last."""
    numbers = itertools.cycle(range(8))
    return lambda: f"{next(numbers):032x}"


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
            path = f"/dev/shm/{segments.new_name()}"
            os.close(os.open(path, segments.TO_CREATE, 0o600))
            weakref.finalize(self, remove, path, os.getpid())

    return init_with_a_file


@mutant("files_have_room_to_grow", "FS-7", replaces="segments.map_shared")
def files_have_room_to_grow(map_shared):
    """The file of a segment is twice as large as need be, and two pages more."""

    def grow_and_map(target, fd):
        if _is_named(fd):
            os.ftruncate(fd, 2 * os.fstat(fd).st_size + 8192)
        map_shared(target, fd)

    return grow_and_map


@mutant(
    "heirs_of_one_manager",
    "FS-8",
    "LIFE-22",
    replaces="manager.link.Link.prefork_connection",
)
def heirs_of_one_manager(prefork_connection):
    """A forked child inherits holds at its parent's own manager, and at no other."""
    from sharedtensor.manager import client

    def prefork_connection_to_own(link):
        return prefork_connection(link) if link.address == client._client.own else None

    return prefork_connection_to_own


@mutant(
    "sends_on_at_its_own_manager",
    "FS-8",
    "FS-2",
    replaces="strategies.FileSystem.export",
)
def sends_on_at_its_own_manager(export):
    """Who sends a name on announces it to its own manager, and names that one."""
    from sharedtensor import announcements, manager

    def export_at_its_own(self, segment):
        address = manager.address()
        return address, announcements.announce_name(segment.token, address, segment)

    return export_at_its_own


@mutant("files_are_huge_pages", "FS-7", replaces="segments.map_shared")
def files_are_huge_pages(map_shared):
    """The file of a segment of 2 MiB or more is rounded up to whole huge pages."""
    huge = 1 << 21

    def round_and_map(target, fd):
        size = os.fstat(fd).st_size
        if _is_named(fd) and size >= huge:
            os.ftruncate(fd, -(-size // huge) * huge)
        map_shared(target, fd)

    return round_and_map


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
    replaces="transport.Inbox.carries_others",
)
def held_by_what_stands_for_others(carries_others):
    """A name is held by the descriptor of its message, though others go with it."""

    def never(inbox, place, name):
        return False

    return never


@mutant("each_argument_has_a_pipe", "FS-3", replaces="protocol.announce_names")
def each_argument_has_a_pipe(announce_names):
    """Each name among the arguments of a process is announced by itself."""
    from sharedtensor import announcements, transport

    def announce(outbox):
        if transport.is_spawning():
            for address, names in outbox.names.items():
                for name in names:
                    outbox.keep.append(announcements.descriptor_of([name], address))
        announce_names(outbox)

    return announce


@mutant("waiting_message_has_a_pipe", "FS-11", replaces="protocol.pack_into")
def waiting_message_has_a_pipe(pack_into):
    """A message is announced when it is packed, however long it waits then."""
    from sharedtensor import announcements

    def pack(outbox, obj):
        payload = pack_into(outbox, obj)
        for address, names in outbox.names.items():
            outbox.keep.append(announcements.descriptor_of(names, address))
        return payload

    return pack


@mutant(
    "child_keeps_what_it_inherited",
    "FS-2",
    replaces="manager.conversation.Conversation.inherit",
)
def child_keeps_what_it_inherited(inherit):
    """A forked child does not give up the names that it has inherited."""

    def inherit_for_good(conversation, connection):
        inherit(conversation, connection)
        if connection is not None:
            conversation.holds.clear()

    return inherit_for_good


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
            segment.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def allocate_and_keep(self, segment, source):
        allocate(self, segment, source)
        keep_open(segment)

    def open_and_keep(self, target, token, nbytes, where):
        segment = open_segment(self, target, token, nbytes, where)
        keep_open(segment)
        return segment

    def close_and_release(self, segment):
        fd, segment.descriptor = segment.descriptor, None
        if fd is not None:
            os.close(fd)
        release(self, segment)

    return allocate_and_keep, open_and_keep, close_and_release
