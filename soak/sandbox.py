"""The sandbox of one run: every process below this one, and all that they leave.

A soak run watches its subjects from outside, in `/proc`, and asks the implementation
nothing. The script that is run becomes the parent of whatever its subjects orphan, so
that a manager in a session of its own is seen, counted and ended too. Temporary files
lie in a folder of the run's own. Where it is permitted the run has a `/dev/shm` of its
own, in which every name counts; else a name counts if it says that a process of this
sandbox made it.

When the sandbox is left, however that comes about, everything below is killed and
everything that is left is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from sharedtensor_conformance.harness import ledger, process_tree
from sharedtensor_conformance.harness.process_tree import SHM, ProcessTree, wait_until

MANAGER = "sharedtensor-manager"
SEGMENTS = "sharedtensor-{pid}-"
SHOWN = 5


class ResourceCounts(NamedTuple):
    """What one process holds; memory and heap in KiB."""

    descriptors: int
    mappings: int
    threads: int
    memory: int
    heap: int


class Sandbox(ProcessTree):
    """Everything below this process, and its traces in `/dev/shm` and on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.started: dict[int, subprocess.Popen[bytes]] = {}
        self.has_private_shm = process_tree.mount_private_shm()
        self.segments = ledger.Segments(SEGMENTS, self.has_private_shm, self.seen)
        self.folder = Path(tempfile.mkdtemp(prefix="sts-"))

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()
        self.folder.rmdir()

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
        self.statuses.pop(process.pid, None)  # the number may have been another's
        self.seen.add(process.pid)
        return process

    def reap(self) -> bool:
        """Do as every process tree, and tell the objects of what was started here."""
        more = super().reap()
        for pid in self.started.keys() & self.statuses.keys():
            self.started.pop(pid).returncode = self.statuses[pid]
        return more

    # What there is

    def managers(self) -> list[int]:
        """Return the managers below this process."""
        return [pid for pid in self.living() if MANAGER in process_tree.command(pid)]

    def names(self) -> list[str]:
        """Return the names in `/dev/shm` that processes of this sandbox made."""
        return self.segments.names_and_semaphores()

    def left(self) -> list[str]:
        """Return in words everything that is there now."""
        return [
            *(f"process {process_tree.command(pid) or pid}" for pid in self.living()),
            *(f"name {name}" for name in self.names()),
            *(f"file {file}" for file in ledger.files_below(str(self.folder))),
        ]

    def left_after(self, seconds: float) -> str:
        """Wait until nothing is left; return in one line what is, or ``""``."""
        if wait_until(lambda: not self.left(), seconds):
            return ""
        left = self.left()
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        return ", ".join(left[:SHOWN]) + more

    def clear(self) -> None:
        """Kill everything below and remove every trace: there may be a next time."""
        self.kill()
        for name in self.names():
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(SHM, name))
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def interrupt(number: int, frame: object) -> None:
    """On SIGTERM: unwind as on Ctrl-C, so that the sandbox is left empty."""
    raise KeyboardInterrupt


def resources_of(pid: int) -> ResourceCounts:
    """Return what a process holds, from `/proc` alone. Raises `OSError` if it ended."""
    folder = Path(f"/proc/{pid}")
    mapped = folder.joinpath("maps").read_bytes().splitlines()
    status = dict(
        line.split(":", 1)
        for line in folder.joinpath("status").read_text().split("\n")
        if ":" in line
    )
    memory = [int(status[key].split()[0]) for key in ("RssAnon", "RssShmem")]
    return ResourceCounts(
        descriptors=len(os.listdir(folder / "fd")),
        mappings=sum(bool(ledger.SHARED_MAPPING.search(line)) for line in mapped),
        threads=len(os.listdir(folder / "task")),
        memory=sum(memory),
        heap=sum(size_of(line) for line in mapped if line.endswith(b"[heap]")) // 1024,
    )


def size_of(line: bytes) -> int:
    """Return how many bytes a line of `/proc/PID/maps` describes."""
    begin, end = line.split(maxsplit=1)[0].split(b"-")
    return int(end, 16) - int(begin, 16)
