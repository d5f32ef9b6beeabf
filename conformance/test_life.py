"""Chapter LIFE: who must outlive whom, and what is left in the end."""

from sharedtensor_conformance.harness import attempt, check, clause, eventually
from sharedtensor_conformance.stories import (
    ROUNDS,
    each_sees_the_writes_of_the_others,
    hold_other_tensors,
    nothing_is_added,
    opened,
)


def keeps_its_values(tensor, expected):
    """Check the values of `tensor`, write one of them, and check all again."""
    check.equal(tensor.values(), expected, "it has its values")
    changed = [-expected[0], *expected[1:]]
    tensor.write(0, changed[0])
    check.equal(tensor.values(), changed, "it can be written")


@clause("LIFE-1", vary=("strategy",))
def test_received_tensor_outlives_the_tensor_of_its_sender(sender, receiver, channel):
    """The sender drops its tensor and makes others; the receiver keeps what it got."""
    tensor = sender.make([1, 2, 3, 4])
    arrived = sender.send(tensor, receiver, channel)
    tensor.drop()
    held = hold_other_tensors(sender)
    keeps_its_values(arrived, [1, 2, 3, 4])
    check.equal(held[0].values(), [200, 201, 202, 203], "no other tensor is hit")


@clause("LIFE-1", vary=("strategy",), profiles=("lifetime",))
def test_receivers_share_when_the_sender_has_dropped_its_tensor(
    sender, receiver, bystander
):
    """The sender sends to both others and drops; each of them keeps the tensor."""
    tensor = sender.make([5, 6, 7])
    first, second = (sender.send(tensor, to) for to in (receiver, bystander))
    tensor.drop()
    onward = receiver.send(first, sender)
    first.drop()
    for kept in (second, onward):
        check.equal(kept.values(), [5, 6, 7], "it has its values")
    keeps_its_values(second, [5, 6, 7])


@clause("LIFE-2")
def test_message_in_flight_keeps_its_data(sender, receiver, channel):
    """The sender drops each of three tensors before the receiver gets the first."""
    rows = [[10 * n + 1, 10 * n + 2, 10 * n + 3, 10 * n + 4] for n in range(3)]
    for row in rows:
        tensor = sender.make(row)
        sender.put(tensor, receiver, channel)
        tensor.drop()
    held = hold_other_tensors(sender)
    arrived = [receiver.get(sender, channel) for _ in rows]
    for tensor, row in zip(arrived, rows, strict=True):
        keeps_its_values(tensor, row)
    check.equal(held[-1].values(), [270, 271, 272, 273], "no other tensor is hit")


@clause("LIFE-2", vary=("strategy",))
def test_message_in_flight_keeps_what_its_sender_had_received(
    sender, receiver, bystander, channel
):
    """The receiver sends on what it got; it and the sender drop before the receive."""
    tensor = sender.make([15, 16, 17])
    arrived = sender.send(tensor, receiver, channel)
    receiver.put(arrived, bystander, channel)
    arrived.drop()
    tensor.drop()
    keeps_its_values(bystander.get(receiver, channel), [15, 16, 17])


@clause("LIFE-3")
def test_received_tensor_outlives_the_exit_of_its_sender(owner, peer):
    """A child sends a tensor to the owner and exits; the owner sends it on."""
    child = owner.start_peer()
    arrived = child.send(child.make([21, 22, 23]), owner)
    check.equal(child.leave(), 0, "the child exits normally")
    keeps_its_values(arrived, [21, 22, 23])
    onward = owner.send(arrived, peer)
    check.equal(onward.values(), [-21, 22, 23], "it arrives where it is sent on")


@clause("LIFE-3", vary=("strategy",))
def test_tensor_of_an_exited_sender_is_kept_by_two_receivers(stage):
    """The peer sends to both others and exits; they keep the tensor in turn."""
    with stage.fresh() as play:
        tensor = play.peer.make([24, 25, 26])
        first = play.peer.send(tensor, play.bystander)
        second = play.peer.send(tensor, play.owner)
        play.peer.leave()
        check.equal(first.values(), [24, 25, 26], "the bystander has the values")
        second.drop()
        keeps_its_values(first, [24, 25, 26])
        onward = play.bystander.send(first, play.owner)
        check.equal(onward.values(), [-24, 25, 26], "the owner gets it again")


@clause("LIFE-4")
def test_received_tensor_outlives_the_killing_of_its_sender(owner, peer):
    """A child sends a tensor to the owner and is killed; the owner sends it on."""
    child = owner.start_peer()
    arrived = child.send(child.make([31, 32, 33]), owner)
    child.kill()
    keeps_its_values(arrived, [31, 32, 33])
    onward = owner.send(arrived, peer)
    check.equal(onward.values(), [-31, 32, 33], "it arrives where it is sent on")


