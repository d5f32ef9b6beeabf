"""A name goes when nobody can use it any more, and not before. Clause FS-2."""

import os
import signal

import pytest
from sharedtensor.manager import messages

SYNC = messages.SYNC + b"01234567"


def synchronise(bare):
    """Wait until the manager has done what a bare socket has sent."""
    bare.send(SYNC)
    assert bare.recv(100) == SYNC[1:]


def test_the_last_release_removes_the_name_at_once(new_client, name, exists):
    owner = new_client()
    owner.call("register", name)
    owner.call("sync")
    assert exists(name)
    owner.call("release", name)
    owner.call("sync")
    assert not exists(name)


def test_holds_of_one_client_are_counted(new_client, name, exists):
    owner = new_client()
    owner.run("for _ in range(3): client.register(name)", name=name)
    owner.run("for _ in range(2): client.release(name)", name=name)
    owner.call("sync")
    assert exists(name)
    owner.call("release", name)
    owner.call("sync")
    assert not exists(name)


def test_a_name_stays_while_another_client_holds_it(new_client, name, exists):
    owner, peer = new_client(), new_client()
    owner.call("register", name)
    peer.call("adopt", owner.call("address"))
    peer.call("register", name)
    owner.call("release", name)
    owner.call("sync")
    assert exists(name)
    peer.call("release", name)
    peer.call("sync")
    assert not exists(name)


def test_a_release_without_a_hold_takes_nothing_from_others(new_client, name, exists):
    owner, peer = new_client(), new_client()
    owner.call("register", name)
    peer.call("adopt", owner.call("address"))
    peer.call("register", name)
    peer.run("for _ in range(3): client.release(name)", name=name)
    peer.call("sync")
    assert exists(name)


def test_the_manager_ignores_a_release_without_a_hold(new_client, connect, name):
    owner = new_client()
    owner.call("register", name)
    bare = connect(owner.call("address"))
    bare.send(messages.RELEASE + name.encode())
    synchronise(bare)
    assert owner.call("status")["holds"] == 1


def test_names_of_a_killed_client_go_while_others_live(
    new_client, name, exists, eventually
):
    """Clause LIFE-8: nobody else has to end for it."""
    owner, peer = new_client(), new_client()
    owner.call("address")
    peer.call("adopt", owner.call("address"))
    peer.call("register", name)
    peer.kill()
    eventually(lambda: not exists(name))
    assert owner.call("status")["clients"] == 1


def test_a_name_outlives_a_killed_client_if_another_holds_it(new_client, name, exists):
    """Clause LIFE-4."""
    owner, peer = new_client(), new_client()
    owner.call("register", name)
    peer.call("register", name, owner.call("address"))
    owner.kill()
    assert peer.call("status", peer.run("result = [*client._client.links][0]"))
    peer.call("sync")
    assert exists(name)


def test_a_message_in_flight_keeps_the_name(new_client, name, exists):
    """Clause LIFE-2."""
    owner, peer = new_client(), new_client()
    owner.call("register", name)
    owner.call("announce_counted", name)
    owner.call("release", name)
    owner.call("sync")
    assert exists(name)
    peer.call("adopt", owner.call("address"))
    peer.call("register", name)
    peer.call("acknowledge_counted", name)
    peer.call("sync")
    assert exists(name)
    peer.call("release", name)
    peer.call("sync")
    assert not exists(name)


def test_a_withdrawn_message_keeps_nothing(new_client, name, exists):
    owner = new_client()
    owner.call("register", name)
    owner.call("announce_counted", name)
    owner.call("release", name)
    owner.call("withdraw_counted", name)
    owner.call("sync")
    assert not exists(name)


def test_a_message_in_flight_survives_the_exit_of_its_sender(
    new_client, name, exists, eventually
):
    """Clause LIFE-5: a receiver that comes within the grace period finds it."""
    sender = new_client(environment={"SHAREDTENSOR_MANAGER_GRACE": "20"})
    receiver = new_client()
    address = sender.call("address")
    sender.call("register", name)
    sender.call("announce_counted", name)
    assert sender.leave() == ""
    receiver.call("adopt", address)
    receiver.call("register", name)
    receiver.call("acknowledge_counted", name)
    assert receiver.call("status") == {
        **receiver.call("status"),
        "clients": 1,
        "names": 1,
        "holds": 1,
        "in_flight": 0,
    }
    assert exists(name)
    receiver.call("release", name)
    receiver.call("sync")
    assert not exists(name)
    os.kill(receiver.call("status")["pid"], signal.SIGTERM)


