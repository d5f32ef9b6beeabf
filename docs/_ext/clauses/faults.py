"""Reads the fault table: for each cell the test that runs it, or why there is none.

The table is data, so it is loaded; the tests are read and not imported. A cell with
neither a test nor a reason stops the build: a table with a hole in it would be taken
for a table without one.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from sharedtensor_conformance.report.records import Case
from sphinx.errors import ExtensionError
from sphinx.util import logging

from clauses import evidence
from clauses.evidence import Citation
from clauses.reports import Column, Shown

RUNNER = "over"
"""The decorator of a test that runs the cells of a clause: ``@over("ID")``."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """One step of a round."""

    name: str
    does: str
    actor: str
    managed: bool


@dataclass(frozen=True)
class Cell:
    """One cell: either a test runs it, or there is a reason why none does."""

    step: str
    role: str
    fault: str
    clause: str = ""
    test: Citation | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """The name that its case has."""
        return f"{self.step}-{self.role}-{self.fault}"


@dataclass(frozen=True)
class FaultTable:
    """Steps, roles and faults with what they mean, and the cells by their names."""

    steps: list[Step]
    roles: dict[str, str]
    faults: dict[str, str]
    cells: dict[str, Cell]

    @property
    def tests(self) -> set[str]:
        """The tests that run cells, by name."""
        return {cell.test.name for cell in self.cells.values() if cell.test}


@dataclass
class Judged:
    """What the reports say of the cells, for one version of an implementation."""

    title: str
    name: str
    cases: dict[str, dict[str, Case]] = field(default_factory=dict)
    strategies: dict[str, set[str]] = field(default_factory=dict)

    def add(self, case: Case) -> None:
        """Note one case under its cell and its strategy."""
        strategy = case.axes.get("strategy", "")
        self.cases.setdefault(case.axes["cell"], {})[strategy] = case
        self.strategies.setdefault(test_of(case), set()).add(strategy)

    def of(self, cell: Cell) -> dict[str, Case | None]:
        """Return the case of `cell` under each strategy; None where it was not run."""
        ran = self.cases.get(cell.name, {})
        known = self.strategies.get(cell.test.name if cell.test else "", {""})
        return {strategy: ran.get(strategy) for strategy in sorted(known)}

    def counted(self) -> dict[str, Counter]:
        """Return how many cases have each verdict, by strategy."""
        found: dict[str, Counter] = {}
        for cases in self.cases.values():
            for strategy, case in cases.items():
                found.setdefault(strategy, Counter())[case.verdict] += 1
        return dict(sorted(found.items()))


def read(root: Path, path: str, tests: str) -> FaultTable | None:
    """Return the table in the file `path`; None where there is no such file.

    Raises:
        ExtensionError: a cell has neither a test nor a reason, or both.
    """
    if not (root / path).is_file():
        return None
    data, running = load(root / path), runners(root, tests)
    runnable = {cell.name: cell for cell in data.cells()}
    found, problems = {}, []
    for step in data.STEPS:
        for role in data.ROLES:
            for fault in data.FAULTS:
                reason = data.reason_against(step, role, fault)
                bare = Cell(step.name, role, fault, reason=reason)
                cell = completed(bare, runnable.get(bare.name), running)
                if bool(cell.test) == bool(reason):
                    problems.append(complaint(cell))
                found[cell.name] = cell
    if problems:
        raise ExtensionError("the fault table has a hole: " + "; ".join(problems))
    steps = [Step(s.name, s.does, s.actor, s.managed) for s in data.STEPS]
    return FaultTable(steps, dict(data.ROLES), dict(data.FAULTS), found)


def load(path: Path) -> ModuleType:
    """Return the module in the file `path`, which needs nothing but Python's own."""
    spec = importlib.util.spec_from_file_location("clauses_loaded_faults", path)
    assert spec is not None, "the file is a Python file"
    assert spec.loader is not None, "the file is a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def completed(
    bare: Cell, runnable: object, running: dict[tuple[str, bool], Citation]
) -> Cell:
    """Return `bare` with its clause and its test, where the table says it is run."""
    if runnable is None:
        return bare
    test = running.get((runnable.clause, runnable.managed))
    return Cell(
        bare.step, bare.role, bare.fault, runnable.clause, test, reason=bare.reason
    )


def complaint(cell: Cell) -> str:
    """Return what is wrong with a cell."""
    if cell.reason:
        return f"{cell.name} has a reason against it, and yet a test runs it"
    if cell.clause:
        return f"no test runs {cell.name}, which judges {cell.clause}"
    return f"{cell.name} has neither a case nor a reason"


def runners(root: Path, pattern: str) -> dict[tuple[str, bool], Citation]:
    """Return the tests that run cells, by the clause and whether a manager is in them.

    Raises:
        ExtensionError: a test runs the cells of a clause that it does not cite.
    """
    citations = {(test.file, test.name): test for test in evidence.tests(root, pattern)}
    found = {}
    for file, tree in evidence.syntax_trees(root, pattern):
        for function in evidence.functions_in(tree):
            for clause in evidence.arguments_of(function, RUNNER):
                test = citations.get((file, function.name))
                if test is None or clause not in test.clauses:
                    raise ExtensionError(
                        f"{file}: {function.name} runs the cells of {clause} "
                        f"and does not cite it"
                    )
                found[clause, is_managed(function)] = test
    return found


def is_managed(function: ast.AST) -> bool:
    """Tell whether the decorator says ``managed=True``."""
    return any(
        keyword.arg == "managed" and ast.literal_eval(keyword.value)
        for call in function.decorator_list
        if isinstance(call, ast.Call) and evidence.name_of(call.func) == RUNNER
        for keyword in call.keywords
    )


def test_of(case: Case) -> str:
    """Return the name of the test that a case is of."""
    return case.test.rpartition("::")[2]


def judged(table: FaultTable, columns: Iterable[Column]) -> list[Judged]:
    """Return what each column says of the cells; columns that say nothing are left out.

    Cases of cells that the table does not have are left out as well.
    """
    found = []
    for column in columns:
        one = Judged(column.title, column.name)
        for case in column.cells:
            if test_of(case) in table.tests and case.axes["cell"] in table.cells:
                one.add(case)
        found += [one] if one.cases else []
    return found


def verify_reports(table: FaultTable | None, reports: Iterable[Shown]) -> None:
    """Warn of a report with a cell that the table does not have, or does not run."""
    if table is None:
        return
    for report in reports:
        for case in report.cells:
            cell = table.cells.get(case.axes["cell"])
            if test_of(case) in table.tests and (cell is None or cell.reason):
                logger.warning(
                    "%s has a case of the cell %s, which the fault table does not run",
                    report.file.name,
                    case.axes["cell"],
                )
