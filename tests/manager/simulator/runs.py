"""Random runs of the protocol. A seed determines each run, so it can be repeated."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kernel import Process, Violation
from processes import ClientProcess, ManagerProcess, ProtocolSteps, Simulation

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
    FREQUENCIES = (0, 1, 1, 4)
    SPEEDS = (1, 1, 1, 8, 64)

    def __init__(self, simulation: Simulation, rng: random.Random) -> None:
        self.simulation = simulation
        self.rng = rng
        self.weights = [rng.choice(self.FREQUENCIES) for _ in self.ACTIONS]
        self.length = rng.choice((3, 6, 12))
        self.name_count = 0
        self.forks = 0

    def spawn(self) -> None:
        """Start the clients. The first starts the manager; the others wait for that."""
        first = self.simulation.client("a")
        first.run(self.run_first(first))
        for name in "bcde"[: self.rng.randrange(1, CLIENTS)]:
            client = self.simulation.client(name, is_own=self.rng.random() < 0.5)
            client.run(self.run_later(client))

    async def run_first(self, client: ClientProcess) -> None:
        await client.point("begins")
        await client.start()
        client.manager_is_known = True
        await self.run_program(client)

    async def run_later(self, client: ClientProcess) -> None:
        await client.point("begins", self.is_started)
        await self.run_program(client)

    def is_started(self) -> bool:
        """Return whether the manager's address is known, or can never be known."""
        first = self.simulation.processes["a"]
        return first.manager_is_known or first.is_dead

    async def run_program(self, client: ClientProcess) -> None:
        """Do some actions and exit; if the run has no kills, drop everything before."""
        for _ in range(self.rng.randrange(1, self.length)):
            await self.do_action(client)
        if not self.simulation.may_kill:
            await client.settle()
        await client.exit()

    async def do_action(self, client: ClientProcess) -> None:
        """Do the next action, if it is possible."""
        (action,) = self.rng.choices(self.ACTIONS, self.weights_now(client))
        others = [one.name for one in self.simulation.clients() if one is not client]
        if action == "make":
            self.name_count += 1
            await client.make(f"n{self.name_count}")
        elif action == "make_and_send" and others:
            self.name_count += 1
            await client.make_and_send(f"n{self.name_count}", self.rng.choice(others))
        elif action == "receive":
            await client.receive()
        elif action == "sync":
            await client.sync()
        elif action == "fork" and self.forks < FORKS:
            self.forks += 1
            await client.fork(self.run_program)
        elif client.held:
            name = self.rng.choice(sorted(client.held))
            if action == "drop":
                await client.drop(name)
            elif action == "send" and others:
                await client.send(name, self.rng.choice(others))
            elif action == "send_counted" and others:
                await client.send_counted(name, self.rng.choice(others))

    def weights_now(self, client: ClientProcess) -> list[float]:
        """Return the weights of the actions in the present state of a client."""
        weights = dict(zip(self.ACTIONS, self.weights, strict=True))
        weights["make_and_send"] *= client.is_own
        weights["make"] = client.is_own * (weights["make"] + 2 * (not client.held))
        if client.inbox or not any(weights.values()):
            weights["receive"] += 2
        return [weights[action] for action in self.ACTIONS]

    def choose_process(self, ready: list[Process]) -> Process:
        """Choose the process that does the next step."""
        speeds = []
        for process in ready:
            if not process.speed:
                process.speed = self.rng.choice(self.SPEEDS)
            speeds.append(process.speed)
        if self.rng.random() < SPEED_CHANGES:
            self.rng.choice(ready).speed = 0
        return self.rng.choices(ready, speeds)[0]


@dataclass
class Faults:
    """The maximum kills of managers and clients, and their probability at each step."""

    managers: int = 2
    clients: int = 2
    probability: float = 0.01

    def maybe_kill(self, simulation: Simulation, rng: random.Random) -> None:
        alive = simulation.alive()
        if not alive or rng.random() >= self.probability:
            return
        process = rng.choice(alive)
        if isinstance(process, ManagerProcess):
            if simulation.manager_kills < self.managers:
                simulation.kill(process)
        elif simulation.client_kills < self.clients:
            simulation.kill(process)


def run(seed: int, protocol: ProtocolSteps | None = None) -> Outcome:
    """Run once. The seed determines everything."""
    rng = random.Random(seed)
    faults = rng.choice((Faults(0, 0), Faults(0, 2), Faults(), Faults()))
    simulation = Simulation(protocol or ProtocolSteps(), rng)
    simulation.may_kill = bool(faults.managers or faults.clients)
    programs = Programs(simulation, rng)
    try:
        programs.spawn()
        while ready := simulation.ready():
            if simulation.steps > STEPS:
                raise Violation("nobody_waits: the run does not end")
            simulation.step(programs.choose_process(ready))
            faults.maybe_kill(simulation, rng)
        simulation.verify_end()
    except Violation as violation:
        return Outcome(seed, simulation.steps, str(violation))
    finally:
        simulation.close()
    return Outcome(seed, simulation.steps)
