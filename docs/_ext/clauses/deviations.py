"""Gathers all that a deviation is reported with to the project whose promise it breaks.

The program and its cause come from the expectations, the promise and the place from the
file of causes beside the programs, and what the program printed from a recorded run of
``ci/run_causes.py``. A record of another text of a program stops the build.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from sharedtensor_conformance.expectations.programs import code_hash
from sharedtensor_conformance.report.causes import Cause, Promise, load_causes
from sharedtensor_conformance.report.expectations import (
    REPRODUCERS,
    Expectation,
    load_expectations,
)
from sphinx.errors import ExtensionError
from torch_patches import FIXES

from clauses.known import FOLDER, stopping_the_build
from clauses.outcomes import outcome_in
from clauses.reports import Column, Judgement
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

FIELDS = {"date", "version", "python", "kernel", "lines", "programs"}
"""What a record has."""

FORMS = {
    "torch": "https://github.com/pytorch/pytorch/issues/new?title={}&body={}",
    "paddle": "https://github.com/PaddlePaddle/Paddle/issues/new?title={}&body={}",
    "mindspore": "https://github.com/mindspore-ai/mindspore/issues/new"
    "?title={}&body={}",
    "tensordict": "https://github.com/pytorch/tensordict/issues/new?title={}&body={}",
    "shared-ndarray2": "https://gitlab.com/osu-nrsg/shared-ndarray2/-/issues/new"
    "?issue[title]={}&issue[description]={}",
}
"""The addresses that open a new issue with its title and its text filled in."""

LONGEST = 8_000
"""How long such an address may be: servers refuse longer ones."""

SHORTENED = "*The rest did not fit into the address of this form.*"

PATCHED = {"torch": "torch-patched"}
"""The implementations that are judged with fixes as well, and as what."""

SEE = re.compile(r" \(see [A-Z]+-\d+\)|; see [A-Z]+-\d+")


@dataclass(frozen=True)
class Report:
    """One deviation with all that a report of it needs.

    Args:
        file: the program, from the root of the repository.
        happens: why it deviates, as the expectation of the most basic clause says.
        clauses: those that it breaks, in the order of their files.
        repaired: whether it is gone with the fixes in Python; None where the clauses
            were not judged with them.
        run: the record: date, versions, and on which line functions in Python begin.
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
    run: Mapping[str, Any]

    @property
    def fixes(self) -> tuple[str, ...]:
        """The names of the fixes of PyTorch that are about its clauses."""
        return fixes_of(self.clauses)

    @property
    def anchor(self) -> str:
        """Its anchor on the page of its project."""
        return self.name.replace("_", "-")

    @property
    def judged(self) -> str:
        """The implementation that deviates."""
        return Path(self.file).parent.name

    @property
    def page(self) -> str:
        """The name of its page, which is beside that of its project."""
        return f"upstream/{self.judged}-{self.anchor}"

    def places(self) -> Iterator[str]:
        """Yield where it comes from, each place with its line where that is known."""
        for place in self.cause.where:
            file, _, function = place.partition(": ")
            line = self.run["lines"].get(place)
            yield f"`{function}` in `{file}`" + (f", line {line}" if line else "")


@dataclass(frozen=True)
class Deviating:
    """The deviations of one implementation, and the promises that only it makes."""

    reports: tuple[Report, ...]
    promises: Mapping[str, Promise]


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
    version = column.reports[0].run.implementation.version
    with stopping_the_build():
        facts = load_causes(folder / f"{name}.toml")
        entries = load_expectations(root / FOLDER / f"{name}.toml").applying_to(version)
    run, left = _recorded(root, name), _left(root, patched)
    reports = []
    for program, cause in facts.causes.items():
        about = [e for e in entries if e.reproducer == f"{name}/{program}.py"]
        if not about:
            continue  # it is about other releases
        file = FOLDER / REPRODUCERS / name / f"{program}.py"
        printed = run["programs"].get(program, {})
        text = recorded_text(root, file, printed, command(name))
        broken = _clauses(column, about, file.as_posix())
        is_judged = patched and any(outcome_in(patched, id).judged for id in broken)
        reports.append(
            Report(
                name=program,
                project=PROJECTS.get(name, name),
                title=title_of(text),
                file=file.as_posix(),
                program=text,
                output=printed["output"],
                happens=_happens(about),
                cause=cause,
                clauses=broken,
                threads=tuple(dict.fromkeys(e.link for e in about if e.link)),
                repaired=about[0].reproducer not in left if is_judged else None,
                run=run,
            )
        )
    return Deviating(tuple(reports), facts.promises)


