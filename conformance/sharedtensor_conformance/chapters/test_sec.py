"""Chapter SEC: which other processes can access shared memory, and forged handles."""

import math
import os
import re
import stat
from contextlib import contextmanager
from functools import partial

from sharedtensor_conformance.chapters.process_actions import set_umask
from sharedtensor_conformance.chapters.shared_steps import (
    check_no_growth,
    check_shared_memory,
    files_of_storages,
    holdings_of,
    judging,
    new_segment_name,
    overwrite_freed_memory,
    require_segment_per_storage,
    sender_and_receiver,
    unthreaded_channel,
    wait_until_receivable,
)
from sharedtensor_conformance.chapters.system_changes import (
    as_nobody,
    replace_segment,
    replacement_is_unchanged,
)
from sharedtensor_conformance.chapters.tensor_actions import make_long, make_many
from sharedtensor_conformance.harness import attempt, check, clause, eventually, refusal
from sharedtensor_conformance.harness.case.outcomes import Unsupported

GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO
NAME_COUNT = 20
RANDOM_BITS = 32
ALPHABETS = {
    "[0-9]*": 10,
    "[0-9a-f]*": 16,
    "[0-9A-F]*": 16,
    "[0-9a-z]*": 36,
    "[0-9A-Z]*": 36,
    ".*": 64,
}
"""The sizes of the alphabets in which numbers are written, smallest first."""

SEGMENT_LENGTHS = (1, 20_000, 1 << 20)
"""Lengths of tensors in elements of 4 bytes: within a page, some pages, and 4 MiB."""

ACCESS_ERRORS = ("EACCES", "EPERM")
LIES = ("size", "window", "outside", "truncated")
LARGE_EXCESS = 1 << 20
"""The excess of a false claim, in bytes or elements, if a test needs only one."""


ELEMENTS, ITEM_SIZE = 3, 4
PAGE = os.sysconf("SC_PAGE_SIZE")
PAGE_REST = PAGE - ELEMENTS * ITEM_SIZE
"""The number of bytes from the end of the tensor to the end of its page."""

