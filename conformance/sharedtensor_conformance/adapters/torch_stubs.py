"""Reads which names the installed PyTorch declares, because earlier releases lack some.

The suite reads the claims of an adapter without importing PyTorch. So the adapter reads
the stubs, the files in which a release declares its names for type checkers. A name
that is declared and does not work stays claimed, and is reported as a deviation.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

LATER = {
    "uint16": ("_C/__init__.pyi", "uint16: dtype"),
    "uint32": ("_C/__init__.pyi", "uint32: dtype"),
    "uint64": ("_C/__init__.pyi", "uint64: dtype"),
    "buffer": ("nn/parameter.pyi", "class Buffer("),
}
"""What earlier releases lack: the stub that declares it, and how its line begins."""


def folder() -> Path | None:
    """Return where the installed PyTorch is, without importing it; None: nowhere."""
    spec = find_spec("torch")
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


def declared(names: Iterable[str], torch: Path | None) -> tuple[str, ...]:
    """Return those of the dtypes or kinds `names` that a PyTorch declares.

    Args:
        names: what the newest release has; whatever is not in `LATER` is kept.
        torch: the folder of the package; None keeps all names, so that what is claimed
            can be read where there is no PyTorch.
    """
    return tuple(name for name in names if torch is None or _has(torch, name))


def _has(torch: Path, name: str) -> bool:
    if name not in LATER:
        return True
    stub, beginning = LATER[name]
    try:
        lines = (torch / stub).read_text(encoding="utf-8").splitlines()
    except OSError:
        return True  # a PyTorch without stubs says nothing of what it lacks
    return any(line.startswith(beginning) for line in lines)
