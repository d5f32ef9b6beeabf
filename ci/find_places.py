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
    scopes: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    for name in function.split("."):
        inside = (node for scope in scopes for node in ast.walk(scope))
        scopes = [
            node
            for node in inside
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        ]
    return next((node.lineno for node in scopes), None)


def file_of(name: str) -> Path:
    """Return the path of a name like ``Lib/queue.py`` or ``torch/storage.py``."""
    if name.startswith(STANDARD):
        return Path(sysconfig.get_path("stdlib"), name.removeprefix(STANDARD))
    there = (Path(folder, name) for folder in sys.path)
    return next((file for file in there if file.is_file()), Path(name))


if __name__ == "__main__":
    main()
