"""Runs all checks of this project that need a GPU, in less than ten minutes.

The steps are in the order in which they are likely to fail on a new device, so the
first failed step shows where to look. After each step, the results are saved in one
folder: `facts.json`, a report or a record and a log for each step, `summary.json` and
`summary.md`. A step that hangs or crashes does not stop the others. A second run
continues where the first one was stopped: a step is run again only if it has not ended
on this machine with this code, or with --again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import bounded
from gpu_runner import (
    CHECKOUT,
    CLOSED,
    FITNESS,
    HERE,
    UNFIT,
    Parser,
    Unfit,
    add_runner_options,
    examined,
    make_environment,
    refuse_unseen,
    turn,
)

FACTS = CHECKOUT / "conformance/sharedtensor_conformance/harness/cuda_facts.py"
SOURCES = ("ci", "reference", "conformance", "spec")
SHOWN = 12
BUDGET = 600.0
HELD, BROKEN, HUNG, CRASHED, NOT_RUN, RUNNING = (
    "held", "broken", "hung", "crashed", "not run", "interrupted",
)  # fmt: skip
FINAL = (HELD, BROKEN, HUNG, CRASHED)
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
        absent: why it cannot be run here; empty if it can.
    """

    name: str
    title: str
    limit: float
    command: tuple[object, ...]
    absent: str = ""


def steps(
    python: str, out: Path, facts: dict[str, Any], *, emulated: bool, lock: str
) -> Iterator[Step]:
    """Yield all steps in their order."""
    label = ("--emulated",) if emulated else ()
    rules = (python, HERE / "gpu_rules.py", *label, "--out", out / "rules.json")
    yield Step("rules", "The rules of the simulated device hold here", 60, rules)
    smoke = ("--clause=CUDA-3", "--start-method=spawn", "--strategy=file_descriptor")
    device = "emulated" if emulated else "cuda"

    def suite(name: str, *options: str, impl: str = "reference") -> tuple[object, ...]:
        run = ("-m", "pytest", "--pyargs", "sharedtensor_conformance", "-q")
        which = (f"--impl={impl}", f"--device={device}", "-p", "no:cacheprovider")
        return (python, *run, *which, f"--report={out / name}.jsonl", *options)

    yield Step("smoke", "One tensor is sent and shared", 60, suite("smoke", *smoke))
    for name, numbers in GROUPS.items():
        clauses = [f"--clause=CUDA-{number}" for number in numbers.split()]
        title = f"CUDA-{', '.join(numbers.split())}"
        one = "--strategy=file_descriptor"
        yield Step(f"cuda-{name}", title, 90, suite(f"cuda-{name}", *clauses, one))
    cost = (python, HERE / "send_cost.py", *label, "--out", out / "cost.json")
    yield Step("cost", "What a send costs beside driver and PyTorch", 60, cost)
    gate = (sys.executable, HERE / "gpu_gate.py", "--python", python, *label)
    # One run may need most of the time: on two processors, that on the CPU.
    where = ("--report", out / "gate.jsonl", "--lock", f"{lock}.gate", "--limit", 340)
    yield Step("gate", "The gate is open for the reference", 420, (*gate, *where))
    torch = "" if "torch" in facts["libraries"] else "torch is not in the environment"
    torch = "torch cannot use the emulated runtime" if emulated else torch
    of_torch = suite("torch", "--profile=cuda", impl="torch-cuda")
    yield Step("torch", "PyTorch on the device", 240, of_torch, torch)
    back = (sys.executable, FITNESS, *label, "--compare", out / "facts.json")
    yield Step("memory", "The device's memory is back", 30, back)


class Record:
    """The results so far, in the folder."""

    def __init__(
        self, folder: Path, key: str, *, emulated: bool, kept: tuple[int, ...] = ()
    ) -> None:
        self.folder = folder
        self.key = key
        self.emulated = emulated
        self.kept = kept  # descriptors that steps inherit: the lock of this host
        self.file = folder / "summary.json"
        self.steps: dict[str, dict[str, Any]] = {}
        if self.file.exists():
            try:
                self.steps = {one["name"]: one for one in self._read()["steps"]}
            except (OSError, ValueError, KeyError, TypeError):
                raise Unfit(f"{self.file} is no summary; give another --out.") from None

    def _read(self) -> Any:
        found = json.loads(self.file.read_text())
        if bool(found["emulated"]) != self.emulated:
            kind = "emulated runtime" if found["emulated"] else "device"
            raise Unfit(f"{self.folder} has results of the {kind}; give another --out.")
        return found

    def is_final(self, name: str) -> bool:
        """Return whether a step has ended on this machine with this code."""
        found = self.steps.get(name, {})
        return found.get("status") in FINAL and found.get("key") == self.key

    def put(
        self, step: Step, status: str, seconds: float = 0.0, said: str = ""
    ) -> None:
        """Save the result of a step; the files are replaced atomically."""
        self.steps[step.name] = {
            "name": step.name, "title": step.title, "status": status,
            "seconds": seconds, "said": said, "key": self.key,
        }  # fmt: skip
        _replace(self.file, json.dumps(self.data(), indent=1) + "\n")
        _replace(self.folder / "summary.md", self.page())

    def data(self) -> dict[str, Any]:
        """Return all results as data."""
        saved = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        steps = list(self.steps.values())
        return {"emulated": self.emulated, "saved": saved, "steps": steps}

    def page(self) -> str:
        """Return all results as Markdown."""
        where = "the emulated runtime: nothing here counts as CUDA"
        lines = [f"# Checks on {where if self.emulated else 'a CUDA device'}", ""]
        lines += ["| step | what it shows | found | seconds |", "|---|---|---|---:|"]
        for one in self.steps.values():
            found = one["status"] + " (emulated)" * self.emulated
            lines.append(
                f"| {one['name']} | {one['title']} | {found} | {one['seconds']} |"
            )
        return "\n".join(lines) + "\n"


