"""Takes from processes that share what they need, and gives it back.

In each episode a group (see `kills_group`) shares, sends in a ring and verifies, while
this process, which is not one of them, makes their environment hostile in one way after
another: everybody is stopped and continued, descriptors run out, `/dev/shm` is full or
is another one, no process can be started while the manager is killed, the kernel kills
one for want of memory, or all are killed at once as when a container ends. What is made
for that, mounts and control groups, belongs to this run alone.

While it lasts nobody hangs, every value is right, and an error is one of the package's
own. When it is over everybody works again; but for messages that were lost with their
sender or their files, without any error. In the end nothing is left.

The seed decides group, order and moment. The wall clock cannot be changed for one
group of processes (time_namespaces(7) are for other clocks), so it is not: the
reference reads the monotonic clock alone, which a test of its sources verifies.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import cgroups
import records
from group import DEADLINE, GRACE, OPERATIONS, UNTIL_KILLED, Group, Plan, planned
from records import NotHeld
from sandbox import Sandbox
from sharedtensor_conformance.harness.process_tree import SHM, has_ended, wait_until

IN_AN_EPISODE = 4
SMALL = 1 << 20  # bytes of a `/dev/shm` that is soon full, or of memory
DRAINED = 3  # rounds of work in which what was hit before is received
ROUNDS = 5  # of work in a hardship at least: on a busy machine one takes seconds


class HostileGroup(Group):
    """A group whose environment is made hostile."""

    def __init__(
        self, sandbox: Sandbox, plan: Plan, hold: float, mutant: str = ""
    ) -> None:
        super().__init__(sandbox, plan, GRACE, mutant)
        self.hold = hold
        self.seeds = iter(range(1, 1 << 30))
        self.forgives = False
        self.of_killed: list[Path] = []
        self.done: Counter[str] = Counter()

    def run(self, hardships: list[str]) -> None:
        """Start the group, let it meet the hardships, end it. Raises `NotHeld`."""
        with self:
            doing = "its start"
            try:
                self.start()
                for doing in hardships:
                    HARDSHIPS[doing](self)
                    self.work_on()
                    self.done[doing] += 1
                self.end()
            except NotHeld as error:
                raise NotHeld(f"at {doing}: {error}{self.end_of_log()}") from None

    def work_while(self, hardship: AbstractContextManager[Any]) -> None:
        """Work on during a hardship, as long as one is to last, and some rounds."""
        until = time.monotonic() + self.hold
        with hardship:
            for done in itertools.count(1):
                self.work(next(self.seeds))
                if done >= ROUNDS and time.monotonic() > until:
                    return

    def work_on(self) -> None:
        """Let everybody work: what was hit is received, then all is as it was.

        What was lost with its file or its sender can be met later too, by whoever
        holds a tensor that came before and sends it on.
        """
        for _ in range(DRAINED):
            self.work(next(self.seeds))
        before, errors = self.counts.copy(), self.errors.copy()
        self.work(next(self.seeds))
        done, seen = self.counts - before, self.errors - errors
        if not (done["make"] and done["received"]):
            raise NotHeld("when it was over nothing was received")
        if seen and not self.forgives:
            raise NotHeld(f"when it was over there were errors: {dict(seen)}")

    def end(self) -> None:
        """End the group; nothing may be left but what was there when all were killed.

        Nobody was there to remove that. Clause ENV-6.
        """
        for path in self.of_killed:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        super().end()

    def everybody(self) -> list[int]:
        """Return all members, and the manager where there is one."""
        return [*self.pids.values(), *(self.sandbox.managers())]


# What is done to a group


def all_are_stopped(group: HostileGroup) -> None:
    """Everybody is stopped at work, and continued in another order."""
    everybody = group.everybody()
    for place in group.members:
        words = {"do": "work", "operations": OPERATIONS}
        group.send_order(place, **words, seed=f"{next(group.seeds)}/{place}")
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    try:
        stopped = time.monotonic() + group.hold
        wait_until(lambda: time.monotonic() > stopped, 2 * group.hold)
    finally:
        for pid in reversed(everybody):
            os.kill(pid, signal.SIGCONT)
    group.collect()


def no_descriptors(group: HostileGroup) -> None:
    """No member can open one more descriptor than it has."""
    group.work_while(without_descriptors(list(group.pids.values())))


@contextmanager
def without_descriptors(pids: list[int]) -> Iterator[None]:
    """Take from processes the room for more descriptors. Linux, prlimit(2)."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
    try:
        for pid, (_, hard) in before.items():
            highest = max(map(int, os.listdir(f"/proc/{pid}/fd")))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1, hard))
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def shm_is_full(group: HostileGroup) -> None:
    """There is no room left in `/dev/shm`."""
    group.work_while(full_shm())


@contextmanager
def full_shm() -> Iterator[None]:
    """Fill this run's own `/dev/shm`."""
    used = os.statvfs(SHM)
    size = (used.f_blocks - used.f_bfree) * used.f_frsize + SMALL
    filler = Path(SHM, f"sts-filler-{os.getpid()}")
    mount("-o", f"remount,size={size}", SHM)
    try:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        yield
    finally:
        filler.unlink()
        mount("-o", "remount,size=50%", SHM)


def shm_is_another(group: HostileGroup) -> None:
    """Another `/dev/shm` lies over the one that has the names, and goes again."""
    group.work_while(other_shm())
    group.forgives = True  # a message that named a file there finds it no more


@contextmanager
def other_shm() -> Iterator[None]:
    """Mount an empty tmpfs over this run's own `/dev/shm`."""
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", SHM)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", SHM], check=True)


def mount(*arguments: str) -> None:
    """Call mount(8), in the namespace of this run."""
    subprocess.run(["mount", *arguments], check=True)


