"""The channels that the recorded events use, and their names in the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from sharedtensor_conformance.reproduce.events import OWNER, Event, source_of
from sharedtensor_conformance.reproduce.source import Untranslatable

CONSTRUCTORS = {
    "queue": "context.Queue()",
    "simple_queue": "context.SimpleQueue()",
    "joinable_queue": "context.JoinableQueue()",
    "queue_of_one": "context.Queue(1)",
    "queue_of_two": "context.Queue(2)",
    "queue_of_many": "context.Queue(1000)",
    "joinable_queue_of_three": "context.JoinableQueue(3)",
    "proxy": "context.Manager().Queue()",
}
PIPES = {"pipe": "context.Pipe()", "one-way pipe": "context.Pipe(duplex=False)"}
PAIR_REQUESTS = ("put", "get", "has_message")
"""Requests for the channel between two actors. Other requests name their channel."""


@dataclass
class Channel:
    """A channel, with the names of its ends.

    Args:
        kind: one of `CONSTRUCTORS` and `PIPES`.
        ends: the name of the end of each process; a queue has only one, for ``""``.
        maker: the process that makes it.
        users: the processes that use it.
    """

    kind: str
    ends: dict[str, str]
    maker: str = OWNER
    users: set[str] = field(default_factory=set)

    @property
    def constructor_line(self) -> str:
        """The line of source that makes it."""
        maker = CONSTRUCTORS.get(self.kind) or PIPES[self.kind]
        return f"{', '.join(self.ends.values())} = {maker}"

    @property
    def has_thread(self) -> bool:
        """Whether a thread of the process that puts writes what waits for room."""
        return self.kind not in {*PIPES, "simple_queue", "proxy"}

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

    def put_source(self, process: str, message: str) -> str:
        """Return the source with which a process puts a message."""
        method = "send" if self.kind in PIPES else "put"
        return f"{self.end_of(process, puts=True)}.{method}({message})"

    def get_source(self, process: str) -> str:
        """Return the source with which a process gets a message."""
        method = "recv" if self.kind in PIPES else "get"
        return f"{self.end_of(process, puts=False)}.{method}()"

    def poll_source(self, process: str) -> str:
        """Return the source with which a process checks whether a message is there."""
        end = self.end_of(process, puts=False)
        return f"{end}.poll(0)" if self.kind in PIPES else f"not {end}.empty()"


class Channels:
    """All channels of the recorded events.

    Args:
        events: the recorded events.
        reserved: the names that no channel may have.
    """

    def __init__(
        self, events: Sequence[Event], reserved: Set[str] = frozenset()
    ) -> None:
        self.named: dict[str, Channel] = {}
        self._by_pair: dict[tuple[str, ...], Channel] = {}
        self._names = set(reserved)
        acting = {event.process for event in events}  # only these are started
        for event in events:
            if event.request == "open_channel":
                self._open(event)
            elif event.request == "drop_channel":
                self._drop(event)
            elif event.request in PAIR_REQUESTS:
                both = {event.process, str(event.arguments[0])}
                self._pair_channel(event).users |= both & acting
            elif event.kind == "call":
                self._note_users(event)

    def used_by(self, event: Event) -> Channel:
        """Return the channel that an event uses."""
        return self._by_pair[_key(event)]

    def needed_by(self, process: str, others: Iterable[str]) -> Iterator[Channel]:
        """Yield the channels to make before a process is started after the others."""
        started = {OWNER, *others}
        for channel in self._by_pair.values():
            if process in channel.users and not channel.users & (started - {OWNER}):
                yield channel

    def of_owner(self) -> Iterator[Channel]:
        """Yield the channels that only the owner uses."""
        return (c for c in self._by_pair.values() if c.users == {OWNER})

    def names_for(self, process: str) -> list[str]:
        """Return the names of the channel ends that are arguments of a process."""
        channels = [*self._by_pair.values(), *self.named.values()]
        used = (c for c in channels if process in c.users and process != c.maker)
        return [name for channel in used for name in channel.names_for(process)]

    def _open(self, event: Event) -> None:
        kind, _ = event.arguments
        if not event.is_answered or event.raised:
            raise Untranslatable(f"no channel of the kind {kind} could be made")
        if kind != "pipe" and kind not in CONSTRUCTORS:
            raise Untranslatable(f"a program cannot have a channel of the kind {kind}")
        if kind == "pipe":
            ends = {"get": self._name("reader"), "put": self._name("writer")}
            made = Channel("one-way pipe", ends, event.process)
        else:
            made = Channel(kind, {"": self._name("queue")}, event.process)
        self.named[event.returned["channel"]] = made

    def _drop(self, event: Event) -> None:
        """Free the names for later channels after the maker has dropped a channel."""
        channel = self.named[str(event.arguments[0])]
        if channel.maker == event.process:
            self._names -= set(channel.ends.values())

    def _pair_channel(self, event: Event) -> Channel:
        key = _key(event)
        if key not in self._by_pair:
            if key[0] == "pipe":
                ends = {
                    end: self._name(f"end_of_{_identifier(end)}") for end in key[1:]
                }
                self._by_pair[key] = Channel("pipe", ends)
            else:
                self._by_pair[key] = Channel(key[0], {"": self._name("queue")})
        return self._by_pair[key]

    def _note_users(self, event: Event) -> None:
        def note(found: dict[str, str]) -> str:
            if "channel" in found:
                who = event.process
                if event.request == "start_peer":
                    who = str(event.arguments[0])
                self.named[found["channel"]].users.add(who)
            return ""

        source_of(list(event.arguments), note)

    def _name(self, wanted: str) -> str:
        name = unused_name(wanted, self._names)
        self._names.add(name)
        return name


def _key(event: Event) -> tuple[str, ...]:
    other, kind = str(event.arguments[0]), str(event.arguments[1])
    if kind == "pipe":
        return (kind, *sorted((event.process, other)))
    sender = (
        (event.process, other) if event.request == "put" else (other, event.process)
    )
    return (kind, *sender)


def _identifier(name: str) -> str:
    return name.replace("-", "_")


def unused_name(wanted: str, names: Set[str]) -> str:
    """Return `wanted`, with a number if it is already in `names`."""
    name, number = wanted, 1
    while name in names:
        number += 1
        name = f"{wanted}_{number}"
    return name
