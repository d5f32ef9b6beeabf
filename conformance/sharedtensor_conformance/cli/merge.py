"""``shared-tensor-spec merge``: the report of a run from those of its shards."""

from __future__ import annotations

import argparse
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.cli.command import NO, YES, Command, WrongUse
from sharedtensor_conformance.report.expectations import (
    Expectations,
    ExpectationsError,
    load_expectations,
)
from sharedtensor_conformance.report.merge import MergeError, merge
from sharedtensor_conformance.report.records import (
    Report,
    ReportWriter,
    Run,
    read_report,
)
from sharedtensor_conformance.report.terminal import render

TEACHING = """\
Shards are the runs of one selection with --shard=1/N to --shard=N/N. What comes of it
is judged as one run of all of it would have been, and status 1 says that it does not
pass. Shards that do not belong together are refused.

Expected deviations are read again, since only the whole can tell which are stale: those
that ship for the implementation, or the file that the shards had.

example:
  pytest conformance --impl=torch --shard=1/2 --report=one.jsonl
  pytest conformance --impl=torch --shard=2/2 --report=two.jsonl
  shared-tensor-spec merge one.jsonl two.jsonl --output torch.jsonl"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("files", metavar="SHARD", nargs="+", help="the report of each shard")
    text = "write the merged report there"
    add("--output", metavar="REPORT", required=True, help=text)
    text = "the expected deviations that the shards had (default: as they did)"
    add("--expectations", metavar="FILE", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Merge the shards, write the report, and print it as the end of its run."""
    reports = [read_report(file) for file in arguments.files]
    clauses = load_clauses()
    try:
        known = _expectations_of(reports[0].run, arguments.expectations)
        merged = merge(reports, clauses, known)
    except (MergeError, ExpectationsError) as error:
        raise WrongUse(str(error)) from error
    summary = merged.summary
    assert summary is not None
    _write(merged, arguments.output)
    width = shutil.get_terminal_size().columns
    judged = (merged.run, merged.cases, summary, clauses)
    print(render(*judged, width, file=arguments.output), end="")
    return NO if summary.exit_status else YES


def _write(merged: Report, path: str) -> None:
    summary = merged.summary
    assert summary is not None
    with ReportWriter(path) as writer:
        writer.write(merged.run)
        for case in merged.cases:
            writer.write(case)
        writer.write(summary)


def _expectations_of(run: Run, given: str | None) -> Expectations:
    """Return what a shard expected.

    Raises:
        ExpectationsError: the file cannot be read, or is malformed.
        WrongUse: it is not known which file that was.
    """
    name = run.selection.expectations
    if name is None:
        return Expectations()
    recorded = [
        option.partition("=")[2]
        for option in run.selection.options
        if option.startswith("--expectations=")
    ]
    if path := given or next(iter(recorded), None):
        return load_expectations(Path(path), facts_of(run))
    shipped = files("sharedtensor_conformance.expectations").joinpath(name)
    with as_file(shipped) as file:
        if not file.is_file():
            raise WrongUse(f"no expectations {name} ship: name a file (--expectations)")
        return load_expectations(file, facts_of(run))


def facts_of(run: Run) -> dict[str, str]:
    """Return what the conditions of expectations depend on, on a shard's machine."""
    machine = run.machine
    return {
        "python_version": ".".join(machine.python.split(".")[:2]),
        "python_full_version": machine.python,
        "platform_machine": machine.platform,
        "platform_release": machine.kernel,
    }


command = Command(
    "merge",
    "make one report of those of all shards of a run, and judge it",
    TEACHING,
    add_options,
    run,
)
