"""Parts of an actor's proxy, each for one side of its process.

The process as the system sees it, the drop-in module in it, and the pools and groups of
processes that it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sharedtensor_conformance.harness.proxies.calls import (
    Remote,
    Requester,
    index_tuple,
)


class ModuleProxy:
    """The drop-in module of an actor; every function of the module is a method."""

    def __init__(self, actor: Requester) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._actor.request("module", name, *arguments)

    def lacks(self, names: list[str]) -> list[str]:
        """Return the names that the module does not have."""
        lacking: list[str] = self._actor.request("module_lacks", names)
        return lacking

    def context_lacks(self, method: str, names: list[str]) -> list[str]:
        """Return the names that the context of a start method does not have."""
        lacking: list[str] = self._actor.request("context_lacks", method, names)
        return lacking

    def context_start_method(self, method: str) -> str:
        """Return what the context of `method` says its start method is."""
        return str(self._actor.request("context_start_method", method))

    def try_context(self, method: str) -> None:
        """Call ``get_context(method)``."""
        self._actor.request("try_context", method)


@dataclass
class Interrupted:
    """How often a process was interrupted; known when that is over."""

    times: int = 0


class SystemProxy:
    """The process of an actor as the operating system sees it."""

    def __init__(self, actor: Requester) -> None:
        self.actor = actor

    # What it holds

    def descriptors(self) -> int:
        """Return how many descriptors the process has open."""
        return int(self._account()["descriptors"])

    def mappings(self) -> int:
        """Return how many mappings of shared memory the process has."""
        return int(self._account()["mappings"])

    def targets(self) -> list[str]:
        """Return what the descriptors of the process point to, such as a pipe."""
        self.actor.ensure_started()
        return self.actor.host.ledger.details(self.actor.pid)["targets"]

    def _account(self) -> dict[str, Any]:
        self.actor.ensure_started()
        return self.actor.host.ledger.account(self.actor.pid)

    # What it may take

    @contextmanager
    def exhausted(self, what: str, spare: int = 0) -> Iterator[None]:
        """Leave the process only `spare` more of something for a while.

        `what` is ``"descriptors"`` or ``"mappings"`` (an even number of them);
        ``"memory"``, bytes by which its address space may grow; or ``"file_size"``,
        bytes that a file may have.
        """
        self.actor.request("exhaust", what, spare)
        try:
            yield
        finally:
            if self.actor.is_alive():
                self.actor.request("restore", what)

    # Signals and descriptors

    @contextmanager
    def interrupted(self, interval: float = 0.0005) -> Iterator[Interrupted]:
        """Let a signal with a Python handler arrive in the process all the time."""
        found = Interrupted()
        self.actor.request("interrupt", interval)
        try:
            yield found
        finally:
            if self.actor.is_alive():
                found.times = self.actor.request("stop_interrupting")

    def ignore_signal(self, number: int) -> None:
        """Let the process live on when it gets this signal."""
        self.actor.request("ignore_signal", number)

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

    # Other programs

    @contextmanager
    def program(self) -> Iterator[int]:
        """Let the process start another program, which waits; its pid."""
        pid = int(self.actor.request("act", "start_a_program"))
        try:
            yield pid
        finally:
            if self.actor.is_alive():
                self.actor.request("act", "end_programs")


class PoolProxy:
    """A pool in an actor."""

    def __init__(self, actor: Requester, name: str) -> None:
        self.actor = actor
        self.name = name

    def _run(self, task: str, *arguments: Any) -> Any:
        # A worker imports the implementation before its first task.
        timeout = self.actor.host.timeouts.start
        return self.actor.request(
            "run_task", self.name, task, list(arguments), deadline=timeout
        )

    def write_and_return(
        self, payload: Any, index: int | tuple[int, ...], value: Any
    ) -> Any:
        """Let a worker write one element of every tensor; return its result."""
        return self._run("write_and_return", payload, index_tuple(index), value)

    def make_and_keep(self, values: list[Any], dtype: str = "float32") -> Remote:
        """Let the worker make a tensor, keep it and return it."""
        made: Remote = self._run("make_and_keep", values, dtype)
        return made

    def read_kept(self, index: int | tuple[int, ...]) -> Any:
        """Return one value of the tensor that the worker keeps."""
        return self._run("read_kept", index_tuple(index))

    def write_kept(self, index: int | tuple[int, ...], value: Any) -> None:
        """Let the worker write one value of the tensor that it keeps."""
        self._run("write_kept", index_tuple(index), value)


class GroupProxy:
    """Processes that an actor has started together, each with its index."""

    def __init__(self, context: Remote) -> None:
        self.context = context

    def _request(self, action: str, *arguments: Any) -> Any:
        actor = self.context.actor
        timeout = actor.host.timeouts.start
        return actor.request("act", action, self.context, *arguments, deadline=timeout)

    def pids(self) -> list[int]:
        """Return their process ids."""
        found: list[int] = self._request("group_pids")
        return found

    def join(self, timeout: float | None = None) -> Any:
        """Join them: what the call returns, or a dictionary of what it raised."""
        return self._request("join_group", timeout)
