"""``python -m bench``: measures what sharing tensors costs, side by side."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.cli.command import (
    INTERRUPTED,
    NO,
    YES,
    Parser,
    listed,
    positive,
)
from sharedtensor_conformance.harness.case.outcomes import HarnessFault

from bench.driver import CannotStart, Driver, MeasurementFailed
from bench.results import (
    FAILED,
    NOT_CLAIMED,
    SCHEMA,
    Result,
    as_json,
    machine,
    table,
)
from bench.rows import AXES, ROWS, STRATEGIES, Cell, UnknownRow, cells_of, chosen_rows

REPEATS = 7

TEACHING = f"""\
If an implementation delivers a wrong value, raises an exception, hangs or crashes, the
table shows the reason in place of the figures, and the other rows are measured.

rows:
{listed(ROWS)}

examples:
  python -m bench --impl reference --impl torch
  python -m bench --impl reference --rows 'resend-*' --channel pipe
  python -m bench --impl reference --impl torch=/envs/torch/bin/python --json new.json
  python -m bench --impl stdlib --impl bench.joblib_memmap

exit status:
  0    nothing failed
  1    an implementation failed, or the benchmark could not be finished
  4    usage error: an unknown option or name, or a file that cannot be written
  130  interrupted (Ctrl-C)"""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        prog="python -m bench",
        description="Measure what sharing tensors costs, for several implementations.",
        epilog=TEACHING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    several: dict[str, Any] = {"action": "append", "default": []}
    add = made.add_argument
    text = "an implementation, with the interpreter of its environment unless that is "
    text += "this one (may be repeated); the others are compared with the first"
    metavar = "NAME[=INTERPRETER]"
    add("--impl", metavar=metavar, help=text, required=True, **several)
    text = (
        "measure only this strategy, where an implementation has it (may be repeated)"
    )
    add("--strategy", choices=STRATEGIES, help=text, **several)
    text = "measure only matching rows, for example 'resend-*' (may be repeated; "
    text += "default: all but that of 1 GiB)"
    add("--rows", metavar="PATTERN", help=text, **several)
    for axis, values in AXES.items():
        text = f"measure only with this {axis.replace('_', ' ')} (may be repeated)"
        add(f"--{axis.replace('_', '-')}", choices=values, help=text, **several)
    text = "how often each cell is measured (default: %(default)s)"
    add("--repeats", metavar="N", type=positive(int), default=REPEATS, help=text)
    add("--json", metavar="FILE", type=writable, help="write all figures to a file")
    return made


def writable(text: str) -> Path:
    """Return the path of a file that can be written, before minutes are spent."""
    try:
        open(text, "a").close()
    except OSError as error:
        why = f"{text} cannot be written: {error.strerror}"
        raise argparse.ArgumentTypeError(why) from None
    return Path(text)


def why_absent(implementation: Implementation, cell: Cell) -> str:
    """Return why an implementation is not measured in a cell, or ""."""
    missing = set(ROWS[cell.row].needs) - implementation.claims
    missing |= {cell.channel} - {"", *implementation.channels}
    missing |= {cell.start_method} - {"", *implementation.start_methods}
    return f"{NOT_CLAIMED}: {', '.join(sorted(missing))}" if missing else ""


class Bench:
    """One run, with a driver for each implementation under each of its strategies."""

    def __init__(self) -> None:
        self.drivers: list[Driver] = []
        self.results: dict[tuple[str, str, Cell], Result] = {}

    def start(self, requested: str, wanted: Sequence[str]) -> None:
        """Start the drivers of one implementation, ``NAME[=INTERPRETER]``.

        Raises:
            CannotStart: it cannot be loaded, or its name is another one's.
        """
        name, _, interpreter = requested.partition("=")
        path = shutil.which(interpreter or sys.executable)
        if path is None:
            raise CannotStart(f"there is no interpreter {interpreter!r}")
        with closing(Driver(name, path)) as first:
            implementation = first.implementation
        if any(one.implementation.name == implementation.name for one in self.drivers):
            raise CannotStart(f"two implementations are called {implementation.name!r}")
        offered = implementation.strategies
        for strategy in [one for one in offered if one in wanted] or offered:
            self.drivers.append(Driver(name, path, strategy))

    def close(self) -> None:
        """End all drivers; if one cannot be ended, the others still are."""
        with ExitStack() as stack:
            for driver in self.drivers:
                stack.callback(driver.close)

    def measure_in_turn(self, cell: Cell, repeat: int) -> None:
        """Measure a cell once with all drivers, one after the other.

        Each repeat begins with another driver. The first one may have to wait until the
        host provides memory, and the others reuse that memory.
        """
        begins = repeat % len(self.drivers)
        for driver in self.drivers[begins:] + self.drivers[:begins]:
            self.measure(driver, cell)

    def measure(self, driver: Driver, cell: Cell) -> None:
        """Add one sample to the result of a cell, or the reason for a failure.

        After a failure the driver is restarted, and the other cells are measured.
        """
        result = self.result_of(driver, cell)
        if result.absent:
            return
        try:
            result.add(*driver.measure(cell))
        except MeasurementFailed as failure:
            tell(f"{result.implementation} {result.strategy} {failure}")
            result.fail(str(failure))
            self.drivers[self.drivers.index(driver)] = driver.again()

    def result_of(self, driver: Driver, cell: Cell) -> Result:
        """Return the result of a cell, which may not have figures yet."""
        key = driver.implementation.name, driver.strategy, cell
        if key not in self.results:
            self.results[key] = Result.of(*key)
            self.results[key].absent = why_absent(driver.implementation, cell)
        return self.results[key]


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return the data of a run.

    Raises:
        CannotStart, UnknownRow: an option names something that does not exist.
        HarnessFault, MeasurementFailed: a driver could not be started or restarted.
    """
    chosen = {axis: getattr(options, axis) or AXES[axis] for axis in AXES}
    cells = cells_of(chosen_rows(options.rows), chosen)
    now, where = datetime.now(UTC), machine()
    with closing(Bench()) as bench:
        for requested in dict.fromkeys(options.impl):
            bench.start(requested, options.strategy)
        subjects = [described(driver) for driver in bench.drivers]
        for repeat in range(options.repeats):
            tell(f"repeat {repeat + 1} of {options.repeats}, {len(cells)} cells")
            for cell in cells:
                bench.measure_in_turn(cell, repeat)
    return {
        "schema": SCHEMA,
        "started": now.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - now).total_seconds(), 1),
        "machine": where,
        "options": {"repeats": options.repeats, "rows": options.rows, **chosen},
        "implementations": subjects,
        "results": [asdict(result) for result in bench.results.values()],
    }


def described(driver: Driver) -> dict[str, str]:
    """Return what is measured: an implementation under a strategy, and its versions."""
    found = driver.implementation
    names = {"implementation": found.name, "strategy": driver.strategy}
    return names | {"version": found.version, "python": driver.python}


def tell(words: str) -> None:
    """Tell about the progress."""
    print(f"bench: {words}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, then show and write the figures; return the exit status."""
    read = parser()
    options = read.parse_args(arguments)
    try:
        data = measured(options)
    except (CannotStart, UnknownRow) as error:
        read.error(str(error))
    except (HarnessFault, MeasurementFailed) as error:
        tell(str(error))
        return NO
    except KeyboardInterrupt:
        tell("interrupted")
        return INTERRUPTED
    if options.json:
        options.json.write_text(as_json(data), encoding="utf-8")
    results = [Result(**result) for result in data["results"]]
    print(*table(results), sep="\n")
    return NO if any(one.absent.startswith(FAILED) for one in results) else YES


if __name__ == "__main__":
    sys.exit(main())
