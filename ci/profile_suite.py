"""Profiles the suite: the processor time of all its processes, by their kind.

The kernel records the usage of each process when it ends, acct(5). So no process is
missed, however short-lived or detached it is. The script has to run as root for that.
The kind of a process is known from its command line, which it logs when its interpreter
starts. Supervisors and managers start without site-packages, and are known by their
parents.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
ENTRY = struct.Struct("<BBHIIIIIIfHHHHHHHH16s")  # struct acct_v3 of linux/acct.h
FORKED = 1  # AFORK: it never called exec
KINDS = {
    r"multiprocessing\.spawn": "spawned actors",
    r"multiprocessing\.forkserver": "fork servers",
    r"multiprocessing\.resource_tracker": "resource trackers",
    r"harness\.owner --template": "template processes",
    r"harness\.owner": "owners",
    r"exec\(eval\(sys\.stdin": "workers of pytest-xdist",
    r"pytest": "pytest",
}
FORKS = {
    "owners": "forked actors",
    "spawned actors": "forked actors",
    "fork servers": "actors of a fork server",
    "managers": "managers",
    "supervisors": "managers",  # who detached themselves, and were adopted
}
STARTING_SUPERVISORS = ("pytest", "workers of pytest-xdist", "template processes")
SAYS = """import os, sys
with open({log!r}, "a") as file:
    file.write(f"{{os.getpid()}} {{' '.join(sys.orig_argv)!r}}\\n")
"""


class NotGreen(Exception):
    """The suite did not pass; the text is what it printed."""


@dataclass(frozen=True)
class Process:
    """What the kernel wrote of a process that has ended; its processor time."""

    pid: int
    parent: int
    forked: bool
    began: int
    seconds: float

    @property
    def order(self) -> tuple[int, int]:
        """What is greater than a parent's; pids alone begin again at the greatest."""
        return self.began, self.pid


@contextmanager
def accounting(file: Path) -> Iterator[None]:
    """Let the kernel write down each process that ends, acct(2).

    Raises:
        PermissionError: this is not root.
    """
    file.touch()
    if libc.acct(os.fsencode(file)) != 0:
        raise PermissionError(ctypes.get_errno(), "the kernel keeps accounts for root")
    try:
        yield
    finally:
        libc.acct(None)


def entries(file: Path) -> list[Process]:
    """Return the processes in an accounting file."""
    found = []
    for fields in ENTRY.iter_unpack(file.read_bytes()):
        flags, pid, parent = fields[0], fields[6], fields[7]
        ticks = floating(fields[10]) + floating(fields[11])
        forked, began = bool(flags & FORKED), fields[8]
        found.append(Process(pid, parent, forked, began, ticks / 100))
    return found


def floating(number: int) -> int:
    """Return what a comp_t means: three bits of an exponent to the base of 8."""
    return int((number & 0x1FFF) << (3 * (number >> 13)))


def commands(log: Path) -> dict[int, str]:
    """Return the commands of those processes that said theirs."""
    lines = (line.partition(" ") for line in log.read_text().splitlines())
    return {int(pid): command for pid, _, command in lines}


def kind_of(
    process: Process, known: dict[int, str], kinds: dict[int, str], parents: set[int]
) -> str:
    """Return what a process is.

    Its parent's kind is known, or it is the first; `parents` have other children, too.
    """
    parent = kinds.get(process.parent, "")
    if process.forked:
        if parent == "supervisors" and process.parent not in parents:
            return "owners"  # the first that it has: a template has forked it
        return FORKS.get(parent, "others")
    for pattern, kind in KINDS.items():
        if re.search(pattern, known.get(process.pid, "")):
            return kind
    return "supervisors" if parent in STARTING_SUPERVISORS else "managers"


def by_kind(
    processes: list[Process], known: dict[int, str], first: int
) -> list[dict[str, Any]]:
    """Return how many processes of each kind there were below `first`, and their use.

    The accounts are those of the whole machine; whoever has another ancestor is out.
    """
    kinds: dict[int, str] = {}
    parents: set[int] = set()
    taken: dict[str, list[float]] = defaultdict(list)
    for process in sorted(processes, key=lambda one: one.order):  # parents come first
        if process.pid == first or process.parent in kinds:
            kinds[process.pid] = kind_of(process, known, kinds, parents)
            parents.add(process.parent)
            taken[kinds[process.pid]].append(process.seconds)
    found = [
        {
            "kind": kind,
            "processes": len(seconds),
            "seconds": round(sum(seconds), 1),
            "median_ms": round(statistics.median(seconds) * 1e3),
        }
        for kind, seconds in taken.items()
    ]
    return sorted(found, key=lambda line: -line["seconds"])


def profile(options: list[str]) -> dict[str, Any]:
    """Run the suite and return what its processes have used.

    Raises:
        PermissionError: this is not root.
        NotGreen: the suite did not end with 0.
    """
    suite = ["-m", "pytest", "--pyargs", "sharedtensor_conformance", "-q"]
    with tempfile.TemporaryDirectory(prefix="sts-profile-") as name:
        folder = Path(name)
        log, accounts = folder / "commands", folder / "accounts"
        says = SAYS.format(log=str(log))
        Path(folder, "sitecustomize.py").write_text(says, encoding="utf-8")
        path = os.pathsep.join(filter(None, [name, os.environ.get("PYTHONPATH")]))
        began = time.monotonic()
        with accounting(accounts):
            child = subprocess.Popen(
                [sys.executable, *suite, *options],
                env=os.environ | {"PYTHONPATH": path},
                stdout=subprocess.PIPE,
                text=True,
            )
            output = child.communicate()[0]
        wall = time.monotonic() - began
        if child.returncode:
            raise NotGreen(output)
        processes, known = entries(accounts), commands(log)
    return {
        "options": options,
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "cases": int(re.findall(r"(\d+) passed", output)[-1]),
        "wall": round(wall, 1),
        "kinds": by_kind(processes, known, child.pid),
    }


def main() -> int:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    text = "the record to write"
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE.json", help=text
    )
    text = "options for pytest, after -- (default: -n 2)"
    parser.add_argument("options", nargs="*", help=text)
    given = parser.parse_args()
    try:
        found = profile(given.options or ["-n", "2"])
    except PermissionError as error:
        print(f"{error.strerror}: run this as root.", file=sys.stderr)
        return 2
    except NotGreen as error:
        print(f"{error}\nThe suite has to be green first.", file=sys.stderr)
        return 1
    given.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
