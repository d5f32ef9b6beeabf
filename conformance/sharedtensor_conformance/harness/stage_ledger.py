"""The ledger's view of a stage: what its processes hold, and what was added.

The supervisor reads the ledger (``ledger.py``); here it is asked, and compared with
what was there before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sharedtensor_conformance.harness.listening import listener

Ask = Callable[..., Any]
"""Asks the supervisor for something, by name, and returns its answer."""


class StageLedger:
    """What the processes of a stage hold, by the supervisor's account.

    Args:
        ask: asks the supervisor.
        manager_pattern: the pattern of the command lines of managers.
    """

    def __init__(self, ask: Ask, manager_pattern: str) -> None:
        self._ask = ask
        self._manager_pattern = manager_pattern

    def read(self) -> dict[str, Any]:
        """Return what all processes of the stage hold."""
        found: dict[str, Any] = self._ask("ledger")
        return found

    def account(self, pid: int) -> dict[str, Any]:
        """Return what one process holds."""
        held: dict[str, Any] = self.read()["processes"][str(pid)]
        return held

    def segments(self) -> set[str]:
        """Return the names of the implementation's files in ``/dev/shm``."""
        found = set(self.read()["segments"])
        listener().read(None, "segments", found)
        return found

    def files(self) -> set[str]:
        """Return the paths of the temporary files."""
        return set(self.read()["files"])

    def segment_status(self, name: str) -> dict[str, int]:
        """Return mode, uid and size of a segment."""
        found: dict[str, int] = self._ask("segment", name=name)
        return found

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes of the stage, by pid."""
        found = self.read()["processes"]
        return {int(pid): held["command"] for pid, held in found.items()}

    def details(self, pid: int) -> dict[str, list[str]]:
        """Return what a process's descriptors point to, and its sockets' paths."""
        found: dict[str, list[str]] = self._ask("details", pid=pid)
        return found

    def managers(self) -> list[dict[str, Any]]:
        """Return what is known of the managers that run."""
        if not self._manager_pattern:
            return []
        return [
            self._manager(int(pid), held)
            for pid, held in self.read()["processes"].items()
            if re.search(self._manager_pattern, held["command"])
        ]

    def _manager(self, pid: int, held: dict[str, Any]) -> dict[str, Any]:
        details = self.details(pid)
        known = {what: held[what] for what in ("session", "group", "command")}
        return {
            "pid": pid,
            **known,
            "sockets": details["sockets"],
            "descriptors": details["targets"],
        }

    def left_behind(self) -> list[str]:
        """Return the segments, temporary files and processes that are there now."""
        now = self.read()
        processes = [f"process {held['command']}" for held in now["processes"].values()]
        return [*now["segments"], *now["files"], *processes]


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

    def add_process(self, who: str, held: dict[str, Any], was: Any) -> None:
        """Compare the counts of a process with those that it had, if it was there."""
        if was is None:
            self.items.append(f"the process {who} is there")
            self.use.append(self.items[-1])
            return
        named = (
            (self.items, ("descriptors", "mappings")),
            (self.use, ("threads", "sockets")),
        )
        for found, kinds in named:
            for what in kinds:
                if (more := held[what] - was[what]) > 0:
                    found.append(f"{who} has {more} more {what}")

    def add_names(self, now: dict[str, Any], was: dict[str, Any]) -> None:
        """Compare segments and temporary files with those that were there."""
        for found, kind, name in (
            (self.items, "segments", "segment"),
            (self.use, "files", "temporary file"),
        ):
            new = sorted(set(now[kind]) - set(was[kind]))
            found += [f"the {name} {one} is left" for one in new[:5]]


class Baseline:
    """What was there before a case: later readings are compared with it.

    Args:
        ledger: what is there now.
        names: returns the names of the processes that have one.
    """

    def __init__(
        self, ledger: StageLedger, names: Callable[[], Mapping[int, str]]
    ) -> None:
        self._ledger = ledger
        self._names = names
        self._seen: dict[str, Any] = {}

    @property
    def is_taken(self) -> bool:
        """Whether there is anything to compare with."""
        return bool(self._seen)

    def take(self) -> None:
        """Compare with what is there now from here on."""
        self._seen = self._ledger.read()

    def discard(self) -> None:
        """Compare with nothing: it is to be taken anew."""
        self._seen = {}

    def accept_files(self) -> None:
        """Take the temporary files that are there now for those that were before."""
        self._seen["files"] = self._ledger.read()["files"]

    def growth(self, *, counts_files: bool = True) -> Growth:
        """Return what is there now and was not before."""
        now, names = self._ledger.read(), self._names()
        if not counts_files:
            now["files"] = []
        growth = Growth()
        for pid, held in now["processes"].items():
            who = names.get(int(pid)) or f"{pid} ({held['command'][:80]})"
            growth.add_process(who, held, self._seen["processes"].get(pid))
        growth.add_names(now, self._seen)
        return growth


class Leaks:
    """What stayed after the cases of a configuration, by the clause that names it."""

    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {"LIFE-7": [], "LIFE-12": []}

    def note(self, case: str, growth: Growth) -> None:
        """Hold what stayed after a case against the clauses that name it."""
        for id, items in (("LIFE-7", growth.items), ("LIFE-12", growth.use)):
            if items:
                self._found[id].append(f"after {case}: {'; '.join(items)}")

    def against(self, id: str) -> list[str]:
        """Return what is held against a clause."""
        return list(self._found[id])