BOUNDARIES = (1, PAGE_REST - 1, PAGE_REST, PAGE_REST + 1, PAGE, LARGE_EXCESS)
OVERFLOWING = (2**32, 2**62, 2**63 - 1, 2**64)
FALSE_CLAIMS = (
    *(("size", bytes_more) for bytes_more in (*BOUNDARIES, *OVERFLOWING)),
    *(("window", -(-more // ITEM_SIZE)) for more in BOUNDARIES[2:]),
    *(("window", elements) for elements in (1, 2, *OVERFLOWING)),
)
"""False claims about a tensor of `ELEMENTS` float32: the kind of lie, and the excess.

The excess of ``size`` is in bytes, and that of ``window`` in elements.
"""


def check_only_user_has_access(stage, names):
    """Check that only the user has access to the segments with these names."""
    for name in names:
        status = stage.ledger.segment_status(name)
        sentence = (
            f"group and others may do nothing to a file of {status['size']} bytes"
        )
        check.equal(status["mode"] & GROUP_AND_OTHERS, 0, sentence)
        check.equal(status["uid"], os.getuid(), "it belongs to the user")


def check_closed_to_nobody(stage, names):
    """Check that another user can open none of the segments with these names."""
    for name in names:
        for action in ("read", "write"):
            outcome = as_nobody(stage, action, f"/dev/shm/{name}")
            check(outcome in ACCESS_ERRORS, f"another user may not {action} it")


@clause("SEC-1")
def test_segment_is_accessible_to_its_owner_alone(sender, receiver, channel, stage):
    """A process sends a tensor; its file is looked at in flight and when received."""
    before = stage.ledger.segments()
    tensor = sender.make([1, 2, 3])
    sender.put(tensor, receiver, channel)
    check_only_user_has_access(stage, files_of_storages(stage, before, 1))
    arrived = receiver.get(sender, channel)
    check.equal(arrived.values(), [1, 2, 3], "the tensor arrives")
    check_only_user_has_access(stage, files_of_storages(stage, before, 1))


@clause("SEC-1", profiles=("share",))
def test_segment_shared_on_request_is_accessible_to_its_owner_alone(owner, stage):
    """The owner shares tensors of several sizes; their files are looked at."""
    before = stage.ledger.segments()
    for size in (1, 100, 3000):
        owner.make([n + 0.5 for n in range(size)]).share()
    names = files_of_storages(stage, before, 3)
    check_only_user_has_access(stage, names)


@clause("SEC-1", "SEC-4")
def test_segments_of_any_size_and_number_are_closed_to_others(sender, receiver, stage):
    """Tensors of several sizes are sent one by one, and small ones in one message.

    Another user tries to open each file.
    """
    before = stage.ledger.segments()
    alone = [sender.run(make_long, length, 1) for length in SEGMENT_LENGTHS]
    arrived = [sender.send(tensor, receiver) for tensor in alone]
    together = sender.run(make_many, NAME_COUNT, 2)
    arrived += sender.send(together, receiver)
    check.equal(arrived[-1].values(), [1 + NAME_COUNT], "the tensors arrive")
    names = stage.ledger.segments() - before
    check_only_user_has_access(stage, names)
    check_closed_to_nobody(stage, names)


@clause("SEC-2", profiles=("share",), vary=(), prefers="fork", isolated=True)
def test_socket_of_the_manager_lies_in_a_directory_of_its_user_alone(stage):
    """The owner shares a tensor; the directories of the manager's sockets are read."""
    with stage.fresh() as fresh:
        tensor = fresh.owner.make([4, 5, 6])
        tensor.share()
        check.equal(tensor.is_shared(), True, "the tensor is shared")
        managers = fresh.ledger.managers()
        check(managers, "there is a manager")
        for path in named_sockets(managers):
            status = os.stat(os.path.dirname(path))
            forbidden = status.st_mode & GROUP_AND_OTHERS
            check.equal(forbidden, 0, "group and others may do nothing there")
            check.equal(status.st_uid, os.getuid(), "it belongs to the user")


def named_sockets(managers):
    """Return the paths of the managers' sockets that are in the file system.

    Raises:
        Unsupported: no manager has such a socket.
    """
    sockets = {path for manager in managers for path in manager["sockets"]}
    if named := {path for path in sockets if path.startswith("/")}:
        return named
    raise Unsupported("the manager has no socket in the file system")


@contextmanager
def umask(actor, mask):
    """Set the umask of `actor` to `mask` during the block."""
    before = actor.run(set_umask, mask)
    try:
        yield
    finally:
        actor.run(set_umask, before)


@clause("SEC-1", "SEC-4")
def test_segment_is_closed_to_others_under_a_umask_of_zero(sender, receiver, stage):
    """A process that forbids nothing sends; another user tries to open the file."""
    before = stage.ledger.segments()
    with umask(sender, 0):
        tensor = sender.make([4, 5, 6])
        arrived = sender.send(tensor, receiver)
    names = files_of_storages(stage, before, 1)
    check_only_user_has_access(stage, names)
    check_closed_to_nobody(stage, names)
    check_shared_memory(tensor, arrived)


@clause("SEC-2", "SEC-5", profiles=("share",), vary=(), prefers="fork", isolated=True)
def test_manager_is_closed_to_others_under_a_umask_of_zero(stage):
    """An owner that forbids nothing shares; another user tries to connect."""
    with stage.fresh() as fresh:
        with umask(fresh.owner, 0):
            fresh.owner.make([7, 8, 9]).share()
        sockets = {
            path for manager in fresh.ledger.managers() for path in manager["sockets"]
        }
        if not sockets:
            raise Unsupported("the manager has no socket to connect to")
        for path in sockets:
            if path.startswith("/"):
                mode = os.stat(os.path.dirname(path)).st_mode
                check.equal(
                    mode & GROUP_AND_OTHERS, 0, "others may do nothing in its directory"
                )
            outcome = as_nobody(fresh, "connect", path)
            refused = (*ACCESS_ERRORS, "turned away")
            check(outcome in refused, "another user cannot connect")
        tensor = fresh.owner.make([10, 11])
        tensor.share()
        check.equal(tensor.is_shared(), True, "the manager serves its own user")


@clause("SEC-3", profiles=("share",))
def test_names_are_neither_counted_nor_used_twice(owner, stage):
    """The owner shares tensors one after the other, each when the last one is gone."""
    known, names = stage.ledger.segments(), []
    for number in range(NAME_COUNT):
        tensor = owner.make([number, 12])
        tensor.share()
        names.append(new_segment_name(stage, known))
        tensor.drop()
        gone = lambda: stage.ledger.segments() <= known  # noqa: E731
        eventually(gone, "its file is removed", within=stage.grace)
    parts = [part for part in parts_by_place(names) if is_random(part)]
    check(parts, "a part of it is random")
    room = sum(map(bits_at_most, parts))
    sentence = f"which has room for {RANDOM_BITS} bits, not for {room:.0f}: {names[:3]}"
    check(room >= RANDOM_BITS, sentence)


def parts_by_place(names):
    """Return for each place in the names the parts there, of letters and digits.

    Names with different numbers of parts are taken as one part each.
    """
    split = [re.split(r"[^0-9A-Za-z]", name) for name in names]
    same = len({len(parts) for parts in split}) == 1
    return list(zip(*split, strict=True)) if same else [tuple(names)]


def bits_at_most(parts):
    """Return how many random bits these parts of names can have at most.

    A place of a part that is the same in all of them has none. The others have as many
    as the smallest of the common alphabets that all characters are in.
    """
    width = max(map(len, parts))
    places = list(zip(*(part.rjust(width, "0") for part in parts), strict=True))
    size = next(
        size
        for pattern, size in ALPHABETS.items()
        if all(re.fullmatch(pattern, part) for part in parts)
    )
    return math.log2(size) * sum(len(set(place)) > 1 for place in places)


def is_random(parts):
    """Return whether parts of names are neither all equal nor sorted."""
    padded = [part.rjust(40, "0") for part in parts]
    return len(set(parts)) > 1 and padded not in (
        sorted(padded),
        sorted(padded, reverse=True),
    )


@clause("SEC-6", prefers="fork", isolated=True)
def test_what_took_the_place_of_a_segment_is_not_taken_for_it(stage, direction):
    """While a message is in flight its file is replaced; then it is received.

    What has replaced it is read when the message was received, or refused.
    """
    with stage.fresh() as fresh:
        sender, receiver = sender_and_receiver(fresh, direction)
        for how in ("link", "nobody"):
            tensor = sender.make([13, 14, 15])
            channel, before = unthreaded_channel(fresh), fresh.ledger.segments()
            sender.put(tensor, receiver, channel)
            name = new_segment_name(fresh, before)
            replace_segment(fresh, name, how)
            get = lambda c=channel: receiver.get(sender, c)  # noqa: E731
            arrived, refused = attempt(get)
            check_replacement_unchanged(fresh, name, how)
            if refused is None:
                check.equal(arrived.values(), [13, 14, 15], "it has its values")
            check.equal(tensor.values(), [13, 14, 15], "so has the sender's")
            other = receiver.send(receiver.make([16, 17]), sender)
            check.equal(other.values(), [16, 17], "both go on")


def check_replacement_unchanged(fresh, name, how):
    """Check that nobody has written to what took the place of a segment."""
    unchanged = replacement_is_unchanged(fresh, name)
    check(unchanged, f"what is in the place of the segment ({how}) is not written")


OWN_SEGMENT_LENGTH = 1 << 19
"""The number of elements of a tensor of 2 MiB: too large to share a segment."""


@clause("SEC-6", prefers="fork", isolated=True)
def test_what_took_the_place_of_a_segment_is_not_taken_for_it_where_others_are_held(
    stage, direction
):
    """Two tensors are sent together; one of them is dropped where it is to arrive.

    Then it comes again, to who received it and to who made it, while the file is
    replaced. Who gets it has had the file open, and has the other tensor still.
    """
    with stage.fresh() as fresh:
        pair = sender_and_receiver(fresh, direction)
        for how in ("link", "nobody"):
            for to, by in (pair, pair[::-1]):
                made = [pair[0].make([number, 18, 19]) for number in range(2)]
                before = fresh.ledger.segments()
                sent = dict(zip(pair, (made, pair[0].send(made, pair[1])), strict=True))
                replace_file_during_send(fresh, sent, to, by, before, how)


def replace_file_during_send(fresh, sent, receiver, sender, before, how):
    """Replace the file of a tensor while `sender` sends the tensor to `receiver` again.

    The receiver drops its tensor before. Check that what arrives, and all other
    tensors, have their values, and that both processes can still share tensors.

    Args:
        fresh: the isolated stage.
        sent: for each process its two tensors.
        receiver: the receiver.
        sender: the sender.
        before: the names of segments that are not replaced.
        how: how a file is replaced.
    """
    sent[receiver][0].drop()
    require_segment_per_storage(fresh)
    sender.put(sent[sender][0], receiver, unthreaded_channel(fresh))
    names = fresh.ledger.segments() - before
    for name in names:
        replace_segment(fresh, name, how)
    arrived, refused = attempt(lambda: receiver.get(sender, unthreaded_channel(fresh)))
    for name in names:
        check_replacement_unchanged(fresh, name, how)
    if refused is None:
        check.equal(arrived.values(), [0, 18, 19], "it has its values")
    for tensor, due in (
        (sent[sender][0], 0),
        (sent[sender][1], 1),
        (sent[receiver][1], 1),
    ):
        check.equal(tensor.values(), [due, 18, 19], "so have the others")
    check_shared_memory(sent[sender][1], sent[receiver][1])
    other = receiver.send(receiver.make([16, 17]), sender)
    check.equal(other.values(), [16, 17], "both go on")


def check_forgery_refused(lie, sender, receiver, channel, stage, excess=LARGE_EXCESS):
    """Send a forged handle, which has to be refused, and then the tensor itself.

    Args:
        lie: the kind of lie, one of `LIES`.
        sender: the process that forges.
        receiver: the process that receives.
        channel: the channel of both messages.
        stage: the stage, with the file that a handle names where it is no segment.
        excess: how much too much the handle claims.
    """
    tensor = sender.make([21, 22, 23])
    before = named = large_files(stage)
    forged = sender.forge(tensor, lie, excess)
    with refusal(f"what is forged ({lie}, {excess} too much) is refused"):
        sender.put(forged, receiver, channel)
        if lie == "outside":
            wait_until_receivable(sender, receiver, channel)  # the forgery is complete
            named = large_files(stage)
        receiver.get_or_lose(sender, channel)
    check(named - before <= large_files(stage), "the file that it names is not removed")
    arrived = sender.send(tensor, receiver, channel)
    check.equal(arrived.values(), [21, 22, 23], "the tensor itself can be received")
    check_shared_memory(tensor, arrived)
    for dropped in (forged, tensor, arrived):
        dropped.drop()


def large_files(stage):
    """Return the temporary files that a handle of a forged message could name.

    Sockets and folders, which an implementation may remove at any time, are not among
    them.
    """
    return {name for name in stage.ledger.files() if is_large_file(stage, name)}


def is_large_file(stage, name):
    """Return whether a temporary file is a regular one, as large as the tensor."""
    try:
        status = os.stat(stage.supervision.temporary / name)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size >= ELEMENTS * ITEM_SIZE


def check_forgeries_refused(kinds, sender, receiver, channel, stage):
    """Check twice that a forged handle with each kind of lie is refused."""
    for lie in (*kinds, *kinds):
        check_forgery_refused(lie, sender, receiver, channel, stage)


@clause("FAIL-8", profiles=("forgery",))
def test_nothing_is_left_of_messages_that_lie(sender, receiver, stage):
    """Messages with each kind of lie are sent, again and again."""
    channel = unthreaded_channel(stage)

    def go_round(how):
        tensor = sender.make([27, 28, 29])
        forged = sender.forge(tensor, how, LARGE_EXCESS)
        arrived = try_send(forged, sender, receiver, channel)
        check.equal(tensor.values(), [27, 28, 29], "the sender's is as it was")
        for dropped in (forged, tensor, *([arrived] if arrived else [])):
            dropped.drop()

    for how in LIES:
        go_round(how)
    before = holdings_of(stage, sender, receiver)
    for how in (*LIES, *LIES):
        go_round(how)
    check_no_growth(before, stage, sender, receiver)


@clause("SEC-7")
def test_handle_that_claims_too_much_is_refused(sender, receiver, channel, stage):
    """The sender sends handles that claim too many bytes or elements."""
    check_forgeries_refused(("size", "window"), sender, receiver, channel, stage)


@clause("SEC-7")
def test_claim_is_refused_however_little_or_much_it_is(sender, receiver, stage):
    """The sender sends claims to each boundary, from one byte to what overflows."""
    for how, excess in FALSE_CLAIMS:
        check_forgery_refused(
            how, sender, receiver, unthreaded_channel(stage), stage, excess
        )


@clause("SEC-7")
def test_claim_on_a_storage_that_is_held_is_refused(sender, receiver):
    """The receiver has the storage already when a message claims too much of it."""
    tensor = sender.make([24, 25, 26])
    arrived = sender.send(tensor, receiver)
    for how, excess in FALSE_CLAIMS:
        forged = sender.forge(tensor, how, excess)
        with refusal(f"what is forged ({how}, {excess} too much) is refused"):
            sender.put(forged, receiver)
            receiver.get_or_lose(sender)
        check_shared_memory(tensor, arrived)


@clause("SEC-7")
def test_claim_on_a_storage_beside_others_is_refused(sender, receiver):
    """A tensor was sent with others when a message claims more than all of them have.

    The receiver holds the others, or nothing.
    """
    for is_held in (True, False):
        tensors = [sender.make([number, 27, 28]) for number in range(4)]
        arrived = sender.send(tensors, receiver)
        for one in arrived if not is_held else arrived[1:2]:
            one.drop()
        forged = sender.forge(tensors[1], "size", 1)
        with refusal("a claim of one byte more than there is is refused"):
            sender.put(forged, receiver)
            receiver.get_or_lose(sender)
        again = sender.send(tensors[1], receiver)
        check_shared_memory(tensors[1], again)


@clause("SEC-8")
def test_handle_that_names_no_segment_is_refused(sender, receiver, channel, stage):
    """The sender sends handles that name a file elsewhere."""
    check_forgeries_refused(("outside",), sender, receiver, channel, stage)


@clause("SEC-9")
def test_incomplete_handle_is_refused(sender, receiver, channel, stage):
    """The sender sends handles that lack their last fields."""
    check_forgeries_refused(("truncated",), sender, receiver, channel, stage)


JUDGED = {"size": "SEC-7", "window": "SEC-7", "outside": "SEC-8", "truncated": "SEC-9"}
"""The clause that is judged by each kind of lie."""


@clause("SEC-7", "SEC-8", "SEC-9")
def test_lie_about_a_large_storage_is_refused(sender, receiver, channel):
    """A tensor of 2 MiB is sent with each lie; then its receiver has it already.

    Who has it takes no other file for it, whatever a handle names.
    """
    tensor = sender.run(make_long, OWN_SEGMENT_LENGTH, 34)
    first, then = "is sent for the first time", "is there"
    for state, lies in ((first, LIES), (then, [x for x in LIES if x != "outside"])):
        for how in lies:
            forged = sender.forge(tensor, how, LARGE_EXCESS)
            sentence = f"what is forged is refused ({how}, the storage {state})"
            with judging(JUDGED[how]), refusal(sentence):
                sender.put(forged, receiver, channel)
                receiver.get_or_lose(sender, channel)
            forged.drop()
        arrived = sender.send(tensor, receiver, channel)
        check_shared_last_element(tensor, arrived, OWN_SEGMENT_LENGTH)


@clause("SEC-10")
def test_handle_that_comes_again_leads_to_the_same_memory_or_nowhere(
    sender, receiver, channel
):
    """A handle is sent again while its tensor lives, and when it has gone."""
    tensor = sender.make([31, 32, 33])
    forged = sender.forge(tensor, "again", 0)
    arrived = sender.send(forged, receiver, channel)
    check_shared_memory(tensor, arrived)
    again = try_send(forged, sender, receiver, channel)
    if again is not None:
        check_shared_memory(tensor, again, arrived)
        again.drop()
    values = tensor.values()
    tensor.drop()
    arrived.drop()
    others = overwrite_freed_memory(sender, length=3)
    held = sender.send(others[0], receiver, channel)
    # If the message also has another tensor, the handle may use its descriptor.
    for message in ([forged], [forged, others[0]]):
        late = try_send(message, sender, receiver, channel)
        if late is not None:
            check.equal(late[0].values(), values, "it is the same memory, still")
    check_shared_memory(others[0], held)


def try_send(message, sender, receiver, channel):
    """Send a message; return what arrives, or None if it is refused."""
    put = partial(sender.put, message, receiver, channel)
    _, refused = attempt(put)
    arrived = None if refused else receiver.try_get(sender, channel)[0]
    return arrived


SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1), (3, 1), (2, 2, 2), (1,) * 6)
"""Shapes of a tensor with no, one or more dimensions."""


@clause("SEC-7")
def test_claim_is_refused_whatever_the_shape(sender, receiver, stage):
    """Tensors of each shape claim too much; then the receiver has their storages."""
    channel = unthreaded_channel(stage)
    for shape in SHAPES:
        tensor = sender.make([9] * math.prod(shape), shape)
        for _ in range(2):
            for how, excess in (("window", 1), ("window", LARGE_EXCESS), ("size", 1)):
                forged = sender.forge(tensor, how, excess)
                with refusal(f"{excess} too much is refused ({how}, shape {shape})"):
                    sender.put(forged, receiver, channel)
                    receiver.get_or_lose(sender, channel)
                forged.drop()
            held = sender.send(tensor, receiver, channel)
            check.equal(held.shape(), shape, "the tensor itself can be received")
            check_shared_element(tensor, held, (0,) * len(shape))


def check_shared_element(tensor, held, index):
    """Write an element through each tensor; check that the other one reads it."""
    for value, (one, other) in ((2, (tensor, held)), (3, (held, tensor))):
        one.write(index, value)
        check.equal(other.read(index), value, "each reads what the other writes")


ELEMENT_COUNTS: dict[str, int] = {"float64": PAGE // 8, "uint8": 2 * PAGE, "int16": 1}
"""Numbers of elements by dtype: two storages of whole pages, and one of two bytes."""


@clause("SEC-7", dtypes=tuple(ELEMENT_COUNTS))
def test_claim_on_a_storage_of_any_dtype_and_size_is_refused(sender, receiver, stage):
    """Claims are too large by little; the receiver has the storage the second time."""
    channel = unthreaded_channel(stage)
    for name, count in ELEMENT_COUNTS.items():
        tensor = sender.make([7] * count, dtype=name)
        held = None
        for how, excess in (("size", 1), ("size", PAGE), ("window", 1), ("window", 2)):
            for _ in range(2):
                forged = sender.forge(tensor, how, excess)
                with refusal(
                    f"a claim of {excess} too much is refused ({how}, {name})"
                ):
                    sender.put(forged, receiver, channel)
                    receiver.get_or_lose(sender, channel)
                forged.drop()
                if held is None:
                    held = sender.send(tensor, receiver, channel)
                else:
                    check_shared_last_element(tensor, held, count)
                    held.drop()
                    held = None


def check_shared_last_element(one, other, count):
    """Write the last element of each tensor; check that the other one reads it.

    `count` is the number of elements.
    """
    for value, writer, reader in ((8, one, other), (9, other, one)):
        writer.write(count - 1, value)
        check.equal(reader.read(count - 1), value, "the storage is as it was")
