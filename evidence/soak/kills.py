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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import recording
from group import (
    GRACE,
    OPERATIONS,
    UNTIL_KILLED,
    Group,
    Parser,
    Plan,
    Troubles,
    planned,
)
from recording import NotHeld
from sandbox import Sandbox
from sharedtensor_conformance.harness.kernel.private_shm import mount_if_permitted

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


def episode(seed: int, number: int) -> tuple[Plan, list[Strike]]:
    """Return the group of an episode, and the kills in it."""
    choose = random.Random(f"{seed}/{number}")
    plan = planned(seed, number, choose)
    strikes: list[Strike] = []
    while len(strikes) < STRIKES_AT_MOST:
        strikes.append(Strike.planned(choose, len(plan.channels), plan.is_managed))
        if strikes[-1].victim == "owner":
            break
    return plan, strikes


def carry_out(group: Group, strike: Strike) -> None:
    """Kill a process under load; then all others have to continue to work."""
    kill_at_work(group, strike)
    group.collect()
    if strike.victim == "peer":
        group.replace(strike.place)
    before = group.counts.copy()
    group.work(strike.seed + 1)
    done = group.counts - before
    if len(group.members) > 1 and not (done["make"] and done["received"]):
        raise NotHeld("nothing was received afterwards")
    if strike.victim == "manager":
        group.managers()


def kill_at_work(group: Group, strike: Strike) -> None:
    """Have all work, and kill the victim at the operation of a member."""
    hits_manager = strike.victim == "manager"
    for place in group.members.keys() - {strike.place}:
        group.order_work(place, strike.seed)
    count = OPERATIONS if hits_manager else UNTIL_KILLED
    words = {"operations": count, "here": strike.operation}
    group.send_order(strike.place, do="work", seed=f"{strike.seed}", **words)
    report = group.receive_report(strike.place)
    assert "here" in report, "a member says where it is before it reports"
    until = time.perf_counter() + strike.delay
    while time.perf_counter() < until:
        pass
    group.kill(*([] if hits_manager else [strike.place]), managers=hits_manager)


def options() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(__doc__, prog="kills")
    text = "how many processes to kill (default: %(default)s)"
    parser.add_argument("--kills", type=int, default=1000, help=text)
    text = "seconds until nothing may be left (default: %(default)g)"
    parser.add_argument("--grace", type=float, default=GRACE, help=text)
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run episodes until there were enough kills; return the sentence of what held."""
    with Sandbox(mount_if_permitted) as sandbox:

        def killed(number: int) -> tuple[Group, Iterator[Any]]:
            plan, strikes = episode(given.seed, number)
            group = Group(sandbox, plan, given.grace, given.mutant)
            return group, ((s.victim, partial(carry_out, group, s)) for s in strikes)

        record |= {"grace": given.grace, "private_shm": sandbox.has_private_shm}
        episodes = Troubles("kills", "kills", given.kills, False, killed)
        count = episodes.meet(given, record)
    return (
        f"{sum(record['kills'].values())} kills in {count} episodes: no survivor "
        f"hung, all {record['counts']['received']} messages that were received were "
        "right, and nothing was left."
    )


if __name__ == "__main__":
    sys.exit(recording.run(None, options(), work))
