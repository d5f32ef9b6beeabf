"""The runtime of a program that replays a case: its processes, and what is checked.

It is copied into each program, with what it uses of the suite: the processes of a
program are actors as in the suite. The names at the top are those that each program
defines itself: its steps, and the operations of the adapter.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.harness.kernel.private_shm import mount_if_permitted
from sharedtensor_conformance.harness.kernel.process_tree import (
    children,
    command,
    descendants,
    has_ended,
    status,
    wait_until,
)
from sharedtensor_conformance.harness.remote.actor import Actor, owner_main
from sharedtensor_conformance.harness.remote.wire import (
    Wire,
    WireClosed,
    WireTimeout,
    after,
    decode,
    encode,
    place_of,
)

STRATEGY, CHANNELS = "default", ("pipe",)
TIMEOUT, DEADLINE, GRACE, SEGMENTS, SEEN = 60.0, 10.0, 3.0, r"(?!)", ""
MANAGERS = r"(?!)"


class Operations:
    """The operations of the adapter that a case uses."""


def steps() -> None:
    """Do what the test does."""


# What each program defines ends here.

listener: Any = socket.socket(socket.AF_UNIX)


class Setting:
    """What each process has to know; `control` is the address of the program."""

    strategy, channels, preload = STRATEGY, CHANNELS, False

    def __init__(self, control: str) -> None:
        self.control = control

    def operations(self) -> Any:
        """Return the operations of the implementation."""
        return Operations()


class Reference:
    """An object that stays in its process, which knows it by this key."""

    def __init__(self, data: dict[str, str]) -> None:
        self.data = data
        (self.key,) = data.values()


def refer(value: Any) -> dict[str, Any]:
    """Return how a value is named that is sent to a process and is not plain."""
    if isinstance(value, Reference):
        return value.data
    if isinstance(value, Layout):
        return {"layout": asdict(value)}
    return {"function": place_of(value)}


class Ended(Exception):
    """A process gave no answer: it has ended, or is too late."""


class Process:
    """A process of the case as `steps` sees it: each operation is a method of it."""

    def __init__(self, pid: int, end: Callable[[], Any]) -> None:
        self.pid, self.exit_status = pid, end
        self.pidfd = os.pidfd_open(pid)
        ready, _, _ = select.select([listener, self.pidfd], [], [], TIMEOUT)
        if listener not in ready:
            raise Ended(f"exit status {end()}" if ready else "no answer")
        connection, _ = listener.accept()
        self.wire = Wire(connection)
        self.wire.receive()  # its name

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return lambda *given: self.begin("operate", operation, *given).answer()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process, and return what it returns."""
        return self.begin("run", function, *arguments).answer()

    def start_peer(self, name: str, *arguments: Any) -> Process:
        """Make the process start another one."""
        pid = self.run(Actor.start_peer, name, *arguments)
        return Process(pid, lambda: self.run(Actor.join, name, TIMEOUT))

    def leave(self) -> Any:
        """Make the process end."""
        return self.begin("leave").answer()

    def begin(self, what: str, *arguments: Any) -> Process:
        """Ask the process for something, and do not wait for the answer."""
        given = [encode(argument, refer) for argument in arguments]
        with suppress(WireClosed):
            self.wire.send({"do": what, "with": given})
        return self

    def answer(self, within: float = TIMEOUT) -> Any:
        """Return the answer to what the process was asked for, or raise what it did."""
        try:
            message = self.wire.receive(after(within), process_fd=self.pidfd)
        except WireClosed:
            raise Ended(f"exit status {self.exit_status()}") from None
        except WireTimeout:
            raise Ended("no answer") from None
        if "ok" in message:
            return decode(message["ok"], Reference)
        error = message.get("raised") or message["fault"]
        raise type(error["type"], (Exception,), {})(error["message"])

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        select.select([self.pidfd], [], [], TIMEOUT)


class OwnShm:
    """A ``/dev/shm`` for this program and its processes, as a supervisor has one."""

    def __init__(self) -> None:
        if not mount_if_permitted():
            sys.exit(
                "The program needs a /dev/shm of its own, which it may not mount here. "
                "Run it as root, or permit user namespaces."
            )
        self.job = {"root": os.environ["TMPDIR"]}

    def require_private_shm(self) -> None:
        """Do nothing: it is private."""

    def run(self, change: Callable[..., None], *arguments: Any) -> None:
        """Change it for all processes."""
        change(self, *arguments)


def use_temporary_folder(what: str, length: int) -> None:
    """Name to all processes a folder, a file or nothing, by a path of this length."""
    path = f"{os.environ['TMPDIR']}/"
    path += "t" * max(length - len(path), 1)
    if what == "folder":
        os.mkdir(path)
    elif what == "file":
        open(path, "w").close()
    os.environ["TMPDIR"] = path


def start_owner() -> Process:
    """Start the process that starts all others."""
    owner = subprocess.Popen([sys.executable, __file__, listener.getsockname()])
    return Process(owner.pid, owner.wait)


def signal_managers(number: int) -> None:
    """Send a signal to the managers; wait for their ends, if it is SIGKILL."""
    found = [
        one for one in descendants(os.getpid()) if re.search(MANAGERS, command(one))
    ]
    for pid in found:
        os.kill(pid, number)
    if number == signal.SIGKILL:
        wait_until(lambda: all(map(has_ended, found)), TIMEOUT)


def until_it_waits(process: Process) -> bool:
    """Return whether a process sleeps, and is not woken any more, in time."""
    before = ""

    def sleeps() -> bool:
        nonlocal before
        time.sleep(0.1)
        now = status(process.pid)
        last, before = before, now["voluntary_ctxt_switches"]
        return last == before and now["State"].startswith("S")

    return wait_until(sleeps, TIMEOUT)


def digest(value: Any) -> str:
    """Return a digest of a value that is too long to be written out."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def held(what: str, process: Process | None = None) -> int:
    """Return how many descriptors or mappings a process has, or segments exist."""
    if process is None:
        return sum(bool(re.match(SEGMENTS, name)) for name in os.listdir("/dev/shm"))
    if what == "descriptors":
        return len(os.listdir(f"/proc/{process.pid}/fd"))
    with open(f"/proc/{process.pid}/maps") as file:
        return sum("/dev/shm/" in line or "/memfd:" in line for line in file)


@contextmanager
def raises(seen: str) -> Iterator[None]:
    """Check that the block raises what it raised in the recorded case."""
    try:
        yield
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        assert found.startswith(seen), f"raised {found}, and in the case {seen}"
    else:
        raise AssertionError(f"nothing was raised, and in the case {seen}")


def main() -> None:
    """Run the steps, or the owner that they start; end all processes after them."""
    if sys.argv[1:]:
        setting: Any = Setting(sys.argv[1])
        owner_main(setting)
        return
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: adopt orphans
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        listener.bind(f"{folder}/listener")
        listener.listen()
        os.environ["TMPDIR"] = folder  # of processes that are killed, and leave theirs
        try:
            steps()
            print(SEEN)
        except AssertionError:
            traceback.print_exc()
            sys.exit(
                "The deviation does not show: this differs from the recorded case."
            )
        finally:
            end_all_processes()


def end_all_processes() -> None:
    """Kill the processes that are left, and wait for them and for their trackers.

    Those are the processes that remove what others leave when they end.
    """
    while found := children(os.getpid()):
        for pid in found:
            if "resource_tracker" not in command(pid):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(-1, 0)
