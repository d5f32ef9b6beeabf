"""The work of the simulated device: a log per process, and events.

A copy to the device is appended to the log of its process and done only when
somebody waits for it: the process itself, by reading or synchronising, or
another one that waits for an event, which is a position in the log. Nothing is
done by itself and nothing depends on time, so a program that forgets to wait
reads the old data every time.

A wait for an event is itself an entry of the log: it is kept when the log is
next applied, by applying the other log first. An entry can point only to work
that was queued before it, so this ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DeviceError, DeviceHandleError
from .memory import LOG_BYTES, MAX_EVENTS, SimulatedMemory

COPY, WAIT = 1, 2
# COPY: offset in the arena and number of bytes, which follow.
# WAIT: number of the other process and position in its log; the event follows.
ENTRY = np.dtype([(name, "i8") for name in ("kind", "where", "count")])
WAITED = np.dtype([(name, "i8") for name in ("index", "serial")])


class SimulatedStreams:
    """Pending work and events, over the memory of a simulated device.

    Like the memory, it expects its caller to hold the device's lock.
    """

    def __init__(self, memory: SimulatedMemory) -> None:
        self._memory = memory

    # Queueing

    def queue_copy(self, offset: int, data: bytes) -> None:
        """Queue bytes to be copied to an offset of the arena."""
        if ENTRY.itemsize + len(data) > LOG_BYTES:
            # Too large to be pending: like a copy without room for staging.
            self.complete(self._memory.own_process)
            self._memory.arena[offset : offset + len(data)] = _bytes(data)
        else:
            self._append(COPY, offset, len(data), data)

    def queue_wait(self, index: int, serial: int) -> None:
        """Queue a wait for what an event of another process stands for now."""
        event = self.event(index, serial)
        if event["recorder"] != self._memory.own_process:
            waited = np.array((index, serial), WAITED).tobytes()
            self._append(WAIT, int(event["recorder"]), int(event["position"]), waited)

    def _append(self, kind: int, where: int, count: int, data: bytes) -> None:
        own = self._memory.own_process
        row = self._memory.processes[own]
        need = -(-(ENTRY.itemsize + len(data)) // 8) * 8
        if row["tail"] + need - row["base"] > LOG_BYTES:
            self.complete(own)
        if row["applied"] == row["tail"]:
            row["base"] = row["tail"]
        log = self._memory.logs[own]
        start = int(row["tail"] - row["base"])
        body = start + ENTRY.itemsize
        log[start:body].view(ENTRY)[0] = (kind, where, count)
        log[body : body + len(data)] = _bytes(data)
        row["tail"] += need

    # Doing

    def complete(self, process: int) -> None:
        """Do all the work that a process has queued."""
        self.apply(process, int(self._memory.processes[process]["tail"]))

    def apply(self, process: int, position: int) -> None:
        """Do a process's work up to a position, and first what it waits for."""
        goals = [(process, position)]
        while goals:
            first = self._advance(*goals[-1])
            if first is None:
                goals.pop()
            else:
                goals.append(first)

    def _advance(self, process: int, position: int) -> tuple[int, int] | None:
        """Apply entries; stop at an unkept wait and return what it waits for."""
        row = self._memory.processes[process]
        log = self._memory.logs[process]
        while row["applied"] < position:
            start = int(row["applied"] - row["base"])
            body = start + ENTRY.itemsize
            kind, where, count = log[start:body].view(ENTRY)[0].tolist()
            if kind == WAIT:
                size = WAITED.itemsize
                self._refuse_destroyed(
                    *log[body : body + size].view(WAITED)[0].tolist()
                )
                if self._memory.processes[where]["applied"] < count:
                    return where, count
                count = size
            else:
                self._memory.arena[where : where + count] = log[body : body + count]
            row["applied"] += -(-(ENTRY.itemsize + count) // 8) * 8
        return None

    def _refuse_destroyed(self, index: int, serial: int) -> None:
        row = self._memory.events[index]
        if serial not in (row["serial"], row["died"]):
            raise DeviceHandleError(
                "The process that made an event destroyed it while a wait for it was "
                "pending; it has to keep the event until the wait is over."
            )

    # Events

    def new_event(self) -> int:
        """Make an event that stands for no work and return its row number."""
        events = self._memory.events
        vacant = np.flatnonzero(events["serial"] == 0)
        if not len(vacant):
            raise DeviceError(
                f"The simulated device has {MAX_EVENTS} events, all in use; drop "
                "tensors and call ipc_collect()."
            )
        row = events[int(vacant[0])]
        row["maker"] = row["recorder"] = self._memory.own_process
        row["position"] = 0
        row["serial"] = self._memory.new_serial()
        return int(vacant[0])

    def event(self, index: int, serial: int) -> Any:
        """Return the row of an event; raises DeviceHandleError if it was destroyed."""
        row = self._memory.events[index]
        if not serial or row["serial"] != serial:
            raise DeviceHandleError(
                "This event has been destroyed by the process that made it; keep "
                "it until the receiver has waited for it."
            )
        return row

    def record(self, event: Any) -> None:
        """Let an event stand for all the work that this process has queued."""
        own = self._memory.own_process
        event["recorder"] = own
        event["position"] = self._memory.processes[own]["tail"]


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)
