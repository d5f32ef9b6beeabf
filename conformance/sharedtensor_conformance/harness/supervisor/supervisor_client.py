"""The controller's end of a supervisor, and the cleanup if the supervisor fails.

A supervisor kills all its descendants and removes its folder. If it was stopped or
killed, for example by an implementation that signals its parent, the controller does
both: all processes below a supervisor have its folder in their environment or on their
command line.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sharedtensor_conformance.harness.case.outcomes import HarnessFault
from sharedtensor_conformance.harness.remote import wire
from sharedtensor_conformance.harness.supervisor import (
    stage_folder,
    supervisor,
)
from sharedtensor_conformance.sanitize import LINE, printable

Result = TypeVar("Result")

SCRIPT = Path(supervisor.__file__)
COMMAND = [sys.executable, "-I", "-S", str(SCRIPT)]
"""The program of a supervisor; its arguments follow."""

SHUTDOWN_TIMEOUT = 30.0
"""Seconds that a supervisor gets to end what is below it."""

SWEEP_TIMEOUT = 5.0
"""Seconds in which what a supervisor left is looked for and killed."""

_TAIL_BYTES = 4096


class SupervisorProcess(Protocol):
    """What is needed of the process of a supervisor, whoever has started it."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired where it does not come."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...


Start = Callable[[dict[str, Any]], tuple[SupervisorProcess, wire.Wire]]
"""Starts the process of a supervisor, for a job; returns it and a wire to it."""


ONE_THREAD = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
"""An environment variable: idle threads of linear algebra take processor time."""


def job_of(
    root: str,
    argv: list[str],
    variables: Mapping[str, str],
    segments: str = "",
    managers: str = "",
) -> dict[str, Any]:
    """Return what a supervisor needs to know, see ``supervisor.py``.

    Args:
        root: the folder of the stage.
        argv: the command of the owner.
        variables: its environment variables, in addition to those of this process.
        segments: the pattern of the names of segments.
        managers: the pattern of the command lines of managers.
    """
    variables = {"TMPDIR": stage_folder.temporary(root), **variables}
    return {
        "argv": argv,
        "environment": os.environ | variables,
        "root": root,
        "pattern": segments,
        "manager": managers,
    }


def start_clean(job: dict[str, Any]) -> tuple[SupervisorProcess, wire.Wire]:
    """Start a supervisor that will start the owner from a clean interpreter."""
    own_end, control = socket.socketpair()
    with control:
        process = subprocess.Popen(
            [*COMMAND, str(control.fileno()), job["root"]],
            pass_fds=[control.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return process, wire.Wire(own_end)


class Supervisor:
    """The controller's end of a supervisor.

    Its `listener` is the socket that listens in the folder of the stage.

    Args:
        job: what the supervisor is told, see ``supervisor.py``.
        timeout: seconds that an answer may take.
        start: starts its process.

    Raises:
        HarnessFault: no supervisor could be started.
    """

    def __init__(
        self, job: dict[str, Any], timeout: float, start: Start = start_clean
    ) -> None:
        self.root: str = job["root"]
        self.timeout = timeout
        self.process, self.wire = start(job)
        self.wire.limit_sending(timeout)
        try:
            until = wire.after(timeout)
            self.listener = stage_folder.listen_when_made(self.root, self.wire, until)
            self.wire.send(job)
        except (OSError, wire.WireClosed, wire.WireTimeout) as error:
            self._end()
            why = str(error) or f"none answered within {timeout:g} s"
            raise HarnessFault(f"no supervisor could be started: {why}") from None

    def status(self) -> int | None:
        """Return the exit code of its owner, None while that runs."""
        return self.run(supervisor.Supervisor.status)

    def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in the supervisor, which is its first argument.

        Function, arguments and result have to be plain data or importable there, with
        the standard library alone.

        Raises:
            HarnessFault: the supervisor failed, or has gone.
        """
        do = function.__name__
        try:
            self.wire.send({"run": wire.place_of(function), "with": arguments})
            answer = self.wire.receive(time.monotonic() + self.timeout)
        except wire.WireTimeout:
            raise HarnessFault(
                f"the supervisor gave no answer to {do!r} within {self.timeout:g} s"
            ) from None
        except wire.WireClosed as error:
            raise HarnessFault(
                f"the supervisor did not answer to {do!r}: {error}"
            ) from None
        if "error" in answer:
            raise HarnessFault(f"the supervisor could not do {do!r}: {answer['error']}")
        result: Result = answer["ok"]
        return result

    def close(self) -> None:
        """Let the supervisor end everything, and wait for it; else do it here."""
        self.listener.close()
        self._end()

    def _end(self) -> None:
        self.wire.close()
        try:
            self.process.wait(timeout=min(SHUTDOWN_TIMEOUT, self.timeout))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if Path(self.root).exists():  # removing it is the last thing that one does
            sweep(self.root)

    def abandon(self) -> None:
        """Kill the supervisor and all below it, from any thread, at any time."""
        self.process.kill()
        sweep(self.root)


def sweep(root: str) -> None:
    """Kill what was started below the supervisor of `root`; remove that folder.

    Raises:
        HarnessFault: `root` is not a stage's, so everything might match it.
    """
    if not stage_folder.is_stage_folder(root):
        raise HarnessFault(f"{root!r} is no folder of a stage: nothing is swept")
    kill_marked(root)
    stage_folder.remove(root)


def kill_marked(mark: str) -> None:
    """Kill the processes that have `mark` in their environment or command."""
    deadline = time.monotonic() + SWEEP_TIMEOUT
    while (found := processes_with_mark(mark)) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def processes_with_mark(mark: str) -> list[int]:
    """Return the processes that have `mark` in their environment or command."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                description = Path(entry.path, "environ").read_bytes()
                description += Path(entry.path, "cmdline").read_bytes()
                if mark.encode() in description:
                    found.append(int(entry.name))
    return found


def last_line(log: Path) -> str:
    """Return the last line that the processes of a stage have printed."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="backslashreplace").splitlines()
    except OSError:
        return ""
    words = [line.strip() for line in lines if line.strip()]
    return printable(words[-1][:LINE]) if words else ""
