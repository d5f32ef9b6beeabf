"""Reads the recorded events of a case, up to its failure.

The file with the events was written by `recording`. Events of other stages, and
repeated polls, are removed.
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
MAX_EVENTS = 2000
"""The maximum number of events; more do not fit into a readable program."""

MIN_RANGE = 8
"""A list of at least this many consecutive numbers is written as a range."""

SUITE_REQUESTS = frozenset(
    {"make_pairs", "make_peer", "close_pairs", "drop_all", "join"}
)
"""Requests of the suite itself, not of a test."""


@dataclass(frozen=True)
class Event:
    """One action of a test.

    Args:
        number: its position in the recording.
        kind: ``call``, ``kill``, ``read`` for a reading of the ledger, or ``system``
            for a change of the system that all processes see.
        process: the process that it concerns; empty if it concerns all.
        request: the request to the process, or what was read.
        arguments: the arguments of a call, as `harness.wire` encodes them.
        returned: the returned value; None if there is none.
        raised: the type of the exception in the answer.
        is_answered: whether the process answered.
        answered_before: the number of the first event after the answer.
        count: the value of a reading.
        polls: whether it was repeated until a condition became true.
    """

    number: int
    kind: str
    process: str
    request: str = ""
    arguments: tuple[Any, ...] = ()
    returned: Any = None
    raised: str = ""
    is_answered: bool = True
    answered_before: int = 0
    count: int = 0
    polls: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether other processes acted before the answer came."""
        return not self.is_answered or self.answered_before > self.number + 1


@dataclass(frozen=True)
class Failure:
    """The failure of a case.

    Args:
        kind: ``equality``, ``condition``, ``refusal``, ``growth``, ``raised``,
            ``crash`` or ``hang``; ``unattributed`` if it does not depend on one answer.
        sentence: the expected state.
        event: the number of the call that shows the failure.
        expected: the expected answer, encoded.
        expected_event: the call that returned the expected answer, if there is one.
        as_text: whether the `repr` of the answer is compared.
    """

    kind: str
    sentence: str
    event: int = -1
    expected: Any = None
    expected_event: int = -1
    as_text: bool = False


@dataclass(frozen=True)
class RecordedCase:
    """The events of a case up to its failure.

    `sets_strategy` says for each process whether it set the strategy when it was
    prepared.
    """

    events: tuple[Event, ...]
    failure: Failure
    sets_strategy: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def from_data(cls, data: dict[str, Any], case: Case) -> RecordedCase:
        """Return the case from recorded data.

        Raises:
            Untranslatable: there are no events, or too many.
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
        if len(events) > MAX_EVENTS:
            raise Untranslatable(
                f"this case has {len(events)} recorded events, too many for a readable "
                f"program"
            )
        return cls(events, _failure(data["failure"], events, case), enters)

    @property
    def failing_call(self) -> Event:
        """The call that shows the failure.

        Raises:
            Untranslatable: there is no such call.
        """
        for event in self.events:
            if event.number == self.failure.event:
                return event
        raise Untranslatable("the failure does not depend on a single call")

    @property
    def reading_groups(self) -> list[list[Event]]:
        """The readings of the ledger; consecutive readings are a group."""
        grouped = itertools.groupby(self.events, lambda event: event.kind == "read")
        return [list(group) for is_read, group in grouped if is_read]

    @property
    def grown_readings(self) -> list[Event]:
        """The readings of the last group that are higher than at the `baseline`."""
        if self.baseline is None:
            return []
        before, now = self.reading_groups[self.baseline], self.reading_groups[-1]
        pairs = zip(before, now, strict=True)
        return [last for first, last in pairs if first.count < last.count]

    @cached_property
    def baseline(self) -> int | None:
        """The index of the latest group with a lower reading than the last group."""
        groups = self.reading_groups
        for number in range(len(groups) - 2, -1, -1):
            pairs = list(zip(groups[number], groups[-1], strict=False))
            same = len(groups[number]) == len(groups[-1]) and all(
                (one.request, one.process) == (other.request, other.process)
                for one, other in pairs
            )
            if same and any(one.count < other.count for one, other in pairs):
                return number
        return None


def _belongs(event: dict[str, Any], stage: int | None) -> bool:
    if event.get("do") in {*SUITE_REQUESTS, "prepare"}:
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
    """Yield the events, of each poll only the last one."""
    for place, event in enumerate(events):
        later = events[place + 1 :]
        same = (
            e for e in later if (e.process, e.request) == (event.process, event.request)
        )
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
    return Failure("condition" if lacks else "unattributed", said, last)


# Values


def source_of(data: Any, refer: Callable[[dict[str, Any]], str]) -> str:
    """Return the source of a value that `harness.wire` encoded.

    `refer` is called with each reference, and returns its source.
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
    """Return whether the list has many consecutive integers."""
    if len(data) < MIN_RANGE or any(type(number) is not int for number in data):
        return False
    return data == list(range(data[0], data[0] + len(data)))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def references_in(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each reference in a value with its path, like ``("3", "[0]['two']")``."""
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
