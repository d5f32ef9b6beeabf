"""Translates calls of an adapter's operations to plain code of the implementation.

Most operations have one line of code, which replaces the call in the program:
``share(t)`` becomes ``t.share_memory_()``. An operation with more lines becomes a
function of the program, together with the names of its module that it uses.
"""

from __future__ import annotations

import ast
import itertools
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from sharedtensor_conformance.reproduce.source import (
    Import,
    Module,
    Untranslatable,
    bare,
    bound_by,
    module_imported_by,
    names_in,
    read_module,
    without_docstring,
)

SUITE_PACKAGE = "sharedtensor_conformance"
DROP_IN = "mp"
"""The name of the drop-in module in a program."""

LAYOUT = "Layout"
CONTRACT = read_module("sharedtensor_conformance.adapter")


@dataclass(frozen=True)
class Method:
    """A method of the adapter's class, with its module and the method it overrides."""

    node: ast.FunctionDef
    module: Module
    overridden: Method | None = None

    @property
    def parameters(self) -> list[str]:
        """The names of its parameters, without ``self``."""
        return [argument.arg for argument in self.node.args.args[1:]]

    @property
    def body(self) -> list[ast.stmt]:
        """A copy of its statements."""
        return deepcopy(without_docstring(self.node.body))


@dataclass
class Operations:
    """The operations of an adapter as pieces of source.

    `imports`, `definitions` and `setup` are the parts of a program that the operations
    translated so far need.

    Args:
        target: ``module:class`` of the operations.
    """

    target: str
    imports: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        module, _, name = self.target.partition(":")
        self.methods: dict[str, Method] = {}
        self.attributes: dict[str, tuple[ast.expr, Module]] = {}
        self._read_class(read_module(module), name)
        self._read_initialiser()

    # The class

    def _read_class(self, module: Module, name: str) -> None:
        node = module.definitions.get(name)
        if not isinstance(node, ast.ClassDef):
            raise Untranslatable(
                f"{self.target} is not a class at the top level of its module, so its "
                f"operations cannot be read"
            )
        for base in reversed(node.bases):
            if isinstance(base, ast.Name) and base.id != "object":
                self._read_class(*_resolve(module, base.id))
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                overridden = self.methods.get(part.name)
                self.methods[part.name] = Method(part, module, overridden)
            elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
                self.attributes[part.targets[0].id] = part.value, module

    def _read_initialiser(self) -> None:
        """Read the attributes that properties and the initialiser define.

        The other statements of the initialiser become the setup.
        """
        for name, part in list(self.methods.items()):
            if any("propert" in ast.unparse(d) for d in part.node.decorator_list):
                self._read_property(name, self.methods.pop(name))
        if method := self.methods.get("__init__"):
            self._read_statements(method)

    def _read_property(self, name: str, method: Method) -> None:
        match method.body:
            case [ast.Return(ast.expr() as value)]:
                self.attributes[name] = value, method.module

    def _read_statements(self, method: Method) -> None:
        statements = without_docstring(method.node.body)
        imports = method.module.imports.copy()
        for statement in statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                imports |= bound_by(statement)
        method = replace(method, module=replace(method.module, imports=imports))
        for statement in statements:
            match statement:
                case ast.Import() | ast.ImportFrom():
                    continue  # the import is added where its names are used
                case ast.Assign(targets=[ast.Attribute(ast.Name("self"), name)]):
                    self.attributes[name] = statement.value, method.module
                case ast.Expr(ast.Call(ast.Attribute(ast.Call(ast.Name("super"))))):
                    self._read_inherited_initialiser(method)
                case _:
                    self.setup.append(self._source(statement, method))

    def _read_inherited_initialiser(self, method: Method) -> None:
        for node in method.module.definitions.values():
            if isinstance(node, ast.ClassDef) and method.node in node.body:
                base = node.bases[0]
                assert isinstance(base, ast.Name)
                parent = Operations(_target(*_resolve(method.module, base.id)))
                self.attributes = parent.attributes | self.attributes
                self.setup += parent.setup
                self.imports |= parent.imports
                self.definitions |= parent.definitions

    # Expressions and statements

    def call_source(self, name: str, *arguments: str) -> str:
        """Return the source of a call of an operation; empty if the call does nothing.

        Raises:
            Untranslatable: the operation cannot be separated from its adapter.
        """
        if name not in self.methods:
            raise Untranslatable(f"the adapter has no operation {name!r}")
        method = self.methods[name]
        given = dict(zip(method.parameters, map(_expression, arguments), strict=True))
        statements = _inlined(method.body)
        if not statements:
            return ""
        if len(statements) == 1 and _can_inline(statements[0], given):
            filled = _Substitute(given).visit(statements[0])
            return self._source(filled, method)
        self.define(name, method)
        self._include({LAYOUT} & set().union(*map(names_in, given.values())), CONTRACT)
        return f"{name}({', '.join(arguments)})"

    def preparation(self, strategy: str) -> list[str]:
        """Return the lines that prepare a process, as ``enter_child`` does."""
        method = self.methods["enter_child"]
        (parameter,) = method.parameters
        given: dict[str, ast.expr] = {parameter: ast.Constant(strategy)}
        statements = _inlined(method.body)
        if not all(_can_inline(statement, given) for statement in statements):
            return [self.call_source("enter_child", repr(strategy))]
        filled = [_Substitute(given).visit(statement) for statement in statements]
        return [self._source(statement, method) for statement in filled]

    def does_nothing(self, name: str) -> bool:
        """Return whether an operation is empty or only returns its argument."""
        method = self.methods[name]
        for statement in method.body:
            match statement:
                case ast.Return(ast.Name(id)) if id == method.parameters[0]:
                    continue
                case ast.Assert():
                    continue
            return False
        return True

    def drop_in(self) -> str:
        """Return the name of the drop-in module.

        Raises:
            Untranslatable: the name cannot be read from the source.
        """
        if "multiprocessing" not in self.attributes:
            raise Untranslatable("nothing sets the operation `multiprocessing`")
        value, module = self.attributes["multiprocessing"]
        name = _module_named_by(value, module)
        if name is None:
            raise Untranslatable(
                f"the drop-in module is unknown: `multiprocessing` is set to "
                f"`{ast.unparse(value)}`, which no import binds to a module"
            )
        return name

    def _source(self, node: ast.AST, method: Method) -> str:
        """Return a part of a method as source of the program."""
        done = _simplified(_ReplaceSelf(self, method).visit(node))
        self._include(names_in(done), method.module)
        if isinstance(done, ast.Return | ast.Expr):
            done = done.value if done.value else ast.Constant(None)
        return ast.unparse(ast.fix_missing_locations(done))

    def attribute(self, name: str) -> ast.expr:
        """Return the expression that replaces ``self.name``.

        Raises:
            Untranslatable: nothing sets the attribute.
        """
        if name == "multiprocessing":
            self._import(f"import {self.drop_in()} as {DROP_IN}", DROP_IN)
            return ast.Name(DROP_IN, ast.Load())
        if name in self.attributes:
            value, module = self.attributes[name]
            if imported := _imported(value):
                self._import(f"import {imported}", imported)
                return _expression(imported)
            self._include(names_in(value), module)
            return deepcopy(value)
        if name in self.methods:
            return self.define(name, self.methods[name])
        raise Untranslatable(f"an operation uses self.{name}, which is never set")

    # What they need

    def define(self, name: str, method: Method) -> ast.expr:
        """Add a method to the program as a function with this name."""
        if name in self.definitions:
            return ast.Name(name, ast.Load())
        self.definitions[name] = ""  # for a method that calls itself
        node = bare(method.node)
        node.name = name
        node.args.args = node.args.args[1:]
        _shorten_docstring(node)
        node.decorator_list = []
        written = self._source(node, method)
        self.definitions.pop(name)
        self.definitions[name] = written  # after its dependencies
        return ast.Name(name, ast.Load())

    def _include(self, names: set[str], module: Module) -> None:
        """Add the imports or definitions of names of a module to the program."""
        for name in sorted(names):
            if name in module.imports:
                self._include_import(module.imports[name], name, module)
            elif name in module.definitions and name not in self.definitions:
                self.definitions[name] = ""
                node = bare(module.definitions[name])
                self._include(names_in(node) - {name}, module)
                # after its dependencies, which classes and constants need at once
                self.definitions.pop(name)
                self.definitions[name] = ast.unparse(node)

    def _include_import(self, node: Import, name: str, module: Module) -> None:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            SUITE_PACKAGE
        ):
            self._include({node.names[0].name}, read_module(node.module or ""))
            return
        self._import(ast.unparse(node), name)

    def _import(self, line: str, name: str) -> None:
        self.imports[name] = line


