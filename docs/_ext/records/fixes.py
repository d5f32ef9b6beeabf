"""Shows the fixes of PyTorch: what each restores and costs.

Names, clauses and lines come from the modules themselves; whether a clause holds from
the report of the patched adapter; times from a run of the benchmark in which torch and
torch with each fix took turns.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.resources import files
from statistics import median
from typing import Any

from bench.results import spread
from torch_patches import FIXES

from records.costs import Record

PACKAGE = "torch_patches"
SHARED = ("cargo", "segments", "replacing")
PLAIN, ALL, ONE = "torch", "torch-patched", "torch-patched-only-"


def prepared(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fixes with their lines and costs."""
    records = content["records"]
    measured = records["torch-fixes"]["results"]
    summary = records["torch-patched"].summary
    broken = {id for id, one in summary.clauses.items() if one.verdict.broken}
    return {
        "fixes": [
            (fix, lines_of(fix.name), costs_of(f"{ONE}{fix.name}", measured))
            for fix in FIXES
        ],
        "broken": broken,
        "strategies": strategies(measured),
        "shared": {name: lines_of(name) for name in SHARED},
        "costs_of_all": costs_of(ALL, measured),
    }


def strategies(measured: list[Record]) -> list[str]:
    """Return the strategies that were measured, in their order."""
    return list(dict.fromkeys(one["strategy"] for one in measured))


def costs_of(name: str, measured: list[Record]) -> list[str]:
    """Return, for each strategy, the time in units of that of torch alone."""
    found = {(one["implementation"], one["strategy"]): one for one in measured}
    return [
        ratio(found.get((name, strategy)), found.get((PLAIN, strategy)))
        for strategy in strategies(measured)
    ]


def ratio(result: Record | None, plain: Record | None) -> str:
    """Return the median by that of torch alone, and the same of the quartiles."""
    if not (result and plain and result["samples"] and plain["samples"]):
        return "not measured"
    unit = median(plain["samples"])
    return spread([value / unit for value in result["samples"]])


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
