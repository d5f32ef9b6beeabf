"""Small programs over device memory, of which all interleavings are searched.

A scenario starts a program for each process. Its docstring is part of the record.
"""

from __future__ import annotations

from collections.abc import Callable

from device_processes import DeviceMachine, DeviceProcess
from sharedtensor.cuda import protocol
from sharedtensor.cuda.errors import DeviceError

Scenario = Callable[[DeviceMachine], None]
Program = Callable[[DeviceProcess], None]


def makes_for(*to: str, also: str = "") -> Program:
    """Return a program that makes a tensor, sends and drops it, and then collects.

    It collects when all receivers and `also` have dropped their tensors. A name that
    occurs twice in `to` gets two messages.
    """

    def program(me: DeviceProcess) -> None:
        made = me.make(1)
        me.send(made, *to)
        del made
        me.wait_for(*filter(None, dict.fromkeys((*to, also))))
        me.collect_all()

    return program


def reads(*senders: str, value: int = 1) -> Program:
    """Return a program that receives from each sender, reads, and drops the tensor."""

    def program(me: DeviceProcess) -> None:
        for sender in senders:
            got = me.receive(sender)
            me.expect(got, value)
            del got

    return program


def passes_on(to: str) -> Program:
    """Return a program that receives from the maker `a`, sends on, and drops."""

    def program(me: DeviceProcess) -> None:
        got = me.receive("a")
        me.send(got, to)

    return program


def one_sends(machine: DeviceMachine) -> None:
    """One makes a tensor, sends it and drops it; the other reads and drops it."""

    machine.start(a=makes_for("b"), b=reads("a"))


def one_sends_twice(machine: DeviceMachine) -> None:
    """One sends a tensor twice; the other drops one of them before it has the other."""

    machine.start(a=makes_for("b", "b"), b=reads("a", "a"))


def one_sends_again_and_writes(machine: DeviceMachine) -> None:
    """One sends, makes another tensor in place of it, and sends that."""

    def maker(me: DeviceProcess) -> None:
        made = me.make(1)
        me.send(made, "b")
        del made
        other = me.make(2)
        me.send(other, "b")
        del other
        me.wait_for("b")
        me.collect_all()

    def receiver(me: DeviceProcess) -> None:
        for value in (1, 2):
            got = me.receive("a")
            me.expect(got, value)
            del got

    machine.start(a=maker, b=receiver)


def both_write(machine: DeviceMachine) -> None:
    """The receiver writes and drops at once; the maker makes another tensor then."""

    def maker(me: DeviceProcess) -> None:
        made = me.make(1)
        me.send(made, "b")
        del made
        me.wait_for("b")
        other = me.make(2)
        me.expect(other, 2)
        del other
        me.collect_all()

    def receiver(me: DeviceProcess) -> None:
        got = me.receive("a")
        me.write(got, 3)

    machine.start(a=maker, b=receiver)


def room_is_short(machine: DeviceMachine) -> None:
    """One makes a tensor where the only place was sent, and given back."""
    machine.world.capacity = 1
    one_sends_again_after(machine)


def one_sends_again_after(machine: DeviceMachine) -> None:
    """One sends, waits until the other has dropped, and makes another tensor."""

    def maker(me: DeviceProcess) -> None:
        made = me.make(1)
        me.send(made, "b")
        del made
        me.wait_for("b")
        if not me.machine.world.kills:  # a message may be lost with its receiver
            other = me.make(2)
            me.expect(other, 2)
            del other
        me.collect_all()

    machine.start(a=maker, b=reads("a"))


def one_drops_at_once(machine: DeviceMachine) -> None:
    """One makes a tensor and drops it, and sends another one that lies there then."""

    def maker(me: DeviceProcess) -> None:
        made = me.make(1)
        del made
        other = me.make(2)
        me.send(other, "b")
        del other
        me.wait_for("b")
        me.collect_all()

    machine.start(a=maker, b=reads("a", value=2))


def two_send(machine: DeviceMachine) -> None:
    """The maker sends to a second and a third; the second sends on to the third."""

    machine.start(a=makes_for("b", "c"), b=passes_on("c"), c=reads("a", "b"))


def two_receive(machine: DeviceMachine) -> None:
    """One sends to two others and drops, and collects when one of them has dropped."""

    def maker(me: DeviceProcess) -> None:
        made = me.make(1)
        me.send(made, "b", "c")
        del made
        me.wait_for("b")
        protocol.collect(me.state)
        me.wait_for("c")
        me.collect_all()

    machine.start(a=maker, b=reads("a"), c=reads("a"))


def one_passes_on(machine: DeviceMachine) -> None:
    """One sends and drops; a second sends on and drops; a third reads."""

    machine.start(a=makes_for("b", also="c"), b=passes_on("c"), c=reads("b"))


def one_of_two_is_sent_on(machine: DeviceMachine) -> None:
    """One sends two tensors; a second drops one and sends the other on to a third."""

    def maker(me: DeviceProcess) -> None:
        first, second = me.make(1), me.make(1)
        me.send(first, "b")
        me.send(second, "b")
        del first, second
        me.wait_for("b")
        protocol.collect(me.state)
        me.wait_for("c")
        me.collect_all()

    def second_one(me: DeviceProcess) -> None:
        first, second = me.receive("a"), me.receive("a")
        del first
        me.send(second, "c")

    machine.start(a=maker, b=second_one, c=reads("b"))


def it_comes_home(machine: DeviceMachine) -> None:
    """One sends and drops; the other sends it back; the maker reads its own memory."""

    def maker(me: DeviceProcess) -> None:
        made = me.make(1)
        me.send(made, "b")
        del made
        got = me.receive("b")
        me.expect(got, 1)
        del got
        me.wait_for("b")
        me.collect_all()

    machine.start(a=maker, b=passes_on("a"))


def the_maker_ends(machine: DeviceMachine) -> None:
    """The maker ends while the other may have its tensor, which shares its own then."""

    def maker(me: DeviceProcess) -> None:
        made = me.make(1)
        me.send(made, "b")

    def receiver(me: DeviceProcess) -> None:
        got = me.receive("a")
        del got
        own = me.make(2)
        me.expect(own, 2)
        del own
        me.collect_all()

    machine.start(a=maker, b=receiver)


def a_message_is_built_twice(machine: DeviceMachine) -> None:
    """The receiver builds its message a second time, which is refused."""

    def receiver(me: DeviceProcess) -> None:
        message = me.next_message("a")
        if message is None:
            return
        got = me.rebuild_storage(message)
        try:
            second = protocol.receive(me.state, message)
        except DeviceError:
            second = None
        del second
        me.expect(got, 1)

    machine.start(a=makes_for("b"), b=receiver)


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        one_sends,
        one_sends_twice,
        one_sends_again_and_writes,
        one_drops_at_once,
        both_write,
        room_is_short,
        it_comes_home,
        the_maker_ends,
        a_message_is_built_twice,
        two_receive,
        one_passes_on,
        one_of_two_is_sent_on,
        two_send,
    )
}
