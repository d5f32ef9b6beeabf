"""Runs the suite on the reference again and again, in one of several circumstances.

A case that depends on timing is likely to fail on a busy machine, so one process per
processor computes at normal priority (`--busy`). A case that depends on earlier cases
fails in another order (`--shuffle`, which needs pytest-random-order). With
`--histories`, each run has only the random histories in which processes end, with
another seed, until there were enough of them: processes share, send, exit, are killed,
fork while messages wait, and fill queues, and a model computes the expected result.

Each run has to exit with status 0, every case has to pass at its first attempt, and
nothing may be left. Ctrl-C ends the current run; the record contains the complete runs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import recording
from circumstances import commit
from recording import NotHeld
from sandbox import Sandbox
from sharedtensor_conformance import bounded_run
from sharedtensor_conformance.chapters.random_histories import RELATIVE_COST
from sharedtensor_conformance.cli.command import positive
from sharedtensor_conformance.harness.kernel.process_tree import wait_until
from sharedtensor_conformance.report.records import Case, read_report

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("deaths", "deaths_of_the_manager", "programs", "starts")
TEST = "test_histories.py::test_histories_{}_end_as_the_model_says"
FAMILIES = (*(f"with_{name}" for name in TESTS), "of_queues", "at_limits")
"""The tests of the suite with histories in which processes end."""

CASE_LIMIT = 3600  # seconds: a case runs hundreds of histories
BUSY = "while True: pass"
DEADLINE = 7200.0  # seconds for one run
GRACE = 10.0  # seconds until everything has to be gone
SHOWN = 4000  # characters of the output of a run without a report

Run = dict[str, Any]


def options() -> recording.Parser:
    """Return the parser of the command line."""
    parser = recording.Parser(__doc__, prog="suite")
    add = parser.add_argument
    text = "how many runs (default: %(default)s)"
    add("--runs", type=positive(int), default=20, help=text)
    text = "run only histories, until there were as many, instead of a number of runs"
    add("--histories", type=positive(int), metavar="COUNT", help=text)
    text = "histories of a case under fork, the fastest (default: %(default)s)"
    add("--each", type=positive(int), default=200, metavar="COUNT", help=text)
    text = "the seed of the first run, with --histories or --shuffle"
    add("--first-seed", type=positive(int), default=1, metavar="SEED", help=text)
    text = "workers of pytest-xdist (default: %(default)s)"
    add("--workers", type=int, default=2, metavar="COUNT", help=text)
    add("--shuffle", action="store_true", help="run the cases in a random order")
    text = "processes that keep the processors busy (default: one per processor)"
    add("--busy", type=int, default=os.cpu_count(), metavar="COUNT", help=text)
    text = "an additional option for pytest, for example --suite=--clause=SHARE-1"
    add("--suite", action="append", default=[], metavar="OPTION", help=text)
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run the suite until it was enough; return the sentence of what held."""
    record |= {"busy": given.busy, "runs": []}
    if given.histories:
        record["histories"] = {}
    try:
        run_all(given, record)
    except KeyboardInterrupt:
        if not record["runs"]:
            raise
        print("\nEnded early: the runs that are complete count.", file=sys.stderr)
    return judge(record)


def run_all(given: argparse.Namespace, record: dict[str, Any]) -> None:
    """Record the result of each run. Raises `NotHeld` if something is left."""
    things = "histories" if given.histories else "runs"
    progress = recording.Progress(given.histories or given.runs, things)
    seeds = itertools.count(given.first_seed)
    with Sandbox() as sandbox, tempfile.TemporaryDirectory(prefix="sts-many-") as place:
        while (done := done_in(record)) < progress.total:
            seed = next(seeds)
            progress.at(done, f", seed {seed}")
            with busy(sandbox, given.busy):
                run = one_run(sandbox, Path(place, "report.jsonl"), given, seed)
            record["runs"].append(run)
            if given.histories:
                add(record["histories"], run.pop("histories"))
            if left := sandbox.left_after(GRACE):
                raise NotHeld(f"After run {len(record['runs'])} there is {left}.")
            if not is_flawless(run):
                break


def done_in(record: dict[str, Any]) -> int:
    """Return how many histories there were, or else how many runs."""
    histories = record.get("histories")
    return len(record["runs"]) if histories is None else sum(histories.values())


