"""The sandbox of one run: all its processes, and everything that they leave behind.

A soak run observes its processes from outside, in `/proc`, without using the
implementation. The script adopts orphans, so that a manager in its own session is also
observed, counted and ended. Temporary files are in a folder of the run. If the system
permits it, the run has a private `/dev/shm`, in which every name counts. Otherwise a
name counts if it shows that a process of this sandbox made it.

At the end of the sandbox, for any reason, all its processes are killed and everything
that is left is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from sharedtensor_conformance.harness.kernel import process_tree
from sharedtensor_conformance.harness.kernel.private_shm import mount_as_root
from sharedtensor_conformance.harness.kernel.process_tree import (
    SHM,
    ProcessTree,
    wait_until,
)
from sharedtensor_conformance.harness.ledger import ledger
from sharedtensor_conformance.harness.supervisor.supervisor import (
    TRACKER_TIMEOUT,
    is_tracker,
)

MANAGER = "sharedtensor-manager"
SEGMENTS = "sharedtensor-{pid}-"
SHOWN = 5


class ResourceCounts(NamedTuple):
    """The resources of one process; memory and heap in KiB."""

    descriptors: int
    mappings: int
    threads: int
    memory: int
    heap: int


class Sandbox(ProcessTree):
    """All descendants of this process, and their files in `/dev/shm` and on disk.

    Args:
        mount: mounts a private `/dev/shm` if that is permitted.
    """

    def __init__(self, mount: Callable[[], bool] = mount_as_root) -> None:
        super().__init__()
        self.started: dict[int, subprocess.Popen[bytes]] = {}
        self.has_private_shm = mount()
        self.segments = ledger.Segments(SEGMENTS, self.has_private_shm, self.known_pids)
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
        """Return the environment of a process, with the run's temporary folder."""
        here = str(Path(__file__).parent)
        found = os.environ.get("PYTHONPATH")
        paths = os.pathsep.join([here, *([found] if found else [])])
        return {**os.environ, "TMPDIR": str(self.folder), "PYTHONPATH": paths, **more}

    def start(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a process in a new session."""
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True} | options
        process = subprocess.Popen(command, **options)
        self.started[process.pid] = process
        self.statuses.pop(process.pid, None)  # the process id may have been used before
        self.known_pids.add(process.pid)
        return process

    def reap(self) -> bool:
        """Reap ended processes, and update the `Popen` objects of this sandbox."""
        more = super().reap()
        for pid in self.started.keys() & self.statuses.keys():
            self.started.pop(pid).returncode = self.statuses[pid]
        return more

    # Resources

    def managers(self) -> list[int]:
        """Return the managers below this process."""
        return [pid for pid in self.living() if MANAGER in process_tree.command(pid)]

    def names(self) -> list[str]:
        """Return the names in `/dev/shm` that processes of this sandbox made."""
        return self.segments.names_and_semaphores()

    def left(self) -> list[str]:
        """Return descriptions of everything that exists now."""
        return [
            *(f"process {process_tree.command(pid) or pid}" for pid in self.living()),
            *(f"name {name}" for name in self.names()),
            *(f"file {file}" for file in ledger.files_below(str(self.folder))),
        ]

    def left_after(self, seconds: float) -> str:
        """Wait until nothing is left; return one line about the rest, or ``""``."""
        if wait_until(lambda: not self.left(), seconds):
            return ""
        left = self.left()
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        return ", ".join(left[:SHOWN]) + more

    def clear(self) -> None:
        """Kill all processes and remove all files; the sandbox can be used again."""
        if not self.has_private_shm:  # resource trackers remove semaphores
            self.kill(spare=is_tracker)
            wait_until(lambda: not self.living(), TRACKER_TIMEOUT)
        self.kill()
        for name in self.names():
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(SHM, name))
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def interrupt(number: int, frame: object) -> None:
    """On SIGTERM, unwind as on Ctrl-C, so that the sandbox is cleaned up."""
    raise KeyboardInterrupt


def resources_of(pid: int) -> ResourceCounts:
    """Return the resources of a process, from `/proc`. Raises `OSError` if it ended."""
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
    """Return the size in bytes of the mapping in a line of `/proc/PID/maps`."""
    begin, end = line.split(maxsplit=1)[0].split(b"-")
    return int(end, 16) - int(begin, 16)
