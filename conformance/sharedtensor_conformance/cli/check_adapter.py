"""``shared-tensor-spec check-adapter``: finds mistakes in an adapter.

The author of an adapter learns of them at once, before a run of the suite.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace

from sharedtensor_conformance.cli.command import NO, YES, Command, WrongUse
from sharedtensor_conformance.report.scope import plural

TEACHING = """\
The adapter is loaded in a child process, so that it cannot harm this one. Problems are:
  - a claim whose operations are missing or not written yet;
  - an operation whose profile is not claimed;
  - an operation whose parameters differ from those of the contract;
  - a claim that no case can judge.
If there is no such problem, the command calls each operation of the profile core once,
and share if the adapter claims it. Files that the library makes in /dev/shm meanwhile
have to match segment_pattern. The command sends nothing to another process: its output
ends with the command that does that.

example:
  shared-tensor-spec check-adapter mypackage.conformance

exit status:
  0    the adapter has no problems
  1    the adapter has problems; each is printed as a "problem:" line"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    text = "the adapter, as for --impl: a name or package.module[:attribute]"
    parser.add_argument("name", metavar="NAME", help=text)
    text = (
        "time limit for loading the adapter (default: 120), and for starting a process "
        "and importing the implementation in it (default: the adapter's value)"
    )
    parser.add_argument("--patience", metavar="SECONDS", type=seconds, help=text)


def seconds(text: str) -> float:
    """Return a positive number of seconds, as pytest's ``--patience`` has it."""
    from sharedtensor_conformance.plugin import options  # it imports pytest

    return options.seconds(text)


def run(arguments: argparse.Namespace) -> int:
    """Print what the adapter declares, and its problems."""
    from sharedtensor_conformance.adapter_trial.inspection import (
        LOADING_TIMEOUT,
        describe,
    )
    from sharedtensor_conformance.adapters.loader import LoadingError
    from sharedtensor_conformance.harness.supervisor.template import why_not_preloaded

    try:
        described = describe(
            arguments.name,
            arguments.patience or LOADING_TIMEOUT,
            calls_operations=True,
            tell=lambda sentence: print(sentence, file=sys.stderr),
        )
    except LoadingError as error:
        raise WrongUse(str(error)) from error
    implementation = described.implementation
    if arguments.patience:
        implementation = replace(implementation, patience=arguments.patience)
    print(f"{implementation.name} {implementation.version}".strip())
    print(f"  claims: {', '.join(sorted(implementation.claims))}")
    print(f"  operations: {', '.join(described.operations)}")
    problems = list(described.problems)
    if not problems and (why := why_not_preloaded(arguments.name, implementation)):
        problems.append(f"preload is declared, but {why}")
    for problem in problems:
        print(f"problem: {problem}")
    if problems:
        print(plural(len(problems), "problem"))
        return NO
    print(
        "0 problems in one process; sending and decoding are not checked. Next, send a "
        "tensor to another process:"
    )
    impl = shlex.quote(f"--impl={arguments.name}")
    print(f"  pytest --pyargs sharedtensor_conformance {impl} --clause=SHARE-1")
    return YES


command = Command(
    "check-adapter",
    "check an adapter for mistakes, without running the suite",
    TEACHING,
    add_options,
    run,
)
