"""Storages of every size that come and go, in three processes and in forked children.

Whoever puts storages beside each other, remembers them by a number that the system
gives out again, or keeps what was given back, is right for the first tensors and for
small ones. Here storages are made, sent, sent on, written and dropped in an order that
chance chose once, and after each round every element of all of them is read.
"""

import random
from itertools import pairwise, product

from sharedtensor_conformance.chapters.stories import (
    about,
    nothing_is_added,
    opened,
)
from sharedtensor_conformance.harness import check, clause

LENGTHS = (
    *(0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 1000),
    *(1023, 1024, 1025, 1026, 2047, 2048, 2049, 4096, 4097, 8191, 16_384, 16_385),
)
"""Elements of four bytes: of nothing, little, whole pages, and a little more."""

LARGE = (65_536, 65_537, 131_072, 262_145)
"""The same, of which each round has one at most."""

ROUNDS = 9
MADE = 7
"""Storages that are made in a round by each process."""

MANY_LARGE = 20
"""Storages of a MiB that each process has at once in the end: more than may be kept.

What was given back too early is given out again by then.
"""

MEGABYTE = 262_144
"""Elements of a MiB."""

ALL = 1.1
"""More than any random number."""

THREADS_IN = (3, 6)
"""Rounds from the first of which to the second a process has a thread that waits."""

FORK_AFTER = 3
"""Rounds after which the owner forks, where it does."""


class Holder:
    """A process, and what it should have."""

    def __init__(self, actor, held=None, numbers=()):
        self.actor = actor
        self.held = held or actor.request("act", "new_storages")
        self.numbers = set(numbers)

    def act(self, what, *arguments):
        """Let the process do something with what it has."""
        return self.actor.request("act", what, self.held, *arguments)


class Exchange:
    """Storages that go to and fro between processes, and what should be in them."""

    def __init__(self, actors, channels, seed):
        self.chance = random.Random(seed)
        self.channels = channels
        self.holders = [Holder(actor) for actor in actors]
        self.added = {}
        self.made = 0

    def some(self, numbers, share=0.5):
        """Return a part of these numbers, in an order of its own."""
        chosen = [n for n in sorted(numbers) if self.chance.random() < share]
        self.chance.shuffle(chosen)
        return chosen

    def make(self, holder):
        """Let a process make storages."""
        lengths = self.chance.choices(LENGTHS, k=MADE - 1)
        lengths.append(self.chance.choice(LARGE if self.made % 2 else LENGTHS))
        self.chance.shuffle(lengths)
        self.make_of(holder, lengths)

    def make_of(self, holder, lengths):
        """Let a process make a storage of each of these lengths."""
        first = self.made + 1
        holder.act("make_storages", first, lengths)
        self.made += len(lengths)
        holder.numbers |= set(range(first, self.made + 1))

    def send(self, sender, receiver, share=0.5):
        """Let a process send a part of what it has, in one message."""
        channel = self.chance.choice(self.channels)
        numbers = self.some(sender.numbers, share)
        to = receiver.actor
        sender.act("put_storages", numbers, to.name, channel)
        found = receiver.act("get_storages", sender.actor.name, channel)
        check.equal(found, numbers, "the message arrives")
        receiver.numbers |= set(numbers)

    def write(self, holder, turn):
        """Let a process write to a part of what it has."""
        numbers = self.some(holder.numbers, 0.3)
        holder.act("rewrite_storages", numbers, turn)
        self.added |= dict.fromkeys(numbers, turn)

    def drop(self, holder, share):
        """Let a process drop a part of what it has."""
        numbers = self.some(holder.numbers, share)
        holder.act("drop_storages", numbers)
        holder.actor.collect_garbage()
        holder.numbers -= set(numbers)

    def verify(self, when):
        """Check every element of all that the processes have."""
        for holder in self.holders:
            wrong = holder.act("wrong_storages", self.added)
            where = f"{holder.actor.name} {when}"
            with about("SHARE-12"):
                check.equal(wrong, [], f"the storages with other values in {where}")

    def make_many_large(self, holder):
        """Let a process make more than it had, all at once."""
        self.make_of(holder, [MEGABYTE] * MANY_LARGE)

    def take_a_round(self, turn):
        """Make, send, write and drop."""
        for holder in self.holders[::2]:
            if turn == THREADS_IN[0]:
                holder.actor.request("act", "begin_idle_thread")
            if turn == THREADS_IN[1]:
                holder.actor.request("act", "end_idle_threads")
        order = list(self.holders)
        self.chance.shuffle(order)
        for holder in order[:2]:
            self.make(holder)
        for sender in order:
            for receiver in self.chance.sample(order, 1):
                if can_send(sender, receiver):
                    self.send(sender, receiver)
        self.write(order[0], turn)
        self.verify(f"in round {turn}")
        for holder in order:
            self.drop(holder, self.chance.choice((0.1, 0.3, 0.8)))


