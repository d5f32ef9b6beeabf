"""The supervisor: the process between pytest and an owner, which leaves nothing behind.

It runs as a script with the standard library alone. It adopts whatever the owner's
descendants orphan (PR_SET_CHILD_SUBREAPER), so that daemons in sessions of their own
are counted and ended too; where it is permitted it has a private ``/dev/shm``. When
its socket to pytest closes, for whatever reason, it kills everything below it.

Arguments: the descriptor of the socket, and the folder that it removes at the end. The
rest is the first message, since every user may read a command line: a JSON object with
``argv``, ``environment``, ``root`` (that folder), ``folder`` (temporary files, below
it), ``log``, ``pattern`` (of segments), ``manager`` (pattern of its command),
``private``.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import select
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

sys.path.append(os.path.dirname(os.path.abspath(__file__)))
import ledger  # type: ignore[import-not-found]

TRACKER = "multiprocessing.resource_tracker"
MANAGERS_GRACE = 2.0
TRACKERS_GRACE = 20.0  # they end by themselves when nobody is left, but may be slow
_LENGTH = 4
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2)
_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS, unshare(2)
_RECURSIVE_PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE, mount(2)
_NO_SETUID_NO_DEVICES = 2 | 4  # MS_NOSUID | MS_NODEV
_REMOUNT = 32  # MS_REMOUNT
_NOBODY = 65534
_TURNED_AWAY_WITHIN = 1.0
_KILLED_WITHIN = 20.0
_CATCHABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_LOG_LIMIT = 16 << 20  # bytes; what is printed beyond is thrown away
_LOG_LOOKED_AT = 100  # milliseconds
_MORTAL = "1000"  # oom_score_adj, proc(5): short of memory, these are killed first

libc = ctypes.CDLL(None, use_errno=True)


def make_private_shm() -> bool:
    """Mount a ``/dev/shm`` that only this process and its children see."""
    if os.geteuid() != 0 or libc.unshare(_NEW_MOUNTS) != 0:
        return False
    libc.mount(None, b"/", None, _RECURSIVE_PRIVATE, None)
    mounted = libc.mount(
        b"tmpfs",
        ledger.SEGMENTS.encode(),
        b"tmpfs",
        _NO_SETUID_NO_DEVICES,
        b"mode=1777",
    )
    return bool(mounted == 0)


def limit_shm(spare: int | None) -> None:
    """Leave only `spare` bytes free in the private ``/dev/shm``; None: as at first."""
    size = "50%"  # of the machine's memory, which is the kernel's own choice
    if spare is not None:
        found = os.statvfs(ledger.SEGMENTS)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        size = str(max(used + spare, 1))  # 0 would be no limit
    flags = _REMOUNT | _NO_SETUID_NO_DEVICES
    target, data = ledger.SEGMENTS.encode(), f"size={size}".encode()
    if libc.mount(b"tmpfs", target, b"tmpfs", flags, data) != 0:
        raise OSError(ctypes.get_errno(), "/dev/shm cannot be given another size")


def as_nobody(action: str, path: str, folder: str) -> str:
    """Let a process of another user, in `folder`, do something to `path`.

    Returns what came of it: ``done``, or the name of the error.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(folder)
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
            os.write(writer, _outcome(action, path).encode())
        finally:
            os._exit(0)  # whatever happens: there is to be one supervisor
    os.close(writer)
    with open(reader) as file:
        outcome = file.read()
    os.waitpid(pid, 0)
    if not outcome:
        raise ValueError("no process of another user could be had")
    return outcome


def _outcome(action: str, path: str) -> str:
    try:
        os.listdir(".")  # else it would be the suite's own folder that keeps others out
        if action == "connect":
            return _connection(path)
        os.close(os.open(path, {"read": os.O_RDONLY, "write": os.O_RDWR}[action]))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


def _connection(path: str) -> str:
    """Connect to a socket of either kind; one that is closed at once is no success."""
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind) as sock:
            sock.settimeout(_TURNED_AWAY_WITHIN)
            try:
                sock.connect(path.replace("@", "\0", 1) if path[0] == "@" else path)
                return "turned away" if not sock.recv(1) else "done"
            except TimeoutError:
                return "done"
            except OSError as error:
                if error.errno == errno.EPROTOTYPE:
                    continue
                raise
    return "EPROTOTYPE"


