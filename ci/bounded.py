"""Runs a command with a time limit, and ends all processes that it started.

The suite's module `bounded_run` ends the command. In addition, this process adopts
orphans, so that a descendant in its own session is also found and ended. All
descendants of this process count as the command's.

Both modules are those of this checkout, and need only the standard library.

    python ci/bounded.py SECONDS COMMAND...

also removes the command's files: the command has its own temporary folder and, where
the system permits one, a private `/dev/shm`.
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
from sharedtensor_conformance.harness.kernel.private_shm import mount_if_permitted
from sharedtensor_conformance.harness.kernel.process_tree import ProcessTree

GRACE = 10.0
"""Seconds that an interrupted command has to end its processes."""

TOO_LONG, NOT_STARTED = 124, 127
"""Exit statuses of this script itself, as in timeout(1)."""

OWN_STREAMS: dict[str, Any] = {"stdin": None, "stdout": None, "stderr": None}
"""By default, a command has the streams of this process."""


@dataclass(frozen=True)
class Ended:
    """The result of a command.

    Args:
        status: its exit status, negative for a signal; None if the limit ended it.
        seconds: its duration.
    """

    status: int | None
    seconds: float


def run(command: Sequence[object], limit: float, **options: Any) -> Ended:
    """Run a command to its end or its limit, then kill all its processes.

    Args:
        command: the command line.
        limit: the time limit in seconds.
        options: more options of `subprocess.Popen`.

    Raises:
        OSError: the command cannot be started.
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
    """Make the signals that end this program end its commands first."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def main() -> int:
    """Run the command of the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description="Run a command with a time limit, then end all processes and "
        "remove all temporary files that it left behind.",
        epilog="Exit status: that of the command; 124 if the limit ended it, 127 if it "
        "cannot be started, 128 plus the number of a signal that ended it.",
    )
    parser.add_argument("limit", type=float, help="in seconds")
    parser.add_argument("command", nargs=argparse.PARSER, help="with its arguments")
    given = parser.parse_args()
    end_with_signals()
    with tempfile.TemporaryDirectory(prefix="sts-", ignore_cleanup_errors=True) as own:
        mount_if_permitted()
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
