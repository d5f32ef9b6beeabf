"""Finds what is known of a deviation: since when, a program that shows it, a thread.

A report has the cause of each deviation that was expected. The file of expectations
that the run used has the rest, and is part of the repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sharedtensor_conformance.report.causes import CausesError
from sharedtensor_conformance.report.expectations import (
    REPRODUCERS,
    Expectation,
    Expectations,
    ExpectationsError,
)
from sharedtensor_conformance.report.known import Breach, Known
from sharedtensor_conformance.report.known import expectations_of as read_expectations
from sharedtensor_conformance.report.records import Case, ReportError, Run, Summary
from sphinx.errors import ExtensionError

FOLDER = Path("conformance", "sharedtensor_conformance", "expectations")
CAUSES = FOLDER / REPRODUCERS


@dataclass(frozen=True)
class Deviation:
    """What is known of a broken case; empty where nothing is.

    Args:
        since: the date from which it is known, such as ``2026-11-21``.
        program: the file that shows it without the suite, from the root.
        thread: the address where its project discusses it.
        strategies: the strategies with which it occurs; empty for all.
        start_methods: the start methods under which it occurs; empty for all.
    """

    cause: str
    since: str = ""
    program: str = ""
    thread: str = ""
    strategies: frozenset[str] = frozenset()
    start_methods: frozenset[str] = frozenset()

    def occurs_with(self, strategy: str, start_method: str) -> bool:
        """Return whether it is known with a strategy under a start method."""
        return (not self.strategies or strategy in self.strategies) and (
            not self.start_methods or start_method in self.start_methods
        )


@contextmanager
def stopping_the_build() -> Iterator[None]:
    """Make an error of a file that the suite reads one that stops the build."""
    try:
        yield
    except (CausesError, ExpectationsError, ReportError) as error:
        raise ExtensionError(str(error)) from error


def expectations_of(root: Path, run: Run) -> Expectations:
    """Return the file that `run` used, as it is now; empty where there is none.

    Raises:
        ExtensionError: the file is malformed.
    """
    with stopping_the_build():
        return read_expectations(run, root / FOLDER)


class Deviations:
    """The known deviations of the implementation that one run judged.

    Raises:
        ExtensionError: the file of expectations that the run used is malformed, or a
            file of causes is.
    """

    def __init__(self, root: Path, run: Run) -> None:
        with stopping_the_build():
            self._known = Known(run, root / FOLDER)

    def not_shown(
        self, cases: Sequence[Case], summary: Summary
    ) -> Iterator[tuple[str, Deviation]]:
        """Yield the clauses that held though a deviation is known, and why."""
        for id, entry in self._known.not_shown(cases, summary):
            yield id, _deviation(entry)

    def breaches(self, cases: Sequence[Case], summary: Summary) -> dict[str, Breach]:
        """Return what each clause breaks that is broken, or that held by chance."""
        return self._known.breaches(cases, summary)

    def of(self, case: Case) -> Deviation | None:
        """Return what is known of `case`; None where nobody expected it."""
        if not case.cause:
            return None
        entry = self._known.entry(case)
        return _deviation(entry) if entry else Deviation(case.cause)


def _deviation(entry: Expectation) -> Deviation:
    program = (CAUSES / entry.reproducer).as_posix() if entry.reproducer else ""
    return Deviation(
        *(entry.cause, entry.date.isoformat(), program, entry.link),
        strategies=entry.axes.get("strategy", frozenset()),
        start_methods=entry.axes.get("start_method", frozenset()),
    )
