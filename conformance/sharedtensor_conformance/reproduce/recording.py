"""Records what a test asks processes for, from their start to the check that fails.

This is a pytest plugin. ``reproduce`` loads it with ``-p`` in a run of one case.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from sharedtensor_conformance.harness.case.listening import Listener, use_listener
from sharedtensor_conformance.harness.remote.wire import place_of

FILE_VARIABLE = "SHAREDTENSOR_CONFORMANCE_EVENTS"
"""The environment variable that names the file for the recorded events."""

Event = dict[str, Any]


class EventRecorder(Listener):
    """Collects the events of all processes until a check fails.

    `test` is the number of the first event of the test; earlier ones start its
    processes.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.test = 0
        self.failure: dict[str, Any] = {}
        self._unanswered: dict[int, Event] = {}
        self._hosts: list[Any] = []  # kept alive, so that ids stay unique
        self._waiting = self._warming = False

    def as_data(self) -> dict[str, Any]:
        """Return the events as JSON-ready data."""
        return {"events": self.events, "test": self.test, "failure": self.failure}

    def attempt_began(self) -> None:
        """Note that the next event is the first one of the test, or of an attempt."""
        self.test, self.failure = len(self.events), {}

    def environment(self, variables: dict[str, str]) -> None:
        """Record the variables of a new stage; of a folder, what a program can make."""
        given: dict[str, Any] = dict(variables)
        if path := given.get("TMPDIR"):
            is_there = "folder" if os.path.isdir(path) else "file"
            kind = is_there if os.path.exists(path) else "missing"
            given["TMPDIR"] = [kind, len(path)]
        if given:
            self._add(None, "environment", given=given)

    def asked(self, actor: Any, message: dict[str, Any]) -> None:
        """Record a request to a process."""
        do, function = message["do"], ""
        given = deepcopy(message.get("with", []))  # the test may change them later
        if do == "run":
            function = given.pop(0)["function"]
            do = function.rpartition(":")[2].rpartition(".")[2]
        event = self._add(actor, "call", do=do, function=function, given=given)
        self._unanswered[id(actor)] = event

    def answered(self, actor: Any, message: dict[str, Any], value: Any) -> None:
        """Record the answer of a process."""
        event = self._unanswered.pop(id(actor), {})
        event["answered"] = len(self.events)
        if "ok" in message:
            event["returned"] = deepcopy(message["ok"])
        elif "raised" in message:
            event["raised"] = message["raised"]["type"]

    def signalled(self, actor: Any, number: int) -> None:
        """Record that a process was sent a signal."""
        self._add(actor, "signal", number=number)

    def managers_signalled(self, number: int) -> None:
        """Record that the managers were sent a signal."""
        self._add(None, "managers", number=number)

    def changed(self, function: Callable[..., Any], *given: Any) -> None:
        """Record a change of the system that all processes see."""
        self._add(None, "system", function=place_of(function), given=given)

    def read(self, actor: Any, what: str, value: Any) -> None:
        """Record a reading of the ledger."""
        count = len(value) if isinstance(value, set) else value
        self._add(actor, "read", what=what, count=count)

    def warmed(self, begins: bool) -> None:
        """Note whether the next requests only use new processes for the first time."""
        self._warming = begins

    def waited(self, begins: bool) -> None:
        """Note whether the next requests are repeated until a condition holds."""
        self._waiting = begins

    def failed(self, kind: str, sentence: str) -> None:
        """Record the first failure, and stop recording."""
        self.failure = self.failure or {"kind": kind, "sentence": sentence}

    def _add(self, actor: Any, kind: str, **details: Any) -> Event:
        event = {"kind": kind, "process": "", **details}
        event |= {"waiting": self._waiting, "warming": self._warming}
        if actor is not None:
            if actor.host not in self._hosts:
                self._hosts.append(actor.host)
            event["process"] = actor.name
            event["stage"] = self._hosts.index(actor.host)
        if not self.failure:
            self.events.append(event)
        return event


recorder = EventRecorder()


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main() -> Iterator[Any]:
    """Record from the smoke test on, since it starts processes of the case."""
    with use_listener(recorder):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Iterator[Any]:
    """Note where the test begins, and write the events when it has ended."""
    recorder.attempt_began()
    try:
        return (yield)
    finally:
        with open(os.environ[FILE_VARIABLE], "w", encoding="utf-8") as file:
            json.dump(recorder.as_data(), file)
