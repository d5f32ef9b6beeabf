"""Names, contexts and sharing strategies of the drop-in module in a process."""

from __future__ import annotations

import os
import subprocess
import sys

from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.marks import starts_processes

STRATEGY_PROGRAM = """
import resource, sys
for limit in sys.argv[1:]:
    name, _, value = limit.partition("=")
    _, hard = resource.getrlimit(getattr(resource, name))
    resource.setrlimit(getattr(resource, name), (int(value), hard))
from sharedtensor_conformance.harness.remote.setting import Setting
operations = Setting.from_environment().operations()
print(operations.multiprocessing.get_sharing_strategy())
"""
"""A program that sets its own limits, imports the implementation, and prints the
sharing strategy.
"""


@starts_processes
def strategy_of_a_program(
    actor: Actor, limits: dict[str, int], variables: dict[str, str]
) -> str:
    """Return the default sharing strategy of a new program.

    The program sets the limits, imports the implementation, and sets no strategy.

    Args:
        actor: the process that starts the program.
        limits: the soft limits of the program, by their names in `resource`.
        variables: additional variables of its environment.

    Returns:
        The strategy; if the program fails, ``none:`` and the end of its error output.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            STRATEGY_PROGRAM,
            *(f"{k}={v}" for k, v in limits.items()),
        ],
        env=os.environ
        | actor.setting.environment()
        | {"PYTHONPATH": os.pathsep.join(sys.path)}
        | variables,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or f"none: {done.stderr[-300:]}"


def strategies_after_a_change(actor: Actor, added: str) -> tuple[set[str], list[str]]:
    """Change the set of strategies that the module returned, and look at the effects.

    The set is emptied, and `added` becomes its only element. It may be the set that the
    module itself uses, so it is restored at the end.

    Returns:
        The strategies that the module returns after the change, and those of all names
        that can be set.
    """
    module = actor.operations.multiprocessing

    def can_be_set(name: str) -> bool:
        try:
            module.set_sharing_strategy(name)
        except Exception:
            return False
        return True

    def change() -> tuple[set[str], list[str]]:
        current = module.get_sharing_strategy()
        returned = module.get_all_sharing_strategies()
        before = set(returned)
        names = sorted({*before, added})
        if isinstance(returned, set):
            returned.clear()
            returned.add(added)
        try:
            again = set(module.get_all_sharing_strategies())
            return again, [name for name in names if can_be_set(name)]
        finally:
            if isinstance(returned, set):
                returned.clear()
                returned.update(before)
            module.set_sharing_strategy(current)

    result: tuple[set[str], list[str]] = actor.by_implementation(change)
    return result


def missing_in_module(actor: Actor, names: list[str]) -> list[str]:
    """Return the names that the module does not have."""
    module = actor.operations.multiprocessing
    return [name for name in names if not hasattr(module, name)]


def missing_in_context(actor: Actor, method: str, names: list[str]) -> list[str]:
    """Return the names that the context of a start method does not have."""
    context = actor.context(method)
    return [name for name in names if not hasattr(context, name)]


def start_method_of_context(actor: Actor, method: str) -> str:
    """Return the start method that the context of `method` reports."""
    context = actor.context(method)
    return str(actor.by_implementation(context.get_start_method))


def look_up_context(actor: Actor, method: str) -> None:
    """Call ``get_context(method)``."""
    actor.context(method)
