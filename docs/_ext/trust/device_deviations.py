"""How PyTorch departs from the clauses on a CUDA device, and what its programs printed.

Its reports on host memory are of another release than a machine with a device has, so
these deviations are not among those of the pages in ``upstream/``. Three files have
them: the record of ``ci/run_causes.py torch --device``, the report of the suite on that
device, and the expectations, which name the program of each cause.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clauses.deviation_pages import clause_links
from clauses.deviations import title_of
from clauses.domain import reference
from clauses.known import FOLDER
from docutils import nodes
from elements import missing, paragraph, read_json, table, with_code
from sharedtensor_conformance.report.expectations import (
    REPRODUCERS,
    ExpectationsError,
    load_expectations,
)
from sharedtensor_conformance.report.records import ReportError, read_report
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

HEAD = ["What deviates", "Clauses", "What the program printed"]
PROGRAMS = FOLDER / REPRODUCERS / "torch" / "device"


class DeviceDeviationsDirective(SphinxDirective):
    """``{device-deviations} RECORD REPORT``: a row for each program."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Render the record; one of another text of a program stops the build."""
        name, report = self.arguments
        record = read_json(self.env, name, "record of programs", verify)
        if record is None:
            return [missing("The programs have not been run on a device yet.")]
        self.env.note_dependency(str(Path(self.env.srcdir, report)))
        broken = clauses_by_program(
            Path(self.env.srcdir, report), self.env.clauses_root
        )
        said = "PyTorch {version}, Python {python}, {kernel}, {date}.".format(**record)
        return [paragraph(said), table(HEAD, self.rows(record["programs"], broken))]

    def rows(
        self, programs: Mapping[str, Any], broken: Mapping[str, list[str]]
    ) -> Iterator[list[object]]:
        """Yield the title with a link to the program, the clauses, and the output."""
        for name, printed in programs.items():
            file = (PROGRAMS / f"{name}.py").as_posix()
            text = recorded_text(self.env.clauses_root / file, printed["sha256"])
            link = reference("source", file, "", self.env.docname)
            link.children = [with_code(title_of(text))]
            links = clause_links(broken.get(file, []), self.env.docname)
            yield [link, links, printed["output"]]


def verify(record: Any) -> None:
    """Look up what is shown of a record."""
    _ = [record[key] for key in ("version", "python", "kernel", "date")]
    _ = [(one["sha256"], one["output"]) for one in record["programs"].values()]


def recorded_text(program: Path, recorded: str) -> str:
    """Return the text of a program.

    Raises:
        ExtensionError: it is not there, or is not the one that was recorded.
    """
    try:
        text = program.read_text(encoding="utf-8")
    except OSError as error:
        raise ExtensionError(f"{program} was recorded and is missing") from error
    if hashlib.sha256(text.encode()).hexdigest() != recorded:
        how = "ci/run_causes.py torch --device --out=docs/reports/causes/..."
        raise ExtensionError(f"{program} has changed since its record; run: {how}")
    return text


def clauses_by_program(report: Path, root: Path) -> dict[str, list[str]]:
    """Return the clauses that failed for the cause of each program, in their order.

    Raises:
        ExtensionError: the report or the expectations cannot be read.
    """
    try:
        judged = read_report(report)
        version = judged.run.implementation.version
        known = load_expectations(root / FOLDER / "torch.toml").applying_to(version)
    except (ReportError, ExpectationsError) as error:
        raise ExtensionError(str(error)) from error
    programs: dict[str, dict[str, None]] = {}
    for entry in known:
        file = (FOLDER / REPRODUCERS / entry.reproducer).as_posix()
        for case in judged.cases:
            about = entry.test == case.test or entry.clause in case.clauses
            if about and case.expected and case.cause == entry.cause:
                programs.setdefault(file, {}).update(dict.fromkeys(case.clauses))
    return {file: list(clauses) for file, clauses in programs.items()}
