"""Steps and checks that the tests of several chapters use.

A test passes its tensors and actors to these functions. The functions do not know which
clauses are judged: the decorator of the test cites them, and `judging` names those that
one block of the test judges.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sharedtensor_conformance.chapters.message_actions import sending_when_pickled
from sharedtensor_conformance.chapters.process_actions import end_program, start_program
from sharedtensor_conformance.chapters.tensor_actions import (
    mapped_file,
    put_aside,
    share_each,
    take_back,
)
from sharedtensor_conformance.harness import check, eventually
from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.case.outcomes import (
    Broken,
    DeadlineExceeded,
    NotRun,
    Unsupported,
)
from sharedtensor_conformance.harness.ledger.stage_ledger import Holdings
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.remote.calls import Remote
from sharedtensor_conformance.report.verdicts import Need

LEAK_ROUNDS = 20
"""The number of rounds of a leak test. A leak in one of ten rounds is found."""

LENGTHS = tuple(4**power for power in range(11))
"""Lengths of tensors in elements of 4 bytes, from one element to 4 MiB."""

DIFFERENTIABLE = ("float32", "float64", "complex64", "complex128")
"""The dtypes whose leaves can require grad in every library with grads."""

QUEUE_KINDS = ("queue", "simple_queue")
"""The channels from which several processes, or several threads, may receive."""


PROMPT_EXIT = 0.5
"""The number of seconds in which a process ends if it waits for nothing."""


@contextmanager
def judging(*clauses: str) -> Iterator[None]:
    """Name the clauses of the case that are broken if the block fails.

    The first clause is the most specific. A block inside this block is more specific:
    the clauses that it names are kept.
    """
    try:
        yield
    except Broken as error:
        error.clauses = error.clauses or clauses
        raise


def sender_and_receiver(fresh: Any, direction: str) -> tuple[Any, Any]:
    """Return the sender and the receiver on the isolated stage `fresh`.

    `direction` is one of `axes.DIRECTIONS`.
    """
    owner, peer = fresh.owner, fresh.peer
    return (owner, peer) if direction == "to_peer" else (peer, owner)


def unthreaded_channel(stage: Any) -> str:
    """Return a claimed channel, if possible one that sends in the calling thread.

    On such a channel the call that sends raises if the message cannot be sent.
    """
    claimed = stage.implementation.channels
    return next(kind for kind in ("pipe", "simple_queue", "queue") if kind in claimed)


def claimed_queues(stage: Any) -> list[str]:
    """Return the claimed channels from which several processes may receive.

    Raises:
        Unsupported: no such channel is claimed.
    """
    claimed = [kind for kind in QUEUE_KINDS if kind in stage.implementation.channels]
    if not claimed:
        raise Unsupported(f"none of the channels {', '.join(QUEUE_KINDS)} is claimed")
    return claimed


def check_shared_memory(*tensors: Any) -> None:
    """Write through each tensor in turn; check that all tensors read every write."""
    expected = tensors[0].values()
    for turn, writer in enumerate(tensors):
        index = turn % len(expected)
        expected[index] += 31 + turn
        writer.write(index, expected[index])
        for number, reader in enumerate(tensors):
            sentence = f"tensor {number} reads what was written through tensor {turn}"
            check.equal(reader.values(), expected, sentence)


def check_private_memory(*tensors: Any) -> None:
    """Write through each tensor in turn; check that no other tensor reads the write."""
    expected = [tensor.values() for tensor in tensors]
    for turn, writer in enumerate(tensors):
        expected[turn][0] += 31 + turn
        writer.write(0, expected[turn][0])
        for number, reader in enumerate(tensors):
            sentence = f"tensor {number} has its own values after a write to {turn}"
            check.equal(reader.values(), expected[number], sentence)


def wait_for_all(*pending: Any) -> list[Any]:
    """Return the answers to `pending` requests, which processes execute in parallel.

    All answers are awaited, even after a failure. Otherwise a late answer would be
    taken for the answer to the next request.

    Raises:
        DeadlineExceeded: a process gave no answer. The message contains all failures,
            because the failure of another process may be the cause.
        RemoteRaised, ActorDied: the first failure, if no deadline was exceeded.
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


