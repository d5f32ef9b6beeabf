"""Writes the known deviations of an implementation as programs, and records which show.

    python ci/run_programs.py docs/reports/torch.jsonl docs/reports/programs/torch.json

For each test and each cause, ``shared-tensor-spec reproduce`` writes one failing case
of the report as a program and executes it. The record has which programs show their
failure, their lengths, and the reasons for the others. If a deviation was recorded as
shown and does not show any more, the script fails. With ``--missing``, only cases
without a row in the record are written and executed.
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
    """Write and execute the programs; return 1 if one no longer shows its failure."""
    parser = argparse.ArgumentParser(
        description="Write the known deviations of an implementation as programs, and "
        "record which of them show.",
        epilog="Exit status: 0, or 1 if a deviation that was shown no longer shows.",
    )
    parser.add_argument("report", help="the report of a run with --all-cases")
    parser.add_argument("record", type=Path, help="the record to read and write (JSON)")
    parser.add_argument("--jobs", type=int, default=2, help="parallel programs")
    parser.add_argument("--only", default="", metavar="TEXT", help="only these cases")
    parser.add_argument("--missing", action="store_true", help="keep existing rows")
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

    It is the first by id, because the order of cases differs between runs.
    """
    found: dict[tuple[str, str, str], Case] = {}
    for case in sorted(report.cases, key=lambda case: case.id):
        if case.verdict in FAILED:
            found.setdefault((case.test, case.verdict, case.cause), case)
    return list(found.values())


def row_of(report: Report, case: Case) -> Row:
    """Write a case as a program, execute it, and return its row."""
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
    found = row(case, done.returncode == 0, reason, lines_of_steps(text))
    print(f"{'shown' if found['shown'] else 'NOT'}: {case.id}: {reason}", flush=True)
    return found


def lines_of_steps(program: str) -> int:
    """Return how many lines the steps of a program have, which are what one reads."""
    steps, _, _ = program.partition("def steps():\n")[2].partition("\n\n\n")
    return len(steps.splitlines())


def row(case: Case, shown: bool, said: str, lines: int = 0) -> Row:
    """Return the row of the record for a case."""
    return {
        "case": case.id,
        "clauses": list(case.clauses),
        "verdict": str(case.verdict),
        "shown": shown,
        "lines": lines,
        "said": "" if shown else said,
    }


def read(record: Path) -> Row:
    """Return an earlier record; without rows if there is none."""
    if not record.exists():
        return {"programs": []}
    found: Row = json.loads(record.read_text(encoding="utf-8"))
    return found


def rows_of(earlier: Row, report: Report) -> dict[tuple[str, str], Row]:
    """Return the rows of a record by case and verdict, if it is of the same version."""
    if earlier.get("version") != report.run.implementation.version:
        return {}
    return {(row["case"], row["verdict"]): row for row in earlier["programs"]}


def write(record: Path, report: Report, rows: list[Row]) -> None:
    """Write the record."""
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
