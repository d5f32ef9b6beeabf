"""Since which release a clause is broken: recorded runs of one library's releases.

The newest release has a whole report; of the earlier ones the repository keeps the
summaries in ``docs/reports/releases``. A row is a clause that some release breaks. Only
what was recorded is said: where two releases differ, the change lies between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from packaging.version import Version
from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.evidence import Citation
from sharedtensor_conformance.report.expectations import Expectation
from sharedtensor_conformance.report.records import Run
from sharedtensor_conformance.report.summary_file import SummaryFile, read_summary
from sphinx.errors import ExtensionError

from clauses.known import expectations_of, stopping_the_build
from clauses.outcomes import Outcome, outcome_of
from clauses.reports import Column, Judgement, judged

FOLDER = Path("docs", "reports", "releases")
HISTORIES = "test_histories.py"


class State(StrEnum):
    """What one release makes of one clause."""

    HELD = "held"
    BROKEN = "broken"
    INTERMITTENT = "intermittent"
    NOT_JUDGED = "not judged"

    @property
    def decided(self) -> bool:
        """Whether it says that the release breaks the clause, or that it does not."""
        return self is not State.NOT_JUDGED

    @property
    def breaks(self) -> bool:
        """Whether the release breaks the clause; one that held by chance is broken."""
        return self in (State.BROKEN, State.INTERMITTENT)


OF_OUTCOME = {Outcome.HELD: State.HELD, Outcome.BROKEN: State.BROKEN}


@dataclass(frozen=True)
class Release:
    """What a recorded run says of one release.

    Args:
        name: the implementation.
        started: when the run began.
        by_chance: the clauses with a known deviation that does not show in each run.
        known: those of them that are broken for sure: a deviation is about them alone.
        file: where the summary is kept; None where the whole report is.
    """

    name: str
    version: Version
    started: str
    judgements: Mapping[str, Judgement]
    by_chance: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    file: Path | None = None

    @property
    def day(self) -> str:
        """The day of the run."""
        return self.started.partition("T")[0]

    def state(self, clause: str) -> State:
        """Return what became of a clause."""
        judgement = self.judgements.get(clause)
        if judgement is None:
            return State.NOT_JUDGED
        found = OF_OUTCOME.get(outcome_of(judgement.verdict), State.NOT_JUDGED)
        chance = found is State.HELD and clause in self.by_chance
        return State.INTERMITTENT if chance else found

    def judged_another_text(self, clause: Clause) -> bool:
        """Return whether another text of a clause was judged."""
        judgement = self.judgements.get(clause.id)
        return judgement is not None and judgement.is_of_another_text(clause)


def read_all(
    root: Path, columns: Iterable[Column], tests: Sequence[Citation]
) -> dict[str, list[Release]]:
    """Return the recorded releases by the name of the implementation, earliest first.

    Only implementations with summaries of earlier releases have any.

    Raises:
        ExtensionError: a file holds no summary of a whole run that passed.
    """
    found: dict[str, list[Release]] = {}
    for file in sorted((root / FOLDER).glob("*.json")):
        record = _read(file)
        said = judged(record.run, record.summary)
        release = _release(root, record.run, said, tests, file)
        found.setdefault(record.run.implementation.name, []).append(release)
    for column in columns:
        if column.name in found:
            run = column.reports[0].run
            found[column.name].append(_release(root, run, column.judgements, tests))
    for releases in found.values():
        releases.sort(key=lambda release: release.version)
    return found


def _read(file: Path) -> SummaryFile:
    with stopping_the_build():
        record = read_summary(file)
    if not record.run.selection.full or record.summary.exit_status:
        raise ExtensionError(
            f"{file} is not of a full selection that ended with 0: a release is shown "
            f"only when what it breaks is known"
        )
    return record


def _release(
    root: Path,
    run: Run,
    judgements: Mapping[str, Judgement],
    tests: Sequence[Citation],
    file: Path | None = None,
) -> Release:
    version = run.implementation.version
    applying = expectations_of(root, run).applying_to(version)
    return Release(
        run.implementation.name,
        Version(version),
        run.started,
        judgements,
        frozenset(clauses_by_chance(applying, tests)),
        frozenset(one.clause for one in applying if one.intermittent and one.clause),
        file,
    )


def clauses_by_chance(
    entries: Iterable[Expectation], tests: Sequence[Citation]
) -> Iterator[str]:
    """Yield the clauses of the expected deviations that do not show in each run.

    A random history breaks the clause that its last step is about, which is chance too.
    """
    for entry in entries:
        file, _, name = entry.test.partition("::")
        if not (entry.intermittent or file == HISTORIES):
            continue
        if entry.clause:
            yield entry.clause
        for test in tests:
            yield from test.clauses if test.name == name else ()


@dataclass(frozen=True)
class Row:
    """What the releases, earliest first, make of one clause."""

    clause: Clause
    releases: tuple[Release, ...]

    @property
    def states(self) -> list[State]:
        """What became of the clause in each release."""
        return [release.state(self.clause.id) for release in self.releases]

    @property
    def decided(self) -> list[tuple[Version, bool]]:
        """The releases that say something of it, and whether they break it."""
        pairs = zip(self.releases, self.states, strict=True)
        return [(one.version, state.breaks) for one, state in pairs if state.decided]

    @property
    def always(self) -> bool:
        """Whether each release breaks it that says something of it."""
        return all(broken for _, broken in self.decided)

    @property
    def changes(self) -> list[tuple[Version, Version, bool]]:
        """The neighbours between which it changed, and whether it was broken then."""
        return [
            (before, after, broken)
            for (before, was), (after, broken) in pairwise(self.decided)
            if was != broken
        ]

    @property
    def since(self) -> str:
        """Since which release it is broken, and from which one it held again."""
        first, broken_at_first = self.decided[0]
        said = [f"{first.public} or earlier"] if broken_at_first else []
        for before, after, broken in self.changes:
            what = "" if broken else "fixed "
            said.append(f"{what}after {before.public}, by {after.public}")
        return "; ".join(said)


def rows(clauses: Iterable[Clause], releases: Sequence[Release]) -> list[Row]:
    """Return a row for each clause that some release breaks."""
    found = [Row(clause, tuple(releases)) for clause in clauses]
    known = {id for release in releases for id in release.known}
    return [
        row for row in found if State.BROKEN in row.states or row.clause.id in known
    ]


def steps(
    rows: Sequence[Row], releases: Sequence[Release]
) -> Iterator[tuple[Version, Version, str, list[str]]]:
    """Yield what was fixed and what was broken from one release to the next."""
    by = [(after, broken, row) for row in rows for _, after, broken in row.changes]
    for before, after in pairwise(release.version for release in releases):
        for broken, what in ((False, "fixed"), (True, "broken")):
            ids = [row.clause.id for *change, row in by if change == [after, broken]]
            if ids:
                yield before, after, what, ids
