"""Environments that the suite may not make are told, and nothing is judged there."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import pytest
from sharedtensor_conformance.report.records import read_report
from sharedtensor_conformance.report.verdicts import Need, Verdict
from suites import COMMAND, LIMIT, environment

WITHOUT_NAMESPACES = """
import os, sys
from private_shm_facts import refuse
refuse("unshare")
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that becomes another one, which may not make namespaces."""

MOUNTING = ("ENV-1", "ENV-4", "ENV-5")


@pytest.mark.takes(8)
def test_environments_that_may_not_be_made_leave_cases_not_run(tmp_path):
    report = tmp_path / "report.jsonl"
    chosen = [f"--clause={id}" for id in (*MOUNTING, "ENV-3")]
    where = ("--start-method=fork", "--strategy=file_system", f"--report={report}")
    command = [sys.executable, "-c", WITHOUT_NAMESPACES, *COMMAND, *chosen, *where]
    subprocess.run(command, cwd=tmp_path, env=environment(), timeout=LIMIT, check=True)
    found = defaultdict(set)
    for case in read_report(report).cases:
        found[case.clauses[0]].add(case.verdict)
        assert case.verdict is Verdict.PASS or case.evidence
    for id in MOUNTING:
        assert found.pop(id) == {Verdict.NOT_RUN}
    assert found == {"ENV-3": {Verdict.PASS}}


WHEN_ALL_HAVE_ENDED = (
    "test_life.py::test_processes_that_exit_with_live_tensors*",
    "test_life.py::test_processes_that_are_killed*",
    "test_life.py::test_processes_that_exit_with_messages*",
    "test_histories.py::test_histories_with_deaths_end*",
)
"""Cases that judge what is left when all processes have ended."""


@pytest.mark.takes(20)
def test_what_others_could_remove_is_judged_only_in_a_shm_of_its_own(tmp_path):
    """Processes of another worker could clean up in a `/dev/shm` that is shared."""
    report = tmp_path / "report.jsonl"
    chosen = [f"--case={case}" for case in WHEN_ALL_HAVE_ENDED]
    where = ("--start-method=fork", "--histories=40", f"--report={report}")
    command = [sys.executable, "-c", WITHOUT_NAMESPACES, *COMMAND, *chosen, *where]
    subprocess.run(command, cwd=tmp_path, env=environment(), timeout=LIMIT, check=False)
    cases = read_report(report).cases
    assert len({case.test for case in cases}) == len(WHEN_ALL_HAVE_ENDED)
    assert {(case.verdict, case.needs) for case in cases} == {
        (Verdict.NOT_RUN, Need.PRIVATE_SHM)
    }
