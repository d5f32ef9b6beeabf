"""Records the events of one case while pytest runs it.

This is a pytest plugin. ``reproduce`` loads it with ``-p`` in a run of one case. It
records the requests of the test from its first line to the check that fails.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import linecache
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from sharedtensor_conformance.harness import wire
from sharedtensor_conformance.harness.listening import Listener, use_listener
from sharedtensor_conformance.harness.proxies import Remote
from sharedtensor_conformance.harness.proxies.calls import Requester

FILE_VARIABLE = "SHAREDTENSOR_CONFORMANCE_EVENTS"
"""The environment variable that names the file for the recorded events."""

UNATTRIBUTED = "unattributed"
"""The kind of a failure that does not depend on a single answer."""

PLAIN = (bool, int, str, bytes, type(None))
"""Types whose equal values can be one object. A value of these types does not identify
the event that returned it.
"""

Event = dict[str, Any]


class EventRecorder(Listener):
    """Collects the events of a case until a check fails."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.failure: dict[str, Any] = {}
        self.values: list[Any] = []  # by event; kept alive, so that ids stay unique
        self._unanswered: dict[int, int] = {}
        self._stages: dict[int, int] = {}
        self._hosts: list[Any] = []
        self._waiting = False

    def as_data(self) -> dict[str, Any]:
        """Return the events as JSON-ready data."""
        return {"events": self.events, "failure": self.failure}

    # Events

    def attempt_began(self) -> None:
        """Discard all earlier events, and their failure."""
        self.events.clear()
        self.values.clear()
        self._unanswered.clear()
        self.failure = {}

    def asked(self, actor: Any, message: dict[str, Any]) -> None:
        """Record a request to a process."""
        if self.failure:
            return
        self._unanswered[id(actor)] = len(self.events)
        given = deepcopy(message["with"])  # the test may change its lists later
        self._add(actor, "call", do=message["do"], given=given)

    def answered(self, actor: Any, message: dict[str, Any], value: Any) -> None:
        """Record the answer of a process."""
        number = self._unanswered.pop(id(actor), None)
        if number is None:  # the request is from before the recording
            return
        event = self.events[number]
        if "ok" in message:
            event["returned"] = deepcopy(message["ok"])
        elif "raised" in message:
            event["raised"] = message["raised"]["type"]
        event["answered"] = len(self.events)
        self.values[number] = value

    def killed(self, actor: Any) -> None:
        """Record that a process was killed."""
        self._add(actor, "kill")

    def changed(self, what: str) -> None:
        """Record a change of the system that all processes see."""
        self._add(None, "system", do=what)

    def read(self, actor: Any, what: str, value: Any) -> None:
        """Record a reading of the ledger."""
        count = len(value) if isinstance(value, set) else value
        self._add(actor, "read", what=what, count=count, waiting=self._waiting)

    def waited(self, begins: bool) -> None:
        """Note whether the next requests are repeated until a condition holds."""
        self._waiting = begins

    def _add(self, actor: Any, kind: str, **details: Any) -> None:
        if self.failure:
            return
        stage = self._stage_of(actor.host) if actor else None
        name = actor.name if actor else ""
        waiting = {"waiting": self._waiting}
        event = {"kind": kind, "stage": stage, "process": name} | waiting | details
        self.events.append(event)
        self.values.append(None)

    def _stage_of(self, host: Any) -> int:
        if id(host) not in self._stages:
            self._stages[id(host)] = len(self._stages)
            self._hosts.append(host)  # so that its id is not used again
        return self._stages[id(host)]

    # The failure

    def failed(
        self, kind: str, sentence: str, actual: Any = None, expected: Any = None
    ) -> None:
        """Record the first failure, and stop recording."""
        if self.failure:
            return
        self.failure = {"kind": kind, "sentence": sentence, "event": self._last_call()}
        if kind == "equality":
            self._record_comparison(actual, expected)
        elif kind == "condition" and not self._depends_on_answer(_condition()):
            self.failure["kind"] = UNATTRIBUTED

    def _record_comparison(self, actual: Any, expected: Any) -> None:
        """Record which answer is wrong, and what it should have been."""
        actual, expected = _first_difference(actual, expected)
        number, as_text = self._origin_of(actual)
        if number is None:
            self.failure["kind"] = UNATTRIBUTED
            return
        self.failure |= {"event": number, "as_text": as_text}
        self.failure["expected"] = wire.encode(expected, _refer)
        if not isinstance(expected, (bool, str, type(None))):
            same = [n for n, value in enumerate(self.values) if value is expected]
            self.failure["expected_event"] = same[-1] if same else None

    def _origin_of(self, actual: Any) -> tuple[int | None, bool]:
        """Return the event that returned `actual`, and whether `actual` is its `repr`.

        A container is found in any event, a value of a `PLAIN` type only in the last
        one.
        """
        last = self._latest_answer()
        if isinstance(actual, PLAIN):
            if last is None:
                return None, False
            value = self.values[last]
            if _equal(value, actual):
                return last, False
            return (last, True) if repr(value) == actual else (None, False)
        known = (n for n, value in enumerate(self.values) if value is actual)
        return max(known, default=None), False

    def _depends_on_answer(self, condition: Condition | None) -> bool:
        """Return whether a condition depends on the last answer."""
        last = self._latest_answer()
        if last is None or condition is None:
            return False
        if any(isinstance(asked, Remote | Requester) for asked in condition.receivers):
            return True
        value = self.values[last]
        return any(_is_the_same(named, value) for named in condition.values)

    def _latest_answer(self) -> int | None:
        """Return the number of the last event, if it was answered."""
        if not self.events or "returned" not in self.events[-1]:
            return None
        return len(self.events) - 1

    def _last_call(self) -> int | None:
        numbers = (n for n, e in enumerate(self.events) if e["kind"] == "call")
        return max(numbers, default=None)


