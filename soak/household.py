"""The household of one run: every process below this one, and all that they leave.

An soak run watches its subjects from outside, in `/proc`, and asks the
implementation nothing. The script that is run becomes the parent of whatever its
subjects orphan (`PR_SET_CHILD_SUBREAPER`), so that a manager in a session of its own is
seen, counted and ended too. Temporary files lie in a folder of the run's own. Where it
is permitted the run has a `/dev/shm` of its own, in which every name counts; else a
name counts if it says that a process of this household made it.

When the household is left, however that comes about, everything below is killed and
everything that is left is removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

SHM = Path("/dev/shm")
MANAGER = "sharedtensor-manager"
TRACKER = "resource_tracker"
NAME_OF = re.compile(r"sharedtensor-(\d+)-")
SHARED = re.compile(r"/memfd:|/dev/shm/|/dev/zero \(deleted\)")
POLL = 0.005
SHOWN = 5

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)
_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS, unshare(2)
_PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE, mount(2)


class Held(NamedTuple):
    """What one process holds; memory and heap in KiB."""

    descriptors: int
    mappings: int
    threads: int
    memory: int
    heap: int


class Household:
    """Everything below this process, and its traces in `/dev/shm` and on disk."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.seen: set[int] = set()
        self.started: dict[int, subprocess.Popen[bytes]] = {}
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_SUBREAPER, 1, 0, 0, 0)
        self.has_own_shm = make_own_shm(libc)
        self.before = set(os.listdir(SHM))
        self.folder = Path(tempfile.mkdtemp(prefix="sts-"))

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, end_in_order)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a subject: its temporary files are ours."""
        here = str(Path(__file__).parent)
        found = os.environ.get("PYTHONPATH")
        paths = os.pathsep.join([here, *([found] if found else [])])
        return {**os.environ, "TMPDIR": str(self.folder), "PYTHONPATH": paths, **more}

    def start(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a subject in a session of its own."""
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True} | options
        process = subprocess.Popen(command, **options)
        self.started[process.pid] = process
        self.seen.add(process.pid)
        return process

    # What there is

    def living(self) -> list[int]:
        """Return what is below this process and has not ended, parents first."""
        self.reap()
        children: dict[int, list[int]] = {}
        for pid, (state, parent) in processes():
            if state not in "ZX":
                children.setdefault(parent, []).append(pid)
        found: list[int] = []
        pending = children.get(os.getpid(), [])
        while pending:
            found += pending
            pending = [child for pid in pending for child in children.get(pid, [])]
        self.seen.update(found)
        return found

    def managers(self) -> list[int]:
        """Return the managers below this process."""
        return [pid for pid in self.living() if MANAGER in command_of(pid)]

    def names(self) -> list[str]:
        """Return the names in `/dev/shm` that this household made."""
        return sorted(
            name
            for name in set(os.listdir(SHM)) - self.before
            if self.has_own_shm or self.made(name)
        )

    def made(self, name: str) -> bool:
        """Tell whether a name says that a process of this household made it."""
        found = NAME_OF.match(name)
        return found is not None and int(found[1]) in self.seen

    def files(self) -> list[str]:
        """Return what lies in the folder for temporary files."""
        return sorted(  # `os.walk` does without what is removed meanwhile
            os.path.relpath(os.path.join(root, name), self.folder)
            for root, folders, files in os.walk(self.folder)
            for name in folders + files
        )

    def left(self) -> list[str]:
        """Return in words everything that is there now."""
        return [
            *(f"process {command_of(pid) or pid}" for pid in self.living()),
            *(f"name {name}" for name in self.names()),
            *(f"file {file}" for file in self.files()),
        ]

    def summary_of_left(self) -> str:
        """Return the same in one line."""
        left = self.left()
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        return ", ".join(left[:SHOWN]) + more

    # How it ends

    def reap(self) -> bool:
        """Take the status of whatever has ended below; tell whether more is there."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                self.statuses[pid] = os.waitstatus_to_exitcode(status)
                if pid in self.started:
                    self.started[pid].returncode = self.statuses[pid]
        return False

    def status_of(self, pid: int) -> int | None:
        """Return how a process ended, or None if it has not."""
        self.reap()
        return self.statuses.get(pid)

    def kill(self) -> None:
        """Kill everything below, and wait until it has gone."""
        while self.reap():
            for pid in self.living():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL)  # the kernel needs a moment to make orphans ours

    def clear(self) -> None:
        """Kill everything below and remove every trace: there may be a next time."""
        self.kill()
        for name in self.names():
            with contextlib.suppress(OSError):
                (SHM / name).unlink()
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def end(self) -> None:
        """Leave nothing behind."""
        self.clear()
        self.folder.rmdir()


def make_own_shm(libc: ctypes.CDLL) -> bool:
    """Mount a `/dev/shm` for this process and its children alone, where permitted."""
    if os.geteuid() != 0 or libc.unshare(_NEW_MOUNTS) != 0:
        return False
    if libc.mount(None, b"/", None, _PRIVATE, None) != 0:
        return False
    target = os.fsencode(SHM)
    return bool(libc.mount(b"tmpfs", target, b"tmpfs", 0, b"mode=1777") == 0)


def end_in_order(number: int, frame: object) -> None:
    """On SIGTERM: unwind as on Ctrl-C, so that the household is left empty."""
    raise KeyboardInterrupt


def processes() -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield the pid, the state and the parent of each process."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                text = Path("/proc", entry, "stat").read_text(errors="replace")
                state, parent, *_ = text.rpartition(")")[2].split()
                yield int(entry), (state, int(parent))


def command_of(pid: int) -> str:
    """Return the command line of a process, or an empty string."""
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return line.replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def held_by(pid: int) -> Held:
    """Return what a process holds, from `/proc` alone. Raises `OSError` if it ended."""
    folder = Path(f"/proc/{pid}")
    mapped = folder.joinpath("maps").read_text().splitlines()
    status = dict(
        line.split(":", 1)
        for line in folder.joinpath("status").read_text().split("\n")
        if ":" in line
    )
    memory = [int(status[key].split()[0]) for key in ("RssAnon", "RssShmem")]
    return Held(
        descriptors=len(os.listdir(folder / "fd")),
        mappings=sum(bool(SHARED.search(line)) for line in mapped),
        threads=len(os.listdir(folder / "task")),
        memory=sum(memory),
        heap=sum(size_of(line) for line in mapped if line.endswith("[heap]")) // 1024,
    )


def size_of(line: str) -> int:
    """Return how many bytes a line of `/proc/PID/maps` describes."""
    begin, end = line.split(maxsplit=1)[0].split("-")
    return int(end, 16) - int(begin, 16)


def wait_until(holds: Callable[[], bool], within: float) -> bool:
    """Wait for a cleanup that others do; tell whether it came about in time."""
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True
