"""Episodes that hold, and what their processes see."""

import json
import os
import queue
import socket
import subprocess
import sys

import pytest

EPISODES = {
    (3, 4): ["peer", "owner"],
    (8, 1): ["manager", "manager", "owner"],
}
"""Short ones, by seed and number."""


@pytest.mark.parametrize(("seed", "number"), EPISODES)
def test_episodes_on_the_reference_hold(run, seed, number):
    done = run("kills.py", f"--seed={seed}", f"--only={number}")
    killed = EPISODES[seed, number]
    assert done.record["kills"] == {v: killed.count(v) for v in set(killed)}
    assert done.record["counts"]["received"] > 0


def test_plans_depend_on_seed_and_number_alone(scripts):
    from kills import episode

    episodes = [episode(1, number) for number in range(40)]
    assert episodes == [episode(1, number) for number in range(40)]
    assert episodes != [episode(2, number) for number in range(40)]
    victims = {strike.victim for _, strikes in episodes for strike in strikes}
    assert victims == {"owner", "peer", "manager"}
    assert {plan.start_method for plan, _ in episodes} == {"fork", "spawn"}


def test_each_array_describes_itself(scripts):
    from patterns import WRITTEN, WrongValue, described, make, verify

    verify(make(7, 100), 7, 100)
    verify(make(7, 0), 7, 0)
    for place, value in ((0, 0), (1, 8), (2, 99), (50, 0), (99, -1), (98, WRITTEN)):
        tensor = make(7, 100)
        tensor[place] = value
        with pytest.raises(WrongValue):
            verify(tensor, 7, 100)
    tensor = make(7, 100)
    tensor[99] = WRITTEN
    verify(tensor, 7, 100)
    for key, length in ((8, 100), (7, 99), (7, 0)):
        with pytest.raises(WrongValue):
            verify(tensor, key, length)
    assert len({tuple(described(key, 9)) for key in range(500)}) == 500


@pytest.fixture
def controller():
    """A socket to which the members of a group connect, and its address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        address = f"sts-{os.urandom(8).hex()}"
        listener.bind("\0" + address)
        listener.listen()
        listener.settimeout(60)
        yield listener, address


@pytest.fixture
def ring(scripts, controller):
    """A member alone in a ring, which sends to itself."""
    from sharer import Member

    member = Member({"address": controller[1]}, 0, [queue.SimpleQueue()])
    with member.controller:
        yield member


def changed_grad(message):
    message["tensors"][0].grad = None


CHANGES = {
    "several": lambda m: m["tensors"].reverse(),
    "views": lambda m: m.update(views=[m["tensors"][0].clone()]),
    "grad": changed_grad,
    "bytes": lambda m: m.update(bytes=b"others"),
    "one": lambda m: m.update(written=True),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_message_that_is_not_as_described_is_seen(ring, kind, monkeypatch):
    from patterns import WrongValue

    monkeypatch.setattr(ring, "length", lambda longest: 9)
    message = ring.message(kind)
    ring.verify(message)
    CHANGES[kind](message)
    with pytest.raises(WrongValue):
        ring.verify(message)


def test_a_tensor_that_is_held_twice_has_to_be_one(ring):
    from patterns import WrongValue, make

    ring.kept = [ring.message("one")]
    ring.verify_place(ring.kept[0])
    copy = {**ring.kept[0], "tensors": [make(*ring.kept[0]["described"][0])]}
    with pytest.raises(WrongValue, match="over other memory"):
        ring.verify_place(copy)


def test_a_message_that_has_to_be_refused_and_is_sent_is_seen(ring):
    from patterns import WrongValue

    with pytest.raises(WrongValue, match="requires grad was sent"):
        ring.do_refuse()


def test_a_group_whose_controller_has_gone_ends(scripts, controller):
    import sharer

    listener, address = controller
    config = {"address": address, "strategy": "file_descriptor", "mutant": ""}
    config |= {"start_method": "fork", "channels": ["pipe", "queue"]}
    command = [sys.executable, sharer.__file__, json.dumps(config)]
    with subprocess.Popen(command) as owner:
        try:
            for _ in config["channels"]:
                with listener.accept()[0] as connection:
                    assert b"place" in connection.recv(100)
            assert owner.wait(60) == 0
        finally:
            owner.kill()
