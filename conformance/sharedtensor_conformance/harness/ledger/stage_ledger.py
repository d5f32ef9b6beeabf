"""The ledger of a stage: the resources of its processes, and what was added.

The supervisor reads the ledger (``ledger.py``). This module requests it, and compares
it with an earlier one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from sharedtensor_conformance.harness.case.checks import shortened_repr
from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.case.outcomes import LeftBehind

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.stage.supervision import Supervision
from sharedtensor_conformance.harness.ledger import ledger
from sharedtensor_conformance.harness.ledger.leaks import (
    COUNTED_RESOURCES,
    MEMORY_LEAK_CLAUSE,
    Growth,
)


class StageLedger:
    """The resources of the processes of a stage, as the supervisor counts them.

    Args:
        supervision: has the supervisor call functions.
        manager_pattern: the pattern of the command lines of managers.
    """

    def __init__(self, supervision: Supervision, manager_pattern: str) -> None:
        self._supervision = supervision
        self._manager_pattern = manager_pattern

    def read(self) -> dict[str, Any]:
        """Return the resources of all processes of the stage."""
        return self._supervision.run(ledger.snapshot)

    def overview(self) -> dict[str, Any]:
        """Return the command lines of all processes by pid, and all names."""
        return self._supervision.run(ledger.overview)

    def segments(self) -> set[str]:
        """Return the names of the implementation's files in ``/dev/shm``."""
        found = set(self.overview()["segments"])
        listener().read(None, "segments", found)
        return found

    def files(self) -> set[str]:
        """Return the paths of the temporary files."""
        return set(self.overview()["files"])

    def segment_status(self, name: str) -> dict[str, int]:
        """Return mode, uid and size of a segment."""
        return self._supervision.run(ledger.segment_status, name)

    def named_files(self) -> set[str]:
        """Return the files with these names, by `ledger.identity`."""
        return set(self.sizes_of_files())

    def sizes_of_files(self) -> dict[str, int]:
        """Return the sizes of these files, by `ledger.identity`."""
        return self._supervision.run(ledger.sizes)

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes of the stage, by pid."""
        found = self.overview()["processes"]
        return {int(pid): command for pid, command in found.items()}

    def details(self, pid: int) -> dict[str, list[str]]:
        """Return the targets of a process's descriptors and its sockets' paths."""
        return self._supervision.run(ledger.details, pid)

    def opened_since(self, before: Counter[str], pid: int) -> str:
        """Return the kinds of descriptors of a process that were not there before.

        Args:
            before: what descriptors pointed to.
            pid: the process.
        """
        new = Counter(self.details(pid)["targets"]) - before
        kinds = ledger.kinds(new.elements())
        return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())

    def managers(self) -> list[dict[str, Any]]:
        """Return the details of the running managers."""
        if not self._manager_pattern:
            return []
        if not any(map(self._is_manager, self.processes().values())):
            return []
        return [
            self._manager(int(pid), held)
            for pid, held in self.read()["processes"].items()
            if self._is_manager(held["command"])
        ]

    def _is_manager(self, command: str) -> bool:
        return re.search(self._manager_pattern, command) is not None

    def _manager(self, pid: int, held: dict[str, Any]) -> dict[str, Any]:
        details = self.details(pid)
        known = {what: held[what] for what in ("group", "command")}
        return {
            "pid": pid,
            **known,
            "sockets": details["sockets"],
            "descriptors": details["targets"],
        }

    def left_behind(self) -> list[str]:
        """Return the segments, temporary files and processes that exist now."""
        now = self.overview()
        processes = [f"process {command}" for command in now["processes"].values()]
        return [*now["segments"], *now["files"], *processes]

    def failure(self) -> LeftBehind | None:
        """Return the failure if something exists now, else None."""
        left = self.left_behind()
        if not left:
            return None
        kinds = tuple(dict.fromkeys(map(ledger.kind, left)))
        said = f"got {shortened_repr(left)}, not []"
        sentence = "no segment, temporary file or process is left"
        return LeftBehind(f"not so: {sentence}: {said}", kinds=kinds)


class Baseline:
    """The ledger before a case, with which later readings are compared.

    A leak of a case is accepted while it exists, so that it does not count for the next
    case. When it is gone, a resource in its place is new.

    Args:
        ledger: reads the current state.
        names: returns the names of the processes with a name.
        kept: returns how many segments may be kept for later use.
    """

    def __init__(
        self,
        ledger: StageLedger,
        names: Callable[[], Mapping[int, str]],
        kept: Callable[[], int] = lambda: 0,
    ) -> None:
        self._ledger = ledger
        self._names = names
        self._kept = kept
        self._first: dict[str, Any] = {}
        self._seen: dict[str, Any] = {}

    @property
    def is_taken(self) -> bool:
        """Whether there is a reading to compare with."""
        return bool(self._seen)

    def take(self) -> None:
        """Take the current state as the baseline."""
        self._first = self._ledger.read()
        self._seen = deepcopy(self._first)

    def accept(self) -> None:
        """Accept what exists now, while it exists."""
        now = self._ledger.read()
        for pid, held in now["processes"].items():
            self._first["processes"].setdefault(pid, held)
        self._seen = now

    def discard(self) -> None:
        """Discard the baseline, so that it is taken again."""
        self._first, self._seen = {}, {}

    def accept_files(self) -> None:
        """Accept the temporary files that exist now."""
        self._seen["files"] = self._ledger.read()["files"]

    def growth(self, *, counts_files: bool = True) -> Growth:
        """Return what exists now and did not exist before."""
        now, names, kept = self._ledger.read(), self._names(), self._kept()
        if not counts_files:
            now["files"] = []
        growth = Growth()
        for pid, held in now["processes"].items():
            who = names.get(int(pid)) or f"{pid} ({held['command'][:80]})"
            seen = self._seen["processes"].get(pid)
            first = self._first["processes"].get(pid)
            if seen is not None:
                self._withdraw_acceptance(seen, first, held)
            growth.add_process(who, held, seen, _allowance(kept, first, seen, held))
        before = len(self._seen["segments"]) - len(self._first["segments"])
        room = {"segments": kept - before} if kept else {}
        growth.add_names(now, self._seen, room)
        return growth

    def _withdraw_acceptance(
        self, seen: dict[str, Any], first: dict[str, Any], held: dict[str, Any]
    ) -> None:
        """Stop accepting resources of a process that are gone meanwhile."""
        for _, counted, kinds, _ in COUNTED_RESOURCES:
            if first[counted] <= held[counted] < seen[counted]:
                source = held
            elif held[counted] < first[counted] < seen[counted]:
                source = first
            else:
                continue
            seen[counted] = source[counted]
            if kinds:
                seen[kinds] = source[kinds]
            if counted in FILES_FIELD:
                seen[FILES_FIELD[counted]] = source[FILES_FIELD[counted]]


FILES_FIELD = {"descriptors": "files_open", "mappings": "files_mapped"}
"""The field with the files of shared memory for each count."""


def _allowance(kept: int, first: Any, seen: Any, held: Any) -> dict[str, int]:
    """Return how much more a process may have, for segments that are kept.

    They are counted from the first reading on, however many cases there were.
    """
    if not kept or seen is None:
        return {}
    return {
        counted: min(first[counted] + kept - seen[counted], more)
        for counted, more in _new_file_counts(seen, held).items()
    }


def _new_file_counts(before: Any, held: Any) -> dict[str, int]:
    """Return how much more a process may have at most for segments that are kept.

    That is one of each that it had not before: a second one of the same is a leak.
    """
    return {
        counted: len(set(held[files]) - set(before[files]))
        for counted, files in FILES_FIELD.items()
    }


class Holdings:
    """The resources of some processes, and the existing segments.

    Args:
        ledger: the reading of all processes.
        names: the names of the processes, by pid.
        kept: how many segments may be kept for later use.
    """

    def __init__(
        self, ledger: dict[str, Any], names: Mapping[int, str], kept: int = 0
    ) -> None:
        self._kept = kept
        self._segments: list[str] = ledger["segments"]
        self._held = {
            name: ledger["processes"][str(pid)] for pid, name in names.items()
        }

    def report(self, actors: Iterable[Any]) -> None:
        """Report the resources of `actors`, and the segments, to the listener."""
        listener().read(None, "segments", set(self._segments))
        for actor in actors:
            for what in ("descriptors", "mappings"):
                listener().read(actor, what, self._held[actor.name][what])

    def growth_since(self, before: Holdings) -> Growth:
        """Return what exists now and did not exist `before`."""
        growth = Growth()
        now, was = {"segments": self._segments}, {"segments": before._segments}
        names = {"segments": self._kept}
        growth.add_names(now | {"files": []}, was | {"files": []}, names)
        for name, held in self._held.items():
            room = self._allowance(before._held[name], held)
            growth.add_process(name, held, before._held[name], room)
        growth.leaks = [
            leak for leak in growth.leaks if MEMORY_LEAK_CLAUSE in leak.clauses
        ]
        return growth

    def descriptors_since(self, before: Holdings, allowed: Mapping[str, int]) -> Growth:
        """Return the descriptors of processes that have more than is `allowed`.

        Args:
            before: their earlier resources.
            allowed: the permitted increase of each process, by name.
        """
        growth = Growth()
        for name, more in allowed.items():
            held, was = self._held[name], before._held[name]
            kept = self._allowance(was, held)["descriptors"]
            if held["descriptors"] > was["descriptors"] + more + kept:
                growth.add_process(name, held, was)
        growth.leaks = [leak for leak in growth.leaks if leak.resource == "descriptor"]
        return growth

    def _allowance(self, was: Any, held: Any) -> dict[str, int]:
        """Return how much more a process may have, for segments that are kept."""
        more = _new_file_counts(was, held)
        return {counted: min(self._kept, count) for counted, count in more.items()}
