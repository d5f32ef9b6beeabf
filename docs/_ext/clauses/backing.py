"""What backs the clauses, read once for the whole build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharedtensor_conformance.evidence import Evidence, Sources, read_evidence
from sharedtensor_conformance.examples import Example, read_examples
from sharedtensor_conformance.terms import PAGE, Terms

from clauses import changes, deviations, faults, releases, reports


@dataclass(frozen=True)
class Backing:
    """The evidence in the code, the committed reports, and what is known of both.

    Args:
        root: the root of the repository that is shown.
        earlier: the hashes of an earlier text, by clause.
        faults: the fault table; None where the repository has none.
    """

    root: Path
    terms: Terms
    evidence: Evidence
    examples: Mapping[str, Example]
    reports: Sequence[reports.Shown]
    columns: Sequence[reports.Column]
    deviations: Mapping[str, deviations.Deviating]
    releases: Mapping[str, Sequence[releases.Release]]
    earlier: Mapping[str, changes.Earlier]
    faults: faults.FaultTable | None

    def column(self, name: str) -> reports.Column | None:
        """Return what the reports say of an implementation; None without a report."""
        return next((one for one in self.columns if one.name == name), None)


def read(root: Path, first: list[str]) -> Backing:
    """Return what backs the clauses of the repository at `root`.

    Args:
        first: the implementations whose reports are shown before the others.

    Raises:
        ExtensionError: a report, a record or the fault table is not complete.
    """
    evidence = read_evidence(Sources.of_checkout(root))
    shown = reports.read_all(root, first)
    columns = reports.columns(shown)
    terms = root / "spec" / PAGE
    table = faults.read(root, evidence.tests)
    if table:
        faults.verify_reports(table, shown)
    return Backing(
        root=root,
        terms=Terms(terms.read_text(encoding="utf-8") if terms.is_file() else ""),
        evidence=evidence,
        examples=read_examples(Sources.of_checkout(root)),
        reports=shown,
        columns=columns,
        deviations=deviations.read_all(root, columns),
        releases=releases.read_all(root, columns, evidence.tests),
        earlier=changes.read_earlier(root),
        faults=table,
    )
