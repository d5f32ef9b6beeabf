"""Makes text from an implementation safe to show.

An exception or output of foreign code may be long, may fail to convert to text, and may
contain control characters for the terminal.
"""

from __future__ import annotations

LINE = 500
"""How many characters of a line of somebody else's are shown."""


def printable(text: str) -> str:
    """Return `text` with what no terminal shows spelt out; lines stay lines."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1]
        for char in text
    )


def first_line(error: BaseException) -> str:
    """Return an exception's type and the first line of its message, in one line."""
    try:
        lines = str(error).strip().splitlines()
    except Exception as another:  # its `__str__` is somebody else's too
        lines = [f"(no text: {type(another).__name__})"]
    said = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
    return printable(said[:LINE])
