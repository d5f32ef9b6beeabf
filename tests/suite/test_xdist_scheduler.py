"""Long batches come first, and no worker has a long one waiting behind a long case."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sharedtensor_conformance.plugin import hooks, xdist_scheduler

WORKERS = 2


class Worker:
    """What the scheduler sees of a worker: the cases that it was given, by index."""

    gateway = SimpleNamespace(id="worker")
    shutting_down = False

    def __init__(self):
        self.given = []

    def send_runtest_some(self, indices):
        self.given.extend(indices)

    def shutdown(self):
        self.shutting_down = True


class Groups:
    """Cases that are named after their batch, with the seconds that they take."""

    def __init__(self, seconds):
        self.seconds_of_case = seconds.__getitem__

    def name(self, nodeid):
        return nodeid.partition("-")[0]


@pytest.fixture
def scheduled(monkeypatch):
    """A function that schedules cases, and returns scheduler and workers."""

    def schedule(seconds):
        monkeypatch.setattr(
            xdist_scheduler, "groups_of", lambda config, workers: Groups(seconds)
        )
        option = SimpleNamespace(loadscopereorder=True)
        tx = ["popen"] * WORKERS
        config = SimpleNamespace(option=option, getvalue=lambda name: tx)
        scheduler = xdist_scheduler.BatchScheduling(config, None)
        workers = [Worker() for _ in range(WORKERS)]
        for worker in workers:
            scheduler.add_node(worker)
        for worker in workers:
            scheduler.add_node_collection(worker, list(seconds))
        scheduler.schedule()
        return scheduler, workers

    return schedule


def test_long_case_has_the_shortest_behind_it(scheduled):
    seconds = {"a": 30.0, "b": 20.0, "c": 10.0, "d": 9.0, "e": 0.2, "f": 0.1}
    _, workers = scheduled(seconds)
    places = {case: place for place, case in enumerate(seconds)}
    assert workers[0].given == [places["a"], places["f"]]
    assert workers[1].given == [places["b"], places["e"]]


def test_worker_that_is_free_soon_has_the_longest_that_is_left(scheduled):
    seconds = {"a-1": 5.0, "a-2": 0.3, "a-3": 0.3, "b": 4.0, "c": 3.0, "d": 0.1}
    scheduler, [first, second] = scheduled(seconds)
    assert (first.given, second.given) == ([0, 1, 2], [3, 5])
    scheduler.mark_test_complete(first, 0)  # what it has left takes 0.6 s
    assert first.given == [0, 1, 2, 4]


def with_options(**options):
    return SimpleNamespace(option=SimpleNamespace(**options))


ALL, ONE_PER_CLAUSE = (with_options(one_per_clause=one) for one in (False, True))


def test_there_are_more_workers_than_processors(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    monkeypatch.setattr(hooks.os, "sched_getaffinity", lambda pid: {0, 1})
    assert hooks.pytest_xdist_auto_num_workers(ALL) == 4
    assert hooks.pytest_xdist_auto_num_workers(ONE_PER_CLAUSE) == 8
    monkeypatch.setattr(hooks.os, "sched_getaffinity", lambda pid: set(range(64)))
    assert hooks.pytest_xdist_auto_num_workers(ALL) == hooks.MAX_WORKERS


def test_user_says_how_many_workers(monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "3")
    assert hooks.pytest_xdist_auto_num_workers(ALL) is None
