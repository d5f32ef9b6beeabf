"""Finds an example for each clause: the steps of the simplest test that cites it.

A test is a short sequence of steps of a few processes, so its own lines are the
example. This module reads them from the source without importing it. So an example
cannot differ from its test.
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sharedtensor_conformance.definitions import Folder, Module, Place
from sharedtensor_conformance.evidence import Sources, arguments_of, first_sentence

MAX_LINES = 45
"""The maximum number of lines of an example. Definitions beyond that are links."""

INDIRECT_WEIGHT = 100
"""The number of lines that a call of another module, or of a fixture, counts for. Such
a call does not show the steps, so tests without it are preferred.
"""

LOOP_WEIGHT = 3
"""The number of lines that a loop counts for in addition to its own, because a reader
has to think of all rounds.
"""

SHARED = ("shared_steps", "_actions")
"""How the names of the modules with steps of several chapters, and with functions that
processes execute, end. For these, a link is enough.
"""

CHAPTERS = "sharedtensor_conformance.chapters."

Statement = ast.FunctionDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Example:
    """The steps of one test.

    Args:
        summary: the first paragraph of the docstring of the test.
        steps: the lines of the test below its docstring, and those of the functions and
            constants of its chapter that they need.
        calls: other functions and constants of the chapters that the steps need.
        test: the place of the test.
    """

    summary: str
    steps: str
    calls: tuple[Place, ...]
    test: Place


def read_examples(sources: Sources) -> dict[str, Example]:
    """Return the example of each clause that a test cites, by the id of the clause."""
    folder = Folder(sources.tests.path, sources.tests.root)
    modules = {Path(one.file).stem: one for one in folder.modules()}
    found: dict[str, tuple[int, Example]] = {}
    for name, module in modules.items():
        chapter = _Chapter(module, sources.tests.root, modules)
        for test in chapter.tests if name.startswith("test_") else []:
            for id in arguments_of(test, "clause"):
                size = chapter.size_of(test)
                if id not in found or size < found[id][0]:
                    found[id] = size, chapter.example(test)
    return {id: example for id, (_, example) in found.items()}


def read_steps(sources: Sources, wanted: Container[str]) -> dict[str, Example]:
    """Return the examples of the `wanted` tests, by their ids in reports."""
    folder = Folder(sources.tests.path, sources.tests.root)
    modules = {Path(one.file).stem: one for one in folder.modules()}
    found = {}
    for name, module in modules.items():
        chapter = _Chapter(module, sources.tests.root, modules)
        for test in chapter.tests if name.startswith("test_") else []:
            id = f"{name}.py::{test.name}"
            if id in wanted:
                found[id] = chapter.example(test)
    return found


class _Chapter:
    """A module with tests: its definitions, its imports, and its lines."""

    def __init__(self, module: Module, root: Path, modules: dict[str, Module]) -> None:
        self.module = module
        self.file = root / module.file
        self.modules = modules

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the module."""
        return self.file.read_text(encoding="utf-8").splitlines()

    @cached_property
    def defined(self) -> dict[str, Statement]:
        """The definitions of the module, by name."""
        return _defined_in(self.module)

    @cached_property
    def imported(self) -> dict[str, str]:
        """The modules of the chapters from which names are imported, by name."""
        return {
            alias.asname or alias.name: node.module.removeprefix(CHAPTERS)
            for node in self.module.tree.body
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith(CHAPTERS)
            and node.module
            for alias in node.names
        }

    @property
    def tests(self) -> list[ast.FunctionDef]:
        """The functions of the module that cite a clause."""
        functions = self.defined.values()
        return [
            one
            for one in functions
            if isinstance(one, ast.FunctionDef) and arguments_of(one, "clause")
        ]

    def size_of(self, test: ast.FunctionDef) -> int:
        """Return how much a reader has to read of a test, in lines.

        Loops and indirect calls count as `LOOP_WEIGHT` and `INDIRECT_WEIGHT` lines.
        """
        needed = self._needed(test)
        others = self._imported_by([test, *needed])
        far = [name for name in others if not self.imported[name].endswith(SHARED)]
        indirect = len(far) + len(_fixtures_called_by(test))
        loops = sum(isinstance(node, ast.For | ast.While) for node in ast.walk(test))
        lines = sum(map(_length, (test, *needed)))
        return lines + LOOP_WEIGHT * loops + INDIRECT_WEIGHT * indirect

    def example(self, test: ast.FunctionDef) -> Example:
        """Return a test as an example."""
        needed = self._needed(test)
        lengths = itertools.accumulate(map(_length, needed), initial=_length(test))
        ends = zip(needed, itertools.islice(lengths, 1, None), strict=True)
        shown = [each for each, end in ends if end <= MAX_LINES]
        hidden = [each for each in needed if each not in shown]
        in_order = sorted(shown, key=lambda each: each.lineno)
        parts = [self._steps(test), *map(self._source, in_order)]
        places = [Place(_name(each), self.module.file, each.lineno) for each in hidden]
        places += map(self._place, self._imported_by([test, *shown]))
        return Example(
            summary=first_sentence(test),
            steps="\n\n".join(part for part in parts if part),
            calls=tuple(places),
            test=Place(test.name, self.module.file, test.lineno),
        )

    def _needed(self, test: ast.FunctionDef) -> list[Statement]:
        """Return the definitions of this module that a test uses, in the order of use.

        Definitions that these use are included.
        """
        found: dict[str, Statement] = {}
        waiting: list[Statement] = [test]
        while waiting:
            for name in _names_in(waiting.pop(0)):
                if name in self.defined and name not in (*found, test.name):
                    found[name] = self.defined[name]
                    waiting.append(found[name])
        return list(found.values())

    def _imported_by(self, statements: Iterable[Statement]) -> list[str]:
        """Return the names from other modules that the statements use."""
        names = [name for one in statements for name in _names_in(one)]
        return [name for name in dict.fromkeys(names) if name in self.imported]

    def _place(self, name: str) -> Place:
        """Return the place where another module defines an imported name."""
        module = self.modules[self.imported[name]]
        found = _defined_in(module).get(name)
        return Place(name, module.file, found.lineno if found else 1)

    def _steps(self, test: ast.FunctionDef) -> str:
        """Return the lines of a test below its docstring."""
        body = _body(test)
        return self._text(body[0].lineno, test.end_lineno) if body else ""

    def _source(self, statement: Statement) -> str:
        """Return the lines of a constant, or of a function without its decorators."""
        return self._text(statement.lineno, statement.end_lineno)

    def _text(self, first: int, last: int | None) -> str:
        return textwrap.dedent("\n".join(self.lines[first - 1 : last]))


