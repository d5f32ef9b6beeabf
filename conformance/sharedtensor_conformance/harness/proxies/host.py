"""The interface that an actor needs of its stage: starting and ending its process.

A stage has actors, and not the other way round. So the interface is declared here, and
the stage implements it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from sharedtensor_conformance.harness.matrix import Configuration
from sharedtensor_conformance.harness.process import Process
from sharedtensor_conformance.harness.stage_ledger import StageLedger
from sharedtensor_conformance.harness.timeouts import Timeouts


class StarterInterface(Protocol):
    """What starts the processes of a stage."""

    def ensure(self, process: Process) -> None:
        """Start the process of an actor if it has not been started."""
        ...

    def new_peer(
        self, arguments: Any, method: str | None, enter: bool, needs_device: bool
    ) -> AbstractContextManager[Any]:
        """Make a peer for one case; it is started when the block is left."""
        ...


class ProcessEndsInterface(Protocol):
    """What knows how the processes of a stage end."""

    def describe_end(self, process: Process, request_name: str) -> str:
        """Return a sentence that says how a process ended; it is not used again."""
        ...

    def no_answer_error(
        self, process: Process, request_name: str, deadline: float, given: float
    ) -> Exception:
        """Return what it means that a process gave no answer."""
        ...

    def exit_code(self, status: int | None) -> int | None:
        """Return an exit status with what explains it, where it is not 0."""
        ...

    def wait(self, process: Process) -> int | None:
        """Wait for the end of a process that has to come; return its exit status."""
        ...

    def wait_for_exit(self, process: Process) -> int | None:
        """Wait for the end of a process that was asked to leave; return its status."""
        ...


class Host(Protocol):
    """A stage, as its actors see it."""

    @property
    def channels(self) -> tuple[str, ...]:
        """The kinds of channels between two actors; the first is used by default."""
        ...

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that are claimed; tensors are made of no other."""
        ...

    @property
    def configuration(self) -> Configuration:
        """Where the case runs."""
        ...

    @property
    def timeouts(self) -> Timeouts:
        """How long its processes may take."""
        ...

    @property
    def ledger(self) -> StageLedger:
        """What its processes hold."""
        ...

    @property
    def starter(self) -> StarterInterface:
        """What starts its processes."""
        ...

    @property
    def ends(self) -> ProcessEndsInterface:
        """What knows how they end."""
        ...
