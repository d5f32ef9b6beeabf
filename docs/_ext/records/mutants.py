"""Puts the committed run of the mutants beside the clauses and mutants of today.

It shows where no mutant breaks a clause, and which mutants have not been run since they
were written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.evidence import Citation, citing


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
        """Return the test that killed a mutant."""
        by = str(self.outcomes.get(mutant.name, {}).get("by", ""))
        return by.partition("[")[0] or "-"

    def fates(self, found: Iterable[Citation]) -> str:
        """Return how many of the mutants came to what."""
        counts = Counter(map(self.fate, found)).items()
        return ", ".join(f"{count} {fate}" for fate, count in counts) or "none"

    def of(self, clause: Clause) -> list[Citation]:
        """Return the mutants of a clause."""
        return citing(self.mutants, clause.id)

    def by_chapter(self) -> dict[str, list[Citation]]:
        """Return the mutants by the chapter of the first clause that they break."""
        found: dict[str, list[Citation]] = {}
        for one in self.mutants:
            found.setdefault(one.clauses[0].partition("-")[0], []).append(one)
        return found

    def unproven(self, clauses: Iterable[Clause]) -> list[Clause]:
        """Return the clauses of which no mutant was killed."""
        killed = [one for one in self.mutants if self.fate(one) == "killed"]
        return [one for one in clauses if not citing(killed, one.id)]

    def about(self, clauses: Iterable[Clause]) -> list[Citation]:
        """Return the mutants of some clauses, each once."""
        ids = {clause.id for clause in clauses}
        return [one for one in self.mutants if ids & set(one.clauses)]


def prepared(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mutants, with what came of them."""
    return {"kills": Kills(content["backing"].evidence.mutants, content["record"])}
