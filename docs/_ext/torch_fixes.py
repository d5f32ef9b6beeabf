"""The Sphinx extension that shows the fixes of PyTorch: what each restores and costs.

Names, clauses and lines come from the modules themselves; whether a clause holds from
the report of the patched adapter; times from a run of the benchmark in which torch and
torch with each fix took turns. What was not recorded is said to be missing.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from clauses.domain import reference
from docutils import nodes
from elements import between, missing, paragraph, table
from sharedtensor_bench.results import Result, read_results
from sharedtensor_bench.table import busy, circumstances
from sharedtensor_conformance.adapters.torch_patches import FIXES, Fix
from sharedtensor_conformance.report.records import read_report
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PACKAGE = "sharedtensor_conformance.adapters.torch_patches"
SHARED = ("cargo", "segments", "replacing")
REPORT, COSTS = "reports/torch-patched.jsonl", "reports/torch-fixes.json"
PLAIN, ALL, ONE = "torch", "torch-patched", "torch-patched-only-"


class TorchFixesDirective(SphinxDirective):
    """``{torch-fixes}``: a table with a line for each fix, and what it was made of."""

    def run(self) -> list[nodes.Node]:
        """Read the records that are there, and render the fixes."""
        report, costs = (Path(self.env.srcdir, name) for name in (REPORT, COSTS))
        for path in (report, costs):
            self.env.note_dependency(str(path))
        held = verdicts(report) if report.exists() else {}
        results = read_results(costs) if costs.exists() else None
        measured = [] if results is None else results.results
        head = ["Fix", "Clauses restored", "Lines", *strategies(measured)]
        lines = [self.line(fix, held, measured) for fix in FIXES]
        shared = [str(lines_of(name)) for name in SHARED]
        common = "shared by several: " + ", ".join(SHARED)
        lines.append([common, "", " + ".join(shared), *costs_of(ALL, measured)])
        found: list[nodes.Node] = [table(head, lines)]
        if not held:
            found.append(missing("No run of the patched adapter is committed yet."))
        if results is None:
            return [*found, missing("Nothing has been measured yet.")]
        said = (
            f"{results.started.partition('T')[0]}. {'. '.join(circumstances(results))}"
        )
        return [*found, paragraph(f"{said}. {busy(results)}")]

    def line(
        self, fix: Fix, held: Mapping[str, bool], measured: list[Result]
    ) -> list[Any]:
        """Return the cells of one fix."""
        restored = between([self.clause(id, held) for id in fix.clauses], ", ")
        needs = f" (with {', '.join(fix.needs)})" if fix.needs else ""
        costs = costs_of(f"{ONE}{fix.name}", measured)
        cell = nodes.paragraph("", "", *restored)
        return [fix.name + needs, cell, lines_of(fix.name), *costs]

    def clause(self, id: str, held: Mapping[str, bool]) -> nodes.Node:
        """Return a link to a clause; one that is still broken holds in part."""
        link = reference("clause", id, id, self.env.docname)
        if held.get(id, True):
            return link
        return nodes.inline("", "", link, nodes.Text(" in part"))


def verdicts(path: Path) -> dict[str, bool]:
    """Return whether each clause of a report holds."""
    summary = read_report(path).summary
    assert summary is not None
    return {id: not one.verdict.broken for id, one in summary.clauses.items()}


def strategies(measured: list[Result]) -> list[str]:
    """Return the strategies that were measured, in their order."""
    return list(dict.fromkeys(one.strategy for one in measured))


def costs_of(name: str, measured: list[Result]) -> list[str]:
    """Return, for each strategy, the time in units of that of torch alone."""
    return [
        ratio(
            *(
                next((one for one in measured if cell(one) == (who, strategy)), None)
                for who in (name, PLAIN)
            )
        )
        for strategy in strategies(measured)
    ]


def cell(result: Result) -> tuple[str, str]:
    """Return what a figure is of."""
    return result.implementation, result.strategy


def ratio(result: Result | None, plain: Result | None) -> str:
    """Return the median by that of torch alone, and the same of the quartiles."""
    if result is None or plain is None or not (result.median and plain.median):
        return "not measured"
    quartiles = result.quartiles or (result.median, result.median)
    low, high = (value / plain.median for value in quartiles)
    return f"{result.median / plain.median:.2f} ({low:.2f} to {high:.2f})"


def lines_of(name: str) -> int:
    """Return how many lines of a module are statements: no text, no empty lines."""
    source = files(PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
    texts = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return sum(
        1
        for number, line in enumerate(source.splitlines(), 1)
        if number not in texts and line.strip() and not line.strip().startswith("#")
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("elements")
    app.setup_extension("clauses")
    app.add_directive("torch-fixes", TorchFixesDirective)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
