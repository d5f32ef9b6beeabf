"""What a pull request has to contain that adds an implementation to the matrix."""

from __future__ import annotations

import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from recorded import REPORTS, recorded
from sharedtensor_conformance.adapters.loader import IN_A_CHECKOUT
from sharedtensor_conformance.expectations.programs import has_program

ROOT = Path(__file__).parents[2]
EXPECTATIONS = ROOT / "conformance/sharedtensor_conformance/expectations"
CONTROLS = {"numpy-copy"}
"""They are judged without expectations: what they break, they have to."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADAPTERS = PROJECT["entry-points"]["sharedtensor_conformance.adapters"]
SESSIONS = (ROOT / "noxfile.py").read_text()


def columns():
    """Return the implementations of the matrix but for the controls."""
    names = sorted(file.stem for file in REPORTS.glob("*.jsonl"))
    return [name for name in names if name not in CONTROLS and "-faults" not in name]


def test_there_are_implementations():
    assert {"reference", "torch", "paddle", "mindspore", "stdlib"} <= set(columns())


@pytest.mark.parametrize("name", columns())
def test_report_is_that_of_a_whole_run_that_passed(name):
    report = recorded(name)
    assert report.run.implementation.name == name
    assert report.run.implementation.version
    assert report.run.selection.full
    assert report.complete
    assert report.summary.exit_status == 0
    assert "error" not in report.summary.verdicts
    assert "follows" not in report.summary.verdicts  # --all-cases


@pytest.mark.parametrize("name", columns())
def test_adapter_page_and_session_are_there(name):
    module = (ADAPTERS | IN_A_CHECKOUT)[name].partition(":")[0]
    assert find_spec(module)
    assert (ROOT / f"docs/implementations/{name}.md").is_file()
    judged = f'    "{name}": (', f'"--impl={name}"'
    assert any(words in SESSIONS for words in judged)


@pytest.mark.parametrize("name", columns())
def test_what_is_broken_is_expected_with_a_program(name):
    broken = [case for case in recorded(name).cases if case.verdict.broken]
    assert all(case.expected and case.cause for case in broken)
    file = EXPECTATIONS / f"{name}.toml"
    assert file.is_file() == bool(broken)
    entries = tomllib.loads(file.read_text())["expect"] if broken else []
    own = [one for one in entries if "from" not in one]  # else it is another file's
    causes = EXPECTATIONS / "causes"
    assert all(has_program(causes, one["reproducer"]) for one in own)
