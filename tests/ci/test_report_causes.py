"""The script that writes the present wording of causes into the committed reports."""

import json
import sys
from pathlib import Path

import pytest
import report_samples as samples

sys.path.append(str(Path(__file__).parents[2] / "ci"))

import report_causes

ENTRY = """\
[[expect]]
clause = "GRAD-2"
outcomes = ["fail"]
cause = {}
date = 2026-01-01
"""
OLD, NEW = 'It\'s "dropped".', "`put` drops it and at once."


@pytest.fixture
def report(tmp_path):
    """A report with a deviation, whose cause is also a part of its evidence."""
    cases = [
        samples.case("GRAD-1"),
        samples.case("GRAD-2", "fail", expected=True, cause=OLD, evidence=OLD),
    ]
    data = samples.lines(samples.report(cases))
    data[0]["selection"]["expectations"] = "mine.toml"
    return samples.write(tmp_path / "mine.jsonl", data)


def test_cause_is_replaced_and_nothing_else(report, tmp_path):
    (tmp_path / "mine.toml").write_text(ENTRY.format(json.dumps(NEW)))
    before = [json.loads(line) for line in report.read_text().splitlines()]
    text = report_causes.reworded(report, tmp_path)
    after = [json.loads(line) for line in text.splitlines()]
    (changed,) = (one for one in before if one.get("cause"))
    assert changed["cause"] == OLD
    changed["cause"] = NEW
    assert after == before


def test_report_with_the_present_causes_stays_as_it_is(report, tmp_path):
    (tmp_path / "mine.toml").write_text(ENTRY.format(json.dumps(OLD)))
    assert report_causes.reworded(report, tmp_path) == report.read_text()


def test_case_that_no_entry_expects_is_named(report, tmp_path):
    (tmp_path / "mine.toml").write_text("")
    with pytest.raises(
        report_causes.NotExpected, match=r"mine\.toml has no entry for test_"
    ):
        report_causes.reworded(report, tmp_path)
