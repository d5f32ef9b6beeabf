"""Pools and groups: processes that run tasks for an actor."""

from __future__ import annotations

from typing import Any

from sharedtensor_conformance.harness.proxies.calls import (
    Remote,
    Requester,
    index_tuple,
)


class PoolProxy:
    """A pool in an actor."""

    def __init__(self, actor: Requester, name: str) -> None:
        self.actor = actor
        self.name = name

    def _run(self, task: str, *arguments: Any) -> Any:
        return self.actor.request("run_task", self.name, task, list(arguments))

    def write_and_return(
        self, payload: Any, index: int | tuple[int, ...], value: Any
    ) -> Any:
        """Make a worker write one element of every tensor; return its result."""
        return self._run("write_and_return", payload, index_tuple(index), value)

    def write_by_name_and_return(
        self, payload: Any, index: int | tuple[int, ...], value: Any
    ) -> Any:
        """Do the same as `write_and_return`, with the names of all arguments."""
        named = {"payload": payload, "index": index_tuple(index), "value": value}
        what = ("run_task_by_name", self.name, "write_and_return")
        return self.actor.request(*what, named)

    def add_and_return(self, method: str, payloads: list[Any]) -> Any:
        """Make workers add 1 to the first element of all tensors, each a task."""
        return self.actor.request("run_tasks", self.name, method, payloads)

    def strategy(self) -> str:
        """Return the strategy of a worker, where nobody has set it."""
        return str(self.actor.request("strategy_in_pool", self.name))

    def describe_and_write(self, bundle: Remote, with_grads: bool = False) -> list[Any]:
        """Make a worker write to a bundle; return its result, and what it saw of it."""
        found: list[Any] = self._run("describe_and_write", bundle, with_grads)
        return found

    def targets_of_a_program(self, payload: list[Any]) -> list[str]:
        """Make the worker, with the payload, start a program; what that has open."""
        found: list[str] = self._run("targets_of_a_program", payload)
        return found

    def terminate_early(self, payloads: list[Any]) -> None:
        """Submit many tasks, take the result of one, and terminate the pool."""
        self.actor.request("terminate_pool", self.name, payloads)

    def make_and_keep(self, values: list[Any], dtype: str = "float32") -> Remote:
        """Make the worker make a tensor, keep it and return it."""
        made: Remote = self._run("make_and_keep", values, dtype)
        return made

    def make_non_leaf(self, values: list[Any], dtype: str = "float32") -> Remote:
        """Make the worker return a non-leaf that requires grad."""
        made: Remote = self._run("make_non_leaf", values, dtype)
        return made

    def read_kept(self, index: int | tuple[int, ...]) -> Any:
        """Return one value of the tensor that the worker keeps."""
        return self._run("read_kept", index_tuple(index))

    def write_kept(self, index: int | tuple[int, ...], value: Any) -> None:
        """Make the worker write one value of the tensor that it keeps."""
        self._run("write_kept", index_tuple(index), value)


class GroupProxy:
    """Processes that an actor started together, each with an index."""

    def __init__(self, context: Remote) -> None:
        self.context = context

    def _request(
        self, action: str, *arguments: Any, slower: float = 1, after: float = 0
    ) -> Any:
        """Ask for something that may take as long as processes need to start.

        Args:
            action: what to ask for.
            arguments: what it is given.
            slower: how many times as long.
            after: seconds that it may take besides.
        """
        actor = self.context.actor
        deadline = slower * actor.host.timeouts.start + after
        return actor.request("act", action, self.context, *arguments, deadline=deadline)

    def pids(self) -> list[int]:
        """Return their process ids."""
        found: list[int] = self._request("group_pids")
        return found

    def is_ready(self, count: int, timeout: float | None = None) -> bool:
        """Wait until `count` of them run the task; return whether they do."""
        if timeout is None:
            timeout = self.context.actor.host.timeouts.start
        return bool(self._request("group_is_ready", count, timeout, slower=2))

    def join_in_a_thread(self) -> Any:
        """Join them in another thread than the one that started them."""
        what = ("in_a_thread", "act", "join_group", self.context, None, None)
        return self.context.actor.request("act", *what)

    def join(self, timeout: float | None = None, grace: float | None = None) -> Any:
        """Join them: what the call returns, or a dictionary of what it raised.

        Args:
            timeout: seconds after which it returns though some still run.
            grace: seconds that processes which are told to end are given, where the
                implementation lets its caller say so.
        """
        return self._request("join_group", timeout, grace, after=timeout or 0)
