"""Episodes that hold, and episodes on a reference that is broken."""

import pytest

EPISODES = {
    (3, 4): ["peer", "owner"],
    (8, 1): ["manager", "manager", "owner"],
}
"""Short ones, by seed and number."""


@pytest.mark.parametrize(("seed", "number"), EPISODES)
def test_episodes_on_the_reference_hold(run, seed, number):
    done = run("kills.py", f"--seed={seed}", f"--only={number}")
    assert done.status == 0, done.said
    killed = EPISODES[seed, number]
    assert done.record["kills"] == {v: killed.count(v) for v in set(killed)}
    assert done.record["counts"]["received"] > 0
    assert done.left == []


@pytest.mark.parametrize(
    ("seed", "number", "mutant", "sentence"),
    [
        (3, 4, "wipes_on_release", "wrong value: "),
        (8, 1, "manager_stays", "0.7 seconds after the end there is process"),
    ],
)
def test_episodes_on_a_broken_reference_do_not_hold(
    run, seed, number, mutant, sentence
):
    options = [f"--seed={seed}", f"--only={number}", f"--mutant={mutant}"]
    done = run("kills.py", *options, "--grace=0.7")
    assert done.status == 1
    assert sentence in done.record["sentence"]
    again = f"--seed {seed} --only {number} --mutant {mutant}"
    assert f"Repeat it with: python soak/kills.py {again}" in done.said
    assert done.left == []


def test_plans_depend_on_seed_and_number_alone(scripts):
    from kills import Episode

    episodes = [Episode.planned(1, number) for number in range(40)]
    assert episodes == [Episode.planned(1, number) for number in range(40)]
    assert episodes != [Episode.planned(2, number) for number in range(40)]
    victims = {s.victim for episode in episodes for s in episode.strikes}
    assert victims == {"owner", "peer", "manager"}
    assert {episode.plan.start_method for episode in episodes} == {"fork", "spawn"}


def test_each_array_describes_itself(scripts):
    from patterns import WrongValue, described, make, verify

    assert verify(make(7, 100), 7) == 7
    assert verify(make(7, 0)) == -1
    for place, value in ((0, 0), (1, 8), (2, 99), (50, 0), (99, -1)):
        tensor = make(7, 100)
        tensor[place] = value
        with pytest.raises(WrongValue):
            verify(tensor)
    with pytest.raises(WrongValue, match="in place of the tensor 8"):
        verify(make(7, 100), 8)
    assert len({tuple(described(key, 9)) for key in range(500)}) == 500
