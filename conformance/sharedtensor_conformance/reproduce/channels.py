"""The channels that the recorded events use, and their names in the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sharedtensor_conformance.reproduce.source import Untranslatable
from sharedtensor_conformance.reproduce.story import OWNER, Event, source_of

MAKERS = {
    "queue": "context.Queue()",
    "simple_queue": "context.SimpleQueue()",
    "joinable_queue": "context.JoinableQueue()",
    "queue_of_one": "context.Queue(1)",
    "queue_of_two": "context.Queue(2)",
    "joinable_queue_of_three": "context.JoinableQueue(3)",
    "proxy": "context.Manager().Queue()",
}
PIPES = {"pipe": "context.Pipe()", "one-way pipe": "context.Pipe(duplex=False)"}
BETWEEN = ("put", "get", "has_message")
"""Requests for the channel between two actors. Other requests name their channel."""


@dataclass
class Channel:
    """A channel, with the names of its ends.

    Args:
        kind: one of `MAKERS` and `PIPES`.
        ends: the name of the end of each process; a queue has only one, for ``""``.
        maker: the process that makes it.
        users: the processes that use it.
    """

    kind: str
    ends: dict[str, str]
    maker: str = OWNER
    users: set[str] = field(default_factory=set)

    @property
    def making(self) -> str:
        """The line of source that makes it."""
        maker = MAKERS.get(self.kind) or PIPES[self.kind]
        return f"{', '.join(self.ends.values())} = {maker}"

    def end_of(self, process: str, *, puts: bool) -> str:
        """Return the name of the end with which a process puts or gets."""
        if self.kind == "one-way pipe":
            return self.ends["put" if puts else "get"]
        return self.ends.get(process) or self.ends[""]

    def names_for(self, process: str) -> list[str]:
        """Return the names of the ends of a process."""
        if self.kind == "pipe":
            return [self.ends[process]]
        return list(self.ends.values())

    def putting(self, process: str, message: str) -> str:
        """Return the source with which a process puts a message."""
        method = "send" if self.kind in PIPES else "put"
        return f"{self.end_of(process, puts=True)}.{method}({message})"

    def getting(self, process: str) -> str:
        """Return the source with which a process gets a message."""
        method = "recv" if self.kind in PIPES else "get"
        return f"{self.end_of(process, puts=False)}.{method}()"

    def asking(self, process: str) -> str:
        """Return the source with which a process checks whether a message is there."""
        end = self.end_of(process, puts=False)
        return f"{end}.poll(0)" if self.kind in PIPES else f"not {end}.empty()"


class Channels:
    """All channels of the recorded events."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.named: dict[str, Channel] = {}
        self._between: dict[tuple[str, ...], Channel] = {}
        self._names: set[str] = set()
        acting = {event.process for event in events}  # only these are started
        for event in events:
            if event.do == "open_channel":
                self._open(event)
            elif event.do == "drop_channel":
                self._drop(event)
            elif event.do in BETWEEN:
                both = {event.process, str(event.given[0])}
                self._meet(event).users |= both & acting
            elif event.kind == "call":
                self._note_users(event)

    def between(self, event: Event) -> Channel:
        """Return the channel that an event uses."""
        return self._between[_key(event)]

    def made_for(self, process: str, others: Iterable[str]) -> Iterator[Channel]:
        """Yield the channels to make before a process is started after the others."""
        started = {OWNER, *others}
        for channel in self._between.values():
            if process in channel.users and not channel.users & (started - {OWNER}):
                yield channel

    def alone(self) -> Iterator[Channel]:
        """Yield the channels that only the owner uses."""
        return (c for c in self._between.values() if c.users == {OWNER})

    def names_for(self, process: str) -> list[str]:
        """Return the names of the channel ends that are arguments of a process."""
        channels = [*self._between.values(), *self.named.values()]
        used = (c for c in channels if process in c.users and process != c.maker)
        return [name for channel in used for name in channel.names_for(process)]

    def _open(self, event: Event) -> None:
        kind, _ = event.given
        if not event.is_answered or event.raised:
            raise Untranslatable(f"no channel of the kind {kind} could be made")
        if kind != "pipe" and kind not in MAKERS:
            raise Untranslatable(f"a program cannot have a channel of the kind {kind}")
        if kind == "pipe":
            ends = {"get": self._name("reader"), "put": self._name("writer")}
            made = Channel("one-way pipe", ends, event.process)
        else:
            made = Channel(kind, {"": self._name("queue")}, event.process)
        self.named[event.returned["channel"]] = made

    def _drop(self, event: Event) -> None:
        """Free the names for later channels after the maker has dropped a channel."""
        channel = self.named[str(event.given[0])]
        if channel.maker == event.process:
            self._names -= set(channel.ends.values())

    def _meet(self, event: Event) -> Channel:
        key = _key(event)
        if key not in self._between:
            if key[0] == "pipe":
                ends = {end: self._name(f"end_of_{_plain(end)}") for end in key[1:]}
                self._between[key] = Channel("pipe", ends)
            else:
                self._between[key] = Channel(key[0], {"": self._name("queue")})
        return self._between[key]

    def _note_users(self, event: Event) -> None:
        def note(found: dict[str, str]) -> str:
            if "channel" in found:
                who = event.process
                if event.do == "start_peer":
                    who = str(event.given[0])
                self.named[found["channel"]].users.add(who)
            return ""

        source_of(list(event.given), note)

    def _name(self, wanted: str) -> str:
        name = unused(wanted, self._names)
        self._names.add(name)
        return name


def _key(event: Event) -> tuple[str, ...]:
    other, kind = str(event.given[0]), str(event.given[1])
    if kind == "pipe":
        return (kind, *sorted((event.process, other)))
    sender = (event.process, other) if event.do == "put" else (other, event.process)
    return (kind, *sender)


def _plain(name: str) -> str:
    return name.replace("-", "_")


def unused(wanted: str, names: set[str]) -> str:
    """Return `wanted`, with a number if it is already in `names`."""
    name, number = wanted, 1
    while name in names:
        number += 1
        name = f"{wanted}_{number}"
    return name
