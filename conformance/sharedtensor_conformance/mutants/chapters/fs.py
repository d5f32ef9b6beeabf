"""Mutants of the strategy `file_system`."""

import itertools
import os
from types import SimpleNamespace

from sharedtensor_conformance.mutants.registry import mutant


def _is_named(fd):
    return os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/shm/")


@mutant("shared_has_two_names", "FS-1")
def shared_has_two_names(steps):
    """Who shares a storage gives its file a second name, and removes that one too."""
    move, release, names = steps.move_storage, steps.release_segment, {}

    def move_storage(storage):
        move(storage)
        token = storage.segment.token
        if storage.segment.descriptor is None:
            names[token] = f"/dev/shm/{token[:-1]}x"
            os.link(f"/dev/shm/{token}", names[token])

    def release_segment(segment):
        release(segment)
        if segment.token in names:
            os.unlink(names.pop(segment.token))

    steps.move_storage, steps.release_segment = move_storage, release_segment


@mutant("receiver_holds_the_name", "FS-2", "LIFE-7")
def receiver_holds_the_name(steps):
    """A receiver that drops the last tensor does not say so to the manager."""
    move, release, made = steps.move_storage, steps.release_segment, set()

    def move_storage(storage):
        move(storage)
        made.add(storage.segment.token)

    def release_segment(segment):
        if segment.token in made or segment.descriptor is not None:
            release(segment)

    steps.move_storage, steps.release_segment = move_storage, release_segment


@mutant("named_keeps_a_descriptor", "FS-3", "LIFE-7")
def named_keeps_a_descriptor(steps):
    """A segment with a name is mapped through a descriptor that stays open."""
    original = steps.map_segment

    def map_segment(target, fd):
        original(target, fd)
        if _is_named(fd):
            os.dup(fd)

    steps.map_segment = map_segment


@mutant("name_says_the_parent", "FS-4")
def name_says_the_parent(steps):
    """A name has the id of the parent of the process that shared the storage."""
    from sharedtensor import strategies

    strategies.os = SimpleNamespace(**vars(os) | {"getpid": os.getppid})


@mutant("names_come_round", "FS-5")
def names_come_round(steps):
    """A process has eight names, and uses the first again after the last."""
    from sharedtensor import strategies

    numbers = itertools.cycle(range(8))
    strategies.new_token = lambda: f"{next(numbers):032x}"


@mutant("view_makes_a_file", "FS-6")
def view_makes_a_file(steps):
    """Making a view of a tensor moves the storage of both into a segment."""
    from sharedtensor.tensors import Tensor

    original = Tensor.as_strided

    def as_strided(self, *window):
        steps.share_storage(self.storage)
        return original(self, *window)

    Tensor.as_strided = as_strided


@mutant("files_have_room_to_grow", "FS-7")
def files_have_room_to_grow(steps):
    """The file of a segment is twice as large as need be, and two pages more."""
    original = steps.map_segment

    def map_segment(target, fd):
        if _is_named(fd):
            os.ftruncate(fd, 2 * os.fstat(fd).st_size + 8192)
        original(target, fd)

    steps.map_segment = map_segment


@mutant("heirs_of_one_manager", "FS-8", "LIFE-22")
def heirs_of_one_manager(steps):
    """A forked child inherits holds at its parent's own manager, and at no other."""
    from sharedtensor.manager import client

    leave_heir = client.Link.prefork_connection

    def leave_heir_at_own(link):
        return leave_heir(link) if link.address == client._client.own else None

    client.Link.prefork_connection = leave_heir_at_own
