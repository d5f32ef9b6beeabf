"""Gathers all that a deviation is reported with to the project whose promise it breaks.

The program and its cause come from the expectations, the promise and the place from the
file of causes beside the programs, and what the program printed from a recorded run of
``ci/run_causes.py``. A record of another text of a program stops the build.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharedtensor_conformance.report.causes import (
    Cause,
    CausesError,
    Promise,
    load_causes,
)
from sharedtensor_conformance.report.expectations import (
    REPRODUCERS,
    Expectation,
    ExpectationsError,
    load_expectations,
)
from sphinx.errors import ExtensionError
from torch_patches import FIXES

from clauses.known import FOLDER
from clauses.outcomes import Outcome, outcome_in
from clauses.reports import Column
from clauses.shown_files import text_of

RECORDS = Path("docs", "reports", "causes")
PROJECTS = {
    "torch": "PyTorch",
    "paddle": "Paddle",
    "mindspore": "MindSpore",
    "shared-ndarray2": "shared-ndarray2",
    "tensordict": "tensordict",
}
"""The implementations that another project ships, and the name of the project."""

PATCHED = {"torch": "torch-patched"}
"""The implementations that are judged with fixes as well, and as what."""

SEE = re.compile(r" \(see [A-Z]+-\d+\)|; see [A-Z]+-\d+")


@dataclass(frozen=True)
class Run:
    """One recorded run of the programs of an implementation.

    Args:
        lines: on which line the functions in Python begin, by their places.
    """

    date: str
    version: str
    python: str
    kernel: str
    lines: Mapping[str, int]


@dataclass(frozen=True)
class Report:
    """One deviation with all that a report of it needs.

    Args:
        file: the program, from the root of the repository.
        happens: why it deviates, as the expectation of the most basic clause says.
        clauses: those that it breaks, in the order of their files.
        repaired: whether it is gone with the fixes in Python; None where the clauses
            were not judged with them.
    """

    name: str
    project: str
    title: str
    file: str
    program: str
    output: str
    happens: str
    cause: Cause
    clauses: tuple[str, ...]
    threads: tuple[str, ...]
    repaired: bool | None
    run: Run

    @property
    def fixes(self) -> tuple[str, ...]:
        """The names of the fixes of PyTorch that are about its clauses."""
        return fixes_of(self.clauses)

    @property
    def anchor(self) -> str:
        """Its anchor on the page of its project."""
        return self.name.replace("_", "-")

    def places(self) -> Iterator[str]:
        """Yield where it comes from, each place with its line where that is known."""
        for place in self.cause.where:
            file, _, function = place.partition(": ")
            line = self.run.lines.get(place)
            yield f"`{function}` in `{file}`" + (f", line {line}" if line else "")


@dataclass(frozen=True)
class Deviating:
    """The deviations of one implementation, and the promises that only it makes."""

    reports: tuple[Report, ...]
    promises: Mapping[str, Promise]

    def promised(self) -> list[Report]:
        """Return those that break a promise."""
        return [report for report in self.reports if report.cause.promises]

    def unpromised(self) -> list[Report]:
        """Return those that break none."""
        return [report for report in self.reports if not report.cause.promises]


def read_all(root: Path, columns: Sequence[Column]) -> dict[str, Deviating]:
    """Return the deviations of each implementation that has a file of causes.

    Raises:
        ExtensionError: a file is malformed, or a program has not been recorded.
    """
    known = {column.name: column for column in columns}
    return {
        name: _read(root, column, known.get(PATCHED.get(name, "")))
        for name, column in known.items()
        if (root / FOLDER / REPRODUCERS / f"{name}.toml").is_file()
    }


def _read(root: Path, column: Column, patched: Column | None) -> Deviating:
    name, folder = column.name, root / FOLDER / REPRODUCERS
    try:
        facts = load_causes(folder / f"{name}.toml")
        entries = _applying(root, column)
    except (CausesError, ExpectationsError) as error:
        raise ExtensionError(str(error)) from error
    run, outputs = _recorded(root, name)
    left = _left(root, patched)
    reports = []
    for program, cause in facts.causes.items():
        about = [e for e in entries if e.reproducer == f"{name}/{program}.py"]
        if not about:
            continue  # it is about other releases
        file = FOLDER / REPRODUCERS / name / f"{program}.py"
        text = text_of(root, file.as_posix())
        broken = _clauses(column, about, file.as_posix())
        reports.append(
            Report(
                name=program,
                project=PROJECTS.get(name, name),
                title=title_of(text),
                file=file.as_posix(),
                program=text,
                output=_output(outputs, program, text, name),
                happens=_happens(about),
                cause=cause,
                clauses=broken,
                threads=tuple(dict.fromkeys(e.link for e in about if e.link)),
                repaired=_repaired(patched, left, broken, about[0].reproducer),
                run=run,
            )
        )
    return Deviating(tuple(reports), facts.promises)


def _applying(root: Path, column: Column) -> Sequence[Expectation]:
    """Return the expectations of the version that the reports of a column judged."""
    file = root / FOLDER / f"{column.name}.toml"
    version = column.reports[0].run.implementation.version
    return load_expectations(file).applying_to(version)


def _clauses(
    column: Column, about: Iterable[Expectation], file: str
) -> tuple[str, ...]:
    """Return the clauses that a program stands for: expected ones, and judged ones."""
    found = dict.fromkeys(entry.clause for entry in about if entry.clause)
    for id, judgement in column.judgements.items():
        if any(cause.program == file for cause in judgement.causes):
            found[id] = None
    return tuple(found)


def title_of(program: str) -> str:
    """Return the first line of what a program says of itself, as a title."""
    text = ast.get_docstring(ast.parse(program)) or ""
    return text.partition("\n")[0].removesuffix(".").replace("``", "`")


def _happens(about: Sequence[Expectation]) -> str:
    """Return the first cause that stands alone, without what it refers to."""
    alone = [one.cause for one in about if not SEE.search(one.cause)]
    return (alone or [SEE.sub("", about[0].cause)])[0]


def _recorded(root: Path, name: str) -> tuple[Run, Mapping[str, Mapping[str, str]]]:
    file = root / RECORDS / f"{name}.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        machine = (found[key] for key in ("date", "version", "python", "kernel"))
        return Run(*machine, found["lines"]), found["programs"]
    except (OSError, ValueError, KeyError) as error:
        raise ExtensionError(f"{file} is no record; {_how(name)}") from error


def _output(
    outputs: Mapping[str, Mapping[str, str]], program: str, text: str, name: str
) -> str:
    found = outputs.get(program, {"sha256": "", "output": ""})
    if found["sha256"] != hashlib.sha256(text.encode()).hexdigest():
        said = f"the record of {name} has no run of the present {program}.py"
        raise ExtensionError(f"{said}; {_how(name)}")
    return found["output"]


def _how(name: str) -> str:
    out = (RECORDS / f"{name}.json").as_posix()
    return f"write it with: python ci/run_causes.py {name} --out={out}"


def _repaired(
    patched: Column | None, left: Collection[str], broken: Iterable[str], program: str
) -> bool | None:
    """Return whether the fixes leave no deviation that has this program."""
    judged = {Outcome.HELD, Outcome.BROKEN}
    if patched is None or not judged & {outcome_in(patched, id) for id in broken}:
        return None
    return program not in left


def _left(root: Path, patched: Column | None) -> frozenset[str]:
    """Return the programs of the deviations that the fixes leave."""
    if patched is None:
        return frozenset()
    entries = load_expectations(root / FOLDER / f"{patched.name}.toml").entries
    return frozenset(entry.reproducer for entry in entries)


def fixes_of(clauses: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the fixes of PyTorch that restore some of `clauses`."""
    return tuple(fix.name for fix in FIXES if set(fix.clauses) & set(clauses))
