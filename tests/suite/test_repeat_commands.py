"""The command that is printed with what is broken shows it again, alone."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sharedtensor_conformance.report.records import read_report
from suites import environment

VALUES = "test_share.py::test_receiver_finds_values_shape_and_dtype"
WRITES = "test_share.py::test_receiver_sees_what_the_sender_writes_after_the_send"
TITLE = re.compile(r"^(?P<clause>[A-Z]+-\d+)  ")
START = ("pytest", "--pyargs", "sharedtensor_conformance")

RUNS = {
    "crashes": ("--impl=miniatures:crashes", f"--case={WRITES}*"),
    "is blocked": ("--impl=miniatures:raises", "--clause=SHARE-1"),
    "hangs": (
        "--impl=faulty_implementations:hangs",
        "--strategy=hangs_in_decode",
        f"--case={VALUES}*",
    ),
    "leaks": (
        "--impl=leaks:one",
        "--strategy=descriptor",
        f"--case={VALUES}*",
        "--case=test_ledger.py::test_nothing_is_left_of_what_the_cases_dropped*",
    ),
    "copies in histories": (
        "--impl=miniatures:plain",
        "--case=test_histories.py::test_histories_end_as_the_model_says*",
        "--histories=7",
        "--history-seed=3",
    ),
}


def printed(text: str) -> list[tuple[str, list[str]]]:
    """Return the commands of an output, each with the clause whose block it is in."""
    found, clause = [], ""
    for line in text.splitlines():
        if title := TITLE.match(line):
            clause = title["clause"]
        if line.startswith(f"  {START[0]} "):
            found.append((clause, shlex.split(line)))
    return found


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
@pytest.mark.takes(6)
def test_printed_command_breaks_the_same_clause_in_the_same_way(suite, options):
    brief = {"PYTEST_ADDOPTS": "-p brief_shrinking"}
    done = suite(*options, **brief)
    commands = printed(done.text)
    assert commands, done.text
    for clause, words in commands:
        assert tuple(words[:3]) == START
        again = suite(*words[3:], **brief)
        was, now = (one.report.summary.clauses[clause] for one in (done, again))
        assert now.verdict == was.verdict, again.text
        assert again.status == done.status == 1


def test_printed_command_works_in_a_shell_where_the_suite_was_started(tmp_path):
    folder = str(Path(sys.executable).parent)
    path = {"PATH": os.pathsep.join([folder, os.environ["PATH"]])}

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=Path(__file__).parents[2],
            env=environment() | path,
            capture_output=True,
            text=True,
        )

    chosen = f"--impl=miniatures:plain -q -p no:cacheprovider '--case={WRITES}*'"
    done = run(f"pytest conformance {chosen}")
    ((clause, words),) = printed(done.stdout)
    assert words[:2] == ["pytest", "conformance"]
    report = tmp_path / "again.jsonl"
    again = run(f"{shlex.join(words)} --report={report}")
    assert again.returncode == done.returncode == 1, again.stdout
    assert read_report(report).summary.clauses[clause].verdict == "fail"
