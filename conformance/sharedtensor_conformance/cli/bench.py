"""``shared-tensor-spec bench``: what sharing costs, implementations side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sharedtensor_conformance.bench import comparison, plot, table
from sharedtensor_conformance.bench.comparison import Change, ComparisonError
from sharedtensor_conformance.bench.controller import (
    Bench,
    BenchError,
    CannotStart,
    Wanted,
    parsed_interpreters,
)
from sharedtensor_conformance.bench.results import (
    Results,
    ResultsError,
    read_results,
)
from sharedtensor_conformance.bench.rows import (
    CHANNELS,
    ROWS,
    START_METHODS,
    UnknownRow,
    cells_of,
    chosen_rows,
)
from sharedtensor_conformance.bench.scaling import SIZES
from sharedtensor_conformance.cli.command import NO, YES, Command, WrongUse, positive

JOBLIB = "sharedtensor_conformance.bench.joblib_memmap"
"""A driver for the benchmark alone, which is not listed among the adapters."""

TEACHING = f"""\
Each implementation runs in processes of its own and is timed there. The batches of
all implementations take turns, so that the machine is the same for them. What is
received is verified. Where an implementation delivers a wrong value, raises, hangs or
dies, the reason stands in place of the figures, the rest is measured, and the status
is 1.

--compare says what became slower, or faster, since the run that OLD was written by,
and ends with status 1 when something became slower. Runs are compared by their ratios
to the floor, what bytes of the same size take, which is measured in the same run: so
they may be those of two machines. A line counts only beyond the spread of both runs,
where each repeat of one is above each of the other, and both have at least
{comparison.ENOUGH} repeats. Of 7 each, chance alone does that to one line in 3432.
Rows that count descriptors have no floor and are not compared. With --results two
files are compared, and nothing is measured.

rows: {", ".join(ROWS)}

examples:
  shared-tensor-spec bench --impl reference --impl torch
  shared-tensor-spec bench --impl reference --rows 'resend-*' --channel pipe
  shared-tensor-spec bench --impl reference --impl torch \\
    --python torch=/envs/torch/bin/python --json bench.json --plot bench.svg
  shared-tensor-spec bench --impl stdlib --impl {JOBLIB}
  shared-tensor-spec bench --impl reference --json new.json --compare old.json
  shared-tensor-spec bench --results new.json --compare old.json"""

MEASURES = (
    *("impl", "python", "strategy", "rows", "channel", "start_method", "repeats"),
    *("large", "scaling", "json"),
)
"""The options that say what is measured, and so mean nothing beside ``--results``."""

REPEATS = 7


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    several: dict[str, Any] = {"action": "append", "default": []}
    add = parser.add_argument
    add("--impl", metavar="NAME", help="what to measure", **several)
    text = "the interpreter of an implementation's environment"
    add("--python", metavar="IMPL=INTERPRETER", help=text, **several)
    text = "only this strategy (default: all of each)"
    add("--strategy", metavar="NAME", help=text, **several)
    text = "only rows whose name matches"
    add("--rows", metavar="PATTERN", help=text, **several)
    add("--channel", choices=CHANNELS, help="only this channel", **several)
    text = "only this start method"
    add("--start-method", choices=START_METHODS, help=text, **several)
    text = f"how often each cell is measured (default {REPEATS})"
    add("--repeats", metavar="N", type=positive(int), help=text)
    add("--large", action="store_true", help="measure the rows of 1 GiB, too")
    text = "measure how a message's cost grows, and no rows unless they are named"
    add("--scaling", action="store_true", help=text)
    add("--json", metavar="FILE", help="write all figures")
    add("--plot", metavar="FILE", help="draw them (needs matplotlib)")
    text = "say what became slower since this run (what --json wrote); status 1 if so"
    add("--compare", metavar="OLD", help=text)
    text = "take the figures from this file (what --json wrote) instead of measuring"
    add("--results", metavar="FILE", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Measure or read what was asked for, show it, write it and compare it."""
    try:
        require_one_source(arguments)
        before = read_results(arguments.compare) if arguments.compare else None
        found = read(arguments) if arguments.results else measure(arguments)
        same = YES if before is None else compare(before, found)
        return same if arguments.results else max(same, whether_all_worked(found))
    except (UnknownRow, CannotStart, ResultsError, ComparisonError) as error:
        raise WrongUse(str(error)) from error
    except (BenchError, plot.PlotError) as error:
        print(f"shared-tensor-spec: {error}", file=sys.stderr)
        return NO


