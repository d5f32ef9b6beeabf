"""Reads expectations: the known deviations of an implementation, each with a cause.

They are in ``expectations/<implementation>.toml``. An expectation never changes a
verdict: a case that fails as expected has failed. But an expected failure does not
decide the exit status. In a run of the full selection, an entry that matches no case or
whose cases all pass is stale, and fails the run. So an outdated file is noticed.

An entry can copy entries ``from`` another file in the same folder, with their causes
and programs.

A file names the newest release that a whole run has ``judged``. What is known of it is
carried over to newer releases: entries whose range of versions has no end apply to
them, and what no longer breaks does not fail the run.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from sharedtensor_conformance.adapter import LONG_PROFILES
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.expectations.programs import has_program
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

UNJUDGED = frozenset({Verdict.UNSUPPORTED, Verdict.NOT_RUN})
"""The verdicts of cases that show nothing of an entry."""

NO_CASE = "matches no case"
ALL_PASS = "expects a deviation, but all its cases pass"
REMEDIES = {NO_CASE: "correct it, or remove it", ALL_PASS: "remove it"}
"""What to do with an entry that is not true, by what is wrong with it."""

OUTCOMES = frozenset({Verdict.FAIL, Verdict.CRASH, Verdict.HANG, Verdict.BLOCKED})
"""The verdicts that can be expected; ``error`` is a fault of the suite or adapter."""

LEDGER = frozenset({"LIFE-7", "LIFE-12"})
"""The clauses that judge all leaks; for them, each kind of leak has to be listed."""

FOLDER = Path(str(files("sharedtensor_conformance.expectations")))
"""The folder of the files that the suite has."""

REPRODUCERS = "causes"
"""The folder with the reproducers, in the folder of the expectations."""

_KEYS = (
    "clause",
    "test",
    "from",
    "outcomes",
    "when",
    "version",
    "axes",
    "leaks",
    "cause",
    "reproducer",
    "link",
    "date",
    "intermittent",
)
_CLAUSE = re.compile(r"[A-Z]+-\d+")
_TEST = re.compile(r"[^:\[\]]+\.py::[^:\[\]]+")


class ExpectationsError(Exception):
    """A file of expectations is malformed; the message names file, entry and key."""


class _Malformed(Exception):
    """One key of one entry is malformed: the key, and what is wrong with it."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")


@dataclass(frozen=True)
class Expectation:
    """One known deviation.

    Args:
        number: its position in the file, from 1.
        applies: whether its condition ``when`` is true on this machine.
        versions: the versions of the implementation that it is about.
        leaks: patterns of expected leaks, for example ``descriptor /dev/shm/*``. None
            means that every leak is expected, except in cases of the clauses that judge
            all leaks.
    """

    number: int
    outcomes: frozenset[Verdict]
    cause: str
    date: datetime.date
    clause: str = ""
    test: str = ""
    axes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    reproducer: str = ""
    link: str = ""
    intermittent: bool = False
    applies: bool = True
    versions: SpecifierSet = field(default_factory=SpecifierSet)
    leaks: tuple[str, ...] | None = None

    def expects(self, case: Case) -> bool:
        """Return whether it expects the verdict of `case`, which it has to concern."""
        if case.verdict not in self.outcomes:
            return False
        named = self.leaks is not None or not LEDGER.intersection(case.clauses)
        return not case.left or (named and all(map(self.expects_left, case.left)))

    def expects_left(self, kind: str) -> bool:
        """Return whether it expects leaks of this kind."""
        patterns = ("*",) if self.leaks is None else self.leaks
        return any(fnmatchcase(kind, pattern) for pattern in patterns)

    @property
    def is_long(self) -> bool:
        """Whether its clause is in a long profile, which runs only on request."""
        clause = load_clauses().get(self.clause)
        return clause is not None and clause.profile in LONG_PROFILES

    @property
    def subject(self) -> str:
        """The clause or the test that it is about."""
        return self.clause or self.test

    def applies_to(self, version: str) -> bool:
        """Return whether it applies on this machine to this `version`.

        A version that cannot be compared matches no specifier.
        """
        if not self.versions:
            return self.applies
        try:
            known = Version(version)
        except InvalidVersion:
            return False
        return self.applies and self.versions.contains(known, prereleases=True)

    def concerns(self, case: Case) -> bool:
        """Return whether it is about `case`, for any verdict."""
        named = self.clause in case.clauses if self.clause else case.test == self.test
        return named and all(
            case.axes.get(axis) in allowed for axis, allowed in self.axes.items()
        )

    def contradiction(self, cases: Iterable[Case]) -> str:
        """Return why `cases` show that it is not true, or "" if they do not."""
        concerned = [case for case in cases if self.concerns(case)]
        if not concerned:
            return NO_CASE
        seen = {case.verdict for case in concerned} - UNJUDGED
        if seen == {Verdict.PASS} and not self.intermittent:
            return ALL_PASS
        return ""

    def occurs(self, cases: Iterable[Case]) -> bool:
        """Return whether some value of each of its axes occurs in `cases`."""
        occurring = {pair for case in cases for pair in case.axes.items()}
        return all(
            any((axis, value) in occurring for value in allowed)
            for axis, allowed in self.axes.items()
        )


