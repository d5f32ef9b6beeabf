"""Kills owner, peers and manager a thousand times, at random moments under load.

In each episode a group (see `kills_group`) shares, sends in a ring and verifies. This
process, which is not one of them, lets them work, kills one, and looks: the survivors
answer within a deadline, every value was right, and whatever error they saw is one of
the package's own or says that somebody has gone. A killed peer is replaced, a killed
manager is succeeded by one that its clients start, and in either case everybody works
on before the next kill; with the owner the episode ends. In the end the survivors
leave, or are killed as well, and within the grace period no process is left, no name in
`/dev/shm`, no file.

The seed decides everything: strategy, start method, channels, load, victim and moment
(a number of operations, and a part of a millisecond after it). What it cannot decide is
how the kernel schedules; a failure may need several repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import records
from records import NotHeld
from sandbox import Sandbox
from sharedtensor_conformance.harness.process_tree import has_ended, wait_until

GROUP = Path(__file__).with_name("kills_group.py")
STRATEGIES = ("file_descriptor", "file_system")
CHANNELS = ("queue", "simple_queue", "pipe")
SPAWNED = 8  # one episode in so many is one of spawned processes
STRIKES_AT_MOST = 12
OPERATIONS = 24  # of each member between two looks
UNTIL_KILLED = 1_000_000
LATEST = 0.0015  # seconds from the operation to the kill
DEADLINE = 30.0  # seconds for whatever a survivor is asked
GRACE = 5.0  # seconds for what has to go by itself, unless an option says otherwise
MANAGER_GRACE = "0.2"
LONGEST_REPORT = 1 << 16


@dataclass(frozen=True)
class Strike:
    """One kill: whom, at which operation of whom, and how long after that."""

    victim: str
    place: int
    operation: int
    delay: float
    seed: int

    @classmethod
    def planned(cls, choose: random.Random, members: int, managed: bool) -> Strike:
        """Return the next strike. With the owner its place is 0, else a peer's."""
        victims = {"peer": 8, "owner": 2} | ({"manager": 4} if managed else {})
        (victim,) = choose.choices(list(victims), list(victims.values()))
        place = 0 if victim == "owner" else choose.randrange(1, members)
        operation = choose.randrange(1, OPERATIONS)
        delay = choose.random() * LATEST
        return cls(victim, place, operation, delay, choose.randrange(1 << 30))


@dataclass(frozen=True)
class Plan:
    """What happens in one episode; the seed and its number decide."""

    number: int
    strategy: str
    start_method: str
    channels: tuple[str, ...]
    strikes: tuple[Strike, ...]
    ends_with: str

    @classmethod
    def planned(cls, seed: int, number: int) -> Plan:
        """Return the episode of that number."""
        choose = random.Random(f"{seed}/{number}")
        strategy = STRATEGIES[number % 2]
        members = choose.choice((3, 4))
        channels = tuple(choose.choice(CHANNELS) for _ in range(members))
        strikes: list[Strike] = []
        while len(strikes) < STRIKES_AT_MOST:
            managed = strategy == "file_system"
            strikes.append(Strike.planned(choose, members, managed))
            if strikes[-1].victim == "owner":
                break
        return cls(
            number,
            strategy,
            "spawn" if number % SPAWNED == SPAWNED - 1 else "fork",
            channels,
            tuple(strikes),
            choose.choice(("leave", "leave", "kill")),
        )


