"""Chapter START: what a child gets from its parent under each start method."""

from sharedtensor_conformance.chapters.groups import start_together
from sharedtensor_conformance.chapters.module_actions import (
    look_up_context,
    start_method_of_context,
)
from sharedtensor_conformance.chapters.process_actions import (
    STARTS,
    start_with_arguments,
    strategy_of_a_child,
)
from sharedtensor_conformance.chapters.shared_steps import (
    LENGTHS,
    check_private_memory,
    check_shared_memory,
    judging,
    several_strategies,
    strategy_set,
)
from sharedtensor_conformance.chapters.tensor_actions import make_long
from sharedtensor_conformance.harness import check, clause, refusal

WAYS_TO_START = tuple(STARTS)[1:]
"""The ways to give tensors to a process, except by name, which has its own test."""


LONG_TEXT = "text " * 50_000
"""A text that is longer than what a pipe takes."""


@clause("START-1", dtypes=("int64",), vary=("strategy", "start_method"))
def test_process_argument_arrives_with_its_values(owner):
    """The owner starts a child with two tensors; the child reads both."""
    row = owner.make([3, 1, 4, 1.5])
    grid = owner.make([10, 20, 30, 40, 50, 60], shape=(2, 3), dtype="int64")
    child = owner.start_peer(arguments=[row, {"grid": grid}])
    first, second = child.arguments[0], child.arguments[1]["grid"]
    check.equal(first.values(), [3, 1, 4, 1.5], "the first has its values")
    check.equal(first.shape(), (4,), "the first has its shape")
    check.equal(first.dtype(), "float32", "the first has its dtype")
    check.equal(second.values(), [10, 20, 30, 40, 50, 60], "so has the second")
    check.equal(second.shape(), (2, 3), "with its shape")
    check.equal(second.dtype(), "int64", "and its dtype")


@clause("START-1", vary=("start_method",))
def test_later_child_finds_what_was_written_in_between(owner):
    """The owner starts a child, writes, and starts another with the same tensor."""
    tensor = owner.make([7, 8, 9])
    child = owner.start_peer(arguments=tensor)
    check.equal(child.arguments.values(), [7, 8, 9], "the first child reads the values")
    tensor.write(2, 90)
    later = owner.start_peer(arguments=tensor)
    check.equal(later.arguments.values(), [7, 8, 90], "the later one reads the write")


@clause(
    "START-2", start_methods=("spawn", "forkserver"), vary=("strategy", "start_method")
)
def test_process_argument_is_shared_with_the_child(owner):
    """Owner and child write in turn to a tensor that the child got at its start.

    A text came with it that is longer than what a pipe takes.
    """
    tensor = owner.make([11, 12, 13])
    child = owner.start_peer(arguments={"text": LONG_TEXT, "weights": [tensor]})
    check(child.arguments["text"] == LONG_TEXT, "the text arrives whole")
    check_shared_memory(child.arguments["weights"][0], tensor)


@clause("START-2", start_methods=("spawn", "forkserver"), vary=("start_method",))
def test_tensor_given_to_two_children_is_one_memory(owner):
    """The owner starts two children with one tensor; all three write."""
    tensor = owner.make([21, 22, 23, 24])
    first = owner.start_peer(arguments=tensor)
    second = owner.start_peer(arguments=tensor)
    check_shared_memory(first.arguments, second.arguments, tensor)


@clause(
    *("START-1", "START-2"),
    start_methods=("spawn", "forkserver"),
    vary=("start_method",),
    mainly="START-2",
)
def test_named_argument_of_a_process_is_shared_with_it(owner, start_method):
    """The owner starts a process with two tensors by name, and writes to one at once.

    The process waits for that, and adds 1 to the first element of both.
    """
    check_start_with(owner, "by name", start_method)


def check_start_with(owner, how, method):
    """Start a process with two tensors; check that both processes read all writes."""
    later, other = owner.make([25, 26]), owner.make([27, 28, 29])
    status = owner.run(start_with_arguments, later, other, 250, method, how)
    ended = owner.exit_codes([status])
    check.equal(ended, [0], f"the process finds its arguments, and ends ({how})")
    sentence = f"it read the owner's write, and added 1 ({how})"
    check.equal(later.values(), [251, 26], sentence)
    sentence = f"the owner reads the process's write ({how})"
    check.equal(other.values(), [28, 28, 29], sentence)


@clause(
    *("START-1", "START-2"),
    profiles=("drop-in",),
    start_methods=("spawn", "forkserver"),
    vary=("start_method",),
    isolated=True,
    mainly="START-2",
)
def test_tensor_is_shared_with_a_process_however_it_is_given(stage, start_method):
    """The owner gives tensors by position, in a list, as an attribute, and to pools.

    An executor keeps a thread and a socket, so the processes are new ones.
    """
    with stage.fresh() as fresh:
        for how in WAYS_TO_START:
            check_start_with(fresh.owner, how, start_method)


@clause("START-3", start_methods=("fork",), vary=("strategy", "start_method"))
def test_tensor_shared_before_a_fork_is_shared_with_the_child(owner):
    """The owner shares a tensor and forks; child and owner write in turn."""
    tensor = owner.make([5, 6, 7])
    tensor.share()
    child = owner.start_peer(arguments=tensor)
    check_shared_memory(child.arguments, tensor)


@clause("START-3", start_methods=("fork",), vary=("strategy", "start_method"))
def test_tensor_sent_before_a_fork_is_shared_with_the_child(owner, peer):
    """The owner sends a tensor to the peer and forks; all three write in turn."""
    tensor = owner.make([15, 16, 17, 18])
    arrived = owner.send(tensor, peer)
    child = owner.start_peer(arguments=tensor)
    check_shared_memory(child.arguments, arrived, tensor)


