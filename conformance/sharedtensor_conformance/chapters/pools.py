"""Pools of worker processes, as a test uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

from sharedtensor_conformance.chapters.pool_actions import (
    close_pool,
    open_pool,
    run_task,
)
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.remote.calls import Remote, refuse_names

P = ParamSpec("P")


class Pool:
    """A pool in an actor."""

    def __init__(self, actor: ActorProxy, remote: Remote) -> None:
        self.actor = actor
        self.remote = remote

    def run(self, task: Callable[P, Any], *arguments: P.args, **named: P.kwargs) -> Any:
        """Make a worker execute one of the `worker_tasks`, and return its result."""
        refuse_names(named)
        return self.actor.run(run_task, self.remote, task, list(arguments))


@contextmanager
def pool_in(
    actor: ActorProxy, processes: int = 1, kind: str = "pool", method: str = ""
) -> Iterator[Pool]:
    """Open a pool of workers whose tasks an actor submits, for the time of the block.

    `kind` is ``"pool"``; ``"executor"`` for one of `concurrent.futures` that has the
    drop-in's context; or ``"bare"`` for a pool whose workers do nothing before their
    first task.
    """
    method = method or actor.host.configuration.start_method
    remote = actor.run(open_pool, processes, method, kind)
    try:
        yield Pool(actor, remote)
    finally:
        if actor.is_alive():
            actor.run(close_pool, remote.key)