@dataclass(frozen=True)
class Expectations:
    """The known deviations of one implementation, in the order of their file.

    Args:
        source: the name of the file.
        entries: the deviations.
        judged: the newest release that a whole run has judged; empty if the file does
            not say.
    """

    source: str = ""
    entries: tuple[Expectation, ...] = ()
    judged: str = ""

    def carried_over_to(self, version: str) -> str:
        """Return the newest judged release if `version` is newer, else "".

        A build of the same release, such as ``2.13.0+cpu``, is not newer.
        """
        if not self.judged:
            return ""
        try:
            is_newer = Version(version).release > Version(self.judged).release
        except InvalidVersion:
            return ""
        return self.judged if is_newer else ""

    def covers(self, case: Case, version: str) -> Expectation | None:
        """Return the first entry that expects the verdict of `case`, if any."""
        for entry in self.entries:
            expected = entry.expects(case) and entry.applies_to(version)
            if expected and entry.concerns(case):
                return entry
        return None

    def applying_to(self, version: str) -> tuple[Expectation, ...]:
        """Return the entries that apply on this machine to this version."""
        return tuple(entry for entry in self.entries if entry.applies_to(version))

    def stale(self, cases: Sequence[Case], version: str) -> list[str]:
        """Return a sentence for each stale entry.

        Call this only after a full selection, because some of the cases are not enough
        to judge an entry. An entry is not stale if its condition or axis values do not
        occur on this machine, if none of its cases was judged, or if it is about a long
        profile that was not requested.
        """
        sentences = []
        for entry in self.applying_to(version):
            was_left_out = entry.is_long and not any(map(entry.concerns, cases))
            problem = entry.contradiction(cases)
            if problem and entry.occurs(cases) and not was_left_out:
                where = f"{self.source}: entry {entry.number} ({entry.subject})"
                sentences.append(f"{where} {problem}: {REMEDIES[problem]}")
        return sentences


def shipped(name: str) -> Path | None:
    """Return the file of this name that the suite has, if there is one."""
    path = FOLDER / name
    return path if path.is_file() else None


