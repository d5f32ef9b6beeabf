"""Chapter STRAT: the strategy decides cost and failure modes, never what is shared."""

import itertools
from typing import Any

from sharedtensor_conformance.chapters.module_actions import (
    strategies_after_a_change,
    strategy_of_a_program,
)
from sharedtensor_conformance.chapters.shared_steps import (
    all_strategies,
    check_shared_memory,
    sender_and_receiver,
    several_strategies,
    strategy_set,
    unthreaded_channel,
)
from sharedtensor_conformance.harness import check, clause, refusal
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.threads import in_a_thread

FASTEST_START: dict[str, Any] = {
    "vary": (),
    "several_strategies": True,
    "prefers": "fork",
    "isolated": True,
}
"""For tests whose result does not depend on the start method: the fastest is used."""


@clause("STRAT-1")
def test_current_strategy_is_one_of_the_supported_ones(owner, peer):
    """Owner and peer ask for all strategies and for the current one."""
    for actor in (owner, peer):
        supported = actor.module.get_all_sharing_strategies()
        check(isinstance(supported, set | frozenset), "the strategies are a set")
        check(all(isinstance(name, str) for name in supported), "of strings")
        current = actor.module.get_sharing_strategy()
        check(current in supported, "the current one is a member of it")


@clause("STRAT-1", vary=())
def test_tensor_that_is_sent_under_any_supported_strategy_arrives(sender, receiver):
    """The sender sets each strategy that its module lists, and sends under it."""
    for number, name in enumerate(all_strategies(sender)):
        with strategy_set(sender, name):
            arrived = sender.send(sender.make([number, 31]), receiver)
            check.equal(arrived.values(), [number, 31], f"it arrives under {name}")


@clause("STRAT-1")
def test_change_of_the_returned_set_changes_no_strategy(owner, peer):
    """Owner and peer empty the set of strategies that they got, and add one."""
    for actor in (owner, peer):
        names = all_strategies(actor)
        again, settable = actor.run(strategies_after_a_change, "no_such_strategy")
        check.equal(sorted(again), names, "a later call returns what the first did")
        check.equal(settable, names, "the same strategies can be set, and no other")


@clause("STRAT-2")
def test_strategy_that_was_set_is_the_current_one(owner, peer):
    """Owner and peer set each supported strategy, twice over, and read it back."""
    for actor in (owner, peer):
        names = all_strategies(actor)
        for name in names + names:
            with strategy_set(actor, name):
                found = actor.module.get_sharing_strategy()
            check.equal(found, name, "the strategy is the one that was set")


@clause("STRAT-2")
def test_strategy_that_was_set_is_that_of_each_thread(owner, peer):
    """Owner and peer set each strategy in one thread, and read it in others."""
    for actor in (owner, peer):
        for name in all_strategies(actor):
            with strategy_set(actor, name):
                found = actor.run(
                    in_a_thread, Actor.call_module, "get_sharing_strategy"
                )
                check.equal(found, name, "another thread has the one that was set")
        with strategy_set(actor, actor.module.get_sharing_strategy()):
            for name in all_strategies(actor):
                actor.run(in_a_thread, Actor.call_module, "set_sharing_strategy", name)
                found = actor.module.get_sharing_strategy()
                check.equal(found, name, "what another thread sets is the current one")


@clause("STRAT-2")
def test_strategy_that_was_saved_can_be_restored(owner):
    """The owner saves its strategy, sets each other one, and sets the saved again."""
    saved = owner.module.get_sharing_strategy()
    for name in all_strategies(owner):
        with strategy_set(owner, name):
            pass
        found = owner.module.get_sharing_strategy()
        check.equal(found, saved, "the strategy is the saved one again")


