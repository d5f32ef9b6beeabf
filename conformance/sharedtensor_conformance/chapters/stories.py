"""Stories that several chapters tell about their tensors.

A story acts through tensors and actors that a test hands to it and checks what it
finds. It knows no clause: the test that tells it says what the finding means.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sharedtensor_conformance.harness import check, eventually
from sharedtensor_conformance.harness.outcomes import (
    Broken,
    DeadlineExceeded,
    Unsupported,
)
from sharedtensor_conformance.harness.stage_ledger import Holdings

ROUNDS = 20
"""Rounds of a leak test: one thing lost in ten rounds shows."""


LENGTHS = tuple(4**power for power in range(11))
"""Elements of a tensor: of each order of magnitude, up to 4 MiB."""

KINDS = ("queue", "simple_queue")
"""Channels that several processes, or several threads, may receive from."""


@contextmanager
def about(*clauses: str) -> Iterator[None]:
    """Say which of its clauses a case breaks where the block fails.

    Where a block in it has said so, that is nearer to what has failed.
    """
    try:
        yield
    except Broken as error:
        error.clauses = error.clauses or clauses
        raise


def sender_and_receiver(fresh: Any, direction: str) -> tuple[Any, Any]:
    """Return who sends and who receives on an isolated stage."""
    owner, peer = fresh.owner, fresh.peer
    return (owner, peer) if direction == "to_peer" else (peer, owner)


def direct(stage: Any) -> str:
    """Return a channel without threads, if there is one."""
    claimed = stage.implementation.channels
    return next(kind for kind in ("pipe", "simple_queue", "queue") if kind in claimed)


def queues(stage: Any) -> list[str]:
    """Return the kinds of channels that several processes may receive from.

    Raises:
        Unsupported: there is none.
    """
    claimed = [kind for kind in KINDS if kind in stage.implementation.channels]
    if not claimed:
        raise Unsupported(f"none of the channels {', '.join(KINDS)} is claimed")
    return claimed


def each_sees_the_writes_of_the_others(*tensors: Any) -> None:
    """Write through each tensor in turn and read all of them after every write."""
    expected = tensors[0].values()
    for turn, writer in enumerate(tensors):
        index = turn % len(expected)
        expected[index] += 31 + turn
        writer.write(index, expected[index])
        for number, reader in enumerate(tensors):
            sentence = f"tensor {number} reads what was written through tensor {turn}"
            check.equal(reader.values(), expected, sentence)


def each_keeps_its_writes_to_itself(*tensors: Any) -> None:
    """Write through each tensor in turn; only the one that wrote reads the write."""
    expected = [tensor.values() for tensor in tensors]
    for turn, writer in enumerate(tensors):
        expected[turn][0] += 31 + turn
        writer.write(0, expected[turn][0])
        for number, reader in enumerate(tensors):
            sentence = f"tensor {number} has its own values after a write to {turn}"
            check.equal(reader.values(), expected[number], sentence)


def answers_of(*pending: Any) -> list[Any]:
    """Return what several processes answer that do something at the same time.

    Each is waited for, so that none has an answer left for what it is asked next.

    Raises:
        DeadlineExceeded: one gave no answer, perhaps since another raised, as is said.
        RemoteRaised, ActorDied: of the first that went wrong, if all have answered.
    """
    answers: list[Any] = []
    wrong: list[Broken] = []
    for one in pending:
        try:
            answers.append(one.answer())
        except Broken as error:
            wrong.append(error)
    if any(isinstance(error, DeadlineExceeded) for error in wrong):
        raise DeadlineExceeded("; ".join(map(str, wrong)))
    if wrong:
        raise wrong[0]
    return answers


def hold_other_tensors(actor: Any, length: int = 4) -> list[Any]:
    """Make tensors that overwrite memory which `actor` has freed too early."""
    rows = range(8)
    return [actor.make([200 + 10 * r + i for i in range(length)]) for r in rows]


def shared_apart(stage: Any, actor: Any, tensors: list[Any]) -> list[Any]:
    """Return tensors that have no segment in common, shared beforehand if that can be.

    What is first shared by one message may lie in one segment.
    """
    if "share" in stage.implementation.claims:
        actor.request("act", "share_each", tensors)
    return tensors


def opened(stage: Any, *actors: Any) -> Holdings:
    """Return the segments, and the descriptors and mappings of each of the `actors`."""
    found: Holdings = stage.holdings(*actors)
    return found


def nothing_is_added(before: Holdings, stage: Any, *actors: Any) -> None:
    """Wait until there is nothing more than `opened` found `before`."""
    stage.check_given_back(before, *actors)


def machinery(stage: Any, *actors: Any) -> list[int]:
    """Count temporary files and processes, and threads of the actors."""
    shown = stage.ledger.read()
    held = [shown["processes"][str(actor.pid)] for actor in actors]
    counts = [len(shown["files"]), len(shown["processes"])]
    return counts + [one["threads"] for one in held]


def is_sent(
    sender: Any,
    receiver: Any,
    channel: str = "",
    sentence: str = "the message can be received",
) -> None:
    """Wait until a message has left its sender, where a thread may write it."""
    there = lambda: receiver.has_message(sender, channel)  # noqa: E731
    eventually(there, sentence, receiver.deadline)


def each_storage_has_a_segment(stage: Any) -> None:
    """See that a segment comes and goes with its storage, and has no other.

    Raises:
        Unsupported: the implementation keeps segments for later use.
    """
    if kept := stage.implementation.kept_segments:
        raise Unsupported(f"no storage has a segment of its own: {kept} are kept")


def only_name(stage: Any, before: set[str]) -> str:
    """Return the one name that is there and was not `before`.

    After a put it may come a little later: whether it may is the matter of CHAN-7.

    """
    each_storage_has_a_segment(stage)
    is_there = lambda: stage.ledger.segments() - before  # noqa: E731
    eventually(is_there, "the storage has a file", stage.owner.deadline)
    names = stage.ledger.segments() - before
    check.equal(len(names), 1, "exactly one file belongs to the storage")
    return str(names.pop())


def files_of_storages(stage: Any, before: set[str], count: int) -> set[str]:
    """Return the files in which `count` storages lie that were shared since `before`.

    Where segments are kept for later use they can lie together, and in a file that was
    there before: then all files are returned.
    """
    keeps = stage.implementation.kept_segments > 0
    known, needed = (set(), 1) if keeps else (before, count)

    def found() -> set[str]:
        files: set[str] = stage.ledger.segments()
        return files - known

    there = lambda: len(found()) >= needed  # noqa: E731
    eventually(there, "each storage has a file", stage.owner.deadline, found)
    files = found()
    if not keeps:
        check.equal(len(files), count, "each storage has a file of its own")
    return files


def file_of(tensor: Any) -> str:
    """Return the file in which a tensor lies, as its process has mapped it."""
    file: str = tensor.actor.request("act", "file_of", tensor)
    check(file, "the tensor lies in a file that is mapped")
    return file


@contextmanager
def strategy_set(actor: Any, name: str) -> Iterator[None]:
    """Give `actor` the sharing strategy `name` for a while."""
    before = actor.module.get_sharing_strategy()
    actor.module.set_sharing_strategy(name)
    try:
        yield
    finally:
        actor.module.set_sharing_strategy(before)


def all_strategies(actor: Any) -> list[str]:
    """Return the names of the strategies that `actor` can set, in order."""
    names = sorted(actor.module.get_all_sharing_strategies())
    claimed = actor.host.configuration.strategy
    check(claimed in names, f"{claimed!r}, which is claimed, is among the strategies")
    return names


def several_strategies(actor: Any) -> list[str]:
    """Return the same, and see that there are two at least, as is claimed."""
    names = all_strategies(actor)
    check(len(names) > 1, "there are two strategies at least, as is claimed")
    return names


def kill_managers(stage: Any, fresh: Any) -> None:
    """Kill the managers of a stage by SIGKILL, and wait until they are dead.

    A process that is dying has no command line any more, and sockets still.
    """
    managers = fresh.ledger.managers()
    check(managers, "there is a manager")
    for manager in managers:
        death = os.pidfd_open(manager["pid"])
        os.kill(manager["pid"], signal.SIGKILL)
        ended = select.select([death], [], [], stage.grace)[0]
        os.close(death)
        check(ended, "it is dead")


def shared_after_another(owner: Any, channel: str, strategy: str) -> Iterator[Any]:
    """Yield tensors that a new process has shared, and sent, under a strategy.

    It has used each of the others before, and this one not yet; the owner has the
    tensors, too. What was shared before stays as it is.
    """
    for before in sorted(set(several_strategies(owner)) - {strategy}):
        child = owner.start_peer()
        child.module.set_sharing_strategy(before)
        earlier = child.make([51, 52])
        earlier.share()
        child.module.set_sharing_strategy(strategy)
        asked, sent = child.make([53, 54]), child.make([55, 56])
        asked.share()
        arrived = child.send(sent, owner, channel)
        yield from (asked, sent, arrived)
        each_sees_the_writes_of_the_others(sent, arrived)
        check.equal(earlier.values(), [51, 52], "what was shared before stays")
        check.equal(asked.values(), [53, 54], "so does what was shared after it")
