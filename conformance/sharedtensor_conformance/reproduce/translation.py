"""Translates recorded events into the lines of the program's processes.

The owner is the program itself. Every other process is a generator: the owner resumes
it, and it yields when its turn is done. So the code of each process reads from top to
bottom, and all steps happen in the order of the test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sharedtensor_conformance.reproduce.channels import Channel, Channels, unused
from sharedtensor_conformance.reproduce.folding import Line, Step, Turn
from sharedtensor_conformance.reproduce.operations import DROP_IN, Operations
from sharedtensor_conformance.reproduce.source import Untranslatable
from sharedtensor_conformance.reproduce.story import (
    OWNER,
    Event,
    Story,
    references_in,
    source_of,
)

STANDING = ("peer", "bystander")

NAMES = {
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
name."""

OBSERVING = frozenset(
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
        given: the arguments that it gets, by the names of its parameters.
        sources: the source of each object that it has, by the key of the object.
        names: the names that it already uses.
        entrance: its first lines.
        arguments: the arguments with which it was started, encoded.
        inherits: whether it inherited the arguments, so that they were not sent.
    """

    name: str
    variable: str
    given: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    entrance: list[str] = field(default_factory=list)
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
    use. `readings` has the positions in `steps` at which the ledger is read. `goes_on`
    is true if the call that shows the failure began before other events. `inherited`
    has the names that the owner holds when it forks another process.

    Args:
        story: the recorded events.
        operations: the operations of the adapter.
        strategy: the sharing strategy of the case.
        start_method: the start method of the case.
        whole: whether to include operations that only read.
    """

    def __init__(
        self,
        story: Story,
        operations: Operations,
        strategy: str,
        start_method: str,
        *,
        whole: bool = False,
    ) -> None:
        self.story = story
        self.operations = operations
        self.strategy = strategy
        self.start_method = start_method
        self.whole = whole
        self.channels = Channels(story.events)
        self.processes = {OWNER: Process(OWNER, OWNER)}
        self.steps: list[Step] = []
        self.needs: set[str] = set()
        self.goes_on = False
        self.inherited: set[str] = set()
        self._names_results = True
        self.readings: list[int] = []
        self._reads = False
        self._begin()

    def tell(self) -> None:
        """Translate all events before the one that shows the failure.

        Raises:
            Untranslatable: an event cannot be translated.
        """
        last = self.story.failure.event
        waiting: list[Event] = []
        for event in self.story.events:
            for pending in [p for p in waiting if p.ends <= event.number]:
                waiting.remove(pending)
                self._await(pending)
            if event.number == last and self._is_last(event):
                return
            if event.kind == "read":
                self._read()
                continue
            self._reads = False
            self._tell(event)
            if event.overlaps and event.process != OWNER and event.is_answered:
                waiting.append(event)

    def _is_last(self, event: Event) -> bool:
        """Return whether the translation ends with this event, which shows the failure.

        It goes on if other events follow before the answer, or if the failure is a
        leak.
        """
        if self.story.failure.kind == "growth":
            return False
        others = event.process != OWNER and event is not self.story.events[-1]
        self.goes_on = event.overlaps and others
        return not self.goes_on

    # Processes

    def _begin(self) -> None:
        for channel in self.channels.alone():
            self.add(OWNER, channel.making)
        self.lines(OWNER, self._entrance(OWNER))
        told = {str(e.given[0]) for e in self.story.events if e.do == "start_peer"}
        for name in STANDING:
            if name not in told and any(e.process == name for e in self.story.events):
                self._start(name, self.start_method, None)

    def _entrance(self, name: str) -> list[str]:
        """Return the lines that prepare a process."""
        if not self.story.enters.get(name, True):
            return []
        return self.operations.entrance(self.strategy)

    def _start(self, name: str, method: str, arguments: Any) -> None:
        if method != self.start_method:
            raise Untranslatable("it uses more than one start method")
        for channel in self.channels.made_for(name, self.processes):
            self.add(OWNER, channel.making)
        made = Process(name, self._variable(name), arguments=arguments)
        made.inherits = method == "fork"
        made.given = {n: n for n in self.channels.names_for(name)}
        if any(True for _ in references_in(arguments)):
            made.given["arguments"] = self._message(OWNER, arguments, made.inherits)
        made.names |= set(made.given)
        self._let_go_of_what_it_inherits(made)
        self.processes[name] = made
        given = "".join(f", {value}" for value in made.given.values())
        self.add(OWNER, f"{made.variable} = Peer({made.steps}{given})")
        self.needs.add("peer")
        made.entrance += self._entrance(name)

    def _let_go_of_what_it_inherits(self, made: Process) -> None:
        """Let a forked process delete what it inherits at once, as in the test.

        For this, the names of the parent are global.
        """
        held = [s for s in self.of(OWNER).sources.values() if s.isidentifier()]
        if made.inherits and held:
            names = ", ".join(held)
            made.entrance = [f"global {names}", f"del {names}  # what it inherits"]
            self.inherited |= set(held)

    def _variable(self, name: str) -> str:
        children = {e.process for e in self.story.events if e.process[:5] == "child"}
        alone = name.startswith("child") and len(children) == 1
        return "child" if alone else name.replace("-", "_")

    # Lines

    def add(self, process: str, text: str) -> None:
        """Add a line to a process."""
        if not text:
            return
        if process == OWNER:
            self.steps.append(Line(text))
        else:
            self.steps.append(Turn(process, (text,)))

    def lines(self, process: str, texts: list[str]) -> None:
        """Add several lines to a process."""
        for text in texts:
            self.add(process, text)

    def of(self, process: str) -> Process:
        """Return a process that was started before.

        Raises:
            Untranslatable: the test did not start it.
        """
        if process not in self.processes:
            raise Untranslatable(f"the test did not start the process {process}")
        return self.processes[process]

    # Events

    def _tell(self, event: Event) -> None:
        if event.kind == "system":
            raise Untranslatable(f"it does what a program here cannot do: {event.do}")
        if event.kind == "kill":
            self._end(event, f"{self.of(event.process).variable}.process.kill()")
            return
        if event.polls:
            self._poll(event)
            return
        if event.do == "start_peer":
            name, method, arguments = event.given
            self._start(name, method, arguments)
            return
        if event.do == "leave":
            self.needs.add("leave")
            leaving = f'{self.of(event.process).variable}.turns.send("leave")'
            self._end(event, leaving)
            return
        if self.expects_an_address and event is self._expected_event:
            self.add(event.process, f"expected = {self.shown(event)}")
        for line in self.told(event):
            self._add_as_it_went(event, line)

    @property
    def _expected_event(self) -> Event | None:
        number = self.story.failure.expected_event
        return next((e for e in self.story.events if e.number == number), None)

    @property
    def expects_an_address(self) -> bool:
        """Whether the expected value is an address, which differs between runs."""
        expected = self._expected_event
        if expected is None or expected.given[:1] != ("address",):
            return False
        if expected.process != self.story.shown_by.process:
            raise Untranslatable("it compares addresses of two processes")
        return True

    def _add_as_it_went(self, event: Event, line: str) -> None:
        if event.raised:
            line = f"with suppress(Exception):\n    {line}"
        if event.overlaps and event.process != OWNER:
            self.steps.append(Turn(event.process, (line,), "tell"))
            self.needs.add("waits")
            variable = self.of(event.process).variable
            self.add(OWNER, f"until_it_waits({variable}.process)")
        else:
            self.add(event.process, line)

    def _await(self, event: Event) -> None:
        self.steps.append(Turn(event.process, (), "wait"))

    def _end(self, event: Event, how: str) -> None:
        if event.process == OWNER:
            raise Untranslatable(
                "the owner ends in it, and in a program the owner is the program itself"
            )
        self.add(OWNER, how)
        self.add(OWNER, f"{self.of(event.process).variable}.process.join(TIMEOUT)")

    def _poll(self, event: Event) -> None:
        if event.do != "has_message":
            return
        is_there = self.channels.between(event).asking(event.process)
        self.add(event.process, f"while not ({is_there}):\n    time.sleep(0.01)")

    def told(self, event: Event) -> list[str]:
        """Return the lines for a request to a process.

        Raises:
            Untranslatable: the request cannot be translated.
        """
        tell = getattr(self, f"_tell_{event.do}", None)
        if tell is None:
            raise Untranslatable(f"it does what a program here cannot do: {event.do}")
        lines: list[str] = tell(event, *event.given)
        return [line for line in lines if line]

    def shown(self, event: Event) -> str:
        """Return the source of the event that shows the failure, without a new name."""
        whole, self.whole, self._names_results = self.whole, True, False
        try:
            return "\n".join(self.told(event))
        finally:
            self.whole, self._names_results = whole, True

    # Values

    def source(self, process: str, data: Any) -> str:
        """Return the source of a value in a process."""

        def refer(found: dict[str, Any]) -> str:
            if "channel" in found:
                channel = self.channels.named[found["channel"]]
                return ", ".join(channel.names_for(process))
            sources = self.of(process).sources
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
            source = self.operations.written("encode", self.source(process, found))
            if keys.count(key) == 1:
                return source
            encoded[key] = unused("encoded", {*encoded.values()})
            return f"({encoded[key]} := {source})"

        return source_of(payload, refer)

    def _bound(
        self, event: Event, wanted: str, source: str, decodes: bool
    ) -> list[str]:
        """Return the lines that assign the result of an event; note the new names."""
        process = self.of(event.process)
        new = [
            (key, path)
            for key, path in references_in(event.returned)
            if key not in process.sources
        ]
        decodes = decodes and not self.operations.does_nothing("decode")
        if not new and not (decodes and event.raised):
            return [source]
        if not self._names_results:
            single = len(new) <= 1 and not any(path for _, path in new)
            decodes = decodes and single
            return [self.operations.written("decode", source) if decodes else source]
        if len(new) > 1 or any(path for _, path in new):
            return self._taken_apart(event, source, new, decodes)
        value = self.operations.written("decode", source) if decodes else source
        if not new:
            return [value]
        return [f"{self._keep(process, new[0][0], wanted)} = {value}"]

    def _taken_apart(
        self, event: Event, source: str, new: list[tuple[str, str]], decodes: bool
    ) -> list[str]:
        process = self.of(event.process)
        whole = unused("message", process.names)
        lines = [f"{whole} = {source}"]
        if not decodes and not self._are_dropped(event, {key for key, _ in new}):
            process.names.add(whole)
            for key, path in new:
                process.sources.setdefault(key, f"{whole}{path}")
            return lines
        if not decodes and _is_flat(event.returned, new):
            names = [self._keep(process, key, "arrived") for key, _ in new]
            return [f"{', '.join(names)} = {source}"]
        first: dict[str, str] = {}
        for key, path in new:
            first.setdefault(key, path)
        for key, path in first.items():
            value = f"{whole}{path}"
            value = self.operations.written("decode", value) if decodes else value
            lines.append(f"{self._keep(process, key, 'arrived')} = {value}")
        return [*lines, f"del {whole}"]

    def _keep(self, process: Process, key: str, wanted: str) -> str:
        name = unused(wanted, process.names)
        process.names.add(name)
        process.sources[key] = name
        return name

    def _are_dropped(self, event: Event, keys: set[str]) -> bool:
        for later in self.story.events:
            if later.process == event.process and later.number > event.number:
                named = {str(g) for g in later.given} & keys
                if named and later.do in ("drop", "act"):
                    return True
        return False

    # Requests to processes

    def _tell_operate(self, event: Event, name: str, *given: Any) -> list[str]:
        observes = name in OBSERVING or (name == "grad" and event.returned is None)
        if observes and not self.whole:
            return []
        sources = [self.source(event.process, value) for value in given]
        line = self.operations.written(name, *sources)
        return self._bound(event, NAMES.get(name, name), line, False) if line else []

    def _tell_put(self, event: Event, to: str, kind: str, payload: Any) -> list[str]:
        message = self._message(event.process, payload)
        putting = self.channels.between(event).putting(event.process, message)
        return [putting, *_dropping_names(message)]

    def _tell_get(self, event: Event, sender: str, kind: str) -> list[str]:
        source = self.channels.between(event).getting(event.process)
        return self._bound(event, "arrived", source, True)

    def _tell_arguments(self, event: Event) -> list[str]:
        process = self.of(event.process)
        found = self._bound(event, "argument", "arguments", not process.inherits)
        return found if found != ["arguments"] else []

    def _tell_drop(self, event: Event, *keys: str) -> list[str]:
        return [line for key in keys for line in self._dropped(event.process, key)]

    def _dropped(self, name: str, key: str) -> Iterator[str]:
        process = self.of(name)
        source = process.sources.pop(key, None)
        if source is None:
            return
        if not source.isidentifier():
            raise Untranslatable("it drops only a part of a message")
        if not self.operations.does_nothing("release"):
            yield self.operations.written("release", source)
        process.names.discard(source)
        yield f"del {source}"

    def _tell_open_channel(self, event: Event, kind: str, method: str) -> list[str]:
        return [self._named(event.returned).making]

    def _named(self, data: Any) -> Channel:
        return self.channels.named[data["channel"]]

    def _tell_channel_put(self, event: Event, which: Any, payload: Any) -> list[str]:
        message = self._message(event.process, payload)
        putting = self._named(which).putting(event.process, message)
        return [putting, *_dropping_names(message)]

    def _tell_channel_get(self, event: Event, which: Any) -> list[str]:
        source = self._named(which).getting(event.process)
        return self._bound(event, "arrived", source, True)

    def _tell_channel(self, event: Event, which: Any, what: str, *_: Any) -> list[str]:
        if what not in ("task_done", "join", "close"):
            raise Untranslatable(f"it does what a program here cannot do: {what}")
        ends = self._named(which).names_for(event.process)
        return [f"{end}.{what}()" for end in ends]

    def _tell_drop_channel(self, event: Event, name: str) -> list[str]:
        return [f"del {', '.join(self.channels.named[name].names_for(event.process))}"]

    def _tell_module(self, event: Event, name: str, *given: Any) -> list[str]:
        if name.startswith("get_") and not self.whole:
            return []
        sources = (self.source(event.process, value) for value in given)
        return [f"{DROP_IN}.{name}({', '.join(sources)})"]

    def _tell_same(self, event: Event, one: Any, other: Any) -> list[str]:
        sources = (self.source(event.process, value) for value in (one, other))
        return [" is ".join(sources)] if self.whole else []

    def _tell_read_array(self, event: Event, array: Any, index: int) -> list[str]:
        source = self.source(event.process, array)
        return [f"{source}[{index}].item()"] if self.whole else []

    def _tell_write_array(
        self, event: Event, array: Any, index: int, value: Any
    ) -> list[str]:
        return [f"{self.source(event.process, array)}[{index}] = {value!r}"]

    def _tell_has_message(self, event: Event, sender: str, kind: str) -> list[str]:
        asking = self.channels.between(event).asking(event.process)
        return [asking] if self.whole else []

    def _tell_set_umask(self, event: Event, mask: int) -> list[str]:
        return [f"os.umask({mask:#o})"]

    def _tell_exhaust(self, event: Event, what: str, spare: int) -> list[str]:
        if what == "descriptors":
            self.needs.add("descriptors taken")
            return [f"taken = take_descriptors({spare})"]
        if what == "file_size":
            return [_limited("FSIZE", str(spare))]
        raise Untranslatable(f"it does what a program here cannot do: exhaust {what}")

    def _tell_restore(self, event: Event, what: str) -> list[str]:
        if what == "descriptors":
            return ["while taken:\n    os.close(taken.pop())"]
        return [_limited("FSIZE", "resource.RLIM_INFINITY")]

    def _tell_try_context(self, event: Event, method: str) -> list[str]:
        return [f"{DROP_IN}.get_context({method!r})"]

    # Actions

    def _tell_act(self, event: Event, name: str, *given: Any) -> list[str]:
        tell = getattr(self, f"_act_{name}", None)
        if tell is None:
            raise Untranslatable(f"it does what a program here cannot do: {name}")
        lines: list[str] = tell(event, *given)
        return lines

    def _act_unpicklable(self, event: Event) -> list[str]:
        self.needs.add("unpicklable")
        return self._bound(event, "bad", "Unpicklable()", False)

    def _act_unreceivable(self, event: Event) -> list[str]:
        self.needs.add("unreceivable")
        return self._bound(event, "bad", "Unreceivable()", False)

    def _act_make_long(self, event: Event, length: int, value: int) -> list[str]:
        values, shape = f"[{value}] * {length}", f"({length},)"
        line = self.operations.written("make", values, shape, "'float32'")
        return self._bound(event, NAMES.get("make", "make"), line, False)

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
        source = self.of(event.process).sources[key]
        return [f"Cycle({source})", *self._dropped(event.process, key)]

    def _act_end(self, event: Event, how: str) -> list[str]:
        ways = {
            "by os._exit": "os._exit(0)",
            "by an exception": "raise SystemExit(1)",
            "by SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
        }
        variable = self.of(event.process).variable
        self.steps.append(Turn(event.process, (ways[how],), "tell"))
        self.add(OWNER, f"{variable}.process.join(TIMEOUT)")
        return []

    # Readings of the ledger

    def _read(self) -> None:
        """Note where the ledger is read; consecutive readings count as one."""
        if not self._reads:
            self.readings.append(len(self.steps))
        self._reads = True


def _limited(kind: str, value: str) -> str:
    """Return the line that sets a resource limit of a process."""
    limit = f"resource.RLIMIT_{kind}"
    return f"resource.setrlimit({limit}, ({value}, resource.RLIM_INFINITY))"


def _dropping_names(message: str) -> list[str]:
    """Return the lines that delete the names that a message binds."""
    names = re.findall(r"\((\w+) := ", message)
    return [f"del {', '.join(names)}"] if names else []


def _is_flat(data: Any, new: list[tuple[str, str]]) -> bool:
    """Return whether a value is a list that has only new objects, each once."""
    keys = [item.get("reference") for item in data if isinstance(item, dict)]
    flat = isinstance(data, list) and len(keys) == len(data)
    return flat and keys == [key for key, _ in new] and len(set(keys)) == len(keys)
