"""Implements `run_conformance`: runs the suite from a test of another project."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def suite_command(*options: str) -> list[str]:
    """Return the command line that runs the suite with these options."""
    suite = ("-m", "pytest", "--pyargs", "sharedtensor_conformance")
    return [sys.executable, *suite, *options]


def run(implementation: str, *options: str | Sequence[str]) -> None:
    """Run the suite in a child process; see `run_conformance` for the arguments."""
    flat = [o for option in options for o in _listed(option)]
    done = subprocess.run(
        suite_command(f"--impl={implementation}", *flat),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode == 4:
        raise ValueError(done.stderr.strip() or done.stdout.strip())
    if done.returncode != 0:
        raise AssertionError(f"{implementation} does not conform:\n{done.stdout}")


def _listed(option: str | Sequence[str]) -> list[str]:
    return [option] if isinstance(option, str) else list(option)
