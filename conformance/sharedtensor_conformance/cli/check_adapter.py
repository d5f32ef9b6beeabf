"""``shared-tensor-spec check-adapter``: an adapter's problems, before it is judged."""

from __future__ import annotations

import argparse

from sharedtensor_conformance.cli.command import NO, YES, Command, WrongUse
from sharedtensor_conformance.report.terminal import plural

TEACHING = """\
The adapter is loaded in a child process, so it cannot harm this one. Problems are
claims without their operations, operations without their claim, with other parameters
than the contract's or not written yet, and claims that nothing could be judged on.
Where there are none, the operations of core are called once.

example:
  shared-tensor-spec check-adapter mypackage.conformance"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    text = "what --impl takes: a name or package.module"
    parser.add_argument("name", metavar="NAME", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print what the adapter says of itself, and its problems."""
    from sharedtensor_conformance.adapters.loader import LoadingError
    from sharedtensor_conformance.harness.inspection import describe
    from sharedtensor_conformance.harness.template import why_not_preloaded

    try:
        described = describe(arguments.name, tried=True)
    except LoadingError as error:
        raise WrongUse(str(error)) from error
    implementation = described.implementation
    print(f"{implementation.name} {implementation.version}".strip())
    print(f"  claims: {', '.join(sorted(implementation.claims))}")
    print(f"  operations: {', '.join(described.operations)}")
    problems = list(described.problems)
    if not problems and (why := why_not_preloaded(arguments.name, implementation)):
        problems.append(f"preload is declared, but {why}")
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{plural(len(problems), 'problem')}")
    return NO if problems else YES


command = Command(
    "check-adapter",
    "say what is wrong with an adapter, before anything is judged",
    TEACHING,
    add_options,
    run,
)
