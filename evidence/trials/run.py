"""Runs the suite over faults that were written from the specification alone.

Who wrote the patches beside this file had not read a test. Each is applied to copies
of the files that it touches, of an implementation in this repository or of torch, which
every process of the run then imports. First come the clauses that a patch breaks, then,
for what is still alive, the whole suite.

The record keeps what the first run found beside what is found today: a test that was
written because of a survivor does not make the trial less blind.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broken_copies import ROOT, run_suite, uncover
from sharedtensor_conformance.mutants.run import KILLING
from sharedtensor_conformance.report.records import (
    Report,
    ReportError,
    Run,
    read_report,
)

HERE = Path(__file__).resolve().parent
RECORD = ROOT / "docs" / "reports" / "blind-trial.json"


@dataclass(frozen=True)
class Ground:
    """An implementation that faults are put into.

    Args:
        package: what is imported.
        folder: where this repository has the package; none where it is installed.
        options: what the suite is told besides.
    """

    package: str
    folder: Path | None
    options: tuple[str, ...]


GROUNDS = {
    "arena": Ground(
        "arena", Path("evidence/trials/arena"), ("--impl=arena.conformance",)
    ),
    "reference": Ground("sharedtensor", Path("reference"), ("--impl=reference",)),
    "torch": Ground("torch", None, ("--impl=torch", "--start-method=fork")),
}
LIMITS = {"clauses": 300.0, "everything": 1500.0}
"""Seconds that a run over the patch's own clauses, or over everything, may take."""
ENDS = (1, 2)
"""How a run ends that found something: with 2 where workers were stopped early."""


@dataclass(frozen=True)
class Patch:
    """One fault, as the head of its file describes it."""

    implementation: str
    name: str
    round: int
    clauses: tuple[str, ...]
    sentence: str
    file: Path

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others."""
        return self.implementation, self.name


def read_patch(file: Path) -> Patch:
    """Read the head of a patch. Raises ValueError if a line is missing or wrong."""
    head: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("---"):
            break
        key, _, value = line.partition(": ")
        head[key] = value.strip()
    try:
        found = int(head["Round"]), tuple(head["Clauses"].split()), head["Breaks"]
    except KeyError as missing:
        raise ValueError(f"{file} has no line {missing}") from None
    return Patch(file.parent.name, file.stem, *found, file)


def patches() -> list[Patch]:
    """Return all patches, by implementation and name."""
    return [read_patch(file) for file in sorted(HERE.glob("*/*.patch"))]


def targets(patch: Patch) -> list[Path]:
    """Return the files that a patch changes."""
    lines = patch.file.read_text(encoding="utf-8").splitlines()
    return [Path(line[len("+++ b/") :]) for line in lines if line.startswith("+++ b/")]


def lay_out(patch: Patch, folder: Path) -> None:
    """Make `folder` a place to import the broken implementation from."""
    ground = GROUNDS[patch.implementation]
    source = ROOT if ground.folder else installed(ground.package).parent
    for target in targets(patch):
        uncover(source, folder, target)
    if ground.folder:
        (folder / ground.package).symlink_to(ground.folder / ground.package)
    command = ("git", "apply", "-p1", str(patch.file))
    # Below a repository git would take the paths for those of its own tree.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(command, cwd=folder, env=environment, check=True)


def installed(package: str) -> Path:
    """Return the folder of a package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} is not installed here")
    return Path(found.origin).parent


def is_active(patch: Patch, folder: Path) -> bool:
    """Return whether somebody imported what is broken, or what it belongs to.

    A module of an implementation in this repository is imported when it is needed, and
    the tests of a clause may not need it. Of torch every changed module is imported.
    """
    ground = GROUNDS[patch.implementation]
    if ground.folder is not None:
        return any((folder / ground.folder / ground.package).rglob("*.pyc"))
    caches = [
        (folder / target).parent / "__pycache__" / f"{target.stem}.*.pyc"
        for target in targets(patch)
    ]
    return all(list(cache.parent.glob(cache.name)) for cache in caches)


