"""Under xdist one worker runs all cases of a configuration, in order."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from sharedtensor_conformance.adapters.reference import conformance_adapter
from sharedtensor_conformance.plugin.xdist_scheduler import (
    configuration_ids,
    group_of,
    is_isolated,
)

RAN = re.compile(
    r"^\[(gw\d)\] .* chapters/(test_\w+)\.py::(\w+)\[(default-[a-z]+)", re.M
)


def test_one_worker_runs_a_configuration_and_its_last_tests_last(suite):
    chosen = ("--clause=SHARE-3", "--clause=LIFE-7", "--start-method=fork")
    done = suite("--impl=numpy-copy", *chosen, "-n2", "-vv")
    workers, order = defaultdict(set), defaultdict(list)
    for worker, module, test, configuration in RAN.findall(done.text):
        if not is_isolated(module, test):  # those that have processes of their own
            workers[configuration].add(worker)
            order[configuration].append(module == "test_ledger")
    assert workers, done.text
    assert {len(found) for found in workers.values()} == {1}
    assert all(closing == sorted(closing) for closing in order.values())
    assert all(any(closing) for closing in order.values())


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("test_share.py::test_clone_is_private[file_system-fork]", "file_system-fork"),
        (
            "chapters/test_cuda.py::x[simulated-file_system-spawn-a]",
            None,
        ),
        ("elsewhere/test_mine.py::test_of_a_user", "elsewhere/test_mine.py::"),
    ],
)
def test_group_is_found_from_the_id(nodeid, group, monkeypatch):
    monkeypatch.setattr(
        "sharedtensor_conformance.plugin.xdist_scheduler.is_isolated",
        lambda module, name: module == "test_mine",
    )
    found = group_of(nodeid, configuration_ids(conformance_adapter))
    assert found.startswith(group or "simulated-file_system-spawn")
