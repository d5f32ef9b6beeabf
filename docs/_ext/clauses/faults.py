"""Finds for each cell of the fault table the test that runs it, or why there is none.

The table is the suite's own data, so it is loaded; the tests are read and not imported.
A cell with neither a test nor a reason stops the build: a table with a hole in it would
be taken for a table without one.
"""

from __future__ import annotations

import ast
import runpy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from sharedtensor_conformance import evidence
from sharedtensor_conformance.chapters.fault_table import Cell, Step
from sharedtensor_conformance.definitions import Definition, Folder, definitions_in
from sharedtensor_conformance.evidence import Citation, Sources
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict
from sphinx.errors import ExtensionError
from sphinx.util import logging

from clauses.reports import Column, Judgement, Shown

FILE = "conformance/sharedtensor_conformance/chapters/fault_table.py"
"""The module of the table; it needs nothing but Python's own."""

RUNNER = "over_cells_of"
"""The decorator of a test that runs the cells of a clause: ``@over_cells_of("ID")``."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FaultTable:
    """The table: its parts with what they mean, and what there is for each cell.

    Args:
        cells: all cells by name, whether they can be run or not.
        tests: the test of each cell that is run, by the name of the cell.
        reasons: why each of the others is not.
    """

    steps: tuple[Step, ...]
    roles: dict[str, str]
    faults: dict[str, str]
    cells: dict[str, Cell]
    tests: dict[str, Citation]
    reasons: dict[str, str]

    def runs(self, case: Case) -> bool:
        """Return whether a case is of a test that runs cells."""
        return test_of(case) in {test.name for test in self.tests.values()}


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

    def of(self, cell: Cell, test: Citation) -> dict[str, Case | None]:
        """Return the case of `cell` under each strategy; None where it was not run."""
        ran = self.cases.get(cell.name, {})
        known = self.strategies.get(test.name, {""})
        return {strategy: ran.get(strategy) for strategy in sorted(known)}

    def told(
        self, cell: Cell, test: Citation
    ) -> list[tuple[Judgement, Finding | None, list[str]]]:
        """Return what was judged of `cell`, each with the strategies that say it."""
        found: dict[object, tuple[Judgement, Finding | None, list[str]]] = {}
        for strategy, case in self.of(cell, test).items():
            judgement, behind = judgement_of(case), finding_of(self.title, case)
            same = found.setdefault((judgement.words, behind), (judgement, behind, []))
            same[2].append(strategy)
        return list(found.values())

    def counted(self) -> dict[str, list[tuple[Judgement, int]]]:
        """Return how many cases have each verdict, worst first, by strategy."""
        found: dict[str, Counter[Verdict]] = {}
        for cases in self.cases.values():
            for strategy, case in cases.items():
                found.setdefault(strategy, Counter())[case.verdict] += 1
        return {
            strategy: [(Judgement(v, False, ""), n[v]) for v in Verdict if n[v]]
            for strategy, n in sorted(found.items())
        }


class Finding(NamedTuple):
    """What is behind a verdict that is no pass; what is the same is shown once.

    Args:
        title: the version of an implementation.
        words: the verdict.
    """

    title: str
    words: str
    cause: str
    evidence: str

    @property
    def first(self) -> str:
        """The line that says it in short."""
        return (self.evidence or self.cause).strip().partition("\n")[0]


def finding_of(title: str, case: Case | None) -> Finding | None:
    """Return what is behind the verdict of a case; None where nothing is."""
    if case is None or case.verdict is Verdict.PASS:
        return None
    if not (case.evidence or case.cause):
        return None
    return Finding(title, judgement_of(case).words, case.cause, case.evidence)


def judgement_of(case: Case | None) -> Judgement:
    """Return the judgement that one case is; what has no case was not run."""
    if case is None:
        return Judgement(Verdict.NOT_RUN, True, "")
    return Judgement(case.verdict, case.expected, "")


def read(root: Path, tests: Sequence[Citation]) -> FaultTable | None:
    """Return the table of the repository at `root`; None where there is none.

    Args:
        tests: the tests of the repository.

    Raises:
        ExtensionError: a cell has neither a test nor a reason, or both.
    """
    if not (root / FILE).is_file():
        return None
    data = SimpleNamespace(**runpy.run_path(str(root / FILE)))
    chapters = Sources.of_checkout(root).tests
    every = [
        data.Cell(step, role, fault)
        for step in data.STEPS
        for role in data.ROLES
        for fault in data.FAULTS
    ]
    running, run = runners(chapters, tests), {cell.name for cell in data.cells()}
    ran = {c.name: running.get((c.clause, c.managed)) for c in every if c.name in run}
    reasons = {c.name: data.reason_against(c.step, c.role, c.fault) for c in every}
    if holes := [hole for c in every for hole in complaints(c, ran, reasons)]:
        raise ExtensionError("the fault table has a hole: " + "; ".join(holes))
    return FaultTable(
        data.STEPS,
        data.ROLES,
        data.FAULTS,
        {cell.name: cell for cell in every},
        {name: test for name, test in ran.items() if test},
        {name: reason for name, reason in reasons.items() if reason},
    )


def complaints(
    cell: Cell, tests: dict[str, Citation | None], reasons: dict[str, str]
) -> Iterator[str]:
    """Yield what is wrong with a cell."""
    name, reason = cell.name, reasons[cell.name]
    if name in tests and reason:
        yield f"{name} has a reason against it, and yet a test runs it"
    elif name in tests and not tests[name]:
        yield f"no test runs {name}, which judges {cell.clause}"
    elif name not in tests and not reason:
        yield f"{name} has neither a case nor a reason"


def runners(
    chapters: Folder, tests: Sequence[Citation]
) -> dict[tuple[str, bool], Citation]:
    """Return the tests that run cells, by the clause and whether a manager is in them.

    Raises:
        ExtensionError: a test runs the cells of a clause that it does not cite.
    """
    citing = {(test.file, test.name): test for test in tests}
    found = {}
    for module in chapters.modules():
        for function in definitions_in(module.tree):
            for clause in evidence.arguments_of(function, RUNNER):
                test = citing.get((module.file, function.name))
                if test is None or clause not in test.clauses:
                    raise ExtensionError(
                        f"{module.file}: {function.name} runs the cells of {clause} "
                        f"and does not cite it"
                    )
                found[clause, is_managed(function)] = test
    return found


def is_managed(function: Definition) -> bool:
    """Return whether the decorator says ``managed=True``."""
    return any(
        keyword.arg == "managed" and ast.literal_eval(keyword.value)
        for call in evidence.calls_of(function, RUNNER)
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
            if table.runs(case) and case.axes["cell"] in table.cells:
                one.add(case)
        found += [one] if one.cases else []
    return found


def verify_reports(table: FaultTable, reports: Iterable[Shown]) -> None:
    """Warn of a report with a cell that the table does not have, or does not run."""
    for report in reports:
        for case in report.cells:
            if table.runs(case) and case.axes["cell"] not in table.tests:
                logger.warning(
                    "%s has a case of the cell %s, which the fault table does not run",
                    report.file.name,
                    case.axes["cell"],
                )


def findings(table: FaultTable, judged: Iterable[Judged]) -> dict[Finding, list[Case]]:
    """Return what is behind the verdicts, in the order of the cells, with its cases."""
    found: dict[Finding, list[Case]] = {}
    judged = list(judged)
    for name, test in table.tests.items():
        for one in judged:
            for case in one.of(table.cells[name], test).values():
                if case and (behind := finding_of(one.title, case)):
                    found.setdefault(behind, []).append(case)
    return found
