"""Reads the source of modules without importing them.

To import an adapter could import the implementation, which could crash this process.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path

Definition = ast.FunctionDef | ast.ClassDef
Place = tuple[str, str, str]
"""What an import binds: a module, a name in it or "", and the import as a line."""


class Unreplayable(Exception):
    """A case cannot be replayed by a program; the message is one sentence."""


class Source:
    """What the statements of a module bind.

    `statements` has the statements that bind each name, and ``""`` those that bind
    none.
    """

    def __init__(self, name: str, spec: ModuleSpec) -> None:
        self.name = name
        is_package = spec.submodule_search_locations is not None
        self._package = name if is_package else name.rpartition(".")[0]
        self.statements: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, Place] = {}
        for node in ast.parse(Path(str(spec.origin)).read_bytes()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports |= self.bound_by(node)
            else:
                for bound in _names_bound_by(node) or {""}:
                    self.statements.setdefault(bound, []).append(node)

    def effects_on(self, name: str) -> list[ast.stmt]:
        """Return the statements that bind nothing and use a name."""
        return [
            node
            for node in self.statements.get("", [])
            if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))
        ]

    def module_of(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module that an import names."""
        return resolve_name("." * node.level + (node.module or ""), self._package)

    def bound_by(self, node: ast.Import | ast.ImportFrom) -> dict[str, Place]:
        """Return what an import binds, in the form of `imports`."""
        found = {}
        for alias in node.names:
            renamed = f" as {alias.asname}" if alias.asname else ""
            if isinstance(node, ast.Import):
                bound = alias.asname or alias.name.partition(".")[0]
                module = alias.name if alias.asname else bound
                found[bound] = module, "", f"import {alias.name}{renamed}"
                continue
            module = self.module_of(node)
            line = f"from {module} import {alias.name}{renamed}"
            inside = f"{module}.{alias.name}"
            is_module = module != "__future__" and locate(inside) is not None
            place = (inside, "") if is_module else (module, alias.name)
            found[alias.asname or alias.name] = (*place, line)
        return found


def _names_bound_by(node: ast.stmt) -> set[str]:
    """Return the names that a statement other than an import binds."""
    if isinstance(node, Definition):
        return {node.name}
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return set()
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    inside = list(ast.walk(node))
    names = {n.id for n in inside if isinstance(n, ast.Name) and _is_stored(n)}
    names |= {n.name for n in inside if isinstance(n, Definition)}
    aliases = (n for n in inside if isinstance(n, ast.alias))
    return names | {a.asname or a.name.partition(".")[0] for a in aliases}


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


@cache
def read_source(name: str) -> Source:
    """Return the source of a module.

    Raises:
        Unreplayable: the module has no source.
    """
    found = locate(name)
    if found is None or not found.origin or not found.origin.endswith(".py"):
        raise Unreplayable(f"the module {name} has no readable source")
    return Source(name, found)


@cache
def locate(name: str) -> ModuleSpec | None:
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
