"""The suite runs wherever the temporary folder is, and whoever has started it."""

from __future__ import annotations

import signal
import subprocess

from sharedtensor_conformance.report.records import read_report
from suites import COMMAND, environment


def test_temporary_folder_with_a_long_path_will_do(suite, tmp_path):
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 5)
    deep.mkdir(parents=True)
    chosen = ("--impl=numpy-copy", "--case=test_share.py*", "--clause=SHARE-3")
    chosen += ("--start-method=spawn",)
    done = suite(*chosen, TMPDIR=str(deep))
    assert done.status == 0, done.text
    judged = set(done.verdicts.values()) - {"unsupported"}  # it does not resize
    assert judged == {"pass"}
    assert not list(deep.iterdir())


def test_signals_that_the_caller_ignores_are_not_ignored_in_the_cases(tmp_path):
    """This run is the command itself, which inherits what is ignored."""
    report = tmp_path / "report.jsonl"
    case = "--case=test_spawn.py::test_each_signal_is_told*"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup(1) does
    try:
        done = subprocess.run(
            [*COMMAND, case, "--strategy=file_descriptor", f"--report={report}"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=240,
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert done.returncode == 0, done.stdout
    assert {case.verdict for case in read_report(report).cases} == {"pass"}