def _shorten_docstring(node: ast.FunctionDef) -> None:
    """Keep only the first line of a docstring, as `ast` indents the others wrongly."""
    match node.body[0]:
        case ast.Expr(ast.Constant(str(text)) as docstring):
            docstring.value = text.strip().splitlines()[0]


def _resolve(module: Module, name: str) -> tuple[Module, str]:
    """Return the module that defines a name, and its name there."""
    node = module.imports.get(name)
    if isinstance(node, ast.ImportFrom) and node.module:
        return _resolve(read_module(node.module), node.names[0].name)
    return module, name


def _target(module: Module, name: str) -> str:
    return f"{module.name}:{name}"


def _imported(value: ast.expr) -> str | None:
    """Return the module that ``import_module("name")`` imports."""
    match value:
        case ast.Call(ast.Name("import_module"), [ast.Constant(str(name))]):
            return name
    return None


def _module_named_by(value: ast.expr, module: Module) -> str | None:
    """Return the module that an expression evaluates to, or None."""
    match value:
        case ast.Name(name):
            return module_imported_by(module.imports.get(name))
        case ast.Attribute(ast.expr() as base, name):
            package = _module_named_by(base, module)
            return package and f"{package}.{name}"
    return _imported(value)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


# From a method to a line


def _inlined(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements without assertions and annotations.

    While the first statement assigns a name that is used once, the value replaces the
    name.
    """
    kept = [bare(statement) for statement in statements]
    kept = [statement for statement in kept if not isinstance(statement, ast.Assert)]
    while len(kept) > 1:
        match kept[0]:
            case ast.Assign([ast.Name(name)], value) if (
                _count_uses(kept[1:], name) == 1
            ):
                filled = _Substitute({name: value})
                kept = [filled.visit(statement) for statement in kept[1:]]
            case _:
                break
    return kept


def _count_uses(statements: list[ast.stmt], name: str) -> int:
    found = itertools.chain.from_iterable(map(ast.walk, statements))
    return sum(isinstance(node, ast.Name) and node.id == name for node in found)


def _can_inline(statement: ast.stmt, given: dict[str, ast.expr]) -> bool:
    """Return whether a statement can replace a call with these arguments.

    A statement cannot if it would evaluate an argument with a call more than once.
    """
    if not isinstance(statement, ast.Return | ast.Expr | ast.Assign):
        return False
    if any(isinstance(n, ast.comprehension | ast.Lambda) for n in ast.walk(statement)):
        return False
    repeated = {name for name in given if _count_uses([statement], name) > 1}
    calls = [n for r in repeated for n in ast.walk(given[r]) if isinstance(n, ast.Call)]
    return all(isinstance(c.func, ast.Name) and c.func.id == LAYOUT for c in calls)


class _Substitute(ast.NodeTransformer):
    """Replaces names by values."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return deepcopy(self.values.get(node.id, node))


class _ReplaceSelf(ast.NodeTransformer):
    """Replaces attributes of ``self`` by their values."""

    def __init__(self, operations: Operations, method: Method) -> None:
        self.operations = operations
        self.method = method

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return self.operations.attribute(node.attr)
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Replace a call of a one-line helper, ``self._dtype(name)``, by its code."""
        match node.func:
            case ast.Attribute(ast.Name("self"), name):
                method = self.operations.methods.get(name)
                written = method and self._helper(method, node)
                if written:
                    return written
            case ast.Attribute(ast.Call(ast.Name("super")), name):
                node.func = self._inherited(name)
        self.generic_visit(node)
        return node

    def _inherited(self, name: str) -> ast.expr:
        overridden = self.method.overridden
        if overridden is None or overridden.node.name != name:
            raise Untranslatable(f"an operation calls super().{name}")
        return self.operations.define(f"inherited_{name}", overridden)

    def _helper(self, method: Method, node: ast.Call) -> ast.expr | None:
        statements = _inlined(method.body)
        given = dict(zip(method.parameters, node.args, strict=False))
        if (
            len(statements) != 1
            or not _can_inline(statements[0], given)
            or node.keywords
        ):
            return None
        filled = _Substitute(given).visit(statements[0])
        if not isinstance(filled, ast.Return) or filled.value is None:
            return None
        found: ast.expr = self.visit(filled.value)
        return found


class _Simplify(ast.NodeTransformer):
    """Simplifies an expression whose values are known, as a programmer would."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Name("getattr"), [value, ast.Constant(str(name))]):
                return ast.Attribute(value, name, ast.Load())
            case ast.Call(ast.Attribute(ast.Call() as made, "reshape"), [shape]):
                return made if _has_shape(made, shape) else node
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        match node.value:
            case ast.Call(ast.Name("Layout"), keywords=fields):
                return {f.arg: f.value for f in fields}.get(node.attr, node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        self.generic_visit(node)
        match node.slice:
            case ast.Tuple([ast.Constant() as only]):
                node.slice = only
        return node


def _has_shape(made: ast.Call, shape: ast.expr) -> bool:
    """Return whether the argument of a call is a list that already has this shape."""
    match made.args, shape:
        case [ast.List(values), *_], ast.Tuple([ast.Constant(int(count))]):
            return len(values) == count and count > 0
    return False


def _simplified(node: Any) -> Any:
    return _Simplify().visit(node)
