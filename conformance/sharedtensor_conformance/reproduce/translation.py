"""Translates recorded events into the lines of the program's processes.

The owner is the program itself. Every other process is a generator: the owner resumes
it, and it yields when its turn is done. So the code of each process reads from top to
bottom, and all steps happen in the order of the test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

from sharedtensor_conformance.reproduce.channels import Channel, Channels, unused_name
from sharedtensor_conformance.reproduce.events import (
    OWNER,
    Event,
    RecordedCase,
    references_in,
    source_of,
)
from sharedtensor_conformance.reproduce.loops import Line, Step, Turn
from sharedtensor_conformance.reproduce.operations import DROP_IN, Operations
from sharedtensor_conformance.reproduce.source import Untranslatable

DEFAULT_PEERS = ("peer", "bystander")

RESULT_NAMES = {
    "make": "tensor",
    "parameters": "parameters",
    "state_dict": "state",
    "make_module": "module",
    "conjugate": "view",
    "reinterpret": "view",
    "detach": "detached",
    "forge": "forged",
}
"""The names of results in a program, by operation. Other results have the operation's
name.
"""

READ_ONLY = frozenset(
    [
        *("values", "shape", "dtype", "strides", "read", "address", "is_shared"),
        *("requires_grad", "is_leaf", "is_parameter", "device_values", "device_of"),
    ]
)
"""Operations that only read. A program has them only where they show the failure."""


@dataclass
class Process:
    """A process of the program.

    Args:
        name: its name in the events.
        variable: its name in the owner.
        parameters: the arguments that it gets, by the names of its parameters.
        sources: the source of each object that it has, by the key of the object.
        names: the names that it already uses.
        first_lines: its first lines.
        arguments: the arguments with which it was started, encoded.
        inherits: whether it inherited the arguments, so that they were not sent.
    """

    name: str
    variable: str
    parameters: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    first_lines: list[str] = field(default_factory=list)
    arguments: Any = None
    inherits: bool = False

    @property
    def steps(self) -> str:
        """The name of its generator."""
        return f"{self.variable}_steps"

    @property
    def pid(self) -> str:
        """The expression for its process id, in the owner."""
        own = self.name == OWNER
        return "os.getpid()" if own else f"{self.variable}.process.pid"


class Translation:
    """The lines of all processes of a program.

    `steps` are the lines in their order. `needs` has the names of the helpers that they
    use. `reading_positions` has the positions in `steps` at which the ledger is read.
    `call_continues` is true if the call that shows the failure began before other
    events. `inherited` has the names that the owner holds when it forks another
    process.

    Args:
        recorded: the recorded events.
        operations: the operations of the adapter.
        strategy: the sharing strategy of the case.
        start_method: the start method of the case.
        with_reads: whether to include operations that only read.
        reserved: the names that no variable may have.
    """

    def __init__(
        self,
        recorded: RecordedCase,
        operations: Operations,
        strategy: str,
        start_method: str,
        *,
        with_reads: bool = False,
        reserved: Set[str] = frozenset(),
    ) -> None:
        self.recorded = recorded
        self.operations = operations
        self.strategy = strategy
        self.start_method = start_method
        self.with_reads = with_reads
        self.reserved = reserved
        self.channels = Channels(recorded.events, reserved)
        self.processes = {OWNER: Process(OWNER, OWNER, names={*reserved})}
        self.steps: list[Step] = []
        self.needs: set[str] = set()
        self.call_continues = False
        self.inherited: set[str] = set()
        self._binds_results = True
        self.reading_positions: list[int] = []
        self._in_reading = False
        self._begin()

    def translate(self) -> None:
        """Translate all events before the one that shows the failure.

        Raises:
            Untranslatable: an event cannot be translated.
        """
        last = self.recorded.failure.event
        waiting: list[Event] = []
        for event in self.recorded.events:
            for pending in [p for p in waiting if p.answered_before <= event.number]:
                waiting.remove(pending)
                self._await_answer(pending)
            if event.number == last and self._is_last(event):
                return
            if event.kind == "read":
                self._read()
                continue
            self._in_reading = False
            self._translate(event)
            if event.overlaps and event.process != OWNER and event.is_answered:
                waiting.append(event)

    def _is_last(self, event: Event) -> bool:
        """Return whether the translation ends with this event, which shows the failure.

        It goes on if other events follow before the answer, or if the failure is a
        leak.
        """
        if self.recorded.failure.kind == "growth":
            return False
        others = event.process != OWNER and event is not self.recorded.events[-1]
        self.call_continues = event.overlaps and others
        return not self.call_continues

    # Processes

    def _begin(self) -> None:
        for channel in self.channels.of_owner():
            self.add(OWNER, channel.constructor_line)
        self.add_lines(OWNER, self._preparation(OWNER))
        started = {
            str(e.arguments[0])
            for e in self.recorded.events
            if e.request == "start_peer"
        }
        for name in DEFAULT_PEERS:
            if name not in started and any(
                e.process == name for e in self.recorded.events
            ):
                self._start(name, self.start_method, None)

    def _preparation(self, name: str) -> list[str]:
        """Return the lines that prepare a process."""
        if not self.recorded.sets_strategy.get(name, True):
            return []
        return self.operations.preparation(self.strategy)

    def _start(self, name: str, method: str, arguments: Any) -> None:
        if method != self.start_method:
            raise Untranslatable("it uses more than one start method")
        for channel in self.channels.needed_by(name, self.processes):
            self.add(OWNER, channel.constructor_line)
        made = Process(
            name, self._variable(name), names={*self.reserved}, arguments=arguments
        )
        made.inherits = method == "fork"
        made.parameters = {n: n for n in self.channels.names_for(name)}
        if any(True for _ in references_in(arguments)):
            made.parameters["arguments"] = self._message(
                OWNER, arguments, made.inherits
            )
        made.names |= set(made.parameters)
        self._delete_inherited(made)
        self.processes[name] = made
        given = "".join(f", {value}" for value in made.parameters.values())
        self.add(OWNER, f"{made.variable} = Peer({made.steps}{given})")
        self.needs.add("peer")
        made.first_lines += self._preparation(name)

    def _delete_inherited(self, made: Process) -> None:
        """Let a forked process delete what it inherits at once, as in the test.

        For this, the names of the parent are global.
        """
        held = [s for s in self.process(OWNER).sources.values() if s.isidentifier()]
        if made.inherits and held:
            names = ", ".join(held)
            made.first_lines = [f"global {names}", f"del {names}  # what it inherits"]
            self.inherited |= set(held)

    def _variable(self, name: str) -> str:
        children = {e.process for e in self.recorded.events if e.process[:5] == "child"}
        alone = name.startswith("child") and len(children) == 1
        wanted = "child" if alone else name.replace("-", "_")
        return unused_name(wanted, self.reserved)

    # Lines

    def add(self, process: str, text: str) -> None:
        """Add a line to a process."""
        if not text:
            return
        if process == OWNER:
            self.steps.append(Line(text))
        else:
            self.steps.append(Turn(process, (text,)))

    def add_lines(self, process: str, texts: list[str]) -> None:
        """Add several lines to a process."""
        for text in texts:
            self.add(process, text)

    def process(self, name: str) -> Process:
        """Return a process that was started before.

        Raises:
            Untranslatable: the test did not start it.
        """
        if name not in self.processes:
            raise Untranslatable(f"the test did not start the process {name}")
        return self.processes[name]

    # Events

    def _translate(self, event: Event) -> None:
        if event.kind == "system":
            raise Untranslatable(
                f"it does what a program here cannot do: {event.request}"
            )
        if event.kind == "kill":
            self._end_process(
                event, f"{self.process(event.process).variable}.process.kill()"
            )
            return
        if event.polls:
            self._poll(event)
            return
        if event.request == "start_peer":
            name, method, arguments = event.arguments
            self._start(name, method, arguments)
            return
        if event.request == "leave":
            self.needs.add("leave")
            leaving = f'{self.process(event.process).variable}.turns.send("leave")'
            self._end_process(event, leaving)
            return
        if self.expects_an_address and event is self._expected_event:
            self.add(event.process, f"expected = {self.unnamed_source(event)}")
        for line in self.lines_for(event):
            self._add_event(event, line)

    @property
    def _expected_event(self) -> Event | None:
        number = self.recorded.failure.expected_event
        return next((e for e in self.recorded.events if e.number == number), None)

    @property
    def expects_an_address(self) -> bool:
        """Whether the expected value is an address, which differs between runs."""
        expected = self._expected_event
        if expected is None or expected.arguments[:1] != ("address",):
            return False
        if expected.process != self.recorded.failing_call.process:
            raise Untranslatable("it compares addresses of two processes")
        return True

    def _add_event(self, event: Event, line: str) -> None:
        if event.raised:
            line = f"with suppress(Exception):\n    {line}"
        if event.overlaps and event.process != OWNER:
            self.steps.append(Turn(event.process, (line,), "tell"))
            self.needs.add("waits")
            variable = self.process(event.process).variable
            self.add(OWNER, f"until_it_waits({variable}.process)")
        else:
            self.add(event.process, line)

    def _await_answer(self, event: Event) -> None:
        self.steps.append(Turn(event.process, (), "wait"))

    def _end_process(self, event: Event, how: str) -> None:
        if event.process == OWNER:
            raise Untranslatable(
                "the owner ends in it, and in a program the owner is the program itself"
            )
        self.add(OWNER, how)
        self.add(OWNER, f"{self.process(event.process).variable}.process.join(TIMEOUT)")

    def _poll(self, event: Event) -> None:
        if event.request != "has_message":
            return
        is_there = self.channels.used_by(event).poll_source(event.process)
        self.add(event.process, f"while not ({is_there}):\n    time.sleep(0.01)")

    def lines_for(self, event: Event) -> list[str]:
        """Return the lines for a request to a process.

        Raises:
            Untranslatable: the request cannot be translated.
        """
        translate = getattr(self, f"_translate_{event.request}", None)
        if translate is None:
            raise Untranslatable(
                f"it does what a program here cannot do: {event.request}"
            )
        lines: list[str] = translate(event, *event.arguments)
        return [line for line in lines if line]

    def unnamed_source(self, event: Event) -> str:
        """Return the source of the event that shows the failure, without a new name."""
        before, self.with_reads, self._binds_results = self.with_reads, True, False
        try:
            return "\n".join(self.lines_for(event))
        finally:
            self.with_reads, self._binds_results = before, True

    # Values

    def source(self, process: str, data: Any) -> str:
        """Return the source of a value in a process."""

        def refer(found: dict[str, Any]) -> str:
            if "channel" in found:
                channel = self.channels.named[found["channel"]]
                return ", ".join(channel.names_for(process))
            sources = self.process(process).sources
            if found["reference"] not in sources:
                raise Untranslatable("it uses an object from before the recording")
            return sources[found["reference"]]

        return source_of(data, refer)

    def _message(self, process: str, payload: Any, inherits: bool = False) -> str:
        """Return the source of a message with encoded tensors."""
        if inherits or self.operations.does_nothing("encode"):
            return self.source(process, payload)

        keys = [key for key, _ in references_in(payload)]
        encoded: dict[str, str] = {}

        def refer(found: dict[str, Any]) -> str:
            key = found["reference"]
            if key in encoded:  # an object that occurs twice is encoded once
                return encoded[key]
            source = self.operations.call_source("encode", self.source(process, found))
            if keys.count(key) == 1:
                return source
            taken = {*self.reserved, *encoded.values()}
            encoded[key] = unused_name("encoded", taken)
            return f"({encoded[key]} := {source})"

        return source_of(payload, refer)

    def _bind(self, event: Event, wanted: str, source: str, decodes: bool) -> list[str]:
        """Return the lines that assign the result of an event; note the new names."""
        process = self.process(event.process)
        new = [
            (key, path)
            for key, path in references_in(event.returned)
            if key not in process.sources
        ]
        decodes = decodes and not self.operations.does_nothing("decode")
        if not new and not (decodes and event.raised):
            return [source]
        if not self._binds_results:
            single = len(new) <= 1 and not any(path for _, path in new)
            decodes = decodes and single
            return [
                self.operations.call_source("decode", source) if decodes else source
            ]
        if len(new) > 1 or any(path for _, path in new):
            return self._unpacked(event, source, new, decodes)
        value = self.operations.call_source("decode", source) if decodes else source
        if not new:
            return [value]
        return [f"{self._bind_name(process, new[0][0], wanted)} = {value}"]

    def _unpacked(
        self, event: Event, source: str, new: list[tuple[str, str]], decodes: bool
    ) -> list[str]:
        process = self.process(event.process)
        whole = unused_name("message", process.names)
        lines = [f"{whole} = {source}"]
        if not decodes and not self._are_dropped(event, {key for key, _ in new}):
            process.names.add(whole)
            for key, path in new:
                process.sources.setdefault(key, f"{whole}{path}")
            return lines
        if not decodes and _is_flat(event.returned, new):
            names = [self._bind_name(process, key, "arrived") for key, _ in new]
            return [f"{', '.join(names)} = {source}"]
        first: dict[str, str] = {}
        for key, path in new:
            first.setdefault(key, path)
        for key, path in first.items():
            value = f"{whole}{path}"
            value = self.operations.call_source("decode", value) if decodes else value
            lines.append(f"{self._bind_name(process, key, 'arrived')} = {value}")
        return [*lines, f"del {whole}"]

    def _bind_name(self, process: Process, key: str, wanted: str) -> str:
        name = unused_name(wanted, process.names)
        process.names.add(name)
        process.sources[key] = name
        return name

    def _are_dropped(self, event: Event, keys: set[str]) -> bool:
        for later in self.recorded.events:
            if later.process == event.process and later.number > event.number:
                named = {str(g) for g in later.arguments} & keys
                if named and later.request in ("drop", "act"):
                    return True
        return False

    # Requests to processes

    def _translate_operate(self, event: Event, name: str, *given: Any) -> list[str]:
        observes = name in READ_ONLY or (name == "grad" and event.returned is None)
        if observes and not self.with_reads:
            return []
        sources = [self.source(event.process, value) for value in given]
        line = self.operations.call_source(name, *sources)
        return (
            self._bind(event, RESULT_NAMES.get(name, name), line, False) if line else []
        )

    def _translate_put(
        self, event: Event, to: str, kind: str, payload: Any
    ) -> list[str]:
        message = self._message(event.process, payload)
        putting = self.channels.used_by(event).put_source(event.process, message)
        return [putting, *_del_lines(message)]

    def _translate_get(self, event: Event, sender: str, kind: str) -> list[str]:
        source = self.channels.used_by(event).get_source(event.process)
        return self._bind(event, "arrived", source, True)

    def _translate_arguments(self, event: Event) -> list[str]:
        process = self.process(event.process)
        found = self._bind(event, "argument", "arguments", not process.inherits)
        return found if found != ["arguments"] else []

    def _translate_drop(self, event: Event, *keys: str) -> list[str]:
        return [line for key in keys for line in self._drop_lines(event.process, key)]

    def _drop_lines(self, name: str, key: str) -> Iterator[str]:
        process = self.process(name)
        source = process.sources.pop(key, None)
        if source is None:
            return
        if not source.isidentifier():
            raise Untranslatable("it drops only a part of a message")
        if not self.operations.does_nothing("release"):
            yield self.operations.call_source("release", source)
        process.names.discard(source)
        yield f"del {source}"

    def _translate_open_channel(
        self, event: Event, kind: str, method: str
    ) -> list[str]:
        return [self._channel(event.returned).constructor_line]

    def _channel(self, data: Any) -> Channel:
        return self.channels.named[data["channel"]]

    def _translate_channel_put(
        self, event: Event, which: Any, payload: Any
    ) -> list[str]:
        message = self._message(event.process, payload)
        putting = self._channel(which).put_source(event.process, message)
        return [putting, *_del_lines(message)]

    def _translate_channel_get(self, event: Event, which: Any) -> list[str]:
        source = self._channel(which).get_source(event.process)
        return self._bind(event, "arrived", source, True)

    def _translate_channel(
        self, event: Event, which: Any, what: str, *_: Any
    ) -> list[str]:
        if what not in ("task_done", "join", "close"):
            raise Untranslatable(f"it does what a program here cannot do: {what}")
        ends = self._channel(which).names_for(event.process)
        return [f"{end}.{what}()" for end in ends]

    def _translate_drop_channel(self, event: Event, name: str) -> list[str]:
        return [f"del {', '.join(self.channels.named[name].names_for(event.process))}"]

    def _translate_module(self, event: Event, name: str, *given: Any) -> list[str]:
        if name.startswith("get_") and not self.with_reads:
            return []
        sources = (self.source(event.process, value) for value in given)
        return [f"{DROP_IN}.{name}({', '.join(sources)})"]

    def _translate_same(self, event: Event, one: Any, other: Any) -> list[str]:
        sources = (self.source(event.process, value) for value in (one, other))
        return [" is ".join(sources)] if self.with_reads else []

    def _translate_read_array(self, event: Event, array: Any, index: int) -> list[str]:
        source = self.source(event.process, array)
        return [f"{source}[{index}].item()"] if self.with_reads else []

    def _translate_write_array(
        self, event: Event, array: Any, index: int, value: Any
    ) -> list[str]:
        return [f"{self.source(event.process, array)}[{index}] = {value!r}"]

    def _translate_has_message(self, event: Event, sender: str, kind: str) -> list[str]:
        asking = self.channels.used_by(event).poll_source(event.process)
        return [asking] if self.with_reads else []

    def _translate_set_umask(self, event: Event, mask: int) -> list[str]:
        return [f"os.umask({mask:#o})"]

    def _translate_exhaust(self, event: Event, what: str, spare: int) -> list[str]:
        if what == "descriptors":
            self.needs.add("descriptors taken")
            return [f"taken = take_descriptors({spare})"]
        if what == "file_size":
            return [_limit_line("FSIZE", str(spare))]
        raise Untranslatable(f"it does what a program here cannot do: exhaust {what}")

    def _translate_restore(self, event: Event, what: str) -> list[str]:
        if what == "descriptors":
            return ["while taken:\n    os.close(taken.pop())"]
        return [_limit_line("FSIZE", "resource.RLIM_INFINITY")]

    def _translate_try_context(self, event: Event, method: str) -> list[str]:
        return [f"{DROP_IN}.get_context({method!r})"]

    # Actions

    def _translate_act(self, event: Event, name: str, *given: Any) -> list[str]:
        translate = getattr(self, f"_act_{name}", None)
        if translate is None:
            raise Untranslatable(f"it does what a program here cannot do: {name}")
        lines: list[str] = translate(event, *given)
        return lines

    def _act_unpicklable(self, event: Event) -> list[str]:
        self.needs.add("unpicklable")
        return self._bind(event, "bad", "Unpicklable()", False)

    def _act_unreceivable(self, event: Event, error: str) -> list[str]:
        self.needs.add("unreceivable")
        return self._bind(event, "bad", f"Unreceivable({error})", False)

    def _act_make_long(self, event: Event, length: int, value: int) -> list[str]:
        values, shape = f"[{value}] * {length}", f"({length},)"
        line = self.operations.call_source("make", values, shape, "'float32'")
        return self._bind(event, RESULT_NAMES.get("make", "make"), line, False)

    def _act_put_numbered_messages(
        self, event: Event, which: Any, first: int, count: int, size: int
    ) -> list[str]:
        message = f'{{"number": number, "padding": bytes({size})}}'
        channel = self._channel(which)
        putting = channel.put_source(event.process, message)
        lines = [f"for number in range({first}, {first + count}):\n    {putting}"]
        if event.process == OWNER and channel.has_thread:
            end = channel.end_of(OWNER, puts=True)
            lines.append(f"{end}.cancel_join_thread()  # so that the program can end")
        return lines

    def _act_put_aside(self, event: Event, tensors: list[Any]) -> list[str]:
        return self._bind(event, "aside", self.source(event.process, tensors), False)

    def _act_take_back(self, event: Event, aside: Any) -> list[str]:
        process, source = self.process(event.process), self.source(event.process, aside)
        keys = [key for key, _ in references_in(event.returned)]
        if all(key in process.sources for key in keys):
            return [f"{source}.clear()"]
        names = [self._bind_name(process, key, "inherited") for key in keys]
        return [f"{name} = {source}.pop(0)" for name in names]

    def _act_variable(self, event: Event, name: str) -> list[str]:
        return []

    def _act_set_variable(
        self, event: Event, name: str, value: str | None
    ) -> list[str]:
        if value is None:
            return [f"os.environ.pop({name!r}, None)"]
        return [f"os.environ[{name!r}] = {value!r}"]

    def _act_collect_garbage(self, event: Event) -> list[str]:
        return ["gc.collect()"]

    def _act_hide(self, event: Event, key: str, where: str) -> list[str]:
        if where != "a cycle":
            raise Untranslatable(f"it hides tensors as a program cannot: {where}")
        self.needs.add("cycle")
        source = self.process(event.process).sources[key]
        return [f"Cycle({source})", *self._drop_lines(event.process, key)]

    def _act_end(self, event: Event, how: str) -> list[str]:
        ways = {
            "by os._exit": "os._exit(0)",
            "by an exception": "raise SystemExit(1)",
            "by SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
        }
        variable = self.process(event.process).variable
        self.steps.append(Turn(event.process, (ways[how],), "tell"))
        self.add(OWNER, f"{variable}.process.join(TIMEOUT)")
        return []

    # Readings of the ledger

    def _read(self) -> None:
        """Note where the ledger is read; consecutive readings count as one."""
        if not self._in_reading:
            self.reading_positions.append(len(self.steps))
        self._in_reading = True


def _limit_line(kind: str, value: str) -> str:
    """Return the line that sets a resource limit of a process."""
    limit = f"resource.RLIMIT_{kind}"
    return f"resource.setrlimit({limit}, ({value}, resource.RLIM_INFINITY))"


def _del_lines(message: str) -> list[str]:
    """Return the lines that delete the names that a message binds."""
    names = re.findall(r"\((\w+) := ", message)
    return [f"del {', '.join(names)}"] if names else []


def _is_flat(data: Any, new: list[tuple[str, str]]) -> bool:
    """Return whether a value is a list that has only new objects, each once."""
    keys = [item.get("reference") for item in data if isinstance(item, dict)]
    flat = isinstance(data, list) and len(keys) == len(data)
    return flat and keys == [key for key, _ in new] and len(set(keys)) == len(keys)