def _replace(file: Path, text: str) -> None:
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    new.replace(file)


def run_step(step: Step, record: Record, left: float) -> str:
    """Run a step within its limit and the remaining budget; return its status."""
    if step.absent or left < 1:
        why = step.absent or "no time is left; run the checks again to continue"
        record.put(step, NOT_RUN, said=why)
        return NOT_RUN
    record.put(step, RUNNING)
    log = record.folder / f"{step.name}.log"
    limit = min(step.limit, left)
    with log.open("w") as file:
        streams = {"stdout": file, "stderr": subprocess.STDOUT}
        ended = bounded.run(step.command, limit, pass_fds=record.kept, **streams)
    said = "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN:])
    if ended.status is None and limit < step.limit:
        status, said = NOT_RUN, "the time was over before it ended; run again"
    else:
        status = _status_of(ended.status)
    record.put(step, status, ended.seconds, said)
    return status


def _status_of(status: int | None) -> str:
    if status is None:
        return HUNG
    if status == 0:
        return HELD
    return BROKEN if status == 1 else CRASHED


def key_of(facts: dict[str, Any]) -> str:
    """Return a key for what results depend on: the machine's devices and the code."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for folder in SOURCES:
        for file in sorted((CHECKOUT / folder).rglob("*")):
            if file.suffix in (".py", ".md", ".toml", ".json") and file.is_file():
                digest.update(str(file.relative_to(CHECKOUT)).encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def check(options: argparse.Namespace, folder: Path, held: int) -> bool:
    """Run all checks; return whether each one held or could not be run."""
    began = monotonic()
    found = examined(folder / ".facts.json", emulated=options.emulated)
    python = options.python
    if not python:
        environment = folder.with_name(f"{folder.name}-environment")
        python = str(environment / "bin" / "python")
        if not Path(python).exists():
            python = make_environment(environment, found["extra"], options)
        began = monotonic()  # downloads do not count
    refuse_unseen(python, "reference", "emulated" if options.emulated else "cuda")
    done = subprocess.run(
        [python, FACTS], capture_output=True, timeout=120, check=False
    )
    met = (json.loads(done.stdout) if done.returncode == 0 else None) or {}
    met = {"libraries": {}, **met}
    record = Record(folder, key_of(met), emulated=options.emulated, kept=(held,))
    (folder / ".facts.json").unlink()
    facts = json.dumps({**found, "met": met}, indent=1) + "\n"
    _replace(folder / "facts.json", facts)
    return _all(options, record, list(_chosen(options, python, record, met)), began)


def _chosen(
    options: argparse.Namespace, python: str, record: Record, met: dict[str, Any]
) -> Iterator[Step]:
    how = {"emulated": options.emulated, "lock": options.lock}
    every = list(steps(python, record.folder.absolute(), met, **how))
    only = set(options.only)
    unknown = (set(options.again) | only) - {step.name for step in every} - {"all"}
    if unknown:
        names = ", ".join(step.name for step in every)
        raise Unfit(f"there is no step {min(unknown)}; steps are {names}.")
    yield from (step for step in every if not only or only & {step.name, "all"})


def _all(
    options: argparse.Namespace, record: Record, every: list[Step], began: float
) -> bool:
    statuses = []
    for step in every:
        again = {"all", step.name} & set(options.again)
        if record.is_final(step.name) and not again:
            statuses.append(record.steps[step.name]["status"])
            print(f"{step.name}: {statuses[-1]}, before", flush=True)
            continue
        status = run_step(step, record, options.budget - (monotonic() - began))
        found = record.steps[step.name]
        print(f"{step.name}: {status}, {found['seconds']} s", flush=True)
        statuses.append(status)
    print(f"All results are in {record.folder / 'summary.md'}.")
    late = any(
        one["status"] == NOT_RUN and "again" in one["said"]
        for one in record.steps.values()
    )
    return not late and set(statuses) <= {HELD, NOT_RUN}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = Parser(
        prog="gpu-checks.sh",
        description=(__doc__ or "").partition("\n\n")[2],
        epilog="exit status: 0 all checks held; 1 a check did not hold, or time was "
        "over; 2 the runner is not fit, or a usage error, with one sentence on stderr",
        allow_abbrev=False,
    )
    add = parser.add_argument
    text = "the folder for the results (default: %(default)s)"
    add("--out", metavar="FOLDER", type=Path, default="gpu-checks", help=text)
    text = "run this step again although it has ended; 'all' for all (may be repeated)"
    add("--again", metavar="STEP", action="append", default=[], help=text)
    text = "run only this step (may be repeated)"
    add("--only", metavar="STEP", action="append", default=[], help=text)
    text = "time limit for all steps together (default: %(default)g)"
    add("--budget", metavar="SECONDS", type=float, default=BUDGET, help=text)
    add_runner_options(parser)
    return parser


def main() -> int:
    """Run the checks; return the exit status."""
    options = build_parser().parse_args()
    bounded.end_with_signals()
    existed = options.out.exists()
    try:
        with turn(options.lock, options.wait) as held:
            options.out.mkdir(parents=True, exist_ok=True)
            return 0 if check(options, options.out, held) else CLOSED
    except OSError as error:
        print(f"gpu-checks.sh: {error}.", file=sys.stderr)
        return UNFIT
    except Unfit as error:
        print(f"This runner is not fit for the GPU gate: {error}", file=sys.stderr)
        return UNFIT
    finally:
        if not existed and options.out.is_dir() and not os.listdir(options.out):
            options.out.rmdir()


if __name__ == "__main__":
    sys.exit(main())
