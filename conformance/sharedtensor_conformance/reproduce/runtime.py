"""The runtime of a program that replays a case: its processes, and what is checked.

The text below the line of dashes is copied into each program. The names above it are
those that each program defines itself: its steps, and what it copies from the suite.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
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
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

STRATEGY, CHANNELS = "default", ("pipe",)
TIMEOUT, DEADLINE, GRACE, SEGMENTS, SEEN = 60.0, 10.0, 3.0, r"(?!)", ""


class Requests:
    """The methods of the suite's actor that a case uses."""


class Operations:
    """The operations of the adapter that a case uses."""


def steps() -> None:
    """Do what the test does."""


def run(actor: Any) -> None:
    """Run an actor."""


# --------------------------------------------------------------------------------------
from_implementation = nullcontext
_current_actor: Any = None
listener = socket.socket(socket.AF_UNIX)


class Reference:
    """An object that stays in its process, which knows it by this key."""

    __module__ = "__main__"  # in a spawned process, too

    def __init__(self, key: str) -> None:
        self.key = key


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return plain data with `change` applied to each object that is not plain."""
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return value
    for kind in (list, set, frozenset):
        if isinstance(value, kind):
            return kind(mapped(item, change) for item in value)
    if type(value) is tuple:
        return tuple(mapped(item, change) for item in value)
    if isinstance(value, dict):
        return dict(mapped(list(value.items()), change))
    return change(value)


class Setting:
    """What each process has to know; `control` is the address of the program."""

    strategy, channels, preload = STRATEGY, CHANNELS, False

    def __init__(self, control: str) -> None:
        self.control = control

    def operations(self) -> Any:
        """Return the operations of the implementation."""
        return Operations()


class Actor(Requests):
    """A process of the case. It does what `steps` asks for, one request at a time."""

    def __init__(self, name: str, setting: Setting) -> None:
        self.name, self.setting, self.pid = name, setting, os.getpid()
        self.objects: dict[str, Any] = {}
        self.channels: dict[str, Any] = {}
        self.object_count, self.leaving, self.uncaught = 0, False, None
        self.operations: Any = Operations()

    def serve(self) -> None:
        """Answer requests until the program ends, or asks the process to leave."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"\0{self.setting.control}")
            self.wire = connection.makefile("rwb")
        while not self.leaving:
            try:
                what, arguments = pickle.load(self.wire)
            except EOFError:
                os._exit(0)  # the program has ended
            pickle.dump(self.answer(what, arguments), self.wire)
            self.wire.flush()
            if self.uncaught:
                raise self.uncaught
        self.wire.close()

    def answer(self, what: str, arguments: Any) -> tuple[str, Any]:
        """Return what was raised, or "", and the answer or the exception's text."""
        try:
            given = mapped(arguments, self.resolve)
            return "", mapped(self.function(what)(*given), self.refer)
        except BaseException as error:
            return type(error).__name__, str(error)

    def function(self, what: str) -> Callable[..., Any]:
        """Return the method or the operation with this name."""
        owner: Any = self if hasattr(self, what) else self.operations
        method: Callable[..., Any] = getattr(owner, what)
        return method

    def resolve(self, value: Any) -> Any:
        """Return the object that a reference means; another value as it is."""
        known = {**self.objects, **self.channels}
        return known[value.key] if isinstance(value, Reference) else value

    def refer(self, value: Any) -> Reference:
        """Keep an object here; a channel has the same key in all processes."""
        for key, known in self.objects.items():
            if known is value:
                return Reference(key)
        if type(value).__name__ == "Channel":
            self.channels[value.name] = value
            return Reference(value.name)
        self.object_count += 1
        self.objects[str(self.object_count)] = value
        return Reference(str(self.object_count))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call an operation of the implementation."""
        return getattr(self.operations, name)(*arguments)

    def by_implementation(self, action: Callable[[], Any]) -> Any:
        """Return the result of an action."""
        return action()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the suite."""
        return function(self, *arguments)

    def prepare(self) -> None:
        """Prepare the implementation in this process."""
        self.call("enter_child", STRATEGY)

    def leave(self) -> None:
        """End after the answer."""
        self.leaving = True


