"""Chapter HANDLE: the content of a handle."""

import re
from functools import partial
from itertools import islice

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.chapters.meeting_actions import (
    meet,
    set_authentication_key,
)
from sharedtensor_conformance.chapters.shared_steps import (
    LENGTHS,
    check_no_growth,
    check_shared_memory,
    holdings_of,
    judging,
    unthreaded_channel,
)
from sharedtensor_conformance.chapters.tensor_actions import (
    make_long,
    make_many_long,
    pickled_to_share,
    unpickled,
)
from sharedtensor_conformance.harness import attempt, check, clause, refusal

LARGE_LENGTH = 1 << 19
"""The number of elements of a tensor of 2 MiB: more than fit into a pipe or socket."""


WAYS_TO_MEET = ("connection", "bytes")
"""How programs that meet send tensors: see `meet`."""

FIELD_COUNTS = ("same", "more", "fewer")
"""The fields after the version of a forged handle: as many as in this version, more, or
fewer.
"""


def other_versions(own):
    """Yield versions other than `own`, similar or not, with each of `FIELD_COUNTS`."""
    for version in (f"{own}0", f"{own}.1", "0.0", "from-another-world"):
        for fields in FIELD_COUNTS:
            yield version, fields


def mentions(text, version):
    """Return a match if a text contains a version, not only as part of another one."""
    return re.search(rf"(?<![\w.-]){re.escape(version)}(?![\w-]|\.\w)", text)


def check_version_refused(tensor, other, sender, receiver, channel):
    """Send a handle of another version; check that it is refused.

    The exception has to name both versions. `other` is an item of `other_versions`.
    """
    own, (version, fields) = receiver.handle_version(), other
    forged = tensor.forge_version(version, fields)
    sentence = f"a handle of version {version} is refused (fields: {fields})"
    with refusal(sentence) as refused:
        sender.put(forged, receiver, channel)
        receiver.get_or_lose(sender, channel)
    for named in (own, version):
        sentence = f"the exception names version {named}: {refused.error}"
        check(mentions(refused.error.message, named), sentence)
    forged.drop()


@clause("HANDLE-1")
def test_handle_of_another_version_is_refused(sender, receiver, channel):
    """The sender sends handles of other versions, of a storage that nobody else has.

    Then it sends the same tensor with a handle of its own version.
    """
    for other in other_versions(sender.handle_version()):
        tensor = sender.make([1, 2, 3])
        check_version_refused(tensor, other, sender, receiver, channel)
        arrived = sender.send(tensor, receiver, channel)
        check.equal(arrived.values(), [1, 2, 3], "the tensor itself can be received")
        check_shared_memory(tensor, arrived)


@clause("HANDLE-1")
def test_handle_of_a_storage_of_any_size_and_of_another_version_is_refused(
    sender, receiver, channel
):
    """The sender sends tensors of each order of magnitude, apart and sent together."""
    for length in LENGTHS:
        apart = sender.run(make_long, length, 5)
        together = sender.run(make_many_long, 3, length)
        sender.send(together, receiver, channel)
        for tensor in (apart, together[1]):
            for other in islice(
                other_versions(sender.handle_version()), len(FIELD_COUNTS)
            ):
                check_version_refused(tensor, other, sender, receiver, channel)
        arrived = sender.send([apart, *together], receiver, channel)
        values = [one.read(0) for one in arrived]
        check.equal(values, [5, 1, 2, 3], "the tensors themselves can be received")
        for actor in (sender, receiver):
            actor.drop_all()


@clause("HANDLE-1")
def test_handle_of_another_version_is_refused_by_who_has_the_storage(
    sender, receiver, stage
):
    """The receiver has the tensor when the handle of another version comes."""
    channel = unthreaded_channel(stage)
    tensor = sender.make([4, 5, 6])
    arrived = sender.send(tensor, receiver, channel)
    for other in other_versions(sender.handle_version()):
        check_version_refused(tensor, other, sender, receiver, channel)
        check_shared_memory(tensor, arrived)


@clause("LIFE-19", profiles=("versions",))
def test_nothing_is_left_of_handles_of_another_version(sender, receiver, stage):
    """Handles of other versions are refused, and their tensors dropped, twice."""
    channel = unthreaded_channel(stage)

    def go_round():
        for other in other_versions(sender.handle_version()):
            tensor = sender.make([7, 8, 9])
            check_version_refused(tensor, other, sender, receiver, channel)
            check.equal(tensor.values(), [7, 8, 9], "the sender's is as it was")
            tensor.drop()

    go_round()
    before = holdings_of(stage, sender, receiver)
    go_round()
    check_no_growth(before, stage, sender, receiver)


@clause("HANDLE-2")
def test_message_has_room_for_a_handle_and_not_for_the_values(
    sender, receiver, channel
):
    """The sender puts a tensor of 2 MiB that nobody receives yet, and puts it again.

    The second time it writes, so that what arrives is no copy that went elsewhere.
    """
    tensor = sender.run(make_long, LARGE_LENGTH, 7)
    sender.put(tensor, receiver, channel)
    first = receiver.get(sender, channel)
    check.equal(first.read(LARGE_LENGTH - 1), 7, "it arrives")
    sender.put(tensor, receiver, channel)
    tensor.write(LARGE_LENGTH - 1, 8)
    second = receiver.get(sender, channel)
    check.equal(
        second.read(LARGE_LENGTH - 1), 8, "it arrives, with what was written since"
    )
    for one in (tensor, first, second):
        one.drop()


