"""Runs a command with a limit, and leaves no process of it, whatever it started.

The suite's own `bounded_run` ends the command; this process adopts orphans besides, so
a descendant in a session of its own is found and ended, too. Whatever is below this
process is taken for the command's.

Both modules are those of this checkout, and need the standard library alone.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "conformance"))

from sharedtensor_conformance.bounded_run import Runs
from sharedtensor_conformance.harness.process_tree import ProcessTree

GRACE = 10.0
"""Seconds that a command gets, when it is interrupted, to end what it has started."""

OWN_STREAMS: dict[str, Any] = {"stdin": None, "stdout": None, "stderr": None}
"""A command has the streams of this process where it is given no others."""


@dataclass(frozen=True)
class Ended:
    """What came of a command.

    Args:
        status: its exit status, negative for a signal; None: the limit ended it.
        seconds: how long it took.
    """

    status: int | None
    seconds: float


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
    try:
        result = Runs(GRACE).run(arguments, limit, **OWN_STREAMS | options)
    finally:
        tree.kill()
    return Ended(result.status, round(monotonic() - began, 1))


def end_with_signals() -> None:
    """Let the signals that end a program end its commands first."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
