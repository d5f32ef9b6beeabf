"""Shortens the program for a leak: it ends at an earlier point without live objects.

A test for leaks tries many ways in which a leak could occur, and compares the ledger
once, at its end. But at each earlier point at which no process holds more objects than
before and no message is in flight, the ledger has to be the same as before. If a
program that ends at such a point shows the failure, it is used.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from sharedtensor_conformance.reproduce.events import Event, RecordedCase, references_in

MAX_POINTS = 8
"""The maximum number of earlier points that are tried."""


def shortened(recorded: RecordedCase) -> Iterator[RecordedCase]:
    """Yield recordings that end earlier, with the same readings, the shortest first.

    Only a leak with a baseline can be shortened; for others nothing is yielded.
    """
    if recorded.failure.kind != "growth" or recorded.baseline is None:
        return
    groups = recorded.reading_groups
    begin, end = groups[recorded.baseline][-1].number, groups[-1][0].number
    state, found = LiveState(), 0
    before = state.snapshot()
    for event in recorded.events:
        state.apply(event)
        if event.number == begin:
            before, state.has_sent = state.snapshot(), False
        inside = begin < event.number < end and event.kind != "read"
        if (
            inside
            and state.has_sent
            and state.snapshot() == before
            and found < MAX_POINTS
        ):
            found += 1
            yield _ended(recorded, event.number, end)


def _ended(recorded: RecordedCase, last: int, readings: int) -> RecordedCase:
    kept = (e for e in recorded.events if e.number <= last or e.number >= readings)
    return replace(recorded, events=tuple(kept))


class LiveState:
    """The objects that processes hold, and the number of messages in flight."""

    def __init__(self) -> None:
        self.has_sent = False
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._in_flight: Counter[str] = Counter()

    def snapshot(self) -> tuple[dict[str, set[str]], dict[str, int]]:
        """Return the objects of each process, and the numbers of messages in flight."""
        held = {who: set(keys) for who, keys in self._held.items() if keys}
        return held, {where: n for where, n in self._in_flight.items() if n}

    def apply(self, event: Event) -> None:
        """Apply the changes of an event."""
        if (
            event.kind == "kill"
            or event.request == "leave"
            or event.arguments[:1] == ("end",)
        ):
            self._held.pop(event.process, None)
        elif event.kind == "call":
            self._held[event.process] |= {k for k, _ in references_in(event.returned)}
            self._held[event.process] -= _dropped(event)
            self._send(event)

    def _send(self, event: Event) -> None:
        if event.request == "drop_channel":
            self._in_flight.pop(str(event.arguments[0]), None)
        elif event.request in ("put", "channel_put") and not event.raised:
            self.has_sent = True
            self._in_flight[_channel_of(event, sends=True)] += 1
        elif event.request in ("get", "channel_get"):
            self._in_flight[_channel_of(event, sends=False)] -= 1


def _dropped(event: Event) -> set[str]:
    if event.request == "drop":
        return set(event.arguments)
    return {event.arguments[1]} if event.arguments[:1] == ("hide",) else set()


def _channel_of(event: Event, *, sends: bool) -> str:
    """Return the channel of a message, or its kind and its two processes."""
    if event.request.startswith("channel"):
        return str(event.arguments[0]["channel"])
    ends = [event.process, str(event.arguments[0])]
    return " ".join([*(ends if sends else reversed(ends)), str(event.arguments[1])])
