"""Rounds that hold, and what is seen of them."""

import pytest


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_rounds_on_the_reference_hold(run, strategy):
    done = run(
        "rounds.py", "--rounds=20", "--start-method=fork", f"--strategy={strategy}"
    )
    assert done.record["held"]
    samples = done.record["samples"]
    roles = {"owner", "peer", "second peer"} | (
        {"manager"} if strategy == "file_system" else set()
    )
    assert roles == set(samples) - {"round", "names", "semaphores"}
    assert samples["round"] == list(range(1, 21))
    assert samples["names"] == [0] * 20
    assert all(len(samples[role]["memory"]) == 20 for role in roles)


def test_memory_that_rises_is_seen_and_noise_is_not(scripts):
    from recording import NotHeld
    from rounds import BOUND, judge_rise, rise_of

    numbers = list(range(0, 10_000, 100))
    noise = [20_000 + 400 * (number // 100 % 2) for number in numbers]
    judge_rise("memory", rise_of(numbers, noise))
    leak = [20_000 + number * 3 * BOUND // 10_000 for number in numbers]
    with pytest.raises(NotHeld, match=r"rose by 15\d\d KiB"):
        judge_rise("memory", rise_of(numbers, leak))
