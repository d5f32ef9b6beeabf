"""Mutants of the behaviour after a fault at a step of a round."""

import pickle

from sharedtensor_conformance.mutants.chapters.life import sender_hands_out_descriptors
from sharedtensor_conformance.mutants.chapters.mgr import aborts_without_its_manager
from sharedtensor_conformance.mutants.registry import mutant


@mutant(
    "failure_to_map_keeps_the_descriptor",
    "FAULT-2",
    replaces="strategies.FileDescriptor.open",
)
def failure_to_map_keeps_the_descriptor(open_handle):
    """Where mapping a segment fails, its descriptor stays open."""
    from sharedtensor import memory, strategies, transport

    def open_carelessly(self, target, token, nbytes, where):
        inode, descriptor = where
        owned = transport.take_descriptor(descriptor)
        fd, owned._descriptor.fd = owned.fd, -1
        memory.map_segment(target, fd)
        segment = strategies.Resource(self, token, nbytes, inode)
        segment._descriptor.fd = fd
        return segment

    return open_carelessly


@mutant(
    "failed_write_keeps_the_lock",
    "FAULT-2",
    replaces="multiprocessing.queues.Queue._append",
)
def failed_write_keeps_the_lock(append):
    """Where the write of a message raises, the lock of its queue stays taken."""

    def append_carelessly(self, message):
        try:
            append(self, message)
        except BaseException:
            self._notempty.acquire()
            raise

    return append_carelessly


@mutant("receiver_asks_its_sender", "FAULT-3", replaces="transport.export_descriptor")
def receiver_asks_its_sender(export_descriptor):
    """A receiver waits until its sender hands out the descriptor."""
    return sender_hands_out_descriptors(export_descriptor)


@mutant(
    "lost_message_is_none",
    "FAULT-4",
    replaces="multiprocessing.connection.Connection.receive",
)
def lost_message_is_none(receive):
    """A message for whose descriptors there is no room arrives as None."""
    from sharedtensor import ResourceError
    from sharedtensor.descriptors import ReceivedDescriptors

    def read(channel, *how):
        try:
            return receive(channel, *how)
        except ResourceError:
            return pickle.dumps(None), ReceivedDescriptors()

    return read


@mutant("abort_where_the_manager_was", "FAULT-5", replaces="names.program.start_keeper")
def abort_where_the_manager_was(start_keeper):
    """A process that finds its manager gone aborts."""
    return aborts_without_its_manager(start_keeper)
