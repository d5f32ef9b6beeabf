"""Groups of processes that an actor starts by one call, as a test uses them."""

from __future__ import annotations

from typing import Any

from sharedtensor_conformance.chapters.group_actions import (
    group_is_ready,
    group_pids,
    join_group,
    let_one_fail,
    signal_process,
    start_group,
    start_group_and_wait,
)
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.remote.calls import Remote
from sharedtensor_conformance.harness.remote.threads import in_a_thread


class Group:
    """Processes that an actor started together, each with an index."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.actor = remote.actor
        self.start_timeout = remote.actor.host.timeouts.start

    def pids(self) -> list[int]:
        """Return their process ids."""
        return self.actor.run(group_pids, self.remote)

    def signal(self, index: int, number: int) -> None:
        """Send a signal to one of them."""
        self.actor.run(signal_process, self.remote, index, number)

    def is_ready(self, count: int, timeout: float | None = None) -> bool:
        """Wait until `count` of them execute the task; return whether they do."""
        if timeout is None:
            timeout = self.start_timeout
        limit = 2 * self.start_timeout
        return self.actor.run_within(limit, group_is_ready, self.remote, count, timeout)

    def let_one_fail(self) -> None:
        """Let the process fail that does so when it is told."""
        self.actor.run(let_one_fail, self.remote)

    def join_in_a_thread(self) -> Any:
        """Join them in another thread than the one that started them."""
        return self.actor.run(in_a_thread, join_group, self.remote, None, None)

    def join(self, timeout: float | None = None, grace: float | None = None) -> Any:
        """Join them; return what the call returns, or a dictionary of what it raised.

        Args:
            timeout: seconds after which it returns though some still run.
            grace: seconds that processes have to end by themselves, where the
                implementation lets its caller say so.
        """
        limit = self.start_timeout + (timeout or 0)
        return self.actor.run_within(limit, join_group, self.remote, timeout, grace)


def start_together(
    actor: ActorProxy, task: str, count: int, payload: Any, how: str
) -> Any:
    """Start `count` processes for one of the `GROUP_TASKS`, and join them.

    `how` is a start method, or ``"spawn()"`` for the function of that name. The payload
    is a list of tensors. Returns what the call returns, or a dictionary that describes
    the ``ProcessException`` that it raised.
    """
    return actor.run(start_group, task, count, payload, how, True)


def group_of(actor: ActorProxy, task: str, count: int, payload: Any, how: str) -> Group:
    """Start such processes without joining them."""
    return Group(actor.run(start_group, task, count, payload, how, False))


def group_from_a_thread(
    actor: ActorProxy, task: str, count: int, payload: Any, how: str
) -> Group:
    """Start them in a thread, which ends when all of them run."""
    timeout = actor.host.timeouts.start
    what: tuple[Any, ...] = (task, count, payload, how, timeout)
    begin = (in_a_thread, start_group_and_wait)
    return Group(actor.run_within(2 * timeout, *begin, *what))