@clause("LIFE-4", vary=("strategy",))
def test_tensor_of_a_killed_owner_is_kept_by_two_peers(stage):
    """The owner sends to both peers and is killed; one sends it to the other."""
    with stage.fresh() as play:
        tensor = play.owner.make([34, 35, 36])
        first = play.owner.send(tensor, play.peer)
        second = play.owner.send(tensor, play.bystander)
        play.owner.kill()
        for kept in (first, second):
            check.equal(kept.values(), [34, 35, 36], "each peer has the values")
        second.drop()
        keeps_its_values(first, [34, 35, 36])
        onward = play.peer.send(first, play.bystander)
        check.equal(onward.values(), [-34, 35, 36], "the bystander gets it again")


@clause("LIFE-5")
def test_message_survives_the_exit_of_its_sender(owner, channel):
    """A child puts two messages and exits; the owner receives them afterwards."""
    child = owner.start_peer()
    child.put(child.make([41, 42, 43]), owner, channel)
    child.put({"later": child.make([44, 45])}, owner, channel)
    check.equal(child.leave(), 0, "the child exits normally")
    keeps_its_values(owner.get(child, channel), [41, 42, 43])
    later = owner.get(child, channel)["later"]
    check.equal(later.values(), [44, 45], "the second message arrives as well")


@clause("LIFE-5", vary=())
def test_message_between_peers_survives_the_exit_of_its_sender(stage, channel):
    """The peer puts a message for the bystander and exits; the bystander gets it."""
    with stage.fresh() as play:
        tensor = play.peer.make([46, 47, 48])
        play.peer.put(tensor, play.bystander, channel)
        play.peer.leave()
        keeps_its_values(play.bystander.get(play.peer, channel), [46, 47, 48])


def is_sent(sender, receiver, channel, stage):
    """Wait until a message has left its sender, where a thread may write it."""
    sentence = "the message can be received"
    eventually(lambda: receiver.has_message(sender, channel), sentence, stage.grace)


@clause("LIFE-6")
def test_receiving_from_a_killed_child_gives_the_data_or_an_exception(
    owner, channel, stage
):
    """A child sends a message and is killed; the owner receives."""
    child = owner.start_peer()
    child.put(child.make([51, 52, 53]), owner, channel)
    is_sent(child, owner, channel, stage)
    child.kill()
    arrived, raised = attempt(lambda: owner.get(child, channel))
    if raised is None:
        check.equal(arrived.values(), [51, 52, 53], "it has the values that were sent")


@clause("LIFE-6", vary=())
def test_receiving_from_a_killed_owner_gives_the_data_or_an_exception(stage, channel):
    """The owner sends a message to the peer and is killed; the peer receives."""
    with stage.fresh() as play:
        play.owner.put(play.owner.make([54, 55, 56]), play.peer, channel)
        is_sent(play.owner, play.peer, channel, stage)
        play.owner.kill()
        arrived, raised = attempt(lambda: play.peer.get(play.owner, channel))
        if raised is None:
            check.equal(arrived.values(), [54, 55, 56], "it has the values sent")


@clause("LIFE-7", vary=("strategy",))
def test_nothing_is_left_of_tensors_that_were_sent_and_dropped(
    sender, receiver, channel, stage
):
    """Both sides drop what they sent and got, now one first and now the other."""

    def send_and_drop(number):
        tensor = sender.make([number, 62, 63])
        arrived = sender.send([tensor, tensor], receiver, channel)[1]
        check.equal(arrived.values(), [number, 62, 63], "the tensor arrives")
        for dropped in (tensor, arrived)[:: -1 if number % 2 else 1]:
            dropped.drop()

    send_and_drop(60)
    before = opened(stage, sender, receiver)
    for number in range(ROUNDS):
        send_and_drop(number)
    nothing_is_added(before, stage, sender, receiver)


@clause("LIFE-7", profiles=("share",), vary=("strategy",))
def test_nothing_is_left_of_tensors_that_were_shared_and_never_sent(owner, stage):
    """The owner shares tensors and drops them without sending any."""
    warm = owner.make([64, 65])
    warm.share()
    warm.drop()
    before = opened(stage, owner)
    for number in range(ROUNDS):
        tensor = owner.make([number, 66, 67])
        tensor.share()
        check.equal(tensor.values(), [number, 66, 67], "sharing keeps the values")
        tensor.drop()
    nothing_is_added(before, stage, owner)


@clause("LIFE-7", profiles=("grad",), vary=("strategy",))
def test_nothing_is_left_of_messages_that_were_refused(
    sender, receiver, channel, stage
):
    """The sender puts messages that a non-leaf spoils and drops their tensors."""
    leaf = sender.make([1, 2, 3])
    leaf.set_requires_grad(True)
    non_leaf = sender.non_leaf(leaf)

    def put_and_drop():
        good = sender.make([68, 69])
        _, raised = attempt(lambda: sender.put([good, non_leaf], receiver, channel))
        check.equal(good.values(), [68, 69], "the good tensor is as it was")
        good.drop()
        if raised is None:
            attempt(lambda: receiver.get(sender, channel))

    put_and_drop()
    before = opened(stage, sender, receiver)
    for _ in range(ROUNDS):
        put_and_drop()
    nothing_is_added(before, stage, sender, receiver)