def _defined_in(module: Module) -> dict[str, Statement]:
    return {
        _name(node): node for node in module.tree.body if isinstance(node, Statement)
    }


def _name(statement: Statement) -> str:
    if isinstance(statement, ast.FunctionDef):
        return statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else None
    target = targets[0] if targets else getattr(statement, "target", None)
    return target.id if isinstance(target, ast.Name) else ""


def _body(function: ast.FunctionDef) -> list[ast.stmt]:
    """Return the statements below the docstring."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return function.body[1:] if has_docstring else function.body


def _fixtures_called_by(test: ast.FunctionDef) -> set[str]:
    """Return the fixtures that a test calls; such a fixture does the test's work."""
    called = (node.func for node in ast.walk(test) if isinstance(node, ast.Call))
    names = {function.id for function in called if isinstance(function, ast.Name)}
    return names & {argument.arg for argument in test.args.args}


def _length(statement: ast.stmt) -> int:
    return (statement.end_lineno or statement.lineno) - statement.lineno + 1


def _names_in(statement: Statement) -> Iterator[str]:
    """Yield the names that a statement reads, except in decorators and docstring."""
    parts: list[ast.stmt] = [statement]
    if isinstance(statement, ast.FunctionDef):
        parts = _body(statement)
    names = [
        node
        for part in parts
        for node in ast.walk(part)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    for name in sorted(names, key=lambda node: (node.lineno, node.col_offset)):
        yield name.id
