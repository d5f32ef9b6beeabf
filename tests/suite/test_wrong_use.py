"""Wrong use ends with status 4 and one clear sentence, with and without -n."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from suites import LIMIT, environment

CHECKOUT = Path(__file__).parents[2] / "conformance"
WRONG = {
    "an unknown implementation": (
        ["--impl=refrence"],
        "there is no implementation 'refrence': did you mean 'reference'?",
    ),
    "core not claimed": (
        ["--impl=miniatures:claims_no_core"],
        "the profile 'core' is not claimed: every adapter claims it",
    ),
    "an unknown mutant": (
        ["--impl=mutant:eats_the_tensor"],
        "there is no mutant 'eats_the_tensor'",
    ),
    "an unknown clause": (
        ["--impl=miniatures:plain", "--clause=SHARE-99"],
        "'SHARE-99' is not a clause: did you mean SHARE-9?",
    ),
    "a chapter": (
        ["--impl=miniatures:plain", "--clause=reshare"],
        "'reshare' is not a clause: it is a chapter: give --clause='RESHARE-*'",
    ),
    "an unknown profile": (
        ["--impl=miniatures:plain", "--profile=gard"],
        "'gard' is not a profile: did you mean grad?",
    ),
    "an unknown strategy": (
        ["--impl=miniatures:plain", "--strategy=pigeon"],
        "'pigeon' is not a strategy of Plain: choose one of default",
    ),
    "a selection that matches nothing": (
        [
            "--impl=miniatures:plain",
            "--clause=SHARE-1",
            "--start-method=fork",
            "--case=x*",
        ],
        "nothing was selected",
    ),
    "expectations that are not there": (
        ["--impl=miniatures:plain", "--expectations=missing.toml"],
        "missing.toml",
    ),
    "a report that cannot be written": (
        ["--impl=miniatures:plain", "--report=/proc/report.jsonl"],
        "the report /proc/report.jsonl cannot be written",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_use_is_one_sentence_and_status_4(suite, wrong):
    options, sentence = WRONG[wrong]
    done = suite(*options)
    assert sentence in done.text
    assert "Traceback" not in done.text
    assert done.status == 4


@pytest.mark.parametrize(
    "wrong", ["an unknown implementation", "a selection that matches nothing"]
)
def test_wrong_use_is_the_same_under_xdist(suite, wrong):
    options, sentence = WRONG[wrong]
    done = suite(*options, "-n1")
    assert sentence in done.text
    assert "INTERNALERROR" not in done.text
    assert done.status == 4


def test_checkout_beside_another_copy_of_the_suite_is_told(tmp_path):
    """Without -e, pip installs a copy: what pytest finds in the folder is not that."""
    folder = tmp_path / "conformance"
    folder.mkdir()
    shutil.copy(CHECKOUT / "conftest.py", folder)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "conformance", "--impl=miniatures:plain"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 4
    assert f"the suite that is installed, in {CHECKOUT}, is not" in done.stderr
    assert "`pytest --pyargs sharedtensor_conformance`" in done.stderr
    assert "Traceback" not in done.stderr
