"""Faults of the protocol of device memory, each of which the searches have to find.

A fault replaces one function of the package. It names the program in whose
interleavings it shows, and the number of kills that this needs. Its docstring says what
is wrong, and is part of the record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from sharedtensor.cuda import counts, protocol
from sharedtensor.cuda.counts import Count, CountTable


@dataclass(frozen=True)
class Fault:
    """One fault: the attribute of `holder` that it replaces, and where it shows."""

    name: str
    sentence: str
    holder: Any
    attribute: str
    replacement: Any
    scenario: str
    kills: int

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        with mock.patch.object(self.holder, self.attribute, self.replacement):
            yield


FAULTS: dict[str, Fault] = {}


def fault(
    holder: Any, attribute: str, scenario: str, kills: int = 0
) -> Callable[[Any], Any]:
    """Register the decorated function as a replacement; see `Fault` for arguments."""

    def register(replacement: Any) -> Any:
        sentence = " ".join(replacement.__doc__.split())
        name = replacement.__name__
        assert hasattr(holder, attribute), f"nothing is replaced: {attribute}"
        made = Fault(name, sentence, holder, attribute, replacement, scenario, kills)
        FAULTS[name] = made
        return replacement

    return register


@fault(protocol, "finish_after_waits", "one_sends_twice")
def keeps_the_count_before_it_has_waited(state, finish):
    """The sender is told that an event is done with while the wait is pending."""
    finish()


@fault(protocol, "finish_waits", "one_passes_on", kills=1)
def sends_on_before_it_has_waited(state):
    """A process sends on what it has not waited for itself."""


@fault(protocol, "wait_for_event", "one_sends")
def waits_for_no_event(driver, handle):
    """The receiver does not wait for the sender's event."""


@fault(protocol, "may_free", "one_sends")
def frees_what_is_counted(allocation):
    """The maker frees when its last tensor dies."""
    return True


@fault(protocol, "close_allocation", "both_write")
def closes_before_the_work_is_done(state, allocation):
    """The receiver closes the memory and synchronises then."""
    state.unregister(allocation)
    state.driver.close_handle(allocation.base)
    protocol.finish_work(state)
    allocation.held.release()


@fault(protocol, "close_allocation", "one_sends")
def releases_before_it_closes(state, allocation):
    """The receiver gives its count back while it has the memory open."""
    state.unregister(allocation)
    protocol.finish_work(state)
    allocation.held.release()
    state.driver.close_handle(allocation.base)


@fault(protocol, "free_allocation", "one_drops_at_once")
def frees_before_the_work_is_done(state, allocation):
    """The maker frees memory on which it has work to be done."""
    state.unregister(allocation)
    state.driver.free(allocation.base)


@fault(CountTable, "vacate_dead", "one_sends", kills=1)
def counts_the_dead(table):
    """The slots of receivers that have died are never vacated."""


@fault(CountTable, "vacate_dead", "two_receive", kills=1)
def vacates_the_living_with_the_dead(table):
    """When one receiver has died the slots of all are vacated."""
    received = table.slots["state"] >= counts.TAKEN
    holders = np.unique(table.slots[["pid", "start"]][received]).tolist()
    if not all(counts.is_alive(pid, start) for pid, start in holders):
        table.slots["state"][received] = counts.VACANT


@fault(CountTable, "vacate_dead", "one_of_two_is_sent_on", kills=1)
def vacates_what_took_a_slot_of_the_dead(table):
    """A message in a slot that a dead receiver once had is vacated with the others."""
    received = table.slots["state"] >= counts.TAKEN
    for pid, start in np.unique(table.slots[["pid", "start"]][received]).tolist():
        if not counts.is_alive(pid, start):
            table.slots["state"][table.slots["pid"] == pid] = counts.VACANT


@fault(CountTable, "claim", "two_send")
def claims_without_the_lock(table, allocation):
    """Two sends that claim a slot at once may claim the same one."""
    process = table.file.process()
    process.point("looks for a slot")
    slot = int(np.flatnonzero(table.slots["state"] == counts.VACANT)[0])
    process.observe(slot)
    process.point("claims it")
    table.used[0] = max(table.used[0], slot + 1)
    row = table.slots[slot]
    row["allocation"] = allocation
    row["serial"] += 1
    row["state"] = counts.IN_FLIGHT
    return Count(table, slot, int(row["serial"]))


@fault(Count, "take", "a_message_is_built_twice")
def takes_what_was_taken(count):
    """A message can be received again, and gives back a count that is another's."""
    with count.table.file.held():
        row = count.table.slots[count.slot]
        row["pid"], row["start"] = counts.own_identity()
        row["state"] = counts.TAKEN


@fault(Count, "take", "two_receive", kills=1)
def takes_before_it_says_who_it_is(count):
    """A slot is taken before it names its receiver."""
    with count.table.file.held():
        count.table.file.process().point("takes")
        row = count.table.slots[count.slot]
        row["state"] = counts.TAKEN
        count.table.file.process().point("says who it is")
        row["pid"], row["start"] = counts.own_identity()


@fault(Count, "release", "one_sends")
def never_releases(count):
    """A receiver keeps its slot when it has dropped its tensor."""


@fault(protocol, "retire_events", "one_sends")
def keeps_every_event(state):
    """The sender destroys no event."""


@fault(protocol, "record_event", "one_sends")
def records_no_event(state, count):
    """The event stands for no work, since it is never recorded."""
    event = state.driver.event_create()
    state.sent_events.append(protocol.SentEvent(count, event))
    return state.driver.event_handle(event)


@fault(protocol, "allocate_or_collect", "room_is_short")
def does_not_collect(state, allocate, nbytes):
    """Where there is no room, what was given back is not freed before."""
    return allocate(nbytes)
