"""The adapter over the standard library, whose operations note that they are imported.

Each process that imports this module writes its command line into the sandbox. The
import of `hanging` does not end in the template.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

from sharedtensor_conformance.adapters import stdlib

with Path(os.environ["SANDBOX"], "imports").open("a") as file:
    print(*sys.orig_argv, file=file)

preloaded = replace(
    stdlib.conformance_adapter,
    name="preloaded",
    operations=f"{__name__}:Operations",
    start_methods=("fork",),
    preload=True,
)
hanging = replace(preloaded, name="hanging", operations=f"{__name__}:Hanging")


class Operations(stdlib.StdlibOperations):
    """Those of the adapter."""


class Hanging(Operations):
    """Those of an adapter whose import hangs where it is to be forked from."""

    def __init__(self) -> None:
        if "--template" in sys.orig_argv:
            Path(os.environ["SANDBOX"], "importing").touch()
            threading.Event().wait()
        super().__init__()
