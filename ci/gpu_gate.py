"""The gate for a GPU runner: judges an implementation on a real device and on the CPU.

It checks that the runner is fit, makes an environment with the CuPy that fits the
driver, runs the suite, checks that the device's memory is free again, and decides. Only
one gate runs on a host at a time, because the device reports its used memory only for
all processes together. If the runner cannot judge, one sentence says why.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bounded
from gpu_fitness import UNFIT, Parser, Unfit

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
FITNESS = HERE / "gpu_fitness.py"
LOCK = "/var/tmp/shared-tensor-gpu.lock"
CLOSED = 1
INSTALL_LIMIT = 1200.0
ASK_LIMIT = 120.0
PAUSE = 0.2
MOST_WORKERS = 8
"""The maximum number of workers: more of them do not make the run faster."""

MISSING = re.compile(
    r"(?:No matching distribution found for|satisfies the requirement) ([^\s;]+)"
)
SUITE = ("-m", "pytest", "--pyargs", "sharedtensor_conformance", "-q")
NO_CACHE = ("-p", "no:cacheprovider")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = Parser(
        prog="gpu-gate.sh",
        description=(__doc__ or "").partition("\n\n")[2],
        epilog="exit status: 0 the implementation conforms; 1 it does not conform or "
        "was not judged; 2 the runner is not fit, or a usage error, with one sentence "
        "on stderr",
        allow_abbrev=False,
    )
    add = parser.add_argument
    text = "the implementation, as for the suite's --impl (default: %(default)s)"
    add("--impl", metavar="NAME", default="reference", help=text)
    text = "the profiles that have to hold, comma-separated (default: %(default)s)"
    add("--require", metavar="LIST", default="core,grad,cuda", help=text)
    text = "the report to write (default: %(default)s); that of the CPU is next to it"
    add("--report", metavar="FILE", type=Path, default="gpu-report.jsonl", help=text)
    text = "append a summary in Markdown to FILE (default: $GITHUB_STEP_SUMMARY)"
    page = os.environ.get("GITHUB_STEP_SUMMARY") or None
    add("--summary", metavar="FILE", default=page, help=text)
    text = "workers for the run on the CPU (default here: %(default)s)"
    workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    add("--workers", metavar="N", type=int, default=workers, help=text)
    text = "time limit of each of the two runs (default: %(default)g)"
    add("--limit", metavar="SECONDS", type=float, default=3000.0, help=text)
    text = "pass this option to the suite (may be repeated)"
    add("--suite-option", metavar="OPT", action="append", default=[], help=text)
    add_runner_options(parser)
    return parser


def add_runner_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about the runner's environment and lock."""
    add = parser.add_argument
    text = "use the environment of this interpreter; it needs the suite and CuPy"
    add("--python", metavar="PATH", help=text)
    text = "install only from the wheels in this folder, without a network"
    add("--wheels", metavar="FOLDER", type=Path, help=text)
    text = "also install this pip requirement (may be repeated)"
    add("--install", metavar="WHAT", action="append", default=[], help=text)
    text = "the lock file of the GPU programs on this host (default: %(default)s)"
    add("--lock", metavar="FILE", default=LOCK, help=text)
    text = "how long to wait for the lock (default: %(default)g)"
    add("--wait", metavar="SECONDS", type=float, default=900.0, help=text)
    text = "rehearse on the emulated runtime; its results never count as CUDA"
    add("--emulated", action="store_true", help=text)


# One program at a time


@contextlib.contextmanager
def turn(file: str, wait: float) -> Iterator[int]:
    """Hold the lock of this host for the block; yield its descriptor.

    A process that inherits the descriptor keeps the lock. So no other program starts
    while the suite outlives this program.

    Raises:
        Unfit: another program has held the lock for the whole time.
    """
    deadline = time.monotonic() + wait
    held = _taken(file)
    if held is None:
        print(f"Another program has {file}; waiting for up to {wait:g} s.", flush=True)
    while held is None:
        if time.monotonic() > deadline:
            raise Unfit(
                f"another program has had {file} for {wait:g} s; look at what else "
                "uses this host's GPUs, or give a longer --wait."
            )
        time.sleep(PAUSE)
        held = _taken(file)
    try:
        yield held
    finally:
        os.close(held)


