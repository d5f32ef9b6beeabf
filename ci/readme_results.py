"""Writes what follows from the committed reports: a table, and a record of changes.

    python ci/readme_results.py

The table of results is that of the README. The record has what was recorded when, and
which clauses flipped: the page "Changes" and its feed show it. The program uses the
code of the site to count, so it needs the extra ``docs``. Run it again after a report
was recorded; `tests/docs/test_readme.py` and `tests/docs/test_changes_page.py` compare.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.report.needs import reason
from sharedtensor_conformance.report.scope import plural
from sharedtensor_conformance.report.verdicts import Need

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs" / "_ext"))

from clauses.outcomes import Outcome, counted
from clauses.reports import Column, columns, read_all
from records import recordings

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN = "<!-- The table is written by ci/readme_results.py. -->\n"
END = "<!-- end of the table -->\n"
CONTROLS = ("copy", "numpy-copy")
"""The controls, which are judged to show that the suite can fail."""

HEAD = (
    *("judged", "version", "clauses held", "broken", "breaks its own documentation"),
    *("differs from this specification", "not judged", "day of the run"),
)
FIRST = ("torch", "torch-cuda", "paddle", "mindspore", "tensordict")
EXPECTATIONS = "conformance/sharedtensor_conformance/expectations"


def table() -> str:
    """Return the table, with sentences about simulated devices, as Markdown."""
    found = [
        column
        for column in columns(read_all(ROOT, FIRST))
        if column.name not in CONTROLS
    ]
    found.sort(key=lambda column: bool(column.apart))
    lines = [HEAD, ("---", "---", *["--:"] * 5, "---"), *map(row, found)]
    shown = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    notes = [note for one in found for note in (simulated(one), not_here(one)) if note]
    return shown + "".join(f"\n{note}\n" for note in notes)


def row(column: Column) -> tuple[str, ...]:
    """Return the row of an implementation; its broken clauses link to the causes."""
    counts = counted(column, load_clauses().values())
    broken = sum(count for outcome, count in counts.items() if outcome.breaks)
    others = sum(count for outcome, count in counts.items() if not outcome.judged)
    causes = f"{EXPECTATIONS}/{column.reports[0].run.selection.expectations}"
    linked = f"[{broken}]({causes})" if (ROOT / causes).is_file() else str(broken)
    kinds = (Outcome.BREAKS_DOCS, Outcome.DIFFERS)
    examined = not counts.get(Outcome.BROKEN)
    return (
        column.name,
        column.version,
        str(counts.get(Outcome.HELD, 0)),
        linked,
        *(str(counts.get(kind, 0)) if examined else "?" for kind in kinds),
        str(others),
        column.day,
    )


def simulated(column: Column) -> str:
    """Return a sentence about clauses that were judged on a simulated device."""
    devices = [one.stand_ins for one in column.judgements.values()]
    count = sum(map(bool, devices))
    names = " or ".join(sorted({name for found in devices for name in found}))
    if not count:
        return ""
    return (
        f"Judged on a {names} device, which never counts as CUDA: "
        f"{plural(count, 'clause')} of `{column.name}`."
    )


def not_here(column: Column) -> str:
    """Return a sentence about clauses that the machine did not permit to judge."""
    needed = [one.needs for one in column.judgements.values() if one.needs]
    if not needed:
        return ""
    needs = [need for need in Need if any(need in needs for needs in needed)]
    return (
        f"Not judged: {plural(len(needed), 'clause')} of `{column.name}`, since "
        f"{reason(needs)}."
    )


def parts() -> tuple[str, str]:
    """Return the README before the table and after it."""
    before, begin, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"README.md has no place for the table, from {BEGIN} to {END}")
    return before, after


def readme() -> str:
    """Return the README with the current table."""
    before, after = parts()
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
    recordings.update(ROOT)
