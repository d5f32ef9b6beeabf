"""The Sphinx extension that shows what the suite is worth: which mutants it kills.

``shared-tensor-spec mutants --run --json`` says of each mutant whether a test that
cites one of its clauses killed it, and which. The committed file is rendered as it is,
beside the clauses of today: it shows where no mutant breaks a clause, and which mutants
have not been run since they were written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from clauses.domain import reference
from clauses.evidence import Citation, citing, mutants
from docutils import nodes
from sharedtensor_conformance.clauses import Clause, load_clauses
from soak.tables import in_words, paragraph, table
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from .blind import BlindTrialDirective
from .generated import GeneratedMutantsDirective
from .precision import PrecisionDirective

BINDING = ("MUST", "SHOULD")


class Kills:
    """The mutants that there are, and what the committed run says of each."""

    def __init__(self, root: Path, file: Path) -> None:
        self.mutants = mutants(
            root, "conformance/sharedtensor_conformance/mutants/chapters/*.py"
        )
        self.outcomes = {one["name"]: one for one in read(file)}

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
        counts: dict[str, int] = {}
        for mutant in found:
            fate = self.fate(mutant)
            counts[fate] = counts.get(fate, 0) + 1
        return in_words(counts)

    def is_proven(self, clause: Clause) -> bool:
        """Tell whether a mutant of the clause was killed."""
        found = citing(self.mutants, clause.id)
        return any(self.fate(mutant) == "killed" for mutant in found)


def read(file: Path) -> list[dict[str, Any]]:
    """Return the outcomes of a run of the mutants.

    Raises:
        ExtensionError: the file holds something else.
    """
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return [one for one in found if one["name"] and one["fate"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ExtensionError(f"{file} is no record of mutants: {error}") from error


class TrustDirective(SphinxDirective):
    """``{trust} KIND``: ``chapters``, ``unproven`` or ``mutants``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Render a table; a kind that does not exist is an error."""
        render = RENDERERS.get(self.arguments[0])
        if render is None:
            raise self.error(f"there are {', '.join(RENDERERS)} alone")
        root = Path(self.env.srcdir).parent
        file = Path(self.env.srcdir, self.config.trust_record)
        self.env.note_dependency(str(file))
        for source in sorted(
            root.glob("conformance/sharedtensor_conformance/mutants/chapters/*.py")
        ):
            self.env.note_dependency(str(source))
        return render(Kills(root, file), self.env.docname)


def chapters(kills: Kills, docname: str) -> list[nodes.Node]:
    """Return how many clauses of each chapter are proven by a killed mutant."""
    rows = []
    for chapter in dict.fromkeys(clause.chapter for clause in load_clauses().values()):
        clauses = [c for c in load_clauses().values() if c.chapter == chapter]
        binding = [clause for clause in clauses if clause.level in BINDING]
        ids = {clause.id for clause in clauses}
        found = [one for one in kills.mutants if ids & set(one.clauses)]
        proven = sum(map(kills.is_proven, binding))
        rows.append([chapter, len(binding), proven, len(found), kills.fates(found)])
    head = [
        "Chapter",
        "MUST and SHOULD",
        "of them proven",
        "Mutants",
        "What came of it",
    ]
    return [table(head, rows)]


def unproven(kills: Kills, docname: str) -> list[nodes.Node]:
    """Return the binding clauses of which no mutant was killed."""
    found = [
        clause
        for clause in load_clauses().values()
        if clause.level in BINDING and not kills.is_proven(clause)
    ]
    if not found:
        return [paragraph("None: each has a mutant that was killed.")]
    items = [
        nodes.list_item(
            "",
            nodes.paragraph(
                "",
                "",
                reference("clause", clause.id, clause.id, docname),
                nodes.Text(f" {clause.title}: "),
                nodes.Text(kills.fates(citing(kills.mutants, clause.id))),
            ),
        )
        for clause in found
    ]
    return [nodes.bullet_list("", *items)]


def matrix(kills: Kills, docname: str) -> list[nodes.Node]:
    """Return all mutants, each with the test that killed it."""
    head = ["Mutant", "Clauses", "What is wrong with it", "Fate", "Killed by"]
    rows = [
        [
            mutant.name,
            " ".join(mutant.clauses),
            mutant.sentence,
            kills.fate(mutant),
            kills.by(mutant).partition("[")[0],
        ]
        for mutant in kills.mutants
    ]
    return [table(head, rows)]


RENDERERS: dict[str, Callable[[Kills, str], list[nodes.Node]]] = {
    "chapters": chapters,
    "unproven": unproven,
    "mutants": matrix,
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_config_value("trust_record", "reports/mutants.json", "env")
    app.add_directive("trust", TrustDirective)
    app.add_config_value("blind_trial_record", "reports/blind-trial.json", "env")
    app.add_directive("blind-trial", BlindTrialDirective)
    record = "reports/generated-mutants.json"
    app.add_config_value("generated_mutants_record", record, "env")
    app.add_directive("generated-mutants", GeneratedMutantsDirective)
    app.add_directive("precision", PrecisionDirective)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
