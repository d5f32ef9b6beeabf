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
IN_ENVIRONMENTS = (
    "test_env.py::test_sharing_*",
    "test_env.py::test_processes_of_different_pid_namespaces*",
    "test_env.py::test_receiver_with_another_shm*",
    "test_env.py::test_segments_of_two_shm*",
)
"""Cases of the clauses that need a mount, and of ENV-3, which does not."""

WHEN_ALL_HAVE_ENDED = (
    "test_life.py::test_processes_that_exit_with_live_tensors*",
    "test_life.py::test_processes_that_are_killed*",
    "test_life.py::test_processes_that_exit_with_messages*",
    "test_histories.py::test_histories_with_deaths_end*",
)
"""Cases that judge what is left when all processes have ended.

Processes of another worker could clean up in a `/dev/shm` that is shared.
"""


@pytest.mark.takes(10)
def test_environments_that_may_not_be_made_leave_cases_not_run(tmp_path):
    report = tmp_path / "report.jsonl"
    chosen = [f"--case={case}" for case in (*IN_ENVIRONMENTS, *WHEN_ALL_HAVE_ENDED)]
    where = ("--start-method=fork", "--strategy=file_system", f"--report={report}")
    command = [sys.executable, "-c", WITHOUT_NAMESPACES, *COMMAND, *chosen, *where]
    command += ["--histories=40"]
    subprocess.run(command, cwd=tmp_path, env=environment(), timeout=LIMIT, check=True)
    found, at_the_end = defaultdict(set), []
    for case in read_report(report).cases:
        if case.test.startswith("test_env.py"):
            found[case.clauses[0]].add(case.verdict)
            assert case.verdict is Verdict.PASS or case.evidence
        else:
            at_the_end.append(case)
    for id in MOUNTING:
        assert found.pop(id) == {Verdict.NOT_RUN}
    assert found == {"ENV-3": {Verdict.PASS}}
    assert len({case.test for case in at_the_end}) == len(WHEN_ALL_HAVE_ENDED)
    assert {(case.verdict, case.needs) for case in at_the_end} == {
        (Verdict.NOT_RUN, Need.PRIVATE_SHM)
    }
