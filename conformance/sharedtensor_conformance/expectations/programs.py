"""Finds the programs in the folder ``causes``, by names such as ``torch/lost.py``.

Some libraries have copied code of another one, with its faults. Where the program that
shows a fault differs in names alone, it stands once, in the folder of one library. The
file of causes of the other library lists the program in its table ``copied``:

    [copied]
    from = "torch"

    [copied.words]
    "torch.ones(2)" = "paddle.ones([2])"
    "torch" = "paddle"

    [copied.programs]
    lost = { "LIMIT = 30" = "LIMIT = 60" }

The program ``paddle/lost.py`` is ``torch/lost.py`` with these words replaced one after
the other, its own ones before those of all programs. So it is plain code of Paddle.

This module needs the standard library alone, as the script that runs the programs does.
"""

from __future__ import annotations

import ast
import hashlib
import tomllib
from pathlib import Path
from typing import Any


def program_names(causes: Path, library: str) -> list[str]:
    """Return the names of the programs of a library, in the folder `causes`."""
    files = (causes / library).rglob("*.py")
    copied = _copied(causes, library).get("programs", {})
    names = {file.relative_to(causes).as_posix() for file in files}
    return sorted(names | {f"{library}/{name}.py" for name in copied})


def has_program(causes: Path, name: str) -> bool:
    """Return whether there is a program of this name."""
    return (causes / name).is_file() or _own_words(causes, name) is not None


def program_text(causes: Path, name: str) -> str:
    """Return the text of a program.

    Raises:
        FileNotFoundError: there is no such program.
    """
    file = causes / name
    if file.is_file():
        return file.read_text(encoding="utf-8")
    own = _own_words(causes, name)
    if own is None:
        raise FileNotFoundError(f"there is no program {name!r} in {causes}")
    library, _, program = name.partition("/")
    copied = _copied(causes, library)
    text = program_text(causes, f"{copied['from']}/{program}")
    for words in (own, copied["words"]):
        for word, replacement in words.items():
            text = text.replace(word, replacement)
    return text


def code_hash(text: str) -> str:
    """Return the hash of a program without the text of its docstring.

    A record says which code has printed what, and stays true when the docstring is
    reworded. The lines of the docstring count: a traceback has the numbers of lines.
    """
    lines = text.splitlines()
    tree = ast.parse(text)
    if ast.get_docstring(tree) is not None:
        first, last = tree.body[0].lineno, tree.body[0].end_lineno or 0
        lines[first - 1 : last] = [""] * (last - first + 1)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _own_words(causes: Path, name: str) -> dict[str, str] | None:
    """Return the words of one copied program alone; None if it is not a copied one."""
    library, _, program = name.partition("/")
    programs = _copied(causes, library).get("programs", {})
    words: dict[str, str] | None = programs.get(program.removesuffix(".py"))
    return words


def _copied(causes: Path, library: str) -> dict[str, Any]:
    file = causes / f"{library}.toml"
    if not file.is_file():
        return {}
    found = tomllib.loads(file.read_text(encoding="utf-8"))
    copied: dict[str, Any] = found.get("copied", {})
    return copied
