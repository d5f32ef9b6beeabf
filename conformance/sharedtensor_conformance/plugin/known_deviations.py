"""Confirms each known deviation with one case, and skips the others, to save time.

In each configuration, the cheapest case of a known deviation runs first. If it fails as
expected, the other cases of the same entry in the expectations are not run and get the
verdict ``follows``, which is never a pass. If it passes, the others are run. Each xdist
worker uses only the results of its own cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sharedtensor_conformance.plugin.execution import Outcome
from sharedtensor_conformance.report.expectations import Expectation, Expectations
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

Item = TypeVar("Item")
EntryKey = tuple[int, str]
"""The number of an entry of the expectations, and a configuration."""


class KnownDeviations:
    """The known deviations that have been confirmed so far.

    Args:
        expected: the expected deviations.
        version: the version of the implementation.
    """

    def __init__(self, expected: Expectations, version: str) -> None:
        self._expected = expected
        self._version = version
        # Computed once: comparing versions is slow, and this is used for every case.
        self._applying = expected.applying_to(version)
        self._confirmed: dict[EntryKey, list[Case]] = {}
        self._hung: set[tuple[str, str]] = set()  # causes, each in a configuration

    def confirm(self, case: Case, configuration: str) -> None:
        """Note a case's result; others follow from it if it failed as expected."""
        entry = self._expected.covers(case, self._version)
        if case.verdict.broken and entry is not None:
            self._confirmed.setdefault((entry.number, configuration), []).append(case)
            if case.verdict is Verdict.HANG:
                self._hung.add((entry.cause, configuration))

    def outcome(self, case: Case, configuration: str) -> Outcome | None:
        """Return the outcome of a case that follows, or None if it has to be run.

        A case of the same cause must have broken all its clauses already. So the
        verdicts of these clauses are the same as if the case were run and failed.
        """
        for key in self.entry_keys(case, configuration):
            for shown in self._confirmed.get(key, ()):
                if set(case.clauses) <= set(shown.clauses):
                    evidence = f"not run: it has the same cause as {shown.id}"
                    return Outcome(Verdict.FOLLOWS, f"{evidence}, which was confirmed")
        return None

    def has_hung(self, case: Case, configuration: str) -> bool:
        """Return whether a case of the same cause hung here, as expected."""
        about = self._concerning(case)
        return any((entry.cause, configuration) in self._hung for entry in about)

    def entry_keys(self, case: Case, configuration: str) -> list[EntryKey]:
        """Return the entries that concern a case, each with the configuration."""
        return [(entry.number, configuration) for entry in self._concerning(case)]

    def _concerning(self, case: Case) -> list[Expectation]:
        """Return the entries that concern a case, for any verdict."""
        return [entry for entry in self._applying if entry.concerns(case)]


def cheapest_first(
    items: Sequence[Item],
    entry_keys: Callable[[Item], Sequence[EntryKey]],
    cost: Callable[[Item], float],
) -> list[Item]:
    """Return the cases, the cheapest one of each known deviation before the others.

    Args:
        items: the cases, in order.
        entry_keys: returns the entries that concern a case, each with its
            configuration.
        cost: returns the cost of a case.
    """
    members: dict[EntryKey, list[int]] = {}
    for number, item in enumerate(items):
        for key in entry_keys(item):
            members.setdefault(key, []).append(number)
    order = {number: (number, 1) for number in range(len(items))}
    for numbers in members.values():
        cheapest = min(numbers, key=lambda number: (cost(items[number]), number))
        order[cheapest] = min(order[cheapest], (numbers[0], 0))
    return [items[number] for number in sorted(order, key=order.__getitem__)]
