"""Random runs of the protocol. A seed determines each run, so it can be repeated."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kernel import Process, Violation
from processes import ClientProcess, ManagerProcess, Rules, Simulation

STEPS = 20_000  # a run with more steps counts as one that never ends
CLIENTS = 4
FORKS = 2
SPEED_CHANGES = 0.02  # the probability at each step


@dataclass
class Outcome:
    """The result of a run: its number of steps, and the violation, if any."""

    seed: int
    steps: int
    violation: str = ""

    def invariant(self) -> str:
        return self.violation.partition(":")[0]


class Programs:
    """The programs of the clients of a run, drawn while they run.

    The frequency of each action is drawn for each run: some runs never fork, and others
    hardly do anything else. The speed of each process in relation to the others is
    drawn as well.
    """

    ACTIONS = (
        *("make", "make_and_send", "send", "send_counted"),
        *("receive", "drop", "fork", "sync"),
    )
    OFTEN = (0, 1, 1, 4)
    SPEEDS = (1, 1, 1, 8, 64)

    def __init__(self, simulation: Simulation, chance: random.Random) -> None:
        self.simulation = simulation
        self.chance = chance
        self.weights = [chance.choice(self.OFTEN) for _ in self.ACTIONS]
        self.length = chance.choice((3, 6, 12))
        self.made = 0
        self.forks = 0

    def spawn(self) -> None:
        """Start the clients. The first starts the manager; the others wait for that."""
        first = self.simulation.client("a")
        first.do(self.first(first))
        for name in "bcde"[: self.chance.randrange(1, CLIENTS)]:
            client = self.simulation.client(name, is_own=self.chance.random() < 0.5)
            client.do(self.later(client))

    async def first(self, client: ClientProcess) -> None:
        await client.point("begins")
        await client.start()
        client.is_known = True
        await self.live(client)

    async def later(self, client: ClientProcess) -> None:
        await client.point("begins", self.is_started)
        await self.live(client)

    def is_started(self) -> bool:
        """Return whether the manager's address is known, or can never be known."""
        first = self.simulation.processes["a"]
        return first.is_known or first.is_dead

    async def live(self, client: ClientProcess) -> None:
        """Do some actions and exit; if the run has no kills, drop everything before."""
        for _ in range(self.chance.randrange(1, self.length)):
            await self.act(client)
        if not self.simulation.is_deadly:
            await client.settle()
        await client.exit()

    async def act(self, client: ClientProcess) -> None:
        """Do the next action, if it is possible."""
        (action,) = self.chance.choices(self.ACTIONS, self.weights_now(client))
        others = [one.name for one in self.simulation.clients() if one is not client]
        if action == "make":
            self.made += 1
            await client.make(f"n{self.made}")
        elif action == "make_and_send" and others:
            self.made += 1
            await client.make_and_send(f"n{self.made}", self.chance.choice(others))
        elif action == "receive":
            await client.receive()
        elif action == "sync":
            await client.sync()
        elif action == "fork" and self.forks < FORKS:
            self.forks += 1
            await client.fork(self.live)
        elif client.held:
            name = self.chance.choice(sorted(client.held))
            if action == "drop":
                await client.drop(name)
            elif action == "send" and others:
                await client.send(name, self.chance.choice(others))
            elif action == "send_counted" and others:
                await client.send_counted(name, self.chance.choice(others))

    def weights_now(self, client: ClientProcess) -> list[float]:
        """Return the weights of the actions in the present state of a client."""
        weights = dict(zip(self.ACTIONS, self.weights, strict=True))
        weights["make_and_send"] *= client.is_own
        weights["make"] = client.is_own * (weights["make"] + 2 * (not client.held))
        if client.mail or not any(weights.values()):
            weights["receive"] += 2
        return [weights[action] for action in self.ACTIONS]

    def next(self, ready: list[Process]) -> Process:
        """Choose the process that does the next step."""
        speeds = []
        for process in ready:
            if not process.speed:
                process.speed = self.chance.choice(self.SPEEDS)
            speeds.append(process.speed)
        if self.chance.random() < SPEED_CHANGES:
            self.chance.choice(ready).speed = 0
        return self.chance.choices(ready, speeds)[0]


@dataclass
class Faults:
    """The maximum kills of managers and clients, and their probability at each step."""

    managers: int = 2
    clients: int = 2
    probability: float = 0.01

    def strike(self, simulation: Simulation, chance: random.Random) -> None:
        alive = simulation.alive()
        if not alive or chance.random() >= self.probability:
            return
        process = chance.choice(alive)
        if isinstance(process, ManagerProcess):
            if simulation.manager_kills < self.managers:
                simulation.kill(process)
        elif simulation.client_kills < self.clients:
            simulation.kill(process)


def run(seed: int, rules: Rules | None = None) -> Outcome:
    """Run once. The seed determines everything."""
    chance = random.Random(seed)
    faults = chance.choice((Faults(0, 0), Faults(0, 2), Faults(), Faults()))
    simulation = Simulation(rules or Rules(), chance)
    simulation.is_deadly = bool(faults.managers or faults.clients)
    programs = Programs(simulation, chance)
    try:
        programs.spawn()
        while ready := simulation.ready():
            if simulation.steps > STEPS:
                raise Violation("nobody_waits: the run does not end")
            simulation.step(programs.next(ready))
            faults.strike(simulation, chance)
        simulation.verify_end()
    except Violation as violation:
        return Outcome(seed, simulation.steps, str(violation))
    finally:
        simulation.close()
    return Outcome(seed, simulation.steps)
