"""Compares two reports: finds what is newly broken, no longer judged or newly held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from sharedtensor_conformance.report.known import Known
from sharedtensor_conformance.report.needs import needs_of, not_here
from sharedtensor_conformance.report.records import Case, Report, Subject, by_clause
from sharedtensor_conformance.report.verdicts import Verdict, of_clause

Words = Callable[[Sequence[Case]], str]
"""What says in words what became of a clause or a case."""


KINDS = ("newly_broken", "newly_held", "no_longer_judged")
"""The kinds of changes, in the order in which they are shown."""

OF_CLAUSES = {
    Verdict.PASS: "held",
    Verdict.UNSUPPORTED: "not claimed",
    Verdict.NOT_RUN: "not run",
}
"""The words for a clause with a verdict; each other one is that of a broken clause."""


@dataclass(frozen=True)
class Change:
    """A clause or case whose verdict changed; one that is not in a report was not run.

    Args:
        was: what is said of it in A.
        now: the same in B.
    """

    id: str
    before: Verdict
    after: Verdict
    was: str
    now: str

    @property
    def newly_broken(self) -> bool:
        """Whether it is broken now and was not before."""
        return self.after.broken and not self.before.broken

    @property
    def newly_held(self) -> bool:
        """Whether it holds now, and was broken or not judged before."""
        return self.after is Verdict.PASS

    @property
    def no_longer_judged(self) -> bool:
        """Whether it was judged before and is not judged now."""
        return self.before.judged and not (self.after.judged or self.after.broken)

    def __str__(self) -> str:
        return f"{self.id}: {self.was or 'not in A'}, now {self.now or 'not in B'}"


@dataclass(frozen=True)
class Comparison:
    """The changes from one report to another."""

    clauses: tuple[Change, ...]
    cases: tuple[Change, ...]

    @property
    def newly_broken(self) -> bool:
        """Whether any clause or any case is newly broken."""
        return any(change.newly_broken for change in (*self.clauses, *self.cases))

    def render(self, *, cases: bool = False) -> str:
        """Return the changes as text: all numbers first, then clauses before cases.

        Cases that are not newly broken are listed only if `cases` asks for them.
        """
        numbers = [self._numbers("clauses", self.clauses)]
        numbers += [self._numbers("cases", self.cases)]
        if not cases and any(not change.newly_broken for change in self.cases):
            numbers[1] += " (--cases lists them)"
        blocks = ["\n".join(numbers)]
        for what, changes in (("clauses", self.clauses), ("cases", self.cases)):
            for kind in KINDS:
                chosen = [str(change) for change in changes if getattr(change, kind)]
                listed = cases or what == "clauses" or kind == "newly_broken"
                if chosen and listed:
                    head = f"{what} {kind.replace('_', ' ')} ({len(chosen)})"
                    blocks.append("\n  ".join([head, *chosen]))
        return "\n\n".join(blocks)

    @staticmethod
    def _numbers(what: str, changes: Sequence[Change]) -> str:
        counts = {k: sum(getattr(change, k) for change in changes) for k in KINDS}
        said = (f"{count} {k.replace('_', ' ')}" for k, count in counts.items())
        return f"{what}: {', '.join(said)}"


def differences(before: Subject, after: Subject) -> list[str]:
    """Return how what is declared in the two reports differs, in a few words each."""
    said = []
    for field in fields(Subject):
        one, other = (getattr(subject, field.name) for subject in (before, after))
        if isinstance(one, str):
            said += [f"{field.name} {one}, now {other}"] if one != other else []
            continue
        name = field.name.replace("_", " ")
        for what, more in (("without", {*one} - {*other}), ("with", {*other} - {*one})):
            said += [f"{name} {what} {', '.join(sorted(more))}"] if more else []
    return said


def compare(before: Report, after: Report) -> Comparison:
    """Return the changes of clauses and cases from `before` to `after`."""
    was, now = (_words(Known(report.run)) for report in (before, after))
    return Comparison(
        _changes(by_clause(before.cases), by_clause(after.cases), was, now),
        _changes(_by_id(before.cases), _by_id(after.cases), _word, _word),
    )


def _changes(
    before: Mapping[str, Sequence[Case]],
    after: Mapping[str, Sequence[Case]],
    was: Words,
    now: Words,
) -> tuple[Change, ...]:
    ids = sorted({*before, *after})
    pairs = ((id, before.get(id, ()), after.get(id, ())) for id in ids)
    changes = (
        Change(id, _verdict(one), _verdict(other), was(one), now(other))
        for id, one, other in pairs
    )
    return tuple(change for change in changes if _differs(change))


def _word(cases: Sequence[Case]) -> str:
    """Return the verdict of the only one of `cases`; nothing if there is none."""
    if needs := needs_of(cases):
        return not_here(needs)
    return str(_verdict(cases)) if cases else ""


def _words(known: Known) -> Words:
    """Return what says of the cases of a clause whether it holds or is broken."""

    def words(cases: Sequence[Case]) -> str:
        if not cases or needs_of(cases):
            return _word(cases)
        said = OF_CLAUSES.get(_verdict(cases))
        return said or f"broken ({known.said_of(cases)})"

    return words


def _differs(change: Change) -> bool:
    """Return whether the verdict changed; a case that follows was not run."""
    both = (change.before, change.after)
    return change.before != change.after and Verdict.FOLLOWS not in both


def _by_id(cases: Iterable[Case]) -> dict[str, list[Case]]:
    return {case.id: [case] for case in cases}


def _verdict(cases: Sequence[Case]) -> Verdict:
    return of_clause(case.verdict for case in cases)
