"""Chapter ENV: the environment of a program, and what a container takes from it.

A test that makes a permanent change has an isolated stage. If the system does not
permit the suite to make an environment, the case is not run.
"""

import errno
import os
from functools import partial
from itertools import permutations

import pytest

from sharedtensor_conformance.chapters.env_actions import (
    change_user,
    enter_pid_namespace,
    forbid,
    leave_pid_namespace,
    mount_own_shm,
    own_pid,
    replace_descriptors,
)
from sharedtensor_conformance.chapters.exhaustion import exhausted
from sharedtensor_conformance.chapters.shared_steps import (
    check_shared_memory,
    confine,
    sender_and_receiver,
    unthreaded_channel,
    wait_until_receivable,
)
from sharedtensor_conformance.chapters.system_changes import (
    limited_shm,
    unusable_shm,
)
from sharedtensor_conformance.harness import attempt, check, clause, eventually
from sharedtensor_conformance.report.verdicts import Need

LENGTH = 4096
SIZE = 4 * LENGTH
"""The size in bytes of a tensor of `LENGTH` elements, which has four pages."""

LONG_TEXT = "x" * 200_000
"""The text of a message that does not fit into one packet."""


def check_send_or_refusal(tensor, values, sender, receiver, channel):
    """Send a tensor; check that it arrives and is shared, unless `put` or `get` raises.

    Returns:
        Whether it arrived.
    """
    _, refused = attempt(lambda: sender.put(tensor, receiver, channel))
    check.equal(tensor.values(), values, "the sender's has its values")
    if refused is not None:
        return False
    sentence = "what put accepted can be received"
    wait_until_receivable(sender, receiver, channel, sentence)
    return check_get_or_refusal(tensor, receiver, sender, channel)


def check_get_or_refusal(tensor, receiver, sender, channel):
    """Receive a tensor, and check that it is shared, unless `get` raises.

    Returns:
        Whether it arrived.
    """
    arrived, refused = receiver.try_get(sender, channel)
    if refused is None:
        check_shared_memory(tensor, arrived)
        arrived.drop()
    return refused is None


@clause("ENV-1")
@pytest.mark.parametrize("how", ["absent", "read-only"])
def test_sharing_without_a_usable_shm_works_or_is_refused(
    sender, receiver, channel, stage, how
):
    """A tensor is in flight, and others are sent, while `/dev/shm` is unusable."""
    for number in range(2):
        early = sender.make([number, 2, 3])
        later = [sender.make([number, 10 + turn, 5]) for turn in range(3)]
        sender.put(early, receiver, channel)
        wait_until_receivable(sender, receiver, channel)
        with unusable_shm(stage, how):
            check_get_or_refusal(early, receiver, sender, channel)
            for turn, tensor in enumerate(later):
                values = [number, 10 + turn, 5]
                check_send_or_refusal(tensor, values, sender, receiver, channel)
        for tensor in (early, *later):
            arrived = sender.send(tensor, receiver, channel)
            check.equal(arrived.values(), tensor.values(), "it can be sent afterwards")
            check_shared_memory(tensor, arrived)


@clause("ENV-1", profiles=("share",))
@pytest.mark.parametrize("how", ["absent", "read-only"])
def test_sharing_by_request_without_a_usable_shm_works_or_is_refused(
    owner, peer, stage, how
):
    """Owner and peer ask to share a tensor while `/dev/shm` is unusable."""
    for number, (actor, other) in enumerate(((owner, peer), (peer, owner))):
        tensor = actor.make([number, 20, 3])
        with unusable_shm(stage, how):
            _, refused = attempt(tensor.share)
            shared = tensor.is_shared()
            check.equal(shared, refused is None, "it is shared if nothing raised")
            tensor.write(1, 21)
            check.equal(tensor.values(), [number, 21, 3], "it can be used")
        tensor.share()
        check.equal(tensor.is_shared(), True, "it can be shared afterwards")
        check_shared_memory(tensor, actor.send(tensor, other))


UNUSABLE_SHM_ERRORS = {
    "absent": ("ENOENT", "ENOTDIR", "EPERM"),
    "read-only": ("EROFS", "EACCES"),
}
SHORTAGE_ERRORS = {
    "descriptors": ("EMFILE", "ENFILE"),
    "memory": ("ENOMEM",),
    "file_size": ("EFBIG",),
}
ERRORS_OF = {"room": ("ENOSPC", "ENOMEM"), **UNUSABLE_SHM_ERRORS, **SHORTAGE_ERRORS}
"""The resources that can be missing, each with the errors of which one must name it."""


