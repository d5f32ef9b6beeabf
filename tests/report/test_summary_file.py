"""A report without its cases: what is kept, and what is refused."""

from __future__ import annotations

import json

import pytest
import report_samples as samples
from command import call
from report_samples import case
from sharedtensor_conformance.report.records import ReportError, read_report
from sharedtensor_conformance.report.summary_file import read_summary, summary_text

CASES = [case("GRAD-1"), case("GRAD-2", verdict="fail"), case("SHARE-1")]


@pytest.fixture
def report(tmp_path):
    """A report on disk."""
    lines = samples.lines(samples.report(CASES))
    return read_report(samples.write(tmp_path / "r.jsonl", lines))


def test_summary_that_is_read_is_the_one_of_the_report(report, tmp_path):
    file = tmp_path / "s.json"
    file.write_text(summary_text(report))
    found = read_summary(file)
    assert found.run == report.run
    assert found.summary == report.summary


def test_each_clause_has_a_line_of_its_own(report):
    lines = summary_text(report).splitlines()
    assert [line.partition(":")[0] for line in lines if '"level"' in line] == [
        f'"{id}"' for id in report.summary.clauses
    ]


def test_report_of_a_run_that_was_cut_short_has_none(tmp_path):
    lines = samples.lines(samples.report(CASES))[:-1]
    cut = samples.write(tmp_path / "cut.jsonl", lines)
    with pytest.raises(ReportError, match=r"the run of .*cut\.jsonl was cut short"):
        summary_text(read_report(cut))
    called = call("report", cut, "--summary", tmp_path / "s.json")
    assert called.returncode == 4
    assert called.stderr.count("\n") == 1
    assert not (tmp_path / "s.json").exists()


def test_command_writes_the_summary(report, tmp_path):
    file = tmp_path / "out" / "s.json"
    assert call("report", report.source, "--summary", file).returncode == 0
    assert read_summary(file).summary == report.summary


def changed(text, what):
    """Return the text of a summary with one thing about it changed."""
    data = json.loads(text)
    if what == "list":
        return "[]"
    if what == "no JSON":
        return text[:-5]
    if what == "twice the run":
        data["summary"] = data["run"]
    elif what == "no run":
        del data["run"]
    elif what == "later form":
        data["run"]["schema"] = 99
    else:
        data["summary"]["clauses"]["GRAD-1"]["verdict"] = "perhaps"
    return json.dumps(data)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("list", "its keys are not run and summary"),
        ("no JSON", "no JSON"),
        ("twice the run", "its two lines have wrong types"),
        ("no run", "its keys are not run and summary"),
        ("later form", "has version 99 of the form of reports"),
        ("unknown verdict", "violates the schema"),
    ],
)
def test_what_is_no_summary_is_refused_in_one_sentence(report, tmp_path, what, said):
    file = tmp_path / "s.json"
    file.write_text(changed(summary_text(report), what))
    with pytest.raises(ReportError, match=said) as caught:
        read_summary(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_file_that_is_not_there_is_named(tmp_path):
    file = tmp_path / "no.json"
    with pytest.raises(ReportError, match=r"no\.json cannot be read: No such file"):
        read_summary(file)