def no_processes(group: HostileGroup) -> None:
    """The manager is killed, and no process can be started in its place."""
    members = list(group.pids.values())
    tasks = sum(len(os.listdir(f"/proc/{pid}/task")) for pid in members)
    with ExitStack() as stack:
        stack.enter_context(cgroups.limited("pids", tasks, members))
        for manager in group.sandbox.managers():
            os.kill(manager, signal.SIGKILL)
        group.work_while(ExitStack())
    group.forgives = True  # what the killed manager alone knew may be gone


def out_of_memory(group: HostileGroup) -> None:
    """The kernel kills a peer, since it has no memory for it."""
    place = max(group.members)
    victim = group.pids[place]
    with ExitStack() as stack:
        try:
            stack.enter_context(cgroups.limited("memory", SMALL, [victim]))
        except OSError as error:
            raise NotHeld(f"no control group can be made: {error}") from None
        for other in group.members:
            count = UNTIL_KILLED if other == place else OPERATIONS
            words = {"do": "work", "operations": count}
            group.send_order(other, **words, seed=f"{next(group.seeds)}/{other}")
        if not wait_until(lambda: has_ended(victim), DEADLINE):
            raise NotHeld("the kernel killed nobody")
        group.pids.pop(place)
        group.members.pop(place).close()
        group.collect()
    group.forgives = True  # messages of its sender are lost with it
    group.send_order(0, do="replace", vacant=place)
    group.accept_member()


def container_ends(group: HostileGroup) -> None:
    """All are killed at once, the manager too; another group starts in their place.

    What they leave is there while the next group works: it must not be in its way.
    """
    killed = group.everybody()
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not wait_until(lambda: all(map(has_ended, killed)), DEADLINE):
        raise NotHeld("not all of them died")
    for connection in group.members.values():
        connection.close()
    group.members.clear()
    group.pids.clear()
    names = (Path(SHM, name) for name in group.sandbox.names())
    group.of_killed += [*names, *group.sandbox.folder.iterdir()]
    group.start()


HARDSHIPS: dict[str, Callable[[HostileGroup], None]] = {
    "everybody is stopped": all_are_stopped,
    "no descriptors": no_descriptors,
    "a full /dev/shm": shm_is_full,
    "another /dev/shm": shm_is_another,
    "no processes": no_processes,
    "no memory": out_of_memory,
    "the end of the container": container_ends,
}
"""What can be done to a group, by what it is called in the record."""

NEEDS_MANAGER = ("no processes",)
NEEDS_SHM = ("a full /dev/shm", "another /dev/shm")
NEEDS_GROUPS = {"no processes": "pids", "no memory": "memory"}


def impossible_here(has_private_shm: bool) -> dict[str, str]:
    """Return what cannot be done on this machine, and why."""
    found = {}
    if not has_private_shm:
        why = "this user may not have a /dev/shm of its own"
        found |= dict.fromkeys(NEEDS_SHM, why)
    for name, controller in NEEDS_GROUPS.items():
        if why := cgroups.why_not(controller):
            found[name] = why
    return found


def drawn(seed: int, number: int, impossible: dict[str, str]) -> tuple[Plan, list[str]]:
    """Return the group of an episode, and what it meets in which order."""
    choose = random.Random(f"{seed}/{number}")
    plan = planned(seed, number, choose)
    possible = [
        name
        for name in HARDSHIPS
        if name not in impossible and (plan.is_managed or name not in NEEDS_MANAGER)
    ]
    return plan, [choose.choice(possible) for _ in range(IN_AN_EPISODE)]


def options() -> records.Parser:
    """Return the parser of the command line."""
    parser = records.Parser(__doc__, prog="hostile")
    parser.add_argument("--episodes", type=records.positive, default=60)
    parser.add_argument(
        "--hold",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="how long something is taken away (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", type=int, metavar="EPISODE", help="run this episode alone"
    )
    parser.add_argument(
        "--mutant", default="", help="break the reference first: the run has to fail"
    )
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run the episodes; return what holds."""
    hardships: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    numbers = range(given.episodes) if given.only is None else (given.only,)
    progress = records.Progress(len(numbers), "episodes")
    record |= {"seed": given.seed, "hold": given.hold, "mutant": given.mutant}
    with Sandbox() as sandbox:
        impossible = impossible_here(sandbox.has_private_shm)
        record["not_done"] = impossible
        for done, number in enumerate(numbers):
            progress.at(done)
            plan, chosen = drawn(given.seed, number, impossible)
            group = HostileGroup(sandbox, plan, given.hold, given.mutant)
            run_episode(group, chosen, given)
            hardships.update(group.done)
            errors.update(group.errors)
            counts.update(group.counts)
            record |= {"hardships": dict(hardships), "errors": dict(errors)}
    progress.end()
    return (
        f"{hardships.total()} times in {len(numbers)} episodes something was taken "
        f"away and given back: nobody hung, all {counts['received']} messages that "
        "were received were right, all worked on, and nothing was left."
    )


def run_episode(
    group: HostileGroup, chosen: list[str], given: argparse.Namespace
) -> None:
    """Run an episode. Raises `NotHeld` with the command that repeats it."""
    plan = group.plan
    try:
        group.run(chosen)
    except NotHeld as error:
        mutant = f" --mutant {given.mutant}" if given.mutant else ""
        raise NotHeld(
            f"In episode {plan.number} ({plan.strategy}, {plan.start_method}) {error}"
            f"\nRepeat it with: python soak/hostile.py --seed {given.seed} --only "
            f"{plan.number}{mutant}"
        ) from None


if __name__ == "__main__":
    sys.exit(records.run(None, options(), work))
