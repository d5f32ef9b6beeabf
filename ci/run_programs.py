"""Writes the known deviations of an implementation as programs, and records which show.

    python ci/run_programs.py docs/reports/torch.jsonl docs/reports/programs/torch.json

For each test and each cause one failing case of the report becomes a program, by
``shared-tensor-spec reproduce``, and is executed. The record says which programs show
their failure, how long they are, and why the others do not or are none. A deviation
that was recorded as shown, and shows no more, fails the run. With ``--missing`` only
those are written and executed of which the record has no row yet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sharedtensor_conformance.report.records import Case, Report, read_report
from sharedtensor_conformance.report.verdicts import Verdict

COMMAND = (sys.executable, "-m", "sharedtensor_conformance.cli", "reproduce")
FAILED = (Verdict.FAIL, Verdict.CRASH, Verdict.HANG)
LIMIT = 900

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and execute the programs; return 1 where one has stopped to show."""
    parser = argparse.ArgumentParser(description="Write deviations as programs.")
    parser.add_argument("report", help="of a run of all cases")
    parser.add_argument("record", type=Path, help="what was found, as JSON")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with it")
    parser.add_argument(
        "--missing", action="store_true", help="keep the rows there are"
    )
    given = parser.parse_args(arguments)
    report = read_report(given.report)
    cases = [case for case in chosen(report) if given.only in case.id]
    earlier = read(given.record)
    kept = rows_of(earlier, report) if given.missing else {}

    def found_of(case: Case) -> Row:
        return kept.get((case.id, str(case.verdict))) or row_of(report, case)

    with ThreadPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(found_of, cases))
    before = {row["case"] for row in earlier["programs"] if row["shown"]}
    if not given.only:
        write(given.record, report, rows)
    print(f"{sum(row['shown'] for row in rows)} of {len(rows)} programs show it.")
    gone = [row for row in rows if not row["shown"] and row["case"] in before]
    for row in gone:
        print(f"{row['case']}: was shown, and is not: {row['said']}")
    return 1 if gone else 0


def chosen(report: Report) -> list[Case]:
    """Return a failing case for each test, verdict and cause.

    The first by its id: in which order cases end, differs from run to run.
    """
    found: dict[tuple[str, str, str], Case] = {}
    for case in sorted(report.cases, key=lambda case: case.id):
        if case.verdict in FAILED:
            found.setdefault((case.test, case.verdict, case.cause), case)
    return list(found.values())


def row_of(report: Report, case: Case) -> Row:
    """Let a case become a program, and return what came of it."""
    with tempfile.TemporaryDirectory(prefix="sts-") as folder:
        file = Path(folder, "program.py")
        command = [*COMMAND, report.source, case.id, f"--output={file}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            return row(case, False, f"no answer within {LIMIT} seconds")
        text = file.read_text(encoding="utf-8") if file.exists() else ""
    said = (done.stdout + done.stderr).strip().splitlines() or [""]
    reason = said[-1].removeprefix(f"{case.id}: no program: ").replace(str(file), "it")
    found = row(case, done.returncode == 0, reason, text.count("\n"))
    print(f"{'shown' if found['shown'] else 'NOT'}: {case.id}: {reason}", flush=True)
    return found


def row(case: Case, shown: bool, said: str, lines: int = 0) -> Row:
    """Return the line of the record for a case."""
    return {
        "case": case.id,
        "clauses": list(case.clauses),
        "verdict": str(case.verdict),
        "shown": shown,
        "lines": lines,
        "said": "" if shown else said,
    }


def read(record: Path) -> Row:
    """Return what an earlier record says; one that is not there has no rows."""
    if not record.exists():
        return {"programs": []}
    found: Row = json.loads(record.read_text(encoding="utf-8"))
    return found


def rows_of(earlier: Row, report: Report) -> dict[tuple[str, str], Row]:
    """Return the rows of a record by case and verdict; none of another version."""
    if earlier.get("version") != report.run.implementation.version:
        return {}
    return {(row["case"], row["verdict"]): row for row in earlier["programs"]}


def write(record: Path, report: Report, rows: list[Row]) -> None:
    """Write what was found."""
    subject = report.run.implementation
    data = {
        "implementation": subject.name,
        "version": subject.version,
        "python": report.run.machine.python,
        "programs": rows,
    }
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
