"""``shared-tensor-spec mutants``: checks that the suite detects known faults."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from sharedtensor_conformance.cli.command import NO, YES, Command, WrongUse, positive
from sharedtensor_conformance.mutants.registry import Mutant, catalogue
from sharedtensor_conformance.mutants.run import Outcome, run_mutants
from sharedtensor_conformance.report.scope import plural

TEACHING = """\
A mutant is the reference implementation with one fault, which breaks the clauses that
the mutant names. The mutant is killed if a test of one of these clauses fails, crashes
or hangs. A mutant that survives shows that the tests miss the fault.

examples:
  shared-tensor-spec mutants
  shared-tensor-spec mutants --run --jobs 2 drops_grad

exit status:
  0    the mutants were listed, or with --run all of them were killed
  1    with --run: at least one mutant was not killed"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("names", metavar="NAME", nargs="*", help="a mutant to use (default: all)")
    add("--json", action="store_true", help="print JSON instead of text")
    add("--run", action="store_true", dest="judge", help="run the suite on each mutant")
    add(
        "--others",
        choices=["one-per-clause", "whole"],
        default="",
        help="with --run: also report which other clauses break, judged by one case "
        "of each clause or by all cases under fork",
    )
    text = "how many mutants to run at the same time (default: %(default)s)"
    add("--jobs", metavar="N", type=positive(int), default=1, help=text)
    text = "the time limit for the run of one mutant (default: %(default)g)"
    add("--limit", metavar="SECONDS", type=positive(float), default=300.0, help=text)


def run(arguments: argparse.Namespace) -> int:
    """List the mutants, or run the suite on them."""
    chosen = _chosen_mutants(arguments.names)
    if arguments.judge:
        return _judge(chosen, arguments)
    if arguments.json:
        known = ("name", "clauses", "replaces", "sentence", "file", "line")
        listed = [{key: getattr(mutant, key) for key in known} for mutant in chosen]
        print(json.dumps(listed, indent=1))
    else:
        for mutant in chosen:
            print(f"{mutant.name}  [{' '.join(mutant.clauses)}]  {mutant.sentence}")
    return YES


def _chosen_mutants(names: Sequence[str]) -> list[Mutant]:
    known = {mutant.name: mutant for mutant in catalogue()}
    for name in names:
        if name not in known:
            raise WrongUse(f"there is no mutant {name!r}; run 'mutants' to list them")
    return [known[name] for name in names] if names else list(known.values())


def _judge(mutants: Sequence[Mutant], arguments: argparse.Namespace) -> int:
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


command = Command(
    "mutants",
    "list the mutants of the reference, or check that the suite kills them",
    TEACHING,
    add_options,
    run,
)