class Ended(Exception):
    """A process gave no answer: it has ended, or is too late."""


class Process:
    """A process of the case as `steps` sees it: each method is a request to it."""

    def __init__(self, name: str, pid: int, end: Callable[[], Any]) -> None:
        self.name, self.pid, self.exit_status = name, pid, end
        self.pidfd = os.pidfd_open(pid)
        self.wait_for(listener)
        self.connection, _ = listener.accept()
        self.wire = self.connection.makefile("rwb")

    def __getattr__(self, what: str) -> Callable[..., Any]:
        return lambda *arguments: self.begin(what, *arguments).answer()

    def start_peer(self, name: str, *arguments: Any) -> Process:
        """Make the process start another one."""
        pid = self.begin("start_peer", name, *arguments).answer()
        return Process(name, pid, lambda: self.join(name, TIMEOUT))

    def begin(self, what: str, *arguments: Any) -> Process:
        """Ask the process for something, and do not wait for the answer."""
        with suppress(BrokenPipeError):
            pickle.dump((what, arguments), self.wire)
            self.wire.flush()
        return self

    def answer(self, within: float = TIMEOUT) -> Any:
        """Return the answer to what the process was asked for, or raise what it did."""
        self.wait_for(self.connection, within)
        try:
            raised, value = pickle.load(self.wire)
        except (EOFError, ConnectionError):
            raise Ended(f"exit status {self.exit_status()}") from None
        if raised:
            raise type(raised, (Exception,), {})(value)
        return value

    def wait_for(self, readable: Any, within: float = TIMEOUT) -> None:
        """Wait until there is something to read, or the process has ended."""
        ready, _, _ = select.select([readable, self.pidfd], [], [], within)
        if readable not in ready:
            raise Ended(f"exit status {self.exit_status()}" if ready else "no answer")

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        select.select([self.pidfd], [], [], TIMEOUT)


def start_owner() -> Process:
    """Start the process that starts all others."""
    address = listener.getsockname()[1:].decode()
    owner = subprocess.Popen([sys.executable, __file__, address])
    return Process("owner", owner.pid, owner.wait)


def wait_until(condition: Callable[[], Any], within: float = TIMEOUT) -> bool:
    """Return whether a condition became true in time."""
    deadline = time.monotonic() + within
    while not (found := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def until_it_waits(process: Process) -> bool:
    """Return whether a process sleeps, and is not woken any more, in time."""
    before: list[str] = []

    def sleeps() -> bool:
        nonlocal before
        with open(f"/proc/{process.pid}/status") as file:
            now = [line for line in file if line.startswith(("State", "voluntary"))]
        same, before = now == before and "S (sleeping)" in now[0], now
        return same

    def is_not_woken() -> bool:
        time.sleep(0.1)
        return sleeps()

    return wait_until(lambda: sleeps() and is_not_woken(), TIMEOUT)


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
    global _current_actor
    if sys.argv[1:]:
        _current_actor = Actor("owner", Setting(sys.argv[1]))
        run(_current_actor)
        return
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: adopt orphans
    listener.bind(f"\0replay-{os.getpid()}")
    listener.listen()
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
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
    """Kill the processes that are left, and wait for them and for their trackers."""
    while children := own_children():
        for pid in children:
            if not is_tracker(pid):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(-1, 0)


def own_children() -> list[int]:
    """Return the children of this process, with orphans that it has adopted."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return list(map(int, file.read().split()))


def is_tracker(pid: int) -> bool:
    """Return whether a process removes what other processes leave when they end."""
    with open(f"/proc/{pid}/cmdline") as file:
        return "resource_tracker" in file.read()
