"""The story of a case: its events up to the failure, and what failed.

It is read from what `recording` wrote down, and made ready to be told again: events of
other stages are left out, and so is what only polls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict
from sharedtensor_conformance.reproduce.source import Untranslatable

OWNER = "owner"
LONGEST = 2000
"""More events than that are no story for a program of one page."""

LONG = 8
"""A list of so many numbers is written as a range where it is one."""

AROUND = frozenset({"make_pairs", "make_peer", "close_pairs", "drop_all", "join"})
"""What the suite asks for around a story."""


@dataclass(frozen=True)
class Event:
    """One thing that a test did.

    Args:
        number: its place in the story.
        kind: ``call``, ``kill``, ``read`` for a reading of the ledger, ``system`` for
            what changed below all processes.
        process: whom it concerns.
        do: what the process was asked for, or what was read.
        given: the arguments of a call, as `harness.wire` encodes them.
        returned: what it answered; None where it gave none.
        raised: the type of the exception that it answered.
        is_answered: whether it answered.
        ends: the number of the event before which the answer came.
        count: what a reading said.
        polls: it was repeated until something came true.
    """

    number: int
    kind: str
    process: str
    do: str = ""
    given: tuple[Any, ...] = ()
    returned: Any = None
    raised: str = ""
    is_answered: bool = True
    ends: int = 0
    count: int = 0
    polls: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether others acted before the answer came."""
        return not self.is_answered or self.ends > self.number + 1


@dataclass(frozen=True)
class Failure:
    """What failed.

    Args:
        kind: ``equality``, ``condition``, ``refusal``, ``growth``, ``raised``,
            ``crash`` or ``hang``; ``untold`` where it is not that of one answer.
        sentence: what should have been so.
        event: the number of the call that shows it.
        expected: what it should have answered, encoded.
        expected_event: the call whose answer that is, where it is one of the story's.
        as_text: what is compared is what `repr` makes of the answer.
    """

    kind: str
    sentence: str
    event: int = -1
    expected: Any = None
    expected_event: int = -1
    as_text: bool = False


@dataclass(frozen=True)
class Story:
    """The events of a case up to its failure."""

    events: tuple[Event, ...]
    failure: Failure
    enters: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, data: dict[str, Any], case: Case) -> Story:
        """Return the story that was written down.

        Raises:
            Untranslatable: there is none, or it is too long.
        """
        numbered = list(enumerate(data["events"]))
        stage = next((e["stage"] for _, e in numbered[::-1] if e["process"]), None)
        enters = {
            event["process"]: event["given"][0]
            for _, event in numbered
            if event.get("do") == "prepare" and event["stage"] == stage
        }
        kept = [_event(n, e) for n, e in numbered if _belongs(e, stage)]
        events = tuple(_without_polls(kept))
        if not events:
            raise Untranslatable("the case failed before its test did anything")
        if len(events) > LONGEST:
            raise Untranslatable(
                f"the story of this case has {len(events)} events, too many for one "
                f"program"
            )
        return cls(events, _failure(data["failure"], events, case), enters)

    @property
    def shown_by(self) -> Event:
        """The call that shows the failure."""
        for event in self.events:
            if event.number == self.failure.event:
                return event
        raise Untranslatable("the failure is not that of a single call")

    @property
    def groups(self) -> list[list[Event]]:
        """The readings of the ledger that follow each other, together."""
        grouped = itertools.groupby(self.events, lambda event: event.kind == "read")
        return [list(group) for is_read, group in grouped if is_read]

    @property
    def grew(self) -> list[Event]:
        """The last readings that say more than the same at the `baseline`."""
        if self.baseline is None:
            return []
        before, now = self.groups[self.baseline], self.groups[-1]
        pairs = zip(before, now, strict=True)
        return [last for first, last in pairs if first.count < last.count]

    @cached_property
    def baseline(self) -> int | None:
        """The number of the latest group of readings that says less than the last."""
        groups = self.groups
        for number in range(len(groups) - 2, -1, -1):
            pairs = list(zip(groups[number], groups[-1], strict=False))
            same = len(groups[number]) == len(groups[-1]) and all(
                (one.do, one.process) == (other.do, other.process)
                for one, other in pairs
            )
            if same and any(one.count < other.count for one, other in pairs):
                return number
        return None


