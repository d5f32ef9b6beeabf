"""The Sphinx extension that shows what the suite is worth: which mutants it kills.

``shared-tensor-spec mutants --run --json`` says of each mutant whether a test that
cites one of its clauses killed it, and which. The committed file is rendered as it is,
beside the clauses of today: it shows where no mutant breaks a clause, and which mutants
have not been run since they were written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from clauses.domain import reference
from docutils import nodes
from elements import folded_table, missing, paragraph, read_json, table
from sharedtensor_conformance.clauses import Clause, load_clauses
from sharedtensor_conformance.evidence import Citation, citing
from soak.tables import in_words
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from .blind import BlindTrialDirective
from .cpython import CPythonTestsDirective
from .device_deviations import DeviceDeviationsDirective
from .exploration import DeviceExplorationDirective
from .generated import GeneratedMutantsDirective
from .gpu_checks import GpuChecksDirective
from .machines import StateMachinesDirective
from .overview import OverviewDirective
from .precision import PrecisionDirective
from .programs import ProgramsDirective


class Kills:
    """The mutants that there are, and what the committed run says of each."""

    def __init__(self, mutants: list[Citation], outcomes: list[dict[str, Any]]) -> None:
        self.mutants = mutants
        self.outcomes = {one["name"]: one for one in outcomes}

    def fate(self, mutant: Citation) -> str:
        """Return ``killed``, ``survived``, ``unjudged`` or ``not run``."""
        outcome = self.outcomes.get(mutant.name)
        same = outcome and set(outcome["clauses"]) >= set(mutant.clauses)
        return str(outcome["fate"]) if outcome and same else "not run"

    def by(self, mutant: Citation) -> str:
        """Return the case that killed a mutant."""
        return str(self.outcomes.get(mutant.name, {}).get("by", "")) or "-"

    def fates(self, found: Iterable[Citation]) -> str:
        """Return how many of the mutants came to what."""
        return in_words(Counter(map(self.fate, found)))

    def is_proven(self, clause: Clause) -> bool:
        """Return whether a mutant of the clause was killed."""
        found = citing(self.mutants, clause.id)
        return any(self.fate(mutant) == "killed" for mutant in found)


def verify(outcomes: Any) -> None:
    """Look up what is shown of each outcome of a run of the mutants."""
    for one in outcomes:
        _ = one["name"], one["fate"], one["clauses"], one["seconds"]


class TrustDirective(SphinxDirective):
    """``{trust} KIND``: ``time``, ``chapters``, ``unproven`` or ``mutants``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render a table; a kind that does not exist is an error."""
        render = RENDERERS.get(self.arguments[0])
        if render is None:
            raise self.error(f"there are {', '.join(RENDERERS)} alone")
        file, what = "reports/mutants.json", "record of mutants"
        outcomes = read_json(self.env, file, what, verify) or []
        mutants = self.env.clauses_evidence.mutants
        return render(Kills(mutants, outcomes), self.env.docname)


def time_taken(kills: Kills, docname: str) -> list[nodes.Node]:
    """Return how long the runs took, one after another."""
    outcomes = kills.outcomes.values()
    if not outcomes:
        return [missing("No run of the mutants is committed.")]
    minutes = sum(one["seconds"] for one in outcomes) / 60
    said = f"The {len(outcomes)} recorded runs took {minutes:.0f} minutes in total."
    return [paragraph(said)]


def chapters(kills: Kills, docname: str) -> list[nodes.Node]:
    """Return how many clauses of each chapter are proven by a killed mutant."""
    rows = []
    for chapter in dict.fromkeys(clause.chapter for clause in load_clauses().values()):
        clauses = [c for c in load_clauses().values() if c.chapter == chapter]
        ids = {clause.id for clause in clauses}
        found = [one for one in kills.mutants if ids & set(one.clauses)]
        proven = sum(map(kills.is_proven, clauses))
        rows.append([chapter, len(clauses), proven, len(found), kills.fates(found)])
    head = ["Chapter", "MUST and SHOULD", "Proven", "Mutants", "Fates"]
    return [table(head, rows)]


def unproven(kills: Kills, docname: str) -> list[nodes.Node]:
    """Return the clauses of which no mutant was killed."""
    found = [
        clause for clause in load_clauses().values() if not kills.is_proven(clause)
    ]
    if not found:
        return [paragraph("None: each has a mutant that was killed.")]
    items = nodes.bullet_list()
    for clause in found:
        link = reference("clause", clause.id, clause.id, docname)
        fates = kills.fates(citing(kills.mutants, clause.id))
        text = nodes.Text(f" {clause.title}: {fates}")
        items += nodes.list_item("", nodes.paragraph("", "", link, text))
    return [items]


def matrix(kills: Kills, docname: str) -> list[nodes.Node]:
    """Return all mutants by chapter, each with the test that killed it."""
    chapters: dict[str, list[Citation]] = {}
    for mutant in kills.mutants:
        chapter = mutant.clauses[0].partition("-")[0]
        chapters.setdefault(chapter, []).append(mutant)
    return [
        folded_table(
            f"{chapter}: {kills.fates(found)}",
            table(MUTANTS, (row_of(kills, mutant) for mutant in found)),
        )
        for chapter, found in sorted(chapters.items())
    ]


MUTANTS = ["Mutant", "Clauses", "What is wrong with it", "Fate", "Killed by"]


def row_of(kills: Kills, mutant: Citation) -> list[str]:
    """Return the row of a mutant."""
    clauses, killer = " ".join(mutant.clauses), kills.by(mutant).partition("[")[0]
    return [mutant.name, clauses, mutant.sentence, kills.fate(mutant), killer]


RENDERERS: dict[str, Callable[[Kills, str], list[nodes.Node]]] = {
    "time": time_taken,
    "chapters": chapters,
    "unproven": unproven,
    "mutants": matrix,
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("clauses")
    app.add_directive("trust", TrustDirective)
    app.add_directive("trust-overview", OverviewDirective)
    app.add_directive("blind-trial", BlindTrialDirective)
    app.add_directive("cpython-tests", CPythonTestsDirective)
    app.add_directive("generated-mutants", GeneratedMutantsDirective)
    app.add_directive("gpu-checks", GpuChecksDirective)
    app.add_directive("precision", PrecisionDirective)
    app.add_directive("programs", ProgramsDirective)
    app.add_directive("device-deviations", DeviceDeviationsDirective)
    app.add_directive("device-exploration", DeviceExplorationDirective)
    app.add_directive("state-machines", StateMachinesDirective)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
