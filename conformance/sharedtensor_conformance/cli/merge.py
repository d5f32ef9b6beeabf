"""``shared-tensor-spec merge``: merges the reports of the shards of a run into one."""

from __future__ import annotations

import argparse
import shutil
from contextlib import closing
from pathlib import Path

from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.cli.command import NO, YES, Command, WrongUse
from sharedtensor_conformance.report.expectations import (
    Expectations,
    ExpectationsError,
    load_expectations,
    shipped,
)
from sharedtensor_conformance.report.merge import MergeError, merge
from sharedtensor_conformance.report.records import (
    Report,
    ReportWriter,
    Run,
    read_report,
)
from sharedtensor_conformance.report.run_view import RunView
from sharedtensor_conformance.report.terminal import render

TEACHING = """\
The shards of a run are the runs with the options --shard=1/N to --shard=N/N and
otherwise the same selection. The merged report is judged like the report of one run
without --shard. Reports that do not belong to the same run are refused.

The known deviations are read again, because only a complete run shows which of them
are stale. They are read from the file that the shards used.

example:
  pytest conformance --impl=torch --shard=1/2 --report=one.jsonl
  pytest conformance --impl=torch --shard=2/2 --report=two.jsonl
  shared-tensor-spec merge one.jsonl two.jsonl --output torch.jsonl

exit status:
  0    the merged run passes: every MUST that was claimed and selected was judged and
       held, apart from known deviations
  1    the merged run does not pass"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("files", metavar="SHARD", nargs="+", help="the reports of all shards")
    text = "the file for the merged report"
    add("--output", metavar="REPORT", required=True, help=text)
    text = "the file of known deviations (default: the one that the shards used)"
    add("--expectations", metavar="FILE", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Merge the shards, write the merged report and print it."""
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
    view = RunView(merged.run, merged.cases, summary, clauses)
    print(render(view, width, file=arguments.output), end="")
    return NO if summary.exit_status else YES


def _write(merged: Report, path: str) -> None:
    summary = merged.summary
    assert summary is not None
    with closing(ReportWriter(path)) as writer:
        writer.write(merged.run)
        for case in merged.cases:
            writer.write(case)
        writer.write(summary)


def _expectations_of(run: Run, given: str | None) -> Expectations:
    """Return the expectations that a shard was run with.

    Raises:
        ExpectationsError: the file cannot be read, or is malformed.
        WrongUse: the file is not among the shipped ones, so it has to be given.
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
    file = shipped(name)
    if file is None:
        raise WrongUse(f"{name} is not a shipped file: give it with --expectations")
    return load_expectations(file, facts_of(run))


def facts_of(run: Run) -> dict[str, str]:
    """Return the facts about a shard's machine that ``when`` conditions depend on."""
    machine = run.machine
    return {
        "python_version": ".".join(machine.python.split(".")[:2]),
        "python_full_version": machine.python,
        "platform_machine": machine.platform,
        "platform_release": machine.kernel,
    }


command = Command(
    "merge",
    "merge the reports of all shards of a run into one report, and judge it",
    TEACHING,
    add_options,
    run,
)
