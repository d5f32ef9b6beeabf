"""Defines the options of the suite, and makes the selection of a run from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pytest

from sharedtensor_conformance.adapter import PROFILES, Implementation
from sharedtensor_conformance.adapters.loader import SHIPPED
from sharedtensor_conformance.clauses import load_clauses, matching_clauses
from sharedtensor_conformance.plugin.matrix import Selection
from sharedtensor_conformance.plugin.shards import shard


def seconds(text: str) -> float:
    """Return a positive number of seconds.

    Raises:
        ValueError: the text is not such a number.
    """
    found = float(text)
    if not 0 < found < 1e6:
        raise ValueError(f"{text} is not a positive number of seconds")
    return found


def positive(text: str) -> int:
    """Return a positive integer.

    Raises:
        ValueError: the text is not such a number.
    """
    count = int(text)
    if count < 1:
        raise ValueError(f"{text} is not a positive number")
    return count


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        name: the name, for example ``--clause``.
        help: the text that ``--help`` shows.
        metavar: the name of the value in ``--help``; None if the option has no value.
        repeats: whether the option may be repeated.
        type: converts the text to the value; raises an exception if it cannot.
        choices: all permitted values, if there are few.
        default: the value if the option is not given.
    """

    name: str
    help: str
    metavar: str | None = None
    repeats: bool = False
    type: Callable[[str], Any] | None = None
    choices: tuple[str, ...] | None = None
    default: Any = None

    @property
    def key(self) -> str:
        """The name under which pytest knows its value."""
        return self.name.removeprefix("--").replace("-", "_")

    def add_to(self, group: pytest.OptionGroup) -> None:
        """Add the option to a group of pytest's options."""
        if self.choices:
            given: dict[str, Any] = {"choices": list(self.choices)}
        elif self.metavar:
            given = {"metavar": self.metavar}
        else:
            group.addoption(self.name, action="store_true", help=self.help)
            return
        if self.type:
            given["type"] = self.type
        if self.repeats:
            given["action"] = "append"
        default = [] if self.repeats else self.default
        group.addoption(self.name, help=self.help, default=default, **given)


OPTIONS = (
    Option(
        "--impl",
        "the implementation to judge (default: reference): a shipped adapter "
        f"({', '.join(SHIPPED)}), the name of an entry point, "
        "package.module[:attribute], or mutant:NAME",
        "NAME",
        default="reference",
    ),
    Option(
        "--clause",
        "run only the cases that test this clause, for example GRAD-3, or the clauses "
        "that match a pattern, for example 'GRAD-*' (may be repeated); other clauses "
        "that these cases test, too, count as judged in part",
        "ID",
        repeats=True,
    ),
    Option(
        "--profile",
        "run only the cases that test a clause of this profile (may be repeated): "
        f"{', '.join(PROFILES)}",
        "NAME",
        repeats=True,
    ),
    Option(
        "--strategy",
        "run cases only with this sharing strategy (may be repeated)",
        "NAME",
        repeats=True,
    ),
    Option(
        "--start-method",
        "run cases only with this start method (may be repeated)",
        "NAME",
        repeats=True,
    ),
    Option(
        "--device",
        "the device of the tensors (may be repeated; default: cpu and simulated); "
        "results of simulated and emulated devices never count as CUDA",
        repeats=True,
        choices=("cpu", "simulated", "emulated", "cuda"),
    ),
    Option(
        "--case",
        "run only the case with this id from a report; * matches any text (may be "
        "repeated)",
        "ID",
        repeats=True,
    ),
    Option(
        "--one-per-clause",
        "run only one case of each clause, with the start method fork if it is "
        "claimed: a quick check of the whole spec in less than a minute",
    ),
    Option(
        "--shard",
        "run only part I of N parts of similar duration, for example 2/8 on the second "
        "of 8 machines; `shared-tensor-spec merge` merges their reports",
        "I/N",
        type=shard,
    ),
    Option(
        "--all-cases",
        "run every case of each known deviation (default: one case in each "
        "configuration; if it fails as expected, the others are not run and count as "
        "'follows')",
    ),
    Option(
        "--report",
        "write the report to this file during the run (JSON Lines)",
        "FILE",
    ),
    Option(
        "--timings",
        "estimate durations, for --shard and for the remaining time, from this report "
        "(default: recorded durations of the implementation, or of the reference)",
        "REPORT",
    ),
    Option(
        "--expectations",
        "the file of known deviations (default: the one shipped for the "
        "implementation)",
        "FILE",
    ),
    Option(
        "--patience",
        "time limit for loading the adapter (default: 120), and for starting a process "
        "and importing the implementation in it (default: the adapter's value)",
        "SECONDS",
        type=seconds,
    ),
    Option(
        "--case-limit",
        "time limit of a case: when a case reaches it, the suite kills the processes "
        "of the case; if the case has not ended after twice the limit, the suite exits "
        "(default: twice the adapter's patience plus 20 times its deadline, which is "
        "580 unless the adapter sets them)",
        "SECONDS",
        type=seconds,
    ),
    Option(
        "--histories",
        "how many random sequences of operations (histories) each case of "
        "test_histories.py runs; fewer if each sequence needs new processes (default: "
        "%(default)s)",
        "COUNT",
        type=positive,
        default=60,
    ),
    Option(
        "--history-seed",
        "the seed of the random histories (default: %(default)s, the same histories "
        "in every run)",
        "NUMBER",
        type=int,
        default=0,
    ),
    Option("--no-expectations", "ignore the file of known deviations"),
    Option(
        "--no-repetition",
        "do not repeat failures in fresh processes: faster, but the report cannot say "
        "whether a failure depends on earlier cases",
    ),
)

