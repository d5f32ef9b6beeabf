"""Prints a command of the README: ``main`` or ``test``.

CI runs the printed command, so that the README cannot become outdated.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def command(kind: str) -> str:
    """Return the shell line under ``**Main command**`` or ``**Test command**``."""
    marker = rf"\*\*{kind.capitalize()} command\*\*.*?```\w*\n(?P<line>[^\n]+)\n```"
    found = re.search(marker, README.read_text(encoding="utf-8"), re.DOTALL)
    if not found:
        sys.exit(f"README.md has no {kind} command in a fenced block of one line")
    return found["line"].removeprefix("$ ")


if __name__ == "__main__":
    print(command(sys.argv[1]))