@clause("STRAT-2", **FASTEST_START)
def test_strategy_stays_when_a_tensor_of_another_one_arrives(stage, direction):
    """Both sides set each pair of strategies; a tensor crosses, and all read back."""
    with stage.fresh() as fresh:
        sender, receiver = sender_and_receiver(fresh, direction)
        names = several_strategies(sender)
        for theirs, own in itertools.product(names, names):
            with strategy_set(sender, theirs), strategy_set(receiver, own):
                arrived = sender.send(sender.make([18, 19]), receiver)
                check.equal(arrived.values(), [18, 19], "the tensor arrives")
                found = receiver.module.get_sharing_strategy()
                check.equal(found, own, "the receiver has the strategy that it set")
                found = sender.module.get_sharing_strategy()
                check.equal(found, theirs, "and so has the sender")


@clause("STRAT-3")
def test_unknown_strategy_is_refused_and_changes_nothing(owner, peer):
    """Owner and peer set names that are no strategies, under each that is one."""
    for actor in (owner, peer):
        for name in all_strategies(actor):
            with strategy_set(actor, name):
                for unknown in ("no_such_strategy", "File_System", ""):
                    with refusal(f"{unknown!r} is refused"):
                        actor.module.set_sharing_strategy(unknown)
                    found = actor.module.get_sharing_strategy()
                    check.equal(found, name, "the strategy is the one it was before")


@clause("STRAT-3", "FAIL-10", "GRAD-5", vary=(), prefers="fork", isolated=True)
def test_wrong_arguments_are_refused_where_assertions_are_removed(stage):
    """Processes under PYTHONOPTIMIZE set wrong strategies and put a non-leaf.

    Python then leaves out every ``assert``, so none may stand for a refusal.
    """
    with stage.fresh(environment={"PYTHONOPTIMIZE": "1"}) as fresh:
        for actor in (fresh.owner, fresh.peer):
            name = actor.module.get_sharing_strategy()
            for wrong in ("no_such_strategy", "", None, 3, [name]):
                with refusal(f"{wrong!r} is refused"):
                    actor.module.set_sharing_strategy(wrong)
                found = actor.module.get_sharing_strategy()
                check.equal(found, name, "the strategy is the one it was before")
        leaf = fresh.owner.make([1, 2, 3])
        leaf.set_requires_grad(True)
        with refusal("the put of a non-leaf raises"):
            fresh.owner.put(
                fresh.owner.non_leaf(leaf), fresh.peer, unthreaded_channel(fresh)
            )
        arrived = fresh.owner.send(leaf, fresh.peer)
        check.equal(arrived.values(), [1, 2, 3], "a leaf is sent")


@clause("STRAT-4", **FASTEST_START)
def test_tensor_sent_again_under_another_strategy_stays_where_it_is(stage, direction):
    """The sender sends, changes its strategy, and sends to both others."""
    with stage.fresh() as fresh:
        sender, receiver = sender_and_receiver(fresh, direction)
        tensor = sender.make([1, 2, 3, 4])
        first = sender.send(tensor, receiver)
        for name in several_strategies(sender):
            with strategy_set(sender, name):
                again = sender.send(tensor, receiver)
                other = sender.send(tensor, fresh.bystander)
            check_shared_memory(tensor, first, again, other)


@clause("STRAT-4", profiles=("share",), **FASTEST_START)
def test_tensor_shared_again_under_another_strategy_stays_where_it_is(stage, direction):
    """The sender sends, changes its strategy, and shares the tensor again."""
    with stage.fresh() as fresh:
        sender, receiver = sender_and_receiver(fresh, direction)
        tensor = sender.make([5, 6, 7])
        arrived = sender.send(tensor, receiver)
        for name in several_strategies(sender):
            with strategy_set(sender, name):
                tensor.share()
            check_shared_memory(tensor, arrived)


@clause("STRAT-4", profiles=("share",), **FASTEST_START)
def test_tensor_shared_before_the_change_and_sent_after_it_is_shared(stage, direction):
    """The sender shares under each strategy and sends under each other one."""
    with stage.fresh() as fresh:
        sender, receiver = sender_and_receiver(fresh, direction)
        for before in several_strategies(sender):
            for after in several_strategies(sender):
                tensor = sender.make([15, 16, 17])
                with strategy_set(sender, before):
                    tensor.share()
                with strategy_set(sender, after):
                    arrived = sender.send(tensor, receiver)
                check_shared_memory(tensor, arrived)


