"""Controls a group of processes that share tensors and send them in a ring.

`rounds.py` counts what the group holds, `kills.py` kills members of it, and
`hostile.py` removes resources that they need. The controller is not a member. It starts
the members (see `sharer`), orders them to work, and checks their reports: survivors
answer in time, every value was right, and every error belongs to the package or says
that another process has ended. At the end, the members leave or are killed, and nothing
may be left of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import recording
from recording import NotHeld
from sandbox import Sandbox
from sharedtensor_conformance.harness.kernel.process_tree import has_ended, wait_until

GROUP = Path(__file__).with_name("sharer.py")
STRATEGIES = ("file_descriptor", "file_system")
CHANNELS = ("queue", "simple_queue", "pipe")
SPAWNED = 8  # one of this many episodes uses spawned processes
OPERATIONS = 24  # of each member between two checks
UNTIL_KILLED = 1_000_000
DEADLINE = 30.0  # seconds for the answer of a survivor
GRACE = 5.0  # seconds until everything has to be gone; an option can change it
MANAGER_GRACE = "0.2"
LONGEST_REPORT = 1 << 16
COUNTS = ("with_errors", "errors", "counts")


@dataclass(frozen=True)
class Plan:
    """The properties of a group, which depend on the seed and the episode's number."""

    number: int
    strategy: str
    start_method: str
    channels: tuple[str, ...]
    ends_with: str

    @property
    def is_managed(self) -> bool:
        """Whether there is a manager."""
        return self.strategy == "file_system"


def planned(seed: int, number: int, choose: random.Random) -> Plan:
    """Return the plan of an episode; `choose` is the episode's random generator."""
    members = choose.choice((3, 4))
    return Plan(
        number,
        STRATEGIES[number % 2],
        "spawn" if number % SPAWNED == SPAWNED - 1 else "fork",
        tuple(choose.choice(CHANNELS) for _ in range(members)),
        random.Random(f"{seed}/{number}/end").choice(("leave", "leave", "kill")),
    )


class Group:
    """The processes of one episode, from their start until nothing is left of them.

    Args:
        sandbox: the sandbox in which they run.
        plan: strategy, start method, channels and end.
        grace: seconds until nothing may be left.
        mutant: a fault that is applied to the reference in all of them; "" for none.
    """

    def __init__(self, sandbox: Sandbox, plan: Plan, grace: float, mutant: str) -> None:
        self.sandbox, self.plan, self.grace = sandbox, plan, grace
        self.members: dict[int, socket.socket] = {}
        self.pids: dict[int, int] = {}
        self.met: Counter[str] = Counter()
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

    def __enter__(self) -> Self:
        self.resources.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        for connection in self.members.values():
            connection.close()
        self.resources.__exit__(*raised)

    def start(self) -> None:
        """Start the group, and have it work once."""
        environment = self.sandbox.environment(SHAREDTENSOR_MANAGER_GRACE=MANAGER_GRACE)
        command = (sys.executable, str(GROUP), json.dumps(self.config))
        self.sandbox.start(*command, env=environment, stdout=self.log, stderr=self.log)
        for _ in self.plan.channels:
            self.accept_member()
        self.work(f"{self.plan.number} start")

    def accept_member(self) -> None:
        """Accept the connection of a member and its first message."""
        try:
            connection, _ = self.listener.accept()
        except TimeoutError:
            raise NotHeld("a member did not start") from None
        place = json.loads(connection.recv(LONGEST_REPORT))["place"]
        form = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.members[place] = connection
        self.pids[place] = int.from_bytes(form[:4], sys.byteorder)
        self.sandbox.known_pids.add(self.pids[place])

    # Work

    def send_order(self, place: int, **words: Any) -> None:
        """Send an order to a member."""
        with suppress(ConnectionError):  # noticed when it has to report
            self.members[place].send(json.dumps(words).encode())

    def receive_report(self, place: int) -> dict[str, Any]:
        """Return a member's message. Raises `NotHeld` if it hangs or has ended."""
        connection = self.members[place]
        if not select.select([connection], [], [], DEADLINE)[0]:
            os.kill(self.pids[place], signal.SIGUSR1)  # it prints where it hangs
            wait_until(lambda: "most recent call" in self.end_of_log(), GRACE)
            raise NotHeld(f"member {place} did not answer for {DEADLINE:g} seconds")
        message = connection.recv(LONGEST_REPORT)
        if not message:
            raise NotHeld(f"member {place} ended though nobody killed it")
        report: dict[str, Any] = json.loads(message)
        return report

    def work(self, seed: object) -> None:
        """Have all members work once."""
        for place in self.members:
            self.order_work(place, seed)
        self.collect()

    def order_work(
        self, place: int, seed: object, operations: int = OPERATIONS
    ) -> None:
        """Order a member to work."""
        words = {"operations": operations, "seed": f"{seed}/{place}"}
        self.send_order(place, do="work", **words)

    def have_all(self, what: str) -> None:
        """Have all members receive the messages that are there, and send none.

        Args:
            what: ``drain``, or ``settle`` if they also have to drop what they hold.
        """
        for place in self.members:
            self.send_order(place, do=what)
        self.collect()

    def kill(self, *places: int, managers: bool = False) -> None:
        """Kill members, or the managers with them, and wait for their ends."""
        victims = self.managers() if managers else []
        for place in places:
            victims.append(self.pids.pop(place))
            self.members.pop(place).close()
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        if not wait_until(lambda: all(map(has_ended, victims)), DEADLINE):
            raise NotHeld("a process that was killed did not die")

    def replace(self, place: int) -> None:
        """Have the owner start a process in a place that is vacant."""
        self.send_order(0, do="replace", vacant=place)
        self.accept_member()

    def collect(self, *places: int) -> None:
        """Receive the reports of members, or of all, and check them."""
        for place in places or self.members:
            report = self.receive_report(place)
            if report["faults"]:
                raise NotHeld(f"member {place} saw {report['faults'][0]}")
            self.counts.update(report["counts"])
            self.errors.update(report["errors"])

    def managers(self) -> list[int]:
        """Return the managers: several members may have started one at once."""
        if self.plan.is_managed and not (found := self.sandbox.managers()):
            raise NotHeld("there was no manager at work")
        return found if self.plan.is_managed else []

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
        """Return the end of the group's output."""
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 2000))
        text = self.log.read().decode(errors="replace").strip()
        return f"; the group wrote:\n{text}" if text else ""


