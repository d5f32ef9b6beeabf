"""Says where in an adapter an import failed.

The traceback of a failed import begins in the suite, and may end deep in the
implementation. The author of the adapter needs the line between the two.
"""

from __future__ import annotations

import os
import traceback
from types import FrameType

SUITE = "sharedtensor_conformance."
ADAPTERS = f"{SUITE}adapters."
LOADER = f"{ADAPTERS}loader"
MACHINERY = ("importlib", "__main__")
"""The modules that import an adapter, besides those of the suite."""


def place_of(error: BaseException) -> str:
    """Return the last place in the adapter on the way to `error`, in parentheses.

    That is a line of the adapter's module, or of a module below it, and the name of the
    module that this line was importing. It is empty if no line of the adapter was
    executed.
    """
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _is_machinery(_module(frame))
    ]
    if not frames:
        return ""
    adapter = _module(frames[0][0])
    own = [at for at, (frame, _) in enumerate(frames) if _is_below(frame, adapter)]
    frame, line = frames[own[-1]]
    importing = [
        _module(below)
        for below, _ in frames[own[-1] + 1 :]
        if below.f_code.co_name == "<module>"
    ]
    doing = f", while importing {importing[0]}" if importing else ""
    return f" ({_shown(frame.f_code.co_filename)}, line {line}{doing})"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_machinery(module: str) -> bool:
    """Return whether a module is one of those that import adapters."""
    is_suite = module.startswith(SUITE) and not module.startswith(ADAPTERS)
    is_importer = module in MACHINERY or module.startswith("importlib.")
    return is_suite or is_importer or module == LOADER


def _is_below(frame: FrameType, module: str) -> bool:
    return f"{_module(frame)}.".startswith(f"{module}.")


def _shown(file: str) -> str:
    """Return the path of a file, without the current folder if it is in that."""
    return file.removeprefix(os.path.join(os.getcwd(), ""))