def _clauses(
    column: Column, about: Iterable[Expectation], file: str
) -> tuple[str, ...]:
    """Return the clauses that a program stands for: expected ones, and judged ones."""
    expected = [entry.clause for entry in about if entry.clause]
    judged = clauses_of(column.judgements, file)
    return tuple(dict.fromkeys([*expected, *judged]))


def clauses_of(judgements: Mapping[str, Judgement], program: str) -> list[str]:
    """Return the clauses that were broken for the cause that a program shows."""
    return [
        id
        for id, judgement in judgements.items()
        if any(cause.program == program for cause in judgement.causes)
    ]


def title_of(program: str) -> str:
    """Return the first line of what a program says of itself, as a title."""
    text = ast.get_docstring(ast.parse(program)) or ""
    return text.partition("\n")[0].removesuffix(".").replace("``", "`")


def _happens(about: Sequence[Expectation]) -> str:
    """Return the first cause that stands alone, without what it refers to."""
    alone = [one.cause for one in about if not SEE.search(one.cause)]
    return (alone or [SEE.sub("", about[0].cause)])[0]


def _recorded(root: Path, name: str) -> dict[str, Any]:
    file = root / RECORDS / f"{name}.json"
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if lacking := FIELDS - set(found):
            raise ValueError(f"it lacks {', '.join(lacking)}")
    except (OSError, ValueError) as error:
        said = f"{file} is no record; write it with: {command(name)}"
        raise ExtensionError(said) from error
    return found


def recorded_text(root: Path, file: Path, run: Mapping[str, str], how: str) -> str:
    """Return the text of a program, of which a run is recorded.

    Args:
        file: the program, from the root of the repository.
        run: the record; empty where there is none.
        how: the command that records a run.

    Raises:
        ExtensionError: the program is not there, or is not the one that was run.
    """
    try:
        text = text_of(root, file.as_posix())
    except OSError as error:
        raise ExtensionError(f"{file} was recorded and is missing") from error
    if code_hash(text) != run.get("sha256"):
        said = f"the record has no run of the present {file.name}"
        raise ExtensionError(f"{said}; write it with: {how}")
    return text


def command(name: str, *options: str) -> str:
    """Return the command that records runs of the programs of an implementation."""
    out = (RECORDS / f"{'-'.join([name, *options])}.json").as_posix()
    given = "".join(f" --{option}" for option in options)
    return f"python ci/run_causes.py {name}{given} --out={out}"


def _left(root: Path, patched: Column | None) -> set[str]:
    """Return the programs of the deviations that the fixes leave."""
    if patched is None:
        return set()
    known = load_expectations(root / FOLDER / f"{patched.name}.toml")
    return {entry.reproducer for entry in known.entries}


class Program(NamedTuple):
    """A program that shows a deviation.

    Args:
        output: what it printed, where that is recorded.
        page: the page of the report to its project, where there is one.
    """

    text: str
    output: str = ""
    page: str = ""


def program_of(root: Path, known: Mapping[str, Deviating], file: str) -> Program:
    """Return the program in a file of the repository at `root`."""
    for report in (one for each in known.values() for one in each.reports):
        if report.file == file:
            page = report.page if report.cause.promises else ""
            return Program(report.program, report.output, page)
    return Program(text_of(root, file))


def issue_form(report: Report, markdown: str) -> str:
    """Return the address of a new issue with a report; "" where nothing fills it in.

    A report that is too long loses its last sections, and says so.
    """
    form = FORMS.get(report.judged, "")
    sections = markdown.partition("\n")[2].strip().split("\n## ")
    address = form.format(quote(report.title), quote("\n## ".join(sections)))
    while len(address) > LONGEST and len(sections) > 1:
        sections.pop()
        text = "\n## ".join(sections) + f"\n{SHORTENED}"
        address = form.format(quote(report.title), quote(text))
    return address


def fixes_of(clauses: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the fixes of PyTorch that restore some of `clauses`."""
    return tuple(fix.name for fix in FIXES if set(fix.clauses) & set(clauses))


@dataclass(frozen=True)
class Finding:
    """One deviation, as the projects have it, and the clauses that it breaks."""

    reports: Mapping[str, Report]
    clauses: Sequence[str]

    @property
    def title(self) -> str:
        """What happens, in a line; the first project names it."""
        return next(iter(self.reports.values())).title


def findings(known: Mapping[str, Deviating], order: Sequence[str]) -> list[Finding]:
    """Return the deviations of all projects; `order` has the ids of all clauses."""
    found: dict[str, dict[str, Report]] = {}
    for project, deviating in known.items():
        for report in deviating.reports:
            found.setdefault(report.name, {})[project] = report
    every = []
    for reports in found.values():
        broken = {id for report in reports.values() for id in report.clauses}
        every.append(Finding(reports, sorted(broken, key=order.index)))
    return sorted(every, key=lambda one: [order.index(id) for id in one.clauses])
