"""Enumerates the cases of the suite, before and without pytest's collection.

Sharding, and the check whether pytest deselected cases, need all cases: also if pytest
collects only some of them, and in the controller of xdist, which collects nothing.
pytest's items are made from them.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from sharedtensor_conformance.harness.case.marking import Marking, marking_of
from sharedtensor_conformance.plugin.matrix import (
    Selection,
    configurations,
    may_match,
    pairwise,
)
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

DIRECTED = frozenset({"sender", "receiver"})
"""The parameters that need the axis ``direction``."""

Row = dict[str, Any]
"""The values of a case on some axes, by their names."""

_BATCH = re.compile(r"@(\d+)\]$")
"""The end of pytest's name of a case that also runs in another batch."""


@dataclass(frozen=True)
class PlannedCase:
    """A case before it is run.

    Args:
        id: the id that reports use.
        test: the test's file and name.
        marking: the test's clauses and other properties, from its decorator.
        configuration: the configuration in which it runs.
        values: its value on each axis, among them the configuration.
    """

    id: str
    test: str
    marking: Marking
    configuration: Configuration
    values: Mapping[str, Any] = field(default_factory=dict)

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
        where = self.configuration
        found = {name: _id(value) for name, value in self.values.items()}
        found.pop("configuration", None)
        if not where.why_not:
            found["strategy"] = where.strategy
            found["start_method"] = where.start_method
        return found


def _id(value: Any) -> str:
    if isinstance(value, Configuration):
        return value.id
    return value if isinstance(value, str) else str(value.name)


def _selects(selection: Selection, marking: Marking) -> bool:
    clauses = [load_clauses()[id] for id in marking.clauses]
    named = selection.clauses or selection.profiles or selection.cases
    if marking.profiles & LONG_PROFILES and not named:
        return False
    if selection.clauses and not set(marking.clauses) & set(selection.clauses):
        return False
    profiles = {clause.profile for clause in clauses}
    return not selection.profiles or bool(profiles & set(selection.profiles))


def _axes_of(
    function: Callable[..., Any],
    marking: Marking,
    configurations: list[Configuration],
    implementation: Implementation,
) -> Iterator[list[Row]]:
    """Yield the axes of a test, in order; some of them vary together."""
    names = set(inspect.signature(function).parameters)
    if names & DIRECTED:
        names.add("direction")
    axes: dict[str, Sequence[Any]] = {"configuration": configurations}
    for name, values in _values_of_axes(implementation).items():
        if name in names:
            axes[name] = values[:1] if configurations[0].why_not else values
    absent = list(_absent_views(axes, implementation))
    if marking.pairwise:
        # Only declared kinds of views. Each pair of values has to occur in a row.
        yield [_row(axes, values) for values in pairwise(list(axes.values()))]
    elif absent:
        yield [*(_row(axes, values) for values in product(*axes.values())), *absent]
    else:
        yield from ([{name: one} for one in values] for name, values in axes.items())
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            name, values = mark.args
            yield [{name: value} for value in values]


def _row(names: Iterable[str], values: Iterable[Any]) -> Row:
    return dict(zip(names, values, strict=True))


def _absent_views(
    axes: Mapping[str, Sequence[Any]], implementation: Implementation
) -> Iterator[Row]:
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
            yield first | {"configuration": place, "layout": layout}


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
        if not _selects(selection, marking):
            continue
        if chosen := configurations(marking, implementation, selection):
            axes = _axes_of(function, marking, chosen, implementation)
            yield from _cases_of(test, marking, axes)


def _cases_of(
    test: str, marking: Marking, axes: Iterable[list[Row]]
) -> Iterator[PlannedCase]:
    for rows in product(*axes):
        values = {name: value for row in rows for name, value in row.items()}
        id = f"{test}[{'-'.join(map(_id, values.values()))}]"
        yield PlannedCase(id, test, marking, values["configuration"], values)


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


def name_in_batch(name: str, batch: int) -> str:
    """Return pytest's name of a case that runs in each batch."""
    return f"{name.removesuffix(']')}@{batch}]" if batch else name


def batch_in_nodeid(nodeid: str) -> int | None:
    """Return the batch number in a node id, or None if there is none."""
    found = _BATCH.search(nodeid)
    return int(found[1]) if found else None


def id_in_report(nodeid: str) -> str:
    """Return the case id that reports use, for pytest's `nodeid`.

    A node id has no file if pytest was given a module outside its root folder.
    """
    path, mark, rest = nodeid.partition("::")
    case = _BATCH.sub("]", rest)
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