def overwrite_freed_memory(actor: Any, length: int = 4) -> list[Any]:
    """Return eight new tensors, which overwrite memory that `actor` freed too early."""
    rows = range(8)
    return [actor.make([200 + 10 * r + i for i in range(length)]) for r in rows]


def fork_with(owner: Any, tensors: list[Any], count: int = 1) -> list[Any]:
    """Let the owner fork children that inherit `tensors`; return the children's lists.

    Each child can drop what it has inherited, which it could not if the tensors were
    its arguments themselves.
    """
    aside = owner.run(put_aside, tensors)
    children = [owner.start_peer([aside], start_method="fork") for _ in range(count)]
    owner.run(take_back, aside)
    return [child.run(take_back, *child.arguments) for child in children]


def share_separately(stage: Any, actor: Any, tensors: list[Any]) -> list[Any]:
    """Share each of the `tensors` by a separate call, if possible, and return them.

    An implementation may put the tensors that a message shares into one segment.
    Separate calls prevent this. Nothing is done if `share` is not claimed.
    """
    if "share" in stage.implementation.claims:
        actor.run(share_each, tensors)
    return tensors


def holdings_of(stage: Any, *actors: Any) -> Holdings:
    """Return the existing segments, and the descriptors and mappings of `actors`."""
    found: Holdings = stage.holdings(*actors)
    return found


def check_no_growth(before: Holdings, stage: Any, *actors: Any) -> None:
    """Wait until segments, descriptors and mappings are no more than `before`.

    Args:
        before: the result of `holdings_of` for the same actors.
        stage: the stage of the actors.
        actors: the processes whose descriptors and mappings are compared.

    Raises:
        LeftBehind: there are more.
    """
    stage.check_released(before, *actors)


def leftovers(stage: Any) -> list[str]:
    """Return the existing segments by name, and processes by command line."""
    return [*stage.ledger.segments(), *stage.ledger.processes().values()]


def share_once_more(stage: Any, *actors: Any) -> None:
    """Share a tensor in each of the actors, where no manager is claimed.

    Until then the names that other processes have left may stay: LIFE-13, FS-9.
    """
    if "manager" in stage.implementation.claims:
        return
    for actor in actors:
        other = stage.peer if actor is stage.owner else stage.owner
        tensor = actor.make([1])
        actor.send(tensor, other).drop()
        tensor.drop()


def share_in_another_program(stage: Any) -> None:
    """Do that in a program that begins when all processes of a stage have ended.

    Until then the names that killed processes have left may stay: LIFE-10.
    """
    if "manager" in stage.implementation.claims:
        return
    gone = lambda: not stage.ledger.processes()  # noqa: E731
    eventually(gone, "no process is left", within=stage.grace)
    stage.kill_all()
    stage.starter.start_again()
    share_once_more(stage, stage.owner)
    stage.leave_all()


def process_counts(stage: Any, *actors: Any) -> list[int]:
    """Return the numbers of temporary files, processes, and threads of each actor."""
    shown = stage.ledger.read()
    held = [shown["processes"][str(actor.pid)] for actor in actors]
    counts = [len(shown["files"]), len(shown["processes"])]
    return counts + [one["threads"] for one in held]


def wait_until_receivable(
    sender: Any,
    receiver: Any,
    channel: str = "",
    sentence: str = "the message can be received",
) -> None:
    """Wait until the receiver can receive a message of the sender.

    A channel may write the message in a thread, after the call of `put` has returned.
    """
    there = lambda: receiver.has_message(sender, channel)  # noqa: E731
    eventually(there, sentence, receiver.deadline)


def require_segment_per_storage(stage: Any) -> None:
    """Require that a storage has its own segment, which is removed with the storage.

    Raises:
        Unsupported: the implementation keeps segments for later use.
    """
    if kept := stage.implementation.kept_segments:
        raise Unsupported(f"no storage has a segment of its own: {kept} are kept")


def new_segment_name(stage: Any, before: set[str]) -> str:
    """Return the name of the only segment that was added since `before`.

    Wait for the name: after a `put` it may appear a little later. Whether that is
    permitted is judged by CHAN-7.

    Raises:
        Unsupported: the implementation keeps segments for later use.
    """
    require_segment_per_storage(stage)
    is_there = lambda: stage.ledger.segments() - before  # noqa: E731
    eventually(is_there, "the storage has a file", stage.owner.deadline)
    names = stage.ledger.segments() - before
    check.equal(len(names), 1, "exactly one file belongs to the storage")
    return str(names.pop())


