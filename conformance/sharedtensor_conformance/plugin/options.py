"""The options of the suite: a table, and the selection that they come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pytest

from sharedtensor_conformance.adapter import PROFILES, Implementation
from sharedtensor_conformance.adapters.loader import SHIPPED
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.matrix import Selection
from sharedtensor_conformance.plugin.shards import shard


def seconds(text: str) -> float:
    """Return a positive number of seconds.

    Raises:
        ValueError: the text is none.
    """
    found = float(text)
    if not 0 < found < 1e6:
        raise ValueError(f"{text} is no positive number of seconds")
    return found


def positive(text: str) -> int:
    """Return a positive number.

    Raises:
        ValueError: the text is none.
    """
    count = int(text)
    if count < 1:
        raise ValueError(f"{text} is no positive number")
    return count


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        name: its name, such as ``--clause``.
        help: what ``--help`` says.
        metavar: what stands there for its value; None: it has no value.
        repeats: it may be given several times.
        type: makes the value of the text, and raises where it cannot.
        choices: all its values, where they are few.
        default: the value where it is not given.
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
        """Add the option to pytest's."""
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
        f"implementation to judge: a shipped adapter ({', '.join(SHIPPED)}), an "
        "entry point, mutant:NAME, or package.module[:attribute]",
        "NAME",
        default="reference",
    ),
    Option(
        "--clause",
        "judge only this clause, such as GRAD-3 (may be repeated)",
        "ID",
        repeats=True,
    ),
    Option(
        "--profile",
        f"judge only this profile (may be repeated): {', '.join(PROFILES)}",
        "NAME",
        repeats=True,
    ),
    Option(
        "--strategy",
        "only under this sharing strategy (may be repeated)",
        "NAME",
        repeats=True,
    ),
    Option(
        "--start-method",
        "only under this start method (may be repeated)",
        "NAME",
        repeats=True,
    ),
    Option(
        "--device",
        "where tensors live (may be repeated; default: cpu and simulated); "
        "simulated and emulated results never count as CUDA",
        repeats=True,
        choices=("cpu", "simulated", "emulated", "cuda"),
    ),
    Option(
        "--case",
        "only the case with this id, as a report names it; * matches anything",
        "ID",
        repeats=True,
    ),
    Option(
        "--one-per-clause",
        "only one case for each clause, under fork where that is claimed: a look at "
        "the whole spec in seconds",
    ),
    Option(
        "--shard",
        "only part I of N parts of about the same duration, such as 2/8, for N "
        "machines; `shared-tensor-spec merge` makes one report of theirs",
        "I/N",
        type=shard,
    ),
    Option(
        "--all-cases",
        "run all cases of known deviations, not one for each in a configuration",
    ),
    Option(
        "--report",
        "write the report, JSON Lines, as the run goes on",
        "FILE",
    ),
    Option(
        "--timings",
        "a report whose durations balance --shard and tell the time left (default: "
        "what was recorded of the implementation, else of the reference)",
        "REPORT",
    ),
    Option(
        "--expectations",
        "expected deviations (default: those shipped for the implementation)",
        "FILE",
    ),
    Option(
        "--patience",
        "seconds that the adapter may take to load, and a process to start and to "
        "import the implementation (default: what the adapter says)",
        "SECONDS",
        type=seconds,
    ),
    Option(
        "--case-limit",
        "seconds after which a case loses its processes, whatever hangs; after as "
        "long again the run exits (default: far more than a case can need)",
        "SECONDS",
        type=seconds,
    ),
    Option(
        "--histories",
        "random histories that a case about them takes (default: %(default)s)",
        "COUNT",
        type=positive,
        default=60,
    ),
    Option(
        "--history-seed",
        "which histories are taken (default: 0, so always the same)",
        "NUMBER",
        type=int,
        default=0,
    ),
    Option("--no-expectations", "expect no deviation at all"),
    Option(
        "--no-repetition",
        "do not repeat a failure in fresh processes: it is told sooner, and not "
        "whether it depends on what ran before",
    ),
)

REPEATED = tuple(option for option in OPTIONS if option.repeats)
"""The options that select cases: a report names what was given for them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite.

    ``--strict`` is pytest's own; here it also lets SHOULD clauses decide.
    """
    group = parser.getgroup(
        "conformance",
        "shared-tensor conformance (with pytest's --strict, SHOULD clauses decide too)",
    )
    for option in OPTIONS:
        option.add_to(group)


def selection_of(config: pytest.Config, implementation: Implementation) -> Selection:
    """Return what the options choose.

    Raises:
        pytest.UsageError: they name what is not there.
    """
    given = config.option
    name = implementation.name
    return Selection(
        clauses=_known("clause", given.clause, list(load_clauses())),
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


def _known(what: str, given: list[str], known: list[str]) -> tuple[str, ...]:
    for value in given:
        if value not in known:
            hint = _closest(value, known)
            raise pytest.UsageError(f"there is no {what} {value!r}: {hint}")
    return tuple(given)


def _closest(value: str, known: list[str]) -> str:
    for spelling in (value, value.upper(), value.lower()):
        if close := get_close_matches(spelling, known, n=1):
            return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}"
