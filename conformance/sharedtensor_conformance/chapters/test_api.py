"""Chapter API: the names that a drop-in replacement for `multiprocessing` needs."""

import multiprocessing

from sharedtensor_conformance.chapters.module_actions import (
    missing_in_context,
    missing_in_module,
    start_method_of_context,
)
from sharedtensor_conformance.chapters.pool_actions import add_in_tasks
from sharedtensor_conformance.chapters.pools import pool_in
from sharedtensor_conformance.chapters.process_actions import forked_from
from sharedtensor_conformance.chapters.shared_steps import (
    check_shared_memory,
    judging,
)
from sharedtensor_conformance.harness import attempt, check, clause
from sharedtensor_conformance.harness.case.outcomes import Unsupported

MODULE_LEVEL = "module"
"""In place of a start method: use the functions of the module, not of a context."""
CHANNEL_FUNCTIONS = {"queue": "Queue", "simple_queue": "SimpleQueue", "pipe": "Pipe"}
"""The functions that make channels, by the names of the channels in adapters."""


@clause("API-1", vary=())
def test_drop_in_module_has_every_public_name_of_multiprocessing(owner):
    """The owner looks every public name of the standard module up in the drop-in."""
    missing = owner.run(missing_in_module, sorted(multiprocessing.__all__))
    check.equal(missing, [], "no public name of multiprocessing is missing")


@clause("API-1", vary=())
def test_names_of_the_drop_in_module_can_be_called(owner):
    """The owner calls three functions of the module, not only looks them up."""
    check(owner.module.cpu_count() >= 1, "cpu_count() counts the processors")
    methods = owner.module.get_all_start_methods()
    check("spawn" in methods, "get_all_start_methods() lists spawn")
    name = owner.module.get_start_method()
    check(name in methods, "get_start_method() returns one of them")


@clause("API-2")
def test_drop_in_module_has_the_functions_of_the_strategies(owner, peer):
    """Owner and peer look the three functions up and call each of them."""
    names = [f"{verb}_sharing_strategy" for verb in ("get", "set")]
    for actor in (owner, peer):
        missing = actor.run(missing_in_module, ["get_all_sharing_strategies", *names])
        check.equal(missing, [], "the three functions are there")
        current = actor.module.get_sharing_strategy()
        actor.module.set_sharing_strategy(current)
        supported = actor.module.get_all_sharing_strategies()
        check(current in supported, "and can be called")


@clause("API-3", vary=("start_method",))
def test_context_has_the_channels_and_processes(owner, start_method, implementation):
    """The owner asks for the context of one start method and looks at its names."""
    declared = [CHANNEL_FUNCTIONS[kind] for kind in implementation.channels]
    names = ["Process", "Pool", *declared]
    missing = owner.run(missing_in_context, start_method, names)
    check.equal(missing, [], "the context lacks nothing")


@clause("API-3", vary=("start_method",))
def test_context_says_its_start_method(owner, start_method):
    """The owner asks a context for its start method."""
    found = owner.run(start_method_of_context, start_method)
    check.equal(found, start_method, "the context is that of the method asked for")


@clause(
    *("API-1", "CHAN-1", "CHAN-3", "CHAN-8", "START-1"),
    profiles=("share",),
    channels=("queue", "simple_queue", "pipe"),
    vary=("start_method",),
    isolated=True,
    mainly="API-1",
)
def test_functions_of_the_module_make_what_those_of_a_context_make(stage, start_method):
    """The owner sets the start method, and makes all without a context.

    A child gets a tensor as an argument and from each channel, and a worker in a task.
    """
    with stage.fresh() as fresh:
        owner = fresh.owner
        owner.module.set_start_method(start_method, True)
        kinds = ("queue", "simple_queue", "pipe", "joinable_queue", "queue_of_two")
        channels = [owner.open_channel(kind, MODULE_LEVEL) for kind in kinds]
        tensor = owner.make([1, 2, 3])
        tensor.share()
        child = owner.start_peer([channels, tensor], MODULE_LEVEL)
        arrived = [child.arguments[1]]
        for channel in channels:
            channel.put(owner, {"tensor": tensor})
            arrived.append(channel.get(child)["tensor"])
        with judging("CHAN-3"):
            check_shared_memory(tensor, *arrived)
        with pool_in(owner, method=MODULE_LEVEL) as pool, judging("CHAN-1"):
            (result,) = pool.actor.run(add_in_tasks, pool.remote, "map", [tensor])
            check_shared_memory(result, arrived[0], tensor)
        check.equal(child.leave(), 0, "the child exits normally")


