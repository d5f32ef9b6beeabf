"""The supervisor: the process between pytest and an owner, which cleans up after it.

It runs as a script with the standard library only. It adopts the orphans of the owner's
descendants, so that daemons in their own sessions are also counted and ended. If the
system permits it, it has a private ``/dev/shm``. When its socket to pytest closes, for
any reason, it kills all its descendants.

Arguments: the descriptor of the socket, and the folder of the stage, by which sweeping
finds this process. If a template process has already made the folder and forked the
owner as a child of this process, two more arguments follow: the pid of the owner, and
how ``/dev/shm`` was made private (`Way`). When the folder is made, pytest listens in
it. All other data is in the next message, because every user may read a command line:
a JSON object with ``argv``, ``environment``, ``root`` (the folder), ``pattern`` (of
segments) and ``manager`` (pattern of its command).
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

if not __package__:  # a script, without site-packages: where the suite is, it knows
    sys.path.append(os.path.abspath(os.path.join(__file__, *[os.pardir] * 4)))
    # Pytest sends the names of methods: they are those of this module.
    sys.modules["sharedtensor_conformance.harness.supervisor.supervisor"] = sys.modules[
        __name__
    ]

from sharedtensor_conformance.harness.kernel import (
    capabilities,
    private_shm,
    process_tree,
)
from sharedtensor_conformance.harness.kernel.private_shm import Way
from sharedtensor_conformance.harness.kernel.process_tree import SHM, wait_until
from sharedtensor_conformance.harness.ledger import ledger
from sharedtensor_conformance.harness.remote.wire import Wire, WireClosed, function_at
from sharedtensor_conformance.harness.supervisor import stage_folder

TRACKER = "multiprocessing.resource_tracker"
MANAGER_TIMEOUT = 2.0
TRACKER_TIMEOUT = 20.0  # they end by themselves when nobody is left, but may be slow
_CATCHABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_LOG_LIMIT = 16 << 20  # bytes; what is printed beyond is thrown away
_LOG_INTERVAL = 0.1  # seconds between two looks at the log


def is_tracker(pid: int) -> bool:
    """Return whether a process is the standard library's resource tracker."""
    return TRACKER in process_tree.command(pid)


