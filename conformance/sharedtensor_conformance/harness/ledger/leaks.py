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

from sharedtensor_conformance.harness.case.outcomes import LeftBehind
from sharedtensor_conformance.harness.kernel.process_tree import prolonged, wait_until
from sharedtensor_conformance.harness.ledger import ledger

SHORT_WAIT = 0.1
"""The minimum wait in seconds for known kinds of leaks."""

MAX_CASES_SHOWN = 8
"""How many leaking cases the evidence names for each kind of leak."""

MAX_NAMES_SHOWN = 5
"""How many segments or files of one kind a reading names."""

MEMORY_LEAK_CLAUSE, RESOURCE_LEAK_CLAUSE = "LIFE-7", "LIFE-12"
"""The clauses about leaks: of shared memory, and of the resources that share it."""

COUNTED_RESOURCES = (
    ("descriptor", "descriptors", "targets", MEMORY_LEAK_CLAUSE),
    ("mapping", "mappings", "mapped", MEMORY_LEAK_CLAUSE),
    ("thread", "threads", "", RESOURCE_LEAK_CLAUSE),
)
"""The counted resources of a process: name, count, kinds, clause."""

NAMED_RESOURCES = (
    ("segments", "segment", MEMORY_LEAK_CLAUSE),
    ("files", "temporary file", RESOURCE_LEAK_CLAUSE),
)
"""The resources that are counted by name."""

Counts = Mapping[str, int]
"""The count of each kind."""

NO_COUNTS: Counts = MappingProxyType({})

Key = tuple[str, str, frozenset[str]]
"""The key of a kind of leak: resource, process and kinds."""


