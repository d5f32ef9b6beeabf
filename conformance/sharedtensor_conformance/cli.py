"""The command ``shared-tensor-spec``: what one does with adapters, reports and mutants.

Judging itself is pytest's (``pytest conformance --impl=NAME``). Exit statuses are the
same everywhere: 0 yes, 1 no, 4 wrong use, 130 interrupted. Whatever is wrong with what
the user gave is said in one sentence on stderr; a traceback is an error of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sharedtensor_conformance.adapter import PROFILES
from sharedtensor_conformance.clauses import SPEC_VERSION, SpecError, load_clauses
from sharedtensor_conformance.mutants.run import Outcome, run_mutants
from sharedtensor_conformance.report.diff import compare
from sharedtensor_conformance.report.gate import GateError, decide, required_profiles
from sharedtensor_conformance.report.judge import JudgingError, judge
from sharedtensor_conformance.report.junit import junit_xml
from sharedtensor_conformance.report.markdown import markdown
from sharedtensor_conformance.report.records import (
    Report,
    ReportError,
    Summary,
    read_report,
)
from sharedtensor_conformance.report.terminal import plural, render

if TYPE_CHECKING:
    from sharedtensor_conformance.mutants.registry import Mutant

YES, NO, WRONG_USE, INTERRUPTED = 0, 1, 4, 130

STATUSES = "exit status: 0 yes, 1 no, 4 wrong use, 130 interrupted"


class WrongUse(Exception):
    """The command was used wrongly; the message is one sentence."""


class _Parser(argparse.ArgumentParser):
    """A parser that answers wrong use with one sentence and status 4."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments`; return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    parsed = build_parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.command
    try:
        status = command(parsed)
        sys.stdout.flush()
        return status
    except (WrongUse, ReportError, GateError, JudgingError, SpecError) as error:
        print(f"shared-tensor-spec: {error}", file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        print("shared-tensor-spec: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough, as `head` does; Python would
        # complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = _Parser(
        prog="shared-tensor-spec",
        description="Work with adapters, reports and mutants of the conformance suite. "
        "To judge an implementation: pytest conformance --impl=NAME --report=FILE",
        epilog=STATUSES,
    )
    parser.add_argument(
        "--version", action="version", version=f"shared-tensor-spec {SPEC_VERSION}"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        _add_check,
        _add_report,
        _add_diff,
        _add_gate,
        _add_mutants,
        _add_bench,
    ):
        add(commands)
    return parser


if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[_Parser]


def _command(
    commands: _Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    purpose: str,
    teaching: str,
) -> _Parser:
    parser = commands.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        epilog=f"{teaching}\n\n{STATUSES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=run)
    return parser


def _add_check(commands: _Commands) -> None:
    parser = _command(
        commands,
        "check-adapter",
        _check_adapter,
        "say what is wrong with an adapter, before anything is judged",
        "The adapter is loaded in a child process, so it cannot harm this one. Claims "
        "without\ntheir operations and operations without their claim are problems.\n\n"
        "example:\n  shared-tensor-spec check-adapter mypackage.conformance",
    )
    parser.add_argument(
        "name", metavar="NAME", help="what --impl takes: a name or package.module"
    )


def _add_report(commands: _Commands) -> None:
    parser = _command(
        commands,
        "report",
        _report,
        "show a report as the end of its run, as JUnit XML or as Markdown",
        "The report of a run that was cut short can be shown too; it says so.\n\n"
        "examples:\n  shared-tensor-spec report report.jsonl\n"
        "  shared-tensor-spec report report.jsonl --junit junit.xml\n"
        "  shared-tensor-spec report report.jsonl --markdown - "
        '>> "$GITHUB_STEP_SUMMARY"',
    )
    parser.add_argument("file", metavar="FILE", help="a report (JSON Lines)")
    parser.add_argument("--junit", metavar="FILE", help="write JUnit XML as well")
    parser.add_argument(
        "--markdown",
        metavar="FILE",
        help="write Markdown as well; '-' prints it instead of the terminal's text",
    )


def _add_diff(commands: _Commands) -> None:
    parser = _command(
        commands,
        "diff",
        _diff,
        "compare two reports: what is newly broken, what newly holds",
        "Status 1 says that something is newly broken, expected or not.\n\n"
        "example:\n  shared-tensor-spec diff before.jsonl after.jsonl",
    )
    parser.add_argument("before", metavar="A", help="the earlier report")
    parser.add_argument("after", metavar="B", help="the later report")


def _add_gate(commands: _Commands) -> None:
    parser = _command(
        commands,
        "gate",
        _gate,
        "decide from reports whether profiles hold, for CI",
        "The gate is open when every MUST clause of each required profile was judged "
        "and held\nin whole runs of the installed spec. Reports of one implementation "
        "and version add up,\nsay one from a CPU runner and one from a GPU runner. "
        "Results of the simulated device\nnever count for the profile cuda, and an "
        "expected deviation is a deviation.\n\n"
        f"profiles: {', '.join(PROFILES)}\n\n"
        "example:\n"
        "  shared-tensor-spec gate cpu.jsonl gpu.jsonl --require core,grad,cuda",
    )
    parser.add_argument("files", metavar="REPORT", nargs="+", help="reports to add up")
    parser.add_argument(
        "--require", metavar="PROFILE,...", required=True, help="what has to hold"
    )
    parser.add_argument(
        "--strict", action="store_true", help="SHOULD clauses have to hold as well"
    )
    parser.add_argument(
        "--allow-expected",
        action="store_true",
        help="let deviations through that an expectation covers",
    )


def _add_mutants(commands: _Commands) -> None:
    parser = _command(
        commands,
        "mutants",
        _mutants,
        "list the mutants of the reference, or see whether the suite kills them",
        "A mutant is the reference with one fault. It is killed when a test that cites "
        "one of\nits clauses fails, crashes or hangs. Status 1 says that one was not."
        "\n\nexamples:\n  shared-tensor-spec mutants\n"
        "  shared-tensor-spec mutants --run --jobs 2 drops_grad",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these mutants")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--run", action="store_true", help="run the suite on each")
    parser.add_argument(
        "--others",
        choices=["one-per-clause", "whole"],
        default="",
        help="name the other clauses that break, too: of one case of each, or of all "
        "cases under fork",
    )
    parser.add_argument(
        "--jobs", metavar="N", type=_positive(int), default=1, help="runs at a time"
    )
    parser.add_argument(
        "--limit",
        metavar="SECONDS",
        type=_positive(float),
        default=300.0,
        help="the time that one mutant's run may take (default %(default)g)",
    )


def _add_bench(commands: _Commands) -> None:
    from sharedtensor_conformance.bench.command import TEACHING, add_options

    purpose = "measure what sharing costs, implementations side by side"
    add_options(_command(commands, "bench", _bench, purpose, TEACHING), _positive)


def _positive(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    def convert(text: str) -> int | float:
        number = kind(text)
        if not 0 < number < float("inf"):
            raise ValueError(text)
        return number

    convert.__name__ = f"positive {kind.__name__}"  # argparse names it in its sentence
    return convert


def _check_adapter(arguments: argparse.Namespace) -> int:
    from sharedtensor_conformance.adapters.loader import LoadingError
    from sharedtensor_conformance.harness.inspection import describe

    try:
        described = describe(arguments.name)
    except LoadingError as error:
        raise WrongUse(str(error)) from error
    implementation = described.implementation
    print(f"{implementation.name} {implementation.version}".strip())
    print(f"  claims: {', '.join(sorted(implementation.claims))}")
    print(f"  operations: {', '.join(described.operations)}")
    for problem in described.problems:
        print(f"problem: {problem}")
    print(f"{plural(len(described.problems), 'problem')}")
    return NO if described.problems else YES


def _report(arguments: argparse.Namespace) -> int:
    report = read_report(arguments.file)
    summary, clauses = _summary_of(report), load_clauses()
    if arguments.junit:
        _write(arguments.junit, junit_xml(report))
    page = markdown(report.run, report.cases, summary, clauses)
    if arguments.markdown == "-":
        print(page, end="")
        return YES
    if arguments.markdown:
        _write(arguments.markdown, page)
    width = shutil.get_terminal_size().columns
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    end = render(report.run, report.cases, summary, clauses, width, colour=colour)
    print(end, end="")
    return YES


def _summary_of(report: Report) -> Summary:
    if report.summary is not None:
        return report.summary
    selection = report.run.selection
    judged = judge(
        report.run,
        report.cases,
        load_clauses(),
        strict=selection.strict,
        full=selection.full,
        stale=(),
    )
    return replace(judged, complete=False, conforms=False, exit_status=NO)


def _write(path: str, content: str) -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise WrongUse(f"{path} cannot be written: {error.strerror}") from error


def _diff(arguments: argparse.Namespace) -> int:
    before, after = read_report(arguments.before), read_report(arguments.after)
    for report in (before, after):
        if not report.complete:
            print(f"note: {report.source} is of a run that was cut short")
    if before.run.implementation != after.run.implementation:
        names = f"{before.run.implementation} and {after.run.implementation}"
        print(f"note: the reports are of {names}, or of different claims")
    comparison = compare(before, after)
    print(comparison.render())
    return NO if comparison.newly_broken else YES


def _gate(arguments: argparse.Namespace) -> int:
    profiles = required_profiles(arguments.require)
    reports = [read_report(file) for file in arguments.files]
    decision = decide(
        reports,
        profiles,
        load_clauses(),
        strict=arguments.strict,
        allow_expected=arguments.allow_expected,
    )
    for sentence in decision.tolerated:
        print(f"tolerated: {sentence}")
    for sentence in decision.missing:
        print(f"missing: {sentence}")
    said = "open" if decision.open else "closed"
    held = plural(len(decision.held), "clause")
    print(f"gate {said} for {', '.join(profiles)}: {held} held", end="")
    print(f", {len(decision.tolerated)} tolerated, {len(decision.missing)} missing")
    return YES if decision.open else NO


def _mutants(arguments: argparse.Namespace) -> int:
    chosen = _chosen_mutants(arguments.names)
    if arguments.run:
        return _run_mutants(chosen, arguments)
    if arguments.json:
        known = ("name", "clauses", "sentence", "file", "line")
        listed = [{key: getattr(mutant, key) for key in known} for mutant in chosen]
        print(json.dumps(listed, indent=1))
    else:
        for mutant in chosen:
            print(f"{mutant.name}  [{' '.join(mutant.clauses)}]  {mutant.sentence}")
    return YES


def _chosen_mutants(names: Sequence[str]) -> list[Mutant]:
    from sharedtensor_conformance.mutants.registry import catalogue

    known = {mutant.name: mutant for mutant in catalogue()}
    for name in names:
        if name not in known:
            raise WrongUse(f"there is no mutant {name!r}; 'mutants' lists them")
    return [known[name] for name in names] if names else list(known.values())


def _run_mutants(mutants: Sequence[Mutant], arguments: argparse.Namespace) -> int:
    def announce(outcome: Outcome) -> None:
        print(outcome, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    outcomes = run_mutants(
        mutants,
        jobs=arguments.jobs,
        limit=arguments.limit,
        announce=announce,
        others=arguments.others,
    )
    killed = sum(outcome.fate == "killed" for outcome in outcomes)
    if arguments.json:
        print(json.dumps([outcome.as_data() for outcome in outcomes], indent=1))
    else:
        print(f"{killed} of {plural(len(outcomes), 'mutant')} killed")
    return YES if outcomes and killed == len(outcomes) else NO


def _bench(arguments: argparse.Namespace) -> int:
    from sharedtensor_conformance.bench.command import run
    from sharedtensor_conformance.bench.controller import BenchError, CannotStart
    from sharedtensor_conformance.bench.plot import PlotError
    from sharedtensor_conformance.bench.rows import UnknownRow

    try:
        run(arguments)
    except (UnknownRow, CannotStart) as error:
        raise WrongUse(str(error)) from error
    except (BenchError, PlotError) as error:
        print(f"shared-tensor-spec: {error}", file=sys.stderr)
        return NO
    return YES


if __name__ == "__main__":
    sys.exit(main())
