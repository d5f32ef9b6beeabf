"""Finds files in ``/dev/shm`` that the pattern of an adapter misses.

The pattern is for the names of all segments. If it misses some, the suite cannot find
them where others also use ``/dev/shm``, and reports no leak. So the trial of the
operations looks at which files this process makes.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from sharedtensor_conformance.harness.kernel.process_tree import SHM
from sharedtensor_conformance.harness.ledger import ledger
from sharedtensor_conformance.sanitize import printable

SEMAPHORE_PREFIX = "sem."

_PART = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # of `uuid`
    r"|tmp\w{8}$"  # of `tempfile`
    r"|[^\W_]+)"
)

_HEXADECIMAL = re.compile(r"[0-9a-f]{8,}|(?=.*\d)(?=.*[a-f])[0-9a-f]+")


class SegmentTrial:
    """The names in ``/dev/shm`` at the start, to compare with those later.

    Args:
        pattern: the `segment_pattern` of the adapter.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.missed: set[str] = set()
        self._before = _names()

    def look(self) -> None:
        """Note the new names of files of this process that the pattern misses."""
        matched = ledger.segment_regex(self.pattern)
        for name in _names_held() - self._before:
            if not name.startswith(SEMAPHORE_PREFIX) and not _matches(matched, name):
                self.missed.add(name)

    def problems(self) -> list[str]:
        """Return one sentence about the noted names; none if there are none."""
        if not self.missed:
            return []
        names = sorted(self.missed)
        proposal = "|".join(dict.fromkeys(proposed_pattern(name) for name in names))
        return [
            f"the library made {SHM}/{printable(names[0])}, which segment_pattern "
            f'"{self.pattern}" does not match; set it to a regular expression that '
            f'matches all names of segments, for example r"{printable(proposal)}"'
        ]


def _names() -> set[str]:
    with suppress(OSError):  # there may be no such folder
        return set(os.listdir(SHM))
    return set()


def _names_held() -> set[str]:
    """Return the names of this user's files that this process has open or mapped.

    Any process may make files meanwhile. Those of others are left out.
    """
    pid = os.getpid()
    held = {*ledger.files_open(pid), *ledger.files_mapped(pid)}
    found = set()
    for name in _names():
        with suppress(OSError):  # it was removed meanwhile
            status = os.stat(os.path.join(SHM, name), follow_symlinks=False)
            if status.st_uid == os.geteuid() and ledger.identity(status) in held:
                found.add(name)
    return found


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    """Return whether the suite would find this name, as `ledger.Segments` does."""
    found = pattern.match(name)
    if not found:
        return False
    pid = found.groupdict().get("pid")
    return pid is None or os.path.exists(f"/proc/{pid}")  # it may be a helper's


def proposed_pattern(name: str) -> str:
    """Return a regular expression for names that differ from `name` in random parts.

    ``{pid}`` stands for the pid of this process where it occurs first.
    """
    parts = enumerate(_PART.split(name))  # those at odd places match
    text = "".join(_of_part(part) if at % 2 else _literal(part) for at, part in parts)
    first, pid, others = text.partition("{pid}")
    return first + pid + others.replace("{pid}", r"\d+")


def _of_part(part: str) -> str:
    """Return a regular expression for parts of names like this one."""
    if "-" in part:
        return "[0-9a-f-]{36}"
    if re.fullmatch(r"tmp\w{8}", part):
        return r"tmp\w{8}"
    numbered = re.fullmatch(r"([^\W\d]*)(\d+)", part)
    if numbered and numbered[2] == str(os.getpid()):
        return numbered[1] + "{pid}"
    if _HEXADECIMAL.fullmatch(part):
        return "[0-9a-f]+"
    if numbered:
        return numbered[1] + r"\d+"
    return r"\w+" if re.search(r"\d", part) else _literal(part)


def _literal(part: str) -> str:
    """Return a regular expression for this part; it can stand between quotes."""
    return re.escape(part).replace(r"\-", "-").replace('"', ".")