def files_of_storages(stage: Any, before: set[str], count: int) -> set[str]:
    """Return the files that contain `count` storages, shared since `before`.

    Check that each storage has a file of its own. If the implementation keeps segments
    for later use, the storages can be in one file, and in an older one. Then all files
    are returned, without this check.
    """
    keeps = stage.implementation.kept_segments > 0
    known, needed = (set(), 1) if keeps else (before, count)

    def new_files() -> set[str]:
        files: set[str] = stage.ledger.segments()
        return files - known

    there = lambda: len(new_files()) >= needed  # noqa: E731
    eventually(there, "each storage has a file", stage.owner.deadline, new_files)
    files = new_files()
    if not keeps:
        check.equal(len(files), count, "each storage has a file of its own")
    return files


def file_of(tensor: Any) -> str:
    """Return the identity of the mapped file that contains the first element."""
    file: str = tensor.actor.run(mapped_file, tensor)
    check(file, "the tensor lies in a file that is mapped")
    return file


def confine(
    actor: ActorProxy, need: Need, action: Callable[..., str], *arguments: Any
) -> None:
    """Make an actor restrict itself by one of the actions that need a permission.

    Raises:
        NotRun: the system does not permit it.
    """
    if why_not := actor.run(action, *arguments):
        raise NotRun(why_not, need)


@contextmanager
def other_program(actor: Any) -> Iterator[int]:
    """Make an actor start another program, which waits; yield its pid."""
    program, pid = actor.run(start_program)
    try:
        yield pid
    finally:
        if actor.is_alive():
            actor.run(end_program, program)


def sends_when_pickled(
    actor: ActorProxy, payload: Any, to: ActorProxy, channel: str
) -> Remote:
    """Return an object of `actor` that puts a payload while it is pickled."""
    made: Remote = actor.run(sending_when_pickled, to.name, channel, payload)
    to.unreceived[actor.name] += 1
    return made


@contextmanager
def strategy_set(actor: Any, name: str) -> Iterator[None]:
    """Set the sharing strategy of `actor` to `name` during the block."""
    before = actor.module.get_sharing_strategy()
    actor.module.set_sharing_strategy(name)
    try:
        yield
    finally:
        actor.module.set_sharing_strategy(before)


def all_strategies(actor: Any) -> list[str]:
    """Return the sorted names of the strategies that `actor` can set.

    Check that the strategy of the configuration is one of them.
    """
    names = sorted(actor.module.get_all_sharing_strategies())
    claimed = actor.host.configuration.strategy
    check(claimed in names, f"{claimed!r}, which is claimed, is among the strategies")
    return names


def several_strategies(actor: Any) -> list[str]:
    """Return the names of `all_strategies`; check that there are at least two."""
    names = all_strategies(actor)
    check(len(names) > 1, "there are two strategies at least, as is claimed")
    return names


def kill_managers(stage: Any, fresh: Any) -> None:
    """Kill the managers of the stage `fresh` by SIGKILL; wait until they have ended.

    The wait uses pidfds. The ledger cannot be used: it recognizes a manager by its
    command line, which a dying process loses while its sockets are still open.
    """
    managers = fresh.ledger.managers()
    check(managers, "there is a manager")
    for manager in managers:
        death = os.pidfd_open(manager["pid"])
        os.kill(manager["pid"], signal.SIGKILL)
        ended = select.select([death], [], [], stage.grace)[0]
        os.close(death)
        check(ended, "it is dead")
    listener().managers_signalled(signal.SIGKILL)


def tensors_after_strategy_change(
    owner: Any, channel: str, strategy: str
) -> Iterator[Any]:
    """Yield tensors that a new process shares under `strategy` after another strategy.

    For each other strategy, a new child shares a tensor under it, changes to
    `strategy`, shares a second tensor, and sends a third one to the owner. The second
    tensor, the third one, and the third one as the owner received it are yielded. Then
    the values of all of them are checked.
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
        check_shared_memory(sent, arrived)
        check.equal(earlier.values(), [51, 52], "what was shared before stays")
        check.equal(asked.values(), [53, 54], "so does what was shared after it")
