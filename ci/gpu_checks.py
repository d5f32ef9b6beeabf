"""Runs all checks of this project that need a GPU, in less than ten minutes.

The steps are in the order in which they are likely to fail on a new device, so the
first failed step shows where to look. After each step, the results are saved in one
folder: `facts.json`, a report and a log of each step, and `summary.json`. A step that
hangs or crashes does not stop the others. After an interruption, `--only` runs the
steps that are missing; the results of the others are kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import bounded
from gpu_fitness import UNFIT, Parser, Unfit
from gpu_gate import (
    CHECKOUT,
    CLOSED,
    FITNESS,
    HERE,
    NO_CACHE,
    SUITE,
    add_runner_options,
    examined,
    make_environment,
    refuse_unseen,
    turn,
)

FACTS = CHECKOUT / "conformance/sharedtensor_conformance/plugin/cuda_facts.py"
SHOWN = 12
NO_TIME = "the time for all steps was over; run this one with --only"
HELD, BROKEN, HUNG, CRASHED, NOT_RUN = "held", "broken", "hung", "crashed", "not run"
GROUPS = {
    "send": "2 3 7 8 10 22 24",
    "order": "6 25 29",
    "life": "4 9 11 12 13 14 15",
    "ends": "16 17 18 27 34",
    "sent-on": "19 20 21 35",
    "start": "1 5 28 32 33",
    "devices": "30",
    "grads": "23 31",
    "room": "26",
}
"""The clauses of the chapter CUDA, in groups that probably fail together."""


@dataclass(frozen=True)
class Step:
    """A check: a command that exits with 0 if the check holds.

    Args:
        name: the name in the summary and of its files.
        title: what the check shows.
        limit: its time limit in seconds.
        command: the command line, with the paths of its results.
    """

    name: str
    title: str
    limit: float
    command: tuple[object, ...]


def steps(
    python: str, out: Path, lock: str, *, emulated: bool, torch: bool
) -> Iterator[Step]:
    """Yield all steps in their order; that of PyTorch only if it is there."""
    label = ("--emulated",) if emulated else ()
    device = f"--device={'emulated' if emulated else 'cuda'}"
    one = "--strategy=file_descriptor"

    def suite(name: str, *options: str) -> tuple[object, ...]:
        report = f"--report={out / name}.jsonl"
        return (python, *SUITE, *NO_CACHE, device, report, *options)

    rules = (python, HERE / "gpu_rules.py", *label, "--out", out / "rules.json")
    yield Step("rules", "The rules of the simulated device hold here", 60, rules)
    smoke = suite("smoke", "--clause=CUDA-3", "--start-method=spawn", one)
    yield Step("smoke", "One tensor is sent and shared", 60, smoke)
    for group, text in GROUPS.items():
        numbers, name = text.split(), f"cuda-{group}"
        clauses = [f"--clause=CUDA-{number}" for number in numbers]
        title = f"CUDA-{', '.join(numbers)}"
        yield Step(name, title, 90, suite(name, *clauses, one))
    cost = (python, HERE / "send_cost.py", *label, "--out", out / "cost.json")
    yield Step("cost", "What a send costs beside driver and PyTorch", 60, cost)
    gate = (sys.executable, HERE / "gpu_gate.py", "--python", python, *label)
    # One run may need most of the time: on two processors, that on the CPU.
    where = ("--report", out / "gate.jsonl", "--lock", f"{lock}.gate", "--limit", 340)
    yield Step("gate", "The gate is open for the reference", 420, (*gate, *where))
    if torch and not emulated:  # it cannot use the emulated runtime
        judged = suite("torch", "--profile=cuda", "--impl=torch-cuda")
        yield Step("torch", "PyTorch on the device", 240, judged)
    back = (sys.executable, FITNESS, *label, "--compare", out / "facts.json")
    yield Step("memory", "The device's memory is back", 30, back)


class Summary:
    """The results so far, in `summary.json`; earlier ones are kept if that is asked.

    Raises:
        Unfit: the folder has results of the other kind, or another `summary.json`.
    """

    def __init__(self, folder: Path, *, emulated: bool, keep: bool) -> None:
        self.file = folder / "summary.json"
        self.emulated = emulated
        self.steps: dict[str, dict[str, Any]] = {}
        if self.file.exists():
            found = self._read()
            if found["emulated"] != emulated:
                kind = "emulated runtime" if found["emulated"] else "device"
                raise Unfit(f"{folder} has results of the {kind}; give another --out.")
            self.steps = {one["name"]: one for one in found["steps"] if keep}

    def _read(self) -> dict[str, Any]:
        with suppress(ValueError):
            found = json.loads(self.file.read_text())
            if isinstance(found, dict) and {"emulated", "steps"} <= found.keys():
                return found
        raise Unfit(f"{self.file} is no summary; give another --out.")

    def put(
        self, step: Step, status: str, seconds: float = 0.0, said: str = ""
    ) -> None:
        """Save the result of a step; the file is replaced atomically."""
        self.steps[step.name] = {
            "name": step.name, "title": step.title, "status": status,
            "seconds": seconds, "said": said,
        }  # fmt: skip
        saved = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = {"emulated": self.emulated, "saved": saved}
        found["steps"] = list(self.steps.values())
        draft = self.file.with_name(".summary.json.new")
        draft.write_text(json.dumps(found, indent=1) + "\n")
        draft.replace(self.file)
        print(f"{step.name}: {status}, {seconds} s", flush=True)


def run_step(step: Step, summary: Summary, left: float, held: int) -> bool:
    """Run a step within its limit and the remaining time; return whether it held.

    A step inherits the lock of this host, `held`, so that nothing else starts while it
    outlives this program.
    """
    if left < 1:
        summary.put(step, NOT_RUN, said=NO_TIME)
        return False
    summary.put(step, NOT_RUN, said="interrupted")
    log = summary.file.with_name(f"{step.name}.log")
    with log.open("w") as file:
        streams = {"stdout": file, "stderr": subprocess.STDOUT}
        limit = min(step.limit, left)
        ended = bounded.run(step.command, limit, pass_fds=(held,), **streams)
    if ended.status is None and limit < step.limit:
        summary.put(step, NOT_RUN, ended.seconds, NO_TIME)
        return False
    said = "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN:])
    status = {None: HUNG, 0: HELD, 1: BROKEN}.get(ended.status, CRASHED)
    summary.put(step, status, ended.seconds, said)
    return status == HELD


def check(options: argparse.Namespace, out: Path, held: int) -> bool:
    """Run the checks; return whether each one held."""
    facts = examined(out / "facts.json", emulated=options.emulated)
    python = options.python or str(out.with_name(f"{out.name}-environment/bin/python"))
    if not options.python and not Path(python).exists():
        folder = Path(python).parents[1]
        make_environment(folder, facts["extra"], options)
    refuse_unseen(python, "reference", "emulated" if options.emulated else "cuda")
    versions = add_versions(python, out / "facts.json", facts)
    how = {"emulated": options.emulated, "torch": "torch" in versions["libraries"]}
    every = list(steps(python, out, options.lock, **how))
    if unknown := set(options.only) - {step.name for step in every}:
        names = ", ".join(step.name for step in every)
        raise Unfit(f"there is no step {min(unknown)}; steps are {names}.")
    summary = Summary(out, emulated=options.emulated, keep=bool(options.only))
    began = monotonic()
    chosen = [step for step in every if step.name in (options.only or [step.name])]
    results = [
        run_step(step, summary, options.budget - (monotonic() - began), held)
        for step in chosen
    ]
    return all(results)


def add_versions(python: str, file: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Add the versions of driver and libraries to the facts; return them."""
    command = [python, str(FACTS)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    met = (json.loads(done.stdout) if done.returncode == 0 else None) or {}
    versions = {"libraries": {}, **met}
    file.write_text(json.dumps({**facts, "met": versions}, indent=1) + "\n")
    return versions


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = Parser(
        prog="gpu_checks.py",
        description=(__doc__ or "").partition("\n\n")[2],
        epilog="exit status: 0 all checks held; 1 a check did not hold, or time was "
        "over; 2 the runner is not fit, or a usage error, with one sentence on stderr",
        allow_abbrev=False,
    )
    add = parser.add_argument
    text = "the folder for the results (default: %(default)s)"
    add("--out", metavar="FOLDER", type=Path, default="gpu-checks", help=text)
    text = "run only this step (may be repeated)"
    add("--only", metavar="STEP", action="append", default=[], help=text)
    text = "time limit for all steps together (default: %(default)g)"
    add("--budget", metavar="SECONDS", type=float, default=600.0, help=text)
    add_runner_options(parser)
    return parser


def main() -> int:
    """Run the checks; return the exit status."""
    options = build_parser().parse_args()
    bounded.end_with_signals()
    try:
        with turn(options.lock, options.wait) as held:
            options.out.mkdir(parents=True, exist_ok=True)
            return 0 if check(options, options.out.absolute(), held) else CLOSED
    except OSError as error:
        print(f"gpu_checks.py: {error}.", file=sys.stderr)
    except Unfit as error:
        print(f"This runner is not fit for the GPU gate: {error}", file=sys.stderr)
    with suppress(OSError):
        options.out.rmdir()  # if it is empty
    return UNFIT


if __name__ == "__main__":
    sys.exit(main())