@clause("API-4", vary=("start_method",), isolated=True)
def test_module_starts_a_process_by_the_start_method_that_was_set(
    stage, start_method, implementation
):
    """The owner sets one start method after another, the case's own the last.

    After each it starts a child by a function of the module; a setting that is not
    forced is refused, and the next child is started as the first one was.
    """
    others = [name for name in implementation.start_methods if name != start_method]
    with stage.fresh() as fresh:
        owner = fresh.owner
        for method in (*others, start_method):
            owner.module.set_start_method(method, True)
            _, refused = attempt(lambda: owner.module.set_start_method("spawn"))
            raised = refused and refused.type
            check.equal(raised, "RuntimeError", "a second setting is refused")
            found = owner.module.get_start_method()
            check.equal(found, method, "the start method is what was set")
            child = owner.start_peer(start_method=MODULE_LEVEL)
            sentence = "a forked child, and no other, has its parent's memory"
            check.equal(child.run(forked_from) == owner.pid, method == "fork", sentence)
            child.leave()


@clause("API-4", vary=("start_method",), isolated=True)
def test_module_takes_a_start_method_after_it_has_listed_all(stage, start_method):
    """An owner that was started afresh lists the start methods, then sets one.

    It does not force the setting, which has to be the first one.
    """
    with stage.fresh() as fresh:
        owner = fresh.owner
        methods = owner.module.get_all_start_methods()
        check(start_method in methods, "the start method is listed")
        _, refused = attempt(lambda: owner.module.set_start_method(start_method))
        check.equal(refused, None, "the first setting is accepted")
        found = owner.module.get_start_method()
        check.equal(found, start_method, "the start method is what was set")


DEFAULT_METHOD = multiprocessing.get_all_start_methods()[0]
"""The default start method of this Python, which its documentation lists first."""


def require_default_declared(implementation):
    """Require that an implementation declares the default start method of this Python.

    Raises:
        Unsupported: it does not declare this start method.
    """
    if DEFAULT_METHOD not in implementation.start_methods:
        raise Unsupported(
            f"{DEFAULT_METHOD}, the default of this Python, is not declared"
        )


@clause("API-4", vary=(), isolated=True)
def test_module_has_the_default_of_python_where_no_start_method_was_set(
    stage, implementation
):
    """An owner that was started afresh asks for it, and starts a child."""
    require_default_declared(implementation)
    with stage.fresh() as fresh:
        owner = fresh.owner
        found = owner.module.get_start_method()
        check.equal(found, DEFAULT_METHOD, "the start method is the default of Python")
        child = owner.start_peer(start_method=MODULE_LEVEL)
        sentence = "a forked child, and no other, has its parent's memory"
        check.equal(
            child.run(forked_from) == owner.pid, DEFAULT_METHOD == "fork", sentence
        )
        check.equal(child.leave(), 0, "the child exits normally")


@clause("API-4", vary=(), isolated=True)
def test_module_starts_by_the_default_of_python_before_it_was_asked(
    stage, implementation
):
    """An owner that was started afresh starts a child, and asks only afterwards.

    Asking could settle what the start method is.
    """
    require_default_declared(implementation)
    with stage.fresh() as fresh:
        owner = fresh.owner
        child = owner.start_peer(start_method=MODULE_LEVEL)
        sentence = "a forked child, and no other, has its parent's memory"
        check.equal(
            child.run(forked_from) == owner.pid, DEFAULT_METHOD == "fork", sentence
        )
        check.equal(child.leave(), 0, "the child exits normally")
        found = owner.module.get_start_method()
        check.equal(found, DEFAULT_METHOD, "the start method is the default of Python")
