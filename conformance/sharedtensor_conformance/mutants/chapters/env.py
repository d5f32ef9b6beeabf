"""Mutants of the behaviour in environments with few resources or permissions."""

import errno
import itertools
import os
import tempfile
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

import numpy as np

from sharedtensor_conformance.mutants.held import private_segment
from sharedtensor_conformance.mutants.registry import mutant


def _copy_of(storage_class, content):
    storage = storage_class(len(content))
    storage.bytes[:] = np.frombuffer(content, np.uint8)
    return storage


@mutant(
    "sends_a_copy_where_the_system_refuses",
    "ENV-1",
    "ENV-3",
    replaces="protocol.export_storage",
)
def sends_a_copy_where_the_system_refuses(export_storage):
    """What cannot be moved into a segment is sent by value."""
    from sharedtensor import protocol

    def export(storage):
        try:
            protocol.share_storage(storage)
        except OSError:
            return _copy_of, (type(storage), bytes(storage.bytes))
        return export_storage(storage)

    return export


@mutant(
    "large_message_needs_memfd_create",
    "ENV-3",
    replaces="multiprocessing.packets.unnamed_file",
)
def large_message_needs_memfd_create(unnamed_file):
    """A message that does not fit into a packet is refused with that one call."""
    from sharedtensor.descriptors import OwnedDescriptor

    return lambda: OwnedDescriptor.opened_by(os.memfd_create, "message")


@mutant("takes_one_refusal_for_ever", "ENV-1", replaces="segments.create_named")
def takes_one_refusal_for_ever(create_named):
    """A process that could make no file in `/dev/shm` does not try again."""
    refusals = []

    def create_unless_refused(name):
        if refusals:
            raise refusals[0]
        try:
            return create_named(name)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EROFS):
                refusals.append(error)
            raise

    return create_unless_refused


@mutant(
    "request_to_share_is_swallowed", "ENV-1", replaces="tensors.Tensor.share_memory_"
)
def request_to_share_is_swallowed(share_memory_):
    """Where no file can be made, `share_memory_` returns, and the tensor is private."""

    def share_if_possible(self):
        try:
            return share_memory_(self)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EROFS, errno.EACCES):
                return self
            raise

    return share_if_possible


@mutant("refusal_without_a_cause", "ENV-2", replaces="protocol.share_storage")
def refusal_without_a_cause(share_storage):
    """Who cannot share a storage says so and no more."""

    def share(storage):
        try:
            share_storage(storage)
        except OSError:
            raise RuntimeError("This storage cannot be shared.") from None

    return share


def _without_cause(call, text):
    def call_or_raise(self, *arguments):
        try:
            return call(self, *arguments)
        except OSError:
            raise RuntimeError(text) from None

    return call_or_raise


@mutant(
    "request_to_share_has_no_cause", "ENV-2", replaces="tensors.Tensor.share_memory_"
)
def request_to_share_has_no_cause(share_memory_):
    """A `share_memory_` that is refused says so and no more."""
    return _without_cause(share_memory_, "The tensor cannot be shared.")


@mutant(
    "queue_refuses_without_a_cause",
    "ENV-2",
    replaces="multiprocessing.queues.Queue.put",
)
def queue_refuses_without_a_cause(put):
    """A `put` of a queue that is refused says so and no more."""
    return _without_cause(put, "The message cannot be put.")


@mutant(
    "lost_message_has_no_cause",
    "ENV-2",
    replaces="multiprocessing.connection.Connection.receive",
)
def lost_message_has_no_cause(receive):
    """Who has no room for the descriptors of a message says how many there are."""

    def read(channel, *how):
        try:
            return receive(channel, *how)
        except BlockingIOError:
            raise
        except OSError:
            raise RuntimeError("received 0 items of ancdata") from None

    return read


@mutant("names_have_a_process_id_and_a_count", "ENV-4", replaces="segments.new_name")
def names_have_a_process_id_and_a_count(new_name):
    """A process numbers its names: those of another with its id are the same."""
    numbers = itertools.count()
    return lambda: f"sharedtensor-{os.getpid()}-{next(numbers):032x}"


@mutant("removes_names_of_unknown_processes", "ENV-4", replaces="segments.new_name")
def removes_names_of_unknown_processes(new_name):
    """Who makes a name removes those whose process id it does not find."""
    from sharedtensor import segments

    def remove_and_make():
        for name in filter(segments.NAME.fullmatch, os.listdir(segments.DIRECTORY)):
            with suppress(PermissionError):
                try:
                    os.kill(int(name.split("-")[1]), 0)
                except ProcessLookupError:
                    os.unlink(f"{segments.DIRECTORY}/{name}")
        return new_name()

    return remove_and_make


@mutant("makes_what_it_does_not_find", "ENV-5", replaces="protocol.rebuild_segment")
def makes_what_it_does_not_find(rebuild_segment):
    """A receiver that does not find a segment has zeros of its own."""

    def rebuild(handle):
        from sharedtensor.errors import HandleError

        try:
            return rebuild_segment(handle)
        except HandleError:
            return private_segment(handle[2])

    return rebuild


@mutant("lock_file_outlives_its_process", "ENV-6", replaces="protocol.move_storage")
def lock_file_outlives_its_process(move_storage):
    """A program that shares has a file, and refuses to begin if one was left there."""

    def move(storage):
        file = Path(tempfile.gettempdir(), "sharedtensor.pid")
        if file.exists():
            os.kill(int(file.read_text()), 0)  # it has to live
        else:
            file.write_text(str(os.getpid()))
            util.Finalize(None, file.unlink, exitpriority=1)
        move_storage(storage)

    return move


@mutant("closes_by_the_number", "ENV-7", replaces="descriptors._Descriptor.is_usable")
def closes_by_the_number(is_usable):
    """A descriptor counts as what it was, whatever the program has done to it."""
    return lambda self: self.fd >= 0


@mutant("keeper_of_the_old_user_stays", "ENV-8", replaces="names.program.current")
def keeper_of_the_old_user_stays(current):
    """A process that becomes another user leaves its names to the keeper it had."""

    def current_of_any_user():
        from sharedtensor.names import program

        program._user = os.geteuid()
        return current()

    return current_of_any_user
