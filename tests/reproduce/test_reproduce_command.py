"""The command ``reproduce``: from a failing case to a program that shows the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from report_samples import case
from sharedtensor_conformance.adapters import numpy_copy
from sharedtensor_conformance.cli import reproduce as command
from sharedtensor_conformance.harness.kernel.process_tree import wait_until
from sharedtensor_conformance.reproduce import running

WRITES = "test_share.py::test_receiver_sees_what_the_sender_writes_after_the_send"
GROWS = "test_share.py::test_growing_a_shared_tensor_is_refused_and_changes_nothing"
LEAKS = "test_life.py::test_nothing_is_left_of_tensors_that_were_sent_and_dropped"
JOINED = "test_mem.py::test_what_a_process_wrote_before_it_ended_is_read_after_join"
VALUES = "test_share.py::test_receiver_finds_values_shape_and_dtype"

LONGEST = 80
"""Lines of the steps of a program: more is nothing that one reads."""

DEVIATIONS = {
    "crash of a peer": (
        *("deviating:crashes", f"{WRITES}[default-fork-queue-to_owner]"),
        "died of SIGSEGV",
    ),
    "hang of the owner": (
        *("deviating:hangs", f"{WRITES}[default-spawn-pipe-to_peer]"),
        "owner gave no answer within 2 s",
    ),
    "exception": (
        *("deviating:raises", f"{WRITES}[default-forkserver-simple_queue-to_peer]"),
        "RuntimeError: no such segment",
    ),
    "no exception": (
        *("deviating:grows", f"{GROWS}[default-spawn-to_peer]"),
        "not so: growing the tensor is refused: nothing was raised",
    ),
    "leak": (
        *("deviating:leaks", f"{LEAKS}[default-spawn-pipe-to_peer]"),
        "descriptor",
    ),
}
"""A library, a case, and what its program has to say; under each start method."""


def segments():
    """Return the names in /dev/shm but those of the reference, which others use."""
    listed = os.listdir("/dev/shm")
    return {name for name in listed if not name.startswith("sharedtensor-")}


@pytest.mark.parametrize("kind", DEVIATIONS)
@pytest.mark.takes(20)
def test_program_shows_the_deviation_until_it_is_gone(
    kind, report_of, reproduce, run_program, tmp_path
):
    implementation, case, said = DEVIATIONS[kind]
    done = reproduce(report_of(implementation, case), case, "--output=it.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    assert "it.py shows the failure" in done.stdout
    program = (tmp_path / "it.py").read_text()
    steps, _, copied = program.partition("def steps():")[2].partition("\n\n\n")
    assert steps.count("\n") <= LONGEST
    for foreign in ("sharedtensor", "pytest", "deviating"):
        assert foreign not in copied
    before = segments()
    shown = run_program(program)
    assert (shown.returncode, said in shown.stdout) == (0, True)
    gone = run_program(program, MENDED="1")
    assert (gone.returncode, gone.stdout) == (1, "")
    new = segments() - before  # also of other tests, for a while
    assert wait_until(lambda: not new & segments(), 20.0), new


def test_wrong_value_is_shown(report_of, reproduce, tmp_path):
    case = f"{WRITES}[default-spawn-simple_queue-to_owner]"
    done = reproduce(report_of("numpy-copy", case), "*-to_owner]")
    assert done.returncode == 0
    assert "got [1.0, 2.0, 3.0, 4.0], not [1, 40, 3, 4]" in done.stdout
    (program,) = tmp_path.glob("*.py")
    assert program.stem == WRITES.partition("::test_")[2]


FAULTY = [
    ("def f():\n    f = f()\n\n\nf()\n", "", "UnboundLocalError: "),
    ("print(unknown)\n", "", "NameError: name 'unknown' is not defined"),
    ("print('no'\n", "it raised", "SyntaxError: "),
    ("  print()\n", "", "IndentationError: unexpected indent"),
    ("print(unknown)\n", "owner: NameError: unknown", ""),
    ("raise ValueError\n", "", ""),
    ("print('NameError: it says')\nraise SystemExit(1)\n", "", ""),
    ("import re\nre.match(0, '')\n", "", ""),
]
"""A program, the evidence of its case, and the error that is its own, or none."""


@pytest.mark.parametrize(("program", "evidence", "error"), FAULTY)
def test_program_with_an_error_of_its_own_is_faulty(program, evidence, error, tmp_path):
    file = tmp_path / running.PROGRAM
    file.write_text(program)
    run = subprocess.run([sys.executable, "-I", file], stderr=-1, stdout=-1, text=True)
    shown = running.ProgramResult(run.returncode, run.stdout + run.stderr)
    said = command._reason(case("SHARE-1", "fail", evidence=evidence), shown)
    assert said.startswith(f"the program is faulty ({error}" if error else "it exited")


def test_faulty_program_is_called_so(report_of, reproduce, monkeypatch):
    monkeypatch.setattr(command, "FORMS", command.FORMS[:1])
    monkeypatch.setattr(command, "write_program", lambda *_, **__: "print(unknown)\n")
    case = f"{WRITES}[default-fork-pipe-to_peer]"
    done = reproduce(report_of("numpy-copy", case), case)
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    said = "the program is faulty (NameError: name 'unknown' is not defined); that is a"
    assert f".py does not show the failure: {said} defect of `shared-tens" in last


# What becomes no program


def test_case_is_run_again_among_the_cases_of_its_run(report_of, reproduce):
    case = f"{JOINED}[default-spawn]"  # there is one, for the first method selected
    options = ("--start-method=spawn", "--strategy=default")
    done = reproduce(report_of("numpy-copy", case, options=options), case)
    assert (done.returncode, done.stderr) == (0, "")


def test_case_that_does_not_exist_is_told_with_the_error_of_its_run(
    report_of, reproduce
):
    done = reproduce(report_of("numpy-copy", f"{VALUES}[nowhere]"), "*")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    said = "no program: the case could not be run again: ERROR: nothing was selected: "
    assert said in done.stderr


@pytest.mark.parametrize(
    ("pattern", "verdict", "said"),
    [
        ("test_share.py::test_nothing*", "fail", "has no case test_share.py::test_not"),
        ("*", "pass", "* matches no case that failed"),
        ("*", "fail", "* matches 2 failing cases, including test_share.py::test"),
    ],
)
def test_pattern_has_to_mean_one_failing_case(
    pattern, verdict, said, report_of, reproduce
):
    cases = (f"{WRITES}[default-fork-{kind}-to_peer]" for kind in ("pipe", "queue"))
    done = reproduce(report_of("numpy-copy", *cases, verdict=verdict), pattern)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert said in done.stderr


def test_case_that_holds_when_it_is_run_again_becomes_no_program(
    report_of, reproduce, tmp_path, monkeypatch
):
    monkeypatch.setattr(command, "ATTEMPTS", 1)
    case = f"{VALUES}[default-fork-pipe-to_peer]"
    done = reproduce(report_of("numpy-copy", case), case)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no program: its verdict was pass when it was run again" in done.stderr
    assert not list(tmp_path.glob("*.py"))


def test_adapter_without_source_becomes_no_program(report_of, reproduce):
    case = f"{WRITES}[default-fork-pipe-to_peer]"
    done = reproduce(report_of("deviating:without_source", case), case)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no program: no source is found of not_there in deviating" in done.stderr


def test_mutant_becomes_no_program(report_of, reproduce):
    done = reproduce(report_of("mutant:drops_grad", f"{WRITES}[it]"), "*")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "only the suite can insert the fault of a mutant" in done.stderr


# Execution


def test_nothing_is_left_of_a_program_that_takes_too_long(tmp_path):
    (tmp_path / "pid").touch()
    program = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "print('it waits', flush=True)\n"
        "time.sleep(1000)\n"
    )
    began = time.monotonic()
    shown = running.execute(program, numpy_copy.conformance_adapter, 5.0)
    assert (shown.status, shown.output) == (None, "it waits\n")
    assert time.monotonic() - began < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
