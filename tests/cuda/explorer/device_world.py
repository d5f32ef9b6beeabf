"""A machine with one device, on which simulated processes share memory step by step.

What NVIDIA calls undefined is a violation here. Each process has one queue of work. The
device does it as late as it may: when somebody waits for it. Work that is done harms
nobody, so whatever earlier work could violate pending work violates as well, and there
are fewer orders to look at. What a process had open, and what it made, goes when the
process ends; the lock on a file is released then.

The invariants, with the clauses of which each is a part:

- `memory_stays`: no memory is freed while another living process has it open, or while
  a message names it that can still be received (CUDA-4, CUDA-9, CUDA-13, CUDA-14,
  CUDA-15, CUDA-34, CUDA-35).
- `nothing_pends`: no memory is freed, and none is closed, while work on it is pending
  (CUDA-25).
- `events_stay`: no event is destroyed while a wait for it is pending (CUDA-6).
- `written_is_read`: a receiver reads what was written before the send (CUDA-6, CUDA-11,
  CUDA-12).
- `all_is_given_back`: when all tensors were dropped, or their processes have died, and
  the maker has collected, it has no memory, no event and no slot left, but for messages
  that nobody has received (CUDA-4, CUDA-16, CUDA-27).
- `nobody_fails`: no operation raises, but the receipt of a message whose sender or
  maker has ended (CUDA-17, CUDA-18).
- `nobody_waits`: somebody can go on until all have ended (CUDA-17).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NoReturn

from interleavings import Violation

UNDEFINED = -1
PLACE_BYTES = 1000
VIEW_BYTES = 1_000_000  # apart lie the addresses of one process and of the next


@dataclass
class Memory:
    """One allocation: where it lies, and what was written to it."""

    maker: str
    place: int
    value: int = UNDEFINED


@dataclass
class DeviceEvent:
    """An event: how often it was recorded, and up to which record work is done."""

    maker: str
    recorded: int = 0
    done: int = 0


@dataclass
class File:
    """Memory that processes share on the host, with a lock."""

    maker: str
    content: bytearray
    locked_by: str = ""


Work = tuple[str, bytes, int]
"""``write`` of a value to memory; ``record`` of, or ``wait`` for, an event so often."""


@dataclass
class World:
    """All that processes have in common.

    Attributes:
        room: how many allocations fit.
        opened: how often a process has opened the memory of another.
        streams: the pending work of each process.
        inboxes: what was put for each process and not received: sender and message.
        ended: the processes that have ended, and how often one was killed.
    """

    room: int = 3
    memory: dict[bytes, Memory] = field(default_factory=dict)
    opened: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    streams: dict[str, deque[Work]] = field(default_factory=dict)
    events: dict[bytes, DeviceEvent] = field(default_factory=dict)
    files: dict[bytes, File] = field(default_factory=dict)
    inboxes: dict[str, deque[tuple[str, Any]]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    kills: int = 0
    violation: str = ""

    def add(self, process: str) -> None:
        """Let there be another process."""
        self.streams[process] = deque()
        self.inboxes[process] = deque()

    def violated(self, invariant: str, how: str) -> NoReturn:
        """Note the first violation; nobody can swallow it."""
        self.violation = self.violation or f"{invariant}: {how}"
        raise Violation(self.violation)

    def key(self) -> object:
        """Return all that the next steps depend on."""
        return (
            tuple((h, m.place, m.value) for h, m in sorted(self.memory.items())),
            tuple(sorted((+self.opened).items())),
            tuple(tuple(stream) for stream in self.streams.values()),
            tuple((h, e.recorded, e.done) for h, e in sorted(self.events.items())),
            tuple((t, bytes(f.content), f.locked_by) for t, f in self.files.items()),
            tuple(tuple(inbox) for inbox in self.inboxes.values()),
            tuple(sorted(self.ended)),
        )

    # Memory

    def free_place(self) -> int | None:
        """Return the lowest place that is free: addresses are used again at once."""
        used = {each.place for each in self.memory.values()}
        return next((place for place in range(self.room) if place not in used), None)

    def free(self, handle: bytes) -> None:
        """Free memory."""
        for process, opened in self.opened:
            if opened == handle and self.opened[process, handle]:
                self.violated("memory_stays", f"{process} has it open")
        for to, inbox in self.inboxes.items():
            if to not in self.ended and any(m.memory == handle for _, m in inbox):
                self.violated("memory_stays", f"a message to {to} names it")
        for process in self.streams:
            self.refuse_pending(process, handle, "free")
        del self.memory[handle]

    def refuse_pending(self, process: str, handle: bytes, what: str) -> None:
        """Raise Violation where a process has work on that memory to be done."""
        if any(w[0] == "write" and w[1] == handle for w in self.streams[process]):
            self.violated("nothing_pends", f"{process} has work pending at a {what}")

    # Events

    def destroy(self, handle: bytes) -> None:
        """Destroy an event that its maker gives up."""
        for process, stream in self.streams.items():
            if any(work[:2] == ("wait", handle) for work in stream):
                self.violated("events_stay", f"{process} still waits for it")
        del self.events[handle]

    # The device

    def complete(self, process: str) -> None:
        """Do all the work of a process, and first what it waits for."""
        while self.streams[process]:
            self.do_next(process)

    def do_next(self, process: str) -> None:
        """Do the head of a stream."""
        what, handle, number = self.streams[process][0]
        event = self.events.get(handle)
        if what == "wait" and event is not None:  # else its maker has ended
            while event.done < number:
                self.do_next(event.maker)
        self.streams[process].popleft()
        if what == "write" and handle in self.memory:
            self.memory[handle].value = number
        if what == "record" and event is not None:
            event.done = number

    # The end of a process

    def end(self, process: str) -> None:
        """Take back what a process had."""
        self.ended.add(process)
        self.streams[process].clear()
        for name, handle in list(self.opened):
            if name == process:
                del self.opened[name, handle]
        self.memory = {h: m for h, m in self.memory.items() if m.maker != process}
        self.events = {h: e for h, e in self.events.items() if e.maker != process}
        for file in self.files.values():
            if file.locked_by == process:
                file.locked_by = ""