@clause("STRAT-4", **FASTEST_START)
def test_receiver_that_changed_its_strategy_sends_the_same_memory_on(stage, direction):
    """The receiver changes its strategy and sends what it received to the third."""
    with stage.fresh() as fresh:
        sender, receiver = sender_and_receiver(fresh, direction)
        tensor = sender.make([8, 9, 10, 11])
        arrived = sender.send(tensor, receiver)
        for name in several_strategies(receiver):
            with strategy_set(receiver, name):
                onward = receiver.send(arrived, fresh.bystander)
            check_shared_memory(tensor, arrived, onward)


@clause("STRAT-5", vary=("start_method",), several_strategies=True, isolated=True)
def test_processes_with_different_strategies_share(stage, direction, implementation):
    """Sender and receiver set every pair of strategies; one sends to the other."""
    with stage.fresh() as fresh:
        sender, receiver = sender_and_receiver(fresh, direction)
        for sending in several_strategies(sender):
            for receiving in several_strategies(receiver):
                with strategy_set(sender, sending), strategy_set(receiver, receiving):
                    for channel in implementation.channels:
                        tensor = sender.make([12, 13, 14])
                        arrived = sender.send(tensor, receiver, channel)
                        check_shared_memory(tensor, arrived)


@clause("STRAT-5", **FASTEST_START)
def test_tensor_sent_back_under_another_strategy_is_the_same_memory(stage, direction):
    """The receiver, under every strategy, sends back what it got under every other."""
    with stage.fresh() as fresh:
        sender, receiver = sender_and_receiver(fresh, direction)
        for sending in several_strategies(sender):
            for receiving in several_strategies(receiver):
                tensor = sender.make([22, 23, 24, 25])
                with strategy_set(sender, sending), strategy_set(receiver, receiving):
                    arrived = sender.send(tensor, receiver)
                    back = receiver.send(arrived, sender)
                    check_shared_memory(tensor, arrived, back)


@clause("STRAT-6", vary=(), strategies=("file_descriptor",), isolated=True)
def test_default_strategy_is_file_descriptor(stage):
    """An owner that was started afresh and set no strategy says which it has."""
    with stage.fresh(enter=False) as fresh:
        found = fresh.owner.module.get_sharing_strategy()
    check.equal(found, "file_descriptor", "the default is file_descriptor")


@clause(
    "STRAT-6",
    vary=(),
    strategies=("file_descriptor",),
    several_strategies=True,
    prefers="fork",
)
def test_default_strategy_is_the_same_whatever_the_program_before_has_set(owner):
    """A program that is started by one with another strategy says which it has."""
    for name in several_strategies(owner):
        with strategy_set(owner, name):
            found = owner.run(strategy_of_a_program, {}, {})
        sentence = f"the default is file_descriptor, though its starter has {name}"
        check.equal(found, "file_descriptor", sentence)


ENVIRONMENTS: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "few descriptors": ({"RLIMIT_NOFILE": 256}, {}),
    "very few descriptors": ({"RLIMIT_NOFILE": 64}, {"TMPDIR": "/nowhere"}),
    "small files": (
        {"RLIMIT_FSIZE": 4096, "RLIMIT_MEMLOCK": 0, "RLIMIT_CORE": 0},
        {"PYTHONOPTIMIZE": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    ),
}
"""Resource limits and environment variables of a program, by name."""


@clause("STRAT-6", vary=(), strategies=("file_descriptor",), prefers="fork")
def test_default_strategy_is_the_same_with_any_limits(owner):
    """Programs that are started with low limits say which strategy they have."""
    for surroundings, (limits, variables) in ENVIRONMENTS.items():
        found = owner.run(strategy_of_a_program, limits, variables)
        sentence = f"the default is file_descriptor ({surroundings})"
        check.equal(found, "file_descriptor", sentence)
