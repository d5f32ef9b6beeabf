"""The command ``shared-tensor-spec``: what one does with adapters, reports and mutants.

Judging itself is pytest's (``pytest conformance --impl=NAME``). Exit statuses are the
same everywhere: 0 yes, 1 no, 4 wrong use, 130 interrupted. Whatever is wrong with what
the user gave is said in one sentence on stderr; a traceback is an error of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from sharedtensor_conformance.clauses import SPEC_VERSION
from sharedtensor_conformance.cli import (
    bench,
    check_adapter,
    clauses,
    expectations,
    gate,
    merge,
    mutants,
    new_adapter,
    reports,
    reproduce,
)
from sharedtensor_conformance.cli.command import (
    INTERRUPTED,
    NO,
    STATUSES,
    WRONG_USE,
    Command,
    Parser,
    WrongUse,
)
from sharedtensor_conformance.report.gate import GateError
from sharedtensor_conformance.report.judge import JudgingError
from sharedtensor_conformance.report.records import ReportError
from sharedtensor_conformance.spec_source import SpecError

COMMANDS: tuple[Command, ...] = (
    clauses.command,
    new_adapter.command,
    check_adapter.command,
    reports.command,
    reports.diff_command,
    merge.command,
    reproduce.command,
    expectations.command,
    gate.command,
    mutants.command,
    bench.command,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments`; return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parsed = build_parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
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


def build_parser() -> Parser:
    """Return the parser of the whole command."""
    parser = Parser(
        prog="shared-tensor-spec",
        description="Work with adapters, reports and mutants of the conformance suite. "
        "To judge an implementation: pytest conformance --impl=NAME --report=FILE",
        epilog=STATUSES,
    )
    version = f"shared-tensor-spec {SPEC_VERSION}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return parser
