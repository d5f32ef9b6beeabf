"""Collects when and where a run took place, for its record.

Scripts in other folders that write records use it as well, so that readers see how old
a record is. The data contains no machine names and no paths.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any


def circumstances() -> dict[str, Any]:
    """Return the time, the versions and the machine of a run."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": version(),
        "commit": commit(),
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "cpus": len(os.sched_getaffinity(0)),
    }


def version() -> str:
    """Return the version of the reference."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("shared-tensor-spec")
    return "unknown"


def commit() -> str:
    """Return the commit that is checked out, or an empty string."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
    ]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return ""
