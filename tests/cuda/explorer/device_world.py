"""A machine with one device, on which simulated processes share memory step by step.

Behaviour that NVIDIA calls undefined is a violation here. Each process has one queue of
work, its stream. The device does the work as late as possible: when a process waits for
it. Work that is done earlier could only hide violations, so a search need not try that.
When a process ends, everything that it made or had open is removed, and its lock on a
file is released.

The invariants follow, each with the clauses of which it is a part. Their text is part
of the record, so a change of it needs a new record.

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
VIEW_BYTES = 1_000_000  # between the addresses of one process and of the next


@dataclass
class Memory:
    """One allocation: its place on the device, and the last value written to it."""

    maker: str
    place: int
    value: int = UNDEFINED


@dataclass
class DeviceEvent:
    """An event: the number of its records, and of those whose work is done."""

    maker: str
    recorded: int = 0
    done: int = 0


@dataclass
class File:
    """A file that processes share on the host, with a lock."""

    maker: str
    content: bytearray
    locked_by: str = ""


Work = tuple[str, bytes, int]
"""Pending work: a kind, a handle and a number. ``write`` writes the number to memory,
``record`` makes the record of an event with this number, and ``wait`` waits for it.
"""


@dataclass
class World:
    """Everything that processes have in common.

    Attributes:
        capacity: the number of allocations that fit.
        open_count: how often a process has opened the memory of another.
        streams: the pending work of each process.
        inboxes: for each process the messages that it has not received, with the
            sender.
        ended: the processes that have ended.
        kills: the number of processes that were killed.
        violation: the first violation.
    """

    capacity: int = 3
    memory: dict[bytes, Memory] = field(default_factory=dict)
    open_count: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    streams: dict[str, deque[Work]] = field(default_factory=dict)
    events: dict[bytes, DeviceEvent] = field(default_factory=dict)
    files: dict[bytes, File] = field(default_factory=dict)
    inboxes: dict[str, deque[tuple[str, Any]]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    kills: int = 0
    violation: str = ""

    def add(self, process: str) -> None:
        """Add a process."""
        self.streams[process] = deque()
        self.inboxes[process] = deque()

    def record_violation(self, invariant: str, how: str) -> NoReturn:
        """Record the first violation, so that nobody can suppress it, and raise it."""
        self.violation = self.violation or f"{invariant}: {how}"
        raise Violation(self.violation)

    def key(self) -> object:
        """Return everything on which the next steps depend."""
        return (
            tuple((h, m.place, m.value) for h, m in sorted(self.memory.items())),
            tuple(sorted((+self.open_count).items())),
            tuple(tuple(stream) for stream in self.streams.values()),
            tuple((h, e.recorded, e.done) for h, e in sorted(self.events.items())),
            tuple((t, bytes(f.content), f.locked_by) for t, f in self.files.items()),
            tuple(tuple(inbox) for inbox in self.inboxes.values()),
            tuple(sorted(self.ended)),
        )

    # Memory

    def free_place(self) -> int | None:
        """Return the lowest free place or None; so addresses are reused at once."""
        used = {each.place for each in self.memory.values()}
        return next(
            (place for place in range(self.capacity) if place not in used), None
        )

    def free(self, handle: bytes) -> None:
        """Free memory.

        Raises:
            Violation: another process has it open, a message names it, or work is
                pending.
        """
        for process, opened in self.open_count:
            if opened == handle and self.open_count[process, handle]:
                self.record_violation("memory_stays", f"{process} has it open")
        for to, inbox in self.inboxes.items():
            if to not in self.ended and any(m.memory == handle for _, m in inbox):
                self.record_violation("memory_stays", f"a message to {to} names it")
        for process in self.streams:
            self.refuse_pending(process, handle, "free")
        del self.memory[handle]

    def refuse_pending(self, process: str, handle: bytes, what: str) -> None:
        """Raise `Violation` if a process has pending work on the memory."""
        if any(w[0] == "write" and w[1] == handle for w in self.streams[process]):
            self.record_violation(
                "nothing_pends", f"{process} has work pending at a {what}"
            )

    # Events

    def destroy(self, handle: bytes) -> None:
        """Destroy an event.

        Raises:
            Violation: a process has a pending wait for it.
        """
        for process, stream in self.streams.items():
            if any(work[:2] == ("wait", handle) for work in stream):
                self.record_violation("events_stay", f"{process} still waits for it")
        del self.events[handle]

    # The device

    def complete(self, process: str) -> None:
        """Do all pending work of a process, and the work that it waits for."""
        while self.streams[process]:
            self.do_next(process)

    def do_next(self, process: str) -> None:
        """Do the first pending work of a process."""
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
        """Remove everything that a process had, as at its end."""
        self.ended.add(process)
        self.streams[process].clear()
        for name, handle in list(self.open_count):
            if name == process:
                del self.open_count[name, handle]
        self.memory = {h: m for h, m in self.memory.items() if m.maker != process}
        self.events = {h: e for h, e in self.events.items() if e.maker != process}
        for file in self.files.values():
            if file.locked_by == process:
                file.locked_by = ""
