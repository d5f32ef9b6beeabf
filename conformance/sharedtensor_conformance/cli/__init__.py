"""The command ``shared-tensor-spec``: works with adapters, reports and mutants.

The suite itself is run with pytest (``pytest conformance --impl=NAME``). The exit
statuses mean the same in all commands: 0 success or yes, 1 failure or no, 4 usage
error, 130 interrupted. A usage error is reported in one sentence on stderr. A traceback
means a bug in this package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from sharedtensor_conformance.clauses import SPEC_VERSION
from sharedtensor_conformance.cli import (
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
        # The reader of our output has closed the pipe, as `head` does. Without this,
        # Python would raise the error again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO


def build_parser() -> Parser:
    """Return the parser of the whole command."""
    parser = Parser(
        prog="shared-tensor-spec",
        description="Check adapters, show and compare reports, and run the mutants of "
        "the conformance suite. To judge an implementation, run the suite with pytest: "
        "pytest conformance --impl=NAME --report=FILE",
        epilog="Exit status: 0 success or yes, 1 failure or no, 4 usage error, "
        "130 interrupted. 'shared-tensor-spec COMMAND --help' says what 0 and 1 mean "
        "for a command, and shows examples.",
    )
    version = f"shared-tensor-spec {SPEC_VERSION}"
    parser.add_argument("--version", action="version", version=version)
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(group)
    return parser
