"""Updates a file of expectations from the report of a run.

An entry whose deviation is gone is removed, or narrowed to the axis values for which it
still occurs. A new deviation gets an entry with an empty cause. The file cannot be
loaded until somebody has written the cause. Only entries that the run covered change;
the rest of the text stays exactly as it was, with comments, causes, order and
formatting.

A full run of a release that is newer than the newest ``judged`` one adopts it: the file
names it as judged. What earlier releases did is kept, so an entry whose deviation is
gone ends with the new release, and one that is narrowed is written once more for it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import tomlkit
from packaging.version import InvalidVersion, Version
from tomlkit.items import AoT, Comment, Whitespace

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.expectations import (
    ALL_PASS,
    NO_CASE,
    UNJUDGED,
    Expectation,
    Expectations,
)
from sharedtensor_conformance.report.groups import Group, basic_first, groups_of
from sharedtensor_conformance.report.records import Case, Report, Run
from sharedtensor_conformance.report.signatures import NOT_WAITED
from sharedtensor_conformance.report.verdicts import Verdict
from sharedtensor_conformance.sanitize import printable

DEVIATIONS = frozenset({Verdict.FAIL, Verdict.CRASH, Verdict.HANG})
"""The verdicts that get an entry; a blocked case has shown no deviation of its own."""

WIDTH = 88
CUT = " ..."
"""The end of a comment that was too long."""

_RESTRICTED = {"--strategy": "strategy", "--start-method": "start_method"}


class UpdateError(Exception):
    """The report cannot update the file; the message is one sentence."""


@dataclass(frozen=True)
class Update:
    """The new text of a file, and a sentence for each change."""

    text: str
    removed: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


def update(
    text: str, expectations: Expectations, report: Report, clauses: Mapping[str, Clause]
) -> Update:
    """Return the update of the file `text`, which has the `expectations`.

    Raises:
        UpdateError: the report cannot show which deviations are gone, because it is cut
            short, of another text of the spec, of one shard or of single cases; or the
            file cannot be edited.
    """
    _require_whole(report, clauses)
    coverage = Coverage.of(report.run, clauses)
    version = report.run.implementation.version
    since = _newly_judged(report, expectations, coverage)
    file, kept = _File(text), []
    removed, narrowed = [], []
    for entry in expectations.entries:
        revision = _revised(entry, report.cases, version, coverage)
        said = f"entry {entry.number} ({entry.subject}) {revision.reason}"
        if revision.entry is None:
            file.end(entry, since) if since else file.remove(entry.number)
            removed.append(said)
            continue
        kept.append(revision.entry)
        if revision.entry is not entry:
            file.narrow(revision.entry, since)
            narrowed.append(said)
    if since:
        file.set_judged(since)
    known = replace(expectations, entries=tuple(kept))
    found = list(_deviations(report, known, clauses))
    for deviation in found:
        file.add(deviation.as_toml())
    added = [f"{one.entry.subject}: {one.summary}" for one in found]
    return Update(file.text(), tuple(removed), tuple(narrowed), tuple(added))


def _newly_judged(report: Report, known: Expectations, coverage: Coverage) -> str:
    """Return the release of a report if it is newer than each judged one, else "".

    Raises:
        UpdateError: it is, and the run was not of the whole suite.
    """
    version = report.run.implementation.version
    if not known.carried_over_to(version):
        return ""
    if not coverage.full:
        raise UpdateError(
            f"{report.source} is of a part of the suite, and of {version}, which is "
            f"newer than {known.judged}: run the whole suite to record a release"
        )
    return Version(version).base_version


def _require_whole(report: Report, clauses: Mapping[str, Clause]) -> None:
    selection = report.run.selection
    if not report.complete:
        raise UpdateError(
            f"the run of {report.source} was cut short: missing cases may still "
            f"deviate; run the suite to its end"
        )
    if selection.shard:
        raise UpdateError(
            f"{report.source} is shard {selection.shard} of a run: merge all shards "
            f"(shared-tensor-spec merge), and update from the merged report"
        )
    if selection.left_out:
        raise UpdateError(
            f"{report.source} lacks {selection.left_out} of the selected cases, so it "
            f"cannot show that a deviation is gone: run the suite again without "
            f"{', '.join(selection.left_out_by) or 'plugins that select cases'}"
        )
    if any(case.verdict is Verdict.FOLLOWS for case in report.cases):
        raise UpdateError(
            f"{report.source} has cases that were not run because they follow from "
            f"known deviations: run the suite again with --all-cases"
        )
    if any(case.evidence.startswith(NOT_WAITED) for case in report.cases):
        raise UpdateError(
            f"{report.source} has cases that were not judged to save time, since many "
            f"others hung: run the suite again with --all-cases"
        )
    for id in report.run.spec.other_than(clauses):
        raise UpdateError(
            f"{report.source} was made with another text of {id} than the installed "
            f"spec has: run the suite again"
        )


# What a run covered


@dataclass(frozen=True)
class Coverage:
    """The clauses and configurations that a run covered.

    Args:
        full: whether the run covered everything.
        clauses: the clauses whose tests were all selected.
        axes: the selected values of each restricted axis.
        known: all values of these axes that the implementation declares.
    """

    full: bool
    clauses: frozenset[str]
    axes: Mapping[str, frozenset[str]]
    known: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, run: Run, clauses: Mapping[str, Clause]) -> Coverage:
        """Return the coverage of `run`.

        Raises:
            UpdateError: the run selected single cases, or the report does not say.
        """
        given: dict[str, set[str]] = {}
        for option in run.selection.options:
            name, _, value = option.partition("=")
            given.setdefault(name, set()).add(value)
        chosen = {"--clause", "--profile", *_RESTRICTED} & set(given)
        single = {"--case", "--one-per-clause"} & set(given)
        if single or not (run.selection.full or chosen):
            raise UpdateError(
                "the report is of single cases (--case, --one-per-clause), so it "
                "cannot show that a deviation is gone: run whole clauses (--clause)"
            )
        ids, profiles = given.get("--clause"), given.get("--profile")
        subject = run.implementation
        return cls(
            full=run.selection.full,
            clauses=frozenset(
                id
                for id, clause in clauses.items()
                if (not ids or id in ids)
                and (not profiles or clause.profile in profiles)
            ),
            axes={
                axis: frozenset(given[option])
                for option, axis in _RESTRICTED.items()
                if option in given
            },
            known={
                "strategy": frozenset(subject.strategies),
                "start_method": frozenset(subject.start_methods),
            },
        )

    def names(self, entry: Expectation) -> bool:
        """Return whether the tests of an entry's clause were selected.

        For an entry about a test, `_revised` looks for cases of the test instead.
        """
        return not entry.clause or entry.clause in self.clauses

    def rest(self, entry: Expectation) -> dict[str, frozenset[str]]:
        """Return the values of an entry on restricted axes that were not covered."""
        rest = {
            axis: entry.axes.get(axis, self.known[axis]) - taken
            for axis, taken in self.axes.items()
        }
        return {axis: values for axis, values in rest.items() if values}


# What has gone


@dataclass(frozen=True)
class Revision:
    """The new form of an entry, or None if it is removed, and the reason."""

    entry: Expectation | None
    reason: str = ""


def _revised(
    entry: Expectation, cases: Sequence[Case], version: str, coverage: Coverage
) -> Revision:
    same = Revision(entry)
    if not (entry.applies_to(version) and coverage.names(entry)):
        return same
    contradiction = entry.contradiction(cases)
    if contradiction == NO_CASE:
        gone = coverage.full and not entry.is_long and entry.occurs(cases)
        return Revision(None, NO_CASE) if gone else same
    if contradiction == ALL_PASS:
        return _without_what_was_covered(entry, coverage.rest(entry))
    concerned = [case for case in cases if entry.concerns(case)]
    judged = [case for case in concerned if case.verdict not in UNJUDGED]
    told = all(case.verdict in DEVIATIONS | {Verdict.PASS} for case in judged)
    if entry.intermittent or not judged or not told:
        return same
    return _narrowed(entry, judged, coverage.rest(entry))


def _without_what_was_covered(
    entry: Expectation, rest: Mapping[str, frozenset[str]]
) -> Revision:
    """Return what remains of an entry whose cases all passed where they ran."""
    if not rest:
        return Revision(None, ALL_PASS)
    if len(rest) > 1:  # what remains is not a product of values
        return Revision(entry)
    ((axis, values),) = rest.items()
    left = replace(entry, axes={**entry.axes, axis: values})
    return Revision(left, f"applies only to {axis} {_listed(values)}: the others pass")


def _narrowed(
    entry: Expectation, judged: Sequence[Case], rest: Mapping[str, frozenset[str]]
) -> Revision:
    """Return an entry without the axis values for which its cases pass.

    Its outcomes stay, because the outcome of a deviation may vary by chance.
    """
    axes, reasons = dict(entry.axes), []
    for axis, values in entry.axes.items():
        passing = {value for value in values if _all_pass(judged, axis, value)}
        if passing and not set(rest) - {axis}:
            axes[axis] = values - passing
            reasons.append(f"no longer occurs for {axis} {_listed(passing)}")
    if not reasons:
        return Revision(entry)
    return Revision(replace(entry, axes=axes), ", ".join(reasons))


def _all_pass(judged: Iterable[Case], axis: str, value: str) -> bool:
    seen = {case.verdict for case in judged if case.axes.get(axis) == value}
    return seen == {Verdict.PASS}


def _listed(values: Iterable[str]) -> str:
    return " and ".join(sorted(map(str, values)))


# What is new


@dataclass(frozen=True)
class Deviation:
    """A new entry, without a cause, for broken cases that no entry expects."""

    entry: Expectation
    cases: tuple[Case, ...]
    version: str

    @property
    def summary(self) -> str:
        """The number of cases, their outcomes and their axis values."""
        ends = _listed(self.entry.outcomes)
        where = [f"{axis} {_listed(v)}" for axis, v in self.entry.axes.items()]
        count = f"{len(self.cases)} case{'s' * (len(self.cases) != 1)}"
        return f"{count} ended in {ends}" + (f", {', '.join(where)}" if where else "")

    def as_toml(self) -> str:
        """Return the entry as TOML, below comments with a case and its evidence."""
        first = self.cases[0]
        said = printable(first.evidence).strip().splitlines()
        about = [f"{self.summary}, for example", first.id, *said[:1]]
        table = tomlkit.table()
        table["clause" if self.entry.clause else "test"] = self.entry.subject
        table["outcomes"] = sorted(map(str, self.entry.outcomes))
        if self.version:
            table["version"] = self.version
        if self.entry.leaks:
            table["leaks"] = list(self.entry.leaks)
        if self.entry.axes:
            table["axes"] = tomlkit.inline_table()
            for axis, values in self.entry.axes.items():
                table["axes"][axis] = sorted(values) if len(values) > 1 else min(values)
        table["cause"] = ""
        table["date"] = self.entry.date
        comments = [f"# {_cut(line.strip(), WIDTH - 2)}\n" for line in about]
        return f"{''.join(comments)}[[expect]]\n{table.as_string()}"


def _cut(line: str, width: int) -> str:
    """Return a line, cut between two words if it is longer than `width`.

    The first word stays whole: the id of a case is of no use without its end.
    """
    if len(line) <= width:
        return line
    kept = line[: width - len(CUT) + 1].rpartition(" ")[0].rstrip()
    first = line.partition(" ")[0]
    return line if first == line else f"{kept or first}{CUT}"


def _deviations(
    report: Report, known: Expectations, clauses: Mapping[str, Clause]
) -> Iterator[Deviation]:
    """Yield an entry for each clause, or else test, that is broken unexpectedly.

    The clauses are those that reports name first, so that the file and a report tell of
    one deviation by one clause.
    """
    assert report.summary  # the run was complete
    groups = groups_of(report.cases, report.summary, clauses)
    group_of = {case.id: group for group in groups for case in group.cases}
    version = report.run.implementation.version
    left = [
        case
        for case in report.cases
        if case.verdict in DEVIATIONS and not known.covers(case, version)
    ]
    date = datetime.date.fromisoformat(report.run.started[:10])
    while left:
        first = _telling(left, group_of[left[0].id])
        ids = basic_first(first.clauses, report.summary.clauses)
        entry = _entry_for(first, ids, left, report.cases, date)
        taken = tuple(case for case in left if entry.concerns(case))
        yield Deviation(entry, taken, _specifier(version, known))
        left = [case for case in left if not entry.concerns(case)]


def _telling(broken: Sequence[Case], group: Group) -> Case:
    """Return the first of the broken cases that breaks the first clause of a group.

    If no case does any more, return the first case.
    """
    members = {case.id for case in group.cases if group.first in case.clauses}
    return next((case for case in broken if case.id in members), broken[0])


def _entry_for(
    first: Case,
    clauses: Sequence[str],
    broken: Sequence[Case],
    cases: Sequence[Case],
    date: datetime.date,
) -> Expectation:
    """Return an entry for one of the broken cases, and others like it.

    The entry is for the first of the clauses of which no case passes there, else for
    the test.
    """

    def holds(entry: Expectation) -> bool:
        passed = (case for case in cases if case.verdict is Verdict.PASS)
        return any(map(entry.concerns, passed))

    empty = Expectation(0, frozenset(), cause="", date=date)
    for clause in clauses:
        entry = _fitted(replace(empty, clause=clause), broken, cases)
        if entry.concerns(first) and not holds(entry):
            return entry
    return _fitted(replace(empty, test=first.test), broken, cases)


def _fitted(
    entry: Expectation, broken: Iterable[Case], cases: Iterable[Case]
) -> Expectation:
    """Return the entry with the outcomes and axis values of the broken cases."""
    broken = list(filter(entry.concerns, broken))
    judged = [c for c in cases if entry.concerns(c) and c.verdict not in UNJUDGED]
    axes = {}
    for axis in broken[0].axes:
        values, everywhere = (
            frozenset(case.axes.get(axis, "") for case in some)
            for some in (broken, judged)
        )
        if values != everywhere and "" not in values:
            axes[axis] = values
    outcomes = frozenset(case.verdict for case in broken)
    left = tuple(sorted({kind for case in broken for kind in case.left}))
    return replace(entry, outcomes=outcomes, axes=axes, leaks=left or None)


def _specifier(version: str, known: Expectations) -> str:
    """Return the releases of a new entry: from the one that shows the deviation on.

    Of an earlier release than the newest judged one, only those with the same major and
    minor version, since later ones were judged and did not show it.
    """
    try:
        given = Version(version)
    except InvalidVersion:
        return ""
    major, minor = (*given.release, 0)[:2]
    first = f">={major}.{minor}"
    is_earlier = known.judged and given.release < Version(known.judged).release
    return f"{first},<{major}.{minor + 1}" if is_earlier else first


# The file


class _File:
    """A file whose entries can be changed; the rest of its text stays as it is.

    The comments directly above the header of an entry belong to it. In tomlkit, they
    are the end of what comes before. Other comments there, and blank lines, stay if the
    entry is removed.
    """

    def __init__(self, text: str) -> None:
        self.document = tomlkit.parse(text)
        found: Any = self.document.get("expect", tomlkit.aot())
        if not isinstance(found, AoT):
            raise UpdateError(
                "the entries are in a list: write each header on its own line, "
                "[[expect]]"
            )
        self.entries = found
        self.tables = list(found)
        self.added = ""

    def remove(self, number: int) -> None:
        """Remove an entry with its comments."""
        table = self.tables[number - 1]
        place = self._place(table)
        above, end = self._above(place)
        begin = _end_of(above, end, lambda item: isinstance(item, Comment))
        begin = _end_of(above, begin, lambda item: isinstance(item, Whitespace))
        kept = _cut_end(table)
        while not begin and kept and isinstance(kept[0][1], Whitespace):
            kept.pop(0)  # the file does not begin with blank lines
        above[begin:end] = kept
        del self.entries[place]

    def end(self, entry: Expectation, release: str) -> None:
        """Let an entry apply only to releases before `release`."""
        versions = ",".join([*_lower_bounds(entry), f"<{release}"])
        _edit(self.tables[entry.number - 1], {}, versions)

    def set_judged(self, release: str) -> None:
        """Name the newest judged release."""
        self.document["judged"] = release

    def narrow(self, entry: Expectation, since: str = "") -> None:
        """Remove the axis values that an entry no longer has, where given, since then.

        For earlier releases the entry stays above the narrowed one.
        """
        table = self.tables[entry.number - 1]
        if since:
            earlier = deepcopy(table)
            _cut_end(earlier)
            earlier.value.body.append((None, Whitespace("\n")))
            self.entries.insert(self._place(table), earlier)
            self.tables[entry.number - 1] = earlier
            self.end(entry, since)
        _edit(table, entry.axes, f">={since}" if since else "")

    def add(self, entry: str) -> None:
        """Append an entry, below a blank line."""
        before = self.text()
        if before and not before.endswith("\n\n"):
            entry = f"\n{entry}" if before.endswith("\n") else f"\n\n{entry}"
        self.added += entry

    def text(self) -> str:
        """Return the whole text."""
        if not self.entries:  # tomlkit would write an empty list
            body = self.document.body
            body[:] = [item for item in body if item[1] is not self.entries]
        return self.document.as_string() + self.added

    def _place(self, table: Any) -> int:
        return next(n for n, one in enumerate(self.entries) if one is table)

    def _above(self, place: int) -> tuple[list[Any], int]:
        """Return the items that come before an entry, and where they end."""
        if place:
            items = self.entries[place - 1].value.body
            return items, len(items)
        items = self.document.body
        return items, next(n for n, item in enumerate(items) if item[1] is self.entries)


def _lower_bounds(entry: Expectation) -> list[str]:
    return sorted(
        str(one) for one in entry.versions if not one.operator.startswith("<")
    )


def _end_of(items: Sequence[Any], end: int, belongs: Callable[[Any], bool]) -> int:
    """Return where the items directly before `end` begin that belong to it."""
    while end and belongs(items[end - 1][1]):
        end -= 1
    return end


def _cut_end(table: Any) -> list[Any]:
    """Take the blank lines and comments below an entry from it, and return them."""
    items: list[Any] = table.value.body
    end = _end_of(items, len(items), lambda one: isinstance(one, Comment | Whitespace))
    cut = items[end:]
    del items[end:]
    return cut


def _edit(table: Any, axes: Mapping[str, frozenset[str]], version: str) -> None:
    """Give an entry other values of axes, and other versions if `version` is given."""
    below = _cut_end(table)
    for axis, values in axes.items():
        kept = table.setdefault("axes", tomlkit.inline_table())
        if axis not in kept:
            kept[axis] = sorted(values)
        elif isinstance(kept[axis], list):
            _keep(kept[axis], values)
    if version:
        table["version"] = version
    table.value.body.extend(below)


def _keep(items: Any, wanted: Set[str]) -> None:
    for item in list(items):
        if item not in wanted:
            items.remove(item)
