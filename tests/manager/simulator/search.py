"""Search all interleavings of small programs of clients, with kills at all steps.

Two states are the same if each process has observed the same, and the kernel holds the
same: see `Simulation.key`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import interleavings
from interleavings import Choice, Found
from kernel import Process
from processes import ClientProcess, ManagerProcess, ProtocolSteps, Simulation

Scenario = Callable[[Simulation], None]


class RunningScenario:
    """A running scenario, with the maximum kills of managers and of clients."""

    def __init__(
        self, scenario: Scenario, manager_kills: int = 0, client_kills: int = 0
    ) -> None:
        self.manager_kills = manager_kills
        self.client_kills = client_kills
        self.simulation = Simulation(ProtocolSteps())
        scenario(self.simulation)
        self.key = self.simulation.key
        self.verify_end = self.simulation.verify_end
        self.close = self.simulation.close

    @property
    def steps(self) -> int:
        """The number of steps that were done."""
        return self.simulation.steps

    def choices(self) -> list[Choice]:
        """Return what can happen next."""
        steps = [("step", process.name) for process in self.simulation.ready()]
        return steps + [
            ("kill", process.name)
            for process in self.simulation.alive()
            if self.may_kill_process(process)
        ]

    def may_kill_process(self, process: Process) -> bool:
        """Return whether one more process of this kind may be killed."""
        if isinstance(process, ManagerProcess):
            return self.simulation.manager_kills < self.manager_kills
        return self.simulation.client_kills < self.client_kills

    def take(self, choice: Choice) -> None:
        """Let a process do a step, or kill it.

        Raises:
            Violation: an invariant is violated.
        """
        what, name = choice
        process = self.simulation.processes[name]
        if what == "step":
            self.simulation.step(process)
        else:
            self.simulation.kill(process)


def search(
    scenario: Scenario,
    manager_kills: int = 0,
    client_kills: int = 0,
    most_states: int = 10**9,
) -> Found:
    """Search all states of a scenario, until a violation or `most_states` states."""

    def start() -> RunningScenario:
        return RunningScenario(scenario, manager_kills, client_kills)

    return interleavings.search(start, scenario.__name__, most_states)


# --- small programs; their docstrings are part of the record


async def wait_for_manager(client: ClientProcess) -> None:
    """Wait until the address of the first client's manager is known."""
    first = client.world.processes["a"]
    await client.point("begins", lambda: first.is_dead or first.manager_is_known)


async def start_own_manager(client: ClientProcess) -> None:
    await client.start()
    client.manager_is_known = True


def two_share(simulation: Simulation) -> None:
    """Each makes a name and drops it, on one manager, and both exit."""

    async def program(client: ClientProcess, name: str) -> None:
        await (
            start_own_manager(client)
            if client.name == "a"
            else wait_for_manager(client)
        )
        await client.make(name)
        await client.drop(name)
        await client.exit()

    for name, its in (("a", "x"), ("b", "y")):
        client = simulation.client(name)
        client.run(program(client, its))


def one_sends(simulation: Simulation) -> None:
    """One sends a name and drops it; the other receives and drops it."""

    async def sender(client: ClientProcess) -> None:
        await start_own_manager(client)
        await client.make("x")
        await client.send("x", "b")
        await client.drop("x")
        await client.exit()

    async def receiver(client: ClientProcess) -> None:
        await client.receive()
        await client.drop("x")
        await client.exit()

    a, b = simulation.client("a"), simulation.client("b", is_own=False)
    b.run(receiver(b))
    a.run(sender(a))


def one_keeps_open(simulation: Simulation) -> None:
    """One makes two names by sending them, and exits; the other drops them later."""

    async def sender(client: ClientProcess) -> None:
        await start_own_manager(client)
        await client.make_and_send("x", "b")
        await client.make_and_send("y", "b")
        await client.exit()

    async def receiver(client: ClientProcess) -> None:
        await client.receive()
        await client.receive()
        await client.drop("x")
        await client.drop("y")
        await client.exit()

    a, b = simulation.client("a"), simulation.client("b", is_own=False)
    b.run(receiver(b))
    a.run(sender(a))


def one_sends_counted(simulation: Simulation) -> None:
    """One sends a name without descriptors to a second, which sends it to a third."""

    async def sender(client: ClientProcess) -> None:
        await start_own_manager(client)
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
    b.run(relay(b))
    c.run(receiver(c))
    a.run(sender(a))


def one_is_silent(simulation: Simulation) -> None:
    """One makes a name and is silent; the other makes and drops one, and exits."""

    async def silent(client: ClientProcess) -> None:
        await start_own_manager(client)
        await client.make("x")
        await client.point("is silent", lambda: simulation.processes["b"].is_dead)
        await client.send("x", "b")
        await client.exit()

    async def other(client: ClientProcess) -> None:
        await wait_for_manager(client)
        await client.make("y")
        await client.drop("y")
        await client.exit()

    a, b = simulation.client("a"), simulation.client("b")
    b.run(other(b))
    a.run(silent(a))


def one_forks(simulation: Simulation) -> None:
    """A parent forks a child that keeps what the parent drops."""

    async def parent(client: ClientProcess) -> None:
        await start_own_manager(client)
        await client.make("x")
        await client.fork(child)
        await client.drop("x")
        await client.exit()

    async def child(client: ClientProcess) -> None:
        await client.point("is silent")
        await client.drop("x")
        await client.exit()

    a = simulation.client("a")
    a.run(parent(a))


def one_receives_for_a_silent_one(simulation: Simulation) -> None:
    """One sends a name that it goes on to hold in silence; the other drops it."""

    async def silent(client: ClientProcess) -> None:
        await start_own_manager(client)
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
    b.run(receiver(b))
    a.run(silent(a))


def one_passes_on(simulation: Simulation) -> None:
    """One sends a name to a second and exits; that one passes it on, and waits."""

    async def sender(client: ClientProcess) -> None:
        await start_own_manager(client)
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
    b.run(relay(b))
    c.run(receiver(c))
    a.run(sender(a))


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        two_share,
        one_sends,
        one_keeps_open,
        one_is_silent,
        one_receives_for_a_silent_one,
        one_forks,
        one_passes_on,
        one_sends_counted,
    )
}
