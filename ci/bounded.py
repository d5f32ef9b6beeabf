"""Runs a command with a limit, and leaves no process of it, whatever it started.

This process adopts orphans, so a descendant in a session of its own is found and ended,
too. Whatever is below this process is taken for the command's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "conformance"))

from sharedtensor_conformance.harness.process_tree import (
    ProcessTree,
    wait_until,
)

GRACE = 10.0
"""Seconds that a command gets, when it is interrupted, to end what it has started."""


@dataclass(frozen=True)
class Ended:
    """What came of a command.

    Args:
        status: its exit status, negative for a signal; None: the limit ended it.
        seconds: how long it took.
        killed: the commands of processes that had to be killed.
    """

    status: int | None
    seconds: float
    killed: tuple[str, ...] = ()


def run(command: Sequence[object], limit: float, **options: Any) -> Ended:
    """Run a command to its end or its limit, then kill all that is left of it.

    Args:
        command: what to run.
        limit: the seconds that it may take.
        options: more of `subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    tree = ProcessTree()
    began = monotonic()
    arguments = [str(part) for part in command]
    child = subprocess.Popen(arguments, start_new_session=True, **options)
    try:
        wait_until(lambda: tree.status_of(child.pid) is not None, limit)
        status = tree.status_of(child.pid)
        if status is None:
            _interrupt(tree, child.pid)
    finally:
        killed = tree.kill()
        child.returncode = tree.statuses.get(child.pid, -signal.SIGKILL)
    return Ended(status, round(monotonic() - began, 1), tuple(killed))


def _interrupt(tree: ProcessTree, pid: int) -> None:
    """Let the command end by itself, as by Ctrl-C."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGINT)
    wait_until(lambda: tree.status_of(pid) is not None, GRACE)


def end_with_signals() -> None:
    """Let the signals that end a program end its commands first."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
