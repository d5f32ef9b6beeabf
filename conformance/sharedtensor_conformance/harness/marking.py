"""The decorator that declares a test's clauses and the axes over which it varies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sharedtensor_conformance.adapter import STRATEGY_OF
from sharedtensor_conformance.clauses import load_clauses

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Marking:
    """The data that the decorator `clause` stores in a test."""

    clauses: tuple[str, ...]
    profiles: frozenset[str]
    vary: tuple[str, ...]
    start_methods: tuple[str, ...] | None
    strategies: tuple[str, ...] | None
    runs_last: bool
    may_corrupt: bool
    isolated: bool
    pairwise: bool
    channels: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    several_strategies: bool = False
    forks: bool = False
    prefers: str = ""
    starts: bool = False
    mainly: tuple[str, ...] = ()
    private: bool = False
    in_flight: int = 0

    @property
    def starts_processes(self) -> bool:
        """Whether the test starts processes in addition to those that cases share."""
        return self.starts or self.isolated

    @property
    def sets_strategies(self) -> bool:
        """Whether the test may use strategies other than that of its configuration."""
        return "strategies" in self.profiles

    @property
    def on_device(self) -> bool:
        """Whether the test is about device memory."""
        return "cuda" in self.profiles


def clause(
    *ids: str,
    vary: tuple[str, ...] = ("strategy", "start_method"),
    start_methods: tuple[str, ...] | None = None,
    strategies: tuple[str, ...] | None = None,
    profiles: tuple[str, ...] = (),
    runs_last: bool = False,
    may_corrupt: bool = False,
    isolated: bool = False,
    pairwise: bool = False,
    channels: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = (),
    views: tuple[str, ...] = (),
    several_strategies: bool = False,
    forks: bool = False,
    prefers: str = "",
    starts: bool = False,
    mainly: str = "",
    private: bool = False,
    in_flight: int = 0,
) -> Callable[[Test], Test]:
    """Tie a test to the clauses `ids`.

    Args:
        ids: the clauses that the test judges.
        vary: the axes of the configuration over which the test varies.
        start_methods: the only start methods for the test.
        strategies: the only strategies for the test.
        profiles: claims that the test needs, other than the profiles of its clauses.
        runs_last: whether the test runs after all others of its configuration.
        may_corrupt: whether memory may be corrupt after a failure, so that the
            processes are not used again.
        isolated: whether the test starts all its processes itself, so that its cases
            can run on any worker, in parallel.
        pairwise: whether the test runs only so many combinations of its configurations
            and axes that each pair of values occurs.
        channels: the channels that the test names; all have to be claimed.
        dtypes: the dtypes that the test names; all have to be claimed. The default
            dtype is ``float32``, which every adapter claims.
        views: the kinds of views that the test makes without a check; all have to be
            claimed.
        several_strategies: whether the test needs two claimed strategies.
        forks: whether the test forks, under any start method.
        prefers: the start method of a test that does not vary over start methods and
            can run under any.
        starts: whether the test starts processes in addition to those that cases share.
        mainly: the clause that is broken by a failure that names no clause, for example
            an exception. Without it, such a failure breaks all clauses of the test.
        private: whether the test needs a tensor that was not requested to be shared.
        in_flight: how many descriptors may be in flight in it at once, if more than a
            few.

    Raises:
        KeyError: the spec has no such clause.
        ValueError: `mainly` is not one of the clauses of the test.
    """
    if mainly and mainly not in ids:
        raise ValueError(f"{mainly} is none of the clauses that the test judges")
    needed = frozenset({load_clauses()[id].profile for id in ids} | set(profiles))
    bound = tuple(STRATEGY_OF[p] for p in sorted(needed) if p in STRATEGY_OF)
    marking = Marking(
        ids,
        needed,
        vary,
        start_methods,
        strategies or bound or None,
        runs_last,
        may_corrupt,
        isolated,
        pairwise,
        channels,
        dtypes,
        views,
        several_strategies,
        forks,
        prefers,
        starts,
        (mainly,) if mainly else (),
        private,
        in_flight,
    )

    def decorate(test: Test) -> Test:
        test.conformance = marking  # type: ignore[attr-defined]
        return test

    return decorate
