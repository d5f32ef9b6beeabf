"""The state machines of a storage, a message, a name and a process, as tables.

The tables combine what the clauses say one by one. Each machine has states, and for
each state the events that are possible in it. A transition names the clauses that say
what must hold after the event.

The model of random histories (`history_model`) uses the tables to find the next state,
and to cite the clauses that an implementation breaks. The site shows the tables. An
event that is not in a table cannot happen, so it is an error of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


class ImpossibleTransition(Exception):
    """A machine has no such event in this state, which is an error of the model."""


@dataclass(frozen=True)
class Transition:
    """The state that follows an event in a state, and the clauses that apply then."""

    state: str
    event: str
    next: str
    clauses: tuple[str, ...]


@dataclass(frozen=True)
class Machine:
    """The states of one kind of object, and the transitions between them.

    Args:
        name: the kind of object.
        states: the meaning of each state, for the site. The first state is the initial
            one.
        transitions: all transitions; at most one for a state and an event.
    """

    name: str
    states: dict[str, str]
    transitions: tuple[Transition, ...]

    @property
    def first(self) -> str:
        """The initial state."""
        return next(iter(self.states))

    @cached_property
    def _table(self) -> dict[tuple[str, str], Transition]:
        return {(one.state, one.event): one for one in self.transitions}

    def after(self, state: str, event: str) -> Transition:
        """Return the transition for an event in a state.

        Raises:
            ImpossibleTransition: the machine has no such transition.
        """
        found = self._table.get((state, event))
        if found is None:
            message = f"{self.name}: {event!r} cannot happen in {state!r}"
            raise ImpossibleTransition(message)
        return found


def _transitions(*rows: tuple[str, str, str, str]) -> tuple[Transition, ...]:
    return tuple(
        Transition(state, event, then, tuple(clauses.split()))
        for state, event, then, clauses in rows
    )


STORAGE = Machine(
    "storage",
    {
        "private": "it is in the memory of one process",
        "shared": "it is in a segment that some process or message refers to",
        "released": "no memory, descriptor or name of it is left",
    },
    _transitions(
        ("private", "written", "private", "SHARE-12"),
        ("private", "shared", "shared", "SHARE-5 SHARE-12"),
        ("private", "sent", "shared", "SHARE-3 CHAN-4"),
        ("private", "given to a spawned process", "shared", "START-2"),
        ("private", "inherited", "private", "START-4"),
        ("private", "copied by a fork", "private", "START-4"),
        ("private", "last reference dropped", "released", "LIFE-7"),
        ("private", "last holder exited", "released", "LIFE-9"),
        ("private", "last holder was killed", "released", "LIFE-10"),
        ("shared", "written", "shared", "SHARE-1 SHARE-2 SHARE-12"),
        ("shared", "shared", "shared", "RESHARE-1 SHARE-12"),
        ("shared", "sent", "shared", "CHAN-5 SHARE-12"),
        ("shared", "sent on", "shared", "RESHARE-5 SHARE-12"),
        ("shared", "received", "shared", "SHARE-12 SHARE-1"),
        ("shared", "given to a spawned process", "shared", "START-2"),
        ("shared", "inherited", "shared", "START-3 LIFE-22"),
        ("shared", "dropped", "shared", "LIFE-17 LIFE-1"),
        ("shared", "dropped in flight", "shared", "LIFE-2"),
        ("shared", "holder exited", "shared", "LIFE-3 LIFE-20 LIFE-11"),
        ("shared", "holder was killed", "shared", "LIFE-4 LIFE-20 LIFE-11"),
        ("shared", "message was lost", "shared", "LIFE-17"),
        ("shared", "strategy changed", "shared", "STRAT-4 SHARE-12"),
        ("shared", "manager was killed", "shared", "MGR-12"),
        ("shared", "last reference dropped", "released", "LIFE-17 LIFE-7"),
        ("shared", "last holder exited", "released", "LIFE-20 LIFE-9"),
        ("shared", "last holder was killed", "released", "LIFE-8 LIFE-10"),
    ),
)

MESSAGE = Machine(
    "message",
    {
        "new": "it is about to be put",
        "in flight": "it was put, and has to arrive",
        "uncertain": "its sender ended abruptly: it arrives whole, or not at all",
        "received": "one process has it",
        "refused": "its queue was full: it is nowhere",
        "lost": "nobody gets it any more, and nothing of it is left",
    },
    _transitions(
        ("new", "put", "in flight", "CHAN-4"),
        ("new", "refused", "refused", "CHAN-4 LIFE-7"),
        ("in flight", "sender dropped", "in flight", "LIFE-2"),
        ("in flight", "sender exited", "in flight", "LIFE-5"),
        ("in flight", "sender ended abruptly", "uncertain", "LIFE-6"),
        ("in flight", "process ended", "in flight", "CHAN-4 LIFE-15"),
        ("in flight", "waiting reader was killed", "in flight", "LIFE-16"),
        ("in flight", "process forked", "in flight", "LIFE-15 CHAN-4"),
        ("in flight", "manager was killed", "in flight", "MGR-13 MGR-14"),
        ("in flight", "received", "received", "CHAN-4 LIFE-15"),
        ("in flight", "everybody ended", "lost", "LIFE-14"),
        ("uncertain", "process ended", "uncertain", "LIFE-6"),
        ("uncertain", "waiting reader was killed", "uncertain", "LIFE-6"),
        ("uncertain", "process forked", "uncertain", "LIFE-6"),
        ("uncertain", "manager was killed", "uncertain", "LIFE-6"),
        ("uncertain", "received", "received", "LIFE-6"),
        ("uncertain", "found missing", "lost", "LIFE-6"),
        ("uncertain", "everybody ended", "lost", "LIFE-14"),
    ),
)

NAME = Machine(
    "name",
    {
        "none": "the storage is not shared under file_system",
        "there": "one file in /dev/shm belongs to the storage",
        "unwatched": "its manager was killed: it may go only when nobody holds it",
        "removed": "the file is gone, and its name is not used again",
    },
    _transitions(
        ("none", "shared", "there", "FS-1 FS-6"),
        ("there", "holder dropped", "there", "FS-8"),
        ("there", "holder ended", "there", "FS-8 MGR-11"),
        ("there", "sent", "there", "FS-1"),
        ("there", "received", "there", "FS-1 FS-8"),
        ("there", "manager was killed", "unwatched", "MGR-12"),
        ("there", "last holder dropped", "removed", "FS-2"),
        ("there", "last holder ended", "removed", "FS-9 MGR-10"),
        ("there", "last message was lost", "removed", "FS-10"),
        ("unwatched", "holder dropped", "unwatched", "FS-8"),
        ("unwatched", "holder ended", "unwatched", "FS-8 MGR-11"),
        ("unwatched", "sent", "unwatched", "MGR-14"),
        ("unwatched", "received", "unwatched", "MGR-14"),
        ("unwatched", "manager was killed", "unwatched", "MGR-12"),
        ("unwatched", "last holder dropped", "removed", "MGR-14"),
        ("unwatched", "last holder ended", "removed", "MGR-14"),
        ("unwatched", "last message was lost", "removed", "MGR-14"),
    ),
)

PROCESS = Machine(
    "process",
    {
        "running": "it does what it is asked for",
        "waiting": "it waits in a call, for a message or for tasks to be done",
        "exited": "it ended normally; what it held is given back",
        "killed": "it ended abruptly; what it held is given back",
    },
    _transitions(
        ("running", "waits for a message", "waiting", "CHAN-4"),
        ("running", "joins a queue", "waiting", "CHAN-8"),
        ("running", "asks an empty queue", "running", "CHAN-12"),
        ("running", "starts a program", "running", "FD-5 LIFE-23"),
        ("running", "forks", "running", "LIFE-11 START-4"),
        ("running", "manager was killed", "running", "MGR-13"),
        ("running", "exits", "exited", "LIFE-20 MGR-13"),
        ("running", "is killed", "killed", "LIFE-20 LIFE-8"),
        ("waiting", "gets a message", "running", "CHAN-4 LIFE-15"),
        ("waiting", "sees all tasks done", "running", "CHAN-8"),
        ("waiting", "sees the timeout pass", "running", "CHAN-12"),
        ("waiting", "is killed", "killed", "LIFE-16"),
    ),
)

MACHINES = (STORAGE, MESSAGE, NAME, PROCESS)
"""All machines, in the order in which the site shows them."""
