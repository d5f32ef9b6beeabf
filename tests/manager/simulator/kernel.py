"""A simulated kernel in virtual time, on which the manager's protocol runs.

Processes are coroutines that wait at *points*. A step resumes one process, which does
one operation and continues to its next point. The scheduler chooses which process is
next. So a step can find any state that a real system call could find: the messages of
one connection stay in order, and everything else can happen in any order. When a
process ends or is killed, the kernel closes everything that it had open, and drops the
messages that only this process could receive.

A process that waits with a timeout has its own clock. The scheduler may let a timeout
pass at any time, which advances the clock.
"""

from __future__ import annotations

import errno
import sys
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from interleavings import Violation

Ready = Callable[[], bool]


@types.coroutine
def waiting_point(label: str, ready: Ready | None) -> Generator[Any, None, None]:
    """Suspend the coroutine until the scheduler resumes it.

    The scheduler may resume it when `ready` returns true, or at any time if that is
    None.
    """
    yield label, ready


class OpenObject:
    """Something that processes and messages hold open.

    The last close calls `on_last_close`.
    """

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.references = 0

    def is_closed(self) -> bool:
        return not self.references

    def close(self) -> None:
        self.references -= 1
        if not self.references:
            self.on_last_close()

    def on_last_close(self) -> None:
        pass

    def key(self) -> object:
        return self.references


class PipeEnd(OpenObject):
    """One end of a pipe. Each end can observe that the other end was closed."""

    reader: OpenObject | None = None


class ConnectionEnd(OpenObject):
    """One end of a connection; `inbox` has messages that its holder has not read."""

    def __init__(self, identity: str) -> None:
        super().__init__(identity)
        self.inbox: deque[tuple[bytes, list[OpenObject]]] = deque()
        self.peer: ConnectionEnd

    def on_last_close(self) -> None:
        while self.inbox:
            for attached in self.inbox.popleft()[1]:
                attached.close()

    def send(self, message: bytes, attached: list[OpenObject]) -> None:
        """Send to the other end.

        Raises:
            BrokenPipeError: nobody has the other end open.
        """
        if self.peer.is_closed():
            raise BrokenPipeError(errno.EPIPE, self.identity)
        for one in attached:
            one.references += 1
        self.peer.inbox.append((message, list(attached)))

    def is_readable(self) -> bool:
        return bool(self.inbox) or self.peer.is_closed()

    def key(self) -> object:
        texts = tuple((m, tuple(o.identity for o in a)) for m, a in self.inbox)
        return self.references, texts


class Listener(OpenObject):
    """A socket that others connect to; `backlog` has the connections to be accepted."""

    def __init__(self, identity: str) -> None:
        super().__init__(identity)
        self.is_bound = self.is_listening = False
        self.backlog: deque[ConnectionEnd] = deque()

    def on_last_close(self) -> None:
        while self.backlog:
            self.backlog.popleft().close()

    def key(self) -> object:
        waiting = tuple(end.identity for end in self.backlog)
        return self.references, self.is_bound, self.is_listening, waiting


class Lock(OpenObject):
    """The lock on a directory. It is held until its holder closes it."""

    def __init__(self, identity: str, directory: Directory) -> None:
        super().__init__(identity)
        self.directory = directory
        directory.locked_by = self

    def on_last_close(self) -> None:
        self.directory.locked_by = None


class Directory:
    """A manager's directory; `exists` is False after its removal."""

    def __init__(self) -> None:
        self.exists = True
        self.locked_by: Lock | None = None
        self.entries: dict[str, Any] = {}
        self.journal: list[bytes] | None = None

    def key(self) -> object:
        entries = tuple((n, e.identity) for n, e in sorted(self.entries.items()))
        locked = self.locked_by and self.locked_by.identity
        journal = None if self.journal is None else tuple(self.journal)
        return entries, locked, journal


class Process:
    """One process: its coroutine, what it has open, and a hash of what it observed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.open_objects: list[OpenObject] = []
        self.object_count = 0
        self.speed = 0  # the weight with which it is chosen; 0 before it is drawn
        self.is_dead = False
        self.history: object = name
        self.label = "starts"
        self.ready: Ready | None = None
        self.coroutine: Coroutine[Any, None, Any]
        world.processes[name] = self

    def run(self, coroutine: Coroutine[Any, None, Any]) -> None:
        """Start to run a coroutine, up to its first point."""
        self.coroutine = coroutine
        self.resume()

    async def point(self, label: str, ready: Ready | None = None) -> None:
        """Let other processes run before the next operation of this one."""
        if not self.is_dead:
            await waiting_point(label, ready)

    def observe(self, observed: object) -> None:
        """Add the result of an operation to the history.

        A process is deterministic, so equal histories mean equal states.
        """
        self.history = hash((self.history, self.label, observed))

    def is_ready(self) -> bool:
        return not self.is_dead and (self.ready is None or self.ready())

    def resume(self) -> None:
        """Do one operation, and continue to the next point.

        Raises:
            Violation: an invariant is violated, or the process ended by an error.
        """
        self.history = hash((self.history, self.label))
        try:
            self.label, self.ready = self.coroutine.send(None)
        except StopIteration:
            self.end()
        except Violation:
            raise
        except Exception as error:
            where = f"{self.name} {type(error).__name__}: {error}"
            raise Violation(f"nobody_crashes: {where}") from error

    def end(self) -> None:
        """Mark this process as dead, and close everything that it has open."""
        self.is_dead = True
        self.label = "has ended"
        while self.open_objects:
            self.open_objects.pop().close()

    # --- what the process opens

    def identity(self, what: str) -> str:
        """Return a name for a new object, which does not depend on other processes."""
        self.object_count += 1
        return f"{self.name}/{what}{self.object_count}"

    def open(self, *opened: OpenObject) -> None:
        for one in opened:
            one.references += 1
            self.open_objects.append(one)

    def close(self, opened: OpenObject | None) -> None:
        if opened is not None and opened in self.open_objects:
            self.open_objects.remove(opened)
            opened.close()

    def connection(self) -> tuple[ConnectionEnd, ConnectionEnd]:
        """Return the two ends of a new connection, which no process has open yet."""
        identity = self.identity("connection")
        ends = ConnectionEnd(f"{identity}a"), ConnectionEnd(f"{identity}b")
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        return ends


class World:
    """The processes, files and directories of the machine."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.files: set[bytes] = set()
        self.directories: dict[str, Directory] = {}
        self.steps = 0

    def ready(self) -> list[Process]:
        """Return the processes that can do a step."""
        return [found for found in self.processes.values() if found.is_ready()]

    def step(self, process: Process) -> None:
        """Do one step of a process."""
        self.steps += 1
        process.resume()

    def alive(self) -> list[Process]:
        return [found for found in self.processes.values() if not found.is_dead]

    def directory(self, path: str) -> Directory | None:
        found = self.directories.get(path)
        return found if found is not None and found.exists else None

    def close(self) -> None:
        """End all coroutines."""
        for process in self.processes.values():
            process.is_dead = True
            process.coroutine.close()
