"""How long answers are waited for: less where others were waited for in vain."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
from sharedtensor_conformance import chapters
from sharedtensor_conformance.chapters.group_actions import start_group
from sharedtensor_conformance.chapters.process_actions import start_in_vain
from sharedtensor_conformance.chapters.tensor_actions import make_many
from sharedtensor_conformance.harness.remote import actor, threads
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.remote.threads import in_a_thread
from sharedtensor_conformance.harness.stage.timeouts import (
    SHORT_ANSWER_TIMEOUT,
    Timeouts,
)


def shortened(declared):
    made = Timeouts(answer=declared, start=90.0, cleanup=3.0)
    made.shorten()
    return made


def test_answer_is_waited_for_less():
    assert shortened(20.0).answer == SHORT_ANSWER_TIMEOUT


def test_no_answer_is_waited_for_longer_than_is_declared():
    assert shortened(2.0).answer == 2.0


def test_answer_is_waited_for_as_long_as_is_declared_again():
    made = shortened(20.0)
    made.restore()
    assert made.answer == 20.0


# Functions in which processes start


@pytest.mark.parametrize(
    ("request_parts", "limit"),
    [
        ((Actor.open_channel, "queue", "fork"), 90.0),
        ((start_in_vain, [], "spawn"), 90.0),
        ((in_a_thread, start_group, "wait"), 90.0),
        ((make_many, 3, 1), 20.0),
        ((), 20.0),
    ],
)
def test_answer_of_who_starts_a_process_may_take_as_long_as_that(request_parts, limit):
    host = SimpleNamespace(timeouts=Timeouts(20.0, 90.0, 3.0))
    assert ActorProxy(host, "owner").deadline_of(*request_parts) == limit


STARTS = {"Process", "Pool", "Executor", "started_process"}
OTHERS = {
    "in_a_child": "a forked process imports nothing",
    "make_peer": "the process starts later, in start_peer",
    "started_process": "the functions that call it are marked",
    **dict.fromkeys(
        ("_start", "_start_with_attributes", "_open_pool"),
        "start_with_arguments, which calls it, is marked",
    ),
}


def functions_in(tree):
    """Yield the functions of a module, and the methods of its classes."""
    for node in tree.body:
        yield from functions_in(node) if isinstance(node, ast.ClassDef) else [node]


def test_each_function_that_starts_a_process_is_marked():
    found = {}
    files = [*Path(chapters.__file__).parent.glob("*_actions.py")]
    files += [Path(one.__file__) for one in (actor, threads)]
    for file in files:
        for node in functions_in(ast.parse(file.read_text())):
            calls = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
            called = {ast.unparse(one).rpartition(".")[2] for one in calls}
            if isinstance(node, ast.FunctionDef) and called & STARTS:
                found[node.name] = list(map(ast.unparse, node.decorator_list))
    assert len(found) > 5
    unmarked = {name for name, marks in found.items() if marks != ["starts_processes"]}
    assert unmarked == OTHERS.keys()