def shortage(resource, actor, stage, spare=0):
    """Return a context manager in whose block a resource is missing.

    Args:
        resource: a resource, one of `ERRORS_OF`.
        actor: the only process that lacks descriptors, memory or file size.
        stage: the stage, all of which lacks ``/dev/shm`` or room in it.
        spare: how many descriptors or bytes of memory are left.
    """
    if resource in UNUSABLE_SHM_ERRORS:
        return unusable_shm(stage, resource)
    if resource == "room":
        return limited_shm(stage, 0)
    return exhausted(actor, resource, SIZE // 2 if resource == "file_size" else spare)


def check_names_cause(refused, errors):
    """Check that an exception names one of `errors`.

    Args:
        refused: the exception, or None if nothing was refused.
        errors: names of error codes, such as ``"ENOMEM"``.
    """
    if refused is None:
        return
    numbers = [getattr(errno, name) for name in errors]
    texts = [os.strerror(number) for number in numbers]
    found = (
        any(number in refused.errnos for number in numbers)
        or any(name in refused.message for name in errors)
        or any(text in refused.message + refused.traceback for text in texts)
        or ("ENOMEM" in errors and "MemoryError" in refused.bases)
    )
    check(found, f"the exception names {' or '.join(errors)}: {refused}")


@clause("ENV-2", isolated=True)
def test_refusal_to_send_names_its_cause(stage, direction):
    """The sender puts tensors of four pages while something is missing, in turn.

    It puts one on each channel. What a refusal leaves behind is the matter of FAIL-3
    and FAIL-8.
    """
    with stage.fresh() as fresh:
        sender, receiver = sender_and_receiver(fresh, direction)
        channels = fresh.implementation.channels
        for what, errors in ERRORS_OF.items():
            tensors = [sender.make([0.5] * LENGTH) for _ in channels]
            with shortage(what, sender, fresh):
                refusals = [
                    attempt(partial(sender.put, tensor, receiver, channel))[1]
                    for tensor, channel in zip(tensors, channels, strict=True)
                ]
            for channel, refused in zip(channels, refusals, strict=True):
                check_names_cause(refused, errors)
                if refused is None:
                    receive_or_lose(sender, receiver, channel)
            for tensor in tensors:
                check.equal(tensor.read(LENGTH - 1), 0.5, "the tensor is as it was")


def receive_or_lose(sender, receiver, channel):
    """Receive the message that waits on a channel, if it arrives.

    Whether it does is the matter of other clauses: what is put behind it shows that it
    comes no more.
    """
    sender.put("behind", receiver, channel)
    arrived, _ = receiver.try_get(sender, channel)
    if arrived != "behind":
        receiver.try_get(sender, channel)


@clause("ENV-2", profiles=("share",), isolated=True)
def test_refusal_to_share_names_its_cause(stage):
    """The owner asks to share tensors while something is missing, in turn."""
    with stage.fresh(alone=True) as fresh:
        for what, errors in ERRORS_OF.items():
            tensor = fresh.owner.make([0.5] * LENGTH)
            with shortage(what, fresh.owner, fresh):
                _, refused = attempt(tensor.share)
            check_names_cause(refused, errors)
            check.equal(tensor.read(LENGTH - 1), 0.5, "the tensor is as it was")


@clause("ENV-2", isolated=True)
@pytest.mark.parametrize("what", sorted(ERRORS_OF))
def test_first_refusal_of_a_process_names_its_cause(stage, what):
    """A new owner puts its first tensor while something is missing, or almost all.

    What is made at the first use and kept has needs of its own.
    """
    for spare in range(5) if what == "descriptors" else (0,):
        with stage.fresh(alone=True) as fresh:
            channel = fresh.owner.open_channel(unthreaded_channel(fresh))
            tensor = fresh.owner.make([0.5] * LENGTH)
            with shortage(what, fresh.owner, fresh, spare):
                _, refused = attempt(partial(channel.put, fresh.owner, tensor))
            check_names_cause(refused, ERRORS_OF[what])
            check.equal(tensor.read(LENGTH - 1), 0.5, "the tensor is as it was")


@clause("ENV-2")
@pytest.mark.parametrize("what", ["descriptors", "memory"])
def test_refusal_to_receive_names_its_cause(sender, receiver, channel, what):
    """The receiver gets tensors while something is missing, or almost all of it."""
    for spare in range(3):
        tensor = sender.make([0.5] * LENGTH)
        sender.put(tensor, receiver, channel)
        with exhausted(receiver, what, spare):
            _, refused = receiver.try_get(sender, channel)
        check_names_cause(refused, ERRORS_OF[what])
        check.equal(tensor.read(LENGTH - 1), 0.5, "the tensor is as it was")


def refusals_without_memfd_create(fresh, error):
    """Make owner and peer send each other tensors while `memfd_create` fails.

    Check that a tensor arrives and is shared unless `put` raises.

    Returns:
        The exceptions of `put`.
    """
    confine(fresh.owner, Need.CALL_FILTER, forbid, "memfd_create", error)
    refusals = []
    for number, (sender, receiver) in enumerate(
        ((fresh.owner, fresh.peer), (fresh.peer, fresh.owner))
    ):
        channel, values = unthreaded_channel(fresh), [number, 2, 3]
        tensor = sender.make(values)
        _, refused = attempt(
            lambda s=sender, t=tensor, r=receiver, c=channel: s.put(t, r, c)
        )
        check.equal(tensor.values(), values, "the sender's has its values")
        if refused is None:
            arrived = receiver.get(sender, channel)
            check_shared_memory(tensor, arrived)
        else:
            refusals.append(refused)
        for kind in fresh.implementation.channels:
            for text in ("text", LONG_TEXT):
                with receiver.getting(sender, kind) as waiting:
                    sender.put(text, receiver, kind)
                sentence = f"a message of {len(text)} bytes without tensors arrives"
                check(waiting.payload == text, sentence)
    return refusals


@clause("ENV-3", isolated=True)
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_sharing_without_memfd_create_works_or_is_refused(stage, error):
    """A filter forbids `memfd_create`; owner and peer send each other tensors."""
    with stage.fresh(alone=True) as fresh:
        refusals_without_memfd_create(fresh, error)


@clause("ENV-2", isolated=True)
def test_refusal_without_memfd_create_names_its_cause(stage):
    """A filter forbids `memfd_create`; those who are refused are told so."""
    with stage.fresh(alone=True) as fresh:
        for refused in refusals_without_memfd_create(fresh, "EPERM"):
            check_names_cause(refused, ("EPERM",))


@clause(
    "ENV-4",
    start_methods=("fork", "spawn"),
    isolated=True,
    vary=("strategy", "start_method"),
)
def test_processes_of_different_pid_namespaces_share(stage):
    """Two children are number 1, each in a namespace of its own; all share tensors.

    The first is killed, and the others go on.
    """
    with stage.fresh(alone=True) as fresh:
        owner = fresh.owner
        loop = owner.open_channel(unthreaded_channel(fresh))
        loop.put(owner, owner.make([1, 2]))  # starts what all of them use
        loop.get(owner).drop()
        first, second = (child_in_pid_namespace(owner) for _ in range(2))
        of_owner, later = owner.make([4, 5, 6]), owner.make([7, 8, 9])
        of_first, of_second = first.make([1, 2, 3]), second.make([2, 3, 4])
        held = [owner.send(of_owner, to) for to in (first, second)]
        owner.send(later, first)  # a separate message: only `first` gets its segment
        check_shared_memory(of_owner, *held)
        arrived = first.send(of_first, owner)
        onward = owner.send(arrived, second)
        check_shared_memory(of_first, arrived, onward)
        back = second.send(of_second, owner)
        check_shared_memory(of_second, back, owner.send(back, first))
        first.kill()
        check_shared_memory(of_owner, held[1])
        check_shared_memory(arrived, onward)
        check_shared_memory(of_second, back)
        check_shared_memory(later, owner.send(later, second))


def child_in_pid_namespace(owner):
    """Return a child in a PID namespace of its own.

    Its parent knows it by another process id than the child itself.
    """
    confine(owner, Need.PID_NAMESPACE, enter_pid_namespace)
    try:
        child = owner.start_peer()
    finally:
        if owner.is_alive():
            confine(owner, Need.PID_NAMESPACE, leave_pid_namespace)
    check(child.run(own_pid) != child.pid, "it is in a PID namespace of its own")
    return child


@clause("ENV-5", isolated=True)
def test_receiver_with_another_shm_gets_the_memory_or_an_exception(stage):
    """The peer has another `/dev/shm`; it and the owner send each other tensors."""
    with stage.fresh() as fresh:
        owner, peer, bystander = fresh.owner, fresh.peer, fresh.bystander
        confine(peer, Need.PRIVATE_SHM, mount_own_shm)
        for number, channel in enumerate(fresh.implementation.channels):
            for sender, receiver in ((owner, peer), (peer, owner)):
                values = [number, 20, 30]
                tensor = sender.make(values)
                check_send_or_refusal(tensor, values, sender, receiver, channel)
                text = sender.send("text", receiver, channel)
                check.equal(text, "text", "the next message arrives")
            tensor = owner.make([number, 40, 50])
            arrived = owner.send(tensor, bystander, channel)
            check_shared_memory(tensor, arrived)


@clause("ENV-5", isolated=True)
def test_segments_of_two_shm_are_told_apart(stage):
    """Peer and bystander have a new `/dev/shm` each, and both send to the owner.

    What comes first in each may have the same number or name as in the other.
    """
    with stage.fresh() as fresh:
        owner, senders = fresh.owner, (fresh.peer, fresh.bystander)
        for actor in senders:
            confine(actor, Need.PRIVATE_SHM, mount_own_shm)
        made = [actor.make([n, n, n]) for n, actor in enumerate(senders)]
        arrived = [
            attempt(lambda: actor.send(tensor, owner))[0]  # noqa: B023
            for actor, tensor in zip(senders, made, strict=True)
        ]
        for number, (tensor, held) in enumerate(zip(made, arrived, strict=True)):
            check.equal(tensor.values(), [number] * 3, "the sender's is as it was")
            if held is not None:
                check.equal(held.values(), [number] * 3, "it is what was sent")
                check_shared_memory(tensor, held)


@clause("ENV-6", isolated=True)
def test_program_after_one_that_was_killed_whole_shares(stage):
    """All hold tensors, messages are in flight, and all are killed with the manager.

    Then another program begins in the same directories, shares, and ends.
    """
    with stage.fresh() as fresh:
        for number, (sender, receiver) in enumerate(all_pairs(fresh)):
            tensor = sender.make([number, 1, 2])
            arrived = sender.send(tensor, receiver)
            check.equal(arrived.values(), [number, 1, 2], "the tensor arrives")
            sender.put([tensor, sender.make([number, 3])], receiver)
        left = fresh.kill_all()
        check.equal(fresh.ledger.processes(), {}, "no process is left")
        fresh.starter.start_again()
        for number, (sender, receiver) in enumerate(all_pairs(fresh)):
            for channel in fresh.implementation.channels:
                tensor = sender.make([number, 4, 5])
                arrived = sender.send(tensor, receiver, channel)
                check_shared_memory(tensor, arrived)
        check_ends_leave_nothing(fresh, left)


def check_ends_leave_nothing(fresh, before=frozenset()):
    """End the processes of a stage; check that none and no new segment is left."""
    for actor in (fresh.peer, fresh.bystander, fresh.owner):
        check.equal(actor.leave(), 0, "each ends normally")
    new = lambda: fresh.ledger.segments() - before  # noqa: E731
    sentence = "no segment of the program is left"
    eventually(lambda: not new(), sentence, fresh.grace, found=new)
    gone = lambda: not fresh.ledger.processes()  # noqa: E731
    eventually(gone, "no process of it is left", fresh.grace)


def all_pairs(fresh):
    """Return all pairs of a sender and a receiver on the stage `fresh`."""
    return list(permutations((fresh.owner, fresh.peer, fresh.bystander), 2))


@clause("ENV-7", isolated=True)
def test_program_that_closes_descriptors_keeps_its_own_files(stage):
    """Owner and peer send tensors within themselves, then replace the descriptors."""
    with stage.fresh() as fresh:
        for number, actor in enumerate((fresh.owner, fresh.peer)):
            values = [number, 70, 80]
            found = actor.run(replace_descriptors, values)
            check.equal(found["values"], values, "the tensor has its values")
            check.equal(found["wrong"], [], "what arrives has its values")
            sentence = "no file of the program is closed or written to in the place"
            check.equal(found["broken"], [], sentence)


@clause("ENV-8", isolated=True)
def test_process_that_changes_its_user_keeps_its_tensors(stage):
    """Owner and peer have tensors of each other; then the peer becomes another user.

    It sends on, shares, receives and drops, then ends, as the others do.
    """
    with stage.fresh() as fresh:
        owner, peer, bystander = fresh.owner, fresh.peer, fresh.bystander
        sent, made = owner.make([1, 2, 3]), peer.make([4, 5, 6])
        held, arrived = owner.send(sent, peer), peer.send(made, owner)
        confine(peer, Need.SECOND_USER, change_user)
        for pair in ((sent, held), (made, arrived)):
            check_shared_memory(*pair)
        for number, channel in enumerate(fresh.implementation.channels):
            for sender, receiver in ((peer, owner), (owner, peer), (peer, bystander)):
                new, values = sender.make([number, 70, 80]), [number, 70, 80]
                check_send_or_refusal(new, values, sender, receiver, channel)
                text = sender.send("text", receiver, channel)
                check.equal(text, "text", "the next message arrives")
            for tensor in (held, made):
                values = tensor.values()
                check_send_or_refusal(tensor, values, peer, bystander, channel)
        for pair in ((sent, held), (made, arrived)):
            check_shared_memory(*pair)
        for tensor in (sent, held, made, arrived):
            tensor.drop()
        check_ends_leave_nothing(fresh)