@clause(
    "START-4", start_methods=("fork",), private=True, vary=("strategy", "start_method")
)
def test_tensor_that_is_not_shared_is_private_after_a_fork(owner):
    """The owner forks with a tensor that was never shared; both write."""
    tensor = owner.make([25, 26, 27])
    child = owner.start_peer(arguments=tensor)
    check_private_memory(child.arguments, tensor)


@clause(
    "START-4", start_methods=("fork",), private=True, vary=("strategy", "start_method")
)
def test_unsent_tensor_is_private_after_a_fork_beside_a_sent_one(owner, peer):
    """The owner sends one tensor and forks with another that it never shared."""
    sent = owner.make([35, 36, 37])
    owner.send(sent, peer)
    unsent = owner.make([45, 46, 47])
    child = owner.start_peer(arguments=unsent)
    check_private_memory(unsent, child.arguments)


@clause("START-4", start_methods=("fork",), vary=(), private=True)
def test_tensor_of_any_size_that_is_not_shared_is_private_after_a_fork(owner):
    """The owner forks with a tensor of each size; both write, each to an end of it."""
    tensors = [owner.run(make_long, length, 46) for length in LENGTHS]
    child = owner.start_peer(arguments=tensors)
    for length, inherited, own in zip(LENGTHS, child.arguments, tensors, strict=True):
        inherited.write(0, 47)
        check.equal(own.read(0), 46, f"of {length} elements, the owner's first stays")
        own.write(length - 1, 48)
        due = 47 if length == 1 else 46
        found = inherited.read(length - 1)
        check.equal(found, due, f"of {length} elements, the child's last stays")


@clause(
    "START-4",
    "START-3",
    profiles=("spawn", "share"),
    start_methods=("fork",),
    mainly="START-4",
    private=True,
)
def test_argument_that_is_not_shared_is_private_to_processes_started_together(owner):
    """The owner starts three processes by fork with a tensor; each writes to it.

    Another tensor beside it is shared, and shows that each has written.
    """
    private, shared = owner.make([0, 0, 0]), owner.make([0, 0, 0])
    shared.share()
    start_together(owner, "write index", 3, [private, shared], "fork")
    with judging("START-3"):
        check.equal(shared.values(), [100, 101, 102], "each has written")
    check.equal(private.values(), [0, 0, 0], "the owner's own is as it was")
    check.equal(private.is_shared(), False, "and is not shared")


@clause("START-5", vary=())
def test_unknown_start_method_is_refused(owner, peer):
    """Owner and peer ask for contexts under names that are no start methods."""
    for actor in (owner, peer):
        for name in ("spawned", "Fork", "fork-server", ""):
            with refusal(f"{name!r} is refused") as refused:
                actor.run(look_up_context, name)
            is_one = "ValueError" in refused.error.bases
            check(is_one, "the exception is a ValueError")


@clause("START-5", vary=("start_method",))
def test_known_start_method_is_accepted_after_a_refusal(owner, start_method):
    """The owner is refused one context and gets the next."""
    with refusal("a name that is no start method is refused"):
        owner.run(look_up_context, "sporn")
    owner.run(look_up_context, start_method)
    found = owner.run(start_method_of_context, start_method)
    check.equal(found, start_method, "the context is that of the method asked for")


@clause("START-6", several_strategies=True, vary=("strategy", "start_method"))
def test_child_starts_with_the_strategy_of_its_parent(owner, strategy):
    """The owner starts a child that sets no strategy; the child says which it has."""
    child = owner.start_peer(enter=False)
    found = child.module.get_sharing_strategy()
    check.equal(found, strategy, "the child has the strategy of its parent")


@clause("START-6", vary=("start_method",), several_strategies=True, isolated=True)
def test_child_starts_with_the_strategy_that_its_parent_has_by_then(stage):
    """The owner changes its strategy twice and starts a child after each change."""
    with stage.fresh() as fresh:
        for name in several_strategies(fresh.owner):
            with strategy_set(fresh.owner, name):
                child = fresh.owner.start_peer(enter=False)
            found = child.module.get_sharing_strategy()
            check.equal(found, name, "the child has the strategy of its parent then")


@clause("START-6", vary=("start_method",), several_strategies=True, isolated=True)
def test_child_that_was_made_before_has_the_strategy_of_its_start(stage):
    """The owner makes a process under one strategy and starts it under another."""
    with stage.fresh() as fresh:
        first, *others = several_strategies(fresh.owner)
        for made, started in ((first, others[-1]), (others[-1], first)):
            fresh.owner.module.set_sharing_strategy(made)
            with fresh.owner.new_peer(enter=False) as child:
                fresh.owner.module.set_sharing_strategy(started)
            found = child.module.get_sharing_strategy()
            check.equal(found, started, "the child has the strategy of its parent then")


@clause("START-6", several_strategies=True, vary=("start_method",), isolated=True)
def test_child_of_a_child_starts_with_the_strategy_of_its_parent(
    stage, strategy, start_method
):
    """The peer, itself a child, changes its strategy; a child of it says its own."""
    with stage.fresh() as fresh:
        peer = fresh.peer
        for name in sorted({*several_strategies(peer)} - {strategy}):
            with strategy_set(peer, name):
                found = peer.run(strategy_of_a_child, start_method)
            check.equal(found, name, "the child has the strategy of its parent then")
