"""What is said of a control that shares, or breaks values, and of what is no report."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))
from check_control import main

REPORTS = Path(__file__).parents[2] / "docs/reports"


def said_of(file, capsys):
    """Return the exit status, and what was printed."""
    status = main([str(file)])
    return status, "".join(capsys.readouterr())


def test_control_that_copies_does_what_it_has_to(capsys):
    status, said = said_of(REPORTS / "numpy-copy.jsonl", capsys)
    assert status == 0
    assert said.startswith("numpy-copy: breaks what observes sharing")


def test_implementation_that_shares_is_no_control(capsys):
    status, said = said_of(REPORTS / "reference.jsonl", capsys)
    assert status == 1
    told = [line.partition(" ")[0] for line in said.splitlines()]
    assert "SHARE-1" in told
    assert "SHARE-3" not in told  # it observes values


def test_control_that_breaks_values_is_told(capsys, tmp_path):
    text = (REPORTS / "numpy-copy.jsonl").read_text(encoding="utf-8")
    held = '"SHARE-3":{"verdict":"pass"'
    assert held in text
    report = tmp_path / "report.jsonl"
    report.write_text(text.replace(held, held.replace("pass", "fail")))
    status, said = said_of(report, capsys)
    assert status == 1
    assert said == "SHARE-3 observes values, but a control that copies breaks it\n"


@pytest.mark.parametrize(
    ("lines", "why"),
    [(0, "is empty: a report has a run line"), (2, "was cut short: run the suite")],
)
def test_report_that_is_not_whole_is_refused_in_a_sentence(
    lines, why, capsys, tmp_path
):
    whole = (REPORTS / "numpy-copy.jsonl").read_text().splitlines(keepends=True)
    report = tmp_path / "report.jsonl"
    report.write_text("".join(whole[:lines]))
    status, said = said_of(report, capsys)
    assert status == 2
    assert why in said
    assert said.count("\n") == 1
