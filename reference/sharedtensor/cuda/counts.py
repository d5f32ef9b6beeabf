"""Who still refers to an allocation: one slot per send, in memory of the maker.

The process that made an allocation is its maker. Each send of it, by whatever
process, claims a slot in the maker's table; the message carries the slot. Then
the slot has one writer at a time:

    claimed by the sender     IN_FLIGHT   the message is on its way
    taken by the receiver     TAKEN       its wait for the event may be pending
    kept by the receiver      HELD        the wait is over, the event is done with
    released by the receiver  VACANT      it dropped the tensor
    withdrawn by the sender   VACANT      the message was not sent

An allocation can be freed when no slot names it. A slot whose receiver has died
counts no more (this is more than promise P18 asks); one that is in flight and
never received counts for as long as the maker lives.

Bytes that a program pickles itself may be read often or never, so they claim no slot.
One that is OFFERED says that bytes lead to the allocation, and keeps nothing: while it
is there, each reader claims a slot. It is vacated before the allocation is freed.

The lock is taken for single steps only, and the kernel releases it when its
holder dies; each step becomes valid by one last store.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import DeviceError, DeviceHandleError, ReceivedTwiceError
from .liveness import is_alive, own_identity
from .shared_file import TOKEN_BYTES, Address, SharedFile, alone

FILE_NAME = "device-counts"
HEADER_BYTES = 64
SLOTS = 1 << 15
VACANT, OFFERED, IN_FLIGHT, TAKEN, HELD = range(5)
SLOT = np.dtype(
    [(name, "i8") for name in ("state", "serial", "allocation", "pid", "start")]
)


class CountTable:
    """The slots of one maker, as any process sees them."""

    def __init__(self, file: SharedFile, address: Address) -> None:
        self.file = file
        self.address = address  # the maker's, whoever passes it on
        self.claimed: Count | None = None
        # How many slots were ever claimed: only these are looked through.
        self.used = np.ndarray(1, "i8", file.memory, TOKEN_BYTES)
        self.slots = np.ndarray(SLOTS, SLOT, file.memory, HEADER_BYTES)

    @classmethod
    def create(cls) -> CountTable:
        """Make the table of this process."""
        file = SharedFile.create(FILE_NAME, HEADER_BYTES + SLOTS * SLOT.itemsize)
        return cls(file, file.address)

    @classmethod
    def join(cls, address: Address) -> CountTable:
        """Open the table of another process; raises MakerGoneError."""
        return cls(SharedFile.join(address, FILE_NAME), address)

    @alone
    def claim(self, allocation: int) -> Count:
        """Count one more send of an allocation of this table's maker.

        Clauses CUDA-13 and CUDA-14: each by itself. Before it counts, it is `claimed`,
        whatever interrupts this.
        """
        self.claimed = count = self._vacant_count(allocation)
        self.slots[count.slot]["state"] = IN_FLIGHT
        return count

    def _vacant_count(self, allocation: int) -> Count:
        slot = self._vacant_slot()
        row = self.slots[slot]
        row["allocation"] = allocation
        row["serial"] += 1
        return Count(self, slot, int(row["serial"]))

    @alone
    def offer(self, allocation: int) -> None:
        """Say that bytes lead to an allocation. Clauses CUDA-36 and CUDA-37."""
        if not self._is_offered(allocation):
            self.slots[self._vacant_count(allocation).slot]["state"] = OFFERED

    def _is_offered(self, allocation: int) -> bool:
        slots = self._used_slots()
        return allocation in slots["allocation"][slots["state"] == OFFERED]

    @alone
    def accept(self, allocation: int) -> Count:
        """Count who reads bytes; raises DeviceHandleError. Clauses CUDA-36, CUDA-38."""
        if not self._is_offered(allocation):
            raise DeviceHandleError(
                "A tensor that was pickled outside of a channel has been dropped and "
                "its memory freed. Keep it until its bytes have been unpickled."
            )
        count = self._vacant_count(allocation)
        row = self.slots[count.slot]
        row["pid"], row["start"] = own_identity()
        row["state"] = TAKEN
        return count

    def _vacant_slot(self) -> int:
        """Return a slot that nobody has. Its caller holds the lock."""
        states = self._used_slots()["state"]
        lowest = int(states.argmin()) if len(states) else 0
        if len(states) and states[lowest] == VACANT:
            return lowest
        if len(states) == SLOTS:
            raise DeviceError(
                f"{SLOTS} sent device tensors are in flight or held by receivers; "
                "receive and drop some before sending more."
            )
        self.used[0] += 1
        return len(states)

    def _used_slots(self) -> np.ndarray:
        """Return those of the slots that were ever claimed."""
        return self.slots[: int(self.used[0])]

    @alone
    def counted(self) -> set[int]:
        """Return the allocations that messages or living receivers refer to."""
        self.vacate_dead()
        slots = self._used_slots()
        return set(slots["allocation"][slots["state"] > OFFERED].tolist())

    @alone
    def give_up(self, allocation: int) -> bool:
        """Return whether nobody refers to an allocation, and nobody can any more."""
        self.vacate_dead()
        slots = self._used_slots()
        named = slots["allocation"] == allocation
        is_free = not (named & (slots["state"] > OFFERED)).any()
        if is_free:
            slots["state"][named] = VACANT
        return is_free

    def vacate_dead(self) -> None:
        """Vacate the slots of receivers that have died, and of nobody else.

        Clauses CUDA-15 and CUDA-16. Its caller holds the lock.
        """
        slots = self._used_slots()
        received = slots["state"] >= TAKEN
        holders = np.unique(slots[["pid", "start"]][received])
        for pid, start in holders.tolist():
            if not is_alive(pid, start):
                theirs = (slots["pid"] == pid) & (slots["start"] == start)
                slots["state"][received & theirs] = VACANT


@dataclass(frozen=True)
class Count:
    """One send: a slot of a table, and the serial that tells its uses apart."""

    table: CountTable
    slot: int
    serial: int

    @property
    def file(self) -> SharedFile:
        """The file of the table."""
        return self.table.file

    def _is_at(self, *states: int) -> bool:
        row = self.table.slots[self.slot]
        return row["serial"] == self.serial and row["state"] in states

    def is_in_transit(self) -> bool:
        """Return whether the receiver may still need what travels in the message."""
        return self._is_at(IN_FLIGHT, TAKEN)

    def withdraw(self) -> None:
        """Vacate the slot of a message that was not sent. Clauses CUDA-4, CUDA-27."""
        self._change(VACANT, IN_FLIGHT)

    @alone
    def _change(self, state: int, *before: int) -> None:
        """Change the state of the slot if it is one of those `before`."""
        if self._is_at(*before):
            self.table.slots[self.slot]["state"] = state

    @alone
    def take(self) -> None:
        """Make this process the receiver; raises ReceivedTwiceError.

        Clause CUDA-34.
        """
        if not self._is_at(IN_FLIGHT):
            raise ReceivedTwiceError(
                "This message of a device tensor has been received before. A "
                "message serves one receiver: send the tensor once to each."
            )
        row = self.table.slots[self.slot]
        row["pid"], row["start"] = own_identity()
        row["state"] = TAKEN

    def keep(self) -> None:
        """Say that the event is done with: this process has waited for it."""
        self._change(HELD, TAKEN)

    def release(self) -> None:
        """Vacate the slot: this process no longer refers to the memory.

        Clauses CUDA-14 and CUDA-27.
        """
        self._change(VACANT, TAKEN, HELD)
