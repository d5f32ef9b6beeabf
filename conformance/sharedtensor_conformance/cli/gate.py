"""``shared-tensor-spec gate``: decides from reports whether profiles hold, for CI."""

from __future__ import annotations

import argparse

from sharedtensor_conformance.adapter import PROFILES
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.cli.command import NO, YES, Command, listed
from sharedtensor_conformance.report.gate import decide, required_profiles
from sharedtensor_conformance.report.records import read_report
from sharedtensor_conformance.report.scope import plural

TEACHING = f"""\
The gate is open if every MUST clause of each required profile was judged and held in
full runs of the installed spec. Several reports of the same implementation and version
are combined, for example one from a CPU runner and one from a GPU runner. Results of a
simulated or emulated device never count for the profile cuda. A known deviation
closes the gate, unless --allow-expected is given.

profiles:
{listed(PROFILES)}

example:
  shared-tensor-spec gate cpu.jsonl gpu.jsonl --require core,grad,cuda

exit status:
  0    the gate is open: the required profiles hold
  1    the gate is closed; each reason is printed as a "closed:" line"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("files", metavar="REPORT", nargs="+", help="reports to combine")
    text = "the profiles that have to hold, separated by commas"
    add("--require", metavar="PROFILE,...", required=True, help=text)
    text = "require SHOULD clauses as well"
    add("--strict", action="store_true", help=text)
    text = "tolerate known deviations"
    add("--allow-expected", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print what is tolerated or closes the gate, and whether it is open."""
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
        print(f"closed: {sentence}")
    said = "open" if decision.open else "closed"
    held = plural(len(decision.held), "clause")
    print(f"gate {said} for {', '.join(profiles)}: {held} held", end="")
    print(f", {len(decision.tolerated)} tolerated", end="")
    print(f", {plural(len(decision.missing), 'reason')} against it")
    return YES if decision.open else NO


command = Command(
    "gate",
    "decide from reports whether the required profiles hold, for CI",
    TEACHING,
    add_options,
    run,
)
