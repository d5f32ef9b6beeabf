"""Compares two reports: finds what is newly broken, no longer judged or newly held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from sharedtensor_conformance.report.needs import needs_of, not_here
from sharedtensor_conformance.report.records import Case, Report, Subject
from sharedtensor_conformance.report.verdicts import Need, Verdict, of_clause


@dataclass(frozen=True)
class Change:
    """A clause or case whose verdict changed; None means: not in the report.

    Args:
        needed: why A did not judge it, if the machine did not permit it.
        needs: the same for B.
    """

    id: str
    before: Verdict | None
    after: Verdict | None
    needed: tuple[Need, ...]
    needs: tuple[Need, ...]

    @property
    def newly_broken(self) -> bool:
        """Whether it is broken now and was not before."""
        return _broken(self.after) and not _broken(self.before)

    @property
    def newly_held(self) -> bool:
        """Whether it holds now, and was broken or not judged before."""
        return self.after is Verdict.PASS

    @property
    def no_longer_judged(self) -> bool:
        """Whether it was judged before and is not judged now."""
        return _judged(self.before) and not (_judged(self.after) or _broken(self.after))

    def __str__(self) -> str:
        before = not_here(self.needed) if self.needed else self.before or "not in A"
        after = not_here(self.needs) if self.needs else self.after or "not in B"
        return f"{self.id}: {before}, now {after}"


@dataclass(frozen=True)
class Comparison:
    """The changes from one report to another."""

    clauses: tuple[Change, ...]
    cases: tuple[Change, ...]

    @property
    def newly_broken(self) -> bool:
        """Whether any clause or any case is newly broken."""
        return any(change.newly_broken for change in (*self.clauses, *self.cases))

    def render(self) -> str:
        """Return the changes as text, newly broken ones first."""
        blocks = []
        for kind in ("newly_broken", "no_longer_judged", "newly_held"):
            for what, changes in (("clauses", self.clauses), ("cases", self.cases)):
                chosen = [str(change) for change in changes if getattr(change, kind)]
                if chosen:
                    head = f"{what} {kind.replace('_', ' ')} ({len(chosen)})"
                    blocks.append("\n  ".join([head, *chosen]))
        return "\n\n".join(blocks) or "nothing is newly broken, unjudged or held"


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
    return Comparison(
        _changes(_by_clause(before.cases), _by_clause(after.cases)),
        _changes(_by_id(before.cases), _by_id(after.cases)),
    )


def _changes(
    before: Mapping[str, Sequence[Case]], after: Mapping[str, Sequence[Case]]
) -> tuple[Change, ...]:
    ids = sorted({*before, *after})
    pairs = ((id, before.get(id, ()), after.get(id, ())) for id in ids)
    changes = (
        Change(id, _verdict(one), _verdict(other), needs_of(one), needs_of(other))
        for id, one, other in pairs
    )
    return tuple(change for change in changes if _differs(change))


def _differs(change: Change) -> bool:
    """Return whether the verdict changed; a case that follows was not run."""
    both = (change.before, change.after)
    return change.before != change.after and Verdict.FOLLOWS not in both


def _by_id(cases: Iterable[Case]) -> dict[str, list[Case]]:
    return {case.id: [case] for case in cases}


def _by_clause(cases: Iterable[Case]) -> dict[str, list[Case]]:
    cited: dict[str, list[Case]] = {}
    for case in cases:
        for id in case.clauses:
            cited.setdefault(id, []).append(case)
    return cited


def _verdict(cases: Sequence[Case]) -> Verdict | None:
    return of_clause(case.verdict for case in cases) if cases else None


def _broken(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.broken


def _judged(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.judged
