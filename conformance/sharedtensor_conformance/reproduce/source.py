"""Finds and reads the source of Python modules without importing them.

To import an adapter could import the implementation, which could crash this process. To
read its source is safe.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
Import = ast.Import | ast.ImportFrom
BUILTINS = frozenset(dir(builtins))


class Untranslatable(Exception):
    """A case cannot be written as a program; the message is one sentence."""


@dataclass(frozen=True)
class Module:
    """The names of a module, with the statements that bind them."""

    name: str
    definitions: dict[str, Definition]
    imports: dict[str, Import]


@cache
def read_module(name: str) -> Module:
    """Return the names that a module binds at its top level.

    Raises:
        Untranslatable: the module has no source.
    """
    found = _locate(name)
    if found is None or not found.origin or not found.origin.endswith(".py"):
        raise Untranslatable(f"the module {name} has no readable source")
    text = Path(found.origin).read_text(encoding="utf-8")
    inside = found.submodule_search_locations is not None
    tree = _Absolute(name if inside else name.rpartition(".")[0]).visit(ast.parse(text))
    definitions: dict[str, Definition] = {}
    imports: dict[str, Import] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            definitions |= {name: node for name in _targets_of(node)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports |= bound_by(node)
    return Module(name, definitions, imports)


class _Absolute(ast.NodeTransformer):
    """Makes imports absolute, so that a program outside the package can use them."""

    def __init__(self, package: str) -> None:
        self.package = package

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.level and self.package:
            relative = "." * node.level + (node.module or "")
            node.module, node.level = resolve_name(relative, self.package), 0
        return node


def module_imported_by(node: Import | None) -> str | None:
    """Return the module that an import binds to its name, or None."""
    match node:
        case ast.Import([ast.alias(name, None)]):
            return name.partition(".")[0]
        case ast.Import([ast.alias(name)]):
            return name
        case ast.ImportFrom(str(package), [ast.alias(name)]):
            if _locate(f"{package}.{name}"):
                return f"{package}.{name}"
            with suppress(Untranslatable):  # a module without source imports nothing
                return module_imported_by(read_module(package).imports.get(name))
    return None


def _locate(name: str) -> ModuleSpec | None:
    """Return the spec of a module or None; this runs no code of it or its package."""
    root, *rest = name.split(".")
    here = [str(Path.cwd())]  # pytest finds modules there, too
    found = importlib.util.find_spec(root) or PathFinder.find_spec(root, here)
    path = root
    for part in rest:
        if found is None or found.submodule_search_locations is None:
            return None
        path = f"{path}.{part}"
        found = PathFinder.find_spec(path, found.submodule_search_locations)
    return found


def _targets_of(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def bound_by(node: Import) -> dict[str, Import]:
    """Return the names that an import binds, each with an import of only that name."""
    return {_bound(alias): _only(node, alias) for alias in node.names}


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _only(node: Import, alias: ast.alias) -> Import:
    if isinstance(node, ast.Import):
        return ast.Import([alias])
    return ast.ImportFrom(node.module, [alias], node.level)


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a function without its docstring."""
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return body[1:]
    return body


class _Bare(ast.NodeTransformer):
    """Removes annotations, because their types would have to be imported."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.copy_location(ast.arg(node.arg), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        dataclass = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
        if not dataclass:  # in a dataclass, annotations define the fields
            self.generic_visit(node)
        node.bases = [
            b.value if isinstance(b, ast.Subscript) else b for b in node.bases
        ]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def bare(node: ast.stmt) -> Any:
    """Return a copy of a statement without annotations."""
    copy = ast.parse(ast.unparse(node)).body[0]
    return ast.fix_missing_locations(_Bare().visit(copy))


def names_in(node: ast.AST) -> set[str]:
    """Return the names that an AST node reads."""
    read = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {name.id for name in read if isinstance(name.ctx, ast.Load)} - BUILTINS
