"""Storages of all sizes that are made and dropped in several processes at random.

An implementation may put several storages into one segment, identify a storage by a
number that the system uses again, or reuse segments. An error in this may show only
after many tensors of many sizes. So three processes, and forked children, make, send,
write and drop storages in a pseudo-random order, the same in each run. After each round
every element of every storage is checked.
"""

import random
from itertools import pairwise, product

from sharedtensor_conformance.chapters.shared_steps import (
    check_no_growth,
    holdings_of,
    judging,
)
from sharedtensor_conformance.chapters.storage_actions import (
    drop_storages,
    get_storages,
    make_storages,
    new_storages,
    put_storages,
    rewrite_storages,
    share_storages,
    wrong_storages,
)
from sharedtensor_conformance.chapters.tensor_actions import collect_garbage
from sharedtensor_conformance.chapters.thread_actions import (
    start_idle_thread,
    stop_idle_threads,
)
from sharedtensor_conformance.harness import check, clause

LENGTHS = (
    *(0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 1000),
    *(1023, 1024, 1025, 1026, 2047, 2048, 2049, 4096, 4097, 8191, 16_384, 16_385),
)
"""Lengths in elements of 4 bytes: zero, small, whole pages, and a little more."""

LARGE_LENGTHS = (65_536, 65_537, 131_072, 262_145)
"""Large lengths. A round of a process has at most one of them."""

ROUNDS = 9
MADE_PER_ROUND = 7
"""The number of storages that a process makes in a round."""

MANY_LARGE = 20
"""The number of storages of 1 MiB that each process makes at the end.

They are more than an implementation may keep for later use, so they also reuse memory
that was freed too early.
"""

MEGABYTE_LENGTH = 262_144
"""The number of elements of 4 bytes in 1 MiB."""

ALL_STORAGES = 1.1
"""A share of storages that selects all: it is above every random number."""

IDLE_THREAD_ROUNDS = (3, 6)
"""The round in which idle threads are started, and the round in which they end."""

FORK_INTERVAL = 3
"""The number of rounds between two forks of the owner, in the test that forks."""


class Holder:
    """A process, and the storages that it should have.

    Args:
        actor: the process.
        held: the collection of its storages, in the process.
        numbers: the numbers of these storages.
    """

    def __init__(self, actor, held=None, numbers=()):
        self.actor = actor
        self.held = held or actor.run(new_storages)
        self.numbers = set(numbers)

    def act(self, action, *arguments):
        """Make the process execute an action on its collection of storages."""
        return self.actor.run(action, self.held, *arguments)


class Exchange:
    """Storages that processes send to each other, and their expected content.

    All elements of a storage have the number of the storage as their value. A write
    changes the first and the last element; `added` has what was added to them.

    Args:
        actors: the processes.
        channels: the channels from which each message takes one at random.
        seed: the seed of the random numbers.
    """

    def __init__(self, actors, channels, seed):
        self.rng = random.Random(seed)
        self.channels = channels
        self.holders = [Holder(actor) for actor in actors]
        self.added = {}
        self.made = 0

    def choose(self, numbers, share=0.5):
        """Return about this share of the numbers, in random order."""
        chosen = [n for n in sorted(numbers) if self.rng.random() < share]
        self.rng.shuffle(chosen)
        return chosen

    def make_random(self, holder):
        """Make a process make `MADE_PER_ROUND` storages of random lengths."""
        lengths = self.rng.choices(LENGTHS, k=MADE_PER_ROUND - 1)
        lengths.append(self.rng.choice(LARGE_LENGTHS if self.made % 2 else LENGTHS))
        self.rng.shuffle(lengths)
        self.make_lengths(holder, lengths)

    def make_lengths(self, holder, lengths):
        """Make a process make a storage of each of these lengths."""
        first = self.made + 1
        holder.act(make_storages, first, lengths)
        self.made += len(lengths)
        holder.numbers |= set(range(first, self.made + 1))

    def send(self, sender, receiver, share=0.5):
        """Make a process send about this share of its storages in one message."""
        channel = self.rng.choice(self.channels)
        numbers = self.choose(sender.numbers, share)
        to = receiver.actor
        sender.act(put_storages, numbers, to.name, channel)
        found = receiver.act(get_storages, sender.actor.name, channel)
        check.equal(found, numbers, "the message arrives")
        receiver.numbers |= set(numbers)

    def write(self, holder, turn):
        """Make a process write to some of its storages in the round `turn`."""
        numbers = self.choose(holder.numbers, 0.3)
        holder.act(rewrite_storages, numbers, turn)
        self.added |= dict.fromkeys(numbers, turn)

    def drop(self, holder, share):
        """Make a process drop about this share of its storages."""
        numbers = self.choose(holder.numbers, share)
        holder.act(drop_storages, numbers)
        holder.actor.run(collect_garbage)
        holder.numbers -= set(numbers)

    def verify(self, when):
        """Check every element of all storages in each process."""
        for holder in self.holders:
            wrong = holder.act(wrong_storages, self.added)
            where = f"{holder.actor.name} {when}"
            with judging("SHARE-12"):
                check.equal(wrong, [], f"the storages with other values in {where}")

    def make_many_large(self, holder):
        """Make a process make `MANY_LARGE` storages of 1 MiB."""
        self.make_lengths(holder, [MEGABYTE_LENGTH] * MANY_LARGE)

    def run_round(self, turn):
        """Make, send, write, check and drop storages in the round `turn`."""
        for holder in self.holders[::2]:
            if turn == IDLE_THREAD_ROUNDS[0]:
                holder.actor.run(start_idle_thread)
            if turn == IDLE_THREAD_ROUNDS[1]:
                holder.actor.run(stop_idle_threads)
        order = list(self.holders)
        self.rng.shuffle(order)
        for holder in order[:2]:
            self.make_random(holder)
        for sender in order:
            for receiver in self.rng.sample(order, 1):
                if can_send(sender, receiver):
                    self.send(sender, receiver)
        self.write(order[0], turn)
        self.verify(f"in round {turn}")
        for holder in order:
            self.drop(holder, self.rng.choice((0.1, 0.3, 0.8)))


