"""Messages gather while the manager pauses, and whoever waits for it ends a pause."""

import socket

import pytest
from sharedtensor.manager import daemon, serving
from sharedtensor.manager.daemon import GATHERED, LONGEST_PAUSE, SHORTEST_PAUSE, Pace
from sharedtensor.manager.serving import complete

FOR_LONG = 1000.0
MESSAGE = b"Rsharedtensor-1-a"


def pauses_after(counts):
    """Return the pauses after sweeps in which so many messages came."""
    pace, pauses = Pace(), []
    for count in counts:
        pace.count = count
        pauses.append(pace.next())
    return pauses


def test_there_is_no_pause_when_nothing_came():
    assert pauses_after([0]) == [0.0]
    assert pauses_after([1, 0]) == [SHORTEST_PAUSE, 0.0]


def test_pauses_become_longer_while_few_messages_come():
    pauses = pauses_after([1] * 10)
    assert pauses[:3] == [SHORTEST_PAUSE, 2 * SHORTEST_PAUSE, 4 * SHORTEST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


def test_pauses_become_shorter_while_more_messages_come_than_may_gather():
    longer, shorter = pauses_after([1] * 5 + [4 * GATHERED])[-2:]
    assert shorter == longer / 4


def test_no_pause_is_shorter_than_the_shortest():
    assert pauses_after([1000 * GATHERED] * 3)[-1] == SHORTEST_PAUSE


def test_fewer_messages_gather_than_a_connection_takes():
    """So that no client waits who sends at a steady rate."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        for _ in range(GATHERED):
            ours.send(MESSAGE * 4)


class Slow(Pace):
    """Pauses for long, whatever comes."""

    def next(self):
        return FOR_LONG


class Polls:
    """What a poll object is asked, with the pauses cut short."""

    def __init__(self, poll):
        self.poll_object = poll
        self.pauses = []

    def poll(self, milliseconds):
        self.pauses.append(milliseconds)
        return self.poll_object.poll(0)

    def __getattr__(self, name):
        return getattr(self.poll_object, name)


@pytest.fixture
def kernel(tmp_path):
    """A manager's system, which would pause for long."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        made = daemon.Kernel(daemon.Listener(listener, str(tmp_path)), -1)
        made.urgent = Polls(made.urgent)
        made.pace = Slow()
        yield made


@pytest.fixture
def ends(kernel):
    """The end that the manager has of a connection, and that of its client."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        kernel.watch(serving.Client(ours))
        yield ours, theirs


def ends_a_pause(kernel):
    """Return whether what was sent is seen in a pause."""
    return bool(kernel.urgent.poll(0))


def test_the_first_message_of_a_client_ends_a_pause(kernel, ends):
    assert not ends_a_pause(kernel)
    ends[1].send(MESSAGE)
    assert ends_a_pause(kernel)


def test_later_messages_gather_and_are_read_after_the_pause(kernel, ends):
    ours, theirs = ends
    theirs.send(MESSAGE)
    assert complete(kernel.receive(ours)) == (MESSAGE, [])
    theirs.send(MESSAGE)
    assert not ends_a_pause(kernel)
    assert [found.connection for found in complete(kernel.poll(None))] == [ours]
    assert kernel.urgent.pauses[-1] == FOR_LONG * 1000


def test_what_is_sent_after_an_answer_ends_a_pause(kernel, ends):
    ours, theirs = ends
    theirs.send(MESSAGE)
    complete(kernel.receive(ours))
    complete(kernel.reply(ours, b"answer"))
    theirs.send(MESSAGE)
    assert ends_a_pause(kernel)


def test_nobody_who_has_left_ends_a_pause(kernel, ends):
    ours, theirs = ends
    client = kernel.watched[ours.fileno()]
    theirs.close()
    assert ends_a_pause(kernel)
    complete(kernel.close(client))
    assert not ends_a_pause(kernel)


def test_a_manager_that_has_something_due_does_not_pause(kernel, ends):
    complete(kernel.poll(0.0))
    assert kernel.urgent.pauses == []
