"""Finds the clauses that code cites, by reading the code and never importing it.

Three kinds of place cite a clause: a test through ``@clause("ID")``, a mutant through
``@mutant("name", "ID")``, and the reference in the docstring of what embodies it.
Reading the syntax tree keeps the site independent of what can be imported where it is
built, and gives the line to link to.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CLAUSE_ID = re.compile(r"\b[A-Z]+-\d+\b")
CITING_SENTENCE = re.compile(r"\s*\bClauses? [A-Z]+-\d+[^.]*\.")


@dataclass(frozen=True)
class Citation:
    """One place in the code that cites clauses."""

    name: str
    clauses: tuple[str, ...]
    sentence: str
    file: str
    line: int


@dataclass(frozen=True)
class Evidence:
    """All citations of a repository, by the kind of place."""

    tests: list[Citation]
    code: list[Citation]
    mutants: list[Citation]

    def everything(self) -> list[Citation]:
        """Return the citations of all kinds."""
        return [*self.tests, *self.code, *self.mutants]


def citing(citations: Iterable[Citation], clause: str) -> list[Citation]:
    """Return those of `citations` that cite `clause`."""
    return [citation for citation in citations if clause in citation.clauses]


def tests(root: Path, pattern: str) -> list[Citation]:
    """Return the tests that are decorated with ``@clause("ID", ...)``."""
    return [
        Citation(function.name, ids, sentence_of(function.name), file, function.lineno)
        for file, tree in syntax_trees(root, pattern)
        for function in functions_in(tree)
        if (ids := arguments_of(function, "clause"))
    ]


def mutants(root: Path, pattern: str) -> list[Citation]:
    """Return the mutants that are decorated with ``@mutant("name", "ID", ...)``."""
    return [
        Citation(found[0], found[1:], first_sentence(item), file, item.lineno)
        for file, tree in syntax_trees(root, pattern)
        for item in functions_in(tree)
        if (found := arguments_of(item, "mutant"))
    ]


def code(root: Path, pattern: str) -> list[Citation]:
    """Return the modules, classes and functions whose docstring cites a clause."""
    return [
        Citation(name, ids, first_sentence(item), file, getattr(item, "lineno", 1))
        for file, tree in syntax_trees(root, pattern)
        for name, item in documented_in(tree, module_of(file))
        if (ids := tuple(dict.fromkeys(CLAUSE_ID.findall(ast.get_docstring(item)))))
    ]


def sentence_of(name: str) -> str:
    """Return the name of a test as the sentence that it is."""
    return name.removeprefix("test_").replace("_", " ")


def first_sentence(item: ast.AST) -> str:
    """Return the first paragraph of a docstring, without the clauses it ends on."""
    paragraph = (ast.get_docstring(item) or "").partition("\n\n")[0]
    return CITING_SENTENCE.sub("", " ".join(paragraph.split()))


def module_of(file: str) -> str:
    """Return the dotted name of a module, below the folder of its package."""
    folder, *parts = Path(file).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or folder


def arguments_of(function: ast.AST, decorator: str) -> tuple[str, ...]:
    """Return the literal strings that `decorator` of `function` was called with."""
    return tuple(
        argument.value
        for call in function.decorator_list
        if isinstance(call, ast.Call) and name_of(call.func) == decorator
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    )


def name_of(node: ast.AST) -> str:
    """Return the last part of a dotted name."""
    return getattr(node, "attr", getattr(node, "id", ""))


def functions_in(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield functions and classes, in the order of the source."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    yield from sorted(found, key=lambda node: node.lineno)


def documented_in(tree: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield everything in `tree` that has a docstring, with its qualified name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if ast.get_docstring(tree):
        yield name, tree
    for node in tree.body:
        if isinstance(node, kinds):
            yield from documented_in(node, f"{name}.{node.name}")


def syntax_trees(root: Path, pattern: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the files under `root` that match, by their path from there."""
    for path in sorted(root.glob(pattern)):
        source = path.read_text(encoding="utf-8")
        yield path.relative_to(root).as_posix(), ast.parse(source, str(path))


def fingerprint(root: Path, patterns: Iterable[str]) -> str:
    """Return a digest of all files under `root` that match one of `patterns`."""
    digest = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()
