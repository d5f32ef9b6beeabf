"""Runs a command for a limited time, and leaves nothing of it.

A command has a session of its own. When its time is over it is interrupted, as by
Ctrl-C, so that it can end what it has started; what is still there after its grace is
killed. Standard library alone: programs use it before anything is installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

SHUTDOWN_TIMEOUT = 20.0
"""Seconds that an interrupted command gets to end what it has started."""

STREAMS: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.STDOUT,
}
"""The streams of a command where it is given no others."""


@dataclass(frozen=True)
class Result:
    """What came of a command.

    Args:
        status: its exit status, or None where it took too long and was ended.
        output: what it printed, both streams in one, unless it was given others.
    """

    status: int | None
    output: str

    @property
    def last_line(self) -> str:
        """The last line of the output that has something in it."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1] if lines else ""


class Runs:
    """Commands that several threads run, so that all of them can be ended together.

    Args:
        grace: seconds that an interrupted command gets; None: `SHUTDOWN_TIMEOUT`.
    """

    def __init__(self, grace: float | None = None) -> None:
        self._grace = SHUTDOWN_TIMEOUT if grace is None else grace
        self._closed = False
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()

    def run(self, command: Sequence[str], limit: float, **options: Any) -> Result:
        """Run a command to its end, or end it when `limit` seconds have passed.

        Args:
            command: what to run.
            limit: the seconds that it may take.
            options: more of `subprocess.Popen`, such as ``cwd`` and ``env``.

        Raises:
            InterruptedError: `end_all` was called, nothing is started any more.
        """
        child = self._start(command, options)
        try:
            output, _ = child.communicate(timeout=limit)
            return Result(child.returncode, output or "")
        except subprocess.TimeoutExpired:
            return Result(None, self._end(child))
        except BaseException:
            self._end(child)
            raise
        finally:
            with self._lock:
                self._running.discard(child)

    def _start(
        self, command: Sequence[str], options: dict[str, Any]
    ) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise InterruptedError
            child = subprocess.Popen(
                command,
                text=True,
                errors="replace",
                start_new_session=True,
                **STREAMS | options,
            )
            self._running.add(child)
        return child

    def _end(self, child: subprocess.Popen[str]) -> str:
        """Interrupt a command, then kill it; return what it printed."""
        _signal(child, signal.SIGINT)
        try:
            return child.communicate(timeout=self._grace)[0] or ""
        except subprocess.TimeoutExpired:
            _signal(child, signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()  # a survivor may hold the other end for ever
        return ""

    def end_all(self) -> None:
        """End what is running, all at the same time, and start nothing any more."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for child in running:
            _signal(child, signal.SIGINT)
        deadline = time.monotonic() + self._grace
        for child in running:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(deadline - time.monotonic(), 0))
            _signal(child, signal.SIGKILL)


def run(command: Sequence[str], limit: float, **options: Any) -> Result:
    """Run one command as `Runs.run` does."""
    return Runs().run(command, limit, **options)


def _signal(child: subprocess.Popen[str], number: signal.Signals) -> None:
    # The group is the child's own, and it exists until the child has been waited for.
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
