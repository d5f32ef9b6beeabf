"""How PyTorch departs from the clauses on a CUDA device, and what its programs printed.

Its reports on host memory are of another release than a machine with a device has, so
these deviations are not among those of the pages in ``upstream/``. Three files have
them: the record of ``ci/run_causes.py torch --device``, the report of the suite on that
device, and the expectations, which name the program of each cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clauses.deviations import command, recorded_text, title_of
from clauses.known import FOLDER
from sharedtensor_conformance.report.expectations import (
    REPRODUCERS,
    ExpectationsError,
    load_expectations,
)
from sharedtensor_conformance.report.records import Report
from sphinx.errors import ExtensionError

PROGRAMS = FOLDER / REPRODUCERS / "torch" / "device"


def prepared(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the title, the file, the clauses and the output of each program.

    Raises:
        ExtensionError: a program is not there, or is not the one that was recorded.
    """
    record, judged = content["records"].values()
    root, how = content["backing"].root, command("torch", "device")
    broken = clauses_by_program(judged, root)
    programs = []
    for name, printed in record["programs"].items():
        file = PROGRAMS / f"{name}.py"
        title = title_of(recorded_text(root, file, printed, how))
        shown = file.as_posix()
        programs.append((title, shown, broken.get(shown, []), printed["output"]))
    return {"programs": programs}


def clauses_by_program(judged: Report, root: Path) -> dict[str, list[str]]:
    """Return the clauses that failed for the cause of each program, in their order.

    Raises:
        ExtensionError: the expectations cannot be read.
    """
    version = judged.run.implementation.version
    try:
        known = load_expectations(root / FOLDER / "torch.toml").applying_to(version)
    except ExpectationsError as error:
        raise ExtensionError(str(error)) from error
    programs: dict[str, dict[str, None]] = {}
    for entry in known:
        file = (FOLDER / REPRODUCERS / entry.reproducer).as_posix()
        for case in judged.cases:
            about = entry.test == case.test or entry.clause in case.clauses
            if about and case.expected and case.cause == entry.cause:
                programs.setdefault(file, {}).update(dict.fromkeys(case.clauses))
    return {file: list(clauses) for file, clauses in programs.items()}
