"""Mutants of what happens when a fault strikes in the middle of a round."""

import pickle

from sharedtensor_conformance.mutants.chapters.life import sender_hands_out_descriptors
from sharedtensor_conformance.mutants.chapters.mgr import aborts_without_its_manager
from sharedtensor_conformance.mutants.registry import mutant


@mutant("counts_messages_in_flight", "FAULT-1")
def counts_messages_in_flight(steps):
    """The manager counts messages: one that dies with its reader stays counted."""
    from sharedtensor import transport

    transport.export_name = lambda name, manager, owner, post: transport.COUNTED


@mutant("failure_to_map_keeps_the_descriptor", "FAULT-2")
def failure_to_map_keeps_the_descriptor(steps):
    """Where mapping a segment fails, its descriptor stays open."""
    from sharedtensor import strategies, transport

    def open_segment(self, target, token, nbytes, where):
        inode, ticket = where
        fd = transport.take_descriptor(ticket)
        steps.map_segment(target, fd)
        return strategies.Segment(self, token, nbytes, fd, inode)

    strategies.FileDescriptor.open = open_segment


@mutant("receiver_asks_its_sender", "FAULT-3")
def receiver_asks_its_sender(steps):
    """A receiver waits until its sender hands out the descriptor."""
    sender_hands_out_descriptors(steps)


@mutant("lost_message_is_none", "FAULT-4")
def lost_message_is_none(steps):
    """A message for whose descriptors there is no room arrives as None."""
    from sharedtensor import ResourceError

    original = steps.read_message

    def read_message(connection, wait=True):
        try:
            return original(connection, wait)
        except ResourceError:
            return pickle.dumps(None), []

    steps.read_message = read_message


@mutant("abort_where_the_manager_was", "FAULT-5")
def abort_where_the_manager_was(steps):
    """A process that finds its manager gone aborts."""
    aborts_without_its_manager(steps)
