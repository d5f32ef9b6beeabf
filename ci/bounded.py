"""Runs a command with a limit, and leaves no process of it, whatever it started.

The suite's own `bounded_run` ends the command; this process adopts orphans besides, so
a descendant in a session of its own is found and ended, too. Whatever is below this
process is taken for the command's.

Both modules are those of this checkout, and need the standard library alone.

    python ci/bounded.py SECONDS COMMAND...

leaves no file of it, either: the command has a temporary folder of its own, and a
`/dev/shm` where that is permitted (to root).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "conformance"))

from sharedtensor_conformance.bounded_run import Runs
from sharedtensor_conformance.harness.process_tree import (
    ProcessTree,
    mount_private_shm,
)

GRACE = 10.0
"""Seconds that a command gets, when it is interrupted, to end what it has started."""

TOO_LONG, NOT_STARTED = 124, 127
"""Exit statuses of this script that are not the command's, those of timeout(1)."""

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


def main() -> int:
    """Run the command that follows its limit, and leave nothing of it."""
    parser = argparse.ArgumentParser(
        description="Run a command with a limit, and leave no process and no file.",
        epilog="Status 124: the limit ended it; 127: it cannot be started; "
        "128 and more: a signal ended it.",
    )
    parser.add_argument("limit", type=float, help="in seconds")
    parser.add_argument("command", nargs=argparse.PARSER, help="with its arguments")
    given = parser.parse_args()
    end_with_signals()
    with tempfile.TemporaryDirectory(prefix="sts-", ignore_cleanup_errors=True) as own:
        mount_private_shm()
        try:
            ended = run(given.command, given.limit, env={**os.environ, "TMPDIR": own})
        except OSError as error:
            print(f"{given.command[0]}: {error.strerror}", file=sys.stderr)
            return NOT_STARTED
    if ended.status is None:
        return TOO_LONG
    return ended.status if ended.status >= 0 else 128 - ended.status


if __name__ == "__main__":
    sys.exit(main())
