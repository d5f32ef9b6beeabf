"""Makes, sends and checks bundles: messages with tensors of every dtype and layout.

A `RemoteBundle` is the test's reference to a bundle in one process. The process makes
and describes the bundle with the functions in ``harness/bundles.py``.

A bundle has arrived unchanged if the descriptions of sender and receiver are equal. It
is shared if their descriptions are equal again after the writes of either process. If
descriptions differ, the case breaks the clause about the first difference, if the test
cites this clause.

A *way* is how a bundle gets to another process: a channel, an argument, a fork. Tests
pass the clauses about their way to the checks as `way_clauses`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan, prod
from typing import Any

from sharedtensor_conformance.adapter import Implementation, Layout
from sharedtensor_conformance.chapters import bundle_actions
from sharedtensor_conformance.chapters.shared_steps import DIFFERENTIABLE, judging
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness import check
from sharedtensor_conformance.harness.case.axes import (
    BASE_ELEMENTS,
    layouts_of,
    permitted_layouts,
)

ARRIVAL_CLAUSES = (
    *("VIEW-1", "VIEW-5", "VIEW-7", "VIEW-8"),
    *("SHARE-3", "CHAN-6", "RESHARE-6"),
)
"""The clauses about what arrives, for every way."""

SHARING_CLAUSES = ("SHARE-1", "SHARE-2", "VIEW-2", "VIEW-3", "VIEW-6", "CHAN-3")
"""The clauses about which processes see a write, for every way."""

BUNDLE_CLAUSES = (*ARRIVAL_CLAUSES, *SHARING_CLAUSES)

GRAD_CLAUSES = (
    *("GRAD-1", "GRAD-2", "GRAD-3", "GRAD-9"),
    *("RESHARE-6", "SHARE-1", "SHARE-2", "VIEW-1"),
)
"""The clauses about `requires_grad` flags and grads, for every way."""

PLAIN_VALUES: list[Any] = [
    None,
    True,
    -7,
    2**70,
    -0.0,
    "grüße \x00",
    b"\x00\xff",
    (),
    {},
    [[], {3: ""}],
]
"""Plain values, sent in the same message as the tensors."""

SHAPES = ((), (1,), (0,), (3, 0, 2), (1, 5, 1), (2, 3, 4), (24,))
"""The shapes of the tensors that are not views."""

MORE_LAYOUTS = (
    Layout("empty", offset=7, shape=(0,), strides=(1,)),
    Layout("last", offset=23, shape=(), strides=()),
    Layout("repeated", offset=23, shape=(4,), strides=(0,)),
    Layout("of_ones", offset=2, shape=(1, 3, 1), strides=(9, 2, 5)),
    Layout("turned", offset=1, shape=(2, 3, 2), strides=(1, 8, 3)),
)
"""Layouts of views in addition to those of `layouts_of`, which other tests use."""


def _values(dtype: str, count: int, first: int) -> list[Any]:
    numbers = range(first, first + count)
    return [bool(n * n % 3) if dtype == "bool" else n % 90 for n in numbers]


def _row(dtype: str, form: Layout | tuple[int, ...], first: int) -> dict[str, Any]:
    is_view = isinstance(form, Layout)
    shape = (BASE_ELEMENTS,) if isinstance(form, Layout) else form
    return {
        "dtype": dtype,
        "values": _values(dtype, prod(shape), first),
        "shape": shape,
        "layout": form if is_view else None,
        "flag": False,
        "grads": [],
    }


def bundle_rows(implementation: Implementation, turn: int) -> list[dict[str, Any]]:
    """Return the rows of a bundle with each dtype, and each layout and shape.

    `make_bundle` of `bundle_actions` defines the fields. Another `turn` combines the
    dtypes with other layouts, and changes the values.
    """
    dtypes = implementation.dtypes
    more = permitted_layouts(MORE_LAYOUTS, implementation)
    forms: list[Any] = [*layouts_of(implementation), *more, *SHAPES]
    return [
        _row(dtypes[(number + turn) % len(dtypes)], form, 5 * number + turn)
        for number, form in enumerate(forms)
    ]


def bundle_rows_with_grads(implementation: Implementation) -> list[dict[str, Any]]:
    """Return the rows of a bundle whose tensors have flags and grads.

    Each tensor occurs with `requires_grad` and without. Its grad is none, zeros,
    special values (negative zero, NaN, infinity), or a grad with a grad of its own.
    """
    dtypes = [name for name in DIFFERENTIABLE if name in implementation.dtypes]
    sorts: list[Callable[[int], list[list[Any]]]] = [
        lambda count: [],
        lambda count: [[0.0] * count],
        lambda count: [[-0.0, nan, inf, *range(count)][:count]],
        lambda count: [list(range(count)), [1.0] * count, [2.0] * count],
    ]
    forms: list[Any] = [(), (3,), (0,), (2, 3), *layouts_of(implementation)[:5]]
    rows = []
    for number, form in enumerate(forms):
        row = _row(dtypes[number % len(dtypes)], form, 3 * number)
        count = prod(form.shape if isinstance(form, Layout) else form)
        for step, flag in enumerate((True, False)):
            grads = sorts[(number + step) % len(sorts)](count)
            rows.append(row | {"flag": flag, "grads": grads})
    return rows


class RemoteBundle:
    """The test's reference to a bundle in one process.

    Args:
        actor: the process that has the bundle.
        remote: the bundle in this process.
        with_grads: whether flags and grads are described, and grads written.
    """

    def __init__(self, actor: Any, remote: Any, with_grads: bool = False) -> None:
        self.actor = actor
        self.remote = remote
        self.with_grads = with_grads

    def description(self) -> dict[str, Any]:
        """Return the description of the bundle by its process, as plain data."""
        found: dict[str, Any] = self._run(
            bundle_actions.describe_bundle, self.with_grads
        )
        return found

    def strides(self) -> list[list[int]]:
        """Return the strides of each tensor in the bundle that is not contiguous."""
        found: list[list[int]] = self._run(bundle_actions.strides_of_bundle)
        return found

    def write(self) -> None:
        """Make the process write to every tensor in the bundle."""
        self._run(bundle_actions.write_bundle, self.with_grads)

    def share(self) -> None:
        """Make the process share every tensor in the bundle."""
        self._run(bundle_actions.share_bundle)

    def addresses(self) -> list[int]:
        """Return the addresses, in the process, of the tensors that have elements."""
        found: list[int] = self._run(bundle_actions.addresses_in_bundle)
        return found

    def drop(self) -> None:
        """Make the process drop the bundle."""
        self.remote.drop()

    def received_by(self, actor: Any, remote: Any) -> RemoteBundle:
        """Return the bundle that arrived in `actor` as `remote`."""
        return RemoteBundle(actor, remote, self.with_grads)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.actor.run(function, self.remote, *arguments)


def make_bundle(
    actor: Any, implementation: Implementation, turn: int = 0
) -> RemoteBundle:
    """Make a bundle in the process `actor`, with the rows of `bundle_rows`."""
    rows = bundle_rows(implementation, turn)
    return RemoteBundle(
        actor, actor.run(bundle_actions.make_bundle, rows, PLAIN_VALUES)
    )


def make_bundle_with_grads(actor: Any, implementation: Implementation) -> RemoteBundle:
    """Make a bundle in the process `actor` whose tensors have flags and grads."""
    rows = bundle_rows_with_grads(implementation)
    remote = actor.run(bundle_actions.make_bundle, rows, PLAIN_VALUES)
    return RemoteBundle(actor, remote, True)


def make_bundle_with_flags(actor: Any, implementation: Implementation) -> RemoteBundle:
    """Make a bundle in the process `actor` whose tensors have flags but no grads."""
    rows = [row | {"grads": []} for row in bundle_rows_with_grads(implementation)]
    remote = actor.run(bundle_actions.make_bundle, rows, PLAIN_VALUES)
    return RemoteBundle(actor, remote, True)


def send_on_plain_channel(bundle: RemoteBundle, receiver: Any) -> None:
    """Send a bundle on a plain channel, and drop it, before the test uses its own way.

    If this fails, because views cannot be sent at all for example, the case breaks
    VIEW-1 and not the clauses about the way. A pipe is preferred: it raises exceptions
    that the thread of a queue would not pass to the caller.
    """
    claimed = receiver.host.channels
    with judging("VIEW-1"):
        channel = "pipe" if "pipe" in claimed else claimed[0]
        bundle.actor.send(bundle.remote, receiver, channel).drop()
    bundle.drop()


# Judging


def _structure_of(tree: Any) -> Any:
    """Return a tree with ``"tensor"`` in place of the number of each tensor."""
    if isinstance(tree, list):
        return [_structure_of(part) for part in tree]
    return "tensor" if isinstance(tree, int) else tree


def _clauses_of(field: str, facts: dict[str, Any], is_grad: bool) -> tuple[str, ...]:
    """Return the clauses about a changed field, the most specific first.

    Args:
        field: the name of the field in the facts of a tensor.
        facts: the facts of the tensor at the sender.
        is_grad: whether the tensor is the grad of another one.
    """
    if field in ("flag", "leaf"):
        return ("GRAD-1",)
    if field == "grad" or is_grad:
        return ("GRAD-2",)
    by_shape = {True: "VIEW-7"}.get(0 in facts["shape"], "VIEW-1")
    by_shape = "VIEW-8" if facts["shape"] == [] else by_shape
    return {
        "dtype": ("VIEW-5",),
        "shape": (by_shape,),
        "values": ("SHARE-3",),
    }[field]


def _grads_in(description: dict[str, Any]) -> set[int]:
    return {facts.get("grad") for facts in description["tensors"]} - {None}


def check_same_description(
    received: dict[str, Any],
    expected: dict[str, Any],
    *way_clauses: str,
    moment: str = "it arrives",
) -> None:
    """Check that the description of a received bundle equals that of the sent one.

    Args:
        received: the description by the receiver.
        expected: the description by the sender.
        way_clauses: the clauses about the way that the bundle took.
        moment: the beginning of the sentences in the evidence.
    """
    with judging("CHAN-3", *way_clauses):
        is_like = _structure_of(received["tree"]) == _structure_of(expected["tree"])
        check(is_like, f"{moment} with all that it has in its place")
    with judging("RESHARE-6", *way_clauses):
        sentence = f"{moment} with the same object where it was the same"
        check.equal(received["tree"], expected["tree"], sentence)
    grads = _grads_in(expected)
    pairs = zip(received["tensors"], expected["tensors"], strict=False)
    for number, (one, other) in enumerate(pairs):
        for field, value in other.items():
            if one[field] != value:  # a check of every field would take too long
                what = f"{other['dtype']} of shape {tuple(other['shape'])}"
                with judging(*_clauses_of(field, other, number in grads), *way_clauses):
                    sentence = f"{moment}, the {field} of its {what} is right"
                    check.equal(one[field], value, sentence)
    check.equal(
        len(received["tensors"]), len(expected["tensors"]), "all tensors are there"
    )


def _numbers_in(tree: Any) -> set[int]:
    """Return the numbers of the tensors in the tree of a description."""
    if isinstance(tree, list):
        return set().union(*map(_numbers_in, tree))
    return {tree} if isinstance(tree, int) else set()


def check_same_values(copy: dict[str, Any], original: dict[str, Any]) -> None:
    """Check that the tensors of a copied bundle have the dtypes, shapes and values.

    A copy may have no grad; a grad that it has is checked as well.

    Args:
        copy: the description of the copied bundle.
        original: the description of the bundle that was copied.
    """
    pairs = [(number, number) for number in sorted(_numbers_in(original["tree"]))]
    for there, here in pairs:  # the list grows if a tensor and its copy have a grad
        one, other = copy["tensors"][there], original["tensors"][here]
        what = f"{other['dtype']} of shape {tuple(other['shape'])}"
        for field in ("dtype", "shape", "values"):
            if one[field] != other[field]:  # a check of every field would take too long
                sentence = f"the {field} of the copy of a {what} is right"
                check.equal(one[field], other[field], sentence)
        if None not in (one.get("grad"), other.get("grad")):
            pairs.append((one["grad"], other["grad"]))
    check(len(pairs), "the copy of the bundle has the values of the original")


def _clauses_on_sharing(ids: Sequence[str]) -> list[str]:
    """Return those of the clauses that a copy with equal values can break."""
    return [id for id in ids if load_clauses()[id].observes != "values"]


def check_reads_writes(
    received: dict[str, Any], expected: dict[str, Any], who: str, *way_clauses: str
) -> None:
    """Check that a process reads what another process wrote to a bundle.

    Args:
        received: the description by the process that reads.
        expected: the description by the process that wrote.
        who: names the process that reads, for the evidence.
        way_clauses: the clauses about the way that the bundle took.
    """
    clauses = (*_clauses_on_sharing(way_clauses), "SHARE-2", "VIEW-6")
    grads = _grads_in(expected)
    pairs = zip(received["tensors"], expected["tensors"], strict=True)
    for number, (one, other) in enumerate(pairs):
        if one["values"] != other["values"]:
            what = f"{other['dtype']} of shape {tuple(other['shape'])}"
            nearest = ("GRAD-3",) if number in grads else clauses
            with judging(*nearest, *clauses):
                sentence = f"{who} reads what was written to its {what}"
                check.equal(one["values"], other["values"], sentence)
    check(len(received["tensors"]), f"{who} reads what was written to all of them")


def check_bundles_shared(bundles: Sequence[RemoteBundle], *way_clauses: str) -> None:
    """Write to each bundle in turn; check that all the others read every write."""
    for turn, writer in enumerate(bundles):
        writer.write()
        expected = writer.description()
        for number, reader in enumerate(bundles):
            if reader is not writer:
                nearest = "SHARE-1" if turn == 0 else "SHARE-2"
                who = f"after write {turn} bundle {number} of {reader.actor.name}"
                check_reads_writes(
                    reader.description(), expected, who, *way_clauses, nearest
                )


def check_received_and_shared(
    received: RemoteBundle, sent: RemoteBundle, *way_clauses: str
) -> None:
    """Check that a bundle has arrived unchanged, and shares memory with the sent one.

    Args:
        received: the received bundle.
        sent: the sent bundle.
        way_clauses: the clauses about the way that the bundle took.
    """
    check_same_description(received.description(), sent.description(), *way_clauses)
    with judging("VIEW-1", *way_clauses):
        check.equal(received.strides(), sent.strides(), "its views have their strides")
    check_bundles_shared([sent, received], *way_clauses)


def check_bundles_private(
    received: RemoteBundle, sent: RemoteBundle, *way_clauses: str
) -> None:
    """Check that a bundle is a copy: neither process reads the writes of the other."""
    for writer, other in ((sent, received), (received, sent)):
        before = other.description()
        writer.write()
        after = other.description()
        with judging(*way_clauses):
            pairs = zip(after["tensors"], before["tensors"], strict=True)
            for one, own in pairs:
                if one != own:
                    what = f"{own['dtype']} of shape {tuple(own['shape'])}"
                    sentence = f"a {what} keeps its own values"
                    check.equal(one["values"], own["values"], sentence)
            check.equal(after, before, "it keeps its own values")
