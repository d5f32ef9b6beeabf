"""Writes the recorded requests of a case as lines, in the order of the test.

An answer of plain data becomes an assertion. So the steps come to their end, which is
the deviation, only if everything is as it was in the recorded case.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import re
import signal
import textwrap
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sharedtensor_conformance import adapter
from sharedtensor_conformance.harness.kernel import private_shm
from sharedtensor_conformance.harness.remote import wire
from sharedtensor_conformance.reproduce.sources import Unreplayable

Event = dict[str, Any]

MAX_EVENTS = 10_000
MAX_VALUE = 300
"""The maximum length of an answer that is written out; of a longer one, its digest."""

ADDRESS = 1 << 32
"""Larger numbers are addresses, which are others in each run."""

OWNER = "owner"
REUSED = ("peer", "bystander")
STARTS = ("make_pairs", "start_peer", "prepare", "make_peer")
NUMBER = re.compile(r"(?<![\w.])-?\d+(\.\d+)?\b")
MIN_REGULAR = 8
MAX_BLOCK = 12
MIN_REPETITIONS = 3


class Name(str):
    """A name in the program, which is its own `repr`."""

    __repr__ = str.__str__


class Object:
    """An object of a process in the steps; its `repr` is the name that it has there."""

    def __init__(self, names: dict[str, str], key: str) -> None:
        self.names = names
        self.key = key

    def __repr__(self) -> str:
        if self.key not in self.names:
            raise Unreplayable("it uses an object from before the recording")
        return self.names[self.key]

    def forget(self) -> None:
        """Forget the name, because the object was dropped."""
        self.names.pop(self.key)


class Regular(list[Any]):
    """A list whose `repr` is short if its items are regular.

    Its numbers have the same distance, or its objects are those of another list.
    """

    def __repr__(self) -> str:
        whole = super().__repr__()
        if len(self) < MIN_REGULAR:
            return whole
        name, is_item, _ = whole[1:].partition("[0]")
        if is_item and whole[1:-1] == ", ".join(
            f"{name}[{n}]" for n in range(len(self))
        ):
            return f"{name}[:{len(self)}]"
        if not {type(item) for item in self} <= {int, float}:
            return whole
        first, step = self[0], self[1] - self[0]
        made = [first + step * number for number in range(len(self))]
        if repr(made) != whole:
            return whole
        if step == 0:
            return f"[{first!r}] * {len(self)}"
        if first == 0 and step == 1 and type(first) is int:
            return f"list(range({len(self)}))"
        return f"[{first!r} + {step!r} * n for n in range({len(self)})]"


class Steps:
    """The lines of a program for the recorded events of a case.

    Args:
        events: the events of the last stage, from `of_last_stage`.
        evidence: the evidence of the case.
        compares: whether all answers are compared, and not only the last one.

    Attributes:
        functions: the places of the functions of the suite that run in processes.
        words: the words that occur in requests, which can name anything.
    """

    def __init__(
        self, events: Sequence[Event], evidence: str, *, compares: bool
    ) -> None:
        self.events = list(events)
        self.compares = compares
        self.evidence = evidence
        self.lines: list[str] = []
        self.functions: set[str] = set()
        self.words: set[str] = set()
        self._names: dict[str, dict[str, str]] = {}
        self._addresses: dict[int, str] = {}
        self._pickled: dict[bytes, str] = {}
        self._begun: dict[int, list[str]] = {}
        self._growth = _growth(self.events)

    def write(self) -> list[str]:
        """Return the lines.

        Raises:
            Unreplayable: a step cannot be replayed by a program.
        """
        if len(self.events) > MAX_EVENTS:
            raise Unreplayable(f"it has {len(self.events)} steps, which nobody reads")
        if any(event["kind"] == "system" for event in self.events):
            self.lines.append("shm = OwnShm()")  # the processes have to be born into it
        polls: dict[str, Event] = {}
        for number, event in enumerate(self.events):
            self.lines += self._begun.pop(number, [])
            if self._growth and number == self._growth[0]:
                self.lines.append(f"before = {self._growth[1]}")
            if event["waiting"]:
                asked = str([event["process"], event.get("do"), event.get("given")])
                polls[asked] = event
                continue
            self._write_polls(polls)
            self._write(number, event)
        self._write_polls(polls)
        self.lines += [line for lines in self._begun.values() for line in lines]
        if self.events[-1]["kind"] == "read":
            self.lines.append(self._last_reading())
        return self.lines

    def _last_reading(self) -> str:
        """Return the assertion that something is left, or not there as it should be."""
        last = self.events[-1]
        if self._growth:
            _, held = self._growth
            return f"assert not wait_until(lambda: {held} <= before, GRACE)"
        held = _held(last["what"], last["process"])
        if last["waiting"]:
            return f"assert not wait_until(lambda: {held} < {last['count']}, GRACE)"
        return f"assert {held} == {last['count']}"

    def _write_polls(self, polls: dict[str, Event]) -> None:
        """Write one wait for each request that was repeated, with its last answer."""
        for event in [event for event in polls.values() if event["kind"] == "call"]:
            seen, asked = event.get("returned"), self._request(event)
            if seen is False:
                self.lines.append(f"assert not wait_until(lambda: {asked}, GRACE)")
            else:
                self.lines.append(
                    f"assert wait_until(lambda: {asked} == {seen!r}, TIMEOUT)"
                )
        polls.clear()

    def _write(self, number: int, event: Event) -> None:
        who = _variable(event["process"])
        match event["kind"]:
            case "system":
                self.lines.append(self._change(event))
            case "environment":
                self.lines += _environment(event["given"])
            case "signal" if event["number"] == signal.SIGKILL:
                self.lines.append(f"{who}.kill()")
            case "signal":
                self.lines.append(f"os.kill({who}.pid, {event['number']})")
            case "managers":
                name = signal.Signals(event["number"]).name
                self.lines.append(f"signal_managers(signal.{name})")
            case "call":
                self.lines += self._call_lines(number, event)

    def _change(self, event: Event) -> str:
        """Return the change of a ``/dev/shm`` that the program has to itself."""
        module, _, name = event["function"].partition(":")
        if module != private_shm.__name__:
            what = name.rpartition(".")[2].replace("_", " ")
            raise Unreplayable(f"a program cannot do this on a user's machine: {what}")
        given = [self._function(event["function"]), *event["given"]]
        return f"shm.run({_listed(given)})"

    def _call_lines(self, number: int, event: Event) -> list[str]:
        who, do = _variable(event["process"]), event["do"]
        if do == "start_peer":
            started = f"{_variable(event['given'][0])} = {self._request(event)}"
            return self._raising(event, started)
        if do == "prepare":
            begun = ["owner = start_owner()"] if who == OWNER else []
            return [*begun, self._request(event)]
        if "answered" not in event:
            return self._unanswered(number, event)
        between = self.events[number + 1 : event["answered"]]
        if all(other["kind"] == "read" for other in between):
            return self._answer_lines(event, self._request(event))
        begin = self._request(event, "begin")
        answer = self._answer_lines(event, f"{who}.answer()")
        self._begun.setdefault(event["answered"], []).extend(answer)
        return [begin, f"until_it_waits({who})"]

    def _unanswered(self, number: int, event: Event) -> list[str]:
        later = self.events[number + 1 :]
        if any(other.get("do") != "join" for other in later):
            return [self._request(event, "begin")]
        statuses = [other.get("returned") for other in later]
        seen = _end_of_process(self.evidence, statuses)
        answer = f"{_variable(event['process'])}.answer(DEADLINE)"
        ended = _inside(f'with raises("Ended: {seen}")', answer)
        return [self._request(event, "begin"), *ended]

    # Requests

    def _request(self, event: Event, how: str = "") -> str:
        """Return the expression that asks a process for something."""
        process, do = event["process"], event["do"]
        self.words |= _words_in(event["given"])
        given = [self._decoded(process, value) for value in event["given"]]
        if event["function"]:
            do, given = "run", [self._function(event["function"]), *given]
        elif do == "operate" and not how:
            do, *given = given
        if event["do"] == "start_peer":
            do, given = event["do"], given[1:]
        written = _listed([do, *given] if how else given)
        if event["do"] == "drop":  # another object can have its name
            for value in event["given"]:
                self._object(process, value["key"]).forget()
        return f"{_variable(process)}.{how or do}({written})"

    def _function(self, place: str) -> Name:
        """Return the name of a function of the suite; note that it is used."""
        self.functions.add(place)
        return Name(place.rpartition(":")[2])

    def _decoded(self, process: str, data: Any) -> Any:
        def resolve(found: dict[str, Any]) -> Any:
            if "layout" in found:
                fields = found["layout"].items()
                given: dict[str, Any] = {k: _tuple(value) for k, value in fields}
                return adapter.Layout(**given)
            if "function" in found:
                return self._function(found["function"])
            if "channel" in found:
                return self._object("", found["channel"])
            if "key" in found:
                return Name(f"{self._object(process, found['key'])!r}.key")
            return self._object(process, found["reference"])

        return _written_briefly(wire.decode(data, resolve), self._pickled)

    def _object(self, process: str, key: str) -> Object:
        """Return an object; a channel has the same key in all processes."""
        of_process = self._names.setdefault("" if "-" in key else process, {})
        return Object(of_process, key)

    # Answers

    def _raising(self, event: Event, line: str) -> list[str]:
        if "raised" not in event:
            return [line]
        return _inside(f'with raises("{event["raised"]}")', line)

    def _answer_lines(self, event: Event, asked: str) -> list[str]:
        """Return the lines that ask, and compare or keep the answer."""
        value = self._decoded(event["process"], event.get("returned"))
        name = event["given"][0] if event["do"] == "operate" else event["do"]
        objects = list(_objects_in(value))
        if "raised" in event:
            return self._raising(event, asked)
        if any(one.key not in one.names for one, _ in objects):
            return self._kept(asked, value, objects)
        if isinstance(value, Object):
            return [f"assert {asked}.key == {value!r}.key"]
        if isinstance(value, bytes):  # a pickle, which is another one in each run
            self._pickled[value] = name = f"pickle_{len(self._pickled) + 1}"
            return [f"{name} = {asked}"]
        if objects:
            return [asked]
        if value is None and not _returns(name):
            return [asked]
        if self.compares:
            return self._compared(asked, value)
        if event is not self.events[-1]:
            return [asked]
        expected = re.search(r"got (.+), not (.+)", self.evidence)
        if expected and expected[1] == repr(value):
            return [f"assert {asked} != {expected[2]}"]
        return self._compared(asked, value)

    def _kept(
        self, asked: str, value: Any, objects: list[tuple[Object, str]]
    ) -> list[str]:
        """Return the lines that give the objects of an answer their names."""
        letter = "t" if isinstance(value, Object) else "m"
        taken = {
            n.partition("[")[0] for own in self._names.values() for n in own.values()
        }
        numbered = (f"{letter}{number}" for number in range(1, MAX_EVENTS))
        name = next(found for found in numbered if found not in taken)
        for one, path in objects:
            one.names.setdefault(one.key, f"{name}{path}")
        lines = [f"{name} = {asked}"]
        parts = value if self.compares and isinstance(value, list | tuple) else []
        for place, item in enumerate(parts):
            if not any(_objects_in(item)):
                lines += self._compared(f"{name}[{place}]", item)
        return lines

    def _compared(self, asked: str, value: Any) -> list[str]:
        """Return the assertion that an answer is as it was in the recorded case."""
        if isinstance(value, bool):
            return [f"assert {'' if value else 'not '}{asked}"]
        if value is None:
            return [f"assert {asked} is None"]
        if isinstance(value, int) and value > ADDRESS:
            return self._compared_address(asked, value)
        if isinstance(value, dict):
            return self._compared_items(asked, value)
        source = repr(value)
        if len(source) > MAX_VALUE or "nan" in source:
            found = hashlib.sha256(repr(value).encode()).hexdigest()[:16]
            return [f'assert digest({asked}) == "{found}"']
        return [f"assert {asked} == {source}"]

    def _compared_items(self, asked: str, value: dict[Any, Any]) -> list[str]:
        """Return the assertions for a dictionary, of which pids and paths differ."""
        same = {
            key: item
            for key, item in value.items()
            if "pid" not in str(key) and "/" not in str(item)
        }
        compared = (self._compared(f"found[{k!r}]", item) for k, item in same.items())
        return [f"found = {asked}", *itertools.chain.from_iterable(compared)]

    def _compared_address(self, asked: str, value: int) -> list[str]:
        if value in self._addresses:
            return [f"assert {asked} == {self._addresses[value]}"]
        name = f"address_{len(self._addresses) + 1}"
        others = [f"assert {name} != {other}" for other in self._addresses.values()]
        self._addresses[value] = name
        return [f"{name} = {asked}", *others]


def of_last_stage(events: Sequence[Event], test: int) -> list[Event]:
    """Return the events of the last stage of a test, and the starts of its processes.

    Args:
        events: all recorded events.
        test: the number of the first one of the test.
    """
    stages = [event["stage"] for event in events[test:] if "stage" in event]
    if not stages:
        raise Unreplayable("the case failed before its test did anything")
    of_stage = [
        {**event, "place": place, "is_own": place >= test}
        for place, event in enumerate(events)
        if event.get("stage", stages[-1]) == stages[-1]
    ]
    own = [event for event in of_stage if event["is_own"]]
    acting = {OWNER, *(event["process"] for event in own), *_words_in(own)}
    warms = any(e["kind"] == "read" or e.get("do") == "exhaust" for e in own)
    kept: list[Event] = []
    for event in of_stage:
        is_begin = event.get("do") == "prepare" and event["process"] == OWNER
        if is_begin and all(one.get("do") in STARTS or one["warming"] for one in kept):
            kept.clear()  # what was started before has ended
        if warms if event["warming"] else _is_needed(event, acting):
            kept.append(event)
    places = [event["place"] for event in kept]
    for event in kept:
        if event.get("do") == "make_pairs":
            pairs, method = event["given"]
            event["given"] = [[p for p in pairs if set(p) <= acting], method]
        if "answered" in event:
            event["answered"] = bisect_left(places, event["answered"])
    return kept


def _is_needed(event: Event, acting: set[str]) -> bool:
    """Return whether an event is one of the test, or starts a process that acts."""
    if event["is_own"]:
        return True
    match event.get("do"), event.get("given"):
        case "prepare", _:
            return event["process"] in acting & {OWNER, *REUSED}
        case "make_pairs", [[pair, *_], _]:
            return pair[1] in REUSED
        case "start_peer", [name, *_]:
            return name in acting & set(REUSED)
    return False


def _growth(events: Sequence[Event]) -> tuple[int, str] | None:
    """Return the event before which the ledger is read, and what is read of it.

    A case is about growth if it ends with readings of which one is higher than before.
    """
    if not events or events[-1]["kind"] != "read":
        return None
    readings: list[tuple[int, dict[tuple[str, str], int]]] = []
    for number, event in enumerate(events):
        if event["kind"] == "read":
            if not (number and events[number - 1]["kind"] == "read"):
                readings.append((number, {}))
            readings[-1][1][event["what"], event["process"]] = event["count"]
    last = readings[-1][1]
    for number, before in readings[-2::-1]:
        grown = [key for key in before if before[key] < last.get(key, 0)]
        if grown:
            return number, _held(*max(grown))  # segments first: others are theirs
    return None


def _held(what: str, process: str) -> str:
    return f'held("{what}"{f", {_variable(process)}" if process else ""})'


def _end_of_process(evidence: str, statuses: Sequence[Any]) -> str:
    """Return how a process ended that gave no answer, as the runtime says it."""
    if "gave no answer" in evidence:
        return "no answer"
    if statuses and isinstance(statuses[-1], int):
        return f"exit status {statuses[-1]}"
    found = re.search(r"died of (\w+)|exited with status (\d+)", evidence)
    if found is None:
        return ""
    return f"exit status {found[2] or -signal.Signals[found[1]]}"


def _environment(given: Mapping[str, Any]) -> list[str]:
    """Return the lines that give the processes their environment variables."""
    others = {name: value for name, value in given.items() if name != "TMPDIR"}
    lines = [f"os.environ[{name!r}] = {value!r}" for name, value in others.items()]
    if place := given.get("TMPDIR"):
        lines.append(f"use_temporary_folder({_listed(place)})")
    return lines


def _variable(process: str) -> str:
    return process.replace("-", "_")


def _listed(given: Sequence[Any]) -> str:
    return ", ".join(map(repr, given))


def _tuple(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _inside(head: str, line: str) -> list[str]:
    return [f"{head}:\n{textwrap.indent(line, '    ')}"]


def _returns(name: str) -> bool:
    """Return whether an operation of the contract returns something."""
    for protocol in adapter.PROFILES.values():
        if operation := vars(protocol or object).get(name):
            return bool(inspect.signature(operation).return_annotation != "None")
    return False


# Values


def _written_briefly(value: Any, pickled: Mapping[bytes, str]) -> Any:
    """Return a value whose lists and pickles have a short `repr`.

    Args:
        value: plain data, and objects.
        pickled: the names of the pickles that the program has.
    """
    if isinstance(value, list):
        return Regular(_written_briefly(item, pickled) for item in value)
    if type(value) is tuple:
        return tuple(_written_briefly(item, pickled) for item in value)
    if isinstance(value, dict):
        return {key: _written_briefly(item, pickled) for key, item in value.items()}
    if isinstance(value, bytes) and value in pickled:
        return Name(pickled[value])
    return value


def _objects_in(value: Any, path: str = "") -> Iterator[tuple[Object, str]]:
    """Yield the objects in a value, each with its path, such as ``[0]['two']``."""
    if isinstance(value, Object):
        yield value, path
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _objects_in(item, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _objects_in(item, f"{path}[{key!r}]")


def _words_in(data: Any) -> set[str]:
    """Return the words in encoded data."""
    return set(re.findall(r"[\w-]+", str(data)))


# Loops


def folded(lines: Sequence[str]) -> list[str]:
    """Return the lines with loops for repeated ones, which may differ in numbers."""
    found: list[str] = []
    place = 0
    alike = [NUMBER.sub("0", line) for line in lines]
    while place < len(lines):
        times, length = max(_repetitions(alike, place), default=(1, 1))
        block = lines[place : place + length]
        if times > 1:
            block = _inside(f"for _ in range({times})", "\n".join(block))
        found += block
        place += times * length
    return found


def _repetitions(lines: Sequence[str], place: int) -> Iterator[tuple[int, int]]:
    """Yield how often the lines from a place on are repeated, for each length."""
    for length in range(1, MAX_BLOCK + 1):
        block, times = lines[place : place + length], 1
        while lines[place + times * length : place + (times + 1) * length] == block:
            times += 1
        if times >= MIN_REPETITIONS:
            yield times, length
