"""``shared-tensor-spec bench``: measures and compares what sharing tensors costs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sharedtensor_conformance.cli.command import (
    NO,
    YES,
    Command,
    WrongUse,
    listed,
    positive,
)

from sharedtensor_bench import comparison, table
from sharedtensor_bench.comparison import (
    MIN_REPEATS,
    Change,
    ComparisonError,
)
from sharedtensor_bench.controller import (
    Bench,
    BenchError,
    CannotStart,
    RequestedImplementation,
    parsed_interpreters,
)
from sharedtensor_bench.results import (
    Results,
    ResultsError,
    read_results,
)
from sharedtensor_bench.rows import (
    CHANNELS,
    ROWS,
    START_METHODS,
    UnknownRow,
    cells_of,
    chosen_rows,
)
from sharedtensor_bench.scaling import SIZES

JOBLIB = "sharedtensor_bench.joblib_memmap"
"""A driver for the benchmark only; it is not one of the adapters."""

TEACHING = f"""\
Each implementation runs in its own processes and is timed inside them. The batches of
all implementations alternate, so that a change of the machine's speed affects all of
them. Received values are verified. If an implementation delivers a wrong value, raises
an exception, hangs or crashes, the table shows the reason in place of the figures, the
other rows are measured, and the exit status is 1.

--compare lists what became slower or faster since the run that wrote OLD. Each line is
compared by its ratio to the floor (the time that bytes of the same size take), which is
measured in the same run. So the two runs may come from different machines. A line
counts as slower or faster only if each repeat of one run is above each repeat of the
other, and both runs have at least {MIN_REPEATS} repeats. With 7 repeats each,
chance alone causes that in one line of 3432. Rows that count descriptors have no floor
and are not compared. With --results, two files are compared and nothing is measured.

rows:
{listed(ROWS)}

examples:
  shared-tensor-spec bench --impl reference --impl torch
  shared-tensor-spec bench --impl reference --rows 'resend-*' --channel pipe
  shared-tensor-spec bench --impl reference --impl torch \\
    --python torch=/envs/torch/bin/python --json bench.json
  shared-tensor-spec bench --impl stdlib --impl {JOBLIB}
  shared-tensor-spec bench --impl reference --json new.json --compare old.json
  shared-tensor-spec bench --results new.json --compare old.json

exit status:
  0    nothing failed, and with --compare nothing became slower
  1    an implementation failed, something became slower, or the benchmark could not
       be finished"""

MEASURES = (
    *("impl", "python", "strategy", "rows", "channel", "start_method", "repeats"),
    *("large", "scaling", "json"),
)
"""The options that select what is measured; they are not allowed with ``--results``."""

REPEATS = 7


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    several: dict[str, Any] = {"action": "append", "default": []}
    add = parser.add_argument
    text = "implementation to measure (may be repeated)"
    add("--impl", metavar="NAME", help=text, **several)
    text = "run this implementation with another Python interpreter (may be repeated)"
    add("--python", metavar="IMPL=INTERPRETER", help=text, **several)
    text = "measure only this strategy (may be repeated; default: all that are claimed)"
    add("--strategy", metavar="NAME", help=text, **several)
    text = "measure only matching rows, for example 'resend-*' (may be repeated)"
    add("--rows", metavar="PATTERN", help=text, **several)
    text = "measure only with this channel (may be repeated)"
    add("--channel", choices=CHANNELS, help=text, **several)
    text = "measure only with this start method (may be repeated)"
    add("--start-method", choices=START_METHODS, help=text, **several)
    text = f"how often each cell is measured (default: {REPEATS})"
    add("--repeats", metavar="N", type=positive(int), help=text)
    add("--large", action="store_true", help="also measure the rows of 1 GiB")
    text = "measure how the cost of a message grows; no rows without --rows"
    add("--scaling", action="store_true", help=text)
    add("--json", metavar="FILE", help="write all figures to a JSON file")
    text = "compare with an earlier run (a file that --json wrote)"
    add("--compare", metavar="OLD", help=text)
    text = "read the figures from a file that --json wrote instead of measuring"
    add("--results", metavar="FILE", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Measure or read the figures, then show, write and compare them."""
    try:
        require_one_source(arguments)
        before = read_results(arguments.compare) if arguments.compare else None
        found = read(arguments) if arguments.results else measure(arguments)
        same = YES if before is None else compare(before, found)
        return same if arguments.results else max(same, whether_all_worked(found))
    except (UnknownRow, CannotStart, ResultsError, ComparisonError) as error:
        raise WrongUse(str(error)) from error
    except BenchError as error:
        print(f"shared-tensor-spec: {error}", file=sys.stderr)
        return NO


def require_one_source(arguments: argparse.Namespace) -> None:
    """Require either options that say what to measure, or ``--results``.

    Raises:
        CannotStart: both are given, or none.
    """
    given = [name for name in MEASURES if getattr(arguments, name)]
    if arguments.results and given:
        option = given[0].replace("_", "-")
        raise CannotStart(f"--results measures nothing, so --{option} is not allowed")
    if not arguments.results and not arguments.impl:
        raise CannotStart("name what to measure (--impl), or a file (--results)")


def whether_all_worked(found: Results) -> int:
    """Print the first failure and how many there are; return the exit status."""
    failures = found.failures
    if failures:
        more = f", and {len(failures) - 1} more" if failures[1:] else ""
        print(f"shared-tensor-spec: failed: {failures[0]}{more}", file=sys.stderr)
    return NO if failures else YES


def compare(before: Results, now: Results) -> int:
    """Print what became slower or faster; return the exit status."""
    found = comparison.compared(before, now)
    print(comparison.render(found), end="")
    return NO if found.of(Change.SLOWER) else YES


def read(arguments: argparse.Namespace) -> Results:
    """Return recorded figures; print them unless they are only compared.

    Raises:
        ResultsError: the file has no figures.
    """
    found = read_results(arguments.results)
    if not arguments.compare:
        print(table.render(found), end="")
    return found


def measure(arguments: argparse.Namespace) -> Results:
    """Measure the chosen rows, then print and write the figures.

    Raises:
        BenchError: the benchmark could not be started or finished.
        UnknownRow: an option names a row or an implementation that does not exist.
    """
    interpreters = parsed_interpreters(arguments.python)
    for name in set(interpreters) - set(arguments.impl):
        raise UnknownRow(f"--python names {name!r}, which no --impl names")
    if arguments.json:
        _require_folder(arguments.json)
    requested = [
        RequestedImplementation(name, interpreters.get(name, sys.executable))
        for name in dict.fromkeys(arguments.impl)
    ]
    bench = Bench(requested, arguments.strategy, _announce)
    kinds = list(SIZES) if arguments.scaling else []
    repeats = arguments.repeats or REPEATS
    found = bench.run(_cells(arguments), repeats, _options(arguments), kinds)
    print(table.render(found), end="\n" if arguments.compare else "")
    if arguments.json:
        _write(arguments.json, found.as_json())
    return found


def _cells(arguments: argparse.Namespace) -> list[Any]:
    if arguments.scaling and not arguments.rows:
        return []
    rows = chosen_rows(arguments.rows, arguments.large)
    methods = arguments.start_method or START_METHODS
    return cells_of(rows, arguments.channel or CHANNELS, methods)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that repeat this run, without file names."""
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
    "measure what sharing tensors costs, for several implementations side by side",
    TEACHING,
    add_options,
    run,
)
