"""``shared-tensor-spec expectations``: updates the file of known deviations."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

from sharedtensor_conformance.adapters.loader import IN_A_CHECKOUT, SHIPPED
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
    shipped,
)
from sharedtensor_conformance.report.expectations_update import (
    Update,
    UpdateError,
    update,
)
from sharedtensor_conformance.report.records import Report, read_report

TEACHING = """\
An expectation is a known deviation of an implementation, with its cause. It does not
make a run fail. When an implementation changes, its deviations change too: run the
suite with --all-cases and --report, then update the file of expectations from the
report.

example:
  pytest conformance --impl=torch --all-cases --report=torch.jsonl
  shared-tensor-spec expectations update torch.jsonl --dry-run

exit status:
  0    the file was updated or is up to date
  1    with --dry-run: the file would change"""

UPDATE_TEACHING = """\
What changes in the file:
  - An entry is removed if all its cases pass.
  - An axis value of an entry is removed if all cases with that value pass.
  - An entry is added for each deviation that no entry expects. Its cause is empty, and
    the suite refuses the file until you write the cause.
Comments, causes, order and formatting of the other entries stay as they are.

If the report is of a newer release than the one that `judged` names in the file, the
command writes the new release there. An entry that would be removed then stays: the
command adds the new release to its `version` as an upper bound, so that the entry still
applies to earlier releases.

Only entries that the run covered change. After a run with --clause, --profile,
--strategy or --start-method, entries for other clauses and configurations stay.
Intermittent entries and entries for other versions always stay.

examples:
  shared-tensor-spec expectations update torch.jsonl --dry-run
  shared-tensor-spec expectations update mine.jsonl --expectations mine.toml

exit status:
  0    the file was updated or is up to date
  1    with --dry-run: the file would change"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    update_command.add_to(actions)


def add_update_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``update``."""
    add = parser.add_argument
    add("report", metavar="REPORT", help="the report of a run (JSON Lines)")
    text = "the file to update or create (default: the shipped one)"
    add("--expectations", metavar="FILE", help=text)
    text = "print the changes as a diff, and write nothing"
    add("--dry-run", action="store_true", help=text)


def run_update(arguments: argparse.Namespace) -> int:
    """Update a file of expectations and print what changed."""
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
        WrongUse: there is none, or it belongs to another implementation.
    """
    name = report.run.implementation.name
    if given:
        stem = Path(given).stem
        if stem != name and stem in {*SHIPPED, *IN_A_CHECKOUT}:
            raise WrongUse(f"{given} is for {stem!r}, but the report is of {name!r}")
        return Path(given)
    if path := shipped(f"{name}.toml"):
        return path
    raise WrongUse(
        f"no file of expectations is shipped for {name!r}: give one with --expectations"
    )


def _told(found: Update, path: Path) -> Iterator[str]:
    for what in ("removed", "narrowed", "added"):
        yield from (f"{what}: {sentence}" for sentence in getattr(found, what))
    removed, narrowed, added = map(len, (found.removed, found.narrowed, found.added))
    yield f"{path}: {removed} removed, {narrowed} narrowed, {added} added"
    if added:
        yield "Write the cause of each added entry: without it the file is refused."


update_command = Command(
    "update",
    "update a file of expectations from the report of a run",
    UPDATE_TEACHING,
    add_update_options,
    run_update,
)
command = Command(
    "expectations",
    "update the file of an implementation's known deviations",
    TEACHING,
    add_options,
    run_update,
)
