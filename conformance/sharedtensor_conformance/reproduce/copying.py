"""Copies definitions of the suite and of an adapter, with all that they use.

Of a class, only those methods are copied whose names are mentioned in the program. Type
annotations are left out, because their names would have to be copied as well. What is
copied is written from its syntax tree, so it has no comments.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from copy import deepcopy

from sharedtensor_conformance.reproduce.sources import (
    Definition,
    Place,
    Source,
    Unreplayable,
    read_source,
)

SUITE = "sharedtensor_conformance"
Key = tuple[str, str]
"""A module and a name in it; the name is "" for the module itself."""


class Copier:
    """Collects definitions, and the imports that they need.

    Args:
        adapter: the module of the adapter, which is copied like the suite. Other
            modules of its package can be the implementation.
        provided: the names that the program defines itself.
        mentioned: words that can name functions and methods; those of what is copied
            are added.
    """

    def __init__(
        self, adapter: str, provided: Iterable[str], mentioned: set[str]
    ) -> None:
        self.adapter = adapter
        self.provided = set(provided)
        self.mentioned = mentioned
        self.imports: set[str] = set()
        self.parts: dict[Key, str] = {}
        self.names: dict[Key, str] = {}

    def define(self, module: str, name: str) -> str:
        """Copy what a name of a module means, and return its name in the program."""
        source, key = read_source(module), (module, name)
        if name in source.imports:
            return self.follow(name, source.imports[name])
        if name in self.provided:
            return name
        if key not in self.names:
            if name not in source.statements:
                raise Unreplayable(f"no source is found of {name} in {module}")
            self.names[key] = self._free_name(module, name)
            nodes = [*source.statements[name], *source.effects_on(name)]
            copies = [_Copy(self, source).visit(deepcopy(node)) for node in nodes]
            written = "\n".join(map(ast.unparse, copies))
            self.parts[key] = written  # after those that it uses
        return self.names[key]

    def follow(self, bound: str, imported: Place) -> str:
        """Import a name, or copy what it means; return its name in the program."""
        module, name, line = imported
        if not self.is_copied(module):
            self.imports.add(line)
            return bound
        return self.define(module, name) if name else self.module(module)

    def module(self, module: str) -> str:
        """Define an object with those names of a module that are mentioned."""
        key = (module, "")
        source = read_source(module)
        if key not in self.names:
            self.names[key] = self._free_name(module, module.rpartition(".")[2])
            found = sorted(self.mentioned & source.statements.keys() - {""})
            given = ", ".join(f"{name}={self.define(module, name)}" for name in found)
            self.parts[key] = f"{self.names[key]} = SimpleNamespace({given})"
            self.imports.add("from types import SimpleNamespace")
        return self.names[key]

    def is_copied(self, module: str) -> bool:
        """Return whether a module is copied and not imported."""
        return module == self.adapter or module.partition(".")[0] == SUITE

    def _free_name(self, module: str, name: str) -> str:
        taken = name in {*self.names.values(), *self.provided}
        return f"{module.rpartition('.')[2]}_{name}" if taken else name


class _Copy(ast.NodeTransformer):
    """Changes a statement into the one of the program, and has defined what it uses."""

    def __init__(self, copier: Copier, source: Source) -> None:
        self.copier = copier
        self.source = source
        self.imports = dict(source.imports)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id in self.imports:
            node.id = self.copier.follow(node.id, self.imports[node.id])
        elif node.id in self.source.statements:
            node.id = self.copier.define(self.source.name, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        module, name = self._place(node.value)
        if module and not name and self.copier.is_copied(module):
            return ast.Name(self.copier.define(module, node.attr))
        self.copier.mentioned.add(node.attr)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and node.value.isidentifier():
            self.copier.mentioned.add(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(ast.Name("import_module"), [ast.Constant(str(module))]):
                if self.copier.is_copied(module):
                    return ast.Name(self.copier.module(module))
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        bound = self.source.bound_by(node)
        if any(self.copier.is_copied(module) for module, _, _ in bound.values()):
            self.imports |= bound
            return ast.Pass()
        return ast.ImportFrom(self.source.module_of(node), node.names, 0)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.target = self.visit(node.target)
        if node.value is None:
            return node
        return ast.copy_location(
            ast.Assign([node.target], self.visit(node.value)), node
        )

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        self._rename(node)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._rename(node)
        kept, fields = node.body, []
        if all(self.copier.is_copied(self._place(base)[0]) for base in node.bases):
            kept = [one for one in kept if self._is_kept(one)] or [ast.Pass()]
        if any("dataclass" in ast.unparse(each) for each in node.decorator_list):
            fields = [one for one in kept if isinstance(one, ast.AnnAssign)]
        node.body = []
        self.generic_visit(node)  # its decorators and bases
        node.body = [one if one in fields else self.visit(one) for one in kept]
        return node

    def _place(self, node: ast.expr) -> Key:
        """Return the module of a name that is used, and its name there; "" for none."""
        if not isinstance(node, ast.Name):
            return "", ""
        if node.id in self.source.statements:
            return self.source.name, node.id
        return self.imports.get(node.id, ("", "", ""))[:2]

    def _is_kept(self, node: ast.stmt) -> bool:
        if not isinstance(node, Definition):
            return True
        return node.name in self.copier.mentioned or node.name.startswith("__")

    def _rename(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        if node.col_offset == 0:
            node.name = self.copier.names.get((self.source.name, node.name), node.name)
