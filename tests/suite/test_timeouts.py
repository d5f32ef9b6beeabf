"""How long answers are waited for: less where others were waited for in vain."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
from sharedtensor_conformance import harness
from sharedtensor_conformance.harness.proxies import ActorProxy
from sharedtensor_conformance.harness.proxies.calls import STARTING
from sharedtensor_conformance.harness.timeouts import SHORT_ANSWER_TIMEOUT, Timeouts


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


# Requests in which processes start


@pytest.mark.parametrize(
    ("request_words", "limit"),
    [
        (("open_channel", "queue", "fork"), 90.0),
        (("act", "start_in_vain", [], "spawn"), 90.0),
        (("act", "in_a_thread", "act", "start_group", "wait"), 90.0),
        (("act", "make_many", 3, 1), 20.0),
        (("operate", "share"), 20.0),
    ],
)
def test_answer_of_who_starts_a_process_may_take_as_long_as_that(request_words, limit):
    host = SimpleNamespace(timeouts=Timeouts(20.0, 90.0, 3.0))
    assert ActorProxy(host, "owner").deadline_of(*request_words) == limit


STARTS = {"Process", "Pool", "Executor"}
OTHERS = {
    "in_a_child": "a forked process imports nothing",
    "make_peer": "the process starts later, in start_peer",
}


def functions_in(tree):
    """Yield the functions of a module, and the methods of its classes."""
    for node in tree.body:
        yield from functions_in(node) if isinstance(node, ast.ClassDef) else [node]


def test_each_request_that_starts_a_process_is_known():
    found = set()
    for name in ("actions", "actor", "concurrency"):
        tree = ast.parse(Path(harness.__file__).with_name(f"{name}.py").read_text())
        for node in functions_in(tree):
            calls = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
            called = {ast.unparse(one).rpartition(".")[2] for one in calls}
            if isinstance(node, ast.FunctionDef) and called & STARTS:
                found.add(node.name.removeprefix("do_"))
    assert len(found) > 5
    assert found - set(OTHERS) <= STARTING
