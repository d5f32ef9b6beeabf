"""Generates mutants of the reference from its syntax: one small source change each.

These faults were not chosen by a person, so they test the suite in other ways than
hand-written faults. The operators are those of Cosmic Ray, and an additional one: it
removes a call whose result is not used, like a step of a protocol.

Text is not mutated: annotations, messages of exceptions, docstrings, formatted strings.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator, operator_names
from sharedtensor_conformance.clauses import load_clauses

NEEDS_ARGUMENTS = {"core/VariableReplacer", "core/VariableInserter"}
CLAUSE = re.compile(r"\b[A-Z]+-\d+\b")
Span = tuple[tuple[int, int], tuple[int, int]]


class RemoveCall(Operator):
    """Removes a statement that is only a call."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """Yield the position of the call, if the node is such a statement."""
        if node.type == "simple_stmt" and _is_call(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Replace the call by ``pass``."""
        call = node.children[0]
        prefix = call.get_first_leaf().prefix
        node.children[0] = parso.python.tree.Keyword("pass", call.start_pos, prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Return examples, as each operator of Cosmic Ray does."""
        return (Example("f(1)\n", "pass\n"),)


def _is_call(node: Any) -> bool:
    if node.type not in ("atom_expr", "power"):
        return False
    last = node.children[-1]
    return bool(last.type == "trailer" and last.children[0].value == "(")


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Args:
        file: its path in the repository.
        within: the function or class with the change; empty for the module.
        before: the original lines, without indentation.
        after: the changed lines.
    source: the whole mutated file.
        clauses: the clauses that the docstring of the code there cites.
    """

    file: str
    line: int
    within: str
    operator: str
    before: str
    after: str
    source: str
    clauses: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The key of the mutant, which is valid while the line is unchanged."""
        return self.file, self.within, self.before, self.after


@dataclass(frozen=True)
class Change:
    """A possible change by an operator.

    Args:
        place: the place of the change: file, function, text of the line, columns, and
            kind of operator. It has no line number.
    """

    file: str
    operator: str
    occurrence: int
    place: tuple[str, ...]

    def rank(self, seed: int) -> str:
        """Return a digest that orders changes pseudo-randomly."""
        text = "\0".join((str(seed), self.operator, *self.place))
        return hashlib.sha256(f"{text}\0{self.occurrence}".encode()).hexdigest()


def changes(root: Path, files: Sequence[str]) -> list[Change]:
    """Return all possible changes of the files."""
    return [change for file in files for change in _changes_of(root, file)]


def sample(root: Path, found: Sequence[Change], seed: int, count: int) -> list[Mutant]:
    """Choose places, make one mutant for each, and return `count` of them.

    A digest decides, so a change of another file does not affect the choice. There is
    only one mutant for each place, because an operator like ``+`` has ten replacements,
    which would dominate the sample.
    """
    chosen: dict[Any, Mutant] = {}
    seen = set()
    for change in sorted(found, key=lambda each: each.rank(seed)):
        if change.place in seen or len(chosen) == count:
            continue
        mutant = _mutant(root, change)
        if mutant is not None:
            seen.add(change.place)
            chosen.setdefault(mutant.key, mutant)
    return list(chosen.values())


def _changes_of(root: Path, file: str) -> Iterator[Change]:
    source = (root / file).read_text(encoding="utf-8")
    lines, program = source.splitlines(), ast.parse(source)
    text, nodes = list(_text_of(program)), list(ast_nodes(get_ast(source)))
    for name, operator in _operators():
        spans = [span for node in nodes for span in operator.mutation_positions(node)]
        for occurrence, span in enumerate(spans):
            if any(begin <= span[0] and span[1] <= end for begin, end in text):
                continue
            (line, begin), (_, end) = span
            within, kind = _within(program, line), name.partition("_")[0]
            columns = f"{begin}-{end}"
            place = (file, within, lines[line - 1].strip(), columns, kind)
            yield Change(file, name, occurrence, place)


def _operators() -> Iterator[tuple[str, Operator]]:
    for name in operator_names():
        if name not in NEEDS_ARGUMENTS:
            yield name.removeprefix("core/"), get_operator(name)()
    yield "RemoveCall", RemoveCall()


def _mutant(root: Path, change: Change) -> Mutant | None:
    """Make a change; None if the result is not valid Python, or the same program."""
    source = (root / change.file).read_text(encoding="utf-8")
    operator = dict(_operators())[change.operator]
    mutated = mutate_code(source, operator, change.occurrence)
    if mutated is None or not _is_other_program(mutated, source):
        return None
    old, new = source.splitlines(), mutated.splitlines()
    lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[3:]
    before = "\n".join(text[1:].strip() for text in lines if text[0] == "-")
    after = "\n".join(text[1:].strip() for text in lines if text[0] == "+")
    line = next(i for i, text in enumerate(old, 1) if text != new[i - 1])
    within = _within(ast.parse(source), line)
    names = change.file, line, within, change.operator
    return Mutant(*names, before, after, mutated, _cited(source, line))


def _cited(source: str, line: int) -> tuple[str, ...]:
    """Return the clauses cited around a line, or else those cited in the file."""
    around = [
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    cited = CLAUSE.findall(" ".join(around)) or CLAUSE.findall(source)
    known = load_clauses()
    found = dict.fromkeys(id for id in cited if id in known)
    # The fault table takes minutes and is not in the default selection.
    return tuple(id for id in found if known[id].profile != "fault-table")


def _is_other_program(mutated: str, source: str) -> bool:
    try:
        return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def _within(node: ast.AST, line: int, outer: str = "") -> str:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
            if first <= line <= (child.end_lineno or 0):
                return _within(child, line, f"{outer}.{child.name}".lstrip("."))
    return outer


def _text_of(program: ast.AST) -> Iterator[Span]:
    """Yield the positions of text for readers or type checkers, which is not code."""
    for node in ast.walk(program):
        annotations = (getattr(node, name, None) for name in ("annotation", "returns"))
        yield from (_span(each) for each in annotations if isinstance(each, ast.AST))
        if isinstance(node, ast.JoinedStr):
            yield _span(node)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from map(_span, node.exc.args)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield _span(node)


def _span(node: Any) -> Span:
    begin = node.lineno, node.col_offset
    return begin, (node.end_lineno, node.end_col_offset)