def replace(name: str, how: str, folder: str) -> None:
    """Put something else in the place of a segment: a ``link``, or ``nobody``'s file.

    It is as large as the segment and full of ones.
    """
    path = os.path.join(ledger.SEGMENTS, name)
    size = os.stat(path).st_size
    os.unlink(path)
    target = os.path.join(folder, "other") if how == "link" else path
    with open(target, "xb") as file:
        file.write(b"\x01" * size)
    os.chmod(target, 0o666)
    if how == "link":
        os.symlink(target, path)
    else:
        os.chown(target, _NOBODY, _NOBODY)


def is_tracker(pid: int) -> bool:
    """Tell whether a process is the standard library's resource tracker."""
    return TRACKER in ledger.command(pid)


def remove(folder: str) -> None:
    """Remove a folder, though somebody has made parts of it read-only."""
    if not os.path.basename(folder).startswith("sts-"):
        raise ValueError(f"{folder!r} is no folder of a stage: it is not removed")
    with suppress(OSError):
        os.chmod(folder, 0o700)
    for root, folders, _ in os.walk(folder):
        for path in (os.path.join(root, name) for name in folders):
            if not os.path.islink(path):
                with suppress(OSError):
                    os.chmod(path, 0o700)  # before the walk comes to it
    shutil.rmtree(folder, ignore_errors=True)


def receive(sock: socket.socket, idle: Callable[[], None]) -> dict[str, Any] | None:
    """Return the next message, None when pytest has gone; call `idle` meanwhile."""
    size = _exactly(sock, _LENGTH, idle)
    data = _exactly(sock, int.from_bytes(size, "big"), idle) if size else None
    return json.loads(data) if data else None


def _exactly(sock: socket.socket, count: int, idle: Callable[[], None]) -> bytes | None:
    parts = b""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while len(parts) < count:
        if not poller.poll(_LOG_LOOKED_AT):
            idle()
            continue
        try:
            part = sock.recv(count - len(parts))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return parts


