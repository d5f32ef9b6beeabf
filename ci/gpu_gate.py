"""The gate for a GPU runner: judges an implementation on a real device and on the CPU.

It checks that the runner is fit, makes an environment with the CuPy that fits the
driver, runs the suite, checks that the device's memory is free again, and decides. Only
one gate runs on a host at a time, because the device reports its used memory only for
all processes together.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bounded
from gpu_runner import (
    CLOSED,
    FITNESS,
    UNFIT,
    Parser,
    Unfit,
    add_runner_options,
    examined,
    make_environment,
    refuse_unseen,
    turn,
)

MOST_WORKERS = 8
"""The maximum number of workers: more of them do not make the run faster."""


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
        back = self.is_memory_back()
        is_open = self.is_open()
        print(judged_on(facts["devices"], emulated=options.emulated), flush=True)
        if options.summary:
            self.summarize()
        return back and is_open and (held or not options.emulated)

    def judge(self, device: str, report: Path, *more: str) -> bool:
        """Run the suite on a device; return whether it held. The report decides."""
        suite = ("-m", "pytest", "--pyargs", "sharedtensor_conformance")
        quiet = ("-q", "-p", "no:cacheprovider", f"--impl={self.options.impl}")
        what = (f"--device={device}", f"--report={report}", *more)
        command = (self.python, *suite, *quiet, *what, *self.options.suite_option)
        ended = bounded.run(command, self.options.limit, pass_fds=(self.held,))
        if ended.status is None:
            print(f"The run was ended after its limit of {self.options.limit:g} s.")
        elif ended.status not in (0, 1):
            print(f"The run ended early, with status {ended.status}.")
        return ended.status == 0

    def is_memory_back(self) -> bool:
        """Return whether the device has as much free memory as at the start."""
        command = [sys.executable, FITNESS, "--compare", self.folder / "facts.json"]
        option = ["--emulated"] if self.options.emulated else []
        return subprocess.run([*command, *option], check=False).returncode == 0

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

    said = ""

    def summarize(self) -> None:
        """Append the decision and both reports to the summary, as Markdown."""
        blocks = ["## GPU gate", f"```text\n{self.said}```"]
        if self.options.emulated:
            blocks.insert(
                1, "On the **emulated** runtime: nothing here counts as CUDA."
            )
        blocks += [
            done.stdout.rstrip()
            for report in self.reports
            if report.exists()
            and not (done := self.tool("report", report, "--markdown", "-")).returncode
        ]
        with open(self.options.summary, "a") as page:
            page.write("\n\n".join(blocks) + "\n")

    def tool(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run ``shared-tensor-spec``."""
        command = [self.python, "-m", "sharedtensor_conformance.cli"]
        given = [str(argument) for argument in arguments]
        return subprocess.run(
            [*command, *given], capture_output=True, text=True, check=False
        )


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
