"""The search for a history that fails, on histories that need no processes."""

import pytest
from sharedtensor_conformance.chapters import history_search
from sharedtensor_conformance.chapters.history_search import (
    HistoryFailed,
    search_histories,
)
from sharedtensor_conformance.harness.case.outcomes import CheckFailed


class FailingAt:
    """Runs histories that are numbers: each fails that has all of some of them."""

    def __init__(self, numbers, renewed_fails=True):
        self.numbers, self.renewed_fails = set(numbers), renewed_fails
        self.is_new, self.count = False, 0

    def run(self, steps):
        self.count += 1
        if self.numbers <= set(steps) and (self.renewed_fails or not self.is_new):
            return HistoryFailed(CheckFailed("so"), "\n".join(map(str, steps)))
        return None

    def renew(self):
        self.is_new = True


def told(runner, count=3):
    draw = lambda rng: rng.sample(range(40), 40)  # noqa: E731
    with pytest.raises(CheckFailed) as caught:
        search_histories(draw, runner, count, seed=1)
    return str(caught.value).partition(":\n")


@pytest.mark.parametrize("numbers", [[3], [3, 39], [0, 7, 8, 20, 31]])
def test_history_that_fails_is_told_without_the_steps_that_it_does_not_need(numbers):
    said, _, script = told(FailingAt(numbers))
    assert "the shortest history" in said
    assert sorted(map(int, script.splitlines())) == numbers


def test_history_that_needs_what_went_before_it_is_told_whole():
    said, _, script = told(FailingAt([3], renewed_fails=False))
    assert "it took what went before it" in said
    assert len(script.splitlines()) == 40


def test_histories_are_the_same_for_a_seed_and_as_many_as_asked_for():
    def drawn(seed):
        found = []
        runner = FailingAt([41])
        search_histories(lambda rng: found.append(rng.random()) or [], runner, 5, seed)
        assert runner.count == 5
        return found

    assert drawn(1) == drawn(1) != drawn(2)


def test_shortening_ends_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr(history_search, "SHRINK_TIMEOUT", 0)
    _, _, script = told(FailingAt([3]))
    assert len(script.splitlines()) == 40