def can_send(sender, receiver):
    """Return whether there are channels between two processes."""
    names = {sender.actor.name, receiver.actor.name}
    reused = {"owner", "peer", "bystander"}
    return len(names) == 2 and ("owner" in names or names <= reused)


@clause(
    *("SHARE-12", "SHARE-3", "RESHARE-2", "RESHARE-5", "LIFE-1", "LIFE-17"),
    vary=("strategy",),
    dtypes=("int32",),
    mainly="SHARE-12",
)
def test_storages_of_every_size_that_come_and_go_lie_apart(
    owner, peer, bystander, stage, strategy
):
    """Three processes make, send, write and drop storages; none lies in another."""
    for sender, receiver in ((owner, peer), (peer, bystander), (bystander, owner)):
        sender.send(sender.make([1, 2]), receiver).drop()
    for actor in (owner, peer, bystander):
        actor.drop_all()
    before = opened(stage, owner, peer, bystander)
    channels = list(stage.implementation.channels)
    exchange = Exchange((owner, peer, bystander), channels, strategy)
    for turn in range(1, ROUNDS + 1):
        exchange.take_a_round(turn)
    for holder, other in pairwise(exchange.holders):
        exchange.make_many_large(holder)
        exchange.send(holder, other, ALL)
        exchange.verify(f"after round {ROUNDS}")
        exchange.drop(holder, 0.9)
        exchange.drop(other, 0.5)
    for holder in exchange.holders:
        exchange.drop(holder, ALL)
    nothing_is_added(before, stage, owner, peer, bystander)


@clause(
    *("SHARE-12", "SHARE-3", "START-3", "LIFE-11", "LIFE-22", "RESHARE-2"),
    profiles=("share",),
    vary=("strategy",),
    start_methods=("fork",),
    dtypes=("int32",),
    mainly="LIFE-22",
)
def test_storages_of_forked_processes_lie_apart(owner, peer, stage, strategy):
    """The same, with children that the owner forks in the middle of it, twice.

    What a process knows of its storages and of free room, its child knows as well, and
    each of them goes on from there.
    """
    channels = list(stage.implementation.channels)
    exchange = Exchange((owner, peer), channels, f"forked, {strategy}")
    parent = exchange.holders[0]
    for turn in range(1, ROUNDS + 1):
        exchange.take_a_round(turn)
        if turn % FORK_AFTER == 0 and turn < ROUNDS:
            exchange.make(parent)
            exchange.send(parent, exchange.holders[1])  # so some of them are shared
            parent.act("share_storages")
            child = owner.start_peer(arguments=[parent.held])
            inherited = Holder(child, child.arguments[0], parent.numbers)
            exchange.holders.append(inherited)


LAST = (3, 1025, 5000)
"""Elements of four bytes that do not end where a page does."""


@clause(
    *("LIFE-22", "SHARE-12"),
    profiles=("share",),
    start_methods=("fork",),
    vary=("strategy",),
    dtypes=("int32",),
    isolated=True,
    mainly="LIFE-22",
)
def test_what_was_shared_last_before_a_fork_takes_nothing_with_it(stage):
    """A child inherits a tensor; then parent and child share small ones, each its own.

    Both drop what was inherited, in either order. What either of them believes to be
    the end of its shared memory is so for one of them only. Nothing was shared before,
    so the tensor is the last.
    """
    for length, parent_is_first in product(LAST, (True, False)):
        with stage.fresh() as fresh:
            held = fresh.owner.request("act", "new_storages")
            parent = Holder(fresh.owner, held)
            parent.act("make_storages", 1, [length])
            parent.act("share_storages")
            child = fresh.owner.start_peer(arguments=[held], start_method="fork")
            both = [parent, Holder(child, child.arguments[0])]
            for number, holder in enumerate(both):
                holder.act("make_storages", 10 * (number + 1), [1, 3, 5])
                holder.act("share_storages")
            for holder in both if parent_is_first else both[::-1]:
                holder.act("drop_storages", [1])
                holder.actor.collect_garbage()
                wrong = [each.act("wrong_storages", {}) for each in both]
                check.equal(wrong, [[], []], "what was shared later has its values")
