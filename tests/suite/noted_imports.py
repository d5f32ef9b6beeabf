"""The adapter over the standard library, whose operations note that they are imported.

Each process that imports this module writes its command line into the sandbox.
"""

from __future__ import annotations

import os
import sys
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


class Operations(stdlib.StdlibOperations):
    """Those of the adapter."""
