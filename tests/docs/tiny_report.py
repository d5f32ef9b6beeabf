"""Reports on the tiny project."""

import re
from contextlib import closing
from dataclasses import replace

import tiny_project
from sharedtensor_conformance.clauses import parse_chapter
from sharedtensor_conformance.report.judge import judge
from sharedtensor_conformance.report.records import (
    Case,
    Machine,
    ReportWriter,
    Run,
    Selection,
    SpecRecord,
    Subject,
)

CLAUSES = {one.id: one for one in parse_chapter(tiny_project.CHAPTER, "tiny.md")}
TEST = "test_tiny.py::test_receiver_sees_the_write"


def text_of(html: str) -> str:
    """Return the words of a page, with single spaces."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def case_of(verdict, cause="It keeps a copy.", needs=None):
    """Return a case about the first clause."""
    return Case(
        id=f"{TEST}[fd-spawn]",
        test=TEST,
        clauses=("TINY-1",),
        verdict=verdict,
        expected=True,
        cause=cause if verdict.broken else "",
        evidence="expected 40, got 2" if verdict.broken else "",
        needs=needs,
    )


def write_report(root, name, *cases, hashes=None, file="", started="01", **selected):
    """Write a report of cases; `hashes` are those of the text that was judged."""
    strategies = "file_descriptor", "file_system"
    parts = ("core",), strategies, ("spawn", "fork"), ("float32",), ("queue",), ("cpu",)
    run = Run(
        implementation=Subject(name, "7.5", *parts),
        suite="0.1.0",
        spec=SpecRecord.of(CLAUSES),
        machine=Machine("3.11", "linux", "6", 2, False, False),
        selection=Selection(
            **{"full": True, "options": (f"--impl={name}",)} | selected
        ),
        planned=len(cases),
        started=f"2026-01-{started}T00:00:00Z",
    )
    judged = {id: CLAUSES[id] for case in cases for id in case.clauses}
    summary = judge(run, cases, judged, stale=())
    if hashes:
        run = replace(run, spec=replace(run.spec, hashes=hashes))
    path = root / "docs/reports" / (file or f"{name}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(ReportWriter(path)) as writer:
        for line in (run, *cases, summary):
            writer.write(line)
