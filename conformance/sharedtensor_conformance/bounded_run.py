"""Runs a command with a time limit, and ends all its processes.

A command has its own session and process group. When its time is over, the group is
interrupted, as by Ctrl-C, so that it can end its processes. Processes that remain after
the grace period are killed, and so are processes that a command leaves behind when it
ends in time. A process that has left the group is not found; `ci/bounded.py` finds
those, too.

The module uses only the standard library, because programs use it before anything is
installed.
"""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.harness.kernel.process_tree import wait_until

SHUTDOWN_TIMEOUT = 20.0
"""Seconds that an interrupted command gets to end what it has started."""

STREAMS: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.STDOUT,
}
"""The streams of a command where it is given no others."""

READ_AT_ONCE = 1 << 16

READ_INTERVAL = 1.0
"""Seconds after which a command is noticed that `Runs.end_all` has given up."""


@dataclass(frozen=True)
class Result:
    """What came of a command.

    Args:
        status: its exit status, negative for a signal, or None where it took too long
            and was ended. One that has ended has a status, though what it had started
            took too long.
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
        self._running: set[_Command] = set()
        self._lock = threading.Lock()

    def run(self, command: Sequence[str], limit: float, **options: Any) -> Result:
        """Run a command to its end, or end it when `limit` seconds have passed.

        It is at its end when its first process has ended and nobody can print any more.

        Args:
            command: what to run.
            limit: the seconds that it may take.
            options: more of `subprocess.Popen`, such as ``cwd`` and ``env``.

        Raises:
            InterruptedError: `end_all` was called, nothing is started any more.
        """
        started = self._start(command, options)
        try:
            in_time = started.wait(limit)
            has_status = in_time or started.has_ended()
            if not in_time:
                started.interrupt(self._grace)
        except BaseException:
            started.interrupt(self._grace)
            raise
        finally:
            status = started.close()
            with self._lock:
                self._running.discard(started)
        return Result(status if has_status else None, started.output())

    def _start(self, command: Sequence[str], options: dict[str, Any]) -> _Command:
        with self._lock:
            if self._closed:
                raise InterruptedError
            started = _Command(command, options)
            self._running.add(started)
        return started

    def end_all(self) -> None:
        """End what is running, all at the same time, and start nothing any more."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for command in running:
            command.signal(signal.SIGINT)
        deadline = time.monotonic() + self._grace
        for command in running:
            wait_until(command.is_closed, deadline - time.monotonic())
            command.give_up()


def run(command: Sequence[str], limit: float, **options: Any) -> Result:
    """Run one command as `Runs.run` does."""
    return Runs().run(command, limit, **options)


class _Command:
    """A command that was started: the first process of a group, which has its number.

    It is waited for last of all. Until then nobody else can get that number, so what is
    left of the group gets the signals, and nobody else, however the first one ended.
    """

    def __init__(self, command: Sequence[str], options: dict[str, Any]) -> None:
        self._first = subprocess.Popen(
            command, start_new_session=True, **STREAMS | options
        )
        self._printed: list[bytes] = []
        self._lock = threading.Lock()
        self._is_given_up = False

    def output(self) -> str:
        """Return what was read of its output."""
        content = io.BytesIO(b"".join(self._printed))
        return io.TextIOWrapper(content, errors="replace").read()

    def wait(self, limit: float) -> bool:
        """Read its output; return whether it came to its end in `limit` seconds."""
        deadline = time.monotonic() + limit
        if not self._read(deadline):
            return False
        return wait_until(self.has_ended, deadline - time.monotonic())

    def _read(self, deadline: float) -> bool:
        stream = self._first.stdout
        if stream is None:
            return True
        poller = select.poll()
        poller.register(stream, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0 and not self._is_given_up:
            if poller.poll(min(left, READ_INTERVAL) * 1000):
                part = os.read(stream.fileno(), READ_AT_ONCE)
                if not part:
                    return True
                self._printed.append(part)
        return False

    def has_ended(self) -> bool:
        """Return whether its first process has ended, without waiting for it."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._first.pid, how) is not None

    def interrupt(self, grace: float) -> None:
        """Interrupt it, and give it `grace` seconds to come to its end."""
        self.signal(signal.SIGINT)
        self.wait(grace)

    def give_up(self) -> None:
        """Kill what is left of its group, and wait for no more output.

        A process that has left the group may hold the other end of its output.
        """
        self._is_given_up = True
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its group; to nobody once it is closed."""
        with self._lock:
            if not self.is_closed():
                os.killpg(self._first.pid, number)

    def close(self) -> int:
        """Kill what is left of it; return the exit status of its first process."""
        self.signal(signal.SIGKILL)
        with self._lock:
            status = self._first.wait()
        if self._first.stdout is not None:
            self._first.stdout.close()  # a survivor may hold the other end for ever
        return status

    def is_closed(self) -> bool:
        """Return whether its first process was waited for."""
        return self._first.returncode is not None
