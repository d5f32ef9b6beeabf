"""The record of which deviations a program shows, and the script that makes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from recorded import REPORTS, recorded

sys.path.append(str(Path(__file__).parents[2] / "ci"))

import run_programs

RECORDS = sorted((REPORTS / "programs").glob("*.json"))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return a function that runs the script where some cases show, over a record."""

    def call(shown, before, *options, version=None, without=()):
        def found(report, case):
            return run_programs.row(case, case.test in shown, "it is gone", 50)

        monkeypatch.setattr(run_programs, "row_of", found)
        monkeypatch.setattr(run_programs, "read_report", recorded)
        record = tmp_path / "record.json"
        rows = [
            run_programs.row(case, case.test in before, "")
            for case in run_programs.chosen(recorded("torch"))
            if case.test not in without
        ]
        record.write_text(json.dumps({"version": version, "programs": rows}))
        status = run_programs.main(["torch", str(record), *options])
        return status, json.loads(record.read_text())["programs"]

    return call


GRAD = "test_grad.py::test_grad_that_is_present_arrives_with_its_values"


def test_what_was_shown_and_is_not_fails_the_run(run, capsys):
    status, rows = run(shown=(), before=(GRAD,))
    assert status == 1
    assert "was shown, and is not: it is gone" in capsys.readouterr().out
    assert not any(row["shown"] for row in rows)


def test_what_is_shown_for_the_first_time_is_recorded(run):
    status, rows = run(shown=(GRAD,), before=())
    assert status == 0
    assert [row["lines"] for row in rows if row["shown"]] == [50]


def test_rows_that_are_there_are_kept_where_only_the_missing_are_asked_for(run):
    version = recorded("torch").run.implementation.version
    status, rows = run((), (GRAD,), "--missing", version=version)
    assert status == 0
    assert [row["lines"] for row in rows if row["shown"]] == [0]
    asked = {"version": version, "without": (GRAD,)}
    status, rows = run((GRAD,), (), "--missing", **asked)
    assert [row["lines"] for row in rows if row["shown"]] == [50]


def test_rows_of_another_version_are_not_kept(run):
    status, rows = run((), (GRAD,), "--missing", version="1.0")
    assert status == 1
    assert not any(row["shown"] for row in rows)


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_record_has_a_row_for_each_deviation_of_the_report(file):
    rows = json.loads(file.read_text())["programs"]
    expected = [case.id for case in run_programs.chosen(recorded(file.stem))]
    hint = f'older than the report: nox -s "programs({file.stem})" -- --missing'
    assert [row["case"] for row in rows] == expected, hint
    assert all(bool(row["said"]) != row["shown"] for row in rows)
