"""Rounds that hold, and rounds on a reference that is broken."""

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_rounds_on_the_reference_hold(run, strategy):
    done = run(
        "rounds.py", "--rounds=40", "--start-method=fork", f"--strategy={strategy}"
    )
    assert done.status == 0, done.said
    assert done.record["held"]
    assert done.left == []
    samples = done.record["samples"]
    roles = {"owner", "peer"} | ({"manager"} if strategy == "file_system" else set())
    assert roles == set(samples) - {"round", "names", "semaphores"}
    assert samples["round"] == list(range(1, 41))
    assert samples["names"] == [0] * 40
    assert all(len(samples[role]["memory"]) == 40 for role in roles)


@pytest.mark.parametrize(
    ("mutant", "sentence"),
    [
        ("keeps_one_storage_in_ten", "descriptors of the owner were"),
        ("drops_grad", "arrived without its grad"),
        ("wipes_on_release", "is no description of it"),
        ("copies_on_reshare", "came back over other memory"),
    ],
)
def test_rounds_on_a_broken_reference_do_not_hold(run, mutant, sentence):
    options = ("--rounds=80", "--start-method=fork", f"--mutant={mutant}")
    done = run("rounds.py", *options)
    assert done.status == 1
    assert sentence in done.record["sentence"]
    assert not done.record["held"]
    assert done.left == []


def test_a_pair_whose_observer_has_gone_ends(scripts):
    import rounds_pair

    options = {"rounds": sys.maxsize, "every": 5, "strategy": "file_descriptor"}
    options |= {"start_method": "fork", "seed": 1, "mutant": ""}
    command = [sys.executable, rounds_pair.__file__, json.dumps(options)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as pair:
        try:
            assert json.loads(pair.stdout.readline())["round"] == 5
            pair.stdin.close()
            assert pair.wait(60) == 0
        finally:
            pair.kill()


def test_the_plan_of_a_round_is_its_seed_and_number(scripts):
    from rounds_pair import CHANNELS, KINDS, Round

    planned = [Round.planned(1, number) for number in range(2000)]
    assert planned == [Round.planned(1, number) for number in range(2000)]
    assert planned != [Round.planned(2, number) for number in range(2000)]
    assert {this.kind for this in planned} == set(KINDS)
    ways = {(this.channel, this.sender, this.order) for this in planned}
    assert len(ways) == len(CHANNELS) * 2 * 3


def test_memory_that_rises_is_seen_and_noise_is_not(scripts):
    from records import NotHeld
    from rounds import BOUND, judge_rise, rise_of

    numbers = list(range(0, 10_000, 100))
    noise = [20_000 + 400 * (number // 100 % 2) for number in numbers]
    judge_rise("memory", rise_of(numbers, noise))
    leak = [20_000 + number * 3 * BOUND // 10_000 for number in numbers]
    with pytest.raises(NotHeld, match=r"rose by 15\d\d KiB"):
        judge_rise("memory", rise_of(numbers, leak))
