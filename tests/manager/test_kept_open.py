"""A name that was received last is held by the descriptor of its message."""

import pytest

RECEIVE = (
    "kept = transport.OwnedDescriptor(os.dup(made)); client.hold(name, None, kept)"
)
RECEIVE += "; del kept"


@pytest.fixture
def receiver(new_client, name):
    """A client that has announced a name as a message, and can receive it."""
    client = new_client()
    client.run("import os; from sharedtensor import transport; made = []")
    client.call("register", name)
    announce(client, name)
    client.call("release", name)
    return client


def announce(client, name):
    client.run("made = announced([name])", name=name)


def received(client, name):
    """Let a client receive the message that it has announced last."""
    client.run(f"{RECEIVE}; os.close(made)", name=name)


def counts(client):
    found = client.call("status")
    return found["holds"], found["in_flight"]


def test_the_manager_is_told_nothing_of_it(receiver, name, exists):
    received(receiver, name)
    assert counts(receiver) == (0, 1)
    assert exists(name)


def test_it_goes_when_it_is_released(receiver, name, exists, eventually):
    received(receiver, name)
    receiver.call("release", name)
    eventually(lambda: not exists(name))
    assert counts(receiver) == (0, 0)


def test_it_is_registered_when_the_next_one_is_received(
    receiver, name, exists, eventually
):
    received(receiver, name)
    receiver.call("register", f"{name}-next")
    announce(receiver, f"{name}-next")
    receiver.call("release", f"{name}-next")
    received(receiver, f"{name}-next")
    eventually(lambda: counts(receiver) == (1, 1))
    receiver.call("release", name)
    eventually(lambda: not exists(name))
    assert counts(receiver) == (0, 1)


def test_it_is_registered_before_it_is_sent_on(receiver, name, eventually):
    received(receiver, name)
    receiver.call("announce_counted", name)
    eventually(lambda: counts(receiver) == (1, 1))


def test_a_forked_child_holds_it_too(receiver, name, exists, eventually):
    received(receiver, name)
    receiver.run(
        "ours, theirs = os.pipe()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.close(theirs)\n"
        "    os.read(ours, 1)\n"
        "    os._exit(0)\n"
    )
    receiver.call("release", name)
    receiver.call("sync")
    assert counts(receiver) == (1, 0)
    assert exists(name)
    receiver.run("os.close(theirs); os.waitpid(child, 0)")
    eventually(lambda: not exists(name))


def test_it_is_registered_if_its_manager_was_killed(receiver, name, exists, eventually):
    """It is received when there is a successor, which knows nothing of the message."""
    pid = receiver.call("status")["pid"]
    receiver.run("os.kill(pid, 9)", pid=pid)
    eventually(lambda: receiver.call("status")["pid"] != pid)
    received(receiver, name)
    assert counts(receiver) == (1, 0)
    assert exists(name)


def test_a_successor_is_told_of_it(receiver, name, exists, eventually):
    received(receiver, name)
    pid = receiver.call("status")["pid"]
    receiver.run("os.kill(pid, 9)", pid=pid)
    eventually(lambda: receiver.call("status")["pid"] != pid)
    assert counts(receiver) == (1, 0)
    assert exists(name)
