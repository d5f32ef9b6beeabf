"""Kills owner, peers and manager a thousand times, at random moments under load.

In each episode, a group of processes (see `sharer`) shares tensors, sends them in
a ring and verifies them. This process, which is not a member, kills one of them while
they work, and checks: the survivors answer within a deadline, every value was right,
and every error belongs to the package or says that another process has ended.

A killed peer is replaced. After a kill of the manager, its clients start a new one. In
both cases all members work again before the next kill. An episode ends when the owner
is killed. At the end the survivors leave or are killed, and within the grace period no
process, no name in `/dev/shm` and no file is left.

The seed decides everything: strategy, start method, channels, load, victim and moment
(a number of operations, and a fraction of a millisecond). It cannot decide how the
kernel schedules, so a failure may need several repetitions.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import records
from group import (
    GRACE,
    OPERATIONS,
    UNTIL_KILLED,
    Group,
    Plan,
    episode_options,
    planned,
    repeatable,
)
from records import NotHeld
from sandbox import Sandbox
from sharedtensor_conformance.harness.private_shm import mount_if_permitted

STRIKES_AT_MOST = 12
LATEST = 0.0015  # seconds from the operation to the kill


@dataclass(frozen=True)
class Strike:
    """One kill: the victim, the operation of a member, and the delay after it."""

    victim: str
    place: int
    operation: int
    delay: float
    seed: int

    @classmethod
    def planned(cls, choose: random.Random, members: int, managed: bool) -> Strike:
        """Return the next kill. Place 0 is the owner, other places are peers."""
        victims = {"peer": 8, "owner": 2} | ({"manager": 4} if managed else {})
        (victim,) = choose.choices(list(victims), list(victims.values()))
        place = 0 if victim == "owner" else choose.randrange(1, members)
        operation = choose.randrange(1, OPERATIONS)
        delay = choose.random() * LATEST
        return cls(victim, place, operation, delay, choose.randrange(1 << 30))


@dataclass(frozen=True)
class Episode:
    """A group and its kills, which depend on the seed and the episode's number."""

    plan: Plan
    strikes: tuple[Strike, ...]

    @classmethod
    def planned(cls, seed: int, number: int) -> Episode:
        """Return the episode of that number."""
        choose = random.Random(f"{seed}/{number}")
        plan = planned(seed, number, choose)
        strikes: list[Strike] = []
        while len(strikes) < STRIKES_AT_MOST:
            strikes.append(Strike.planned(choose, len(plan.channels), plan.is_managed))
            if strikes[-1].victim == "owner":
                break
        return cls(plan, tuple(strikes))


class KilledGroup(Group):
    """A group in which processes are killed."""

    def __init__(self, sandbox: Sandbox, plan: Plan, grace: float, mutant: str) -> None:
        super().__init__(sandbox, plan, grace, mutant)
        self.kills: Counter[str] = Counter()
        self.with_errors: Counter[str] = Counter()

    def carry_out(self, strike: Strike) -> None:
        """Kill a process under load; then all others have to continue to work."""
        errors = self.errors.total()
        self.strike(strike)
        self.collect()
        if strike.victim == "peer":
            self.replace(strike.place)
        self.work_on(strike)
        self.kills[strike.victim] += 1
        self.with_errors[strike.victim] += self.errors.total() > errors

    def strike(self, strike: Strike) -> None:
        """Have all work, and kill the victim at the operation of a member."""
        hits_manager = strike.victim == "manager"
        for place in self.members.keys() - {strike.place}:
            self.order_work(place, strike.seed)
        count = OPERATIONS if hits_manager else UNTIL_KILLED
        words = {"operations": count, "here": strike.operation}
        self.send_order(strike.place, do="work", seed=f"{strike.seed}", **words)
        report = self.receive_report(strike.place)
        assert "here" in report, "a member says where it is before it reports"
        until = time.perf_counter() + strike.delay
        while time.perf_counter() < until:
            pass
        self.kill(*([] if hits_manager else [strike.place]), managers=hits_manager)

    def work_on(self, strike: Strike) -> None:
        """Have the remaining processes work: tensors are made, sent and received."""
        before = self.counts.copy()
        self.work(seed=strike.seed + 1)
        done = self.counts - before
        if len(self.members) > 1 and not (done["make"] and done["received"]):
            raise NotHeld("nothing was received afterwards")
        if strike.victim == "manager":
            self.managers()


def options() -> records.Parser:
    """Return the parser of the command line."""
    parser = records.Parser(__doc__, prog="kills")
    text = "how many processes to kill (default: %(default)s)"
    parser.add_argument("--kills", type=int, default=1000, help=text)
    text = "seconds until nothing may be left (default: %(default)g)"
    parser.add_argument("--grace", type=float, default=GRACE, help=text)
    episode_options(parser)
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run episodes until there were enough kills; return the sentence of what held."""
    totals = {key: Counter() for key in ("kills", "with_errors", "errors", "counts")}
    episodes: Counter[str] = Counter()
    progress = records.Progress(given.kills, "kills")
    record |= {"seed": given.seed, "mutant": given.mutant, "grace": given.grace}
    with Sandbox(mount_if_permitted) as sandbox:
        record["private_shm"] = sandbox.has_private_shm
        while (done := totals["kills"].total()) < given.kills:
            progress.at(done)
            number = episodes.total() if given.only is None else given.only
            episode = Episode.planned(given.seed, number)
            group = KilledGroup(sandbox, episode.plan, given.grace, given.mutant)
            run_episode(group, episode, given)
            episodes[f"{episode.plan.strategy}, {episode.plan.start_method}"] += 1
            for key, total in totals.items():
                total.update(getattr(group, key))
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


def run_episode(
    group: KilledGroup, episode: Episode, given: argparse.Namespace
) -> None:
    """Run an episode. Raises `NotHeld` with the command that repeats it."""
    with repeatable(group, given, "kills") as doing:
        group.start()
        for number, strike in enumerate(episode.strikes, 1):
            doing.append(f"kill {number}, of the {strike.victim}")
            group.carry_out(strike)
        doing.append("the end")
        group.end()


if __name__ == "__main__":
    sys.exit(records.run(None, options(), work))
