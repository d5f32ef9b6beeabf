"""``shared-tensor-spec expectations``: keeps the file of known deviations true."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from difflib import unified_diff
from importlib.resources import as_file, files
from pathlib import Path

from sharedtensor_conformance.adapters.loader import SHIPPED
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.cli.command import (
    NO,
    YES,
    Command,
    WrongUse,
    write,
)
from sharedtensor_conformance.report.expectations import (
    Expectations,
    ExpectationsError,
    load_expectations,
)
from sharedtensor_conformance.report.expectations_update import (
    Update,
    UpdateError,
    update,
)
from sharedtensor_conformance.report.records import Report, read_report

TEACHING = """\
An expectation excuses a deviation that is known, and names its cause. When an
implementation changes, so do its deviations: run the suite with --report, then update.

example:
  pytest conformance --impl=torch --report=torch.jsonl
  shared-tensor-spec expectations update torch.jsonl --dry-run"""

UPDATE_TEACHING = """\
An entry all of whose cases pass is removed; of the axis values that an entry lists,
those go whose cases pass. Each deviation that nothing expects gets an entry with an
empty cause. The suite refuses the file until somebody has written why the
implementation departs there. Comments, causes, order and form stay.

Only what the run covered changes: a run with --clause, --profile, --strategy or
--start-method says nothing of the others. Intermittent entries stay, and so do those
for other versions.

With --dry-run, status 1 says that the file would change.

examples:
  shared-tensor-spec expectations update torch.jsonl --dry-run
  shared-tensor-spec expectations update mine.jsonl --expectations mine.toml"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    update_command.add_to(actions)


def add_update_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``update``."""
    add = parser.add_argument
    add("report", metavar="REPORT", help="the report of a run (JSON Lines)")
    text = "the file to update, or to begin (default: the one that ships)"
    add("--expectations", metavar="FILE", help=text)
    text = "print the difference and write nothing"
    add("--dry-run", action="store_true", help=text)


def run_update(arguments: argparse.Namespace) -> int:
    """Update a file of expectations, and print what has changed."""
    report = read_report(arguments.report)
    path = _file_for(report, arguments.expectations)
    try:
        known = load_expectations(path) if path.exists() else Expectations()
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        found = update(text, known, report, load_clauses())
    except (ExpectationsError, UpdateError) as error:
        raise WrongUse(str(error)) from error
    if arguments.dry_run:
        diff = unified_diff(
            text.splitlines(keepends=True),
            found.text.splitlines(keepends=True),
            str(path),
            f"{path} (updated)",
        )
        print("".join(diff), end="")
        return NO if found.text != text else YES
    if found.text != text:
        write(str(path), found.text)
    for line in _told(found, path):
        print(line)
    return YES


def _file_for(report: Report, given: str | None) -> Path:
    """Return the file to update.

    Raises:
        WrongUse: there is none, or it is another implementation's.
    """
    name = report.run.implementation.name
    if given:
        stem = Path(given).stem
        if stem != name and stem in SHIPPED:
            raise WrongUse(f"{given} is about {stem!r}, and the report about {name!r}")
        return Path(given)
    shipped = files("sharedtensor_conformance.expectations").joinpath(f"{name}.toml")
    with as_file(shipped) as path:
        if path.is_file():
            return path
    raise WrongUse(f"no expectations ship for {name!r}: name a file (--expectations)")


def _told(found: Update, path: Path) -> Iterator[str]:
    for what in ("removed", "narrowed", "added"):
        yield from (f"{what}: {sentence}" for sentence in getattr(found, what))
    removed, narrowed, added = map(len, (found.removed, found.narrowed, found.added))
    yield f"{path}: {removed} removed, {narrowed} narrowed, {added} added"
    if added:
        yield "Write the cause of each that was added: the file is refused without."


update_command = Command(
    "update",
    "bring a file of expectations up to what a run has found",
    UPDATE_TEACHING,
    add_update_options,
    run_update,
)
command = Command(
    "expectations",
    "keep the file of an implementation's known deviations true",
    TEACHING,
    add_options,
    run_update,
)