@clause("LIFE-8")
def test_receiver_that_is_killed_leaves_nothing_behind(owner, peer, stage):
    """A child that holds two tensors of the owner is killed; the owner drops them."""
    child = owner.start_peer()
    warm = owner.send(owner.make([1, 2]), child)
    warm.drop()
    before = opened(stage, owner, peer)
    tensors = [owner.make([71 + n, 72, 73]) for n in range(2)]
    arrived = [owner.send(tensor, child) for tensor in tensors]
    check.equal(arrived[1].values(), [72, 72, 73], "the child holds them")
    child.kill()
    for number, tensor in enumerate(tensors):
        keeps_its_values(tensor, [71 + number, 72, 73])
        onward = owner.send(tensor, peer)
        each_sees_the_writes_of_the_others(tensor, onward)
        onward.drop()
        tensor.drop()
    nothing_is_added(before, stage, owner, peer)


@clause("LIFE-8", vary=("strategy",))
def test_receiver_that_is_killed_after_its_sender_dropped_leaves_nothing(owner, stage):
    """A child is killed when it is the last that holds the owner's tensor."""
    child = owner.start_peer()
    owner.send(owner.make([1, 2]), child).drop()
    before = opened(stage, owner)
    tensor = owner.make([74, 75, 76])
    arrived = owner.send(tensor, child)
    tensor.drop()
    check.equal(arrived.values(), [74, 75, 76], "the child holds it alone")
    child.kill()
    nothing_is_added(before, stage, owner)


def everybody_holds_tensors(play):
    """Let each actor hold a tensor it made and sent, and those that it received."""
    actors = (play.owner, play.peer, play.bystander)
    for number, sender in enumerate(actors):
        tensor = sender.make([80 + number, 84, 85])
        for receiver in actors:
            if receiver is not sender:
                arrived = sender.send(tensor, receiver)
                check.equal(arrived.values(), [80 + number, 84, 85], "it arrives")


@clause("LIFE-9")
def test_processes_that_exit_with_live_tensors_leave_nothing_behind(stage):
    """All three hold tensors of all others and exit, the owner last."""
    with stage.fresh() as play:
        everybody_holds_tensors(play)
        for actor in (play.peer, play.bystander, play.owner):
            check.equal(actor.leave(), 0, "it exits normally")
        sentence = "no segment, temporary file or process is left"
        eventually(lambda: not play.left_behind(), sentence, within=stage.grace)


@clause("LIFE-10")
def test_processes_that_are_killed_leave_nothing_behind(stage):
    """All three hold tensors of all others and are killed, the owner last."""
    with stage.fresh() as play:
        everybody_holds_tensors(play)
        for actor in (play.bystander, play.peer, play.owner):
            actor.kill()
        sentence = "no segment and no process is left"
        eventually(lambda: not left(play), sentence, within=stage.grace)


@clause("LIFE-10", vary=("strategy",))
def test_processes_whose_owner_is_killed_first_leave_nothing_behind(stage):
    """All three hold tensors, one message is in flight; the owner is killed first."""
    with stage.fresh() as play:
        everybody_holds_tensors(play)
        play.owner.put(play.owner.make([86, 87]), play.peer)
        for actor in (play.owner, play.peer, play.bystander):
            actor.kill()
        sentence = "no segment and no process is left"
        eventually(lambda: not left(play), sentence, within=stage.grace)


def left(play):
    """Return the segments and processes of `play` that are there now."""
    return [*play.segments(), *play.processes().values()]


@clause("LIFE-11", start_methods=("fork",), vary=("strategy",), profiles=("share",))
def test_tensor_that_a_forked_child_dropped_can_be_sent_by_its_parent(owner, peer):
    """A child drops all that it inherited and lives on; its parent sends the tensor."""
    tensor = owner.make([91, 92, 93])
    tensor.share()
    child = owner.start_peer(start_method="fork")
    check.equal(child.make([1]).values(), [1], "the child runs, without the tensor")
    arrived = owner.send(tensor, peer)
    check.equal(arrived.values(), [91, 92, 93], "it has its values")
    keeps_its_values(arrived, [91, 92, 93])


@clause("LIFE-11", start_methods=("fork",), vary=("strategy",), profiles=("share",))
def test_tensor_outlives_a_forked_child_that_ends_with_it(owner, peer):
    """A child holds what it inherited until it exits; its parent sends the tensor."""
    tensor = owner.make([94, 95, 96])
    tensor.share()
    child = owner.start_peer(arguments=tensor, start_method="fork")
    check.equal(child.arguments.values(), [94, 95, 96], "the child has it")
    child.leave()
    arrived = owner.send(tensor, peer)
    check.equal(arrived.values(), [94, 95, 96], "it has its values")
    keeps_its_values(arrived, [94, 95, 96])
