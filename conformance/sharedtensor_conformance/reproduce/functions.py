"""Moves repeated steps of a program into a function, as a programmer would.

A test for leaks does everything once to warm up and then again, in the owner and often
in its peer. In the program, these steps are one function that is called several times.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FUNCTION_NAME = "repeated"
MIN_LINES = 6
"""The minimum number of lines of a part that becomes a function."""

Use = tuple[str, type[ast.expr_context]]
"""A name, and whether it is read, bound or deleted."""


@dataclass(frozen=True)
class Body:
    """The lines of a function, and the names of its parameters."""

    lines: tuple[str, ...]
    parameters: tuple[str, ...] = ()


def extract_function(bodies: Sequence[Body]) -> tuple[tuple[str, ...], list[Body]]:
    """Return the part whose function saves the most lines, and the bodies that call it.

    If no function would save lines, the part is empty and the bodies are unchanged.
    """
    best: tuple[str, ...] = ()
    for part in _candidates(bodies):
        if _saved_lines(part, bodies) > _saved_lines(best, bodies):
            best = part
    if not best:
        return (), list(bodies)
    return best, [Body(tuple(_with_calls(b.lines, best)), b.parameters) for b in bodies]


def _candidates(bodies: Sequence[Body]) -> Iterator[tuple[str, ...]]:
    """Yield the parts that occur at least twice and can be functions."""
    seen: set[tuple[str, ...]] = set()
    for body in bodies:
        count = len(body.lines)
        for start in range(count):
            for end in range(start + 1, count + 1):
                part = body.lines[start:end]
                again = part in seen and _length(part) >= MIN_LINES
                if again and all(_is_self_contained(part, each) for each in bodies):
                    yield part
                seen.add(part)


def _length(part: Sequence[str]) -> int:
    return sum(text.count("\n") + 1 for text in part)


def _saved_lines(part: tuple[str, ...], bodies: Sequence[Body]) -> int:
    """Return how many lines a function for this part saves."""
    if not part:
        return 0
    times = sum(
        list(_with_calls(b.lines, part)).count(f"{FUNCTION_NAME}()") for b in bodies
    )
    return (times - 1) * (_length(part) - 1) - 4


def _is_self_contained(part: tuple[str, ...], body: Body) -> bool:
    """Return whether a part neither uses nor defines names of the code around it.

    It binds each of its names before it uses it, and deletes it at last.
    """
    tree = ast.parse("\n".join(part))
    if any(isinstance(node, ast.Yield | ast.Global) for node in ast.walk(tree)):
        return False
    uses = _uses(part)
    first, last = dict(reversed(uses)), dict(uses)
    bound = _names(uses, ast.Store) - {"_"}
    if any(first[n] is not ast.Store or last[n] is not ast.Del for n in bound):
        return False
    own = {*body.parameters, *_names(_uses(body.lines), ast.Store)}
    return not (_names(uses, ast.Load) - bound) & own


def _uses(lines: Sequence[str]) -> list[Use]:
    """Return the uses of names in the order in which a program makes them."""
    visitor = _Uses()
    visitor.visit(ast.parse("\n".join(lines)))
    return visitor.found


def _names(uses: Sequence[Use], context: type[ast.expr_context]) -> set[str]:
    return {name for name, how in uses if how is context}


class _Uses(ast.NodeVisitor):
    """Collects the uses of names."""

    def __init__(self) -> None:
        self.found: list[Use] = []

    def visit_Name(self, node: ast.Name) -> None:
        self.found.append((node.id, type(node.ctx)))

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_all(node.value, *node.targets)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit_all(node.value, node.target)

    def visit_For(self, node: ast.For) -> None:
        self._visit_all(node.iter, node.target, *node.body, *node.orelse)

    def _visit_all(self, *nodes: ast.AST) -> None:
        for node in nodes:
            self.visit(node)


def _with_calls(lines: tuple[str, ...], part: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines with calls in place of the part."""
    place = 0
    while place < len(lines):
        if lines[place : place + len(part)] == part:
            yield f"{FUNCTION_NAME}()"
            place += len(part)
        else:
            yield lines[place]
            place += 1