def judge(patch: Patch, stage: str, workers: str) -> dict[str, Any]:
    """Run the suite over one fault and say what it found."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(patch, folder)
        done = run_suite(folder, options(patch, stage, workers), LIMITS[stage])
        if not is_active(patch, folder):
            raise SystemExit(f"{patch.name}: nobody imported what was broken")
        found = verdict(patch, report_in(folder), done.status)
    return {**found, "stage": stage, "seconds": round(time.monotonic() - started, 1)}


def options(patch: Patch, stage: str, workers: str) -> list[str]:
    """Return what is judged in a run."""
    judged = [*GROUNDS[patch.implementation].options]
    if stage == "clauses":
        return [*judged, *(f"--clause={clause}" for clause in patch.clauses)]
    return [*judged, "-n", workers]


def report_in(folder: Path) -> Report | None:
    """Return the report of a run; None if it wrote none."""
    with suppress(ReportError):
        return read_report(folder / "report.jsonl")
    return None


def verdict(patch: Patch, report: Report | None, status: int | None) -> dict[str, Any]:
    """Return what a report says of a fault: killed, survived or unjudged, and by what.

    It is killed where the suite ends so and names a broken clause that nobody
    expected to be broken.
    """
    cases = report.cases if report else ()
    broken = [case for case in cases if case.verdict in KILLING and not case.expected]
    red = sorted({clause for case in broken for clause in case.clauses})
    if status in ENDS and broken:
        fate = "killed"
    else:
        fate = "survived" if status == 0 else "unjudged"
    return {
        "fate": fate,
        "by": broken[0].id if broken else "",
        "red": red,
        "own_clause": bool(set(red) & set(patch.clauses)),
        "cases": len(cases),
        "versions": versions(report.run) if report else {},
    }


def versions(run: Run) -> dict[str, str]:
    """Return what was judged by what."""
    return {
        "implementation": run.implementation.version,
        "suite": run.suite,
        "spec": run.spec.version,
        "python": run.machine.python,
    }


def note(patch: Patch, found: dict[str, Any], record: Path, first: bool) -> None:
    """Put an outcome into the record; what the first run found stays there."""
    noted = {(one["implementation"], one["name"]): one for one in read(record)}
    before = noted.get(patch.key, {})
    noted[patch.key] = {
        "implementation": patch.implementation,
        "name": patch.name,
        "round": patch.round,
        "clauses": list(patch.clauses),
        "sentence": patch.sentence,
        "first_run": found if first else before["first_run"],
        "now": found,
    }
    ordered = [noted[key] for key in sorted(noted)]
    draft = record.with_suffix(".new")
    draft.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    draft.replace(record)


def read(record: Path) -> list[dict[str, Any]]:
    """Return the outcomes that a record holds."""
    if not record.exists():
        return []
    found: list[dict[str, Any]] = json.loads(record.read_text(encoding="utf-8"))
    return found


def trials(chosen: list[Patch], options: argparse.Namespace) -> Iterator[str]:
    """Judge the patches and yield a line for each run: the cheap runs come first."""
    alive = chosen
    known = {(one["implementation"], one["name"]) for one in read(options.record)}
    for stage in options.stage or LIMITS:
        for patch in list(alive):
            found = judge(patch, stage, options.workers)
            note(patch, found, options.record, first=patch.key not in known)
            if found["fate"] == "killed":
                alive = [one for one in alive if one is not patch]
            yield told(patch, found)


def told(patch: Patch, found: dict[str, Any]) -> str:
    """Return a run's outcome as a line."""
    name = "/".join(patch.key)
    return f"{found['fate']:8}  {name}  {found['stage']}  {found['by']}".rstrip()


def main() -> None:
    """Judge all patches, or those that are named."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help="such as reference or torch/01-x")
    parser.add_argument("--stage", action="append", choices=LIMITS)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--workers", default="2")
    options = parser.parse_args()
    wanted = set(options.names or GROUNDS)
    names = {patch: {patch.implementation, "/".join(patch.key)} for patch in patches()}
    if unknown := wanted.difference(*names.values(), GROUNDS):
        parser.error(f"there is no patch {min(unknown)!r} in evidence/trials/")
    chosen = [patch for patch, own in names.items() if own & wanted]
    for line in trials(chosen, options):
        print(line, flush=True)


if __name__ == "__main__":
    main()
