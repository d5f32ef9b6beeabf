"""Enumerates the cases of the suite without pytest's collection.

Sharding, and the check whether pytest deselected cases, need all cases: also if pytest
collects only some of them, and in the controller of xdist, which collects nothing.
pytest gets its cases from the same axes.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import PurePosixPath
from typing import Any

from sharedtensor_conformance import chapters
from sharedtensor_conformance.adapter import LONG_PROFILES, Implementation
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.case.axes import (
    DIRECTIONS,
    LAYOUTS,
    Configuration,
    kinds_of,
    layouts_of,
)
from sharedtensor_conformance.harness.case.marking import Marking
from sharedtensor_conformance.plugin.cases import BATCH_SUFFIX, marking_of
from sharedtensor_conformance.plugin.matrix import (
    Selection,
    configurations,
    may_match,
    pairwise,
)
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

DIRECTED_FIXTURES = frozenset({"sender", "receiver"})
"""The fixtures that need the axis ``direction``."""


@dataclass(frozen=True)
class PlannedCase:
    """A case before it is run.

    Args:
        id: the id that reports use.
        test: the test's file and name.
        marking: the test's clauses and other properties, from its decorator.
        configuration: the configuration in which it runs.
        axes: its values on the other axes, as in reports.
    """

    id: str
    test: str
    marking: Marking
    configuration: Configuration
    axes: Mapping[str, str] = field(default_factory=dict)

    @property
    def shares_processes(self) -> bool:
        """Whether it uses the same processes as other cases of its configuration."""
        return not (self.marking.isolated or self.configuration.why_not)

    def as_case(self) -> Case:
        """Return the case's line in the report, before it has a verdict."""
        return Case(
            id=self.id,
            test=self.test,
            clauses=self.marking.clauses,
            verdict=Verdict.ERROR,
            device=self.configuration.device,
            axes=self._recorded_axes(),
        )

    def _recorded_axes(self) -> dict[str, str]:
        where, found = self.configuration, dict(self.axes)
        if not where.why_not:
            found["strategy"] = where.strategy
            found["start_method"] = where.start_method
        return found


@dataclass(frozen=True)
class Axis:
    """Parameters of a test that vary together: their names, and rows of values."""

    names: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    @property
    def ids(self) -> list[str]:
        """The part of a case id for each row."""
        return ["-".join(map(_id, row)) for row in self.rows]

    def of(self, row: Sequence[Any]) -> dict[str, str]:
        """Return the values of a row by name, as in reports."""
        named = zip(self.names, row, strict=True)
        return {name: _id(value) for name, value in named if name != "configuration"}


def _id(value: Any) -> str:
    if isinstance(value, Configuration):
        return value.id
    return value if isinstance(value, str) else str(value.name)


def selected_configurations(
    marking: Marking, implementation: Implementation, selection: Selection
) -> list[Configuration]:
    """Return the configurations of a test; none if it is not selected."""
    if not _selects(selection, marking):
        return []
    return configurations(marking, implementation, selection)


def _selects(selection: Selection, marking: Marking) -> bool:
    clauses = [load_clauses()[id] for id in marking.clauses]
    named = selection.clauses or selection.profiles or selection.cases
    if marking.profiles & LONG_PROFILES and not named:
        return False
    if selection.clauses and not set(marking.clauses) & set(selection.clauses):
        return False
    profiles = {clause.profile for clause in clauses}
    return not selection.profiles or bool(profiles & set(selection.profiles))


def axes_of(
    function: Callable[..., Any],
    marking: Marking,
    configurations: list[Configuration],
    implementation: Implementation,
) -> list[Axis]:
    """Return the axes of a test, in order, without its own ``parametrize`` marks."""
    names = set(inspect.signature(function).parameters)
    if names & DIRECTED_FIXTURES:
        names.add("direction")
    axes: dict[str, Sequence[Any]] = {"configuration": configurations}
    for name, values in _values_of_axes(implementation).items():
        if name in names:
            axes[name] = values[:1] if configurations[0].why_not else values
    if marking.pairwise:
        # Only declared kinds of views. Each pair of values has to occur in a row.
        return [Axis(tuple(axes), pairwise(list(axes.values())))]
    if absent := list(_absent_views(axes, implementation)):
        return [Axis(tuple(axes), [*product(*axes.values()), *absent])]
    return [Axis((name,), [[one] for one in values]) for name, values in axes.items()]