@contextmanager
def busy(sandbox: Sandbox, count: int) -> Iterator[None]:
    """Keep processors busy during the block."""
    working = [sandbox.start(sys.executable, "-c", BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for process in working:
            process.kill()
        wait_until(lambda: all(sandbox.status_of(p.pid) for p in working), GRACE)


def one_run(
    sandbox: Sandbox, report: Path, given: argparse.Namespace, seed: int
) -> Run:
    """Run the suite once and return the result."""
    report.unlink(missing_ok=True)
    began, idle, total = time.monotonic(), *processor_time()
    command = [sys.executable, *arguments(report, given, seed)]
    setting = {"cwd": ROOT, "env": sandbox.environment()}
    ended = bounded_run.run(command, DEADLINE, **setting)
    cases = read_report(report).cases if report.exists() else ()
    run = {
        "status": "still running" if ended.status is None else ended.status,
        "seconds": recording.seconds_since(began),
        "idle": idle_share(idle, total),
        "python": platform.python_version(),
        "seed": seed if given.shuffle or given.histories else None,
        "commit": commit(),
        "unprivileged": os.geteuid() != 0,
        **verdicts_of(cases),
    }
    if not cases:
        run["output"] = ended.output[-SHOWN:]
    if given.histories:
        run["histories"] = histories_of(cases, asked_of(given))
    return run


def arguments(report: Path, given: argparse.Namespace, seed: int) -> list[str]:
    """Return the arguments of Python for a run."""
    chosen = list(given.suite)
    if given.shuffle:
        chosen += ["--random-order-bucket=global", f"--random-order-seed={seed}"]
    if given.histories:
        chosen += [f"--case={TEST.format(family)}*" for family in FAMILIES]
        chosen += [f"--histories={asked_of(given)}", f"--history-seed={seed}"]
        chosen += [f"--case-limit={CASE_LIMIT}"]
    return [
        *("-m", "pytest", "conformance", "-q", "-n", str(given.workers)),
        *("-p", "no:cacheprovider", f"--report={report}"),
        f"--basetemp={report.with_name('base')}",
        *chosen,
    ]


def asked_of(given: argparse.Namespace) -> int:
    """Return the value of the suite's option, which is a cost."""
    return int(given.each * RELATIVE_COST["fork"])


def processor_time() -> tuple[int, int]:
    """Return the idle and the total time of all processors in ticks, proc_stat(5)."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    ticks = [int(field) for field in first.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def idle_share(idle: int, total: int) -> float:
    """Return the fraction of the processors' time since then that was idle."""
    now, all_of_it = processor_time()
    return round((now - idle) / max(1, all_of_it - total), 3)


# What is in a report


def verdicts_of(cases: Sequence[Case]) -> Run:
    """Return the number of verdicts of each kind, and special cases.

    Without privileges some cases cannot be run, for example with a full `/dev/shm`. A
    few can only be run on a real device; on the simulated one they are never run. A
    case that failed first and then passed in fresh processes does not count as a pass.
    """
    others, refused = [], []
    for case in cases:
        if case.verdict == "not-run" and case.device != "simulated":
            refused.append({"id": case.id, "evidence": case.evidence})
        if case.verdict not in ("pass", "not-run") or case.repeated:
            kept = ("id", "verdict", "evidence", "repeated")
            others.append({key: getattr(case, key) for key in kept})
    verdicts = dict(Counter(case.verdict for case in cases))
    return {"verdicts": verdicts, "others": others, "refused": refused}


def histories_of(cases: Sequence[Case], asked: int) -> Counter[str]:
    """Return the number of histories of passed cases, by family."""
    found: Counter[str] = Counter()
    before, after = TEST.split("{}")
    for case in cases:
        if case.verdict == "pass":
            family = case.test.removeprefix(before).removesuffix(after)
            cost = RELATIVE_COST[case.axes["start_method"]]
            found[family] += max(1, asked // cost)
    return found


def add(histories: dict[str, int], more: Counter[str]) -> None:
    """Add to the histories of each family."""
    for family, count in sorted(more.items()):
        histories[family] = histories.get(family, 0) + count


# Judging


def judge(record: dict[str, Any]) -> str:
    """Return the sentence for all runs. Raises `NotHeld` unless all cases passed."""
    runs = record["runs"]
    for number, run in enumerate(runs, 1):
        if not is_flawless(run):
            which = f"Run {number} of {len(runs)}"
            if run["seed"] is not None:
                which += f", with seed {run['seed']},"
            raise NotHeld(f"{which} {what_is_wrong(run)}.")
    if "histories" in record:
        count = done_in(record)
        what = f"{count:,} histories with deaths in {len(runs)} runs"
        return f"{what}: all as the model says."
    cases = sum(run["verdicts"]["pass"] for run in runs)
    idle = max(run["idle"] for run in runs)
    return (
        f"{len(runs)} runs, the processors at most {idle:.0%} idle: all {cases} cases "
        "passed, none by repetition."
    )


def what_is_wrong(run: Run) -> str:
    """Return how a run ended, and which cases did not pass."""
    others, refused = run["others"], run["refused"]
    said = f"ended with status {run['status']} and {len(others)} cases that were no "
    said += f"plain pass, first {others[0]['id']}" if others else "plain pass"
    return said + (
        f"; {len(refused)} not run, first {refused[0]['id']}" if refused else ""
    )


def is_flawless(run: Run) -> bool:
    """Return whether all cases of a run passed that its user could run."""
    if run["refused"] and not run["unprivileged"]:
        return False
    return (
        run["status"] == 0 and not run["others"] and bool(run["verdicts"].get("pass"))
    )


if __name__ == "__main__":
    sys.exit(recording.run(None, options(), work))