# Episodes: groups with troubles that depend on the seed and the episode's number


class Parser(recording.Parser):
    """A parser with the options that choose episodes."""

    def __init__(self, description: str | None, **options: Any) -> None:
        super().__init__(description, **options)
        text = "the seed of all random choices (default: %(default)s)"
        self.add_argument("--seed", type=int, default=1, help=text)
        text = "run only this episode"
        self.add_argument("--only", type=int, metavar="EPISODE", help=text)
        text = "apply this mutant to the reference; the run then has to fail"
        self.add_argument("--mutant", default="", help=text)


@dataclass(frozen=True)
class Troubles:
    """What happens to groups, and how much of it is enough.

    Args:
        script: the name of the script, for the command that repeats an episode.
        name: of the troubles in the record.
        limit: how many troubles are enough; episodes if `by_episodes`.
        of: returns a group that has not started, by the number of its episode, and the
            troubles that it meets, by their names.
    """

    script: str
    name: str
    limit: int
    by_episodes: bool
    of: Callable[[int], tuple[Group, Iterable[tuple[str, Callable[[], None]]]]]

    def meet(self, given: argparse.Namespace, record: dict[str, Any]) -> int:
        """Run episodes until it is enough; return their number.

        The record gets what was counted. Raises `NotHeld`.
        """
        keys = {self.name: "met", **{key: key for key in COUNTS}}
        totals = {key: Counter() for key in keys}
        episodes: Counter[str] = Counter()
        record |= {"seed": given.seed, "mutant": given.mutant}
        record |= {**totals, "episodes": episodes}
        what = "episodes" if self.by_episodes else self.name
        progress = recording.Progress(self.limit, what)
        for number in itertools.count() if given.only is None else [given.only]:
            counted = episodes if self.by_episodes else totals[self.name]
            progress.at(counted.total())
            if counted.total() >= self.limit:
                break
            group, troubles = self.of(number)
            self.run_episode(given, group, troubles)
            episodes[f"{group.plan.strategy}, {group.plan.start_method}"] += 1
            for key, total in totals.items():
                total.update(getattr(group, keys[key]))
        return episodes.total()

    def run_episode(
        self,
        given: argparse.Namespace,
        group: Group,
        troubles: Iterable[tuple[str, Callable[[], None]]],
    ) -> None:
        """Run an episode. Raises `NotHeld` with the command that repeats it."""
        plan, name = group.plan, "its start"
        with group:
            try:
                group.start()
                for name, meet in troubles:
                    errors = group.errors.total()
                    meet()
                    group.met[name] += 1
                    group.with_errors[name] += group.errors.total() > errors
                group.end()
            except NotHeld as error:
                mutant = f" --mutant {given.mutant}" if given.mutant else ""
                raise NotHeld(
                    f"In episode {plan.number} ({plan.strategy}, {plan.start_method}), "
                    f"after {group.met.total()} {self.name}, at {name}: {error}"
                    f"{group.end_of_log()}\nRepeat it with: python "
                    f"evidence/soak/{self.script}.py --seed {given.seed} "
                    f"--only {plan.number}{mutant}"
                ) from None
