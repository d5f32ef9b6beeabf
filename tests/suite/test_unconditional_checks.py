"""Each test of the suite makes a check, whatever the implementation answers.

A test without checks is an error of the suite. So no test may have all its checks where
an answer decides: under a condition, or in a loop over a list that may be empty. The
sources are read, so that no implementation has to answer in that way first.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from functools import cache

import pytest
from sharedtensor_conformance import chapters
from sharedtensor_conformance.plugin.enumeration import suite_tests
from sharedtensor_conformance.report.verdicts import Verdict
from suites import NOTHING_LEFT

CHECKS = ("check", "eventually", "refusal", "histories", "lifetimes", "run", "use")
"""How functions, fixtures and methods begin that check and are not followed."""

Functions = Mapping[str, ast.FunctionDef]


@cache
def functions_of(module: str) -> Functions:
    """Return the functions that a module of the chapters has or imports from them."""
    where = importlib.import_module(module)
    assert where.__file__
    with open(where.__file__) as file:
        body = ast.parse(file.read()).body
    found: dict[str, ast.FunctionDef] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom) and "chapters." in str(node.module):
            there = functions_of(str(node.module))
            found |= {
                one.name: there[one.name] for one in node.names if one.name in there
            }
    return found


class Reading:
    """Decides whether a function makes a check in each of its executions."""

    def __init__(self, function: ast.FunctionDef, known: Functions) -> None:
        self.function = function
        inner = [one for one in function.body if isinstance(one, ast.FunctionDef)]
        self.known = {**known, **{one.name: one for one in inner}}
        self.values = {
            node.targets[0].id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }

    def body_checks(self, body: list[ast.stmt]) -> bool:
        for statement in body:
            if self.checks(statement):
                return True
            if self.leaves(statement):
                return False
        return False

    def leaves(self, node: ast.AST) -> bool:
        """Return whether a statement without a certain check may end the body."""
        match node:
            case ast.Return() | ast.Continue() | ast.Break():
                return True
            case ast.FunctionDef() | ast.Lambda():
                return False
            case ast.If(body=body, orelse=orelse):
                sides = [side for side in (body, orelse) if not self.body_checks(side)]
                return any(self.leaves(one) for side in sides for one in side)
        return any(map(self.leaves, ast.iter_child_nodes(node)))

    def checks(self, node: ast.AST) -> bool:
        match node:
            case ast.FunctionDef() | ast.Lambda() | ast.BoolOp():
                return False
            case ast.If(body=body, orelse=orelse):
                sides = (body, orelse)
                return all(self.body_checks(s) or is_refused(s) for s in sides)
            case ast.For(iter=over, body=body) | ast.While(test=over, body=body):
                several = not self.may_be_empty(over)
                return self.checks(over) or (several and self.body_checks(body))
            case ast.With(items=items, body=body):
                return any(map(self.checks, items)) or self.body_checks(body)
            case ast.Try(body=body, finalbody=last):
                return self.body_checks(body) or self.body_checks(last)
            case ast.Call() if self.call_checks(node):
                return True
        return any(map(self.checks, ast.iter_child_nodes(node)))

    def call_checks(self, call: ast.Call) -> bool:
        match call.func:
            case ast.Name(id=name) if name in self.known:
                passed = [one.id for one in call.args if isinstance(one, ast.Name)]
                functions = [
                    self.known[one] for one in [name, *passed] if one in self.known
                ]
                return any(always_checks(one, self.known) for one in functions)
            case ast.Attribute(value=ast.Name(id="check")):
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name.startswith(CHECKS)
            case _:
                return False

    def may_be_empty(self, iterable: ast.expr) -> bool:
        """Return whether a loop may have no turn, because of what was answered.

        A loop over a parameter or a constant, or over what the suite has made, has one.
        """
        match iterable:
            case ast.Name(id=name) if is_empty_list(self.values.get(name)):
                return not is_filled(name, self.function.body)
            case ast.Name(id=name) if name in self.values:
                return self.may_be_empty(self.values[name])
            case ast.IfExp(body=one, orelse=other):
                return self.may_be_empty(one) or self.may_be_empty(other)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                known = self.known.get(name)
                if known is None and name in parameters(self.function):
                    return True
                own = known is not None and returns_empty_list(known)
                return own or any(map(self.may_be_empty, arguments))
            case _:
                return False


def always_checks(function: ast.FunctionDef, known: Functions) -> bool:
    return Reading(function, known).body_checks(function.body)


def parameters(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function gets a value for from outside, or in a loop."""
    targets = [node.target for node in ast.walk(function) if isinstance(node, ast.For)]
    names = [node for target in targets for node in ast.walk(target)]
    looped = {node.id for node in names if isinstance(node, ast.Name)}
    return looped | {argument.arg for argument in function.args.args}


def returns_empty_list(function: ast.FunctionDef) -> bool:
    returned = [
        node.value for node in ast.walk(function) if isinstance(node, ast.Return)
    ]
    return any(is_empty_list(part) for one in returned if one for part in ast.walk(one))


def is_empty_list(node: ast.AST | None) -> bool:
    return isinstance(node, ast.List) and not node.elts


def is_filled(name: str, body: list[ast.stmt]) -> bool:
    """Return whether a list gets an element, and not under a condition alone."""
    for node in body:
        if isinstance(node, ast.For | ast.With) and is_filled(name, node.body):
            return True
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith(
            f"{name}.append"
        ):
            return True
    return False


def is_refused(body: list[ast.stmt]) -> bool:
    """Return whether a branch ends in an exception, after which nothing is judged."""
    return bool(body) and isinstance(body[-1], ast.Raise)


def test_each_test_checks_whatever_is_answered():
    tests = [
        (f"{chapters.__name__}.{file.removesuffix('.py')}", function.__name__)
        for file, function in suite_tests()
    ]
    assert len(tests) > 500
    known = {module: functions_of(module) for module, _ in tests}
    found = [
        test
        for module, test in tests
        if not always_checks(known[module][test], known[module])
    ]
    assert found == []


REFUSED = ("SHARE-5", "SHARE-13", "VIEW-9")
"""The clauses about what an implementation may refuse to copy, or to send."""


LEFT_BY_OTHERS = ("LIFE-8", "LIFE-10", "LIFE-13", "FS-9", "FS-10")
"""The clauses about names that only others can remove."""


@pytest.mark.takes(30)
def test_implementation_without_a_manager_can_remove_names_when_it_shares(suite):
    chosen = (f"--clause={id}" for id in LEFT_BY_OTHERS)
    how = ("--strategy=file_system", "--start-method=fork", "-k", "not histories")
    done = suite("--impl=faulty_reference:sweeps_at_calls", *chosen, *how)
    assert (done.status, done.left) == (0, NOTHING_LEFT)
    assert {case.verdict for case in done.cases} == {Verdict.PASS}
    assert {id for case in done.cases for id in case.clauses} >= set(LEFT_BY_OTHERS)


@pytest.mark.takes(30)
def test_implementation_that_refuses_all_copies_is_judged(suite):
    chosen = (f"--clause={id}" for id in REFUSED)
    where = ("--strategy=file_descriptor", "--start-method=fork")
    done = suite("--impl=faulty_reference:refuses_copies", *chosen, *where)
    assert (done.status, done.left) == (0, NOTHING_LEFT)
    assert {case.verdict for case in done.cases} == {Verdict.PASS}
    assert {id for case in done.cases for id in case.clauses} >= set(REFUSED)
