"""Compares the ledger with an earlier one, and waits for the release of objects.

The release of dropped objects may take time, so a check waits for it. If something of a
kind was not released after the full wait, later cases of the configuration wait less
for that kind: no longer than any release has ever taken there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sharedtensor_conformance.harness import ledger
from sharedtensor_conformance.harness.outcomes import LeftBehind
from sharedtensor_conformance.harness.process_tree import wait_until

SHORT_WAIT = 0.1
"""The minimum wait in seconds for known kinds of leaks."""

CASES_SHOWN = 8
"""How many leaking cases the evidence names for each kind of leak."""

NAMES_SHOWN = 5
"""How many segments or files of one kind a reading names."""

SHARING, MACHINERY = "LIFE-7", "LIFE-12"
"""The clauses about leaks: of shared memory, and of the resources that share it."""

COUNTED = (
    ("descriptor", "descriptors", "targets", SHARING),
    ("mapping", "mappings", "mapped", SHARING),
    ("thread", "threads", "", MACHINERY),
)
"""The counted resources of a process: name, count, kinds, clause."""

NAMED = (("segments", "segment", SHARING), ("files", "temporary file", MACHINERY))
"""The resources that are counted by name."""

Counts = Mapping[str, int]
"""The count of each kind."""

NOTHING: Counts = MappingProxyType({})

Key = tuple[str, str, frozenset[str]]
"""The key of a kind of leak: process, thing and kinds."""


@dataclass(frozen=True)
class Leak:
    """A resource that exists now and did not exist before.

    Args:
        clauses: the clauses about it.
        thing: the type of resource, for example ``descriptor``.
        who: the process that has it; the name, for a resource with a name.
        count: the increase.
        kinds: the increase for each kind.
    """

    clauses: tuple[str, ...]
    thing: str
    who: str
    count: int = 1
    kinds: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> Key:
        """The key of its kind of leak."""
        return self.thing, ledger.kind(self.who), frozenset(k for k, _ in self.kinds)

    @property
    def named(self) -> tuple[str, ...]:
        """Its names in expectations: the thing with each of its kinds."""
        if self.thing == "process" or self.thing in [thing for _, thing, _ in NAMED]:
            return (f"{self.thing} {ledger.kind(self.who)}",)
        return tuple(f"{self.thing} {kind}" for kind, _ in self.kinds) or (self.thing,)

    def __str__(self) -> str:
        if self.thing == "process":
            return f"the process {self.who} is there"
        if self.thing in [thing for _, thing, _ in NAMED]:
            return f"the {self.thing} {self.who} is left"
        things = self.thing if self.count == 1 else f"{self.thing}s"
        listed = ", ".join(f"{count} x {kind}" for kind, count in self.kinds)
        said = f"{self.who} has {self.count} more {things}"
        return f"{said} ({listed})" if listed else said


@dataclass
class Growth:
    """The increase of the ledger since an earlier reading.

    Args:
        found: the leaks.
        waited: how long the check waited, in seconds.
        known: whether earlier cases that waited in full had already leaked all of it.
    """

    found: list[Leak] = field(default_factory=list)
    waited: float = 0.0
    known: bool = False

    def __bool__(self) -> bool:
        return bool(self.found)

    def __str__(self) -> str:
        return "; ".join(map(str, self.found))

    def kinds(self) -> set[Key]:
        """Return the kinds of the leaks."""
        return {leak.key for leak in self.found}

    def add_process(
        self, who: str, held: dict[str, Any], was: Any, allowed: Counts = NOTHING
    ) -> None:
        """Compare the counts of a process with its earlier counts.

        Args:
            who: the name of the process.
            held: its counts.
            was: its earlier counts; None if it did not exist.
            allowed: the permitted increase of each count.
        """
        if was is None:
            self.found.append(Leak((MACHINERY,), "process", who))
            return
        for thing, counted, kinds, clause in COUNTED:
            if (more := held[counted] - was[counted]) > allowed.get(counted, 0):
                new = _more(held[kinds], was[kinds]) if kinds else ()
                self.found.append(Leak((clause,), thing, who, more, new))

    def add_names(
        self, now: dict[str, Any], was: dict[str, Any], allowed: Counts = NOTHING
    ) -> None:
        """Compare segments and temporary files with the earlier ones."""
        for counted, thing, clause in NAMED:
            room = allowed.get(counted)
            if room is not None and len(now[counted]) <= len(was[counted]) + room:
                continue
            new = sorted(set(now[counted]) - set(was[counted]))
            self.found += [Leak((clause,), thing, one) for one in _some_of_each(new)]

    def failure(self, sentence: str = "") -> LeftBehind | None:
        """Return the failure if there are leaks, else None.

        Args:
            sentence: what would hold without leaks.
        """
        if not self:
            return None
        before = ", nor in an earlier case that waited longer" if self.known else ""
        said = f"not back after {shown(self.waited)}{before}: {self}"
        not_so = f"; not so: {sentence}" if sentence else ""
        return LeftBehind(said + not_so, kinds=named(self.found), known=self.known)


def named(found: Iterable[Leak]) -> tuple[str, ...]:
    """Return the names of leaks, each kind once."""
    return tuple(dict.fromkeys(kind for leak in found for kind in leak.named))


def _some_of_each(names: Iterable[str]) -> Iterator[str]:
    """Yield some names of each kind, so that many of one do not hide another."""
    shown: Counter[str] = Counter()
    for name in names:
        shown[ledger.kind(name)] += 1
        if shown[ledger.kind(name)] <= NAMES_SHOWN:
            yield name


def _more(
    now: Mapping[str, int], was: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """Return how much each kind has increased, the largest increase first."""
    return tuple((Counter(now) - Counter(was)).most_common())


class LeakWaits:
    """Waits until everything that the cases of a configuration dropped is released."""

    def __init__(self) -> None:
        self._returned: dict[Key, float] = {}  # the longest wait for a release
        self._stayed: dict[Key, float] = {}  # the longest wait without a release
        self._in_full = False

    def wait(self, look: Callable[[], Growth], within: float) -> Growth:
        """Call `look` until it finds nothing or time is over; return the last result.

        `within` is the limit in seconds. If all kinds of leaks in the result are known,
        the wait ends earlier.
        """
        started, now, before = time.monotonic(), Growth(), set[Key]()

        def is_over() -> bool:
            nonlocal now
            now = look()
            now.waited = time.monotonic() - started
            _note(self._returned, before - now.kinds(), now.waited)
            before.update(now.kinds())
            return not now or now.waited >= self._enough(now, within)

        wait_until(is_over, within)
        now.known = self._stays(now, within)
        _note(self._stayed, now.kinds(), now.waited)
        return now

    @contextmanager
    def in_full(self) -> Iterator[None]:
        """Wait in full for all kinds during the block, to confirm a failure."""
        self._in_full = True
        try:
            yield
        finally:
            self._in_full = False

    def _enough(self, seen: Growth, within: float) -> float:
        """Return after how many seconds the wait for these leaks ends."""
        if not self._stays(seen, within):
            return within
        slowest = max(self._returned.get(key, 0.0) for key in seen.kinds())
        return max(SHORT_WAIT, 2 * slowest)

    def _stays(self, seen: Growth, within: float) -> bool:
        stayed = all(self._stayed.get(key, 0.0) >= within for key in seen.kinds())
        return stayed and not self._in_full


def _note(times: dict[Key, float], keys: Iterable[Key], seconds: float) -> None:
    """Store the longest time of each kind."""
    for key in keys:
        times[key] = max(seconds, times.get(key, 0.0))


class Leaks:
    """The leaks of the cases of a configuration, by the clause about them."""

    def __init__(self) -> None:
        self._found: dict[str, dict[Key, Finding]] = {SHARING: {}, MACHINERY: {}}

    def note(self, case: str, growth: Growth, *, failed: bool = False) -> None:
        """Record the leaks of a case for the clauses about them.

        Args:
            case: its id; empty for the test that judges these clauses itself.
            growth: the leaks.
            failed: whether the case failed.
        """
        for leak in growth.found:
            for id in leak.clauses:
                finding = self._found[id].setdefault(
                    leak.key, Finding(leak, growth.waited)
                )
                finding.cases[case] = failed or finding.cases.get(case, False)

    def failure(self, id: str) -> LeftBehind | None:
        """Return the failure of a clause because of leaks, or None."""
        found = sorted(self._found[id].values(), key=lambda one: -len(one.cases))
        if not found:
            return None
        cases = dict.fromkeys(next(iter(one.cases)) for one in found)
        sentence = "\n".join(map(str, found))
        kinds = named(one.leak for one in found)
        return LeftBehind(sentence, tuple(filter(None, cases)), kinds=kinds)


@dataclass
class Finding:
    """Leaks of one kind.

    Args:
        leak: the first leak.
        waited: how long the check waited for it, in seconds.
        cases: the leaking cases, with whether they failed.
    """

    leak: Leak
    waited: float
    cases: dict[str, bool] = field(default_factory=dict)

    def __str__(self) -> str:
        count = f"{len(self.cases)} case{'s' * (len(self.cases) > 1)}"
        first = f"not back after {shown(self.waited)}: {self.leak}, after {count}:"
        return "\n".join([first, *_listed(self.cases)])


def shown(seconds: float) -> str:
    """Return a time as text for evidence."""
    return f"{round(seconds, 1):g} s"


def _listed(cases: Mapping[str, bool]) -> list[str]:
    """Return a line for each case, and one for the rest if there are too many."""
    lines = [
        f"  {id or 'the messages of this test'}{', which failed' * failed}"
        for id, failed in cases.items()
    ]
    if (more := len(lines) - CASES_SHOWN) > 0:
        lines[CASES_SHOWN:] = [f"  and {more} more"]
    return lines
