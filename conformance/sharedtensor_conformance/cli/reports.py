"""``shared-tensor-spec report`` and ``diff``: show, convert and compare reports."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.cli.command import NO, YES, Command, WrongUse, write
from sharedtensor_conformance.report.badge import badge_json, badge_svg
from sharedtensor_conformance.report.diff import compare, differences
from sharedtensor_conformance.report.judge import judge
from sharedtensor_conformance.report.junit import junit_xml
from sharedtensor_conformance.report.markdown import markdown
from sharedtensor_conformance.report.page import page
from sharedtensor_conformance.report.records import Report, Summary, read_report
from sharedtensor_conformance.report.run_view import RunView
from sharedtensor_conformance.report.summary_file import summary_text
from sharedtensor_conformance.report.terminal import render

TEACHING = """\
The command prints the report as the run printed it at its end. With an option below, it
also writes the report in another format. The report of a run that was interrupted can
be shown too, and is marked as such.

examples:
  shared-tensor-spec report report.jsonl
  shared-tensor-spec report report.jsonl --all-evidence
  shared-tensor-spec report report.jsonl --junit junit.xml
  shared-tensor-spec report report.jsonl --markdown - >> "$GITHUB_STEP_SUMMARY"
  shared-tensor-spec report report.jsonl --html report.html --badge badge.svg

exit status:
  0    the report was shown, whatever its verdict"""

DIFF_TEACHING = """\
The command counts the clauses and cases that are newly broken, newly held, or no longer
judged, lists the clauses and the newly broken cases, and shows what the adapter
declares differently in the two reports. A clause or case that is broken in B but not in
A counts as newly broken.

examples:
  shared-tensor-spec diff before.jsonl after.jsonl
  shared-tensor-spec diff before.jsonl after.jsonl --cases

exit status:
  0    nothing is newly broken
  1    at least one clause or case is newly broken, whether it is known or new"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    add = parser.add_argument
    add("file", metavar="FILE", help="the report to show (JSON Lines)")
    add("--junit", metavar="FILE", help="also write JUnit XML")
    text = "also write Markdown; '-' prints Markdown instead of plain text"
    add("--markdown", metavar="FILE", help=text)
    text = "also write one self-contained HTML page"
    add("--html", metavar="FILE", help=text)
    text = "also write a badge: an image (.svg), or data for a badge service (.json)"
    add("--badge", metavar="FILE", help=text)
    text = "show all evidence of each failure"
    add("--all-evidence", action="store_true", help=text)
    text = "also write a short JSON file: the report without its cases"
    add("--summary", metavar="FILE", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print a report and write it in the requested formats."""
    draw = _badge_form(arguments.badge) if arguments.badge else None
    report = read_report(arguments.file)
    view = RunView(report.run, report.cases, _summary_of(report), load_clauses())
    if arguments.summary:
        write(arguments.summary, summary_text(report))
    if arguments.junit:
        write(arguments.junit, junit_xml(report))
    if draw:
        write(arguments.badge, draw(view))
    if arguments.html:
        write(arguments.html, page(view))
    text = markdown(view)
    if arguments.markdown == "-":
        print(text, end="")
        return YES
    if arguments.markdown:
        write(arguments.markdown, text)
    width = shutil.get_terminal_size().columns
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    shown = {"colour": colour, "file": arguments.file}
    print(render(view, width, **shown, whole=arguments.all_evidence), end="")
    return YES


def _badge_form(path: str) -> Callable[[RunView], str]:
    """Return the function that makes the badge for the file `path`.

    Raises:
        WrongUse: the file's suffix is not that of a badge.
    """
    forms = {".svg": badge_svg, ".json": badge_json}
    form = forms.get(Path(path).suffix)
    if form is None:
        raise WrongUse(f"the badge file {path} has to end with {' or '.join(forms)}")
    return form


def _summary_of(report: Report) -> Summary:
    if report.summary is not None:
        return report.summary
    judged = judge(report.run, report.cases, load_clauses(), stale=())
    return replace(judged, complete=False, conforms=False, exit_status=NO)


def add_diff_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``diff``."""
    parser.add_argument("before", metavar="A", help="the earlier report")
    parser.add_argument("after", metavar="B", help="the later report")
    parser.add_argument("--cases", action="store_true", help="list all changed cases")


def run_diff(arguments: argparse.Namespace) -> int:
    """Print what changed from one report to another."""
    before, after = read_report(arguments.before), read_report(arguments.after)
    for report in (before, after):
        if not report.complete:
            print(f"note: the run of {report.source} was cut short")
    for said in differences(before.run.implementation, after.run.implementation):
        print(f"note: B differs from A: {said}")
    comparison = compare(before, after)
    print(comparison.render(cases=arguments.cases))
    return NO if comparison.newly_broken else YES


command = Command(
    "report",
    "show a report, or convert it to HTML, Markdown, JUnit XML or a badge",
    TEACHING,
    add_options,
    run,
)
diff_command = Command(
    "diff",
    "compare two reports: list what is newly broken and what newly holds",
    DIFF_TEACHING,
    add_diff_options,
    run_diff,
)
