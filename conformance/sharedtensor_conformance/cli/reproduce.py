"""``shared-tensor-spec reproduce``: writes a failing case as a stand-alone program."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapter_trial import inspection
from sharedtensor_conformance.adapters.loader import LoadingError
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.cli.command import (
    NO,
    YES,
    Command,
    WrongUse,
    positive,
    write,
)
from sharedtensor_conformance.plugin.matrix import matches
from sharedtensor_conformance.report.records import Case, Report, read_report
from sharedtensor_conformance.report.repeat import CONFIGURING
from sharedtensor_conformance.report.verdicts import Verdict
from sharedtensor_conformance.reproduce.program import Subject, write_program
from sharedtensor_conformance.reproduce.running import ProgramResult, execute, record
from sharedtensor_conformance.reproduce.sources import Unreplayable

FAILED = frozenset({Verdict.FAIL, Verdict.CRASH, Verdict.HANG})
FORMS = (
    {"loops": True, "compares": True},
    {"loops": False, "compares": True},  # a loop has the numbers of its first turn
    {"loops": True, "compares": False},  # some answers differ between runs
    {"loops": False, "compares": False},
)
"""The forms of a program, in the order in which they are tried."""

ATTEMPTS = 3
"""How often a case is run again before the command says that it holds now."""

TEACHING = """\
The command runs the case again, records the requests that the test sends to its
processes, and writes a program that repeats them and needs only Python and the
implementation. Its function `steps` has the requests in the order of the test, with the
answers that were seen. Below it are the operations of the adapter and the functions
that run in the processes, copied from the source. Then the command runs the program, to
check that it shows the failure, and removes everything that the program leaves behind.

CASE is the id of a case as in the report, or a pattern in which * matches any text. It
has to match exactly one failing case of the report.

example:
  shared-tensor-spec reproduce report.jsonl 'test_grad.py::*[*-fork-pipe-to_peer]'

The written program exits with 0 if it shows the deviation, and with 1 if it does not.

exit status of this command:
  0    the program shows the same failure as the case
  1    it does not, or no program was written: the case holds now, or cannot be
       replayed by a program"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("report", metavar="REPORT", help="the report with the case (JSON Lines)")
    add("case", metavar="CASE", help="the id of a failing case, or a pattern")
    text = "the file to write (default: named after the test)"
    add("--output", metavar="FILE", help=text)
    text = "time limit for the case and for the program, each (default: %(default)g)"
    add("--limit", metavar="SECONDS", type=positive(float), default=180.0, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Write a case as a program; print whether it shows the failure."""
    report = read_report(arguments.report)
    case = _chosen(report, arguments.case)
    try:
        program, shown = _reproduced(report, case, arguments.limit)
    except Unreplayable as error:
        print(f"{case.id}: no program: {error}", file=sys.stderr)
        return NO
    file = arguments.output or _file_for(case)
    write(file, program)
    print(shown.output, end="")
    if shown.status == 0:
        print(f"{file} shows the failure ({program.count(chr(10))} lines).")
        return YES
    print(f"{file} does not show the failure: {_reason(case, shown)}.")
    return NO


def _reason(case: Case, shown: ProgramResult) -> str:
    """Return why a program does not show the failure of a case."""
    error = shown.own_error
    if error and error.partition(":")[0] not in case.evidence:
        return (
            f"the program is faulty ({error}); that is a defect of "
            f"`shared-tensor-spec reproduce`, so please report it with the program"
        )
    if shown.status is None:
        return "it took too long"
    return f"it exited with {shown.status}"


def _chosen(report: Report, pattern: str) -> Case:
    """Return the only failing case that a pattern matches.

    Raises:
        WrongUse: the pattern matches no failing case, or more than one.
    """
    meant = [case for case in report.cases if matches(case.id, pattern)]
    failed = [case for case in meant if case.verdict in FAILED]
    if len(failed) == 1:
        return failed[0]
    if not meant:
        raise WrongUse(f"{report.source} has no case {pattern}")
    if not failed:
        raise WrongUse(f"{pattern} matches no case that failed")
    shown = ", ".join(case.id for case in failed[:3])
    raise WrongUse(f"{pattern} matches {len(failed)} failing cases, including {shown}")


def _reproduced(report: Report, case: Case, limit: float) -> tuple[str, ProgramResult]:
    options = _options(report, case)
    subject, recorded = _record_failure(case, options, limit)
    for form in FORMS:
        program = write_program(subject, recorded, **form)
        shown = execute(program, subject.implementation, limit)
        if shown.status == 0:
            break
    return program, shown


def _record_failure(
    case: Case, options: Sequence[str], limit: float
) -> tuple[Subject, dict[str, Any]]:
    """Run the case until it fails; some cases fail only in some runs."""
    if case.leaking:
        raise Unreplayable(
            f"it judges what other cases of its run left behind, for example "
            f"{case.leaking[0]}"
        )
    implementation = _implementation(options[0].partition("=")[2])
    if implementation.name.startswith("mutant:"):
        raise Unreplayable("only the suite can insert the fault of a mutant")
    ended = ""
    for _ in range(ATTEMPTS):
        rerun = record(case.id, options, limit)
        (again,) = rerun.report.cases
        ended = again.verdict
        if again.verdict in FAILED:
            run = rerun.report.run
            version = run.implementation.version
            named = replace(implementation, version=version)
            clause = load_clauses()[case.clauses[0]]
            subject = Subject(again, clause, named, run.machine)
            return subject, rerun.events
    raise Unreplayable(f"its verdict was {ended} when it was run again")


def _implementation(name: str) -> Implementation:
    try:
        return inspection.describe(name).implementation
    except LoadingError as error:
        raise WrongUse(str(error)) from error


def _options(report: Report, case: Case) -> list[str]:
    """Return the options with which the case exists, the implementation first."""
    given = report.run.selection.options
    chosen = [option for option in given if option.startswith("--impl=")]
    # Some tests have cases for only a few of the selected configurations.
    carried = [one for one in given if one.partition("=")[0] in CONFIGURING]
    device = f"--device={case.device}"
    return [*(chosen or ["--impl=reference"]), device, *carried]


def _file_for(case: Case) -> str:
    name = re.sub(r".*::test_|\[.*", "", case.id)
    return str(Path(f"{name}.py"))


command = Command(
    "reproduce",
    "write a failing case as a program that needs only the implementation",
    TEACHING,
    add_options,
    run,
)
