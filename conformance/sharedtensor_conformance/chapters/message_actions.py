"""Messages of many sizes, and objects that fail or act when they are pickled.

A test gets only the sizes or numbers of wrong messages, so that hundreds cost one
request.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.channels import Arguments

MAX_WRONG_READINGS = 5
"""The maximum number of wrong readings that an action returns. It does not stop at a
wrong reading, since other processes wait for it.
"""


class Unpicklable:
    """An object that raises when it is pickled."""

    def __reduce__(self) -> Any:
        raise ValueError("this object of the suite cannot be pickled")


class OwnError(Exception):
    """An exception of the suite that no implementation knows."""


class Unreceivable:
    """An object that raises one of `UNPICKLING_ERRORS` when it is unpickled."""

    def __init__(self, error: str) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return _raise_when_unpickled, (self.error,)


UNPICKLING_ERRORS = {
    error.__name__: error for error in (ValueError, OwnError, FileNotFoundError)
}
"""The exceptions of an `Unreceivable`, by name."""


def _raise_when_unpickled(error: str) -> None:
    raise UNPICKLING_ERRORS[error]("this object of the suite cannot be unpickled")


class SendsWhenPickled:
    """An object that sends another message when it is pickled, as one that logs may."""

    def __init__(self, send: Callable[[], None]) -> None:
        self.send = send

    def __reduce__(self) -> Any:
        self.send()
        return str, ("it was sent",)


class PicklesWhenPickled:
    """An object that is pickled as a pickle of a tensor, as a checkpoint may be.

    It arrives as the bytes of this pickle; as no bytes if the tensor cannot be pickled.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        try:
            return bytes, (pickle.dumps(self.tensor),)
        except Exception:
            return bytes, ()


class MakesWhenPickled:
    """An object that makes a tensor when it is first pickled, and keeps it.

    It arrives as a list with the tensor. The implementation is not asked whether the
    object is a tensor, which could be what first uses it.
    """

    def __init__(self, actor: Actor, values: list[Any]) -> None:
        self._actor = actor
        self._values = values
        self.tensor: Any = None

    def with_leaves(self, change: Callable[[Any], Any]) -> MakesWhenPickled:
        """Return this object, which has nothing to change: see `map_leaves`."""
        return self

    def __reduce__(self) -> Any:
        if self.tensor is None:
            arguments = self._values, (len(self._values),), "float32"
            self.tensor = self._actor.call("make", *arguments)
        return list, ((self._actor.encoded(self.tensor),),)


class Padding:
    """An object of a given size that a message contains beside its tensors."""

    def __init__(self, size: int) -> None:
        self.content = bytes_of_size(size)


