"""Makes pytest's cases from the tests: parameters, selection and order."""

from __future__ import annotations

from typing import Any

import pytest

from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.case.marking import Marking
from sharedtensor_conformance.plugin.batching import (
    groups_of,
    in_each_batch,
    workers_of,
)
from sharedtensor_conformance.plugin.cases import (
    case_id,
    configuration_of,
    marking_of,
)
from sharedtensor_conformance.plugin.enumeration import (
    axes_of,
    selected_configurations,
)
from sharedtensor_conformance.plugin.known_deviations import EntryKey, cheapest_first
from sharedtensor_conformance.plugin.plan import Plan, durations_of, plan_of
from sharedtensor_conformance.plugin.state import RUNNER, SELECTION

INDIRECT_AXES = ("configuration", "direction")
"""Axes whose values a test gets through a fixture."""


# From tests to cases


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module, obj: Any
) -> list[pytest.Item] | None:
    """Skip tests without a chosen case before pytest makes cases from them."""
    if marking_of(obj) is None:
        return None
    plan = _plan(collector.config)
    return None if f"{collector.path.name}::{obj.__name__}" in plan.tests else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with its axes."""
    marking = marking_of(metafunc.function)
    if marking is None:
        return
    if "configuration" not in metafunc.fixturenames:
        metafunc.fixturenames.append("configuration")
    configurations = _configurations(metafunc.config, marking)
    implementation = metafunc.config.stash[RUNNER].implementation
    for axis in axes_of(metafunc.function, marking, configurations, implementation):
        indirect = [name for name in axis.names if name in INDIRECT_AXES]
        rows, ids = in_each_batch(metafunc.config, marking, axis)
        metafunc.parametrize(axis.names, rows, ids=ids, indirect=indirect)


def _configurations(config: pytest.Config, marking: Marking) -> list[Configuration]:
    implementation = config.stash[RUNNER].implementation
    return selected_configurations(marking, implementation, config.stash[SELECTION])


def _plan(config: pytest.Config) -> Plan:
    return plan_of(config, config.stash[SELECTION], config.stash[RUNNER].implementation)


# From cases to a run


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Keep the selected cases and order them by configuration.

    In each configuration, cases that are marked to run last are at the end. The hook
    runs after the same hook of other plugins, for example one that shuffles tests.
    """
    markings = {item: marking_of(getattr(item, "function", None)) for item in items}
    others = [item for item in items if not markings[item]]
    marked = [(item, marking) for item, marking in markings.items() if marking]
    plan = _plan(config)
    if unknown := {case_id(item) for item, _ in marked} - plan.known:
        raise RuntimeError(f"pytest has cases that were not planned: {min(unknown)}")
    marked = [one for one in marked if case_id(one[0]) in plan.chosen]
    groups = [configuration_of(item).id for item, _ in marked]
    order = {id: place for place, id in enumerate(dict.fromkeys(groups))}
    marked.sort(key=lambda one: (order[configuration_of(one[0]).id], one[1].runs_last))
    marked = _known_deviations_first(config, marked)
    ordered = [item for item, _ in marked]
    if workers := workers_of(config):
        ordered = groups_of(config, workers).in_order(ordered)
    items[:] = ordered + others


def _known_deviations_first(
    config: pytest.Config, marked: list[tuple[pytest.Item, Marking]]
) -> list[tuple[pytest.Item, Marking]]:
    """Move the cheapest case of each known deviation before the others of it."""
    runner = config.stash[RUNNER]
    if runner.all_cases:
        return marked

    def entry_keys(one: tuple[pytest.Item, Marking]) -> list[EntryKey]:
        item, marking = one
        where = configuration_of(item)
        if where.why_not or marking.runs_last:
            return []
        return runner.known.entry_keys(plan.chosen[case_id(item)].as_case(), where.id)

    plan = plan_of(config, config.stash[SELECTION], runner.implementation)
    durations = durations_of(config, runner.implementation)

    def cost(one: tuple[pytest.Item, Marking]) -> float:
        return durations.seconds(plan.chosen[case_id(one[0])])

    return cheapest_first(marked, entry_keys, cost)
