"""The patches of the blind trial fit the tree of today, and the record is of them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import traceback
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np  # noqa: F401 - a child need not import it
import pytest
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "evidence" / "trials").glob("*/*.patch"))
RECORD = ROOT / "docs" / "reports" / "blind-trial.json"
OF_THIS_REPOSITORY = [file for file in PATCHES if file.parent.name != "torch"]


@pytest.fixture(scope="module")
def trials() -> ModuleType:
    """`evidence/trials/run.py`, which is a script and no package."""
    file = ROOT / "evidence" / "trials" / "run.py"
    spec = importlib.util.spec_from_file_location("trials_run", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_heads_name_clauses_that_there_are(trials: ModuleType) -> None:
    for file in PATCHES:
        patch = trials.read_patch(file)
        assert patch.implementation in trials.GROUNDS, file
        assert patch.clauses, file
        assert set(patch.clauses) <= set(load_clauses()), file
        assert patch.sentence.endswith("."), file
        assert trials.targets(patch), file


def test_patch_without_a_head_is_refused(trials: ModuleType, tmp_path: Path) -> None:
    headless = tmp_path / "headless.patch"
    head = "Round: 1\nClauses: SHARE-1\n"
    headless.write_text(f"{head}--- a/x\n+++ b/x\n", encoding="utf-8")
    with pytest.raises(ValueError, match="Breaks"):
        trials.read_patch(headless)


class Broken(MetaPathFinder):
    """Finds the modules that a patch has changed.

    The others come from this repository, where their bytecode is.
    """

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = files

    def find_spec(self, name: str, *ignored: object) -> ModuleSpec | None:
        file = self.files.get(name)
        return file and importlib.util.spec_from_file_location(name, file)


def import_in_a_child(files: dict[str, Path], package: str, folder: Path) -> int:
    """Import broken modules in a fork, which has imported NumPy; return its status."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]
        sys.meta_path.insert(0, Broken(files))
        sys.path.insert(0, str(folder))
        for name in files:
            importlib.import_module(name)
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


@pytest.mark.parametrize("file", OF_THIS_REPOSITORY, ids=lambda file: file.stem)
def test_patch_applies_to_what_this_repository_has(
    trials: ModuleType, file: Path, tmp_path: Path
) -> None:
    patch = trials.read_patch(file)
    ground = trials.GROUNDS[patch.implementation]
    trials.lay_out(patch, tmp_path)
    assert not trials.is_active(patch, tmp_path)
    files = {}
    for target in trials.targets(patch):
        assert (tmp_path / target).read_bytes() != (ROOT / target).read_bytes()
        name = ".".join(target.relative_to(ground.folder).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = tmp_path / target
    assert import_in_a_child(files, ground.package, ROOT / ground.folder) == 0
    assert trials.is_active(patch, tmp_path)


def test_patch_that_does_not_fit_is_told(trials: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / OF_THIS_REPOSITORY[0].parent.name / "stale.patch"
    file.parent.mkdir()
    content = OF_THIS_REPOSITORY[0].read_text(encoding="utf-8")
    file.write_text(content.replace("\n-  ", "\n-  stale"), encoding="utf-8")
    (tmp_path / "tree").mkdir()
    with pytest.raises(subprocess.CalledProcessError):
        trials.lay_out(trials.read_patch(file), tmp_path / "tree")


def test_suite_can_be_run_over_what_is_laid_out(
    trials: ModuleType, tmp_path: Path
) -> None:
    patch = trials.read_patch(OF_THIS_REPOSITORY[0])
    trials.lay_out(patch, tmp_path)
    options = trials.options(patch, "clauses", "2")
    done = trials.run_suite(tmp_path, [*options, "--collect-only"], 120.0)
    assert done.status == 0, done.output


def test_record_is_of_the_patches_that_there_are(trials: ModuleType) -> None:
    record = {
        (one["implementation"], one["name"]): one
        for one in json.loads(RECORD.read_text(encoding="utf-8"))
    }
    assert sorted(record) == sorted(patch.key for patch in trials.patches())
    for patch in trials.patches():
        assert record[patch.key]["round"] == patch.round
        assert record[patch.key]["clauses"] == list(patch.clauses)
        assert record[patch.key]["sentence"] == patch.sentence


def test_first_run_stays_in_the_record(trials: ModuleType, tmp_path: Path) -> None:
    patch, record = trials.patches()[0], tmp_path / "record.json"
    outcomes = [
        {"fate": "survived", "stage": "clauses"},
        {"fate": "survived", "stage": "everything"},
        {"fate": "killed", "stage": "clauses"},
    ]
    for outcome, first in zip(outcomes, (True, True, False), strict=True):
        trials.note(patch, outcome, record, first)
    (one,) = trials.read(record)
    assert (one["first_run"], one["now"]) == (outcomes[1], outcomes[2])


def test_only_an_unexpected_break_and_the_status_of_a_failure_kill(
    trials: ModuleType,
) -> None:
    patch = trials.patches()[0]
    run = SimpleNamespace(
        implementation=SimpleNamespace(version="1"),
        suite="1",
        spec=SimpleNamespace(version="1"),
        machine=SimpleNamespace(python="3"),
    )

    def fate(status: int | None, *, expected: bool = False) -> object:
        case = Case("x", "test", patch.clauses, Verdict.FAIL, expected)
        report = SimpleNamespace(run=run, cases=[case])
        return trials.verdict(patch, report, status)["fate"]

    fates = [fate(1), fate(0, expected=True), fate(1, expected=True), fate(None)]
    assert fates == ["killed", "survived", "unjudged", "unjudged"]


def test_run_without_a_report_judges_nothing(
    trials: ModuleType, tmp_path: Path
) -> None:
    assert trials.report_in(tmp_path) is None
    assert trials.verdict(trials.patches()[0], None, 4)["fate"] == "unjudged"
