"""Runs the whole suite on the reference repeatedly while the processors are busy.

A case that depends on timing is likely to fail on a busy machine. So one process per
processor computes at normal priority, while the suite's default selection runs with two
workers. If other work keeps the processors busy, use ``--busy=0``. The record contains
how much of the processors' time was idle. Each run has to exit with status 0, and every
case has to pass at its first attempt. Ctrl-C ends the current run; the record contains
the complete runs.

``--shuffle`` finds cases that depend on earlier cases: each run has another order. It
needs pytest-random-order in the interpreter.

With `--as-user NAME` (only for root), the runs belong to another user without
privileges, and use a copy of the packages that this user can read.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import records
from records import NotHeld
from sandbox import Sandbox
from sharedtensor_conformance import bounded_run
from sharedtensor_conformance.harness.process_tree import wait_until

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "sharedtensor": "reference/sharedtensor",
    "sharedtensor_conformance": "conformance/sharedtensor_conformance",
    "sharedtensor_conformance/spec": "spec",
}
BUSY = "while True: pass"
DEADLINE = 1800.0  # seconds for one run
GRACE = 10.0  # seconds until everything has to be gone
SHOWN = 4000  # characters of the output of a run without a report


def options() -> records.Parser:
    """Return the parser of the command line."""
    parser = records.Parser(__doc__, prog="loaded")
    text = "how many runs (default: %(default)s)"
    parser.add_argument("--runs", type=int, default=20, help=text)
    text = "run the suite as this user (only for root)"
    parser.add_argument("--as-user", default="", metavar="NAME", help=text)
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="INTERPRETER",
        help="run the suite with this interpreter (default: the current one)",
    )
    text = "workers of pytest-xdist (default: %(default)s)"
    parser.add_argument("--workers", type=int, default=2, metavar="COUNT", help=text)
    parser.add_argument(
        "--shuffle", action="store_true", help="run the cases in a random order"
    )
    text = "processes that keep the processors busy (default: one per processor)"
    parser.add_argument(
        "--busy", type=int, default=os.cpu_count(), metavar="PROCESSES", help=text
    )
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="OPTION",
        help="an additional option for pytest, for example --suite=--clause=SHARE-1",
    )
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run the suite the requested number of times; return the sentence of what held."""
    if given.as_user:
        check_user(given.as_user, given.python)
    record |= {"user": given.as_user or "own", "busy": given.busy, "runs": []}
    try:
        run_all(given, record["runs"])
    except KeyboardInterrupt:
        if not record["runs"]:
            raise
        print("\nEnded early: the runs that are complete count.", file=sys.stderr)
    return judge(record["runs"])