class Episode:
    """One group, from its start until nothing of it is left."""

    def __init__(self, sandbox: Sandbox, plan: Plan, grace: float, mutant: str) -> None:
        self.sandbox, self.plan, self.grace = sandbox, plan, grace
        self.members: dict[int, socket.socket] = {}
        self.pids: dict[int, int] = {}
        self.kills: Counter[str] = Counter()
        self.with_errors: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.resources = ExitStack()
        self.log = self.resources.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.resources.enter_context(self.listener)
        address = f"sts-{os.urandom(8).hex()}"
        self.listener.bind("\0" + address)
        self.listener.listen()
        self.listener.settimeout(DEADLINE)
        self.config = {
            "address": address,
            "strategy": plan.strategy,
            "start_method": plan.start_method,
            "channels": plan.channels,
            "mutant": mutant,
        }

    def run(self) -> None:
        """Run the whole episode. Raises `NotHeld`."""
        with self.resources:
            try:
                self.start()
                for strike in self.plan.strikes:
                    self.carry_out(strike)
                self.end()
            except NotHeld as error:
                raise NotHeld(f"{error}{self.end_of_log()}") from None
            finally:
                for connection in self.members.values():
                    connection.close()

    def start(self) -> None:
        """Start the group and let it work once."""
        environment = self.sandbox.environment(SHAREDTENSOR_MANAGER_GRACE=MANAGER_GRACE)
        command = (sys.executable, str(GROUP), json.dumps(self.config))
        self.sandbox.start(*command, env=environment, stdout=self.log, stderr=self.log)
        for _ in self.plan.channels:
            self.accept_member()
        self.work(seed=self.plan.number)

    def accept_member(self) -> None:
        """Wait for a member to say who it is."""
        try:
            connection, _ = self.listener.accept()
        except TimeoutError:
            raise NotHeld("a member did not start") from None
        place = json.loads(connection.recv(LONGEST_REPORT))["place"]
        form = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.members[place] = connection
        self.pids[place] = int.from_bytes(form[:4], sys.byteorder)
        self.sandbox.seen.add(self.pids[place])

    # Work

    def send_order(self, place: int, **words: Any) -> None:
        """Tell a member what to do."""
        with suppress(ConnectionError):  # seen when it has to report
            self.members[place].send(json.dumps(words).encode())

    def receive_report(self, place: int) -> dict[str, Any]:
        """Return what a member says. Raises `NotHeld` if it hangs or has ended."""
        connection = self.members[place]
        if not select.select([connection], [], [], DEADLINE)[0]:
            os.kill(self.pids[place], signal.SIGUSR1)  # it says where it hangs
            wait_until(lambda: "most recent call" in self.end_of_log(), GRACE)
            raise NotHeld(f"member {place} did not answer for {DEADLINE:g} seconds")
        message = connection.recv(LONGEST_REPORT)
        if not message:
            raise NotHeld(f"member {place} ended though nobody killed it")
        report: dict[str, Any] = json.loads(message)
        return report

    def work(self, seed: int) -> None:
        """Have all members work once."""
        for place in self.members:
            order = {"do": "work", "operations": OPERATIONS}
            self.send_order(place, **order, seed=f"{seed}/{place}")
        self.collect()

    def collect(self) -> None:
        """Receive the members' reports and judge them."""
        for place in self.members:
            report = self.receive_report(place)
            if report["faults"]:
                raise NotHeld(f"member {place} saw {report['faults'][0]}")
            self.counts.update(report["counts"])
            self.errors.update(report["errors"])

    # Strikes

    def carry_out(self, strike: Strike) -> None:
        """Kill one under load; then everybody who is left has to work on."""
        errors = self.errors.total()
        hits_member = strike.victim != "manager"
        for place in self.members:
            orders = {"do": "work", "seed": f"{strike.seed}/{place}"}
            orders["operations"] = OPERATIONS
            if place == strike.place:
                orders["here"] = strike.operation
                orders["operations"] = UNTIL_KILLED if hits_member else OPERATIONS
            self.send_order(place, **orders)
        self.await_operation(strike)
        self.kill_victim(strike)
        self.collect()
        if strike.victim == "peer":
            self.send_order(0, do="replace", vacant=strike.place)
            self.accept_member()
        self.work_on(strike)
        self.kills[strike.victim] += 1
        self.with_errors[strike.victim] += self.errors.total() > errors

    def await_operation(self, strike: Strike) -> None:
        """Wait until a member has come to the operation of a strike, and a bit more."""
        report = self.receive_report(strike.place)
        assert "here" in report, "a member says where it is before it reports"
        until = time.perf_counter() + strike.delay
        while time.perf_counter() < until:
            pass

    def kill_victim(self, strike: Strike) -> None:
        """Kill the victim and see it gone."""
        if strike.victim == "manager":
            victim = self.manager()
        else:
            victim = self.pids.pop(strike.place)
            self.members.pop(strike.place).close()
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        if not wait_until(lambda: has_ended(victim), DEADLINE):
            raise NotHeld(f"the {strike.victim} did not die")

    def manager(self) -> int:
        """Return the manager. Raises `NotHeld` unless there is exactly one."""
        found = self.sandbox.managers()
        if len(found) != 1:
            raise NotHeld(f"there were {len(found)} managers at work")
        return found[0]

    def work_on(self, strike: Strike) -> None:
        """Let everybody work who is left: tensors are made, sent and received."""
        before = self.counts.copy()
        self.work(seed=strike.seed + 1)
        done = self.counts - before
        if len(self.members) > 1 and not (done["make"] and done["received"]):
            raise NotHeld(f"after the {strike.victim} was killed nothing was received")
        if strike.victim == "manager":
            self.manager()

    # The end

    def end(self) -> None:
        """Have the survivors leave, or kill them; then nothing may be left."""
        for place in self.members:
            if self.plan.ends_with == "leave":
                self.send_order(place, do="leave")
            else:
                os.kill(self.pids[place], signal.SIGKILL)
        if left := self.sandbox.left_after(self.grace):
            raise NotHeld(f"{self.grace:g} seconds after the end there is {left}")

    def end_of_log(self) -> str:
        """Return the end of what the group has written."""
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 2000))
        text = self.log.read().decode(errors="replace").strip()
        return f"; the group wrote:\n{text}" if text else ""


