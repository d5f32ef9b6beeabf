"""How PyTorch departs from the clauses on a CUDA device, and what its programs printed.

Its reports on host memory are of another release than a machine with a device has, so
these deviations are not among those of the pages in ``upstream/``. The record of
``ci/run_causes.py torch --device`` has what the programs printed; the report of the
suite on that device says which clauses failed for their causes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clauses.deviations import clauses_of, command, recorded_text, title_of
from clauses.known import CAUSES
from clauses.reports import ON_A_DEVICE

PROGRAMS = CAUSES / "torch" / "device"


def prepared(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the title, the file, the clauses and the output of each program.

    Raises:
        ExtensionError: a program is not there, or is not the one that was recorded.
    """
    backing, how = content["backing"], command("torch", "device")
    (judged,) = (one for one in backing.reports if one.place == ON_A_DEVICE)
    programs = []
    for name, printed in content["record"]["programs"].items():
        file = PROGRAMS / f"{name}.py"
        title = title_of(recorded_text(backing.root, file, printed, how))
        shown = file.as_posix()
        broken = clauses_of(judged.judgements, shown)
        programs.append((title, shown, broken, printed["output"]))
    return {"programs": programs}
