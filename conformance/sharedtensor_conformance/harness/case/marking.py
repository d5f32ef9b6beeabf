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
    """What the decorator `clause` says of a test.

    Attributes:
        clauses: the clauses that the test judges.
        profiles: the claims that the test needs.
        strategies: the only strategies for the test; None if it can run under any.
        mainly: the clause that is broken by a failure that names no clause, for example
            an exception. Without it, such a failure breaks all clauses of the test.
        vary: the axes of the configuration over which the test varies.
        start_methods: the only start methods for the test.
        prefers: the start method of a test that does not vary over start methods and
            can run under any.
        forks: whether the test forks, under any start method.
        starts: whether the test starts processes in addition to those that cases share.
        isolated: whether the test starts all its processes itself, so that its cases
            can run on any worker, in parallel.
        runs_last: whether the test runs after all others of its configuration.
        may_corrupt: whether memory may be corrupt after a failure, so that the
            processes are not used again.
        pairwise: whether the test runs only so many combinations of its configurations
            and axes that each pair of values occurs.
        channels: the channels that the test names; all have to be claimed.
        dtypes: the dtypes that the test names; all have to be claimed. The default
            dtype is ``float32``, which every adapter claims.
        views: the kinds of views that the test makes without a check; all have to be
            claimed.
        several_strategies: whether the test needs two claimed strategies.
        private: whether the test needs a tensor that was not requested to be shared.
        in_flight: how many descriptors may be in flight in it at once, if more than a
            few.
        large: whether the test needs gigabytes of memory, so that its cases take turns.
    """

    clauses: tuple[str, ...]
    profiles: frozenset[str]
    strategies: tuple[str, ...] | None
    mainly: tuple[str, ...]
    vary: tuple[str, ...] = ("strategy",)
    start_methods: tuple[str, ...] | None = None
    prefers: str = ""
    forks: bool = False
    starts: bool = False
    isolated: bool = False
    runs_last: bool = False
    may_corrupt: bool = False
    pairwise: bool = False
    channels: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    several_strategies: bool = False
    private: bool = False
    in_flight: int = 0
    large: bool = False

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
    profiles: tuple[str, ...] = (),
    strategies: tuple[str, ...] = (),
    mainly: str = "",
    **options: Any,
) -> Callable[[Test], Test]:
    """Tie a test to the clauses `ids`.

    Args:
        ids: the clauses that the test judges.
        profiles: claims that the test needs, other than the profiles of its clauses.
        strategies: the only strategies for the test. Without them, those of the
            profiles that bind to a strategy.
        mainly: one of `ids`: see `Marking`.
        options: other attributes of `Marking`, if they differ from their defaults.

    Raises:
        KeyError: the spec has no such clause.
        TypeError: `Marking` has no such attribute.
        ValueError: `mainly` is not one of the clauses of the test.
    """
    if mainly and mainly not in ids:
        raise ValueError(f"{mainly} is none of the clauses that the test judges")
    needed = frozenset({load_clauses()[id].profile for id in ids} | set(profiles))
    bound = tuple(STRATEGY_OF[p] for p in sorted(needed) if p in STRATEGY_OF)
    main = (mainly,) if mainly else ()
    marking = Marking(ids, needed, strategies or bound or None, main, **options)

    def decorate(test: Test) -> Test:
        test.conformance = marking  # type: ignore[attr-defined]
        return test

    return decorate


def marking_of(function: object) -> Marking | None:
    """Return what the decorator `clause` stored in a test; None without a decorator."""
    found: Marking | None = getattr(function, "conformance", None)
    return found