def options() -> records.Parser:
    """Return the parser of the command line."""
    parser = records.Parser(__doc__, prog="kills")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", type=int, metavar="EPISODE", help="run this episode alone"
    )
    parser.add_argument(
        "--grace", type=float, default=GRACE, help="seconds until nothing may be left"
    )
    parser.add_argument(
        "--mutant", default="", help="break the reference first: the run has to fail"
    )
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run episodes until there were enough kills; return what holds."""
    totals = {key: Counter() for key in ("kills", "with_errors", "errors", "counts")}
    episodes: Counter[str] = Counter()
    progress = records.Progress(given.kills, "kills")
    record |= {"seed": given.seed, "mutant": given.mutant, "grace": given.grace}
    with Sandbox() as sandbox:
        record["private_shm"] = sandbox.has_private_shm
        while (done := totals["kills"].total()) < given.kills:
            progress.at(done)
            number = episodes.total() if given.only is None else given.only
            plan = Plan.planned(given.seed, number)
            episode = Episode(sandbox, plan, given.grace, given.mutant)
            run_episode(episode, given)
            episodes[f"{episode.plan.strategy}, {episode.plan.start_method}"] += 1
            for key, total in totals.items():
                total.update(getattr(episode, key))
            record |= {key: dict(total) for key, total in totals.items()}
            record["episodes"] = dict(episodes)
            if given.only is not None:
                break
    progress.end()
    return (
        f"{totals['kills'].total()} kills in {episodes.total()} episodes: no survivor "
        f"hung, all {totals['counts']['received']} messages that were received were "
        "right, and nothing was left."
    )


def run_episode(episode: Episode, given: argparse.Namespace) -> None:
    """Run an episode. Raises `NotHeld` with the command that repeats it."""
    plan = episode.plan
    try:
        episode.run()
    except NotHeld as error:
        mutant = f" --mutant {given.mutant}" if given.mutant else ""
        raise NotHeld(
            f"In episode {plan.number} ({plan.strategy}, {plan.start_method}, after "
            f"{episode.kills.total()} kills) {error}\nRepeat it with: python "
            f"soak/kills.py --seed {given.seed} --only {plan.number}{mutant}"
        ) from None


if __name__ == "__main__":
    sys.exit(records.run(None, options(), work))
