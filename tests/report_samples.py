"""Small reports for the tests of the report tools, made line by line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.report.judge import judge
from sharedtensor_conformance.report.records import (
    Case,
    Machine,
    Report,
    Run,
    Selection,
    SpecRecord,
    Subject,
)
from sharedtensor_conformance.report.run_view import RunView
from sharedtensor_conformance.report.verdicts import Verdict

STARTED = "2026-11-21T02:00:00Z"
FINISHED = "2026-11-21T02:01:01Z"


def clause(
    id: str, *, level: str = "MUST", profile: str = "core", text: str = "It holds."
) -> Clause:
    return Clause(
        id=id,
        title=f"The title of {id}",
        level=level,
        profile=profile,
        observes="values",
        promises=(),
        text=text,
        why="A reason.",
        file="sample.md",
        line=1,
    )


def spec(*clauses: Clause) -> dict[str, Clause]:
    return {one.id: one for one in clauses}


CLAUSES = spec(
    clause("SHARE-1"),
    clause("GRAD-1", profile="grad"),
    clause("GRAD-2", profile="grad"),
    clause("GRAD-9", profile="grad", level="SHOULD"),
    clause("CUDA-1", profile="cuda"),
)


def run(
    planned: int,
    *,
    clauses: Mapping[str, Clause] = CLAUSES,
    name: str = "sample",
    version: str = "1.2",
    claims: Iterable[str] = ("core", "grad"),
    full: bool = True,
    device: str = "cpu",
    strict: bool = False,
    options: Sequence[str] = ("--impl=sample",),
    command: Sequence[str] = ("pytest", "conformance"),
    carried_over: str = "",
) -> Run:
    return Run(
        implementation=Subject(
            name=name,
            version=version,
            claims=tuple(claims),
            strategies=("file_descriptor", "file_system"),
            start_methods=("spawn",),
            dtypes=("float32",),
            channels=("queue",),
            devices=("cpu",),
        ),
        suite="0.1.0",
        spec=SpecRecord.of(clauses),
        machine=Machine("3.11.9", "linux", "6.1", 2, True, False),
        selection=Selection(
            full=full,
            options=tuple(options),
            device=device,
            strict=strict,
            command=tuple(command),
            carried_over=carried_over,
        ),
        planned=planned,
        started=STARTED,
    )


def case(
    clauses: str,
    verdict: str = "pass",
    *,
    id: str = "",
    expected: bool | None = None,
    axes: Mapping[str, str] | None = None,
    **fields: object,
) -> Case:
    """Return a case that cites `clauses`, separated by spaces."""
    cited = tuple(clauses.split())
    test = f"test_{cited[0].partition('-')[0].lower()}.py::{cited[0].replace('-', '_')}"
    parameters = "-".join((axes or {"strategy": "file_descriptor"}).values())
    known = not Verdict(verdict).broken if expected is None else expected
    return Case(
        id=id or f"{test}[{parameters}]",
        test=test,
        clauses=cited,
        verdict=Verdict(verdict),
        expected=known,
        axes=dict(axes or {"strategy": "file_descriptor"}),
        **fields,  # type: ignore[arg-type]
    )


ALL_HELD = (case("SHARE-1"), case("GRAD-1"), case("GRAD-2"), case("GRAD-9"))


def report(
    cases: Sequence[Case] = ALL_HELD,
    *,
    clauses: Mapping[str, Clause] = CLAUSES,
    stale: Sequence[str] = (),
    missing: int = 0,
    source: str = "sample.jsonl",
    **options: object,
) -> Report:
    """Return the report of a run that planned `missing` cases more."""
    began = run(len(cases) + missing, clauses=clauses, **options)  # type: ignore[arg-type]
    summary = judge(
        began,
        cases,
        clauses,
        stale=stale,
        finished=FINISHED,
        seconds=61.0,
    )
    return Report(began, tuple(cases), summary, source)


def changed(sample: Report, what: str, **fields: object) -> Report:
    """Return the report with other fields in a part of its run line."""
    part = replace(getattr(sample.run, what), **fields)
    return replace(sample, run=replace(sample.run, **{what: part}))


def all_but(id: str, *instead: Case) -> list[Case]:
    """Return cases of all clauses that held, and others in place of one clause's."""
    return [one for one in ALL_HELD if id not in one.clauses] + list(instead)


def view(sample: Report, clauses: Mapping[str, Clause] = CLAUSES) -> RunView:
    """Return a report as its renderings get it."""
    assert sample.summary is not None
    return RunView(sample.run, sample.cases, sample.summary, clauses)


def lines(sample: Report) -> list[dict[str, object]]:
    """Return the lines of a report as JSON-ready data."""
    summary = [sample.summary] if sample.summary else []
    return [line.as_data() for line in (sample.run, *sample.cases, *summary)]


def write(path: Path, data: Iterable[object], *, end: str = "\n") -> Path:
    """Write `data` as the lines of a report; `end` is what follows the last one."""
    path.write_text(
        "\n".join(json.dumps(line, separators=(",", ":")) for line in data) + end
    )
    return path
