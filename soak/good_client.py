"""The well-behaved client of `fuzz_manager.py`, which the manager always has to serve.

It holds names of files, checks that the files exist while it holds them and are removed
after it has released them, and measures how long the manager takes to answer. It prints
a report for each line on stdin, and ends at the end of stdin.

Argument: the script to run as the manager, or nothing for the reference's own.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from sharedtensor.manager import client, daemon

AT_ONCE = 4
PAUSE = 0.002


class Fault(Exception):
    """The manager did not serve this client correctly; the message says how."""


class GoodClient:
    """A client, with its names, the oldest first, and its longest wait."""

    def __init__(self) -> None:
        self.names: deque[str] = deque()
        self.made = self.served = 0
        self.peak = 0.0

    def step(self) -> None:
        """Register a name, check all names, release the oldest. Raises `Fault`."""
        name = f"sharedtensor-{os.getpid()}-{self.made:032x}"
        self.made += 1
        self.waiting_for(client.register, name)
        path_of(name).write_text(name)
        self.names.append(name)
        self.waiting_for(client.sync)
        self.look()
        if len(self.names) > AT_ONCE:
            oldest = self.names.popleft()
            client.release(oldest)

    def waiting_for(self, call: Any, *arguments: Any) -> Any:
        """Call, and note the duration."""
        began = time.perf_counter()
        result = call(*arguments)
        self.peak = max(self.peak, time.perf_counter() - began)
        self.served += 1
        return result

    def look(self) -> None:
        """Raise `Fault` unless each name is still the file that this client made."""
        for name in self.names:
            try:
                content = path_of(name).read_text()
            except FileNotFoundError:
                raise Fault(f"{name} was removed while a client held it") from None
            if content != name:
                raise Fault(f"{name} is another file than the one its client made")

    def report(self, fault: str = "") -> None:
        """Print the results since the last report."""
        pid = 0 if fault else self.waiting_for(client.status)["pid"]
        words = {"manager": pid, "address": client.address(), "fault": fault}
        figures = {"peak": self.peak, "served": self.served, "name": self.names[-1]}
        print(json.dumps(words | figures), flush=True)
        self.peak, self.served = 0.0, 0


def path_of(name: str) -> Path:
    """Return the path of the file of a name."""
    return Path(daemon.SHM, name)


def main(script: str) -> None:
    """Run the client until the end of stdin."""
    if script:
        daemon.__file__ = script
    good = GoodClient()
    fault = ""
    while True:
        try:
            good.step()
        except Exception as error:
            fault = fault or f"{type(error).__name__}: {error}"
        if select.select([sys.stdin], [], [], PAUSE)[0]:
            if not sys.stdin.readline():
                return
            good.report(fault)


if __name__ == "__main__":
    main(*sys.argv[1:2] or [""])
