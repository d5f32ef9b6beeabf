"""Finds the lines on which functions begin, in files of the running Python.

    echo '["Lib/queue.py: Queue.put"]' | python ci/find_places.py

Run it with the interpreter whose packages are meant; it needs nothing else. A file in
``Lib/`` belongs to Python itself. The result for a missing place is ``null``.
"""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

STANDARD = "Lib/"


def main() -> None:
    """Read places and print the line of each, both as JSON."""
    places = json.load(sys.stdin)
    json.dump({place: line_of(place) for place in places}, sys.stdout)


def line_of(place: str) -> int | None:
    """Return the line on which the function of a place begins, or None."""
    name, _, function = place.partition(": ")
    file = file_of(name)
    if not file.is_file():
        return None
    found: ast.AST | None = ast.parse(file.read_text(encoding="utf-8"))
    for part in function.split("."):
        found = found and member(found, part)
    return getattr(found, "lineno", None)


def file_of(name: str) -> Path:
    """Return the path of a name like ``Lib/queue.py`` or ``torch/storage.py``."""
    if name.startswith(STANDARD):
        return Path(sysconfig.get_path("stdlib"), name.removeprefix(STANDARD))
    there = (Path(folder, name) for folder in sys.path)
    return next((file for file in there if file.is_file()), Path(name))


def member(scope: ast.AST, name: str) -> ast.AST | None:
    """Return the function or class with this name in a module or a class."""
    return next((node for node in members(scope) if node.name == name), None)


def members(scope: ast.AST) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield the functions and classes in a scope, including conditional ones."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node
        else:
            yield from members(node)


if __name__ == "__main__":
    main()
