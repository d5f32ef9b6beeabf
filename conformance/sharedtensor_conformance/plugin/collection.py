"""Makes pytest's items from the planned cases, and orders them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from sharedtensor_conformance.harness.case.marking import marking_of
from sharedtensor_conformance.plugin.batching import groups_of, workers_of
from sharedtensor_conformance.plugin.cases import CaseItem
from sharedtensor_conformance.plugin.enumeration import PlannedCase, name_in_batch
from sharedtensor_conformance.plugin.known_deviations import EntryKey, cheapest_first
from sharedtensor_conformance.plugin.plan import durations_of, plan_of
from sharedtensor_conformance.plugin.state import RUNNER


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module, obj: Any
) -> list[pytest.Item] | None:
    """Return an item for each chosen case of a test, in each of its batches."""
    if marking_of(obj) is None:
        return None
    test = f"{collector.path.name}::{obj.__name__}"
    return [
        CaseItem.from_parent(
            collector,
            name=name_in_batch(case.id.partition("::")[2], batch),
            planned=case,
            function=obj,
            batch=batch,
        )
        for case in plan_of(collector.config).cases_of(test)
        for batch in _batches(collector.config, case)
    ]


def _batches(config: pytest.Config, case: PlannedCase) -> Iterator[int]:
    """Yield the batches in which a case runs; without workers there is one."""
    workers = workers_of(config)
    yield from groups_of(config, workers).batches.all_of(case) if workers else [0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Order the cases by configuration; under xdist, the longest batch is first.

    In each configuration, cases that are marked to run last are at the end. The hook
    runs after the same hook of other plugins, for example one that shuffles tests.
    """
    cases = [item for item in items if isinstance(item, CaseItem)]
    others = [item for item in items if not isinstance(item, CaseItem)]
    by_configuration: defaultdict[str, list[CaseItem]] = defaultdict(list)
    for item in cases:
        by_configuration[item.planned.configuration.id].append(item)
    ordered = [
        item
        for group in by_configuration.values()
        for item in sorted(group, key=lambda one: one.planned.marking.runs_last)
    ]
    ordered = _known_deviations_first(config, ordered)
    if workers := workers_of(config):
        ordered = _longest_batch_first(config, workers, ordered)
    items[:] = [*ordered, *others]


def _longest_batch_first(
    config: pytest.Config, workers: int, cases: list[CaseItem]
) -> list[CaseItem]:
    groups = groups_of(config, workers)
    by_name: defaultdict[str, list[CaseItem]] = defaultdict(list)
    for item in cases:
        by_name[groups.name(item.nodeid)].append(item)
    longest_first = sorted(
        by_name.values(), key=lambda group: -groups.seconds(group[0].nodeid)
    )
    return [item for group in longest_first for item in group]


def _known_deviations_first(
    config: pytest.Config, cases: list[CaseItem]
) -> list[CaseItem]:
    """Move the cheapest case of each known deviation before the others of it."""
    runner = config.stash[RUNNER]
    if runner.all_cases:
        return cases

    def entry_keys(item: CaseItem) -> list[EntryKey]:
        planned, where = item.planned, item.planned.configuration
        if where.why_not or planned.marking.runs_last:
            return []
        return runner.known.entry_keys(planned.as_case(), where.id)

    durations = durations_of(config)
    return cheapest_first(cases, entry_keys, lambda one: durations.seconds(one.planned))