def _belongs(event: dict[str, Any], stage: int | None) -> bool:
    if event.get("do") in {*AROUND, "prepare"}:
        return False
    return event["stage"] in (stage, None)


def _event(number: int, data: dict[str, Any]) -> Event:
    return Event(
        number,
        data["kind"],
        data["process"],
        data.get("do", data.get("what", "")),
        tuple(data.get("given", ())),
        data.get("returned"),
        data.get("raised", ""),
        "answered" in data or data["kind"] != "call",
        data.get("answered", number + 1),
        data.get("count", 0),
        data["waiting"],
    )


def _without_polls(events: list[Event]) -> Iterator[Event]:
    """Leave out of what was polled all but the last of each."""
    for place, event in enumerate(events):
        later = events[place + 1 :]
        same = (e for e in later if (e.process, e.do) == (event.process, event.do))
        again = next(same, None)
        polled_again = again is not None and again.polls
        if not (event.polls and polled_again and _only_polls(events, event, again)):
            yield event


def _only_polls(events: list[Event], one: Event, other: Event | None) -> bool:
    assert other is not None
    return all(e.polls for e in events if one.number < e.number < other.number)


def _failure(found: dict[str, Any], events: tuple[Event, ...], case: Case) -> Failure:
    last = max((e.number for e in events if e.kind == "call"), default=-1)
    if found:
        known = {key: value for key, value in found.items() if value is not None}
        return Failure(**known)
    said = case.evidence.splitlines()[0] if case.evidence else ""
    unanswered = [e.number for e in events if e.kind == "call" and not e.is_answered]
    if case.verdict in (Verdict.CRASH, Verdict.HANG):
        return Failure(str(case.verdict), said, unanswered[-1] if unanswered else last)
    final = next(event for event in events if event.number == last)
    if final.raised:
        return Failure("raised", said, last)
    lacks = final is events[-1] and final.is_answered and final.returned is None
    return Failure("condition" if lacks else "untold", said, last)


# Values


def source_of(data: Any, refer: Callable[[dict[str, Any]], str]) -> str:
    """Return the source of a value that `harness.wire` encoded.

    `refer` returns that of a reference.
    """
    match data:
        case float() if not math.isfinite(data):
            return f"float({str(data)!r})"
        case list() if _is_range(data):
            return f"list(range({data[0]}, {data[-1] + 1}))"
        case list():
            return f"[{', '.join(source_of(item, refer) for item in data)}]"
        case {"tuple": [only]}:
            return f"({source_of(only, refer)},)"
        case {"tuple": items}:
            return f"({', '.join(source_of(item, refer) for item in items)})"
        case {"set": items}:
            return f"{{{', '.join(source_of(i, refer) for i in items)}}}"
        case {"dict": pairs}:
            inside = (f"{source_of(k, refer)}: {source_of(v, refer)}" for k, v in pairs)
            return f"{{{', '.join(inside)}}}"
        case {"complex": [real, imag]}:
            return repr(complex(real, imag))
        case {"bytes": digits}:
            return repr(bytes.fromhex(digits))
        case {"layout": fields}:
            inside = (f"{k}={_tuple(v)!r}" for k, v in fields.items())
            return f"Layout({', '.join(inside)})"
        case dict():
            return refer(data)
    return repr(data)


def _is_range(data: list[Any]) -> bool:
    """Return whether many whole numbers follow each other."""
    if len(data) < LONG or any(type(number) is not int for number in data):
        return False
    return data == list(range(data[0], data[0] + len(data)))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def references_in(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Return each reference in a value, with the way to it: ``("3", "[0]['two']")``."""
    match data:
        case {"reference": key}:
            yield key, path
        case list() | {"tuple": _}:
            items = data if isinstance(data, list) else data["tuple"]
            for number, item in enumerate(items):
                yield from references_in(item, f"{path}[{number}]")
        case {"dict": pairs}:
            for key, value in pairs:
                name = source_of(key, lambda found: repr(found))
                yield from references_in(value, f"{path}[{name}]")
