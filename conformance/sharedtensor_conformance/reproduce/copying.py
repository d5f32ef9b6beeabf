"""Copies definitions of the suite and of an adapter, with all that they use.

Of a class, only those methods are copied whose names are mentioned in the program. Type
annotations are left out, because their names would have to be copied as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from sharedtensor_conformance.reproduce.sources import (
    Definition,
    Node,
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
            written = [self.text(source, node) for node in nodes]
            self.parts[key] = "\n".join(written)  # after those that it uses
        return self.names[key]

    def follow(self, bound: str, imported: tuple[str, str, str]) -> str:
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

    def text(self, source: Source, node: ast.stmt) -> str:
        """Return a statement as it stands in the program; define what it uses."""
        begin, end = source.span(node)
        text = source.text[begin:end]
        edits = _Edits(self, source)
        edits.visit(node)
        for first, last, new in sorted(edits.found, reverse=True):
            text = text[: first - begin] + new.encode() + text[last - begin :]
        return text.decode()


class _Edits(ast.NodeVisitor):
    """Finds the places of a statement that differ in the program.

    `found` has the begin, the end and the new text of each.
    """

    def __init__(self, copier: Copier, source: Source) -> None:
        self.copier = copier
        self.source = source
        self.imports = dict(source.imports)
        self.found: list[tuple[int, int, str]] = []

    def _replace(self, node: Node, new: str) -> None:
        self.found.append((*self.source.span(node), new))

    def _delete_after(self, before: int, node: Node) -> None:
        self.found.append((before, self.source.span(node)[1], ""))

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.imports:
            new = self.copier.follow(node.id, self.imports[node.id])
        elif node.id in self.source.statements:
            new = self.copier.define(self.source.name, node.id)
        else:
            return
        if new != node.id:
            self._replace(node, new)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        named = node.value.id if isinstance(node.value, ast.Name) else ""
        module, name, _ = self.imports.get(named, ("", "", ""))
        if module and not name and self.copier.is_copied(module):
            self._replace(node, self.copier.define(module, node.attr))
            return
        self.copier.mentioned.add(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.isidentifier():
            self.copier.mentioned.add(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(ast.Name("import_module"), [ast.Constant(str(module))]):
                if self.copier.is_copied(module):
                    self._replace(node, self.copier.module(module))
                    return
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        bound = self.source.bound_by(node)
        if any(self.copier.is_copied(module) for module, _, _ in bound.values()):
            self.imports |= bound
            self._replace(node, "pass  # it is copied")
        elif node.level:
            absolute = ast.ImportFrom(self.source.module_of(node), node.names, 0)
            self._replace(node, ast.unparse(absolute))

    # Annotations, which are left out

    def visit_arg(self, node: ast.arg) -> None:
        if node.annotation:
            begin, _ = self.source.span(node)
            self._delete_after(begin + len(node.arg.encode()), node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._delete_after(self.source.span(node.target)[1], node.annotation)
            self.visit(node.value)
        self.visit(node.target)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._rename(node)
        if node.returns:
            begin, end = self.source.span(node.returns)
            arrow = self.source.text.rindex(b"->", 0, begin)
            self.found.append((arrow - 1, end, ""))
        for part in (*node.decorator_list, node.args, *node.body):
            self.visit(part)

    # Classes

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._rename(node)
        kept = node.body
        if all(map(self._is_copied, node.bases)):
            kept = [one for one in node.body if self._is_kept(one)]
        before = node.body[0]
        for one in node.body:
            if one not in kept:
                last = self.source.span(before)[1]
                begin = min(last, self.source.span(one)[0])
                self._delete_after(begin, one)
            before = one
        if not kept:
            _, end = self.source.span(node)
            self.found.append((end, end, "pass"))
        fields = [n for n in kept if not isinstance(n, ast.AnnAssign)]
        is_dataclass = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
        parts = [*node.decorator_list, *node.bases, *(fields if is_dataclass else kept)]
        for part in parts:
            self.visit(part)

    def _is_copied(self, base: ast.expr) -> bool:
        named = base.id if isinstance(base, ast.Name) else ""
        module, _, _ = self.imports.get(named, ("", "", ""))
        return named in self.source.statements or self.copier.is_copied(module)

    def _is_kept(self, node: ast.stmt) -> bool:
        if not isinstance(node, Definition):
            return True
        return node.name in self.copier.mentioned or node.name.startswith("__")

    def _rename(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        new = self.copier.names.get((self.source.name, node.name), node.name)
        if node.col_offset == 0 and new != node.name:
            begin = self.source.text.index(node.name.encode(), self._begin(node))
            self.found.append((begin, begin + len(node.name.encode()), new))

    def _begin(self, node: ast.stmt) -> int:
        return self.source.offset(node.lineno, node.col_offset)