@clause("HANDLE-2", profiles=("views",), views=("steps", "transposed"), pairwise=True)
def test_message_of_large_views_has_room_for_handles(sender, receiver, channel):
    """The sender puts views with gaps, and several large tensors in one message."""
    long = sender.run(make_long, LARGE_LENGTH, 9)
    half = LARGE_LENGTH // 2
    step = Layout("step", offset=1, shape=(half,), strides=(2,))
    turned = Layout("turned", offset=0, shape=(2, half), strides=(1, 2))
    expected = [half - 1, (1, half - 1)]
    payload = [sender.view(long, step), sender.view(long, turned)]
    payload += [
        sender.run(make_long, LARGE_LENGTH, 10),
        sender.run(make_long, LARGE_LENGTH + 1, 11),
    ]
    for _ in range(2):
        sender.put(payload, receiver, channel)
        long.write(LARGE_LENGTH - 1, 12)
        arrived = receiver.get(sender, channel)
        for tensor, last in zip(arrived[:2], expected, strict=True):
            check.equal(
                tensor.read(last), 12, "it arrives, with what was written since"
            )
        check.equal(arrived[2].read(LARGE_LENGTH - 1), 10, "and so do the others")
        check.equal(arrived[3].read(LARGE_LENGTH), 11, "to the last element")
        for one in arrived:
            one.drop()


@clause("HANDLE-3")
def test_bytes_that_are_never_read_leave_nothing(stage, sender, receiver):
    """Each pickles tensors itself, and the other one unpickles one of the payloads.

    What is made once, at the first use, does not count.
    """
    before = None
    for first in range(3):
        for maker, reader in ((sender, receiver), (receiver, sender)):
            tensors = [maker.make([first, number]) for number in range(4)]
            payloads = [
                maker.run(pickled_to_share, tensor) for tensor in (*tensors, *tensors)
            ]
            arrived = reader.run(unpickled, payloads[first])
            check.equal(arrived.values(), tensors[first].values(), "it has its values")
            check_shared_memory(tensors[first], arrived)
            for tensor in (arrived, *tensors):
                tensor.drop()
        if before is None:
            before = holdings_of(stage, sender, receiver)
    check_no_growth(before, stage, sender, receiver)


def check_leads_there_or_nowhere(reader, content, *holders):
    """Unpickle bytes in a process; check that it shares with `holders`, or is refused.

    Returns:
        The tensor; None if the call has raised.
    """
    before = holders[0].values()
    arrived, refused = attempt(partial(reader.run, unpickled, content))
    if refused:
        check.equal(holders[0].values(), before, "a refusal changes nothing")
        return None
    check_shared_memory(*holders, arrived)
    return arrived


@clause("HANDLE-3")
def test_bytes_lead_to_their_memory_or_nowhere_however_often_they_are_read(
    sender, receiver, bystander
):
    """Each of the three reads the same bytes again, the maker included.

    The maker drops the tensor then, and shares others of the same size, and each reads
    the bytes once more: while the receiver holds what it has read, and afterwards.
    """
    tensor = sender.make([1, 2, 3])
    content = sender.run(pickled_to_share, tensor)
    first = receiver.run(unpickled, content)
    check_shared_memory(tensor, first)
    readers = (receiver, bystander, sender)

    def check_each(*holders):
        for reader in readers:
            again = check_leads_there_or_nowhere(reader, content, *holders)
            if again is not None:
                again.drop()

    check_each(tensor, first)
    tensor.drop()
    others = [sender.make([4, 5, number]) for number in range(3)]
    arrived = sender.send(others, receiver)
    check_each(first)
    first.drop()
    for reader in readers:
        with refusal("bytes whose memory has gone are refused"):
            reader.run(unpickled, content)
    for one, other in zip(arrived, others, strict=True):
        check_shared_memory(one, other)


@clause("HANDLE-3", isolated=True)
def test_bytes_lead_to_their_memory_or_nowhere_when_their_maker_has_ended(stage):
    """A peer's bytes are read by a process with another authentication key, and again.

    The second time the peer has exited or was killed.
    """
    for ends in ("leave", "kill"):
        with stage.fresh() as fresh:
            tensor = fresh.peer.make([6, 7, 8])
            content = fresh.peer.run(pickled_to_share, tensor)
            held = fresh.peer.send(tensor, fresh.owner)
            fresh.bystander.run(set_authentication_key)
            check_leads_there_or_nowhere(fresh.bystander, content, tensor, held)
            getattr(fresh.peer, ends)()
            for reader in (fresh.owner, fresh.bystander):
                check_leads_there_or_nowhere(reader, content, held)


@clause("CHAN-14", "HANDLE-3", isolated=True, vary=("strategy",), mainly="CHAN-14")
def test_programs_that_meet_on_a_socket_share_or_refuse(stage):
    """The owner connects to a program that it did not fork, and both send a tensor.

    They send it on the connection and as bytes that they pickle themselves, with one
    authentication key for both programs, and with one for each.
    """
    with stage.fresh() as fresh:
        for common_key in (False, True):
            tensor = fresh.owner.make([75, 73])
            outcomes = fresh.owner.run(meet, tensor, common_key)
            first = 75
            for way, (ours, theirs) in zip(WAYS_TO_MEET, outcomes, strict=True):
                with judging("HANDLE-3" if way == "bytes" else "CHAN-14"):
                    first = check_shared_or_refused(way, ours, first)
                    check_shared_or_refused(way, theirs, 72)


def check_shared_or_refused(way, outcome, first):
    """Check what `meet` says of a tensor whose first element was `first`.

    Returns:
        What it is now.
    """
    has_read, of_the_sender = outcome
    if has_read is not None:
        check.equal(has_read, [first, 73], f"its receiver reads the values ({way})")
        first = 71
    sentence = f"its sender reads what the receiver has written, if it has ({way})"
    check.equal(of_the_sender, [first, 73], sentence)
    return first