def test_an_acknowledgement_read_before_its_announcement_removes_nothing(
    new_client, connect, name, exists
):
    """The messages of two clients race."""
    address = new_client().call("address")
    sender, receiver = connect(address), connect(address)
    encoded = name.encode()
    for kind in (messages.REGISTER, messages.ACKNOWLEDGE_COUNTED, messages.RELEASE):
        receiver.send(kind + encoded)
    synchronise(receiver)
    assert exists(name)
    for kind in (messages.REGISTER, messages.ANNOUNCE_COUNTED):
        sender.send(kind + encoded)
    synchronise(sender)
    assert exists(name)
    sender.send(messages.RELEASE + encoded)
    synchronise(sender)
    assert not exists(name)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1), (2, 1, 0)])
def test_zeros_of_different_moments_remove_nothing(
    new_client, connect, name, exists, order
):
    """First sends to middle, middle to last; middle's REGISTER is read in any order."""
    client = new_client()
    address, pid = client.call("address"), client.call("status")["pid"]
    connections = [connect(address) for _ in order]
    for connection in connections:
        synchronise(connection)
    first, middle, last = (connections[place] for place in order)
    os.kill(pid, signal.SIGSTOP)
    for sender, kinds in (
        (first, (messages.REGISTER, messages.ANNOUNCE_COUNTED)),
        (
            middle,
            (
                messages.REGISTER,
                messages.ACKNOWLEDGE_COUNTED,
                messages.ANNOUNCE_COUNTED,
            ),
        ),
        (first, (messages.RELEASE,)),
        (last, (messages.REGISTER, messages.ACKNOWLEDGE_COUNTED, messages.RELEASE)),
    ):
        for kind in kinds:
            sender.send(kind + name.encode())
    os.kill(pid, signal.SIGCONT)
    synchronise(last)
    synchronise(first)
    assert exists(name)
    middle.send(messages.RELEASE + name.encode())
    synchronise(middle)
    assert not exists(name)


def test_a_name_that_was_never_held_is_not_removed(new_client, connect, name, exists):
    bare = connect(new_client().call("address"))
    bare.send(messages.ANNOUNCE_COUNTED + name.encode())
    bare.send(messages.WITHDRAW_COUNTED + name.encode())
    synchronise(bare)
    assert exists(name)


def test_holding_names_opens_no_descriptors(new_client, name):
    """Clause FS-3."""
    owner = new_client()
    count = "import os; result = len(os.listdir('/proc/self/fd'))"
    owner.call("register", name)
    before = owner.run(count)
    owner.run("for i in range(200): client.register(f'{name}-{i}')", name=name)
    owner.call("sync")
    assert owner.run(count) == before


def test_a_foreign_manager_is_left_with_its_last_name(new_client, name):
    """Its descriptor goes too, so no process collects other processes' managers."""
    owner, peer = new_client(), new_client()
    address = owner.call("address")
    count = "import os; result = len(os.listdir('/proc/self/fd'))"
    before = peer.run(count)
    owner.call("register", name)
    peer.call("register", name, address)
    assert owner.call("status")["clients"] == 2
    peer.call("release", name, address)
    owner.call("sync")
    assert owner.call("status")["clients"] == 1
    assert peer.run(count) == before


def test_who_has_passed_a_name_on_stays_a_client(new_client, name, exists, eventually):
    """A relay is all that keeps the manager while its message is in flight."""
    owner, relay = new_client(), new_client()
    address = owner.call("address")
    owner.call("register", name)
    for call in ("register", "announce_counted", "release"):
        relay.call(call, name, address)
    owner.call("sync")
    assert owner.call("status")["clients"] == 2
    owner.kill()
    eventually(lambda: relay.call("status", address)["holds"] == 0)
    assert exists(name)


def test_a_name_of_another_kind_is_refused(new_client):
    with pytest.raises(Exception, match="cannot be the name of a shared storage"):
        new_client().call("register", "sharedtensor-../../etc/passwd")
