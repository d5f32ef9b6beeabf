"""The ledger: counts what the processes below a supervisor hold, by way of /proc.

Standard library only: the supervisor imports it without site-packages. Nothing here
asks the implementation; descriptors, mappings, threads, processes, segments and
temporary files are what the kernel says they are.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any

SEGMENTS = "/dev/shm"
_READINGS = 10
_SHARED = re.compile(rb"/dev/shm/|/memfd:|/dev/zero \(deleted\)|/SYSV")


def children(pid: int) -> list[int]:
    """Return the children of `pid`, of all its threads."""
    found = _children(pid)
    for _ in range(_READINGS):  # the kernel skips some while one of them ends
        before, found = found, _children(pid)
        if found == before:
            break
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # it ended meanwhile
    return found


def descendants(pid: int) -> list[int]:
    """Return everything below `pid`, which adopts orphans, parents before children.

    What a process that ends on the way leaves is a child of `pid` only after its
    children were read, and no longer one of its parent's when those are.
    """
    found: list[int] = []
    for _ in range(_READINGS):
        pending = own = children(pid)
        found = []
        while pending:
            found += pending
            pending = [child for parent in pending for child in children(parent)]
        if children(pid) == own:
            break
    return found


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def is_zombie(pid: int) -> bool:
    """Tell whether `pid` has ended (and perhaps was not waited for yet).

    One whose main thread alone has ended is a zombie too, but not at an end.
    """
    try:
        return _stat(pid)[0] in "ZX" and len(os.listdir(f"/proc/{pid}/task")) < 2
    except OSError:
        return True


def command(pid: int) -> str:
    """Return the command line, or an empty string."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def account(pid: int) -> dict[str, Any] | None:
    """Return the counts of one process; None where it has ended."""
    try:
        if is_zombie(pid):
            return None
        _, _, group, session, *_ = _stat(pid)
        with open(f"/proc/{pid}/maps", "rb") as file:
            mappings = len(_SHARED.findall(file.read()))
        return {
            "command": command(pid),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "sockets": sum(t.startswith("socket:") for t in targets(pid)),
            "mappings": mappings,
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "group": int(group),
            "session": int(session),
        }
    except OSError:
        return None


def targets(pid: int) -> list[str]:
    """Return what the descriptors of a process point to."""
    found = []
    with suppress(OSError):  # it ended meanwhile
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # this one was closed meanwhile
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return sorted(found)


def semaphores(pid: int) -> set[int]:
    """Return the inodes of the named semaphores that a process has mapped.

    Their names cannot be told from its mappings: glibc makes a semaphore under another
    name and links it to its own.
    """
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            mapped = [line.split() for line in file if b"/dev/shm/sem." in line]
    except OSError:
        return set()
    return {int(fields[4]) for fields in mapped}


def sockets(pid: int) -> list[str]:
    """Return the paths of the UNIX sockets that a process has open."""
    inodes = {
        target[len("socket:[") : -1]
        for target in targets(pid)
        if target.startswith("socket:[")
    }
    try:
        with open(f"/proc/{pid}/net/unix") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return []  # it ended meanwhile
    found = set()
    for line in lines:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[6] in inodes:
            found.add(fields[7])
    return sorted(found)


def tree(folder: str) -> list[str]:
    """Return the paths below `folder`, relative to it."""
    return sorted(
        os.path.relpath(os.path.join(root, name), folder)
        for root, folders, files in os.walk(folder)
        for name in folders + files
    )


class Segments:
    """Finds the implementation's files in ``/dev/shm``.

    In a private ``/dev/shm`` every file counts. In one that is shared with others, a
    file counts if it was not there at the start and its name has the implementation's
    pattern with the pid of a process that was seen below the supervisor.
    """

    def __init__(self, pattern: str, private: bool) -> None:
        self.private = private
        self._before = set() if private else set(os.listdir(SEGMENTS))
        named = re.escape("{pid}")
        source = pattern.replace("{pid}", r"(?P<pid>\d+)") or named
        self._pattern = re.compile(source)
        self.seen: set[int] = set()

    def names(self) -> list[str]:
        """Return the names that belong to the implementation, semaphores apart."""
        listed = (n for n in os.listdir(SEGMENTS) if not n.startswith("sem."))
        if self.private:
            return sorted(listed)
        return sorted(n for n in listed if n not in self._before and self._ours(n))

    def _ours(self, name: str) -> bool:
        found = self._pattern.match(name)
        if not found:
            return False
        pid = found.groupdict().get("pid")
        return pid is None or int(pid) in self.seen


def snapshot(root: int, segments: Segments, folder: str) -> dict[str, Any]:
    """Return the ledger of everything below the process `root`."""
    below = descendants(root)
    segments.seen.update(below)
    accounts = {pid: account(pid) for pid in below}
    return {
        "processes": {str(pid): held for pid, held in accounts.items() if held},
        "segments": segments.names(),
        "files": tree(folder),
    }
