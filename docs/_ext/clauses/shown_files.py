"""Reads the files that are shown, and programs that stand once for several."""

from __future__ import annotations

from pathlib import Path

from sharedtensor_conformance.expectations.programs import has_program, program_text

from clauses.known import CAUSES


def is_shown(root: Path, file: str) -> bool:
    """Return whether there is such a file, or a program that stands elsewhere."""
    return (root / file).is_file() or _is_program(root, file)


def text_of(root: Path, file: str) -> str:
    """Return the text of a file that is shown."""
    if _is_program(root, file):
        return program_text(root / CAUSES, _program_name(file))
    return (root / file).read_text(encoding="utf-8")


def _is_program(root: Path, file: str) -> bool:
    is_inside = file.startswith(f"{CAUSES.as_posix()}/")
    return is_inside and has_program(root / CAUSES, _program_name(file))


def _program_name(file: str) -> str:
    return file.removeprefix(f"{CAUSES.as_posix()}/")
