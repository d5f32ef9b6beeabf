"""A report that an earlier suite wrote is read, or is refused in one sentence.

`earlier/` has a report for each version of the form, as it was when the version began;
fields that came later have defaults.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import call
from sharedtensor_conformance.report.records import AGAIN, SCHEMA_VERSION, read_report

EARLIER = Path(__file__).parent / "earlier"
READ = sorted(EARLIER.glob("schema-*.jsonl"))
BEFORE_VERSION_1 = EARLIER / "before-version-1.jsonl"
"""From before the form was settled: a case has another field."""


def test_each_version_of_the_form_has_a_sample():
    versions = {read_report(file).run.schema for file in READ}
    assert versions == set(range(1, SCHEMA_VERSION + 1))


@pytest.mark.parametrize("file", READ, ids=lambda file: file.stem)
def test_earlier_report_is_shown_in_every_form(file, tmp_path):
    page, badge = tmp_path / "page.html", tmp_path / "badge.svg"
    shown = call("report", file, "--html", page, "--badge", badge)
    assert shown.returncode == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    assert "1 clause held, 3 clauses broken (known: 1 breaks its own" in words
    assert "SHARE-8" in page.read_text(encoding="utf-8")
    assert "1 held, 3 broken" in badge.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", READ, ids=lambda file: file.stem)
def test_earlier_report_is_compared_with_one_of_today(file):
    today = Path(__file__).parents[2] / "docs/reports/torch.jsonl"
    found = call("diff", file, today)
    assert found.stderr == ""
    assert "clauses newly broken" in found.stdout


def one_sentence(refused):
    """Return what a command has said that ended with a refusal."""
    assert refused.returncode not in (0, 1)
    assert "Traceback" not in refused.stderr
    (sentence,) = refused.stderr.splitlines()
    return sentence


def test_report_from_before_the_first_version_is_refused_in_one_sentence():
    sentence = one_sentence(call("report", BEFORE_VERSION_1))
    assert "line 2 violates the schema" in sentence
    assert sentence.endswith(AGAIN)


def test_report_of_a_later_version_is_refused_with_the_suite_that_reads_it(tmp_path):
    first, *rest = READ[-1].read_text(encoding="utf-8").splitlines(keepends=True)
    run = json.loads(first) | {"schema": SCHEMA_VERSION + 1, "suite": "7.8.9"}
    later = tmp_path / "later.jsonl"
    later.write_text(json.dumps(run) + "\n" + "".join(rest), encoding="utf-8")
    sentence = one_sentence(call("report", later))
    assert f"version {SCHEMA_VERSION + 1} of the form of reports" in sentence
    assert "use shared-tensor-spec 7.8.9" in sentence