def load_expectations(
    path: str | Path | None, machine: Mapping[str, str] | None = None
) -> Expectations:
    """Return the expectations in the file `path`; none if `path` is None.

    The reproducers that a file names are in the folder ``causes`` beside it. `machine`
    has the values of environment markers if they differ from those of this process.

    Raises:
        ExpectationsError: the file cannot be read, or an entry is malformed.
    """
    if path is None:
        return Expectations()
    path = Path(path)
    data = _parsed(path)
    if unknown := sorted(set(data) - {"expect", "judged"}):
        raise ExpectationsError(
            f"{path}: the key {unknown[0]!r} is not known; each entry begins with "
            f"[[expect]]"
        )
    tables = data.get("expect", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ExpectationsError(f"{path}: each entry has to begin with [[expect]]")
    entries, parsed = [], cache(_parsed)
    for number, table in enumerate(tables, 1):
        try:
            for whole in _taken_over(table, path, parsed):
                entries.append(_entry(number, whole, path, machine))
        except _Malformed as problem:
            raise ExpectationsError(f"{path}: entry {number}: {problem}") from problem
    return Expectations(path.name, tuple(entries), _judged(data, path))


def _judged(data: Mapping[str, Any], path: Path) -> str:
    judged = data.get("judged", "")
    try:
        if judged != "":
            Version(judged)
    except (InvalidVersion, TypeError) as error:
        raise ExpectationsError(
            f"{path}: judged: {judged!r} is not a version like '2.13.0'"
        ) from error
    return str(judged)


def _taken_over(
    table: dict[str, Any], path: Path, parsed: Callable[[Path], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the entry, or the entries that it copies ``from`` another file.

    It copies all entries with the same clause or test, and with the same reproducer if
    it names one. Its own keys replace those of the copied entries.
    """
    name = _string(table, "from")
    if not name:
        return [table]
    if name == path.name or not (path.parent / name).is_file():
        raise _Malformed("from", f"there is no other file {name!r} in {path.parent}")
    own = {key: value for key, value in table.items() if key != "from"}
    _subject(own)
    named = {key: own[key] for key in ("clause", "test", "reproducer") if key in own}
    others = parsed(path.parent / name).get("expect", [])
    about = [one for one in others if named.items() <= one.items()]
    if not about:
        raise _Malformed("from", f"{name} has no entry with {named}")
    return [{**one, **own} for one in about]


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ExpectationsError(f"{path} cannot be read: {reason}") from error
    except ValueError as error:
        raise ExpectationsError(f"{path} is not TOML: {error}") from error


def _entry(
    number: int, table: dict[str, Any], path: Path, machine: Mapping[str, str] | None
) -> Expectation:
    for key in table:
        if key not in _KEYS:
            raise _Malformed(key, f"is not known; the keys are {', '.join(_KEYS)}")
    clause, test = _subject(table)
    reproducer = _reproducer(table, path.parent / REPRODUCERS)
    return Expectation(
        number=number,
        clause=clause,
        test=test,
        outcomes=_outcomes(table),
        axes=_axes(table),
        cause=_cause(table),
        reproducer=reproducer,
        link=_link(table),
        date=_date(table),
        intermittent=_intermittent(table, reproducer),
        applies=_marker_holds(table, machine),
        versions=_versions(table),
        leaks=_leaks(table),
    )


def _cause(table: dict[str, Any]) -> str:
    if "cause" not in table:
        raise _Malformed("cause", "is missing")
    if not str(table["cause"]).strip():
        raise _Malformed(
            "cause",
            f"is empty: write why {table.get('clause') or table.get('test')} does not "
            "hold; only a deviation with an explanation can be expected",
        )
    return _string(table, "cause")


def _string(table: dict[str, Any], key: str) -> str:
    if key not in table:
        return ""
    value = table[key]
    if not isinstance(value, str) or not value.strip():
        raise _Malformed(key, f"has to be a non-empty string, not {value!r}")
    return value.strip()


def _subject(table: dict[str, Any]) -> tuple[str, str]:
    clause, test = _string(table, "clause"), _string(table, "test")
    if bool(clause) == bool(test):
        raise _Malformed("clause", "exactly one of 'clause' and 'test' has to be given")
    if clause and not _CLAUSE.fullmatch(clause):
        raise _Malformed("clause", f"{clause!r} is not a clause id like GRAD-2")
    if test and not _TEST.fullmatch(test):
        raise _Malformed("test", f"{test!r} is not a test like test_grad.py::test_name")
    return clause, test


def _outcomes(table: dict[str, Any]) -> frozenset[Verdict]:
    known = [str(verdict) for verdict in Verdict if verdict in OUTCOMES]
    given = table.get("outcomes")
    if not isinstance(given, list) or not given:
        raise _Malformed("outcomes", f"has to be a list of some of {', '.join(known)}")
    for outcome in given:
        if outcome not in known:
            raise _Malformed(
                "outcomes", f"{outcome!r} cannot be expected; {', '.join(known)} can"
            )
    return frozenset(map(Verdict, given))


def _axes(table: dict[str, Any]) -> dict[str, frozenset[str]]:
    axes = table.get("axes", {})
    if not isinstance(axes, dict):
        raise _Malformed("axes", 'has to be a table, for example { strategy = "name" }')
    allowed = {}
    for axis, values in axes.items():
        listed = values if isinstance(values, list) else [values]
        if not listed or not all(isinstance(value, str) for value in listed):
            raise _Malformed("axes", f"{axis} has to be a string or a list of strings")
        allowed[axis] = frozenset(listed)
    return allowed


def _leaks(table: dict[str, Any]) -> tuple[str, ...] | None:
    leaks = table.get("leaks")
    if leaks is None:
        return None
    if not isinstance(leaks, list) or not all(isinstance(one, str) for one in leaks):
        raise _Malformed(
            "leaks", 'has to be a list of patterns like "descriptor /dev/shm/*"'
        )
    return tuple(leaks)


def _reproducer(table: dict[str, Any], folder: Path) -> str:
    name = _string(table, "reproducer")
    inside = (folder / name).resolve().is_relative_to(folder.resolve())
    if name and not (inside and has_program(folder, name)):
        raise _Malformed("reproducer", f"there is no program {name!r} in {folder}")
    return name


def _link(table: dict[str, Any]) -> str:
    link = _string(table, "link")
    if link and not link.startswith(("https://", "http://")):
        raise _Malformed("link", f"{link!r} does not begin with https://")
    return link


def _date(table: dict[str, Any]) -> datetime.date:
    date = table.get("date")
    # A datetime is a date in Python, but its time of day means nothing here.
    if not isinstance(date, datetime.date) or isinstance(date, datetime.datetime):
        raise _Malformed("date", "has to be a date without quotes, like 2026-11-21")
    return date


def _intermittent(table: dict[str, Any], reproducer: str) -> bool:
    flag = table.get("intermittent", False)
    if not isinstance(flag, bool):
        raise _Malformed("intermittent", f"has to be true or false, not {flag!r}")
    if flag and not reproducer:
        raise _Malformed(
            "intermittent", "is allowed only with a reproducer that fails every time"
        )
    return flag


def _marker_holds(table: dict[str, Any], machine: Mapping[str, str] | None) -> bool:
    when = _string(table, "when")
    if not when:
        return True
    try:
        return Marker(when).evaluate(dict(machine or {}))
    except (InvalidMarker, UndefinedEnvironmentName) as error:
        problem = str(error).splitlines()[0]
        raise _Malformed("when", f"{when!r} is not a marker: {problem}") from error


def _versions(table: dict[str, Any]) -> SpecifierSet:
    wanted = _string(table, "version")
    try:
        return SpecifierSet(wanted)
    except InvalidSpecifier as error:
        raise _Malformed("version", f"{wanted!r} is not a version specifier") from error
