"""A stage: one owner with its peers and their supervisor, for one configuration.

The controller's side of the harness. It starts processes with a deadline, knows how
they ended, and ends them all. Actors start when a test first asks them for something.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness import wire
from sharedtensor_conformance.harness.checks import wait_until
from sharedtensor_conformance.harness.matrix import Configuration
from sharedtensor_conformance.harness.outcomes import (
    ActorDied,
    CheckFailed,
    DeadlineExceeded,
    HarnessFault,
    NotRun,
    RemoteRaised,
)
from sharedtensor_conformance.harness.proxies import ActorProxy, Remote
from sharedtensor_conformance.harness.setting import Setting
from sharedtensor_conformance.harness.supervisor_client import Supervisor, last_line

SETTLING = 2.0
"""Seconds that processes which live on get to let go of what they dropped."""

STANDING = ("peer", "bystander")
"""The peers that are reused between cases."""


LINGERING = 10.0
"""Seconds that a process gets to end when its connection is closed."""

NO_PID = (errno.EINVAL, errno.ENOENT)
"""How the kernel calls the number of a thread, or one that nothing has."""

UNANSWERED = (ActorDied, DeadlineExceeded, HarnessFault, RemoteRaised)
"""What comes of asking a process that cannot answer."""


def _told(actor: ActorProxy) -> str:
    return f"the implementation says that {actor.name} has the pid {actor.pid}"


def _signal_name(number: int) -> str:
    """Return the name of a signal; those for real-time use have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass
class Growth:
    """What the ledger shows more of than it did.

    `items` are what clause LIFE-7 names, and processes; `use` is what LIFE-12 names.
    """

    items: list[str] = field(default_factory=list)
    use: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.items or self.use)

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys(self.items + self.use))

    def add_counts(self, who: str, held: dict[str, Any], was: dict[str, Any]) -> None:
        """Compare the counts of a process with those that it had."""
        named = (
            (self.items, ("descriptors", "mappings")),
            (self.use, ("threads", "sockets")),
        )
        for found, kinds in named:
            for what in kinds:
                if (more := held[what] - was[what]) > 0:
                    found.append(f"{who} has {more} more {what}")


