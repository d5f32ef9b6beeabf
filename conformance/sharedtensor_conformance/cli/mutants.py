"""``shared-tensor-spec mutants``: the faults that the suite has to see."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from sharedtensor_conformance.cli.command import NO, YES, Command, WrongUse, positive
from sharedtensor_conformance.mutants.registry import Mutant, catalogue
from sharedtensor_conformance.mutants.run import Outcome, run_mutants
from sharedtensor_conformance.report.terminal import plural

TEACHING = """\
A mutant is the reference with one fault. It is killed when a test that cites one of
its clauses fails, crashes or hangs. Status 1 says that one was not.

examples:
  shared-tensor-spec mutants
  shared-tensor-spec mutants --run --jobs 2 drops_grad"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("names", metavar="NAME", nargs="*", help="only these mutants")
    add("--json", action="store_true", help="print JSON")
    add("--run", action="store_true", dest="judge", help="run the suite on each")
    add(
        "--others",
        choices=["one-per-clause", "whole"],
        default="",
        help="name the other clauses that break, too: of one case of each, or of all "
        "cases under fork",
    )
    text = "runs at a time"
    add("--jobs", metavar="N", type=positive(int), default=1, help=text)
    text = "the time that one mutant's run may take (default %(default)g)"
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
            raise WrongUse(f"there is no mutant {name!r}; 'mutants' lists them")
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
    "list the mutants of the reference, or see whether the suite kills them",
    TEACHING,
    add_options,
    run,
)