def can_send(sender, receiver):
    """Return whether two processes have channels to each other."""
    names = {sender.actor.name, receiver.actor.name}
    reused = {"owner", "peer", "bystander"}
    return len(names) == 2 and ("owner" in names or names <= reused)


@clause(
    *("SHARE-12", "SHARE-3", "RESHARE-2", "RESHARE-5", "LIFE-1", "LIFE-17"),
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
    before = holdings_of(stage, owner, peer, bystander)
    channels = list(stage.implementation.channels)
    exchange = Exchange((owner, peer, bystander), channels, strategy)
    for turn in range(1, ROUNDS + 1):
        exchange.run_round(turn)
    for holder, other in pairwise(exchange.holders):
        exchange.make_many_large(holder)
        exchange.send(holder, other, ALL_STORAGES)
        exchange.verify(f"after round {ROUNDS}")
        exchange.drop(holder, 0.9)
        exchange.drop(other, 0.5)
    for holder in exchange.holders:
        exchange.drop(holder, ALL_STORAGES)
    check_no_growth(before, stage, owner, peer, bystander)


@clause(
    *("SHARE-12", "SHARE-3", "START-3", "LIFE-11", "LIFE-22", "RESHARE-2"),
    profiles=("share",),
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
        exchange.run_round(turn)
        if turn % FORK_INTERVAL == 0 and turn < ROUNDS:
            exchange.make_random(parent)
            exchange.send(parent, exchange.holders[1])  # shares some of them
            parent.act(share_storages)
            child = owner.start_peer(arguments=[parent.held])
            inherited = Holder(child, child.arguments[0], parent.numbers)
            exchange.holders.append(inherited)


PARTIAL_PAGE_LENGTHS = (3, 1025, 5000)
"""Lengths in elements of 4 bytes that do not fill their last page."""


@clause(
    *("LIFE-22", "SHARE-12"),
    profiles=("share",),
    start_methods=("fork",),
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
    for length, parent_is_first in product(PARTIAL_PAGE_LENGTHS, (True, False)):
        with stage.fresh() as fresh:
            held = fresh.owner.run(new_storages)
            parent = Holder(fresh.owner, held)
            parent.act(make_storages, 1, [length])
            parent.act(share_storages)
            child = fresh.owner.start_peer(arguments=[held], start_method="fork")
            both = [parent, Holder(child, child.arguments[0])]
            for number, holder in enumerate(both):
                holder.act(make_storages, 10 * (number + 1), [1, 3, 5])
                holder.act(share_storages)
            for holder in both if parent_is_first else both[::-1]:
                holder.act(drop_storages, [1])
                holder.actor.run(collect_garbage)
                wrong = [each.act(wrong_storages, {}) for each in both]
                check.equal(wrong, [[], []], "what was shared later has its values")
