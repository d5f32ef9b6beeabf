"""Calls the command ``shared-tensor-spec``, here or in a process of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

from sharedtensor_conformance.cli import main

COMMAND = [sys.executable, "-m", "sharedtensor_conformance.cli"]
DEADLINE = 120.0


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Return what the command answers; called here, it need not import anything."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as end:  # argparse has said all
            status = end.code
    return subprocess.CompletedProcess(
        arguments, status, out.getvalue(), err.getvalue()
    )


def call_outside(
    *arguments: object, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Return what the command answers in a process of its own."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
