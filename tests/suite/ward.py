"""Runs a command where nothing can get away, and says what it left.

Arguments: the file for the answer, seconds, and the command. All that the command
starts is adopted here (PR_SET_CHILD_SUBREAPER), whatever it forgets of its parents.
Only what is below this process is ever killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from sharedtensor_conformance.harness import ledger
from sharedtensor_conformance.harness.checks import wait_until

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)
FAREWELL = 20.0
"""Seconds in which supervisors that outlive their run end what they keep."""


def living() -> list[int]:
    """Return what is below this process and has not ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    below = ledger.descendants(os.getpid())
    return [pid for pid in below if not ledger.is_zombie(pid)]


def left() -> list[str]:
    """Wait a moment, kill what is still there, and return its commands."""
    if wait_until(lambda: not living(), FAREWELL):
        return []
    commands = [ledger.command(pid) for pid in living()]
    wait_until(lambda: not killed(), FAREWELL)
    return commands


def killed() -> list[int]:
    """Kill what is still there, and return it."""
    found = living()
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def main() -> None:
    """Run the command, wait, and write down what came of it."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    answer, limit, *command = sys.argv[1:]
    process = subprocess.Popen(command)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    try:
        status = process.wait(float(limit))
    except subprocess.TimeoutExpired:
        process.kill()
        status = None
        process.wait()
    data = {"status": status, "left": left()}
    part = Path(f"{answer}.part")
    part.write_text(json.dumps(data))
    part.rename(answer)


if __name__ == "__main__":
    main()
