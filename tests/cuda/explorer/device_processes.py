"""Processes that run the protocol of device memory on a `World`, one step at a time.

Each process is a thread that stops at *points*: before each operation on something that
processes have in common. When the scheduler resumes it, it does one operation. The
protocol is the package's own code; its driver, files and identities are replaced. In
the table of counts, each line that touches a slot is an operation, since another
process may read before it, and the process may be killed there. Tracing finds these
lines.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from device_world import (
    PLACE_BYTES,
    VIEW_BYTES,
    DeviceEvent,
    File,
    Memory,
    World,
)
from interleavings import (
    Choice,
    Killed,
    Machine,
    Process,
    Violation,
    current_process,
)
from sharedtensor import transport
from sharedtensor.cuda import counts, protocol
from sharedtensor.cuda.driver import Driver
from sharedtensor.cuda.errors import (
    DeviceHandleError,
    MakerGoneError,
    OutOfDeviceMemoryError,
)
from sharedtensor.cuda.liveness import Identity
from sharedtensor.cuda.shared_file import Address
from sharedtensor.cuda.state import DeviceState, DeviceStorage, Message

SLOTS = 3
START = 1  # the start time of every process: no pid is used again here


class DeviceProcess(Process):
    """One process: its program, and its state of the protocol."""

    def __init__(
        self,
        machine: DeviceMachine,
        name: str,
        program: Callable[[DeviceProcess], None],
    ) -> None:
        self.machine = machine
        self.world = machine.world
        self.program = program
        self.pid = len(machine.processes) + 1
        self.state = DeviceState(ModelDriver(self))
        self.has_dropped = False
        self.name_counts: Counter[str] = Counter()
        machine.processes[name] = self
        self.world.add(name)
        super().__init__(name)

    def kill(self) -> None:
        self.was_killed = True  # what its thread does from here on has no effect
        self.world.end(self.name)
        super().kill()

    def work(self) -> None:
        sys.settrace(_traced)
        try:
            self.program(self)
            self.has_dropped = True
            self.point("exits")
            protocol.shut_down(self.state)
        finally:
            sys.settrace(None)

    def end(self) -> None:
        self.world.end(self.name)

    def fail(self, error: Exception) -> None:
        """Record an exception of an operation as a violation.

        Exceptions after the process was killed do not count.
        """
        if self.was_killed:
            return
        with contextlib.suppress(Violation):
            what = f"{self.name} at {self.label!r}: {type(error).__name__}: {error}"
            self.world.record_violation("nobody_fails", what)

    def new_name(self, what: str) -> bytes:
        """Return a name for a new object, which does not depend on other processes."""
        self.name_counts[what] += 1
        return f"{self.name}/{what}{self.name_counts[what]}".encode()

    # What programs do

    def make(self, value: int) -> DeviceStorage:
        """Return new memory, with a pending write of `value`."""
        made = protocol.allocate(self.state, 1)
        self.write(made, value)
        return made

    def write(self, storage: DeviceStorage | None, value: int) -> None:
        """Queue a write of `value` to the first byte."""
        if storage is not None:
            copy = self.state.driver.copy_to_device
            self.state.use(copy, storage.data_ptr(), bytes([value]))

    def expect(self, storage: DeviceStorage | None, value: int) -> None:
        """Read the first byte, and record a violation if it is not `value`.

        If the maker of the memory has ended, nothing is compared.
        """
        if storage is not None:
            copy = self.state.driver.copy_to_host
            found = self.state.use(copy, storage.data_ptr(), 1)
            if found and found[0] != value:
                self.world.record_violation(
                    "written_is_read", f"{self.name} reads {found[0]}, not {value}"
                )

    def send(self, storage: DeviceStorage | None, *to: str) -> None:
        """Send a tensor to each receiver in `to`."""
        for name in to:
            if storage is not None:
                message = protocol.send(storage)
                self.point(f"puts a message for {name}")
                self.world.inboxes[name].append((self.name, message))

    def next_message(self, sender: str) -> Message | None:
        """Return the next message of `sender`; None if it ended without putting one."""
        inbox = self.world.inboxes[self.name]

        def first() -> tuple[str, Message] | None:
            return next((entry for entry in inbox if entry[0] == sender), None)

        self.point(
            f"waits for a message of {sender}",
            lambda: bool(first()) or sender in self.world.ended,
        )
        entry = first()
        self.observe(entry)
        if entry is None:
            return None
        inbox.remove(entry)
        return entry[1]

    def receive(self, sender: str) -> DeviceStorage | None:
        """Return the storage in the next message of `sender`; None if it is lost."""
        message = self.next_message(sender)
        return None if message is None else self.rebuild_storage(message)

    def rebuild_storage(self, message: Message) -> DeviceStorage | None:
        """Return the storage of a message; None if its maker or sender has ended."""
        try:
            return protocol.receive(self.state, message)
        except (MakerGoneError, DeviceHandleError) as error:
            if not self.machine.any_ended({message.table.pid, message.sender.pid}):
                self.fail(error)
            return None

    def wait_for(self, *names: str) -> None:
        """Wait until each of the others has dropped its tensors or has ended."""
        others = [self.machine.processes[name] for name in names]
        self.point(
            f"waits until {' and '.join(names)} have dropped what they had",
            lambda: all(other.has_dropped or other.is_over for other in others),
        )

    def collect_all(self) -> None:
        """Collect, and record a violation if something is left without a reason.

        Only what messages carry that nobody has received may be left. The first
        collection looks at events before it vacates the slots of dead processes, so a
        second one is needed.
        """
        protocol.collect(self.state)
        protocol.collect(self.state)
        table = self.state.own_table
        in_flight = [] if table is None else unreceived_allocations(table)
        if in_flight and not self.world.kills:
            self.world.record_violation(
                "all_is_given_back", f"a slot of {self.name} is taken"
            )
        own = sum(each.maker == self.name for each in self.world.memory.values())
        events = sum(each.maker == self.name for each in self.world.events.values())
        if own > len(set(in_flight)) or events > len(in_flight):
            what = f"{self.name} has {own} allocations and {events} events"
            self.world.record_violation("all_is_given_back", what)


def unreceived_allocations(table: counts.CountTable) -> list[int]:
    """Return the allocations of the messages that nobody has received.

    Raises:
        Violation: a slot is held, although all processes have dropped their tensors.
    """
    states = table.slots["state"].tolist()
    if {counts.TAKEN, counts.HELD} & set(states):
        process_of_thread().world.record_violation(
            "all_is_given_back", "a slot is still held"
        )
    return [int(row["allocation"]) for row in table.slots if row["state"]]


class DeviceMachine(Machine):
    """A world with its processes, in the form that `interleavings.search` expects.

    Args:
        kills: the maximum number of processes to kill.
        capacity: the number of allocations that fit on the device.
    """

    processes: dict[str, DeviceProcess]

    def __init__(self, kills: int = 0, capacity: int = 3) -> None:
        super().__init__()
        self.world = World(capacity)
        self.kills = kills

    def start(self, **programs: Callable[[DeviceProcess], None]) -> None:
        """Start a process for each program."""
        for name, program in programs.items():
            DeviceProcess(self, name, program)

    def any_ended(self, pids: set[int]) -> bool:
        """Return whether at least one of these processes has ended."""
        ended = {self.processes[name].pid for name in self.world.ended}
        return bool(pids & ended)

    def may_die(self, process: Process) -> bool:
        return self.world.kills < self.kills

    def take(self, choice: Choice) -> None:
        """Let a process do a step, or kill it.

        Raises:
            Violation: an invariant is violated.
        """
        self.world.kills += choice[0] == "kill"
        super().take(choice)
        if self.world.violation:
            raise Violation(self.world.violation)

    def key(self) -> int:
        """Return a hash that identifies this state."""
        histories = tuple((p.history, p.is_over) for p in self.processes.values())
        return hash((self.world.key(), histories))

    def verify_end(self) -> None:
        """Raise `Violation` if a process still waits."""
        waiting = [p for p in self.processes.values() if not p.is_over]
        if waiting:
            said = ", ".join(f"{p.name} {p.label}" for p in waiting)
            raise Violation(f"nobody_waits: {said}")


def process_of_thread() -> DeviceProcess:
    """Return the process of the current thread."""
    found = current_process()
    assert isinstance(found, DeviceProcess)
    return found


# Replacements of driver, files and identities


class ModelDriver:
    """The `Driver` of one process, implemented on a `World`."""

    name = identity = "model:0"

    def __init__(self, process: DeviceProcess) -> None:
        self._process = process
        self._world = process.world
        self._events: list[bytes] = []

    def forked(self) -> bool:
        """Return whether the process was killed, so that the driver must do nothing."""
        return self._process.was_killed

    refuse_fork = Driver.refuse_fork

    def _base(self, memory: Memory) -> int:
        return self._process.pid * VIEW_BYTES + memory.place * PLACE_BYTES

    def _handle_at(self, pointer: int) -> bytes:
        """Return the handle of the memory at a pointer of this process, or b""."""
        process = self._process
        for handle, memory in self._world.memory.items():
            mine = memory.maker == process.name
            if pointer == self._base(memory) and (
                mine or self._world.open_count[process.name, handle]
            ):
                return handle
        return b""

    def allocate(self, nbytes: int) -> int:
        self._process.point("allocates")
        place = self._world.free_place()
        self._process.observe(place)
        if place is None:
            raise OutOfDeviceMemoryError("there is no room")
        made = Memory(self._process.name, place)
        self._world.memory[self._process.new_name("memory")] = made
        return self._base(made)

    def free(self, base: int) -> None:
        self._process.point("frees")
        self._world.free(self._handle_at(base))

    def ipc_handle(self, pointer: int) -> bytes:
        return self._handle_at(pointer)

    def open_handle(self, handle: bytes) -> int:
        self._process.point("opens memory")
        memory = self._world.memory.get(handle)
        self._process.observe(memory and memory.place)
        if memory is None:
            raise DeviceHandleError("there is no such memory")
        self._world.open_count[self._process.name, handle] += 1
        return self._base(memory)

    def close_handle(self, base: int) -> None:
        self._process.point("closes memory")
        handle = self._handle_at(base)
        if handle:  # else its maker has ended
            self._world.refuse_pending(self._process.name, handle, "close")
            self._world.open_count[self._process.name, handle] -= 1

    def copy_to_device(self, pointer: int, data: bytes) -> None:
        stream = self._world.streams[self._process.name]
        stream.append(("write", self._handle_at(pointer), data[0]))

    def copy_to_host(self, pointer: int, nbytes: int) -> bytes:
        self._wait_for_work("reads")
        memory = self._world.memory.get(self._handle_at(pointer))
        found = b"" if memory is None else bytes([memory.value % 256])
        self._process.observe(found)
        return found

    def synchronize(self) -> None:
        self._wait_for_work("synchronises")

    def _wait_for_work(self, label: str) -> None:
        self._process.point(label)
        self._world.complete(self._process.name)

    def event_create(self) -> int:
        event = self._process.new_name("event")
        self._world.events[event] = DeviceEvent(self._process.name)
        return self._add_event(event)

    def _add_event(self, event: bytes) -> int:
        self._events.append(event)
        return len(self._events) - 1

    def _event(self, number: int) -> bytes:
        return self._events[number]

    def event_record(self, event: int) -> None:
        handle = self._event(event)
        found = self._world.events[handle]
        found.recorded += 1
        stream = self._world.streams[self._process.name]
        stream.append(("record", handle, found.recorded))

    def event_handle(self, event: int) -> bytes:
        return self._event(event)

    def event_open(self, handle: bytes) -> int:
        self._process.point("opens an event")
        self._process.observe(handle in self._world.events)
        if handle not in self._world.events:
            raise DeviceHandleError("there is no such event")
        return self._add_event(handle)

    def event_wait(self, event: int) -> None:
        self._process.point("waits for an event")
        handle = self._event(event)
        found = self._world.events.get(handle)
        if found is not None:  # else its maker has ended
            stream = self._world.streams[self._process.name]
            stream.append(("wait", handle, found.recorded))

    def event_destroy(self, event: int) -> None:
        handle = self._event(event)
        found = self._world.events.get(handle)
        if found is not None and found.maker == self._process.name:
            self._process.point("destroys an event")
            self._world.destroy(handle)

    def close(self) -> None:
        pass  # all goes with the process


class ModelFile:
    """A file of the world, with the interface of `SharedFile`."""

    def __init__(self, token: bytes) -> None:
        self.token = token
        self._file = process_of_thread().world.files[token]
        self.memory = self._file.content
        maker = process_of_thread().machine.processes[self._file.maker]
        self.address = Address(maker.pid, 0, token)

    @classmethod
    def create(cls, name: str, nbytes: int) -> ModelFile:
        process = process_of_thread()
        token = process.new_name(name)
        process.world.files[token] = File(process.name, bytearray(nbytes))
        return cls(token)

    @classmethod
    def join(cls, address: Address, name: str) -> ModelFile:
        process = process_of_thread()
        process.point("joins the counts of another")
        is_gone = process.machine.any_ended({address.pid})
        process.observe(is_gone)
        if is_gone:
            raise MakerGoneError("the maker of the counts has ended")
        return cls(address.token)

    def process(self) -> DeviceProcess:
        """Return the process that uses the file in the current thread."""
        return process_of_thread()

    def locked(self, work: Callable[..., Any], *arguments: Any) -> Any:
        with self.held():
            return work(*arguments)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        process = process_of_thread()
        process.point("locks the counts", lambda: not self._file.locked_by)
        self._file.locked_by = process.name
        try:
            yield
        finally:
            if not process.was_killed:  # else the world has released the lock
                self._file.locked_by = ""


def own_identity() -> Identity:
    """Return the identity of the process of the current thread."""
    return Identity(process_of_thread().pid, START)


def is_alive(pid: int, start: int) -> bool:
    """Return whether a process lives; `start` is not used."""
    return not process_of_thread().machine.any_ended({pid})


def _lines_with_slots() -> set[int]:
    """Return the numbers of the lines of `counts` that read or write a slot."""
    lines, _ = inspect.getsourcelines(counts)
    touching = re.compile(r"self(\.table)?\.slots\[|row\[")
    return {number for number, line in enumerate(lines, 1) if touching.search(line)}


_SLOT_LINES = _lines_with_slots()


def _traced(frame: types.FrameType, event: str, argument: Any) -> Any:
    """Trace only the functions of the module `counts`."""
    return _line if frame.f_code.co_filename == counts.__file__ else None


def _line(frame: types.FrameType, event: str, argument: Any) -> Any:
    """Insert a point before each line that touches a slot."""
    if event == "line" and frame.f_lineno in _SLOT_LINES:
        process = process_of_thread()
        process.point(f"{frame.f_code.co_name}, line {frame.f_lineno}")
        process.observe(tuple(bytes(f.content) for f in process.world.files.values()))
        process.observe(frozenset(process.world.ended))
    return _line


def _unraisable(seen: Any) -> None:
    """Record an exception in a finalizer, which Python does not raise."""
    if not isinstance(seen.exc_value, Killed | Violation):
        process_of_thread().fail(seen.exc_value)


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Let the protocol run on simulated worlds during the block."""
    with contextlib.ExitStack() as stack:
        replace = {
            (counts, "SLOTS"): SLOTS,
            (counts, "SharedFile"): ModelFile,
            (counts, "own_identity"): own_identity,
            (counts, "is_alive"): is_alive,
            (protocol, "own_identity"): own_identity,
            (transport, "is_in_a_message"): lambda: True,
            (sys, "unraisablehook"): _unraisable,
        }
        for (holder, name), replacement in replace.items():
            stack.enter_context(mock.patch.object(holder, name, replacement))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
