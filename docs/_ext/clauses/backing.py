"""What backs the clauses, read once for the whole build."""

from __future__ import annotations

from pathlib import Path

from sharedtensor_conformance.evidence import Sources, read_evidence
from sharedtensor_conformance.examples import read_examples
from sharedtensor_conformance.terms import PAGE, Terms

from clauses import changes, deviations, faults, releases, reports


class Backing:
    """The evidence in the code, the committed reports, and what is known of both."""

    def __init__(self, root: Path, first: list[str]) -> None:
        """Read what backs the clauses of the repository at `root`.

        Args:
            first: the implementations whose reports are shown before the others.

        Raises:
            ExtensionError: a report, a record or the fault table is not complete.
        """
        sources, terms = Sources.of_checkout(root), root / "spec" / PAGE
        self.root = root
        self.terms = Terms(terms.read_text(encoding="utf-8") if terms.is_file() else "")
        self.evidence = read_evidence(sources)
        self.examples = read_examples(sources)
        self.reports = reports.read_all(root, first)
        self.columns = reports.columns(self.reports)
        self.deviations = deviations.read_all(root, self.columns)
        self.releases = releases.read_all(root, self.columns, self.evidence.tests)
        self.earlier = changes.read_earlier(root)
        self.faults = faults.read(root, self.evidence.tests)
        if self.faults:
            faults.verify_reports(self.faults, self.reports)

    def column(self, name: str) -> reports.Column | None:
        """Return what the reports say of an implementation; None without a report."""
        return next((one for one in self.columns if one.name == name), None)
