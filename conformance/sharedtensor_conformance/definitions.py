"""Finds where a dotted name is defined, by reading a package without importing it.

A mutant names what it replaces below `sharedtensor`, for example
``protocol.export_grad``. Python would find that by importing. This module finds it in
the syntax trees, by the same rules: modules, classes with their bases, and imports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Module:
    """One Python file: its dotted name, its path from the root, and its syntax tree."""

    name: str
    file: str
    tree: ast.Module

    def constants(self) -> dict[str, str]:
        """Return the string constants of the module, by name."""
        return {
            target.id: node.value.value
            for node in self.tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value.value, str)
        }

    def imported_from(self, node: ast.ImportFrom) -> str:
        """Return the dotted name of the module that `node` imports from."""
        parts = self.name.split(".")
        up = node.level - self.file.endswith("/__init__.py")
        package = parts[: len(parts) - up] if node.level else []
        return ".".join([*package, *([node.module] if node.module else [])])


@dataclass(frozen=True)
class Folder:
    """The Python files below `path` that match `pattern`, with paths from `root`."""

    path: Path
    root: Path
    pattern: str = "**/*.py"

    def modules(self) -> Iterator[Module]:
        """Yield the files in the order of their paths."""
        for path in sorted(self.path.glob(self.pattern)):
            parts = path.relative_to(self.path.parent).with_suffix("").parts
            name = ".".join(part for part in parts if part != "__init__")
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
            yield Module(name, path.relative_to(self.root).as_posix(), tree)


@dataclass(frozen=True)
class Place:
    """The place where a name is defined; `file` is empty if that is unknown."""

    name: str
    file: str = ""
    line: int = 0


def definitions_in(tree: ast.AST) -> list[Definition]:
    """Return all functions and classes, in the order of the source."""
    found = [node for node in ast.walk(tree) if isinstance(node, Definition)]
    return sorted(found, key=lambda node: node.lineno)


class Definitions:
    """The definitions in the modules of a package."""

    def __init__(self, package: Folder) -> None:
        self._package = package

    @cached_property
    def _modules(self) -> dict[str, Module]:
        return {module.name: module for module in self._package.modules()}

    def place(self, target: str) -> Place:
        """Return where `target`, a dotted name below the package, is defined."""
        found = self._find(self._package.path.name, target.split("."))
        return Place(target, *found) if found else Place(target)

    def _find(self, module: str, path: Sequence[str]) -> tuple[str, int] | None:
        """Return file and line of what `path` names, beginning in `module`."""
        while path and f"{module}.{path[0]}" in self._modules:
            module, path = f"{module}.{path[0]}", path[1:]
        if module not in self._modules:
            return None
        known = self._modules[module]
        return self._find_in(known, known.tree, path) if path else (known.file, 1)

    def _find_in(
        self, module: Module, scope: ast.Module | ast.ClassDef, path: Sequence[str]
    ) -> tuple[str, int] | None:
        """Return file and line of what `path` names in a module or class body."""
        node = _binding(scope, path[0])
        if isinstance(node, ast.ImportFrom):
            return self._imported(module, node, path)
        if node is not None and len(path) == 1:
            return module.file, node.lineno
        if isinstance(node, ast.ClassDef):
            return self._find_in(module, node, path[1:])
        if node is None and isinstance(scope, ast.ClassDef):
            return self._inherited(module, scope, path)
        return self._computed(module, path) if node is None else None

    def _imported(
        self, module: Module, node: ast.ImportFrom, path: Sequence[str]
    ) -> tuple[str, int] | None:
        """Return file and line of an imported definition.

        If it is not in the package, the result is the import itself.
        """
        name = next(a.name for a in node.names if path[0] in (a.asname, a.name))
        origin = module.imported_from(node)
        if origin in self._modules:
            return self._find(origin, [name, *path[1:]])
        return (module.file, node.lineno) if len(path) == 1 else None

    def _inherited(
        self, module: Module, scope: ast.ClassDef, path: Sequence[str]
    ) -> tuple[str, int] | None:
        """Return file and line of what `path` names in a base of the class `scope`."""
        for base in scope.bases:
            start = ast.unparse(base).split(".")
            if found := self._find(module.name, [*start, *path]):
                return found
        return None

    def _computed(self, module: Module, path: Sequence[str]) -> tuple[str, int] | None:
        """Return file and line of ``globals().update()``; it binds computed names."""
        for node in module.tree.body if len(path) == 1 else []:
            if ast.unparse(node).startswith("globals().update("):
                return module.file, node.lineno
        return None


def _binding(scope: ast.Module | ast.ClassDef, name: str) -> ast.stmt | None:
    """Return the last statement in the body of `scope` that binds `name`."""
    found = [node for node in _statements(scope.body) if name in _bound_by(node)]
    return found[-1] if found else None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, and those in its ``if``, ``try`` and ``with``."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            children = ast.iter_child_nodes(node)
            yield from _statements(c for c in children if isinstance(c, ast.stmt))


def _bound_by(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name for alias in node.names}
        case ast.Assign():
            return {t.id for t in node.targets if isinstance(t, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()
