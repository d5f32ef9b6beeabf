"""``shared-tensor-spec gate``: whether profiles hold, from reports, for CI."""

from __future__ import annotations

import argparse

from sharedtensor_conformance.adapter import PROFILES
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.cli.command import NO, YES, Command
from sharedtensor_conformance.report.gate import decide, required_profiles
from sharedtensor_conformance.report.records import read_report
from sharedtensor_conformance.report.terminal import plural

TEACHING = f"""\
The gate is open when every MUST clause of each required profile was judged and held
in whole runs of the installed spec. Reports of one implementation and version add up,
say one from a CPU runner and one from a GPU runner. Results of the simulated device
never count for the profile cuda, and an expected deviation is a deviation.

profiles: {", ".join(PROFILES)}

example:
  shared-tensor-spec gate cpu.jsonl gpu.jsonl --require core,grad,cuda"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("files", metavar="REPORT", nargs="+", help="reports to add up")
    text = "what has to hold"
    add("--require", metavar="PROFILE,...", required=True, help=text)
    text = "SHOULD clauses have to hold as well"
    add("--strict", action="store_true", help=text)
    text = "let deviations through that an expectation covers"
    add("--allow-expected", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print what is missing or was let through, and whether the gate is open."""
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


command = Command(
    "gate",
    "decide from reports whether profiles hold, for CI",
    TEACHING,
    add_options,
    run,
)
