"""Pools of worker processes in an actor, which submits tasks of `worker_tasks`."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace
from typing import Any

from sharedtensor_conformance.chapters.worker_tasks import (
    add_and_return,
    make_and_keep,
    prepare_worker,
    strategy,
)
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.marks import starts_processes

EARLIER_TASKS = 300
"""How many tasks come first: their numbers are pickled in another way from 256 on."""

SubmitMethod = Callable[[Any, Callable[..., Any], list[Any]], list[Any]]

SUBMIT_METHODS: dict[str, SubmitMethod] = {
    "apply": lambda pool, do, each: [pool.apply(do, (one,)) for one in each],
    "apply by name": lambda pool, do, each: [
        pool.apply(do, (), {"payload": one}) for one in each
    ],
    "apply_async": lambda pool, do, each: [
        result.get() for result in [pool.apply_async(do, (one,)) for one in each]
    ],
    "map": lambda pool, do, each: pool.map(do, each),
    "map in chunks": lambda pool, do, each: pool.map(do, each, chunksize=2),
    "map_async": lambda pool, do, each: pool.map_async(do, each).get(),
    "apply_async by name": lambda pool, do, each: [
        result.get()
        for result in [pool.apply_async(do, (), {"payload": one}) for one in each]
    ],
    "starmap": lambda pool, do, each: pool.starmap(do, [(one,) for one in each]),
    "starmap_async": lambda pool, do, each: pool.starmap_async(
        do, [(one,) for one in each]
    ).get(),
    "imap": lambda pool, do, each: list(pool.imap(do, each)),
    "imap in chunks": lambda pool, do, each: list(pool.imap(do, each, chunksize=3)),
    "imap_unordered": lambda pool, do, each: [
        next(pool.imap_unordered(do, [one])) for one in each
    ],
}
"""The ways to submit tasks to a pool. Results have the order of the tasks."""


class Executor(ProcessPoolExecutor):
    """An executor of the standard library, with the names that pools have."""

    def apply(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        named: dict[str, Any] | None = None,
    ) -> Any:
        """Submit a call and wait for its result."""
        return self.submit(function, *arguments, **(named or {})).result()

    def apply_async(self, function: Callable[..., Any], arguments: list[Any]) -> Any:
        """Submit a call; return what has its result."""
        future = self.submit(function, *arguments)
        return SimpleNamespace(get=future.result)

    def close(self) -> None:
        """Accept no call any more."""
        self.shutdown(wait=False)

    def join(self) -> None:
        """Wait for the workers' end."""
        self.shutdown(wait=True)


@starts_processes
def open_pool(actor: Actor, processes: int, method: str, kind: str) -> Any:
    """Return a new pool: see `pools.open_pool`."""
    context = actor.context(method)
    entrance: dict[str, Any] = {}
    if kind != "bare":
        entrance = {"initializer": prepare_worker, "initargs": (actor.setting,)}
    if kind == "executor":
        return actor.by_implementation(
            lambda: Executor(processes, mp_context=context, **entrance)
        )
    return actor.by_implementation(lambda: context.Pool(processes, **entrance))


@starts_processes
def run_task(
    actor: Actor, pool: Any, task: Callable[..., Any], arguments: list[Any]
) -> Any:
    """Return the result of a task."""
    outgoing = [actor.outgoing(argument) for argument in arguments]
    return actor.incoming(actor.by_implementation(lambda: pool.apply(task, outgoing)))


@starts_processes
def run_task_by_name(
    actor: Actor, pool: Any, task: Callable[..., Any], named: dict[str, Any]
) -> Any:
    """Return the result of a task that gets the names of all arguments."""
    outgoing = {key: actor.outgoing(value) for key, value in named.items()}
    result = actor.by_implementation(lambda: pool.apply(task, (), outgoing))
    return actor.incoming(result)


@starts_processes
def add_in_tasks(actor: Actor, pool: Any, method: str, payloads: list[Any]) -> Any:
    """Return the results of `add_and_return` for each payload.

    `method` is one of `SUBMIT_METHODS`.
    """
    arguments = [actor.outgoing(payload) for payload in payloads]
    submit = SUBMIT_METHODS[method]
    return actor.incoming(
        actor.by_implementation(lambda: submit(pool, add_and_return, arguments))
    )


@starts_processes
def add_beside(
    actor: Actor,
    kind: str,
    method: str,
    payloads: list[Any],
    task: Callable[..., Any],
    given: Any,
    timeout: float,
) -> list[list[Any]]:
    """Submit a task to a used pool amid those of `add_and_return` for each payload.

    What is not there after `timeout` seconds raises an exception of the implementation.

    Returns:
        The results, and the name and the text of the exception of each other task; the
        text has no address of an object, which is another one in each run.
    """
    calls = [(add_and_return, [actor.outgoing(payload)]) for payload in payloads]
    calls.insert(len(calls) // 2, (task, actor.outgoing(given)))
    results, raised = [], []

    def ask_for_all() -> None:
        with open_pool(actor, 2, method, kind) as pool:
            for earlier in [pool.apply_async(int, ()) for _ in range(EARLIER_TASKS)]:
                earlier.get(timeout)
            submitted = [pool.apply_async(*call) for call in calls]
            for each in submitted:
                try:
                    results.append(each.get(timeout))
                except (multiprocessing.TimeoutError, TimeoutError):
                    raise
                except Exception as error:
                    told = f"{type(error).__name__}: {error}"
                    raised.append(re.sub("<[^<>]*>", "<an object>", told))

    actor.by_implementation(ask_for_all)
    return [actor.incoming(results), raised]


@starts_processes
def terminate_early(actor: Actor, pool: Any, payloads: list[Any]) -> None:
    """Submit many tasks, take the result of one, and terminate the pool."""
    arguments = [actor.outgoing(payload) for payload in payloads]

    def take_one() -> None:
        results = pool.imap_unordered(add_and_return, arguments)
        next(results)
        pool.terminate()
        pool.join()

    actor.by_implementation(take_one)


@starts_processes
def results_of_recycled_workers(
    actor: Actor, kind: str, method: str, lists: list[list[Any]], timeout: float
) -> list[Any]:
    """Return a new tensor with each list of values, made by a worker that then ends.

    `kind` is ``"pool"`` or ``"executor"``. A result that is not there after `timeout`
    seconds raises an exception of the implementation.
    """
    context = actor.context(method)
    entrance: dict[str, Any] = {"initializer": prepare_worker}
    entrance["initargs"] = (actor.setting,)

    def by_a_pool() -> Any:
        with context.Pool(2, maxtasksperchild=1, **entrance) as pool:
            results = [pool.apply_async(make_and_keep, (values,)) for values in lists]
            return [result.get(timeout) for result in results]

    def by_an_executor() -> Any:
        once: dict[str, Any] = {"mp_context": context, "max_tasks_per_child": 1}
        with ProcessPoolExecutor(2, **once, **entrance) as executor:
            return [*executor.map(make_and_keep, lists, timeout=timeout)]

    results = by_a_pool if kind == "pool" else by_an_executor
    made: list[Any] = actor.incoming(actor.by_implementation(results))
    return made


@starts_processes
def strategy_in_pool(actor: Actor, pool: Any) -> str:
    """Return the strategy of a worker in which none was set."""
    found: str = actor.by_implementation(lambda: pool.apply(strategy, (actor.setting,)))
    return found


@starts_processes
def close_pool(actor: Actor, key: str) -> None:
    """Close a pool, given by its key, and wait for the end of its workers."""
    pool = actor.objects.pop(key)

    def close() -> None:
        pool.close()
        pool.join()

    actor.by_implementation(close)
