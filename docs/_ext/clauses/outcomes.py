"""What the site counts: a clause holds, is broken, is not claimed, or was not run.

A broken clause breaks a promise of the library's own documentation, or differs from
this specification only, as the suite says (`sharedtensor_conformance.report.known`).
All pages that count clauses do it by these, so their figures agree. What the machine of
a run did not permit is counted apart and shown only where there is any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from enum import StrEnum

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.known import Breach
from sharedtensor_conformance.report.needs import NOT_HERE
from sharedtensor_conformance.report.verdicts import Need, Verdict

from clauses.reports import Column, Shown


class Outcome(StrEnum):
    """What became of a clause, in the order in which it is shown."""

    HELD = "held"
    BREAKS_DOCS = Breach.DOCUMENTATION.value
    DIFFERS = Breach.SPECIFICATION.value
    BROKEN = Breach.UNEXPLAINED.value
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"
    NOT_HERE = NOT_HERE

    @property
    def short(self) -> str:
        """The outcome where there is little room."""
        return SHORT.get(self, self.value)

    @property
    def in_full(self) -> str:
        """The outcome beside the other ones, from which it has to be told."""
        return "broken, promise not known" if self is Outcome.BROKEN else self.value

    @property
    def slug(self) -> str:
        """The outcome as addresses and style sheets name it.

        Each broken outcome is ``broken`` as well, so this is no name of one alone.
        """
        return "broken-otherwise" if self is Outcome.BROKEN else make_slug(self.short)

    @property
    def classes(self) -> str:
        """The classes of an element that shows it."""
        return f"broken {self.slug}" if self.breaks else self.slug

    @property
    def symbol(self) -> str:
        """The sign that stands for it where there is little room."""
        return dict(zip(Outcome, "✓✗≠✗·○○", strict=True))[self]

    @property
    def breaks(self) -> bool:
        """Whether the clause is broken."""
        return self in OF_BREACH.values()

    @property
    def judged(self) -> bool:
        """Whether the clause was judged."""
        return self.breaks or self is Outcome.HELD


SHORT = {Outcome.BREAKS_DOCS: "breaks docs", Outcome.DIFFERS: "differs"}
OF_BREACH = {
    Breach.DOCUMENTATION: Outcome.BREAKS_DOCS,
    Breach.SPECIFICATION: Outcome.DIFFERS,
    Breach.UNEXPLAINED: Outcome.BROKEN,
}


def make_slug(words: str) -> str:
    """Return words as addresses have them."""
    return words.replace(" ", "-")


def outcome_of(
    verdict: Verdict,
    needs: Collection[Need] = (),
    breach: Breach | None = None,
    *,
    lacks_cuda: bool = False,
) -> Outcome:
    """Return what `verdict` counts as; a known deviation is broken all the same.

    Args:
        verdict: the verdict on a clause.
        needs: why no case judged the clause, if the machine did not permit it.
        breach: what the clause breaks; that it has one says that it is broken.
        lacks_cuda: whether no case judged it since the run used no CUDA device.
    """
    if breach or verdict.broken or verdict is Verdict.FOLLOWS:
        return OF_BREACH[breach or Breach.UNEXPLAINED]
    if verdict is Verdict.PASS:
        return Outcome.HELD
    if verdict is Verdict.UNSUPPORTED and not lacks_cuda:
        return Outcome.NOT_CLAIMED
    return Outcome.NOT_HERE if needs else Outcome.NOT_RUN


def outcome_in(column: Column, clause: str) -> Outcome:
    """Return what `column` says of `clause`; nothing said is not run.

    A clause with a known deviation that did not show in the run is broken.
    """
    one = column.judgements.get(clause)
    if one is None:
        return Outcome.NOT_RUN
    return outcome_of(one.verdict, one.needs, one.breach, lacks_cuda=one.lacks_cuda)


def words_in(column: Column, clause: str, *, short: bool = False) -> str:
    """Return what `column` says of `clause` in words.

    What breaks documentation or only differs is known; of others it is said.
    """
    outcome, one = outcome_in(column, clause), column.judgements.get(clause)
    said = [outcome.short if short else outcome.value]
    if one and outcome is Outcome.BROKEN:
        said.append("known" if one.expected or one.not_shown else "new")
    if one and one.not_shown:
        said.append("intermittent")
    return ", ".join([*said, *(one.stand_ins if one else ())])


def counted(column: Column, clauses: Iterable[Clause]) -> dict[Outcome, int]:
    """Return how many of `clauses` have each outcome, those that none has left out.

    Clauses that the runs of `column` were not to judge are not counted.
    """
    asked = filter(column.asks, clauses)
    counts = Counter(outcome_in(column, clause.id) for clause in asked)
    return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}


def counted_in(report: Shown, clauses: Iterable[Clause]) -> dict[Outcome, int]:
    """Return the same of one run alone."""
    column = Column(report.name, [report])
    return counted(column, [one for one in clauses if one.id in report.judgements])


def simulated(column: Column, clauses: Iterable[Clause]) -> int:
    """Return how many of `clauses` held on a device that stood in for a real one."""
    held = [c.id for c in clauses if outcome_in(column, c.id) is Outcome.HELD]
    return sum(bool(column.judgements[id].stand_ins) for id in held)


def to_name(columns: Iterable[Column], clauses: Iterable[Clause]) -> list[Outcome]:
    """Return the outcomes that a page has to name, where it shows these columns.

    What machines do not permit, and what breaks for no known reason, may not be there.
    """
    clauses = list(clauses)
    found = {one for column in columns for one in counted(column, clauses)}
    rare = {Outcome.NOT_HERE, Outcome.BROKEN}
    return [one for one in Outcome if one in found or one not in rare]