class Stage:
    """An owner, its peers, and the supervisor of them all."""

    def __init__(
        self, name: str, implementation: Implementation, configuration: Configuration
    ) -> None:
        self.name = name
        self.implementation = implementation
        self.configuration = configuration
        self.owner = ActorProxy(self, "owner")
        self.peer = ActorProxy(self, "peer")
        self.bystander = ActorProxy(self, "bystander")
        self.extra: list[ActorProxy] = []
        self.plays: list[Stage] = []
        self.supervisor: Supervisor | None = None
        self.folder: Path | None = None
        self.in_flight = 0
        self.numbers = 0
        self.baseline: dict[str, Any] = {}
        self.enter = True
        self.environment: dict[str, str] = {}
        self.is_play = False
        self.alone = False
        self.private = False
        self.leaks: dict[str, list[str]] = {"LIFE-7": [], "LIFE-12": []}
        self.deadline = implementation.deadline

    # Time

    @property
    def grace(self) -> float:
        """Seconds after which everything that was dropped has to be gone."""
        return self.implementation.grace

    @property
    def patience(self) -> float:
        """Seconds that a process may take to start."""
        return self.implementation.patience

    def until(self, deadline: float = 0.0) -> float:
        """Return the moment by which an answer has to be there."""
        return time.monotonic() + (deadline or self.deadline)

    def next_number(self) -> int:
        """Return a number that this stage has not used."""
        self.numbers += 1
        return self.numbers

    # Start

    def ensure(self, actor: ActorProxy) -> None:
        """Start the actor if it has not been started.

        Raises:
            NotRun: the configuration cannot run here.
            ActorDied, DeadlineExceeded, RemoteRaised: it could not be started.
        """
        if self.supervisor is None:
            self._start_owner()
        if actor.wire is None and actor.name in STANDING and not actor.pid:
            self._start_standing(actor)

    def _start_owner(self) -> None:
        self.folder = Path(wire.folder_for_sockets())
        temporary = self.folder / "t"
        temporary.mkdir()
        control = self.folder / "c"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(control))
        self.listener.listen(16)
        setting = Setting(
            self.name,
            self.configuration.strategy,
            self.implementation.channels,
            str(control),
        )
        environment = os.environ | setting.environment() | {"TMPDIR": str(temporary)}
        environment |= self.environment
        environment.setdefault("OMP_NUM_THREADS", "1")
        owner = "sharedtensor_conformance.harness.owner"
        self.supervisor = Supervisor(
            {
                "argv": [sys.executable, "-m", owner],
                "environment": environment,
                "root": str(self.folder),
                "folder": str(temporary),
                "log": str(self.folder / "log"),
                "pattern": self.implementation.segment_pattern,
                "manager": self.implementation.manager_pattern,
                "private": True,
            },
            self.patience,
        )
        hello = self.supervisor.ask("hello")
        self.private = hello["private"]
        self._meet(self.owner, hello["owner"], self.enter)
        self._use_device(self.owner)
        names = ("owner", *STANDING)
        pairs = [[a, b] for i, a in enumerate(names) for b in names[i + 1 :]]
        self.owner.exchange("make_links", pairs, self.configuration.start_method)
        forks = self.is_play and self.configuration.start_method == "fork"
        if forks and not self.alone:
            # Before the owner has tensors: a forked child would inherit them.
            for actor in (self.peer, self.bystander):
                self._start_standing(actor)

    def _start_standing(self, actor: ActorProxy) -> None:
        self._start(actor, None, self.configuration.start_method)
        if not self.is_play:  # a play has no ledger, and whom it makes a client counts
            self._warm(actor)
        self.baseline = {}  # taken anew when the case that needed it has ended

    def _start(
        self, actor: ActorProxy, arguments: Any, method: str, enter: bool = True
    ) -> None:
        started = self.owner.exchange(
            "start_peer", actor.name, method, arguments, deadline=self.patience
        )
        self._meet(actor, started, enter)
        if method != "fork":
            self._use_device(actor)

    def _meet(self, actor: ActorProxy, pid: int, enter: bool = True) -> None:
        """Accept the connection of a process that was just started, and prepare it."""
        actor.pid = pid
        actor.pidfd = self._pidfd_of(actor)
        if self.supervisor and not self.private:
            self.supervisor.ask(
                "saw", pid=pid
            )  # names that it makes are known by its pid
        actor.wire = self._accept(actor, time.monotonic() + self.patience)
        if actor is not self.owner:  # which no implementation has started
            self._identify(actor)
        actor.exchange("prepare", enter, deadline=self.patience)

    def _pidfd_of(self, actor: ActorProxy) -> int:
        try:
            return os.pidfd_open(actor.pid)
        except ProcessLookupError:  # a fork server reaps at once
            raise ActorDied(f"{actor.name} ended while it was started") from None
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno not in NO_PID:
                raise
            raise CheckFailed(f"{_told(actor)}, which no process has") from None

    def _identify(self, actor: ActorProxy) -> None:
        """See that an actor is a process of its own, and the one that was told.

        In the process of another it would share everything and prove nothing.

        Raises:
            CheckFailed: it is not.
        """
        assert actor.wire is not None, "it was accepted"
        pid = actor.wire.process()
        for other in (self.owner, self.peer, self.bystander, *self.extra):
            if other is not actor and other.pid == pid and other.is_alive():
                raise CheckFailed(
                    f"{actor.name} is no process of its own: it runs in the process of "
                    f"{other.name} (pid {pid})"
                )
        if pid != actor.pid:
            raise CheckFailed(f"{_told(actor)}, but it has {pid}")

    def _accept(self, actor: ActorProxy, deadline: float) -> wire.Wire:
        self.listener.settimeout(0.05)
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                connection, _ = self.listener.accept()
                connection.settimeout(None)
                arrived = wire.Wire(connection)
                arrived.limit_sending(self.patience)
                with contextlib.suppress(wire.WireClosed, wire.WireTimeout):
                    if arrived.receive(deadline).get("name") == actor.name:
                        return arrived
                arrived.close()
            if self.has_ended(actor):
                raise ActorDied(self.how_it_ended(actor, "start"))
        raise DeadlineExceeded(f"{actor.name} did not start within {self.patience:g} s")

    def _use_device(self, actor: ActorProxy) -> None:
        device = self.configuration.device
        if device == "cpu":
            return
        if why := actor.exchange("operate", "device_unavailable", device):
            raise NotRun(why)
        actor.exchange("operate", "use_device", device, deadline=self.patience)

    def _warm(self, peer: ActorProxy) -> None:
        """Use everything once that is made lazily, so that the ledger has seen it.

        Threads that feed queues, sockets that hand out descriptors, and managers are
        made at the first use and kept; they are no leaks.
        """
        others = [actor for actor in self.standing() if actor is not peer]
        for channel in self.implementation.channels:
            for other in others:
                self._cross(other, peer, channel)
        if "strategies" in self.implementation.claims:
            for strategy in reversed(self.implementation.strategies):
                self._cross_under(strategy, others[0], peer)
        self.in_flight = 0

    def _cross(self, one: ActorProxy, other: ActorProxy, channel: str) -> None:
        for sender, receiver in ((one, other), (other, one)):
            with contextlib.suppress(RemoteRaised):
                tensor = self._made(sender)
                sender.send(tensor, receiver, channel).drop()
                tensor.drop()

    def _made(self, actor: ActorProxy) -> Remote:
        """Return a new tensor where the tensors of this configuration live."""
        if self.configuration.device == "cpu":
            return actor.make([1, 0, 1], None, self.implementation.dtypes[0])
        made: Remote = actor.make_on_device([1, 0, 1], "float32")
        return made

    def _cross_under(self, strategy: str, one: ActorProxy, other: ActorProxy) -> None:
        """Cross under another strategy; the configuration's own is the last."""
        own = self.configuration.strategy
        with contextlib.suppress(RemoteRaised):
            for actor in (one, other):
                actor.module("set_sharing_strategy", strategy)
            self._cross(one, other, self.implementation.channels[0])
        for actor in (one, other):
            actor.module("set_sharing_strategy", own)

    def start_peer(
        self, arguments: Any, method: str | None, enter: bool = True
    ) -> ActorProxy:
        """Start a peer for one case, with channels of its own."""
        with self.peer_made(arguments, method, enter) as actor:
            return actor

    @contextlib.contextmanager
    def peer_made(
        self, arguments: Any = None, method: str | None = None, enter: bool = True
    ) -> Iterator[ActorProxy]:
        """Make a peer for one case; it is started when the block is left."""
        self.ensure(self.owner)
        actor = ActorProxy(self, f"child-{self.next_number()}")
        method = method or self.configuration.start_method
        self.owner.exchange("make_links", [["owner", actor.name]], method)
        self.owner.exchange("make_peer", actor.name, method, arguments)
        yield actor
        self.extra.append(actor)
        self._start(actor, arguments, method, enter)

    @contextlib.contextmanager
    def fresh(
        self,
        enter: bool = True,
        environment: dict[str, str] | None = None,
        alone: bool = False,
    ) -> Iterator[Stage]:
        """A stage of its own, for tests about the birth and death of everybody.

        Where `enter` is false the adapter's `enter_child` is not called in its owner.
        Its processes have the variables of `environment` besides, such as ``TMPDIR``.
        Its owner is `alone` where no child may have made it start a manager.
        """
        play = Stage(self.name, self.implementation, self.configuration)
        play.enter = enter
        play.environment = environment or {}
        play.is_play = True
        play.alone = alone
        self.plays.append(play)
        try:
            yield play
        finally:
            play.close()
            self.plays.remove(play)

    # Ends

    def has_ended(self, actor: ActorProxy) -> bool:
        """Tell whether the actor's process has ended."""
        poller = select.poll()
        poller.register(actor.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def how_it_ended(self, actor: ActorProxy, doing: str) -> str:
        """Return a sentence that says how a process ended; it is not used again."""
        if actor.wire and (why := actor.wire.garbled):  # it has not: it is of no use
            actor.wire.close()
            actor.wire = None
            return f"{actor.name} answered nonsense when it was asked to {doing}: {why}"
        how, words = self._end_of(actor)
        return f"{actor.name} {how} while it was asked to {doing}{words}"

    def _end_of(self, actor: ActorProxy) -> tuple[str, str]:
        """Return how a process ended, and what was printed last if it went wrong."""
        status: int | None = None
        with contextlib.suppress(*UNANSWERED):  # the owner cannot say either
            status = self.wait_end(actor, min(LINGERING, self.patience))
        if not self.has_ended(actor):
            how = "closed its connection to the suite"
        elif status is None:
            how = "ended"
        elif status < 0:
            how = f"died of {_signal_name(-status)}"
        else:
            how = f"exited with status {status}"
        said = self.folder and status and last_line(self.folder / "log")
        return how, f" (printed last: {said})" if said else ""

    def late(self, actor: ActorProxy, doing: str, deadline: float) -> Exception:
        """Return what it means that an actor gave no answer.

        Who waits for a process that has died is no cause: a queue's thread, say, takes
        its process with it when nobody talks to that one.
        """
        late = f"{actor.name} gave no answer within {deadline:g} s to: {doing}"
        for other in (*self.standing(), *self.extra):
            if other is not actor and other.wire and self.has_ended(other):
                how, words = self._end_of(other)
                return ActorDied(f"{late}; {other.name} {how} meanwhile{words}")
        return DeadlineExceeded(late)

    def wait_end(self, actor: ActorProxy, within: float = LINGERING) -> int | None:
        """Wait for the process's end and let its parent reap it; return the status."""
        wait_until(lambda: self.has_ended(actor), within)
        if actor.wire:
            actor.wire.close()
            actor.wire = None
        supervisor = self.supervisor
        if supervisor is None:
            return None
        status: int | None = None
        if actor is self.owner:
            wait_until(lambda: supervisor.ask("status") is not None, within)
            status = supervisor.ask("status")
        elif self.owner.is_alive():
            patience = within + self.deadline
            status = self.owner.exchange("join", actor.name, within, deadline=patience)
        return status

    def leave(self, actor: ActorProxy) -> int | None:
        """Let a process end normally; return its exit status."""
        self.ensure(actor)
        actor.exchange("leave")
        if not wait_until(lambda: self.has_ended(actor), self.deadline):
            raise DeadlineExceeded(
                f"{actor.name} did not exit within {self.deadline:g} s"
            )
        return self.wait_end(actor)

    def leave_all(self) -> None:
        """Let all standing processes end normally, the owner last."""
        for actor in reversed(self.standing()):
            self.leave(actor)

    def abandon(self) -> None:
        """Kill everything, from any thread: what waits for these processes ends."""
        for stage in (*self.plays, self):
            if supervisor := stage.supervisor:
                supervisor.abandon()

    def close(self) -> None:
        """End everything and leave nothing behind."""
        for play in list(self.plays):
            play.close()
        for actor in (self.owner, self.peer, self.bystander, *self.extra):
            if actor.wire:
                actor.wire.close()
                actor.wire = None
            if actor.pidfd >= 0:
                os.close(actor.pidfd)
                actor.pidfd = -1
        if self.supervisor:
            self.supervisor.close()
            self.listener.close()
            self.supervisor = None
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    # Between cases

    def standing(self) -> list[ActorProxy]:
        """Return the actors that run and are reused."""
        actors = (self.owner, self.peer, self.bystander)
        return [actor for actor in actors if actor.wire]

    def drop_all(self) -> None:
        """Drop every tensor of the standing actors."""
        for actor in self.standing():
            actor.exchange("drop_all")

    def end_extra(self) -> None:
        """End the peers that were started for one case."""
        while self.extra:
            actor = self.extra[-1]  # until it has ended, for `close`
            if actor.is_alive():
                self.leave(actor)
            if self.owner.is_alive():
                self.owner.exchange("forget_links", actor.name)
            if actor.pidfd >= 0:
                os.close(actor.pidfd)
                actor.pidfd = -1
            self.extra.remove(actor)

    def settle(self) -> Growth:
        """Clean up after a case; return what the ledger shows more of than before.

        A process that a test kills cannot remove its temporary files: those of cases
        that start processes of their own do not count.
        """
        counts_files = not self.extra
        self.end_extra()
        self.drop_all()
        if not self.baseline:
            self.rebase()
        seen = [Growth()]

        def quiet() -> bool:
            seen[0] = self._growth(counts_files)
            return not seen[0]

        if not wait_until(quiet, min(self.grace, SETTLING)):
            self.rebase()
        elif not counts_files:
            self.baseline["files"] = self.ledger()["files"]
        return seen[0]

    def note(self, case: str, growth: Growth) -> None:
        """Hold what stayed after a case against the clauses that name it."""
        for id, items in (("LIFE-7", growth.items), ("LIFE-12", growth.use)):
            if items:
                self.leaks[id].append(f"after {case}: {'; '.join(items)}")

    # The ledger

    def ledger(self) -> dict[str, Any]:
        """Return what all processes of the stage hold."""
        assert self.supervisor is not None
        found: dict[str, Any] = self.supervisor.ask("ledger")
        return found

    def rebase(self) -> None:
        """Compare with what is there now from here on."""
        self.baseline = self.ledger()

    def _growth(self, counts_files: bool = True) -> Growth:
        now, before = self.ledger(), self.baseline
        growth = Growth()
        for pid, held in now["processes"].items():
            was = before["processes"].get(pid)
            who = self._who(int(pid), held)
            if was is None:
                growth.items.append(f"the process {who} is there")
                growth.use.append(growth.items[-1])
            else:
                growth.add_counts(who, held, was)
        new = sorted(set(now["segments"]) - set(before["segments"]))
        growth.items += [f"the segment {name} is left" for name in new[:5]]
        if counts_files:
            new = sorted(set(now["files"]) - set(before["files"]))
            growth.use += [f"the temporary file {name} is left" for name in new[:5]]
        return growth

    def _who(self, pid: int, held: dict[str, Any]) -> str:
        names = {a.pid: a.name for a in (self.owner, self.peer, self.bystander)}
        return names.get(pid) or f"{pid} ({held['command'][:80]})"

    def segments(self) -> set[str]:
        """Return the names of the implementation's files in ``/dev/shm``."""
        return set(self.ledger()["segments"])

    def segment_status(self, name: str) -> dict[str, int]:
        """Return mode, uid and size of one of them."""
        assert self.supervisor is not None
        found: dict[str, int] = self.supervisor.ask("segment", name=name)
        return found

    @contextlib.contextmanager
    def little_shm(self, spare: int) -> Iterator[None]:
        """Leave only `spare` bytes free in ``/dev/shm`` for a while.

        Raises:
            NotRun: the ``/dev/shm`` is not the stage's own.
        """
        self.ensure(self.owner)
        assert self.supervisor is not None
        if not self.private:
            raise NotRun("without a /dev/shm of its own the suite cannot fill it")
        self.supervisor.ask("limit_shm", spare=spare)
        try:
            yield
        finally:
            if self.supervisor:
                self.supervisor.ask("limit_shm", spare=None)

    def as_nobody(self, action: str, path: str) -> str:
        """Let another user ``read``, ``write`` or ``connect`` to `path`.

        Returns ``done``, ``turned away``, or the name of the error.

        Raises:
            NotRun: the suite may not act as another user.
        """
        assert self.supervisor is not None
        assert self.folder is not None
        if os.geteuid() != 0:
            raise NotRun("only root can act as another user")
        folder = str(self.folder / "t")
        near = path.removeprefix(folder + "/")
        outcome: str = self.supervisor.ask("as_nobody", action=action, path=near)
        return outcome

    def replace_segment(self, name: str, how: str) -> None:
        """Put a ``link`` to another file, or ``nobody``'s file, where a segment is.

        Raises:
            NotRun: the ``/dev/shm`` is not the stage's own.
        """
        assert self.supervisor is not None
        if not self.private:
            raise NotRun("the suite replaces files in a /dev/shm of its own only")
        self.supervisor.ask("replace", name=name, how=how)

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes of the stage, by pid."""
        found = self.ledger()["processes"]
        return {int(pid): held["command"] for pid, held in found.items()}

    def managers(self) -> list[dict[str, Any]]:
        """Return what is known of the managers that run."""
        assert self.supervisor is not None
        pattern = self.implementation.manager_pattern
        found = []
        for pid, held in self.ledger()["processes"].items():
            if pattern and re.search(pattern, held["command"]):
                details = self.details(int(pid))
                found.append(
                    {
                        "pid": int(pid),
                        "session": held["session"],
                        "group": held["group"],
                        "command": held["command"],
                        "sockets": details["sockets"],
                        "descriptors": details["targets"],
                    }
                )
        return found

    def details(self, pid: int) -> dict[str, list[str]]:
        """Return what a process's descriptors point to, and its sockets' paths."""
        assert self.supervisor is not None
        found: dict[str, list[str]] = self.supervisor.ask("details", pid=pid)
        return found

    def left_behind(self) -> list[str]:
        """Return the segments, temporary files and processes that are there now."""
        now = self.ledger()
        processes = [f"process {held['command']}" for held in now["processes"].values()]
        return [*now["segments"], *now["files"], *processes]
