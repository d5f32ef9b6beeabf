"""Every interleaving of small programs, and a kill at each step.

The search goes depth first. A state is known by its hash, which has what each process
has observed and what the kernel holds (see `Simulation.key`), so what follows from it
is looked at once. Coroutines cannot be copied: each branch is run again from the start.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kernel import Process, Violation
from processes import ClientProcess, ManagerProcess, Rules, Simulation

Scenario = Callable[[Simulation], None]
Choice = tuple[str, str]  # what to do, "step" or "kill", and the name of a process


@dataclass
class Found:
    """What a search has come to."""

    scenario: str
    states: int = 0
    steps: int = 0
    runs: int = 0
    deepest: int = 0
    seconds: float = 0.0
    is_complete: bool = False
    violation: str = ""
    path: list[Choice] = field(default_factory=list)


@dataclass
class Search:
    """A search of one scenario, with so many kills of managers and of clients."""

    scenario: Scenario
    manager_kills: int = 1
    client_kills: int = 0
    most_states: int = 10**9

    def run(self) -> Found:
        """Look at all states, or stop at a violation or at `most_states`."""
        found = Found(self.scenario.__name__)
        began = time.perf_counter()
        seen: set[int] = set()
        branches: list[list[Choice]] = [[]]
        while branches and len(seen) < self.most_states and not found.violation:
            self.follow(branches.pop(), seen, branches, found)
        found.states = len(seen)
        found.is_complete = not branches and not found.violation
        found.seconds = time.perf_counter() - began
        return found

    def follow(
        self,
        path: list[Choice],
        seen: set[int],
        branches: list[list[Choice]],
        found: Found,
    ) -> None:
        """Run a path again and go on from its end until a state is known."""
        simulation = Simulation(Rules())
        found.runs += 1
        path = list(path)
        try:
            self.scenario(simulation)
            for choice in path:
                take(simulation, choice)
            while (key := simulation.key()) not in seen:
                seen.add(key)
                choices = self.choices(simulation)
                if not any(what == "step" for what, _ in choices):
                    simulation.verify_end()
                if not choices:
                    break
                branches += ([*path, choice] for choice in choices[1:])
                path.append(choices[0])
                take(simulation, choices[0])
        except Violation as violation:
            found.violation, found.path = str(violation), path
        finally:
            found.steps += simulation.steps
            found.deepest = max(found.deepest, len(path))
            simulation.close()

    def choices(self, simulation: Simulation) -> list[Choice]:
        """Return what can happen next."""
        steps = [("step", process.name) for process in simulation.ready()]
        return steps + [
            ("kill", process.name)
            for process in simulation.alive()
            if self.may_die(simulation, process)
        ]

    def may_die(self, simulation: Simulation, process: Process) -> bool:
        """Return whether one more kill of such a process is left."""
        if isinstance(process, ManagerProcess):
            return simulation.manager_kills < self.manager_kills
        return simulation.client_kills < self.client_kills


def take(simulation: Simulation, choice: Choice) -> None:
    """Do what was chosen."""
    what, name = choice
    process = simulation.processes[name]
    if what == "step":
        simulation.step(process)
    else:
        simulation.kill(process)


# --- small programs


async def begins_when_known(client: ClientProcess) -> None:
    """Wait until the first client's manager has an address."""
    first = client.world.processes["a"]
    await client.point("begins", lambda: first.is_dead or first.is_known)


async def starts(client: ClientProcess) -> None:
    await client.start()
    client.is_known = True


def two_share(simulation: Simulation) -> None:
    """Each makes a name and drops it, on one manager, and both exit."""

    async def program(client: ClientProcess, name: str) -> None:
        await (starts(client) if client.name == "a" else begins_when_known(client))
        await client.make(name)
        await client.drop(name)
        await client.exit()

    for name, its in (("a", "x"), ("b", "y")):
        client = simulation.client(name)
        client.do(program(client, its))


