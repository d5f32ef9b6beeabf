"""Helpers for adapters that make forged messages: pickles and files with false data."""

from __future__ import annotations

import os
import tempfile
from typing import Any


class Reduced:
    """Pickles as it was told to."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Return what it was told."""
        return self.reduced


def other_file() -> str:
    """Return the path of a file of this user that is no segment."""
    descriptor, path = tempfile.mkstemp()
    os.truncate(descriptor, 1 << 20)
    os.close(descriptor)
    return path