@dataclass(frozen=True)
class Leak:
    """A resource that exists now and did not exist before.

    Args:
        clauses: the clauses about it.
        resource: the type of resource, for example ``descriptor``.
        holder: the process that has it; the name, for a resource with a name.
        count: the increase.
        kinds: the increase for each kind.
    """

    clauses: tuple[str, ...]
    resource: str
    holder: str
    count: int = 1
    kinds: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> Key:
        """The key of its kind of leak."""
        return (
            self.resource,
            ledger.kind(self.holder),
            frozenset(k for k, _ in self.kinds),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Its names in expectations: the resource with each of its kinds."""
        if self.resource == "process" or self.resource in [
            resource for _, resource, _ in NAMED_RESOURCES
        ]:
            return (f"{self.resource} {ledger.kind(self.holder)}",)
        return tuple(f"{self.resource} {kind}" for kind, _ in self.kinds) or (
            self.resource,
        )

    def __str__(self) -> str:
        if self.resource == "process":
            return f"the process {self.holder} is there"
        if self.resource in [resource for _, resource, _ in NAMED_RESOURCES]:
            return f"the {self.resource} {self.holder} is left"
        things = self.resource if self.count == 1 else f"{self.resource}s"
        listed = ", ".join(f"{count} x {kind}" for kind, count in self.kinds)
        said = f"{self.holder} has {self.count} more {things}"
        return f"{said} ({listed})" if listed else said


@dataclass
class Growth:
    """The increase of the ledger since an earlier reading.

    Args:
        leaks: the leaks.
        waited: how long the check waited, in seconds.
        known: whether earlier cases that waited in full had already leaked all of it.
    """

    leaks: list[Leak] = field(default_factory=list)
    waited: float = 0.0
    known: bool = False

    def __bool__(self) -> bool:
        return bool(self.leaks)

    def __str__(self) -> str:
        return "; ".join(map(str, self.leaks))

    def kinds(self) -> set[Key]:
        """Return the kinds of the leaks."""
        return {leak.key for leak in self.leaks}

    def add_process(
        self, holder: str, held: dict[str, Any], was: Any, allowed: Counts = NO_COUNTS
    ) -> None:
        """Compare the counts of a process with its earlier counts.

        Args:
            holder: the name of the process.
            held: its counts.
            was: its earlier counts; None if it did not exist.
            allowed: the permitted increase of each count.
        """
        if was is None:
            self.leaks.append(Leak((RESOURCE_LEAK_CLAUSE,), "process", holder))
            return
        for resource, counted, kinds, clause in COUNTED_RESOURCES:
            if (more := held[counted] - was[counted]) > allowed.get(counted, 0):
                new = _increases(held[kinds], was[kinds]) if kinds else ()
                self.leaks.append(Leak((clause,), resource, holder, more, new))

    def add_names(
        self, now: dict[str, Any], was: dict[str, Any], allowed: Counts = NO_COUNTS
    ) -> None:
        """Compare segments and temporary files with the earlier ones."""
        for counted, resource, clause in NAMED_RESOURCES:
            room = allowed.get(counted)
            if room is not None and len(now[counted]) <= len(was[counted]) + room:
                continue
            new = sorted(set(now[counted]) - set(was[counted]))
            self.leaks += [Leak((clause,), resource, one) for one in _limit_names(new)]

    def failure(self, sentence: str = "") -> LeftBehind | None:
        """Return the failure if there are leaks, else None.

        Args:
            sentence: what would hold without leaks.
        """
        if not self:
            return None
        before = ", nor in an earlier case that waited longer" if self.known else ""
        said = f"not back after {format_seconds(self.waited)}{before}: {self}"
        not_so = f"; not so: {sentence}" if sentence else ""
        return LeftBehind(said + not_so, kinds=names_of(self.leaks), known=self.known)


def names_of(leaks: Iterable[Leak]) -> tuple[str, ...]:
    """Return the names of leaks, each kind once."""
    return tuple(dict.fromkeys(kind for leak in leaks for kind in leak.names))


def _limit_names(names: Iterable[str]) -> Iterator[str]:
    """Yield some names of each kind, so that many of one do not hide another."""
    counts: Counter[str] = Counter()
    for name in names:
        counts[ledger.kind(name)] += 1
        if counts[ledger.kind(name)] <= MAX_NAMES_SHOWN:
            yield name


def _increases(
    now: Mapping[str, int], was: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """Return how much each kind has increased, the largest increase first."""
    return tuple((Counter(now) - Counter(was)).most_common())


class LeakWaits:
    """Waits until everything that the cases of a configuration dropped is released."""

    def __init__(self) -> None:
        self._longest_releases: dict[Key, float] = {}  # the longest wait for a release
        self._longest_waits: dict[Key, float] = {}  # the longest wait without a release
        self._waits_in_full = False

    def wait(self, look: Callable[[], Growth], within: float) -> Growth:
        """Call `look` until it finds nothing or time is over; return the last result.

        `within` is the limit in seconds. If all kinds of leaks in the result are known,
        the wait ends earlier.
        """
        within = prolonged(within)
        started, now, before = time.monotonic(), Growth(), set[Key]()

        def is_over() -> bool:
            nonlocal now
            now = look()
            now.waited = time.monotonic() - started
            _keep_longest(self._longest_releases, before - now.kinds(), now.waited)
            before.update(now.kinds())
            return not now or now.waited >= self._wait_limit(now, within)

        wait_until(is_over, within)
        now.known = self._is_known(now, within)
        _keep_longest(self._longest_waits, now.kinds(), now.waited)
        return now

    @contextmanager
    def in_full(self) -> Iterator[None]:
        """Wait in full for all kinds during the block, to confirm a failure."""
        self._waits_in_full = True
        try:
            yield
        finally:
            self._waits_in_full = False

    def _wait_limit(self, growth: Growth, within: float) -> float:
        """Return after how many seconds the wait for these leaks ends."""
        if not self._is_known(growth, within):
            return within
        slowest = max(self._longest_releases.get(key, 0.0) for key in growth.kinds())
        return max(SHORT_WAIT, 2 * slowest)

    def _is_known(self, growth: Growth, within: float) -> bool:
        stayed = all(
            self._longest_waits.get(key, 0.0) >= within for key in growth.kinds()
        )
        return stayed and not self._waits_in_full


def _keep_longest(times: dict[Key, float], keys: Iterable[Key], seconds: float) -> None:
    """Store the longest time of each kind."""
    for key in keys:
        times[key] = max(seconds, times.get(key, 0.0))


class Leaks:
    """The leaks of the cases of a configuration, by the clause about them."""

    def __init__(self) -> None:
        self._found: dict[str, dict[Key, Finding]] = {
            MEMORY_LEAK_CLAUSE: {},
            RESOURCE_LEAK_CLAUSE: {},
        }

    def note(self, case: str, growth: Growth, *, failed: bool = False) -> None:
        """Record the leaks of a case for the clauses about them.

        Args:
            case: its id; empty for the test that judges these clauses itself.
            growth: the leaks.
            failed: whether the case failed.
        """
        for leak in growth.leaks:
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
        kinds = names_of(one.leak for one in found)
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
        first = (
            f"not back after {format_seconds(self.waited)}: {self.leak}, after {count}:"
        )
        return "\n".join([first, *_case_lines(self.cases)])


def format_seconds(seconds: float) -> str:
    """Return a time as text for evidence."""
    return f"{round(seconds, 1):g} s"


def _case_lines(cases: Mapping[str, bool]) -> list[str]:
    """Return a line for each case, and one for the rest if there are too many."""
    lines = [
        f"  {id or 'the messages of this test'}{', which failed' * failed}"
        for id, failed in cases.items()
    ]
    if (more := len(lines) - MAX_CASES_SHOWN) > 0:
        lines[MAX_CASES_SHOWN:] = [f"  and {more} more"]
    return lines
