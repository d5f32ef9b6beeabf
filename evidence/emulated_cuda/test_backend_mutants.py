"""The suite kills each fault of the CuPy backend; the backend without one passes."""

import os
import subprocess
from pathlib import Path

import faulty_backends
import pytest
from sharedtensor_conformance.api import suite_command
from sharedtensor_conformance.mutants.run import FIRST_FAILURE, KILLING
from sharedtensor_conformance.report.records import read_report
from sharedtensor_conformance.report.verdicts import Verdict

ONE_CONFIGURATION = ("--start-method=spawn", "--strategy=file_descriptor")
FOLDER = str(Path(__file__).parent)


def judged(implementation, clause, folder):
    """Return the verdicts of the cases of a clause on the emulated runtime."""
    report = folder / "report.jsonl"
    chosen = ("--device=emulated", f"--clause={clause}", *ONE_CONFIGURATION)
    command = suite_command(
        *FIRST_FAILURE, *chosen, "-x", "--strict", "--no-expectations",
        f"--impl={implementation}", f"--report={report}",
    )  # fmt: skip
    environment = os.environ | {"PYTHONPATH": FOLDER}
    subprocess.run(command, env=environment, cwd=folder, timeout=300, check=False)
    return {case.verdict for case in read_report(report).cases}


@pytest.mark.parametrize(("name", "clause"), faulty_backends.CLAUSES.items())
def test_the_suite_kills_a_fault_of_the_backend(name, clause, tmp_path):
    found = judged(f"faulty_backends:{name}", clause, tmp_path)
    assert found & KILLING
    assert Verdict.ERROR not in found


@pytest.mark.parametrize("clause", sorted(set(faulty_backends.CLAUSES.values())))
def test_the_backend_without_a_fault_passes(clause, tmp_path):
    assert judged("reference", clause, tmp_path) == {Verdict.PASS}
