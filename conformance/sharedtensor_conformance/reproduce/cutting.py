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

from sharedtensor_conformance.reproduce.story import Event, Story, references_in

MOST = 8
"""The maximum number of earlier points that are tried."""


def cut(story: Story) -> Iterator[Story]:
    """Yield stories that end earlier, with the same readings, the shortest first.

    Only stories of a leak with a baseline can be cut; for others nothing is yielded.
    """
    if story.failure.kind != "growth" or story.baseline is None:
        return
    begin, end = story.groups[story.baseline][-1].number, story.groups[-1][0].number
    state, found = State(), 0
    before = state.now()
    for event in story.events:
        state.take_in(event)
        if event.number == begin:
            before, state.has_sent = state.now(), False
        inside = begin < event.number < end and event.kind != "read"
        if inside and state.has_sent and state.now() == before and found < MOST:
            found += 1
            yield _ended(story, event.number, end)


def _ended(story: Story, last: int, readings: int) -> Story:
    kept = (e for e in story.events if e.number <= last or e.number >= readings)
    return replace(story, events=tuple(kept))


class State:
    """The objects that processes hold, and the number of messages in flight."""

    def __init__(self) -> None:
        self.has_sent = False
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._under_way: Counter[str] = Counter()

    def now(self) -> tuple[dict[str, set[str]], dict[str, int]]:
        """Return the objects of each process, and the numbers of messages in flight."""
        held = {who: set(keys) for who, keys in self._held.items() if keys}
        return held, {where: n for where, n in self._under_way.items() if n}

    def take_in(self, event: Event) -> None:
        """Apply the changes of an event."""
        if event.kind == "kill" or event.do == "leave" or event.given[:1] == ("end",):
            self._held.pop(event.process, None)
        elif event.kind == "call":
            self._held[event.process] |= {k for k, _ in references_in(event.returned)}
            self._held[event.process] -= _dropped(event)
            self._send(event)

    def _send(self, event: Event) -> None:
        if event.do == "drop_channel":
            self._under_way.pop(str(event.given[0]), None)
        elif event.do in ("put", "channel_put") and not event.raised:
            self.has_sent = True
            self._under_way[_way(event, sends=True)] += 1
        elif event.do in ("get", "channel_get"):
            self._under_way[_way(event, sends=False)] -= 1


def _dropped(event: Event) -> set[str]:
    if event.do == "drop":
        return set(event.given)
    return {event.given[1]} if event.given[:1] == ("hide",) else set()


def _way(event: Event, *, sends: bool) -> str:
    """Return the way of a message: a channel, or a kind between two processes."""
    if event.do.startswith("channel"):
        return str(event.given[0]["channel"])
    ends = [event.process, str(event.given[0])]
    return " ".join([*(ends if sends else reversed(ends)), str(event.given[1])])
