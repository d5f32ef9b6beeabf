"""A kernel of one machine in virtual time: what the manager's protocol rests on.

Processes are coroutines that wait at *points*; a step resumes one of them, which does
one operation and goes on to its next point. Which process is next is the scheduler's
choice, so a step can find any state that a real system call could find: messages on
connections are in order, everything else happens in any order. When a process ends or
is killed, the kernel closes what it had open, and so what was in flight to it.

Each process has a clock of its own, which goes on when it waits with a timeout and the
scheduler lets that pass: it may, at any time.
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
    """Wait until the scheduler resumes the process, which `ready` permits."""
    yield label, ready


class Opened:
    """Something that processes and messages hold open; the last close ends it."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.references = 0

    def is_closed(self) -> bool:
        return not self.references

    def close(self) -> None:
        self.references -= 1
        if not self.references:
            self.ended()

    def ended(self) -> None:
        pass

    def key(self) -> object:
        return self.references


class PipeEnd(Opened):
    """The end of a pipe whose closing the other end sees, and the other way round."""

    reader: Opened | None = None


class End(Opened):
    """One end of a connection; `inbox` is what its holder has not read."""

    def __init__(self, identity: str) -> None:
        super().__init__(identity)
        self.inbox: deque[tuple[bytes, list[Opened]]] = deque()
        self.peer: End

    def ended(self) -> None:
        while self.inbox:
            for attached in self.inbox.popleft()[1]:
                attached.close()

    def send(self, message: bytes, attached: list[Opened]) -> None:
        """Send to the other end. Raises `BrokenPipeError` if nobody has it."""
        if self.peer.is_closed():
            raise BrokenPipeError(errno.EPIPE, self.identity)
        for one in attached:
            one.references += 1
        self.peer.inbox.append((message, list(attached)))

    def has_news(self) -> bool:
        return bool(self.inbox) or self.peer.is_closed()

    def key(self) -> object:
        texts = tuple((m, tuple(o.identity for o in a)) for m, a in self.inbox)
        return self.references, texts


class Listener(Opened):
    """A socket that others connect to; `backlog` are connections nobody accepted."""

    def __init__(self, identity: str) -> None:
        super().__init__(identity)
        self.is_bound = self.is_listening = False
        self.backlog: deque[End] = deque()

    def ended(self) -> None:
        while self.backlog:
            self.backlog.popleft().close()

    def key(self) -> object:
        waiting = tuple(end.identity for end in self.backlog)
        return self.references, self.is_bound, self.is_listening, waiting


class Lock(Opened):
    """The lock on a directory, as long as its holder has it open."""

    def __init__(self, identity: str, directory: Directory) -> None:
        super().__init__(identity)
        self.directory = directory
        directory.locked_by = self

    def ended(self) -> None:
        self.directory.locked_by = None


class Directory:
    """A manager's directory; `exists` is False once it was removed."""

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
    """One process: its coroutine, what it has open, and what it has observed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.opened: list[Opened] = []
        self.made = 0
        self.speed = 0  # how often it is its turn, once that was drawn
        self.is_dead = False
        self.history: object = name
        self.label = "starts"
        self.ready: Ready | None = None
        self.coroutine: Coroutine[Any, None, Any]
        world.processes[name] = self

    def run(self, coroutine: Coroutine[Any, None, Any]) -> None:
        """Be this coroutine, from its first point on."""
        self.coroutine = coroutine
        self.resume()

    async def point(self, label: str, ready: Ready | None = None) -> None:
        """Let others do something before the next operation of this process."""
        if not self.is_dead:
            await waiting_point(label, ready)

    def saw(self, observed: object) -> None:
        """Note what an operation returned: with it the state of the process is known.

        A process is deterministic, so equal histories are equal states.
        """
        self.history = hash((self.history, self.label, observed))

    def is_ready(self) -> bool:
        return not self.is_dead and (self.ready is None or self.ready())

    def resume(self) -> None:
        """Do one operation."""
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
        """Have the kernel close everything."""
        self.is_dead = True
        self.label = "has ended"
        while self.opened:
            self.opened.pop().close()

    # --- what it opens

    def identity(self, what: str) -> str:
        """Return a name of something that does not depend on what others do."""
        self.made += 1
        return f"{self.name}/{what}{self.made}"

    def open(self, *opened: Opened) -> None:
        for one in opened:
            one.references += 1
            self.opened.append(one)

    def close(self, opened: Opened | None) -> None:
        if opened is not None and opened in self.opened:
            self.opened.remove(opened)
            opened.close()

    def connection(self) -> tuple[End, End]:
        """Return the ends of a new connection, which nobody has open yet."""
        identity = self.identity("connection")
        ends = End(f"{identity}a"), End(f"{identity}b")
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        return ends


class World:
    """All processes and files."""

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
