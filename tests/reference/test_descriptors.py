"""Who owns a descriptor: wherever an exception arises, and in forked children."""

import _socket
import gc
import os
from functools import partial
from itertools import chain, starmap

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from holdings import descriptors
from interrupts import each_place
from sharedtensor.descriptors import (
    OwnedDescriptor,
    OwnedSockets,
    ReceivedDescriptors,
)


@pytest.mark.filterwarnings("ignore:Exception ignored in")  # one in a finalizer
def test_two_that_are_opened_at_once_are_owned_wherever_an_exception_arises():
    """Messages have single ones: see `test_interrupts`."""
    gc.collect()
    before = descriptors()
    places = list(each_place(partial(OwnedDescriptor.pair_opened_by, os.pipe)))
    assert len(places) > 1
    assert descriptors() == before


# A forked child has none of what is on its way


def opened():
    """Return what the descriptors of this process refer to that carry tensors."""
    places = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    links = [os.readlink(place) for place in places if os.path.exists(place)]
    return {link for link in links if link.startswith(("/memfd:", "pipe:", "socket:"))}


class Forking:
    """An object at whose rebuilding the process forks; it becomes what the child has.

    The child has ended then.
    """

    def __reduce__(self):
        return self.fork, ()

    @staticmethod
    def fork():
        here, there = os.pipe()
        child = os.fork()
        if not child:
            os.close(here)
            os.write(there, "\n".join(opened()).encode())
            os._exit(0)
        os.close(there)
        with open(here) as pipe:
            found = pipe.read()
        os.waitpid(child, 0)
        return set(found.split("\n"))


def test_a_forked_child_has_nothing_of_a_message_that_is_being_received(strategy):
    """Clauses LIFE-7, FS-2, FD-4: it would have it for its life."""
    ours, theirs = mp.Pipe()
    theirs.send(sharedtensor.arange(2))
    kept = ours.recv()  # so the manager has been started
    theirs.send((Forking(), sharedtensor.arange(4)))
    gc.collect()
    before = opened()
    in_the_child, received = ours.recv()
    assert (kept.tolist(), received.tolist()) == ([0, 1], [0, 1, 2, 3])
    carriers = {link for link in in_the_child - before if "socket:" not in link}
    assert len(carriers) == 1, "the pipe of this test"


@pytest.mark.parametrize("stage", ["received", "sorted in"])
def test_a_forked_child_closes_what_a_packet_has_brought(stage):
    ours, theirs = mp.Pipe()
    here, there = OwnedDescriptor.pair_opened_by(os.pipe)
    theirs.write(b"", [there.fd])
    there.close()
    packets = []
    received = ReceivedDescriptors()
    if stage == "sorted in":
        received.receive(packets, ours._socket.recvmsg, 100, 100)
    else:  # as where another thread forks when `recvmsg` has just returned
        received._packets = packets
        packets.append(ours._socket.recvmsg(100, 100))
    pipe = os.readlink(f"/proc/self/fd/{here.fd}")
    assert pipe in opened()
    assert pipe not in Forking.fork()
    received.close()
    assert os.read(here.fd, 1) == b"", "it is closed here, too"


def test_a_forked_child_closes_sockets_over_which_descriptors_go():
    before = opened()
    made = OwnedSockets(chain.from_iterable(starmap(_socket.socketpair, ((),))))
    assert len(opened() - before) == 2
    assert not (opened() - before) & Forking.fork()
    made.close()
    assert opened() == before
