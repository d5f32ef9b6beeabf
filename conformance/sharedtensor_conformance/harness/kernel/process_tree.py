"""The descendants of this process: finds them, waits for them and ends them.

A process that adopts orphans (PR_SET_CHILD_SUBREAPER) becomes the parent of all
processes that its descendants leave behind, including daemons in their own sessions. So
a `ProcessTree` finds all of them.

It uses only the standard library, because the supervisor imports it without
site-packages.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

SHM = "/dev/shm"
KILL_TIMEOUT = 20.0
"""Seconds in which all killed descendants have to end."""

STOP_TIMEOUT = 20.0
"""Seconds in which all threads of a process have to stop."""

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2)
_OOM_SCORE_ADJUSTMENT = "1000"  # oom_score_adj, proc(5)
_MAX_READINGS = 10
_BUSY = 2.0
"""From so many runnable processes for each processor on, time limits are prolonged."""

_MOST_PROLONGED = 3.0
_PAUSE = 0.001
_MAX_PAUSE = 0.05

_libc = ctypes.CDLL(None, use_errno=True)


def prolonged(limit: float) -> float:
    """Return the seconds that something gets whose limit is meant for an idle machine.

    On an overloaded machine what is slow would be taken for what hangs or leaks.
    """
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return limit * min(max(load / _BUSY, 1.0), _MOST_PROLONGED)


def said_of_limit(limit: float, given: float) -> str:
    """Return what evidence has to say where more seconds were given than a limit."""
    if given <= limit:
        return ""
    return f" (the machine is overloaded: it was given {given:.0f} s)"


def wait_until(predicate: Callable[[], object], within: float) -> bool:
    """Return whether `predicate` became true within `within` seconds."""
    deadline = time.monotonic() + within
    pause = _PAUSE
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE)
    return True


# What the kernel says of a process


def children(pid: int) -> list[int]:
    """Return the children of `pid`, of all its threads."""
    found = _children(pid)
    for _ in range(_MAX_READINGS):  # the kernel skips some while one of them ends
        before, found = found, _children(pid)
        if found == before:
            break
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it ended meanwhile
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return everything below `pid`, which adopts orphans, parents before children.

    What a process that ends on the way leaves is a child of `pid` only after its
    children were read, and no longer one of its parent's when those are.
    """
    found: list[int] = []
    for _ in range(_MAX_READINGS):
        pending = own = children(pid)
        found = []
        while pending:
            found += pending
            pending = [child for parent in pending for child in children(parent)]
        if children(pid) == own:
            break
    return found


def stat(pid: int | str) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on, see proc(5).

    Of a thread, where `pid` is ``PID/task/TID``.

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def status(pid: int) -> dict[str, str]:
    """Return the fields of ``/proc/PID/status`` by their names, see proc(5).

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/status", errors="replace") as file:
        fields = (line.partition(":") for line in file)
        return {name: value.strip() for name, _, value in fields}


def has_ended(pid: int) -> bool:
    """Return whether `pid` has ended (and perhaps was not waited for yet).

    One whose main thread alone has ended is a zombie too, but not at an end.
    """
    try:
        return stat(pid)[0] in "ZX" and len(os.listdir(f"/proc/{pid}/task")) < 2
    except OSError:
        return True


def stop(pid: int) -> None:
    """Stop a process; return when all its threads have stopped.

    The signal does not stop all threads at once: until a thread has handled it, the
    others continue.

    Raises:
        OSError: there is no such process.
        TimeoutError: one of its threads is still running.
    """
    os.kill(pid, signal.SIGSTOP)
    if not wait_until(lambda: _all_stopped(pid), STOP_TIMEOUT):
        raise TimeoutError(f"process {pid} goes on after SIGSTOP")


def resume(pid: int) -> None:
    """Continue a process that was stopped, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """Stop processes for the time of the block.

    Raises:
        OSError: one of them does not exist.
        TimeoutError: a thread of one of them is still running.
    """
    chosen = list(pids)
    try:
        for pid in chosen:
            stop(pid)
        yield
    finally:
        for pid in chosen:
            resume(pid)


def _all_stopped(pid: int) -> bool:
    tasks = os.listdir(f"/proc/{pid}/task")
    try:
        return all(stat(f"{pid}/task/{task}")[0] in "tTZX" for task in tasks)
    except FileNotFoundError:  # a thread has ended meanwhile
        return False


def command(pid: int) -> str:
    """Return the command line, or an empty string; the program without its folder.

    The folder differs between machines, and a report would show it.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            program, *arguments = file.read().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return " ".join([os.path.basename(program), *arguments]).strip()


class ProcessTree:
    """All descendants of this process, which from now on adopts orphans.

    Attributes:
        known_pids: all processes that have been descendants.
        statuses: the exit codes of the descendants that were waited for.
    """

    def __init__(self) -> None:
        self.known_pids: set[int] = set()
        self.statuses: dict[int, int] = {}
        _libc.prctl(_SUBREAPER, 1, 0, 0, 0)

    def reap(self) -> bool:
        """Wait for ended processes, without blocking; return whether others exist.

        Every descendant becomes a child in the end, so none exists if this is False.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.known_pids.add(pid)
            self.statuses[pid] = os.waitstatus_to_exitcode(status)

    def status_of(self, pid: int) -> int | None:
        """Return the exit code of a process, None if it has not ended."""
        self.reap()
        return self.statuses.get(pid)

    def living(self) -> list[int]:
        """Return the descendants that have not ended, parents first."""
        self.reap()
        found = [pid for pid in descendants(os.getpid()) if not has_ended(pid)]
        self.known_pids.update(found)
        return found

    def kill(
        self,
        spare: Callable[[int], bool] | None = None,
        before_kill: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Kill all processes except the spared ones; return their command lines.

        `before_kill` is called with each pid before the kill.
        """
        killed: dict[int, str] = {}  # each once, though it ends a moment later
        deadline = time.monotonic() + KILL_TIMEOUT
        more = True
        while more and time.monotonic() < deadline:
            found = [p for p in self.living() if not (spare and spare(p))]
            for pid in found:
                if before_kill:
                    before_kill(pid)
                killed.setdefault(pid, command(pid))
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            # Who looks may overlook one whose parent ends; the kernel does not.
            more = bool(found) if spare else self.reap()
            if more:
                time.sleep(_PAUSE)  # it needs a moment to make orphans ours
        self.reap()
        return list(killed.values())


def prefer_for_oom_kill(pid: int) -> None:
    """Make the kernel kill `pid` first if memory runs out."""
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE_ADJUSTMENT)


def signal_at_parent_death(number: signal.Signals | None) -> None:
    """Have the kernel send this process a signal when its parent has ended, or none."""
    _libc.prctl(_DEATH_SIGNAL, number or 0, 0, 0, 0)
