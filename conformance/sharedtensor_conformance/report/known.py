"""Finds what is known of a broken clause, and what it breaks.

A deviation that is known has an entry in a file of expectations. The entry names a
program, and the file of causes says which promise of the library's own documentation
the program breaks, or why none. So a clause that breaks what the library promises is
told apart from one that only this specification asks for. What no program explains,
for example a new failure, is simply broken.

All views of a report and the site count by `Known.breaches`, so their numbers agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from sharedtensor_conformance.report.causes import CausesError, load_causes
from sharedtensor_conformance.report.expectations import (
    FOLDER,
    REPRODUCERS,
    Expectation,
    Expectations,
    ExpectationsError,
    load_expectations,
)
from sharedtensor_conformance.report.records import Case, ReportError, Run, Summary
from sharedtensor_conformance.report.verdicts import Verdict


class Breach(StrEnum):
    """What a broken clause breaks, the gravest first."""

    DOCUMENTATION = "breaks its own documentation"
    UNEXPLAINED = "broken"
    SPECIFICATION = "differs from this specification"


def in_number(count: int, words: str) -> str:
    """Return how many clauses do what `words` say: ``1 breaks``, ``2 break``."""
    if count != 1:
        for verb in ("break", "differ"):
            words = words.replace(f"{verb}s ", f"{verb} ")
    return f"{count} {words}"


def worst(breaches: Iterable[Breach]) -> Breach:
    """Return the gravest breach; one that nothing explains if there are none."""
    return min(breaches, key=list(Breach).index, default=Breach.UNEXPLAINED)


class Known:
    """The known deviations of the implementation that a run judged.

    Args:
        run: the run, which names its file of expectations.
        folder: the folder of that file.

    Raises:
        ReportError: the file, or a file of causes beside it, is malformed.
    """

    def __init__(self, run: Run, folder: Path = FOLDER) -> None:
        self.version = run.implementation.version
        self.expectations = expectations_of(run, folder)
        has_entries = bool(self.expectations.entries)
        self._programs = breaches_of_programs(folder) if has_entries else {}

    def entry(self, case: Case) -> Expectation | None:
        """Return the entry that a broken case was expected by, as it is now.

        The cause may have been worded in another way since the report was made.
        """
        if not case.cause:
            return None
        for entry in self.expectations.entries:
            if entry.cause == case.cause and entry.concerns(case):
                return entry
        return self.expectations.covers(case, self.version)

    def breach(self, entry: Expectation | None) -> Breach:
        """Return what the deviation of an entry breaks."""
        program = entry.reproducer if entry else ""
        return self._programs.get(program, Breach.UNEXPLAINED)

    def said_of(self, cases: Iterable[Case]) -> str:
        """Return whether broken cases are new or known, and what they break."""
        broken = [case for case in cases if case.verdict.broken]
        if not all(case.expected for case in broken):
            return "new"
        breach = worst(self.breach(self.entry(case)) for case in broken)
        return "known" if breach is Breach.UNEXPLAINED else f"known, {breach}"

    def by_chance(self) -> Iterator[Expectation]:
        """Yield the entries about a clause whose deviation does not show in each run.

        What an entry that names a test is about, a case decides.
        """
        for entry in self.expectations.applying_to(self.version):
            if entry.intermittent and entry.clause:
                yield entry

    def not_shown(
        self, cases: Sequence[Case], summary: Summary
    ) -> Iterator[tuple[str, Expectation]]:
        """Yield the clauses that held though a deviation is known, and its entry."""
        for entry in self.by_chance():
            result = summary.clauses.get(entry.clause)
            held = result is not None and result.verdict is Verdict.PASS
            if held and any(map(entry.concerns, cases)):
                yield entry.clause, entry

    def breaches(self, cases: Sequence[Case], summary: Summary) -> dict[str, Breach]:
        """Return what each clause breaks that is broken, or that held by chance."""
        found: dict[str, list[Breach]] = {}
        for case in cases:
            if case.verdict.broken:
                breach = self.breach(self.entry(case))
                for id in case.clauses:
                    found.setdefault(id, []).append(breach)
        for id, entry in self.not_shown(cases, summary):
            found.setdefault(id, []).append(self.breach(entry))
        return {id: worst(breaches) for id, breaches in found.items()}


def expectations_of(run: Run, folder: Path = FOLDER) -> Expectations:
    """Return the file in `folder` that `run` used, as it is now; empty without one.

    Raises:
        ReportError: the file is malformed.
    """
    file = folder / (run.selection.expectations or "")
    try:
        return load_expectations(file if file.is_file() else None)
    except ExpectationsError as error:
        raise ReportError(str(error)) from error


def breaches_of_programs(folder: Path) -> Mapping[str, Breach]:
    """Return what each program breaks that a file of causes explains.

    Raises:
        ReportError: a file of causes is malformed.
    """
    found = {}
    for file in sorted((folder / REPRODUCERS).glob("*.toml")):
        try:
            causes = load_causes(file)
        except CausesError as error:
            raise ReportError(str(error)) from error
        on_devices = {f"device/{name}": one for name, one in causes.device.items()}
        for name, cause in (causes.causes | on_devices).items():
            breach = Breach.DOCUMENTATION if cause.promises else Breach.SPECIFICATION
            found[f"{file.stem}/{name}.py"] = breach
    return found