REPEATED = tuple(option for option in OPTIONS if option.repeats)
"""The options that select cases; a report records their values."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite.

    ``--strict`` is an option of pytest; the suite uses it for SHOULD clauses as well.
    """
    group = parser.getgroup(
        "conformance",
        "shared-tensor conformance (with pytest's --strict, the run also fails if a "
        "SHOULD clause is broken or a clause cannot be judged on this machine)",
    )
    for option in OPTIONS:
        option.add_to(group)


def selection_of(config: pytest.Config, implementation: Implementation) -> Selection:
    """Return the selection that the options make.

    Raises:
        pytest.UsageError: an option names something that does not exist.
    """
    given = config.option
    name = implementation.name
    given.clause[:] = _clauses(given.clause)  # a report names them one by one
    return Selection(
        clauses=tuple(given.clause),
        profiles=_known("profile", given.profile, list(PROFILES)),
        strategies=_known(
            f"strategy of {name}",
            given.strategy,
            list(implementation.strategies),
        ),
        start_methods=_known(
            f"start method of {name}",
            given.start_method,
            list(implementation.start_methods),
        ),
        devices=tuple(given.device) or ("cpu", "simulated"),
        cases=tuple(given.case),
        one_per_clause=given.one_per_clause,
    )


def _clauses(given: list[str]) -> list[str]:
    """Return the ids of the clauses that ids and patterns name, each once."""
    found: dict[str, None] = {}
    for one in given:
        ids = matching_clauses(one)
        if not ids and matching_clauses(f"{one.upper()}-*"):
            hint = f"it is a chapter: give --clause='{one.upper()}-*' for all of it"
            raise pytest.UsageError(f"{one!r} is not a clause: {hint}")
        found |= dict.fromkeys(ids or _known("clause", [one], list(load_clauses())))
    return list(found)


def _known(what: str, given: list[str], known: list[str]) -> tuple[str, ...]:
    for value in given:
        if value not in known:
            hint = _closest(value, known)
            raise pytest.UsageError(f"{value!r} is not a {what}: {hint}")
    return tuple(given)


def _closest(value: str, known: list[str]) -> str:
    for spelling in (value, value.upper(), value.lower()):
        if close := get_close_matches(spelling, known, n=1):
            return f"did you mean {close[0]}?"
    return f"choose one of {', '.join(known)}"
