"""Which cases there are: the matrix of a test, the selection, the order of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sharedtensor_conformance.adapter import LONG_PROFILES, Implementation
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.marking import Marking
from sharedtensor_conformance.harness.matrix import (
    DIRECTIONS,
    LAYOUTS,
    Configuration,
    Selection,
    configurations,
    matches,
    pairwise,
)
from sharedtensor_conformance.plugin.cases import (
    case_id,
    configuration_of,
    marking_of,
)
from sharedtensor_conformance.plugin.one_per_clause import one_per_clause
from sharedtensor_conformance.plugin.state import RUNNER, SELECTION

INDIRECT = ("configuration", "direction")
"""Axes whose values reach a test through a fixture."""


# From tests to cases


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module, obj: object
) -> list[pytest.Item] | None:
    """Leave out the tests that are not selected, before cases are made of them."""
    marking = marking_of(obj)
    if marking and not _where(collector.config, marking):
        return []
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the cases of a test from the axes that its fixtures name."""
    marking = marking_of(metafunc.function)
    if marking is None:
        return
    if "configuration" not in metafunc.fixturenames:
        metafunc.fixturenames.append("configuration")
    where = _where(metafunc.config, marking)
    axes: dict[str, Sequence[Any]] = {"configuration": where}
    all_axes = _axes(metafunc.config.stash[RUNNER].implementation)
    for name in [name for name in all_axes if name in metafunc.fixturenames]:
        axes[name] = all_axes[name][:1] if where[0].why_not else all_axes[name]
    if marking.pairwise:
        _parametrize(metafunc, tuple(axes), pairwise(list(axes.values())))
        return
    for name, values in axes.items():
        _parametrize(metafunc, (name,), [[value] for value in values])


def _where(config: pytest.Config, marking: Marking) -> list[Configuration]:
    selection = config.stash[SELECTION]
    if not _selects(selection, marking):
        return []
    return configurations(marking, config.stash[RUNNER].implementation, selection)


def _selects(selection: Selection, marking: Marking) -> bool:
    clauses = [load_clauses()[id] for id in marking.clauses]
    named = selection.clauses or selection.profiles or selection.cases
    if marking.profiles & LONG_PROFILES and not named:
        return False
    if selection.clauses and not set(marking.clauses) & set(selection.clauses):
        return False
    profiles = {clause.profile for clause in clauses}
    return not selection.profiles or bool(profiles & set(selection.profiles))


def _axes(implementation: Implementation) -> dict[str, tuple[Any, ...]]:
    return {
        "channel": implementation.channels,
        "direction": DIRECTIONS,
        "dtype": implementation.dtypes,
        "layout": LAYOUTS,
    }


def _parametrize(
    metafunc: pytest.Metafunc, names: tuple[str, ...], rows: list[list[Any]]
) -> None:
    ids = ["-".join(map(_id, row)) for row in rows]
    indirect = [name for name in names if name in INDIRECT]
    metafunc.parametrize(names, rows, ids=ids, indirect=indirect)


def _id(value: Any) -> str:
    if isinstance(value, Configuration):
        return value.id
    return value if isinstance(value, str) else str(value.name)


# From cases to a run


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Keep the selected cases; order them by configuration, those that run last last.

    It does so after all others, such as a plugin that shuffles them.
    """
    markings = {item: marking_of(getattr(item, "function", None)) for item in items}
    others = [item for item in items if not markings[item]]
    marked = [(item, marking) for item, marking in markings.items() if marking]
    selection = config.stash[SELECTION]
    if selection.cases:
        marked = [one for one in marked if _wanted(one[0], selection.cases)]
    if selection.one_per_clause:
        marked = one_per_clause(
            marked,
            marking_of=lambda one: one[1],
            configuration_of=lambda one: configuration_of(one[0]),
            asked_for=selection.clauses,
        )
    groups = [configuration_of(item).id for item, _ in marked]
    order = {id: place for place, id in enumerate(dict.fromkeys(groups))}
    marked.sort(key=lambda one: (order[configuration_of(one[0]).id], one[1].runs_last))
    items[:] = [item for item, _ in marked] + others


def _wanted(item: pytest.Item, patterns: tuple[str, ...]) -> bool:
    return any(matches(case_id(item), pattern) for pattern in patterns)
