"""Removes resources that sharing processes need, and restores them.

In each episode, a group of processes (see `sharer`) shares tensors, sends them in
a ring and verifies them. This process, which is not a member, makes their environment
hostile in several ways, one after another: all are stopped and continued, descriptors
run out, `/dev/shm` is full or replaced, no process can be started while the manager is
killed, the kernel kills a process that needs memory, or all are killed at once as when
a container ends. The mounts and control groups for this belong only to this run.

While a hardship lasts, no process hangs, every value is right, and each error is one of
the package. Afterwards all work again without errors, except for messages that were
lost with their sender or their files. At the end nothing is left.

The seed decides group, order and moment. The wall clock is not changed, because that is
not possible for one group of processes (time_namespaces(7) are for other clocks). The
reference reads only the monotonic clock, which a test of its sources verifies.
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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import cgroups
import recording
from group import (
    DEADLINE,
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
from sharedtensor_conformance.cli.command import positive
from sharedtensor_conformance.harness.kernel.process_tree import (
    SHM,
    has_ended,
    wait_until,
)

IN_AN_EPISODE = 4
SMALL = 1 << 20  # bytes of a `/dev/shm` that is soon full, or of memory
DRAINED = 3  # rounds of work in which affected messages are received
ROUNDS = 5  # minimum of work in a hardship: on a busy machine one takes seconds


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

    def suffer(self, name: str) -> None:
        """Meet a hardship, and work on afterwards."""
        HARDSHIPS[name](self)
        self.work_on()

    def work_while(self, hardship: AbstractContextManager[Any]) -> None:
        """Work during a hardship for its duration, and at least some rounds."""
        until = time.monotonic() + self.hold
        with hardship:
            for done in itertools.count(1):
                self.work(next(self.seeds))
                if done >= ROUNDS and time.monotonic() > until:
                    return

    def work_on(self) -> None:
        """Have all members work; when affected messages are received, nothing may fail.

        Many of them may wait in the ring, as members send more than they receive. A
        tensor that was lost with its file or its sender can also cause an error later,
        in a process that holds a tensor from before and sends it on.
        """
        self.have_all("drain")
        for _ in range(DRAINED):
            self.work(next(self.seeds))
        before, errors = self.counts.copy(), self.errors.copy()
        self.work(next(self.seeds))
        done, seen = self.counts - before, self.errors - errors
        if not (done["make"] and done["received"]):
            raise NotHeld(
                f"when it was over nothing was received: of {dict(done)} and with "
                f"errors {dict(seen)}"
            )
        if seen and not self.forgives:
            raise NotHeld(f"when it was over there were errors: {dict(seen)}")

    def end(self) -> None:
        """End the group; nothing may be left but what was there when all were killed.

        No process was left to remove that. Clause ENV-6.
        """
        for path in self.of_killed:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        super().end()

    def everybody(self) -> list[int]:
        """Return all members, and the manager if there is one."""
        return [*self.pids.values(), *(self.sandbox.managers())]


# The hardships of a group


def all_are_stopped(group: HostileGroup) -> None:
    """All processes are stopped at work, and continued in another order."""
    everybody = group.everybody()
    seed = next(group.seeds)
    for place in group.members:
        group.order_work(place, seed)
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
    """Limit the descriptors of processes to those that are open. Linux, prlimit(2)."""
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
    """`/dev/shm` is full."""
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
    """Another file system is mounted over `/dev/shm`, and unmounted again."""
    group.work_while(other_shm())
    group.forgives = True  # the files that messages name there are gone


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


def out_of_memory(group: HostileGroup) -> None:
    """The kernel kills a peer because its memory limit is exceeded."""
    place = max(group.members)
    victim = group.pids[place]
    with ExitStack() as stack:
        try:
            stack.enter_context(cgroups.limited("memory", SMALL, [victim]))
        except OSError as error:
            raise NotHeld(f"no control group can be made: {error}") from None
        seed = next(group.seeds)
        for other in group.members:
            count = UNTIL_KILLED if other == place else OPERATIONS
            group.order_work(other, seed, count)
        if not wait_until(lambda: has_ended(victim), DEADLINE):
            raise NotHeld("the kernel killed nobody")
        group.pids.pop(place)
        group.members.pop(place).close()
        group.collect()
    group.forgives = True  # its messages are lost with it
    group.replace(place)


def container_ends(group: HostileGroup) -> None:
    """All are killed at once, the manager too; another group starts in their place.

    What they leave behind is there while the next group works, and must not disturb it.
    """
    group.kill(*group.members, managers=True)
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
"""The hardships, by their names in the record."""

NEEDS_MANAGER = ("no processes",)
NEEDS_SHM = ("a full /dev/shm", "another /dev/shm")
NEEDS_GROUPS = {"no processes": "pids", "no memory": "memory"}


def impossible_here(has_private_shm: bool) -> dict[str, str]:
    """Return the hardships that are impossible on this machine, and why."""
    found = {}
    if not has_private_shm:
        why = "this user may not mount a private /dev/shm"
        found |= dict.fromkeys(NEEDS_SHM, why)
    for name, controller in NEEDS_GROUPS.items():
        if why := cgroups.why_not(controller):
            found[name] = why
    return found


def drawn(seed: int, number: int, impossible: dict[str, str]) -> tuple[Plan, list[str]]:
    """Return the group of an episode, and its hardships in order."""
    choose = random.Random(f"{seed}/{number}")
    plan = planned(seed, number, choose)
    possible = [
        name
        for name in HARDSHIPS
        if name not in impossible and (plan.is_managed or name not in NEEDS_MANAGER)
    ]
    return plan, [choose.choice(possible) for _ in range(IN_AN_EPISODE)]


def options() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(__doc__, prog="hostile")
    add = parser.add_argument
    text = "how many episodes to run (default: %(default)s)"
    add("--episodes", type=positive(int), default=60, help=text)
    text = "how long each hardship lasts (default: %(default)g)"
    add("--hold", type=float, default=1.0, metavar="SECONDS", help=text)
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Run the episodes; return the sentence of what held."""
    with Sandbox() as sandbox:
        impossible = impossible_here(sandbox.has_private_shm)

        def episode(number: int) -> tuple[Group, Iterator[Any]]:
            plan, chosen = drawn(given.seed, number, impossible)
            group = HostileGroup(sandbox, plan, given.hold, given.mutant)
            return group, ((name, partial(group.suffer, name)) for name in chosen)

        record |= {"hold": given.hold, "not_done": impossible}
        episodes = Troubles("hostile", "hardships", given.episodes, True, episode)
        count = episodes.meet(given, record)
    return (
        f"{sum(record['hardships'].values())} times in {count} episodes something was "
        f"taken away and given back: nobody hung, all {record['counts']['received']} "
        "messages that were received were right, all worked on, and nothing was left."
    )


if __name__ == "__main__":
    sys.exit(recording.run(None, options(), work))
