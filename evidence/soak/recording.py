"""The record of a soak run: where and when it ran, its figures, and whether all held.

With ``--out``, each script writes one JSON file, whether everything held or not. The
site shows the committed records. A record contains no machine names and no paths.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from circumstances import circumstances
from sharedtensor_conformance.cli import command

STATUSES = (
    "Exit status: 0 everything held, 1 something did not hold, 4 usage error, "
    "130 interrupted."
)
WIDTH = 88
PATHS = ("--out",)
TOLD_EVERY = 10.0
"""Seconds between two lines of progress."""


class NotHeld(Exception):
    """Something that the run checks does not hold; the message is one sentence."""


class Parser(command.Parser):
    """A parser with the common option."""

    def __init__(self, description: str | None, **options: Any) -> None:
        super().__init__(
            description=(description or "").split("\n\n")[0], epilog=STATUSES, **options
        )
        self.add_argument(
            "--out", type=Path, metavar="FILE.json", help="write a record of the run"
        )


class Progress:
    """Lines on stderr with the progress of a run; `sys.maxsize` is no known total."""

    def __init__(self, total: int, things: str) -> None:
        self.total, self.things = total, things
        self.began = self.told = time.monotonic()

    def at(self, count: int, more: str = "") -> None:
        """Tell that `count` things are done, unless it was told very recently."""
        now = time.monotonic()
        if count >= self.total or now - self.told >= TOLD_EVERY:
            self.told = now
            of = "" if self.total == sys.maxsize else f" of {self.total}"
            text = f"{count}{of} {self.things}, {now - self.began:.0f} s{more}"
            print(text, file=sys.stderr, flush=True)


def seconds_since(began: float) -> float:
    """Return the seconds since `began`, for a record."""
    return round(time.monotonic() - began, 1)


def command_line(arguments: Sequence[str]) -> str:
    """Return the command that repeats this run, without paths."""
    kept, skip = [], False
    for argument in arguments:
        name, _, value = argument.partition("=")
        if not skip and name not in PATHS:
            kept.append(argument)
        skip = not skip and name in PATHS and not value
    return " ".join(["python", f"evidence/soak/{Path(sys.argv[0]).name}", *kept])


def run(
    arguments: Sequence[str] | None,
    parser: Parser,
    work: Callable[[argparse.Namespace, dict[str, Any]], str],
) -> int:
    """Do the work, write its record and print the result in one sentence.

    `work` fills in the record during the run and returns a sentence about what held, or
    raises `NotHeld`.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    record = {"command": command_line(given), **circumstances()}
    began, status = time.monotonic(), command.YES
    try:
        record["sentence"] = work(options, record)
    except NotHeld as error:
        record["sentence"], status = str(error), command.NO
    except KeyboardInterrupt:
        print(f"\n{parser.prog}: interrupted", file=sys.stderr)
        return command.INTERRUPTED
    record |= {"held": status == command.YES, "seconds": seconds_since(began)}
    if options.out is not None:
        write(options.out, record, parser)
    print(record["sentence"], file=sys.stderr if status else sys.stdout)
    return status


def write(path: Path, record: dict[str, Any], parser: Parser) -> None:
    """Write a record atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.part")
        draft.write_text(as_text(record) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        parser.error(f"the record cannot be written to {path}: {error.strerror}")


def is_row(value: Any) -> bool:
    """Return whether a value is written in one line, however long it is."""
    if isinstance(value, dict | list):
        return isinstance(value, list) and not any(isinstance(v, dict) for v in value)
    return True


def as_text(value: Any, indent: str = "") -> str:
    """Return JSON in which rows of figures, and short values, have one line each."""
    flat = json.dumps(value)
    if len(indent) + len(flat) <= WIDTH or is_row(value):
        return flat
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {as_text(v, inner)}" for k, v in value.items()]
        ends = "{}"
    else:
        items, ends = [as_text(item, inner) for item in value], "[]"
    return f"{ends[0]}\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}{ends[1]}"
