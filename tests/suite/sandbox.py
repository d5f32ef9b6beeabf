"""Runs the suite where nothing can get away, and says how it ended and what it left.

A server that has imported pytest and the suite, and forks for each run: a run takes the
time of what it does, and not that of importing the same modules again. What a run
starts is adopted by the process that forked it, a `ProcessTree`, whatever it forgets of
its parents. Only what is below that process is ever killed.

Argument: the path of its socket. A client connects for each run, sends a line of JSON,
gets a line with the pid, and a line with the end. The server ends when its standard
input is closed.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import sys
from contextlib import redirect_stdout, suppress
from typing import Any

import pytest
import xdist.plugin  # noqa: F401  # each run would import it
from sharedtensor_conformance import chapters
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.kernel.process_tree import (
    ProcessTree,
    prolonged,
    wait_until,
)
from sharedtensor_conformance.plugin import hooks  # noqa: F401  # as above
from sharedtensor_conformance.report.records import SpecRecord

SHUTDOWN_TIMEOUT = 20.0
"""Seconds in which supervisors that outlive their run end what they keep."""


def ended(tree: ProcessTree, pid: int, limit: float) -> int | None:
    """Return the exit status of a child, None where it was killed at the limit."""
    if wait_until(lambda: tree.status_of(pid) is not None, prolonged(limit)):
        return tree.status_of(pid)
    os.kill(pid, signal.SIGKILL)
    return None


def left(tree: ProcessTree) -> list[str]:
    """Wait a moment, kill what is still there, and return its commands."""
    if wait_until(lambda: not tree.living(), SHUTDOWN_TIMEOUT):
        return []
    return tree.kill()


def run_suite(request: dict[str, Any]) -> int:
    """Become ``python -m pytest``, in a folder and an environment of its own."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path.insert(0, request["folder"])
    sys.argv = ["pytest", *request["options"]]
    return pytest.main()


def handle(connection: socket.socket) -> int:
    """Start a run, wait for its end, and tell it; what this returns is its status."""
    tree = ProcessTree()
    with connection, connection.makefile("rw") as file:
        request = json.loads(file.readline())
        pid = os.fork()
        if pid:
            print(json.dumps(pid), file=file, flush=True)
            status = ended(tree, pid, request["limit"])
            print(json.dumps({"status": status, "left": left(tree)}), file=file)
            return 0
    return run_suite(request)


def prepare() -> None:
    """Do what each run would do: import the tests, and read what the spec says.

    What pytest asks for its help has imported all of its plugins.
    """
    with redirect_stdout(io.StringIO()):
        pytest.main(["--help"])
    for module in pkgutil.iter_modules(chapters.__path__, f"{chapters.__name__}."):
        importlib.import_module(module.name)
    SpecRecord.of(load_clauses())
    gc.freeze()  # a run would copy what its collector looks at


def main() -> int:
    """Serve until the standard input is closed; in a child, return its status."""
    prepare()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        print(flush=True)  # now one can connect
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if os.fork() == 0:
                break
            connection.close()
        else:
            return 0
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return handle(connection)


if __name__ == "__main__":
    sys.exit(main())