class Supervisor:
    """Starts an owner, keeps the ledger, ends everything."""

    def __init__(self, sock: socket.socket, job: dict[str, Any]) -> None:
        self.socket = sock
        self.job = job
        self.status: int | None = None
        self.semaphores: set[int] = set()
        private = bool(job["private"]) and make_private_shm()
        self.segments = ledger.Segments(job["pattern"], private)
        self.owner = self.start()
        self.segments.seen.add(self.owner)

    def start(self) -> int:
        """Start the owner in a session of its own; its output goes to the log."""
        log = os.open(self.job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        pid = os.posix_spawn(
            self.job["argv"][0],
            self.job["argv"],
            self.job["environment"],
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
            setsigdef=_CATCHABLE,  # under nohup, say, one would be ignored
        )
        self.log = log
        os.close(null)
        with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write(_MORTAL)
        return pid

    def limit_log(self) -> None:
        """Throw away what was printed where it gets too much."""
        if os.fstat(self.log).st_size > _LOG_LIMIT:
            os.ftruncate(self.log, 0)  # they append: their next line is the first

    def reap(self) -> bool:
        """Wait for whatever has ended, without blocking; tell whether more is there.

        Whoever is below becomes a child in the end, so nobody is when this says no.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.segments.seen.add(pid)
            if pid == self.owner:
                self.status = os.waitstatus_to_exitcode(status)

    def end(self) -> list[str]:
        """Kill everything below; return the commands of what was still there.

        In a ``/dev/shm`` that is shared with others, the standard library's resource
        trackers get time to remove the semaphores of those who were killed, by us or
        before, and the implementation's managers to remove their names.
        """
        if self.segments.private:
            return self.kill()
        killed = self.kill(self.cleans_up)
        if killed:
            self.wait_for(self.living, MANAGERS_GRACE)
        self.wait_for(lambda: [p for p in self.living() if is_tracker(p)])
        return killed + self.kill()

    def wait_for(
        self, found: Callable[[], list[int]], grace: float = TRACKERS_GRACE
    ) -> None:
        """Wait until none of the processes is found any more, but not for ever."""
        deadline = time.monotonic() + grace
        while found() and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.001)

    def living(self) -> list[int]:
        """Return what is below and has not ended."""
        below = ledger.descendants(os.getpid())
        return [pid for pid in below if not ledger.is_zombie(pid)]

    def cleans_up(self, pid: int) -> bool:
        """Tell whether a process removes what others who were killed have left."""
        manager = self.job["manager"]
        if manager and re.search(manager, ledger.command(pid)):
            return True
        return is_tracker(pid)

    def kill(self, sparing: Callable[[int], bool] | None = None) -> list[str]:
        """Kill all but those to be spared; return the commands of the killed."""
        killed: dict[int, str] = {}  # each once, though it ends a moment later
        deadline = time.monotonic() + _KILLED_WITHIN
        more = True
        while more and time.monotonic() < deadline:
            found = [p for p in self.living() if not (sparing and sparing(p))]
            self.segments.seen.update(found)
            for pid in found:
                self.semaphores |= ledger.semaphores(pid)
                killed.setdefault(pid, ledger.command(pid))
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            # Who looks may overlook one whose parent ends; the kernel does not.
            more = bool(found) if sparing else self.reap()
            if more:
                time.sleep(0.001)  # it needs a moment to make orphans ours
        self.reap()
        return list(killed.values())

    def answer(self, request: dict[str, Any]) -> object:
        """Do what pytest asks for."""
        match request["do"]:
            case "hello":
                return {"owner": self.owner, "private": self.segments.private}
            case "ledger":
                self.reap()
                return ledger.snapshot(os.getpid(), self.segments, self.job["folder"])
            case "status":
                self.reap()
                return self.status
            case "saw":  # a process may have ended before anybody looks
                self.segments.seen.add(request["pid"])
                return None
            case "segment":
                found = os.stat(os.path.join(ledger.SEGMENTS, request["name"]))
                return {
                    "mode": stat.S_IMODE(found.st_mode),
                    "uid": found.st_uid,
                    "size": found.st_size,
                }
            case "limit_shm":
                if not self.segments.private:
                    raise ValueError("this /dev/shm is shared with others")
                limit_shm(request["spare"])
                return None
            case "as_nobody":
                return as_nobody(request["action"], request["path"], self.job["folder"])
            case "replace":
                if not self.segments.private:
                    raise ValueError("this /dev/shm is shared with others")
                replace(request["name"], request["how"], self.job["folder"])
                return None
            case "details":
                pid = request["pid"]
                return {"targets": ledger.targets(pid), "sockets": ledger.sockets(pid)}
            case "end":
                return {"killed": self.end(), "segments": self.segments.names()}
        raise ValueError(f"unknown request {request!r}")

    def serve(self) -> None:
        """Answer until pytest closes the socket or has gone."""
        while (request := receive(self.socket, self.limit_log)) is not None:
            self.limit_log()
            try:
                reply = {"ok": self.answer(request)}
            except (OSError, KeyError, ValueError) as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            data = json.dumps(reply).encode()
            try:
                self.socket.sendall(len(data).to_bytes(_LENGTH, "big") + data)
            except OSError:
                return

    def orphaned_semaphores(self) -> list[str]:
        """Return the named semaphores that only killed processes had."""
        return [
            entry.name
            for entry in os.scandir(ledger.SEGMENTS)
            if entry.name.startswith("sem.") and entry.inode() in self.semaphores
        ]

    def clean(self) -> None:
        """End everything and remove the names and files that would outlive it."""
        self.end()
        if not self.segments.private:
            for name in [*self.segments.names(), *self.orphaned_semaphores()]:
                with suppress(OSError):
                    os.unlink(os.path.join(ledger.SEGMENTS, name))
        remove(self.job["root"])


def main() -> None:
    """Keep one owner until pytest closes the socket."""
    # Ctrl-C reaches the whole foreground group: pytest decides, and closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    # Whoever stopped it: it goes on when pytest has gone, and finds its socket closed.
    libc.prctl(_DEATH_SIGNAL, signal.SIGCONT, 0, 0, 0)
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    job = receive(sock, idle=lambda: None)
    if job is None:  # pytest went before it said what to do
        return remove(sys.argv[2])
    supervisor = Supervisor(sock, job)
    try:
        supervisor.serve()
    finally:
        supervisor.clean()


if __name__ == "__main__":
    main()
