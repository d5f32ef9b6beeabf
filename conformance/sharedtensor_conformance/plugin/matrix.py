"""The matrix: the configurations of each test, of those that a run selects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.case.marking import Marking

PREFERRED_METHODS = ("spawn", "forkserver", "fork")
"""The preferred start methods of a test that does not vary over start methods.

With ``--one-per-clause``, `fork` is preferred, because an import of the implementation
takes longer than most cases.
"""

PREFERRED_METHODS_OF_STARTS = ("forkserver", "spawn", "fork")
"""The same for a test that starts processes itself.

Processes of spawn and of a fork server inherit nothing, but only those of a fork server
do not have to import the implementation.
"""


@dataclass(frozen=True)
class Selection:
    """The selection by the options of a run; an empty tuple selects everything."""

    clauses: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    start_methods: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu", "simulated")
    cases: tuple[str, ...] = ()
    one_per_clause: bool = False

    @property
    def full(self) -> bool:
        """Whether everything is selected, except devices."""
        return not (
            self.clauses
            or self.profiles
            or self.strategies
            or self.start_methods
            or self.cases
            or self.one_per_clause
        )


def matches(id: str, pattern: str) -> bool:
    """Return whether the pattern matches the id of a case.

    In a pattern, ``*`` matches any text, and brackets are literal.
    """
    return id == pattern or fnmatchcase(id, pattern.replace("[", "[[]"))


def may_match(test: str, pattern: str) -> bool:
    """Return whether the pattern may match ids of the cases of a test.

    Such an id begins with the test and a bracket. The pattern is compared up to its
    first ``*`` or ``?``.
    """
    begins, plain = f"{test}[", re.split(r"[*?]", pattern, maxsplit=1)[0]
    goes_on = plain != pattern
    return plain.startswith(begins) or (goes_on and begins.startswith(plain))


def pairwise(axes: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return rows, one value of each axis, in which all pairs of values occur.

    This finds a fault that needs a combination of two values. The number of rows is
    about the product of the two longest axes, not of all (D. R. Kuhn, D. R. Wallace,
    A. M. Gallo, IEEE Transactions on Software Engineering 30(6), 2004).
    """
    if len(axes) < 2:
        return [[value] for axis in axes for value in axis]
    return [
        [axis[place] for axis, place in zip(axes, row, strict=True)]
        for row in _paired_places(tuple(map(len, axes)))
    ]


@cache  # several tests have the same axes, and each needs them twice
def _paired_places(lengths: tuple[int, ...]) -> list[list[int]]:
    """Return the rows of `pairwise` as positions, for axes of these lengths."""
    from allpairspy import AllPairs  # imported here, because few selections need it

    return [list(row) for row in AllPairs([list(range(length)) for length in lengths])]


def _restrict(all_of: tuple[str, ...], *limits: tuple[str, ...] | None) -> list[str]:
    return [one for one in all_of if all(not limit or one in limit for limit in limits)]


def configurations(
    marking: Marking, implementation: Implementation, selection: Selection
) -> list[Configuration]:
    """Return the configurations of a test; none if it is not selected.

    If the implementation lacks a claim, the result is one configuration with the
    reason.
    """
    if lacking := _missing_claim(marking, implementation):
        return [Configuration("", "", why_not=lacking, unsupported=True)]
    return list(_claimed_configurations(marking, implementation, selection))


def _missing_claim(marking: Marking, implementation: Implementation) -> str:
    """Return what a test needs and the adapter does not claim; "" if nothing.

    Without it, the test would have nothing to judge, or would judge something else.
    """
    if missing := sorted(marking.profiles - implementation.claims):
        return f"the profile {missing[0]!r} is not claimed"
    for what, needed, claimed in (
        ("strategies", marking.strategies, implementation.strategies),
        ("start methods", marking.start_methods, implementation.start_methods),
    ):
        if needed and not set(needed) & set(claimed):
            return f"none of the {what} {', '.join(needed)} is claimed"
    for what, needed, claimed in (
        ("channel", marking.channels, implementation.channels),
        ("dtype", marking.dtypes, implementation.dtypes),
        ("kind of view", marking.views, implementation.views),
    ):
        if missing := sorted(set(needed) - set(claimed)):
            return f"the {what} {missing[0]!r} is not claimed"
    strategies = implementation.strategies
    if marking.several_strategies and len(strategies) < 2:
        return f"two strategies are needed; {', '.join(strategies)!r} is claimed"
    if marking.private and not implementation.private:
        return "every tensor is in shared memory from the start, at its user's request"
    if marking.forks and "fork" not in implementation.start_methods:
        return "the start method 'fork' is not claimed"
    if not _possible_methods(marking, implementation):
        return "device memory needs another start method than fork; none is claimed"
    return ""


def _claimed_configurations(
    marking: Marking, implementation: Implementation, selection: Selection
) -> Iterator[Configuration]:
    strategies = _restrict(
        implementation.strategies, marking.strategies, selection.strategies
    )
    if "strategy" not in marking.vary:
        strategies = strategies[:1]
    for device in _devices(marking, implementation, selection):
        for strategy in strategies:
            for method in _methods(marking, implementation, selection, strategy):
                yield Configuration(strategy, method, device)


def _methods(
    marking: Marking,
    implementation: Implementation,
    selection: Selection,
    strategy: str,
) -> list[str]:
    """Return the start methods of a test for this strategy."""
    possible = _possible_methods(marking, implementation)
    methods = _restrict(possible, selection.start_methods)
    if "start_method" in marking.vary:
        return methods
    first = ["fork"] if selection.one_per_clause else []
    first.append(marking.prefers)
    if "strategy" in marking.vary and not marking.strategies:
        # Every second strategy prefers fork, which needs no imports.
        place = implementation.strategies.index(strategy)
        first.append("fork" if place % 2 else "")
    preferred = (
        PREFERRED_METHODS_OF_STARTS if marking.starts_processes else PREFERRED_METHODS
    )
    return [method for method in (*first, *preferred) if method in methods][:1]


def _possible_methods(
    marking: Marking, implementation: Implementation
) -> tuple[str, ...]:
    claimed = implementation.start_methods
    if marking.on_device and not marking.start_methods:
        claimed = tuple(method for method in claimed if method != "fork")
    return tuple(_restrict(claimed, marking.start_methods))


def _devices(
    marking: Marking, implementation: Implementation, selection: Selection
) -> list[str]:
    if not marking.on_device:
        return ["cpu"] if "cpu" in selection.devices else []
    return [
        device
        for device in selection.devices
        if device != "cpu" and device in implementation.devices
    ]
