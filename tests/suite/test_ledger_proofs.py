"""The ledger catches one leak of each kind, and accuses nobody else.

A leak is to be caught after a case that passes and after one that fails, near a
neighbour that makes and removes the same things all the time. Each proof is shown to
rest on the count of its kind: a ledger that is blind for it sees nothing. Every kind is
a strategy of one implementation, so one run has processes of their own for each.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from leaks import LEAKS
from sharedtensor_conformance.report.records import Case
from suites import Done

PASSES = "test_share.py::test_receiver_finds_values_shape_and_dtype"
FAILS = "test_share.py::test_receiver_sees_what_the_sender_writes_after_the_send"
CLOSING = (
    "--case=test_ledger.py::test_nothing_is_left_of_what_the_cases_dropped*",
    "--case=test_ledger.py::test_no_case_added*",
)
NAMED = {
    "descriptor": ("LIFE-7", "peer has 1 more descriptor (1 x /dev/null)"),
    "mapping": ("LIFE-7", "peer has 1 more mapping (1 x /dev/zero)"),
    "segment": ("LIFE-7", "the segment miniature-"),
    "process": ("LIFE-12", "(sleep 120) is there"),
    "thread": ("LIFE-12", "peer has 1 more thread,"),
    "socket": ("LIFE-7", "peer has 1 more descriptor (1 x socket)"),
    "file": ("LIFE-12", "the temporary file tmp"),
}
BLIND = """
from sharedtensor_conformance.harness.stage.stage import Stage

made = Stage.__init__

def blinded(stage, *arguments):
    made(stage, *arguments)
    seen = stage.ledger.read
    stage.ledger.read = lambda: blind(stage, seen())

def blind(stage, found):
    kind = stage.configuration.strategy
    if kind == "process":
        pids = {str(actor.pid) for actor in (stage.owner, stage.peer, stage.bystander)}
        held = found["processes"]
        found["processes"] = {pid: held[pid] for pid in held if pid in pids}
    elif kind in ("segment", "file"):
        found[kind + "s"] = []
    else:
        counted = "descriptors" if kind == "socket" else kind + "s"
        for held in found["processes"].values():
            held[counted] = 0
    return found

Stage.__init__ = blinded
"""
NEIGHBOUR = """
import os, subprocess, sys, tempfile, time
folder, turn, parent = sys.argv[1], 0, os.getppid()
name = f"/dev/shm/miniature-{os.getpid()}"
while os.getppid() == parent:
    turn += 1
    with tempfile.NamedTemporaryFile(dir=folder), open(name, "w") as file:
        descriptors = [os.dup(file.fileno()) for _ in range(8)]
        if turn % 16 == 0:
            subprocess.run(["true"], check=True)
        for descriptor in descriptors:
            os.close(descriptor)
    os.unlink(name)
    if turn == 1:
        print(flush=True)
    time.sleep(0.002)  # some hundred times a second, and time for the others
"""


def chosen(story: str) -> tuple[str, ...]:
    """Return the options of a run of one story and of the tests that run last."""
    return ("--impl=leaks:one", f"--case={story}*", *CLOSING)


def by_kind(done: Done, test: str) -> dict[str, list[Case]]:
    """Return the cases of a test by what is leaked where they run."""
    found = defaultdict(list)
    for case in done.cases:
        if case.test.startswith(test):
            found[case.axes["strategy"]].append(case)
    return found


def closings(done: Done) -> dict[str, dict[str, str]]:
    """Return the evidence of the tests that run last and failed, by kind and clause."""
    return {
        kind: {
            case.clauses[0]: case.evidence for case in cases if case.verdict == "fail"
        }
        for kind, cases in by_kind(done, "test_ledger.py").items()
    }


def assert_caught(done: Done, kind: str, story: str) -> None:
    """The last test of the right clause names the resource and the case."""
    clause, named = NAMED[kind]
    evidence = closings(done)[kind][clause]
    assert f"\n  {story}" in evidence, done.text
    assert named in evidence


def assert_only_the_guilty(done: Done, story: str) -> None:
    """Each leak of the run is caught, and nobody who has none is accused."""
    found = closings(done)
    assert found.pop("nothing") == {}
    for kind in found:
        assert_caught(done, kind, story)


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[None]:
    """Another group of processes of the same user, which is busy all the time."""
    process = subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR, str(tmp_path)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    process.stdout.readline()
    yield
    assert process.poll() is None, "the neighbour was busy to the end"
    process.kill()
    process.communicate()
    Path(f"/dev/shm/miniature-{process.pid}").unlink(missing_ok=True)


def test_each_kind_of_leak_has_a_proof():
    assert LEAKS.keys() == {"nothing", *NAMED}


def test_leaks_of_cases_that_pass_are_caught_near_a_busy_neighbour(suite, neighbour):
    done = suite(*chosen(PASSES))
    assert closings(done).keys() == LEAKS.keys()
    assert_only_the_guilty(done, PASSES)
    for cases in by_kind(done, PASSES).values():
        assert {case.verdict for case in cases} == {"pass"}


def test_leaks_of_cases_that_fail_are_caught_and_in_their_evidence(suite):
    done = suite(*chosen(FAILS))
    assert closings(done).keys() == LEAKS.keys()
    assert_only_the_guilty(done, FAILS)
    for kind, cases in by_kind(done, FAILS).items():
        assert {case.verdict for case in cases} == {"fail"}
        left = [case.evidence.partition("\nit also left: ")[2] for case in cases]
        named = NAMED.get(kind, ("", ""))[1].rstrip(",")
        assert any(named in text for text in left) if named else not any(left)


def test_ledger_that_is_blind_for_a_kind_does_not_see_it(suite):
    (suite.folder / "blinded.py").write_text(BLIND)
    done = suite(*chosen(PASSES), "-p", "blinded")
    assert closings(done) == {kind: {} for kind in LEAKS}
    assert done.status == 0, done.text
