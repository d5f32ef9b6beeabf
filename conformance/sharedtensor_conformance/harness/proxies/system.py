"""The process of an actor as the operating system sees it, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sharedtensor_conformance.harness.exhaustion import LOW_LIMIT
from sharedtensor_conformance.harness.in_flight import taking
from sharedtensor_conformance.harness.interruption import HANDLERS
from sharedtensor_conformance.harness.listening import listener
from sharedtensor_conformance.harness.outcomes import NotRun
from sharedtensor_conformance.harness.proxies.calls import Requester
from sharedtensor_conformance.report.verdicts import Need


@dataclass
class InterruptionCount:
    """The number of interruptions of a process; known at the end."""

    times: int = 0


class SystemProxy:
    """The process of an actor as the operating system sees it."""

    def __init__(self, actor: Requester) -> None:
        self.actor = actor

    # What it holds

    def descriptors(self) -> int:
        """Return the number of open descriptors of the process."""
        return self._count("descriptors")

    def mappings(self) -> int:
        """Return the number of shared memory mappings of the process."""
        return self._count("mappings")

    def targets(self) -> list[str]:
        """Return the targets of the process's descriptors, for example a pipe."""
        self.actor.ensure_started()
        return self.actor.host.ledger.details(self.actor.pid)["targets"]

    def _count(self, what: str) -> int:
        self.actor.ensure_started()
        found = int(self.actor.host.ledger.account(self.actor.pid)[what])
        listener().read(self.actor, what, found)
        return found

    # What it may take

    @contextmanager
    def exhausted(self, what: str, spare: int = 0) -> Iterator[None]:
        """Leave the process only `spare` more of a resource during the block.

        `what` is ``"descriptors"`` or ``"mappings"`` (an even number of them);
        ``"memory"``, bytes by which its address space may grow; or ``"file_size"``,
        bytes that a file may have.

        Raises:
            NotRun: others have too many descriptors in flight.
        """
        few = LOW_LIMIT if what == "descriptors" else 0
        with taking(few):
            self.actor.request("exhaust", what, spare)
            try:
                yield
            finally:
                if self.actor.is_alive():
                    self.actor.request("restore", what)

    # Signals and descriptors

    @contextmanager
    def interrupted(
        self, interval: float = 0.0005, at_most: float | None = None
    ) -> Iterator[InterruptionCount]:
        """Send signals with a Python handler to the process during the block.

        Args:
            interval: the seconds between two signals.
            at_most: seconds after which no more are sent; None for no limit.
        """
        found = InterruptionCount()
        self.actor.request("interrupt", interval, at_most)
        try:
            yield found
        finally:
            if self.actor.is_alive():
                found.times = self.actor.request("stop_interrupting")

    def ignore_signal(self, number: int) -> None:
        """Make the process ignore this signal."""
        self.actor.request("ignore_signal", number)

    def raise_on_sigint(self) -> None:
        """Make SIGINT raise `KeyboardInterrupt` in the process, as by default."""
        self.actor.request("act", "raise_on_sigint")

    @contextmanager
    def raising(self, kind: str) -> Iterator[None]:
        """Let a handler raise in the process during the block, when `interrupt` asks.

        `kind` is one of `interruption.HANDLERS`.
        """
        self.actor.request("act", "raise_at_signal", kind)
        try:
            yield
        finally:
            if self.actor.is_alive():
                self.actor.request("restore", kind)

    def interrupt(self, kind: str) -> None:
        """Send the process the signal of one of `interruption.HANDLERS`."""
        self.actor.ensure_started()
        listener().signalled(self.actor, HANDLERS[kind][0])
        os.kill(self.actor.pid, HANDLERS[kind][0])

    def set_umask(self, mask: int) -> int:
        """Set the mask of the modes of new files; return the one before."""
        return int(self.actor.request("set_umask", mask))

    def open_pipe(self) -> tuple[int, int]:
        """Open a pipe in the process; return its descriptors there."""
        reader, writer = self.actor.request("open_pipe")
        return reader, writer

    def close_descriptor(self, descriptor: int) -> None:
        """Close a descriptor in the process."""
        self.actor.request("close_descriptor", descriptor)

    # The environment that its children have

    def variable(self, name: str) -> str | None:
        """Return a variable of the environment; None if it is not set."""
        found: str | None = self.actor.request("act", "variable", name)
        return found

    @contextmanager
    def variable_set(self, name: str, value: str) -> Iterator[None]:
        """Set a variable of the environment for what it starts in the block."""
        before = self.variable(name)
        self.actor.request("act", "set_variable", name, value)
        try:
            yield
        finally:
            if self.actor.is_alive():
                self.actor.request("act", "set_variable", name, before)

    # Containers

    def own_pid(self) -> int:
        """Return the id of the process in its own namespace."""
        return int(self.actor.request("act", "own_pid"))

    def forbid_memfd_create(self, error: str) -> None:
        """Make `memfd_create` fail in the process and in its later children."""
        self._confine(Need.CALL_FILTER, "forbid_memfd_create", error)

    @contextmanager
    def children_in_a_pid_namespace(self) -> Iterator[None]:
        """Put the children that it starts in the block into a new PID namespace."""
        self._confine(Need.PID_NAMESPACE, "enter_pid_namespace")
        try:
            yield
        finally:
            if self.actor.is_alive():
                self._confine(Need.PID_NAMESPACE, "leave_pid_namespace")

    def mount_own_shm(self) -> None:
        """Mount a private ``/dev/shm`` for the process."""
        self._confine(Need.PRIVATE_SHM, "mount_own_shm")

    def _confine(self, need: Need, action: str, *arguments: object) -> None:
        if why_not := self.actor.request("act", action, *arguments):
            raise NotRun(why_not, need)

    # Other programs

    @contextmanager
    def program(self) -> Iterator[int]:
        """Make the process start another program, which waits; yield its pid."""
        pid = int(self.actor.request("act", "start_program"))
        try:
            yield pid
        finally:
            if self.actor.is_alive():
                self.actor.request("act", "end_programs")
