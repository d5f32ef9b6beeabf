"""A report on the tiny project: one case, about its first clause."""

from dataclasses import replace
from pathlib import Path

from sharedtensor_conformance.report.records import (
    Case,
    ClauseResult,
    Machine,
    ReportWriter,
    Run,
    Selection,
    SpecRecord,
    Subject,
    Summary,
)
from sharedtensor_conformance.report.verdicts import Need, Verdict


def write_report(
    root: Path,
    name: str,
    verdict: Verdict,
    hashes: dict[str, str],
    cause: str = "It keeps a copy.",
    expectations: str | None = None,
    needs: Need | None = None,
):
    case = Case(
        id="test_tiny.py::test_receiver_sees_the_write[fd-spawn]",
        test="test_tiny.py::test_receiver_sees_the_write",
        clauses=("TINY-1",),
        verdict=verdict,
        cause=cause if verdict.broken else "",
        evidence="expected 40, got 2" if verdict.broken else "",
        checks=1,
        remote_calls=1,
        needs=needs,
    )
    of_case = {verdict.value: 1}
    result = ClauseResult(verdict, "MUST", "core", True, ("cpu",), of_case)
    result = replace(result, needs=(needs,) if needs else ())
    parts = ("core",), ("default",), ("spawn",), ("float32",), ("queue",), ("cpu",)
    run = Run(
        implementation=Subject(name, "7.5", *parts),
        suite="0.1.0",
        spec=SpecRecord("0.1.0", hashes),
        machine=Machine("3.11", "linux", "6", 2, False, False),
        selection=Selection(True, (f"--impl={name}",), expectations=expectations),
        planned=1,
        started="2026-01-01T00:00:00Z",
    )
    summary = Summary(
        cases=1,
        verdicts={verdict.value: 1},
        clauses={"TINY-1": result},
        stale=(),
        conforms=not verdict.broken,
        exit_status=0,
        complete=True,
        finished="2026-01-01T00:00:01Z",
        seconds=1.0,
    )
    with ReportWriter(root / "docs" / "reports" / f"{name}.jsonl") as writer:
        for line in (run, case, summary):
            writer.write(line)
