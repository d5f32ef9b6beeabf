"""Finds what is known of a deviation: since when, a program that shows it, a thread.

A report has the cause of each deviation that was expected. The file of expectations
that the run used has the rest, and is part of the repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sharedtensor_conformance.report.expectations import (
    REPRODUCERS,
    Expectation,
    Expectations,
    ExpectationsError,
    load_expectations,
)
from sharedtensor_conformance.report.records import Case, Run
from sphinx.errors import ExtensionError

HELD_THIS_TIME = "held this time"
"""What is said of a clause that held though a deviation from it is known."""

FOLDER = Path("conformance", "sharedtensor_conformance", "expectations")
CAUSES = FOLDER / REPRODUCERS


@dataclass(frozen=True)
class Deviation:
    """What is known of a broken case; empty where nothing is.

    Args:
        since: the date from which it is known, such as ``2026-11-21``.
        program: the file that shows it without the suite, from the root.
        thread: the address where its project discusses it.
    """

    cause: str
    since: str = ""
    program: str = ""
    thread: str = ""


def expectations_of(root: Path, run: Run) -> Expectations:
    """Return the file that `run` used, as it is now; empty where there is none.

    Raises:
        ExtensionError: the file is malformed.
    """
    file = root / FOLDER / (run.selection.expectations or "")
    try:
        return load_expectations(file if file.is_file() else None)
    except ExpectationsError as error:
        raise ExtensionError(str(error)) from error


class Deviations:
    """The known deviations of the implementation that one run judged.

    Raises:
        ExtensionError: the file of expectations that the run used is malformed.
    """

    def __init__(self, root: Path, run: Run) -> None:
        self._expectations = expectations_of(root, run)

    def by_chance(self, version: str) -> Iterator[tuple[str, Deviation]]:
        """Yield the clauses that `version` breaks though not in each run, and why.

        What an expectation that names a test is about, a case decides.
        """
        for entry in self._expectations.applying_to(version):
            if entry.intermittent and entry.clause:
                yield entry.clause, _deviation(entry)

    def of(self, case: Case) -> Deviation | None:
        """Return what is known of `case`; None where nobody expected it."""
        if not case.cause:
            return None
        for entry in self._expectations.entries:
            if entry.cause == case.cause and entry.concerns(case):
                return _deviation(entry)
        return Deviation(case.cause)


def _deviation(entry: Expectation) -> Deviation:
    program = (CAUSES / entry.reproducer).as_posix() if entry.reproducer else ""
    return Deviation(entry.cause, entry.date.isoformat(), program, entry.link)
