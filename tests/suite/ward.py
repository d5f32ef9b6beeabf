"""Runs a command where nothing can get away, and says what it left.

Arguments: the file for the answer, seconds, and the command. All that the command
starts is adopted here (PR_SET_CHILD_SUBREAPER), whatever it forgets of its parents.
Only what is below this process is ever killed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from sharedtensor_conformance.harness.process_tree import ProcessTree, wait_until

SHUTDOWN_TIMEOUT = 20.0
"""Seconds in which supervisors that outlive their run end what they keep."""


def left(tree: ProcessTree) -> list[str]:
    """Wait a moment, kill what is still there, and return its commands."""
    wait_until(lambda: not tree.living(), SHUTDOWN_TIMEOUT)
    return tree.kill()


def main() -> None:
    """Run the command, wait, and write down what came of it."""
    tree = ProcessTree()
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
    data = {"status": status, "left": left(tree)}
    part = Path(f"{answer}.part")
    part.write_text(json.dumps(data))
    part.rename(answer)


if __name__ == "__main__":
    main()