def run_all(given: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Append the result of each run. Raises `NotHeld` if something is left of one."""
    progress = records.Progress(given.runs, "runs")
    with Sandbox() as sandbox, place_for(given.as_user) as place:
        for count in range(given.runs):
            progress.at(count)
            with busy(sandbox, given.busy):
                seed = count + 1 if given.shuffle else None
                runs.append(one_run(sandbox, place, given, seed))
            if left := sandbox.left_after(GRACE):
                raise NotHeld(f"After run {count + 1} there is {left}.")
    progress.at(given.runs)
    progress.end()


def check_user(name: str, python: str) -> None:
    """Raise `NotHeld` unless this process can run Python as that user."""
    if os.geteuid() != 0:
        raise NotHeld("Only root can become another user: omit --as-user.")
    try:
        who = privileges_of(name)
    except KeyError:
        raise NotHeld(f"There is no user {name!r}.") from None
    try:
        subprocess.run([python, "-c", "pass"], check=True, cwd="/", **who)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotHeld(
            f"{name} cannot run {Path(python).name} ({error}): give an interpreter of "
            "the same version that all users can run, with --python."
        ) from None


def privileges_of(name: str) -> dict[str, Any]:
    """Return the options of `subprocess` to become a user. Raises `KeyError`."""
    found = pwd.getpwnam(name)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


@contextmanager
def place_for(user: str) -> Iterator[Path]:
    """Yield a folder for reports, with a copy of the packages if another user runs."""
    with tempfile.TemporaryDirectory(prefix="sts-loaded-") as folder:
        place = Path(folder)
        if user:
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            for package, source in PACKAGES.items():
                target = place / "packages" / package
                shutil.copytree(
                    ROOT / source, target, ignore=ignored, dirs_exist_ok=True
                )
            (place / "home").mkdir()
            for path in (place, place / "home"):
                shutil.chown(path, user)
        yield place


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
    sandbox: Sandbox, place: Path, given: argparse.Namespace, seed: int | None
) -> dict[str, Any]:
    """Run the suite once and return the result."""
    report = place / "report.jsonl"
    report.unlink(missing_ok=True)
    began, idle, total = time.monotonic(), *processor_time()
    ended = bounded_run.run(
        [given.python, *arguments(report, given, seed)],
        DEADLINE,
        **setting(sandbox, place, given.as_user),
    )
    result = {
        "status": "still running" if ended.status is None else ended.status,
        "seconds": records.seconds_since(began),
        "idle": idle_share(idle, total),
        "python": version_of(report),
        "seed": seed,
        "unprivileged": bool(given.as_user),
        **cases_of(report),
    }
    if not result["verdicts"]:
        result["output"] = ended.output[-SHOWN:]
    return result


def processor_time() -> tuple[int, int]:
    """Return the idle and the total time of all processors in ticks, proc_stat(5)."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    ticks = [int(field) for field in first.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def idle_share(idle: int, total: int) -> float:
    """Return the fraction of the processors' time since then that was idle."""
    now, all_of_it = processor_time()
    return round((now - idle) / max(1, all_of_it - total), 3)


def arguments(report: Path, given: argparse.Namespace, seed: int | None) -> list[str]:
    """Return the arguments of Python for a run."""
    copied = ["--pyargs", "sharedtensor_conformance"]
    suite = copied if given.as_user else ["conformance"]
    order = ["--random-order-bucket=global", f"--random-order-seed={seed}"]
    return [
        *("-m", "pytest", *suite, "-q", "-n", str(given.workers)),
        *("-p", "no:cacheprovider"),
        f"--report={report}",
        f"--basetemp={report.with_name('base')}",
        *(order if seed else []),
        *given.suite,
    ]


def version_of(report: Path) -> str:
    """Return the version of Python in a report, if there is a report."""
    with suppress(OSError, ValueError, KeyError, StopIteration), report.open() as lines:
        return str(json.loads(next(lines))["machine"]["python"])
    return ""


def setting(sandbox: Sandbox, place: Path, user: str) -> dict[str, Any]:
    """Return the options of `subprocess` for a run: environment, folder and user."""
    if not user:
        return {"cwd": ROOT, "env": sandbox.environment()}
    shutil.chown(sandbox.folder, user)
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    environment = sandbox.environment(
        HOME=str(place / "home"),
        PYTHONPATH=os.pathsep.join([str(place / "packages"), *libraries]),
        PYTHONDONTWRITEBYTECODE="1",
        USER=user,
        LOGNAME=user,
    )
    return {"cwd": place / "home", "env": environment, **privileges_of(user)}


def cases_of(report: Path) -> dict[str, Any]:
    """Return the number of verdicts of each kind in a report, and special cases.

    Without privileges some cases cannot be run, for example with a full `/dev/shm`. A
    few can only be run on a real device; on the simulated one they are never run. A
    case that failed first and then passed in fresh processes does not count as a pass.
    """
    verdicts: Counter[str] = Counter()
    others, refused = [], []
    lines = report.read_text().splitlines() if report.exists() else []
    for line in map(json.loads, lines):
        if line["type"] == "case":
            verdicts[line["verdict"]] += 1
            if line["verdict"] == "not-run" and line["device"] != "simulated":
                refused.append({key: line[key] for key in ("id", "evidence")})
            if line["verdict"] not in ("pass", "not-run") or line["repeated"]:
                kept = ("id", "verdict", "evidence", "repeated")
                others.append({key: line[key] for key in kept})
    return {"verdicts": dict(verdicts), "others": others, "refused": refused}


def judge(runs: list[dict[str, Any]]) -> str:
    """Return the sentence for all runs. Raises `NotHeld` unless all cases passed."""
    for number, run in enumerate(runs, 1):
        if not is_flawless(run):
            raise NotHeld(f"Run {number} of {len(runs)} {what_is_wrong(run)}.")
    cases = sum(run["verdicts"]["pass"] for run in runs)
    idle = max(run["idle"] for run in runs)
    return (
        f"{len(runs)} runs, the processors at most {idle:.0%} idle: all {cases} cases "
        "passed, none by repetition."
    )


def what_is_wrong(run: dict[str, Any]) -> str:
    """Return how a run ended, and which cases did not pass."""
    others, refused = run["others"], run["refused"]
    said = f"ended with status {run['status']} and {len(others)} cases that were no "
    said += f"plain pass, first {others[0]['id']}" if others else "plain pass"
    return said + (
        f"; {len(refused)} not run, first {refused[0]['id']}" if refused else ""
    )


def is_flawless(run: dict[str, Any]) -> bool:
    """Return whether all cases of a run passed that its user could run."""
    refused = run.get("refused", run["verdicts"].get("not-run", 0))
    if refused and not run["unprivileged"]:
        return False
    return (
        run["status"] == 0 and not run["others"] and bool(run["verdicts"].get("pass"))
    )


if __name__ == "__main__":
    sys.exit(records.run(None, options(), work))
