"""Bundles: messages with tensors of many kinds, made and described in their process.

A test with one tensor finds faults that every tensor has. A message with all dtypes and
layouts finds a fault of one dtype in one layout. Such a message is too large to read
each value by a remote call. So a process describes its bundle as plain data, and a test
compares the descriptions of two processes: before a write, after the writes of one
process, and after those of the other. If they share memory, the descriptions are equal.

"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sharedtensor_conformance.harness.remote.actor import Actor

LARGEST_VALUE = 100
"""The largest written value; every dtype can represent it exactly."""

NESTING_DEPTH = 40
"""The depth of the deepest tensor in a bundle."""


class Caller(Protocol):
    """An actor or a worker, as far as it calls operations of the adapter."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Call an operation."""
        ...


class Bundle:
    """A message that stays in its process as one object, with all its content."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def with_leaves(self, change: Callable[[Any], Any]) -> Bundle:
        """Return a bundle with the changed content: see `map_leaves`."""
        return Bundle(change(self.content))


def make_bundle(actor: Caller, plan: list[dict[str, Any]], plain: Any) -> Any:
    """Return a bundle with the tensors of a plan, and plain values beside them.

    Each row of the plan describes a tensor: ``dtype``, ``values``, ``shape``; the
    ``layout`` of the view that is sent instead, or None; whether it requires grad
    (``flag``); and the values of its grad, of the grad of its grad, and so on
    (``grads``).

    The tensors are in lists, tuples and dictionaries, one of them deeply nested. Some
    occur twice, and for every second view its base follows.
    """
    tensors, bases = [], []
    for number, row in enumerate(plan):
        base = actor.call("make", row["values"], row["shape"], row["dtype"])
        tensor = base
        if row["layout"] is not None:
            tensor = actor.call("view", base, row["layout"])
            bases += [base] if number % 2 else []
        if row["flag"]:
            actor.call("set_requires_grad", tensor, True)
        _set_grads(actor, tensor, row["grads"], row["dtype"])
        tensors.append(tensor)
    deep: Any = tensors[-1]
    for level in range(NESTING_DEPTH):
        deep = ([deep], (deep,), {level: deep})[level % 3]
    third = len(tensors) // 3
    return Bundle(
        {
            "list": tensors[:third],
            "before": plain,
            "tuple": tuple(tensors[third : 2 * third]),
            "numbers": dict(enumerate(tensors[2 * third :])),
            ("a", 1): {None: tensors[0], "bases": bases},
            "after": [plain, plain],
            "deep": deep,
            "again": [tensors[0], tensors[-1], tensors[0]],
        }
    )


def _set_grads(actor: Caller, tensor: Any, grads: list[list[Any]], dtype: str) -> None:
    for values in grads:
        grad = actor.call("make", values, actor.call("shape", tensor), dtype)
        actor.call("set_grad", tensor, grad)
        tensor = grad


def describe_bundle(actor: Caller, bundle: Any, with_grads: bool) -> dict[str, Any]:
    """Return a complete description of a bundle as plain data.

    Returns:
        ``tree`` has a text for each plain value and a number for each tensor, with the
        same number for the same object; ``tensors`` has the facts for each number.
    """
    found: list[Any] = []
    numbers: dict[int, int] = {}

    def number_of(tensor: Any) -> int:
        if id(tensor) not in numbers:
            numbers[id(tensor)] = len(found)
            found.append(tensor)
        return numbers[id(tensor)]

    def walk(item: Any) -> Any:
        if isinstance(item, list | tuple):
            return [type(item).__name__, *map(walk, item)]
        if isinstance(item, dict):
            return ["dict", *([repr(key), walk(one)] for key, one in item.items())]
        return number_of(item) if actor.call("is_tensor", item) else repr(item)

    tree = walk(bundle.content)
    facts: list[dict[str, Any]] = []
    for tensor in found:  # the list grows if a tensor has a grad
        facts.append(_facts(actor, tensor))
        if with_grads:
            grad = actor.call("grad", tensor)
            facts[-1] |= {
                "flag": bool(actor.call("requires_grad", tensor)),
                "leaf": bool(actor.call("is_leaf", tensor)),
                "grad": None if grad is None else number_of(grad),
            }
    return {"tree": tree, "tensors": facts}


def _facts(actor: Caller, tensor: Any) -> dict[str, Any]:
    return {
        "dtype": actor.call("dtype", tensor),
        "shape": list(actor.call("shape", tensor)),
        "values": [repr(value) for value in actor.call("values", tensor)],
    }


def strides_of_bundle(actor: Caller, bundle: Any) -> list[list[int]]:
    """Return the strides of each tensor that is not contiguous, in order.

    Strides of dimensions with one element are left out, because they have no meaning.
    """
    return [
        steps
        for tensor in tensors_in(actor, bundle)
        if (steps := _noncontiguous_strides(actor, tensor))
    ]


def _noncontiguous_strides(actor: Caller, tensor: Any) -> list[int]:
    shape = actor.call("shape", tensor)
    pairs = list(zip(shape, actor.call("strides", tensor), strict=True))
    expected = 1
    for length, stride in reversed(pairs):
        if length != 1 and stride != expected and 0 not in shape:
            return [stride for length, stride in pairs if length != 1]
        expected *= length
    return []


def tensors_in(actor: Caller, bundle: Any) -> list[Any]:
    """Return the tensors of a bundle in order, each object once."""
    found: dict[int, Any] = {}

    def walk(item: Any) -> None:
        if isinstance(item, list | tuple):
            for part in item:
                walk(part)
        elif isinstance(item, dict):
            walk(list(item.values()))
        elif actor.call("is_tensor", item):
            found.setdefault(id(item), item)

    walk(bundle.content)
    return list(found.values())


def grads_of(actor: Caller, tensors: list[Any]) -> list[Any]:
    """Return the grads of tensors, the grads of those, and so on."""
    found: list[Any] = []
    for tensor in [*tensors]:
        grad = actor.call("grad", tensor)
        while grad is not None and not any(grad is one for one in found):
            found.append(grad)
            grad = actor.call("grad", grad)
    return found


def write_bundle(actor: Caller, bundle: Any, with_grads: bool) -> None:
    """Write another value to the first and the last element of every tensor."""
    tensors = tensors_in(actor, bundle)
    for tensor in [*tensors, *(grads_of(actor, tensors) if with_grads else [])]:
        shape = actor.call("shape", tensor)
        if 0 in shape:
            continue
        ends = {(0,) * len(shape), tuple(length - 1 for length in shape)}
        for index in sorted(ends):
            actor.call(
                "write",
                tensor,
                index,
                _different_value(actor.call("read", tensor, index)),
            )


def _different_value(value: Any) -> Any:
    """Return another value of the same dtype."""
    if isinstance(value, bool):
        return not value
    small = -LARGEST_VALUE <= value.real < LARGEST_VALUE  # false for infinities and NaN
    return value + 1 if small else 1


def addresses_in_bundle(actor: Actor, bundle: Any) -> list[int]:
    """Return the addresses of the tensors in a bundle that have elements."""
    tensors = tensors_in(actor, bundle)
    full = [one for one in tensors if 0 not in actor.call("shape", one)]
    return [actor.call("address", one) for one in full]


def share_bundle(actor: Actor, bundle: Any) -> None:
    """Share every tensor of a bundle."""
    for tensor in tensors_in(actor, bundle):
        actor.call("share", tensor)


def get_and_write_bundle(
    actor: Actor, sender: str, channel: str, with_grads: bool
) -> list[Any]:
    """Get a bundle, describe it, write to it, and describe it again."""
    bundle = actor.get(sender, channel)
    found = [describe_bundle(actor, bundle, with_grads)]
    write_bundle(actor, bundle, with_grads)
    return [*found, describe_bundle(actor, bundle, with_grads)]
