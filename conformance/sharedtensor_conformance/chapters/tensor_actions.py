"""Makes, compares, copies and drops many tensors in a process by one request."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from contextlib import suppress
from multiprocessing import reduction
from typing import Any

from sharedtensor_conformance.harness.ledger import ledger
from sharedtensor_conformance.harness.remote.actor import Actor


def pickled(actor: Actor, value: Any) -> bytes:
    """Return the pickle of a value, as a program would write it to a file."""
    content: bytes = actor.by_implementation(lambda: pickle.dumps(value))
    return content


def unpickled(actor: Actor, content: bytes) -> Any:
    """Return the value in a pickle."""
    return actor.by_implementation(lambda: pickle.loads(content))


def pickled_to_share(actor: Actor, value: Any) -> bytes:
    """Return bytes that a program carries itself, as those of a channel are made."""
    pickling = reduction.ForkingPickler
    return bytes(actor.by_implementation(lambda: pickling.dumps(value)))


def deep_copy(actor: Actor, value: Any) -> Any:
    """Return a deep copy of a value."""
    return actor.by_implementation(lambda: copy.deepcopy(value))


def shallow_copy(actor: Actor, value: Any) -> Any:
    """Return a shallow copy of a value."""
    return actor.by_implementation(lambda: copy.copy(value))


def make_long(actor: Actor, length: int, value: int) -> Any:
    """Return a new tensor of `length` elements, all with the same value."""
    return actor.call("make", [value] * length, (length,), "float32")


def make_large(actor: Actor, length: int) -> Any:
    """Return a new tensor of `length` bytes, which has grown from one.

    Its memory is only reserved until somebody writes to it.
    """
    tensor = actor.call("make", [0], (1,), "uint8")
    actor.call("resize", tensor, length)
    return tensor


def make_many(actor: Actor, count: int, first: int) -> list[Any]:
    """Return `count` tensors with one element each: `first`, `first` + 1 and so on."""
    numbers = range(first, first + count)
    return [actor.call("make", [number], (1,), "float32") for number in numbers]


def positions_with_wrong_first_value(
    actor: Actor, tensors: list[Any], first: int
) -> list[int]:
    """Return the positions of the tensors that do not begin with `first` + position."""
    found = [actor.call("read", tensor, (0,)) for tensor in tensors]
    return [n for n, value in enumerate(found) if value != first + n]


def first_values(actor: Actor, tensor: Any, count: int) -> list[Any]:
    """Return the first `count` elements of a tensor."""
    return [actor.call("read", tensor, (index,)) for index in range(count)]


def make_many_long(
    actor: Actor, count: int, length: int, dtype: str = "float32"
) -> list[Any]:
    """Return `count` tensors of `length` elements.

    The first elements are 1, 2 and so on, and all other elements are 0.
    """
    tail = [0] * (length - 1)
    made = range(1, count + 1)
    return [actor.call("make", [n, *tail], (length,), dtype) for n in made]


class PutAside:
    """Tensors that a process can drop although they are among its arguments.

    A forked child cannot drop its arguments themselves: what called it refers to them.
    """

    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tensors


def put_aside(actor: Actor, tensors: list[Any]) -> Any:
    """Return an object that has these tensors, to be inherited by a forked child."""
    return PutAside(tensors)


def take_back(actor: Actor, aside: Any) -> list[Any]:
    """Return these tensors, which the object has no more in this process."""
    tensors: list[Any] = aside.tensors
    aside.tensors = []
    return tensors


def share_each(actor: Actor, tensors: list[Any]) -> None:
    """Share each tensor by a separate call."""
    for tensor in tensors:
        actor.call("share", tensor)


def remove_name(actor: Actor, tensor: Any) -> None:
    """Remove the file in which a tensor lies, as a program that cleans up may do."""
    own = mapped_file(actor, tensor)
    with os.scandir("/dev/shm") as files:
        for file in files:
            with suppress(FileNotFoundError):  # another one has been removed
                if ledger.identity(file.stat(follow_symlinks=False)) == own:
                    os.unlink(file.path)


def mapped_sizes(actor: Actor) -> dict[str, int]:
    """Return how many bytes of each file of shared memory this process maps."""
    return ledger.mapped_sizes(os.getpid())


def mapped_file(actor: Actor, tensor: Any) -> str:
    """Return the file in whose mapping a tensor begins; "" for none."""
    return ledger.file_at(os.getpid(), actor.call("address", tensor))


def drop_others(actor: Actor, kept: list[Any]) -> None:
    """Drop all objects that this process keeps for the suite, except some tensors."""
    held = actor.objects.items()
    actor.drop(*(key for key, value in held if all(value is not k for k in kept)))


def positions_with_wrong_values(
    actor: Actor, tensors: list[Any], first: int
) -> list[int]:
    """Return the positions of tensors with other values than `make_many` gave them."""
    found = [actor.call("values", tensor) for tensor in tensors]
    due = [[first + place] for place in range(len(tensors))]
    return [place for place, value in enumerate(found) if value != due[place]]


def collect_garbage(actor: Actor) -> None:
    """Run the garbage collector."""
    gc.collect()


# Arrays of the profile ``arrays``


def read_array(actor: Actor, array: Any, index: int) -> Any:
    """Return one element of an array."""
    return array[index].item()


def write_array(actor: Actor, array: Any, index: int, value: Any) -> None:
    """Write one element of an array."""
    array[index] = value