def bytes_of_size(size: int) -> bytes:
    """Return `size` bytes: the number `size`, repeated, so that other sizes differ."""
    return (b"%d," % size * (size // 2 + 1))[:size]


def unpicklable(actor: Actor) -> Any:
    """Return an object that raises when it is sent."""
    return Unpicklable()


def unreceivable(actor: Actor, error: str) -> Any:
    """Return an object that raises one of `UNPICKLING_ERRORS` when it is received."""
    return Unreceivable(error)


_kept: list[Exception] = []


def get_and_keep_exception(actor: Actor, sender: str, channel: str) -> Any:
    """Receive a message; keep what that raises, as programs do that log it later."""
    try:
        return actor.get(sender, channel)
    except Exception as error:
        _kept.append(error)
        raise


def forget_exceptions(actor: Actor) -> None:
    """Drop what `get_and_keep_exception` has kept."""
    _kept.clear()


def sending_when_pickled(actor: Actor, to: str, channel: str, payload: Any) -> Any:
    """Return an object that puts a payload on a channel while it is pickled.

    It may be pickled in another thread, or at the end of the process. So it holds the
    encoded message and the channels.
    """
    message = actor.outgoing(payload)
    own = actor.pair_with(to, channel).of(actor.name, channel)
    return SendsWhenPickled(lambda: own.put(message))


def makes_when_pickled(actor: Actor, values: list[Any]) -> Any:
    """Return an object that makes a tensor with these values when it is pickled."""
    return MakesWhenPickled(actor, values)


def made_when_pickled(actor: Actor, maker: Any) -> Any:
    """Return the tensor that was made."""
    return maker.tensor


def pickles_when_pickled(actor: Actor, tensor: Any) -> Any:
    """Return an object that pickles a tensor while it is pickled itself."""
    return PicklesWhenPickled(tensor)


def make_padding(actor: Actor, size: int) -> Any:
    """Return an object of `size` bytes."""
    return Padding(size)


def is_padding(actor: Actor, value: Any, size: int) -> bool:
    """Return whether this is what `make_padding` returned in another process."""
    return isinstance(value, Padding) and value.content == bytes_of_size(size)


def put_messages_of_sizes(
    actor: Actor, channel: Any, tensor: Any, sizes: list[int]
) -> None:
    """Put a message for each size: a tensor or None, and that many bytes."""
    for size in sizes:
        actor.put_on(channel, [tensor, bytes_of_size(size)])


def get_messages_of_sizes(
    actor: Actor, channel: Any, values: list[Any] | None, sizes: list[int]
) -> list[int]:
    """Get the messages of `put_messages_of_sizes`.

    Args:
        actor: the actor.
        channel: the channel.
        values: the values of the tensor in each message; None if there is no tensor.
        sizes: the sizes.

    Returns:
        The sizes of the messages that differ.
    """
    wrong = []
    for size in sizes:
        message = actor.get_from(channel)
        is_whole = isinstance(message, list) and message[1:] == [bytes_of_size(size)]
        if not is_whole or _values_or_none(actor, message[0]) != values:
            wrong.append(size)
        del message
    return wrong


def _values_or_none(actor: Actor, tensor: Any) -> Any:
    return None if tensor is None else actor.call("values", tensor)


def put_numbered_messages(
    actor: Actor, channel: Any, first: int, count: int, size: int
) -> None:
    """Put `count` messages of `size` bytes, without tensors, numbered from `first`."""
    for number in range(first, first + count):
        message = {"number": number, "tensors": [], "padding": Padding(size)}
        actor.put_on(channel, message)


def get_numbered_messages(
    actor: Actor, channel: Any, first: int, count: int, size: int, seconds: float
) -> list[int]:
    """Get the messages of `put_numbered_messages`, each within `seconds`.

    The first wrong or missing message ends this, because the numbers of later ones are
    no longer known to match.

    Returns:
        The numbers of the first wrong or missing message and of all later ones; an
        empty list if each message is right.
    """
    for number in range(first, first + count):
        found = actor.get_within(channel, seconds)
        if not found or not _is_numbered_message(actor, found[0], number, size):
            return list(range(number, first + count))
    return []


def _is_numbered_message(actor: Actor, message: Any, number: int, size: int) -> bool:
    is_next: bool = message["number"] == number
    return is_next and is_padding(actor, message["padding"], size)


# Calls of a queue that fail at once or after a timeout


def offer(actor: Actor, channel: Any, payload: Any, how: Arguments = ()) -> bool:
    """Put a payload on a queue if it has room; return whether it had.

    `how` has the arguments of `put`, such as a timeout; it is empty for `put_nowait`.
    """
    message = actor.outgoing(payload)
    was_put: bool = actor.by_implementation(lambda: channel.offer(message, how))
    return was_put


def try_get(actor: Actor, channel: Any, how: Arguments) -> list[Any]:
    """Return a list with the next payload of a queue, empty if the queue is empty.

    `how` has the arguments with which `get` does not wait; empty for `get_nowait`.
    """
    messages = actor.by_implementation(lambda: channel.try_get(how))
    return [actor.incoming(message) for message in messages]