def _taken(file: str) -> int | None:
    """Return a descriptor with the lock, or None if another program has it."""
    try:
        held = _opened(file)
    except OSError as error:
        raise Unfit(f"the lock {file} cannot be opened ({error.strerror}).") from None
    with contextlib.suppress(OSError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), os.stat(file)):  # it may have been removed
            return held
    os.close(held)
    return None


def _opened(file: str) -> int:
    # In a shared folder, the file of another user can be opened only without O_CREAT.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644))
    return os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


# The runner and its environment


def examined(file: Path, *, emulated: bool) -> dict[str, Any]:
    """Return the facts of the fitness check, which it writes to a file.

    Raises:
        Unfit: the check shows that this runner cannot judge.
    """
    option = ["--emulated"] if emulated else []
    done = _asked([sys.executable, FITNESS, "--facts", file, *option], "the driver")
    if done.returncode:
        said = done.stderr.strip() or f"the check ended with status {done.returncode}."
        raise Unfit(said.partition(": ")[2] if said.startswith("This runner") else said)
    print(done.stdout, end="", flush=True)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def refuse_unseen(python: str, implementation: str, device: str) -> None:
    """Check that the implementation can use the device in its environment.

    A build that cannot, for example because it needs a newer driver, cannot be judged,
    so its clauses must not be reported as broken.

    Raises:
        Unfit: the implementation cannot use it, or the environment has no suite.
    """
    command = [python, HERE / "gpu_seen.py", implementation, device]
    done = _asked(command, implementation)
    if done.returncode == UNFIT:
        raise Unfit(done.stdout.strip())


def _asked(command: Sequence[object], what: str) -> subprocess.CompletedProcess[str]:
    arguments = [str(part) for part in command]
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": ASK_LIMIT}
    try:
        return subprocess.run(arguments, stdin=subprocess.DEVNULL, check=False, **how)
    except subprocess.TimeoutExpired:
        raise Unfit(f"{what} does not answer within {ASK_LIMIT:g} s.") from None
    except OSError as error:
        raise Unfit(f"{arguments[0]} cannot be run ({error.strerror}).") from None


def make_environment(folder: Path, extra: str, options: argparse.Namespace) -> str:
    """Make an environment with the suite and a fitting CuPy; return its interpreter.

    Raises:
        Unfit: the environment cannot be made.
    """
    wheels = options.wheels
    if wheels and not any(wheels.glob("*.whl")):
        raise Unfit(f"{wheels} has no wheels; {_filling(extra)}")
    python = str(folder / "bin" / "python")
    what = [f"{CHECKOUT}[conformance,{extra}]", *options.install]
    source = ["--no-index", "--find-links", str(wheels)] if wheels else []
    try:
        _called([sys.executable, "-m", "venv", str(folder)])
        _called([python, "-m", "pip", "install", "-q", *source, *what])
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        print(said, file=sys.stderr)
        raise Unfit(_why_not(said, wheels, extra)) from None
    return python


def _called(command: Sequence[str]) -> None:
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    subprocess.run(
        command,
        env=os.environ | quiet,
        stderr=subprocess.PIPE,
        text=True,
        timeout=INSTALL_LIMIT,
        check=True,
    )


def _why_not(said: str, wheels: Path | None, extra: str) -> str:
    missing = MISSING.findall(said)
    if wheels and missing:
        return (
            f"{wheels} has no wheel of {missing[-1]} for Python "
            f"{platform.python_version()} on {platform.machine()}; {_filling(extra)}"
        )
    return "its environment could not be made; the lines above say why."


def _filling(extra: str) -> str:
    return (
        "fill it where there is a network: pip wheel --wheel-dir FOLDER hatchling "
        f"'.[conformance,{extra}]'"
    )


# The decision