def one_sends(simulation: Simulation) -> None:
    """One sends a name and drops it; the other receives and drops it."""

    async def sender(client: ClientProcess) -> None:
        await starts(client)
        await client.make("x")
        await client.send("x", "b")
        await client.drop("x")
        await client.exit()

    async def receiver(client: ClientProcess) -> None:
        await client.receive()
        await client.drop("x")
        await client.exit()

    a, b = simulation.client("a"), simulation.client("b", is_own=False)
    b.do(receiver(b))
    a.do(sender(a))


def one_sends_counted(simulation: Simulation) -> None:
    """As `one_sends`, by a channel that carries no descriptors, to two in a row."""

    async def sender(client: ClientProcess) -> None:
        await starts(client)
        await client.make("x")
        await client.send_counted("x", "b")
        await client.drop("x")
        await client.exit()

    async def relay(client: ClientProcess) -> None:
        await client.receive()
        await client.send_counted("x", "c")
        await client.drop("x")
        await client.receive()
        await client.exit()

    async def receiver(client: ClientProcess) -> None:
        await client.receive()
        await client.drop("x")
        await client.exit()

    a, b = simulation.client("a"), simulation.client("b", is_own=False)
    c = simulation.client("c", is_own=False)
    b.do(relay(b))
    c.do(receiver(c))
    a.do(sender(a))


def one_is_silent(simulation: Simulation) -> None:
    """One makes a name and is silent; the other makes and drops one, and exits."""

    async def silent(client: ClientProcess) -> None:
        await starts(client)
        await client.make("x")
        await client.point("is silent", lambda: simulation.processes["b"].is_dead)
        await client.send("x", "b")
        await client.exit()

    async def other(client: ClientProcess) -> None:
        await begins_when_known(client)
        await client.make("y")
        await client.drop("y")
        await client.exit()

    a, b = simulation.client("a"), simulation.client("b")
    b.do(other(b))
    a.do(silent(a))


def one_forks(simulation: Simulation) -> None:
    """A parent forks a child that keeps what the parent drops."""

    async def parent(client: ClientProcess) -> None:
        await starts(client)
        await client.make("x")
        await client.fork(child)
        await client.drop("x")
        await client.exit()

    async def child(client: ClientProcess) -> None:
        await client.point("is silent")
        await client.drop("x")
        await client.exit()

    a = simulation.client("a")
    a.do(parent(a))


def one_receives_for_a_silent_one(simulation: Simulation) -> None:
    """One sends a name that it goes on to hold in silence; the other drops it."""

    async def silent(client: ClientProcess) -> None:
        await starts(client)
        await client.make("x")
        await client.send("x", "b")
        await client.point("is silent", lambda: simulation.processes["b"].is_dead)
        await client.exit()

    async def receiver(client: ClientProcess) -> None:
        await client.receive()
        await client.drop("x")
        await client.sync()
        await client.exit()

    a, b = simulation.client("a"), simulation.client("b")
    b.do(receiver(b))
    a.do(silent(a))


def one_passes_on(simulation: Simulation) -> None:
    """One sends a name to a second and exits; that one passes it on, and waits."""

    async def sender(client: ClientProcess) -> None:
        await starts(client)
        await client.make("x")
        await client.send("x", "b")
        await client.exit()

    async def relay(client: ClientProcess) -> None:
        await client.receive()
        await client.send_counted("x", "c")
        await client.drop("x")
        await client.point("is silent", lambda: simulation.processes["c"].is_dead)
        await client.exit()

    async def receiver(client: ClientProcess) -> None:
        await client.receive()
        await client.drop("x")
        await client.exit()

    a = simulation.client("a")
    b = simulation.client("b", is_own=False)
    c = simulation.client("c", is_own=False)
    b.do(relay(b))
    c.do(receiver(c))
    a.do(sender(a))


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        two_share,
        one_sends,
        one_is_silent,
        one_receives_for_a_silent_one,
        one_forks,
        one_passes_on,
        one_sends_counted,
    )
}
