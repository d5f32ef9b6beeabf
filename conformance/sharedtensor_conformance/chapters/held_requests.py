"""A request during which a process is held at a step of the implementation."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sharedtensor_conformance.harness.case.checks import tally
from sharedtensor_conformance.harness.remote import wire
from sharedtensor_conformance.harness.remote.calls import Requester


class HeldRequest:
    """A request whose process may wait at a step of it, until `go` lets it continue.

    Args:
        actor: who is asked.
        request_name: what evidence calls the request.
        what: the request.
        arguments: those of the request.
    """

    def __init__(
        self, actor: Requester, request_name: str, what: str, arguments: tuple[Any, ...]
    ) -> None:
        self.actor = actor
        self.request_name = request_name
        actor.ask(what, *arguments)
        self.first = actor.receive(request_name)

    @property
    def is_held(self) -> bool:
        """Whether the process came to the step and waits there."""
        return "at" in self.first

    def go(self, how: str) -> None:
        """Let the process go on: ``""`` means as if nothing was."""
        connection = self.actor.process.wire
        assert connection is not None, "it waits"
        with suppress(wire.WireClosed):  # it was killed there: `finish` says so
            connection.send({"go": how})

    def finish(self) -> Any:
        """Return the answer; the same is raised as by `Requester.run`."""
        tally.remote_calls += 1
        last = self.actor.receive(self.request_name) if self.is_held else self.first
        return self.actor.result(last, self.request_name)
