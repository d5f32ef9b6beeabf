"""Kills owner, peers and manager a thousand times, at random moments under load.

In each episode, a group of processes (see `kills_group`) shares tensors, sends them in
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
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import records
from group import DEADLINE, GRACE, OPERATIONS, UNTIL_KILLED, Group, Plan, planned
from records import NotHeld
from sandbox import Sandbox
from sharedtensor_conformance.harness.private_shm import mount_if_permitted
from sharedtensor_conformance.harness.process_tree import has_ended, wait_until

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

    def run(self, strikes: Sequence[Strike]) -> None:
        """Start the group, carry out the kills, end it. Raises `NotHeld`."""
        with self:
            try:
                self.start()
                for strike in strikes:
                    self.carry_out(strike)
                self.end()
            except NotHeld as error:
                raise NotHeld(f"{error}{self.end_of_log()}") from None

    def carry_out(self, strike: Strike) -> None:
        """Kill a process under load; then all others have to continue to work."""
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
        """Wait until a member has reached the operation of a kill, and the delay."""
        report = self.receive_report(strike.place)
        assert "here" in report, "a member says where it is before it reports"
        until = time.perf_counter() + strike.delay
        while time.perf_counter() < until:
            pass

    def kill_victim(self, strike: Strike) -> None:
        """Kill the victim and wait for its end."""
        if strike.victim == "manager":
            victims = self.managers()
        else:
            victims = [self.pids.pop(strike.place)]
            self.members.pop(strike.place).close()
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        if not wait_until(lambda: all(map(has_ended, victims)), DEADLINE):
            raise NotHeld(f"the {strike.victim} did not die")

    def work_on(self, strike: Strike) -> None:
        """Have the remaining processes work: tensors are made, sent and received."""
        before = self.counts.copy()
        self.work(seed=strike.seed + 1)
        done = self.counts - before
        if len(self.members) > 1 and not (done["make"] and done["received"]):
            raise NotHeld(f"after the {strike.victim} was killed nothing was received")
        if strike.victim == "manager":
            self.managers()


def options() -> records.Parser:
    """Return the parser of the command line."""
    parser = records.Parser(__doc__, prog="kills")
    text = "how many processes to kill (default: %(default)s)"
    parser.add_argument("--kills", type=int, default=1000, help=text)
    text = "the seed of all random choices (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=1, help=text)
    parser.add_argument(
        "--only", type=int, metavar="EPISODE", help="run only this episode"
    )
    text = "seconds until nothing may be left (default: %(default)g)"
    parser.add_argument("--grace", type=float, default=GRACE, help=text)
    text = "apply this mutant to the reference; the run then has to fail"
    parser.add_argument("--mutant", default="", help=text)
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
    plan = episode.plan
    try:
        group.run(episode.strikes)
    except NotHeld as error:
        mutant = f" --mutant {given.mutant}" if given.mutant else ""
        raise NotHeld(
            f"In episode {plan.number} ({plan.strategy}, {plan.start_method}, after "
            f"{group.kills.total()} kills) {error}\nRepeat it with: python "
            f"soak/kills.py --seed {given.seed} --only {plan.number}{mutant}"
        ) from None


if __name__ == "__main__":
    sys.exit(records.run(None, options(), work))