def require_one_source(arguments: argparse.Namespace) -> None:
    """Refuse options that say both to measure and not to, or neither.

    Raises:
        CannotStart: that is so.
    """
    given = [name for name in MEASURES if getattr(arguments, name)]
    if arguments.results and given:
        option = given[0].replace("_", "-")
        raise CannotStart(f"--results measures nothing, so --{option} has no meaning")
    if not arguments.results and not arguments.impl:
        raise CannotStart("name what to measure (--impl), or a file (--results)")


def whether_all_worked(found: Results) -> int:
    """Say what has failed; return whether nothing has."""
    failures = found.failures
    if failures:
        more = f", and {len(failures) - 1} more" if failures[1:] else ""
        print(f"shared-tensor-spec: failed: {failures[0]}{more}", file=sys.stderr)
    return NO if failures else YES


def compare(before: Results, now: Results) -> int:
    """Show what became of a run, and return whether nothing became slower."""
    found = comparison.compared(before, now)
    print(comparison.render(found), end="")
    return NO if found.of(Change.SLOWER) else YES


def read(arguments: argparse.Namespace) -> Results:
    """Return recorded figures; show them unless they are only to be compared.

    Raises:
        ResultsError: the file holds none.
        PlotError: a plot was asked for and cannot be made.
    """
    found = read_results(arguments.results)
    if not arguments.compare:
        print(table.render(found), end="")
    if arguments.plot:
        plot.save(found, arguments.plot)
    return found


def measure(arguments: argparse.Namespace) -> Results:
    """Measure what was asked for, show it and write it.

    Raises:
        BenchError: the benchmark could not be finished, or not begun.
        UnknownRow: an option names what does not exist.
        PlotError: a plot was asked for and cannot be made.
    """
    interpreters = parsed_interpreters(arguments.python)
    for name in set(interpreters) - set(arguments.impl):
        raise UnknownRow(f"--python names {name!r}, which no --impl does")
    for path in filter(None, (arguments.json, arguments.plot)):
        _require_folder(path)
    if arguments.plot:
        plot.figure_class()  # before minutes of measuring
    wanted = [
        Wanted(name, interpreters.get(name, sys.executable))
        for name in dict.fromkeys(arguments.impl)
    ]
    bench = Bench(wanted, arguments.strategy, _announce)
    kinds = list(SIZES) if arguments.scaling else []
    repeats = arguments.repeats or REPEATS
    found = bench.run(_cells(arguments), repeats, _options(arguments), kinds)
    print(table.render(found), end="\n" if arguments.compare else "")
    if arguments.json:
        _write(arguments.json, found.as_json())
    if arguments.plot:
        plot.save(found, arguments.plot)
    return found


def _cells(arguments: argparse.Namespace) -> list[Any]:
    if arguments.scaling and not arguments.rows:
        return []
    rows = chosen_rows(arguments.rows, arguments.large)
    methods = arguments.start_method or START_METHODS
    return cells_of(rows, arguments.channel or CHANNELS, methods)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that repeat this run, but for paths."""
    names = ("impl", "strategy", "rows", "channel", "start_method", "large", "scaling")
    return {name: getattr(arguments, name) for name in names}


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}") from error


def _require_folder(path: str) -> None:
    if not Path(path).absolute().parent.is_dir():
        raise CannotStart(f"{path} cannot be written: its folder does not exist")


def _announce(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)


command = Command(
    "bench",
    "measure what sharing costs, implementations side by side",
    TEACHING,
    add_options,
    run,
)
