"""Runs what this project checks on a GPU, and records what each check has shown.

One folder gets the results, each as soon as it is known: `facts.json`, a report and a
log of each step, and `summary.json`. A step that hangs or crashes does not stop the
others; after an interruption the summary lacks the steps that did not end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

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
RULES = CHECKOUT / "tests/cuda/test_driver_rules.py"
VIRTUAL_MEMORY = (
    "--case=test_virtual_memory.py::*",
    "--strategy=file_descriptor",
    "--start-method=spawn",
)
"""The cases of virtual memory, which no device has run: so they run first."""

SHOWN = 12  # lines of the output of a step
STATUSES = {None: "hung", 0: "held", 1: "broken"}
"""What the exit status of a step says; another status is that of a crash."""


class Step(NamedTuple):
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


def steps(python: str, out: Path, lock: str, facts: dict[str, Any]) -> list[Step]:
    """Return the steps; that of PyTorch only if it is there and can use the device."""
    emulated = facts["emulated"]
    label = ("--emulated",) if emulated else ()
    device = f"--device={'emulated' if emulated else 'cuda'}"
    rules = (python, "-m", "pytest", "-q", *NO_CACHE, RULES, device)
    cost = (python, HERE / "send_cost.py", *label, "--out", out / "cost.json")
    where = ("--report", out / "gate.jsonl", "--lock", f"{lock}.gate", "--limit", 340)
    gate = (sys.executable, HERE / "gpu_gate.py", "--python", python, *label, *where)
    back = (sys.executable, FITNESS, *label, "--compare", out / "facts.json")

    def suite(name: str, *options: str) -> tuple[object, ...]:
        report = f"--report={out / name}.jsonl"
        return (python, *SUITE, *NO_CACHE, device, report, *options)

    virtual = suite("virtual", *VIRTUAL_MEMORY)
    found = [
        Step("virtual", "Virtual memory is shared", 180, virtual),
        Step("rules", "The rules of the simulated device hold here", 60, rules),
        Step("cost", "What a send costs beside driver and PyTorch", 60, cost),
        Step("gate", "The gate is open for the reference", 420, gate),
    ]
    if "torch" in facts["met"]["libraries"] and not emulated:
        command = suite("torch", "--profile=cuda", "--impl=torch-cuda")
        found.append(Step("torch", "PyTorch on the device", 240, command))
    return [*found, Step("memory", "The device's memory is back", 30, back)]


def run_step(step: Step, out: Path, held: int) -> dict[str, Any]:
    """Run a step within its limit; return its row of the summary.

    It inherits the lock of this host, `held`, so that nothing else starts while it
    outlives this program.
    """
    log = out / f"{step.name}.log"
    with log.open("w") as file:
        streams = {"stdout": file, "stderr": subprocess.STDOUT}
        ended = bounded.run(step.command, step.limit, pass_fds=(held,), **streams)
    said = "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN:])
    status = STATUSES.get(ended.status, "crashed")
    print(f"{step.name}: {status}, {ended.seconds} s", flush=True)
    found = {"name": step.name, "title": step.title, "status": status}
    return found | {"seconds": ended.seconds, "said": said}


def check(options: argparse.Namespace, out: Path, folder: Path, held: int) -> bool:
    """Run the checks; return whether each one held.

    Args:
        folder: where an environment is made if the options name none.
    """
    facts = examined(out / "facts.json", emulated=options.emulated)
    python = options.python or make_environment(folder, facts["extra"], options)
    refuse_unseen(python, "reference", "emulated" if options.emulated else "cuda")
    facts["met"] = versions(python)
    write(out / "facts.json", facts)
    rows: list[dict[str, Any]] = []
    summary = {"emulated": options.emulated, "saved": "", "steps": rows}
    for step in steps(python, out, options.lock, facts):
        write(out / "summary.json", summary)
        rows.append(run_step(step, out, held))
        summary["saved"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    write(out / "summary.json", summary)
    return all(row["status"] == "held" for row in rows)


def write(file: Path, data: dict[str, Any]) -> None:
    """Write a record atomically."""
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps(data, indent=1) + "\n")
    draft.replace(file)


def versions(python: str) -> dict[str, Any]:
    """Return the versions of driver and libraries that an interpreter finds."""
    command = [python, str(FACTS)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    met = json.loads(done.stdout) if done.returncode == 0 else None
    return {"libraries": {}, **(met or {})}


def main() -> int:
    """Run the checks; return the exit status."""
    parser = Parser(
        prog="gpu_checks.py",
        description=(__doc__ or "").partition("\n\n")[2],
        epilog="exit status: 0 all checks held; 1 a check did not hold; 2 the runner "
        "is not fit, or a usage error, with one sentence on stderr",
        allow_abbrev=False,
    )
    text = "the folder for the results (default: %(default)s)"
    where = Path("gpu-checks")
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=where, help=text)
    add_runner_options(parser)
    options = parser.parse_args()
    bounded.end_with_signals()
    try:
        with (
            turn(options.lock, options.wait) as held,
            tempfile.TemporaryDirectory(prefix="gpu-checks.") as folder,
        ):
            out = options.out.absolute()
            out.mkdir(parents=True, exist_ok=True)
            return 0 if check(options, out, Path(folder), held) else CLOSED
    except OSError as error:
        print(f"gpu_checks.py: {error}.", file=sys.stderr)
    except Unfit as error:
        print(f"This runner is not fit for the GPU gate: {error}", file=sys.stderr)
    with suppress(OSError):
        options.out.rmdir()  # if it is empty
    return UNFIT


if __name__ == "__main__":
    sys.exit(main())
