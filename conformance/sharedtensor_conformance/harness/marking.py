"""The decorator that ties a test to its clauses and says over what it varies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sharedtensor_conformance.adapter import STRATEGY_OF
from sharedtensor_conformance.clauses import load_clauses

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Marking:
    """What `clause` says about a test."""

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

    @property
    def starts_processes(self) -> bool:
        """Whether the test starts processes besides those that cases share."""
        return self.starts or self.isolated

    @property
    def sets_strategies(self) -> bool:
        """Whether the test may use other strategies than that of its configuration."""
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
) -> Callable[[Test], Test]:
    """Tie a test to the clauses `ids`.

    Args:
        ids: the clauses that the test judges.
        vary: the axes of the configuration that the test runs over.
        start_methods: only these.
        strategies: only these.
        profiles: claims that the test needs besides the profiles of its clauses.
        runs_last: the test runs after all others of its configuration.
        may_corrupt: where the test fails, memory may be corrupt, so the processes are
            not used again.
        isolated: the test starts all its processes itself, so its cases can be spread
            over workers, and wait side by side.
        pairwise: of all combinations of its configurations and axes, so many that each
            two values of two of them meet.
        channels: the channels that it names; all have to be claimed.
        dtypes: the dtypes that it names; all have to be claimed. What is made without
            naming one is ``float32``, which every adapter claims.
        views: the kinds of views that it makes without asking which there are; all
            have to be claimed.
        several_strategies: the test is about two strategies, so two have to be claimed.
        forks: the test forks, under whichever start method it runs.
        prefers: the start method of a test that does not vary over them and that could
            run under any.
        starts: the test starts processes besides those that cases share.
        mainly: the one of the clauses that a failure breaks which does not say what it
            is about, such as an exception. Without it that failure breaks all of them.
        private: the test is about a tensor that nobody has asked to share.

    Raises:
        KeyError: the spec has no such clause.
        ValueError: the test is mainly about a clause that it does not judge.
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
    )

    def decorate(test: Test) -> Test:
        test.conformance = marking  # type: ignore[attr-defined]
        return test

    return decorate
