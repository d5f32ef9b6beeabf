"""Lays out packages in which some files are changed, and runs the suite over them.

Only the changed files are copies. What lies beside them and beside their folders is
linked, so nothing is copied or compiled that a fault does not touch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from sharedtensor_conformance import bounded_run
from sharedtensor_conformance.api import suite_command
from sharedtensor_conformance.mutants.run import FIRST_FAILURE

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "conformance" / "sharedtensor_conformance"


def uncover(source: Path, folder: Path, target: Path) -> None:
    """Copy one file below `source` to the same place below `folder`.

    Caches are not linked: a module's own cache then says that it was imported from
    here.
    """
    for depth in range(1, len(target.parts)):
        place = Path(*target.parts[:depth])
        if (folder / place).is_symlink():  # it lies beside a file that was copied
            (folder / place).unlink()
        (folder / place).mkdir(exist_ok=True)
        for entry in sorted((source / place).iterdir()):
            link = folder / place / entry.name
            if entry.name != "__pycache__" and not os.path.lexists(link):
                link.symlink_to(entry)
    (folder / target).unlink()
    shutil.copyfile(source / target, folder / target)


def run_suite(folder: Path, options: Sequence[str], limit: float) -> bounded_run.Result:
    """Run the suite over the packages in `folder` until something unexpected fails.

    A broken SHOULD is a failure, too. The report is ``report.jsonl`` in the folder.
    """
    link = folder / SUITE.name
    if not link.exists():
        link.symlink_to(SUITE)
    report = f"--report={folder / 'report.jsonl'}"
    command = suite_command(*FIRST_FAILURE, "-x", "--strict", report, *options)
    environment = os.environ | {"PYTHONPATH": str(folder)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return bounded_run.run(command, limit, cwd=folder, env=environment)
