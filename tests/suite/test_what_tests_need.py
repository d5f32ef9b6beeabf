"""What a test needs beyond the profiles of its clauses, its decorator says.

Else the test judges nothing where an adapter claims little, or calls broken what nobody
has claimed. The sources are read, so that no test is overlooked; then the suite is run
on the reference under an adapter that claims one of everything.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import narrow_adapters
import pytest
from sharedtensor_conformance import chapters
from sharedtensor_conformance.adapter import VIEWS, operations_of, problems_of
from sharedtensor_conformance.adapters.reference import conformance_adapter as whole
from sharedtensor_conformance.chapters import shared_steps
from sharedtensor_conformance.chapters.bundle_checks import MORE_LAYOUTS
from sharedtensor_conformance.harness.case.axes import (
    BACKWARDS,
    LAYOUTS,
    kinds_of,
)
from sharedtensor_conformance.harness.case.marking import Marking, clause
from sharedtensor_conformance.harness.case.outcomes import HarnessFault
from sharedtensor_conformance.harness.remote.actors import ActorProxy
from sharedtensor_conformance.harness.remote.calls import OPERATIONS
from sharedtensor_conformance.plugin.cases import CaseItem
from sharedtensor_conformance.plugin.enumeration import _values_of_axes, suite_tests
from sharedtensor_conformance.plugin.matrix import (
    Selection,
    configurations,
)
from sharedtensor_conformance.plugin.state import RUNNER
from sharedtensor_conformance.report.verdicts import ONE_DEVICE, Verdict
from suites import NOTHING_LEFT

CHANNELS = frozenset({"queue", "simple_queue", "pipe"})
OF_THE_DROP_IN = {"CHAN-8", "CHAN-9", "CHAN-10", "CHAN-11", "CHAN-12"}
"""Clauses about channels that the profile ``drop-in`` has, whatever is claimed."""


@dataclass(frozen=True)
class Test:
    """A test of the suite, and the nodes of its source and of what it calls."""

    __test__ = False

    name: str
    marking: Marking
    nodes: tuple[ast.AST, ...]

    @property
    def words(self) -> set[str]:
        """The strings in its source."""
        constants = (node for node in self.nodes if isinstance(node, ast.Constant))
        return {node.value for node in constants if isinstance(node.value, str)}

    @property
    def attributes(self) -> set[str]:
        return {node.attr for node in self.nodes if isinstance(node, ast.Attribute)}

    @property
    def names(self) -> set[str]:
        return {node.id for node in self.nodes if isinstance(node, ast.Name)}


def functions_of(file: Path) -> dict[str, ast.FunctionDef]:
    body = ast.parse(file.read_text()).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def nodes_of(name: str, known: dict[str, ast.FunctionDef]) -> Iterator[ast.AST]:
    """Yield the nodes in the body of a function, and in those that it names."""
    waiting, seen = [name], {name}
    while waiting:
        body = ast.Module(known[waiting.pop()].body[1:], [])  # but for its docstring
        for node in ast.walk(body):
            yield node
            if isinstance(node, ast.Name) and node.id in known.keys() - seen:
                seen.add(node.id)
                waiting.append(node.id)


@cache
def all_tests() -> tuple[Test, ...]:
    return tuple(_read_tests())


def _read_tests() -> Iterator[Test]:
    shared = functions_of(Path(shared_steps.__file__))
    for file in sorted(Path(chapters.__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"{chapters.__name__}.{file.stem}")
        known = shared | functions_of(file)
        for name in known:
            if marking := getattr(getattr(module, name, None), "conformance", None):
                yield Test(name, marking, tuple(nodes_of(name, known)))


def undeclared(kind, of):
    """Return the tests with things of a kind that their decorators do not name."""
    found = {test.name: kind(test) - of(test) for test in all_tests()}
    return {name: things for name, things in found.items() if things}


def test_operations_are_those_of_the_profiles():
    def claimed(test):
        return set().union(*map(operations_of, test.marking.profiles | {"core"}))

    assert undeclared(lambda test: test.attributes & OPERATIONS, claimed) == {}


def test_strategies_are_set_where_they_are_claimed():
    functions = {f"{verb}_sharing_strategy" for verb in ("get", "set")}
    setting = {test.name: test for test in all_tests() if functions & test.attributes}
    assert len(setting) > 20
    profiles = {name: test.marking.profiles for name, test in setting.items()}
    assert {
        name for name, needed in profiles.items() if "strategies" not in needed
    } == set()


STARTING = {
    *("fresh", "new_peer", "start_peer", "pool_in"),
    *("group_of", "group_from_a_thread", "start_together"),
}


def test_tests_that_start_processes_say_so():
    """Where the start method is chosen for them, each process might cost an import."""
    starting = [
        test.name
        for test in all_tests()
        if STARTING & (test.attributes | test.names)
        and "start_method" not in test.marking.vary
        and not test.marking.start_methods
        and not test.marking.prefers
        and not test.marking.on_device
    ]
    assert len(starting) > 40
    markings = {test.name: test.marking for test in all_tests()}
    assert [name for name in starting if not markings[name].starts_processes] == []


def test_dtypes_are_named():
    dtypes = set(whole.dtypes) - {"float32"}
    # Those that vary over dtypes compare with names of some.
    found = undeclared(
        lambda test: test.words & dtypes if "dtype" not in test.names else set(),
        lambda test: {*test.marking.dtypes, "complex64"},
    )
    assert found == {}


def test_channels_are_named():
    def named(test):
        given = test.words & CHANNELS
        return set() if OF_THE_DROP_IN & set(test.marking.clauses) else given

    # What goes by the claims anyway names the kinds to choose from.
    chosen = {"unthreaded_channel", "QUEUE_KINDS"}
    found = undeclared(named, lambda test: set(test.marking.channels))
    assert {name for name in found if not chosen & names_in(name)} == set()


def test_no_parameter_of_a_test_has_the_name_of_an_axis():
    """Where both give values to one name, pytest collects nothing of the module."""
    axes = set(_values_of_axes(whole))
    own = {
        name
        for _, function in suite_tests()
        for mark in getattr(function, "pytestmark", [])
        if mark.name == "parametrize"
        for name in mark.args[0].split(",")
    }
    assert own, "some tests have parameters of their own"
    assert not own & axes


def names_in(name):
    return next(test.names for test in all_tests() if test.name == name)


def test_two_strategies_are_asked_for_where_one_is_exchanged_for_another():
    found = [test for test in all_tests() if "several_strategies" in test.names]
    assert found
    assert [one.name for one in found if not one.marking.several_strategies] == []


def marked(**options):
    @clause("SHARE-1", **options)
    def test():
        pass

    return test.conformance


@pytest.mark.parametrize(
    ("options", "claims", "why"),
    [
        ({"dtypes": ("int8",)}, {"dtypes": ("float32",)}, "the dtype 'int8' is not"),
        (
            {"channels": ("pipe",)},
            {"channels": ("queue",)},
            "the channel 'pipe' is not",
        ),
        (
            {"several_strategies": True},
            {"strategies": ("names",)},
            "two strategies are needed; 'names' is claimed",
        ),
        (
            {"forks": True},
            {"start_methods": ("spawn",)},
            "method 'fork' is not claimed",
        ),
        ({"profiles": ("cuda",)}, {"start_methods": ("fork",)}, "device memory needs"),
        (
            {"views": ("slices", "steps")},
            {"views": ("slices",)},
            "the kind of view 'steps' is not claimed",
        ),
    ],
)
def test_what_is_not_claimed_is_not_judged(options, claims, why):
    where = configurations(marked(**options), replace(whole, **claims), Selection())
    assert [(one.unsupported, why in one.why_not) for one in where] == [(True, True)]
    where = configurations(marked(**options), whole, Selection(devices=("simulated",)))
    assert not any(one.why_not for one in where)


@pytest.mark.parametrize(
    ("claimed", "found"),
    [(("spawn", "fork"), "fork"), (("spawn", "forkserver"), "spawn")],
)
def test_start_method_that_is_preferred_is_not_required(claimed, found):
    marking = marked(prefers="fork", vary=())
    where = configurations(marking, replace(whole, start_methods=claimed), Selection())
    assert [one.start_method for one in where] == [found]


FORK, SPAWN, SERVER = "fork", "spawn", "forkserver"
START_METHODS = {
    "by the strategy": ({}, (SPAWN, FORK)),
    "started": ({"starts": True}, (SERVER, FORK)),
    "isolated": ({"isolated": True}, (SERVER, FORK)),
    "preferred": ({"starts": True, "prefers": SPAWN}, (SPAWN, SPAWN)),
    "of one strategy": ({"strategies": ("file_system",)}, (SPAWN,)),
    "started of one": ({"strategies": ("file_system",), "starts": True}, (SERVER,)),
    "alone": ({"start_methods": (SPAWN,), "starts": True}, (SPAWN, SPAWN)),
}


@pytest.mark.parametrize(
    ("options", "methods"), START_METHODS.values(), ids=START_METHODS
)
def test_start_method_of_a_test_that_does_not_vary_over_them(options, methods):
    marking = marked(vary=("strategy",), **options)
    where = configurations(marking, whole, Selection())
    assert tuple(one.start_method for one in where) == methods


def test_processes_are_spawned_where_no_fork_server_is_claimed():
    marking = marked(vary=("strategy",), starts=True)
    claiming = replace(whole, start_methods=(FORK, SPAWN))
    where = configurations(marking, claiming, Selection())
    assert [one.start_method for one in where] == [SPAWN, FORK]


def test_one_case_of_a_clause_forks():
    marking = marked(vary=("strategy",), starts=True, prefers=SPAWN)
    where = configurations(marking, whole, Selection(one_per_clause=True))
    assert [one.start_method for one in where] == [FORK, FORK]


NARROW = (
    *("STRAT-2", "STRAT-4", "STRAT-5", "START-6", "SHARE-3"),
    *("CHAN-4", "LIFE-15", "LIFE-16", "LIFE-21"),
)
NOT_JUDGED = {
    "STRAT-4": "two strategies are needed; 'file_descriptor' is claimed",
    "STRAT-5": "two strategies are needed; 'file_descriptor' is claimed",
    "START-6": "two strategies are needed; 'file_descriptor' is claimed",
    "LIFE-15": "none of the channels queue, simple_queue is claimed",
    "LIFE-16": "none of the channels queue, simple_queue is claimed",
}


@pytest.mark.takes(8)
def test_who_claims_little_is_told_what_was_not_judged(suite):
    chosen = (f"--clause={id}" for id in NARROW)
    done = suite("--impl=narrow_adapters:descriptors", "--histories=5", *chosen)
    assert (done.status, done.left) == (0, NOTHING_LEFT)
    judged = done.report.summary.clauses
    found = {id: str(judged[id].verdict) for id in NARROW}
    unjudged = {id for id, verdict in found.items() if verdict == "unsupported"}
    assert unjudged == set(NOT_JUDGED)
    assert {found[id] for id in set(NARROW) - unjudged} == {"pass"}
    for case in done.cases:
        if case.clauses[0] in NOT_JUDGED:
            assert case.evidence == NOT_JUDGED[case.clauses[0]]


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("make", ([1], (1,), "int8")),
        ("reinterpret", (None, "int8")),
        ("make_on_device", ([1], "int8")),
        ("make_on", (0, [1], "int8")),
        ("make_across", ([1, 2], "int8")),
        ("make_unexportable", ([1], "int8")),
        ("carve", ([([1], "float32"), ([2], "int8")],)),
    ],
)
def test_dtype_that_is_not_claimed_is_the_fault_of_the_test(operation, arguments):
    actor = ActorProxy(SimpleNamespace(dtypes=("float32",)), "owner")
    with pytest.raises(HarnessFault, match="int8, which the adapter does not claim"):
        actor.operate(operation, *arguments)


KINDS = {
    "slice": {"slices"},
    "step": {"slices", "steps"},
    "column": {"slices", "steps"},
    "block": {"slices", "steps"},
    "transposed": {"slices", "transposed"},
    "expanded": {"slices", "expanded"},
    "overlapping": {"slices", "overlapping"},
    "backwards": {"slices", "steps", "backwards"},
    "flipped": {"slices", "steps", "backwards"},
    "empty": {"slices"},
    "last": {"slices"},
    "repeated": {"slices", "expanded"},
    "of_ones": {"slices", "steps"},
    "turned": {"slices", "steps", "transposed"},
}


def test_kinds_of_views_that_windows_need():
    windows = (*LAYOUTS, *BACKWARDS, *MORE_LAYOUTS)
    assert {window.name: kinds_of(window) for window in windows} == KINDS


def test_each_kind_of_view_is_that_of_some_window():
    """What no window needs could be left out of the claims without being seen."""
    judged = frozenset().union(*map(kinds_of, LAYOUTS))
    assert judged | {"reinterpreted"} == set(VIEWS)


VIEWED = (
    *("VIEW-1", "VIEW-2", "VIEW-3", "VIEW-4", "VIEW-8", "VIEW-10"),
    *("SHARE-7", "SHARE-9", "SHARE-11", "SHARE-12", "FD-3", "HANDLE-2", "GRAD-7"),
)


@pytest.mark.takes(30)
def test_kinds_of_views_that_are_not_claimed_are_not_judged(suite):
    """The adapter refuses to make any other view than those that it claims."""
    chosen = (f"--clause={id}" for id in VIEWED)
    done = suite("--impl=narrow_adapters:slicing", "--histories=5", *chosen)
    assert (done.status, done.left) == (0, NOTHING_LEFT)
    judged = done.report.summary.clauses
    found = {id: str(judged[id].verdict) for id in VIEWED}
    assert found == dict.fromkeys(VIEWED, "pass") | {"VIEW-10": "unsupported"}
    for case in done.cases:
        needed = KINDS.get(case.axes.get("layout"), set())
        lacking = sorted(needed - set(narrow_adapters.slicing.views))
        if case.clauses == ("VIEW-10",):
            lacking = ["reinterpreted"]
        if lacking:
            why = f"the kind of view {lacking[0]!r} is not claimed"
            assert (case.verdict, case.evidence) == (Verdict.UNSUPPORTED, why)
    shown = {case.axes["layout"] for case in done.cases if "layout" in case.axes}
    assert shown == {layout.name for layout in LAYOUTS}


PRIVATE = "every tensor is in shared memory from the start, at its user's request"


def test_tests_of_private_tensors_say_so():
    about = [test for test in all_tests() if "START-4" in test.marking.clauses]
    assert len(about) > 5
    assert [test.name for test in about if not test.marking.private] == []


@pytest.mark.takes(30)
def test_library_that_shares_at_once_is_not_judged_on_private_tensors(suite):
    chosen = (f"--clause={id}" for id in ("START-4", "LIFE-20", "CHAN-12"))
    where = ("--start-method=fork", "--histories=5")
    done = suite("--impl=narrow_adapters:at_once", *where, *chosen)
    assert (done.status, done.left) == (0, NOTHING_LEFT)
    private = [case for case in done.cases if case.clauses[0] == "START-4"]
    assert {case.verdict for case in private} == {Verdict.UNSUPPORTED}
    assert PRIVATE in {case.evidence for case in private}
    judged = done.report.summary.clauses
    assert judged["START-4"].verdict is Verdict.UNSUPPORTED
    assert judged["LIFE-20"].verdict is Verdict.PASS
    histories = [case.test for case in done.cases if "histories" in case.test]
    assert len(histories) > 2


def test_narrow_adapters_are_well_formed():
    for adapter in (narrow_adapters.descriptors, narrow_adapters.names):
        assert problems_of(adapter, narrow_adapters.Operations()) == []
    sliced = narrow_adapters.SlicingOperations()
    assert problems_of(narrow_adapters.slicing, sliced) == []
    at_once = narrow_adapters.AtOnceOperations()
    assert problems_of(narrow_adapters.at_once, at_once) == []


def test_what_needs_two_devices_is_not_run_where_there_is_one(suite):
    """On one device a tensor arrives there in any case, so nothing would be judged."""
    chosen = ("--clause=CUDA-30", "--clause=CUDA-2", "--one-per-clause")
    chosen += ("--start-method=spawn", "--strategy=file_descriptor")
    done = suite("--impl=narrow_adapters:one_device", "--device=simulated", *chosen)
    found = {case.clauses[0]: (case.verdict, case.evidence) for case in done.cases}
    assert found["CUDA-30"] == (Verdict.NOT_RUN, ONE_DEVICE), done.text
    assert found["CUDA-2"] == (Verdict.PASS, "")


def test_misspelled_parameter_is_named_with_those_that_there_are():
    def test_of_a_contributor(ownr): ...

    item = SimpleNamespace(
        config=SimpleNamespace(
            stash={RUNNER: SimpleNamespace(stages=SimpleNamespace(of=Mock()))}
        ),
        planned=Mock(),
        batch=0,
        function=test_of_a_contributor,
        _values=lambda stage: {"owner": None, "peer": None},
    )
    told = "test_of_a_contributor has a parameter ownr, .* have: owner, peer"
    with pytest.raises(HarnessFault, match=told):
        CaseItem.call_test(item)