class Supervisor:
    """Starts an owner, runs functions for pytest, and ends everything."""

    def __init__(
        self, wire: Wire, job: dict[str, Any], adopted: tuple[int, Way] | None
    ) -> None:
        self.wire = wire
        self.job = job
        self.temporary = stage_folder.temporary(job["root"])
        self.semaphores: set[int] = set()
        self.tree = process_tree.ProcessTree()
        if adopted:
            self.owner, way = adopted
        else:
            way = private_shm.best_way()
            before = capabilities.current()
            private_shm.mount(way)
            capabilities.limit_programs(before)
        private = way is not Way.NONE
        self.segments = ledger.Segments(job["pattern"], private, self.tree.known_pids)
        self.log = stage_folder.open_log(job["root"])
        if not adopted:
            self.owner = self.start()
        self.tree.known_pids.add(self.owner)

    def start(self) -> int:
        """Start the owner in its own session; its output goes to the log."""
        null = os.open(os.devnull, os.O_RDONLY)
        pid = os.posix_spawn(
            self.job["argv"][0],
            self.job["argv"],
            self.job["environment"],
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, self.log, 1),
                (os.POSIX_SPAWN_DUP2, self.log, 2),
            ],
            setsid=True,
            setsigdef=_CATCHABLE,  # under nohup, say, one would be ignored
        )
        os.close(null)
        process_tree.prefer_for_oom_kill(pid)
        return pid

    # Requests of pytest

    def serve(self) -> None:
        """Run functions for pytest, with this supervisor as their first argument.

        Pytest sends the name of each. Serving ends when pytest closes the socket.
        """
        with suppress(WireClosed):
            while True:
                request = self.next_request()
                try:
                    function = function_at(request["run"])
                    reply = {"ok": function(self, *request["with"])}
                except (OSError, KeyError, ValueError, ImportError) as error:
                    reply = {"error": f"{type(error).__name__}: {error}"}
                self.wire.send(reply)

    def next_request(self) -> dict[str, Any]:
        """Return the next request; limit the size of the log while waiting."""
        while not select.select([self.wire.socket], [], [], _LOG_INTERVAL)[0]:
            self.limit_log()
        self.limit_log()
        request: dict[str, Any] = self.wire.receive()
        return request

    def limit_log(self) -> None:
        """Truncate the log if it is too long."""
        if os.fstat(self.log).st_size > _LOG_LIMIT:
            os.ftruncate(self.log, 0)  # they append: their next line is the first

    # What pytest lets it run, as well as functions of other modules

    def hello(self) -> dict[str, Any]:
        """Return the pid of the owner, and whether ``/dev/shm`` is private."""
        return {"owner": self.owner, "private": self.segments.private}

    def status(self) -> int | None:
        """Return the owner's exit code, None while it runs."""
        return self.tree.status_of(self.owner)

    def add_pid(self, pid: int) -> None:
        """Remember a process, which may end before the ledger is read."""
        self.tree.known_pids.add(pid)

    def require_private_shm(self) -> None:
        """Raise ValueError where ``/dev/shm`` is shared with others."""
        if not self.segments.private:
            raise ValueError("this /dev/shm is shared with others")

    def kill_all(self) -> list[str]:
        """Kill everything below at once; return the names that are left.

        All are stopped first, so that none does anything about the end of another.
        """
        for pid in self.tree.living():
            with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
                process_tree.stop(pid)
        self.tree.kill(before_kill=self.note_semaphores)
        return self.segments.names()

    def start_again(self) -> int:
        """Start another owner where everything has ended; return its pid."""
        self.owner = self.start()
        self.tree.known_pids.add(self.owner)
        return self.owner

    # The end

    def end(self) -> list[str]:
        """Kill everything below; return the commands of what was still there.

        In a ``/dev/shm`` that is shared with others, the standard library's resource
        trackers get time to remove the semaphores of those who were killed, by us or
        before, and the implementation's managers to remove their names.
        """
        kill, living = self.tree.kill, self.tree.living
        if self.segments.private:
            return kill(before_kill=self.note_semaphores)
        killed = kill(spare=self.cleans_up, before_kill=self.note_semaphores)
        if killed:
            wait_until(lambda: not living(), MANAGER_TIMEOUT)
        wait_until(lambda: not any(map(is_tracker, living())), TRACKER_TIMEOUT)
        return killed + kill(before_kill=self.note_semaphores)

    def note_semaphores(self, pid: int) -> None:
        """Remember the semaphores of a process that is about to be killed.

        Those in a private ``/dev/shm`` need not be removed, since it goes as a whole.
        """
        if not self.segments.private:
            self.semaphores |= ledger.semaphores(pid)

    def cleans_up(self, pid: int) -> bool:
        """Return whether a process removes what others who were killed have left."""
        manager = self.job["manager"]
        if manager and re.search(manager, process_tree.command(pid)):
            return True
        return is_tracker(pid)

    def orphaned_semaphores(self) -> list[str]:
        """Return the named semaphores that only killed processes had."""
        return [
            entry.name
            for entry in os.scandir(SHM)
            if entry.name.startswith("sem.") and entry.inode() in self.semaphores
        ]

    def clean(self) -> None:
        """End everything and remove the names and files that would outlive it."""
        self.end()
        if not self.segments.private:
            for name in [*self.segments.names(), *self.orphaned_semaphores()]:
                with suppress(OSError):
                    os.unlink(os.path.join(SHM, name))
        stage_folder.remove(self.job["root"])


def main() -> None:
    """Supervise one owner until pytest closes the socket."""
    adopted = _adopted(sys.argv[3:])
    if adopted and adopted[1].in_user_namespace:
        capabilities.forbid_inheriting()
    # Ctrl-C reaches the whole foreground group: pytest decides, and closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Whoever stopped it: it goes on when pytest has gone, and finds its socket closed.
    process_tree.signal_at_parent_death(signal.SIGCONT)
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    wire = Wire(sock)
    if not adopted:
        stage_folder.make(sys.argv[2], wire)
    try:
        job = wire.receive()
    except WireClosed:  # pytest went before it said what to do
        process_tree.ProcessTree().kill()  # an owner that was forked already
        return stage_folder.remove(sys.argv[2])
    supervisor = Supervisor(wire, job, adopted)
    try:
        supervisor.serve()
    finally:
        supervisor.clean()


def _adopted(arguments: list[str]) -> tuple[int, Way] | None:
    """Return the owner that is there already, and how its files were made private."""
    if not arguments:
        return None
    owner, way = arguments
    return int(owner), Way(way)


if __name__ == "__main__":
    main()