class Gate:
    """One decision of the gate."""

    def __init__(self, options: argparse.Namespace, folder: Path, held: int) -> None:
        self.options = options
        self.folder = folder
        self.held = held
        self.device = "emulated" if options.emulated else "cuda"
        report: Path = options.report
        self.reports = [report.with_name(f"{report.stem}-cpu{report.suffix}"), report]
        self.python = options.python or ""
        self.said = ""

    def decide(self) -> bool:
        """Return whether the implementation conforms; raises `Unfit`."""
        options = self.options
        facts = examined(self.folder / "facts.json", emulated=options.emulated)
        if not self.python:
            environment = self.folder / "environment"
            self.python = make_environment(environment, facts["extra"], options)
        refuse_unseen(self.python, options.impl, self.device)
        for report in self.reports:
            report.unlink(missing_ok=True)  # an earlier run does not count
        self.judge("cpu", self.reports[0], "-n", str(options.workers))
        # Used memory is one figure for the device, so its cases run one by one.
        # The gate ignores a rehearsal, which is judged by its own selection.
        more = ("--profile=cuda",) if options.emulated else ()
        held = self.judge(self.device, self.reports[1], *more)
        back = is_memory_back(self.folder / "facts.json", emulated=options.emulated)
        is_open = self.is_open()
        print(judged_on(facts["devices"], emulated=options.emulated), flush=True)
        if options.summary:
            self.summarize()
        return back and is_open and (held or not options.emulated)

    def judge(self, device: str, report: Path, *more: str) -> bool:
        """Run the suite on a device; return whether it held. The report decides."""
        what = (f"--impl={self.options.impl}", f"--device={device}")
        which = (*NO_CACHE, *what, f"--report={report}", *more)
        command = (self.python, *SUITE, *which, *self.options.suite_option)
        ended = bounded.run(command, self.options.limit, pass_fds=(self.held,))
        if ended.status is None:
            print(f"The run was ended after its limit of {self.options.limit:g} s.")
        elif ended.status not in (0, 1):
            print(f"The run ended early, with status {ended.status}.")
        return ended.status == 0

    def is_open(self) -> bool:
        """Decide from the reports; results of the emulated runtime do not count."""
        profiles, reports = self.options.require, self.reports
        if self.options.emulated:
            named = [name for name in profiles.split(",") if name.strip() != "cuda"]
            profiles, reports = ",".join(named), reports[:1]
            print("A rehearsal on the emulated runtime: nothing here counts as CUDA.")
            if not named:
                return True
        done = self.tool("gate", *reports, "--require", profiles)
        print(done.stdout, end="")
        print(done.stderr, end="", file=sys.stderr)
        self.said = done.stdout + done.stderr
        return done.returncode == 0

    def summarize(self) -> None:
        """Append the decision and both reports to the summary, as Markdown."""
        blocks = ["## GPU gate", f"```text\n{self.said}```"]
        if self.options.emulated:
            label = "On the **emulated** runtime: nothing here counts as CUDA."
            blocks.insert(1, label)
        for report in filter(Path.exists, self.reports):
            done = self.tool("report", report, "--markdown", "-")
            if not done.returncode:
                blocks.append(done.stdout.rstrip())
        with open(self.options.summary, "a") as page:
            page.write("\n\n".join(blocks) + "\n")

    def tool(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run ``shared-tensor-spec``."""
        command = [self.python, "-m", "sharedtensor_conformance.cli"]
        given = [str(argument) for argument in arguments]
        return subprocess.run(
            [*command, *given], capture_output=True, text=True, check=False
        )


def is_memory_back(facts: Path, *, emulated: bool) -> bool:
    """Return whether the device has as much free memory as when the facts were made."""
    option = ["--emulated"] if emulated else []
    command = [sys.executable, FITNESS, "--compare", facts, *option]
    return subprocess.run(command, check=False).returncode == 0


def judged_on(devices: list[dict[str, Any]], *, emulated: bool) -> str:
    """Return a sentence about how many of the visible devices were judged."""
    what = "emulated device" if emulated else "GPU"
    if len(devices) == 1:
        return f"Judged on one {what}; what needs two was not run."
    return (
        f"Judged on two of {len(devices)} visible {what}s: the first for all clauses, "
        "the second for those on several devices. CUDA_VISIBLE_DEVICES orders them."
    )


def joined(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each ``--suite-option`` joined with its value.

    The value is itself an option, which the parser would take for one of the gate's.
    """
    found: list[str] = []
    for argument in arguments:
        if found and found[-1] == "--suite-option":
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return found


def main() -> int:
    """Run the gate; return the exit status."""
    options = build_parser().parse_args(joined(sys.argv[1:]))
    if options.workers < 1:
        build_parser().error("--workers needs a number above 0")
    bounded.end_with_signals()
    try:
        with (
            turn(options.lock, options.wait) as held,
            tempfile.TemporaryDirectory(prefix="gpu-gate.") as folder,
        ):
            return 0 if Gate(options, Path(folder), held).decide() else CLOSED
    except Unfit as error:
        print(f"This runner is not fit for the GPU gate: {error}", file=sys.stderr)
        return UNFIT


if __name__ == "__main__":
    sys.exit(main())