@dataclass(frozen=True)
class Condition:
    """The condition of a check.

    Args:
        values: the values of the local variables in it.
        receivers: the objects whose methods it calls.
    """

    values: tuple[Any, ...]
    receivers: tuple[Any, ...]


def _condition() -> Condition | None:
    """Return the condition of the current check, read from the source of the test."""
    frame = sys._getframe(3)  # the caller of the check, above `failed` and the check
    found = inspect.getframeinfo(frame, context=1).positions
    if found is None or found.lineno is None or found.end_lineno is None:
        return None
    lines = linecache.getlines(frame.f_code.co_filename)
    source = "".join(lines[found.lineno - 1 : found.end_lineno])
    tree = ast.parse(textwrap.dedent(source)).body[0]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    first = calls[0].args[0]
    asked = (n.func for n in ast.walk(first) if isinstance(n, ast.Call))
    methods = [
        function.value for function in asked if isinstance(function, ast.Attribute)
    ]
    return Condition(
        tuple(_values(frame, [first])),
        tuple(_values(frame, methods)),
    )


def _values(frame: FrameType, nodes: Iterable[ast.AST]) -> Iterator[Any]:
    for node in nodes:
        names = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
        yield from (frame.f_locals[n] for n in names if n in frame.f_locals)


def _is_the_same(one: Any, other: Any) -> bool:
    if isinstance(other, Remote):
        return isinstance(one, Remote) and one.is_same_reference_as(other)
    return one is other or (isinstance(other, PLAIN) and _equal(one, other))


def _equal(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _first_difference(actual: Any, expected: Any) -> tuple[Any, Any]:
    """Return the innermost lists or values in which the two differ."""
    if type(actual) is not type(expected) or _length(actual) != _length(expected):
        return actual, expected
    if isinstance(actual, dict) and actual.keys() == expected.keys():
        pairs = [(actual[key], expected[key]) for key in actual]
    elif isinstance(actual, list) and any(isinstance(i, list | tuple) for i in actual):
        pairs = list(zip(actual, expected, strict=True))
    else:
        return actual, expected
    different = [pair for pair in pairs if pair[0] != pair[1]]
    return _first_difference(*different[0])


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _refer(value: Any) -> dict[str, Any]:
    key = value.key if isinstance(value, Remote) else repr(value)
    return {"reference": key}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    """Record while the test runs, and then write the events to the file."""
    test, recorder = pyfuncitem.obj, EventRecorder()

    @functools.wraps(test)
    def recorded_test(**arguments: Any) -> None:
        with use_listener(recorder):
            test(**arguments)

    pyfuncitem.obj = recorded_test
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test
        with open(os.environ[FILE_VARIABLE], "w", encoding="utf-8") as file:
            json.dump(recorder.as_data(), file)
