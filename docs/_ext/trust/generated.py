"""What came of the mutants that a program made of the reference.

``ci/generated_mutants.py`` leaves a record: of each mutant what the first run said,
what holds now, and why some make no difference.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from elements import paragraph, read_json, table
from sphinx.util.docutils import SphinxDirective

from .age import age

PACKAGE = "reference/sharedtensor/"
KILLED = {"killed", "timeout"}
HEAD = [
    "Where in the reference",
    "Original",
    "Mutated",
    "Why it was not killed",
]


class GeneratedMutantsDirective(SphinxDirective):
    """``{generated-mutants}``: the figures of the record, and what was not killed."""

    def run(self) -> list[nodes.Node]:
        """Render the record as it is."""
        file, what = "reports/generated-mutants.json", "record of generated mutants"
        record = read_json(self.env, file, what, shown)
        return shown(record) if record else [paragraph("No sample was run yet.")]


def shown(record: dict[str, Any]) -> list[nodes.Node]:
    """Return the figures, and a row for each mutant that was not killed."""
    left = [row(one) for one in record["mutants"] if one["outcome"] not in KILLED]
    return [paragraph(figures(record)), age(record, earlier(record)), table(HEAD, left)]


def earlier(record: dict[str, Any]) -> str:
    """Return how many mutants were judged before the run that the record tells of."""
    judged = [one for one in record["mutants"] if one["outcome"] != "equivalent"]
    started = record.get("started")
    before = sum(one.get("judged") != started for one in judged) if started else 0
    return f" Earlier runs have judged {before} of them." if before else ""


def figures(record: dict[str, Any]) -> str:
    """Return how many there are, and how many were killed at first and now."""
    mutants = record["mutants"]
    real = [one for one in mutants if one["outcome"] != "equivalent"]
    first = sum(one.get("first") in KILLED for one in real)
    now = sum(one["outcome"] in KILLED for one in real)
    late = sum(one["outcome"] == "timeout" for one in real)
    unfinished = sum(one["outcome"] in ("unfinished", "not run") for one in real)
    return (
        f"{record['tool']} can change the mutated modules in {record['possible']} "
        f"ways at {record['places']} places. Of a sample of {record['sampled']} (seed "
        f"{record['seed']}), {len(mutants) - len(real)} make no difference. Of the "
        f"other {len(real)}, {first} were killed in the first run and {now} are killed "
        f"today, {late} of these by running out of time. {unfinished} have not been "
        "through all stages yet and count as not killed."
    )


def row(one: dict[str, Any]) -> list[Any]:
    """Return the row of a mutant that was not killed."""
    where = f"{one['file'].removeprefix(PACKAGE)}:{one['line']}"
    why = one.get("reason") or {
        "survived": "survived: no case sees it",
        "unfinished": f"survived {one.get('stages', 0)} stages, the rest was not run",
    }.get(one["outcome"], one["outcome"])
    before, after = (nodes.literal("", one[side]) for side in ("before", "after"))
    return [where, before, after, why]