def _absent_views(
    axes: Mapping[str, Sequence[Any]], implementation: Implementation
) -> Iterator[list[Any]]:
    """Yield a row for each layout that needs a kind of view that is not claimed.

    Layouts with negative strides are left out, because few libraries have such views.
    """
    if "layout" not in axes or axes["configuration"][0].why_not:
        return
    for layout in LAYOUTS:
        for kind in sorted(kinds_of(layout) - {*implementation.views})[:1]:
            why = f"the kind of view {kind!r} is not claimed"
            place = Configuration("", "", why_not=why, unsupported=True)
            first = {name: values[0] for name, values in axes.items()}
            yield [*(first | {"configuration": place, "layout": layout}).values()]


def _values_of_axes(implementation: Implementation) -> dict[str, tuple[Any, ...]]:
    return {
        "channel": implementation.channels,
        "direction": DIRECTIONS,
        "dtype": implementation.dtypes,
        "tensor_kind": implementation.kinds or ("none",),
        "layout": layouts_of(implementation),
    }


def all_cases(
    selection: Selection, implementation: Implementation
) -> Iterator[PlannedCase]:
    """Yield the cases of the chosen clauses, profiles and configurations.

    Tests without any case that ``--case`` can match are left out.
    """
    for file, function in suite_tests():
        marking, test = marking_of(function), f"{file}::{function.__name__}"
        assert marking is not None
        if selection.cases and not any(may_match(test, one) for one in selection.cases):
            continue
        chosen = selected_configurations(marking, implementation, selection)
        if chosen:
            axes = axes_of(function, marking, chosen, implementation)
            yield from _cases_of(test, function, axes)


@cache
def suite_tests() -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Return all tests of the suite, each with its file name."""
    names = [module.name for module in pkgutil.iter_modules(chapters.__path__)]
    return tuple(
        (f"{name}.py", function)
        for name in sorted(names)
        if name.startswith("test_")
        for function in _tests_in(f"{chapters.__name__}.{name}")
    )


def id_in_report(nodeid: str) -> str:
    """Return the case id that reports use, for pytest's `nodeid`.

    A node id has no file if pytest was given a module outside its root folder.
    """
    path, mark, rest = nodeid.partition("::")
    case = BATCH_SUFFIX.sub("", rest)
    file = PurePosixPath(path).name or _files().get(case.partition("[")[0], "")
    return f"{file}{mark}{case}"


@cache
def _files() -> dict[str, str]:
    """Return the file of each test, by its name."""
    return {function.__name__: file for file, function in suite_tests()}


def _tests_in(module: str) -> Iterator[Callable[..., Any]]:
    for name, value in vars(importlib.import_module(module)).items():
        if name.startswith("test_") and marking_of(value):
            yield value


def _cases_of(
    test: str, function: Callable[..., Any], axes: list[Axis]
) -> Iterator[PlannedCase]:
    marking = marking_of(function)
    assert marking is not None
    first, *others = (*axes, *_own_axes(function))
    place = first.names.index("configuration")
    tails = list(product(*(zip(axis.ids, axis.rows, strict=True) for axis in others)))
    for head, row in zip(first.ids, first.rows, strict=True):
        for tail in tails:
            said = first.of(row)
            for axis, (_, values) in zip(others, tail, strict=True):
                said |= axis.of(values)
            id = f"{test}[{'-'.join([head, *(id for id, _ in tail)])}]"
            yield PlannedCase(id, test, marking, row[place], said)


def _own_axes(function: Callable[..., Any]) -> Iterator[Axis]:
    """Yield an axis for each ``parametrize`` mark of a test."""
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            name, values = mark.args
            yield Axis((name,), [[value] for value in values])
