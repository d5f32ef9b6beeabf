"""The ledger catches one leak of each kind, and accuses nobody else.

A leak is to be caught after a case that passes and after one that fails, beside a
neighbour that makes and removes the same things all the time. Each proof is shown to
rest on the count of its kind: a ledger that is blind for it sees nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PASSES = "test_share.py::test_receiver_finds_values_shape_and_dtype"
FAILS = "test_share.py::test_receiver_sees_what_the_sender_writes_after_the_send"
CLOSING = (
    "--case=test_ledger.py::test_nothing_is_left_of_what_the_cases_dropped*",
    "--case=test_ledger.py::test_no_case_added*",
)
NAMED = {
    "descriptor": ("LIFE-7", "peer has 1 more descriptors"),
    "mapping": ("LIFE-7", "peer has 1 more mappings"),
    "segment": ("LIFE-7", "the segment miniature-"),
    "process": ("LIFE-12", "(sleep 120) is there"),
    "thread": ("LIFE-12", "peer has 1 more threads"),
    "socket": ("LIFE-12", "peer has 1 more sockets"),
    "file": ("LIFE-12", "the temporary file tmp"),
}
BLIND = """
from sharedtensor_conformance.harness.stage import Stage

made = Stage.__init__

def blinded(stage, *arguments):
    made(stage, *arguments)
    seen = stage.ledger.read
    stage.ledger.read = lambda: blind(stage, seen())

def blind(stage, found):
    if KIND == "process":
        pids = {str(actor.pid) for actor in (stage.owner, stage.peer, stage.bystander)}
        held = found["processes"]
        found["processes"] = {pid: held[pid] for pid in held if pid in pids}
    elif KIND in ("segment", "file"):
        found[KIND + "s"] = []
    else:
        kinds = ("descriptors", "sockets") if KIND == "socket" else (KIND + "s",)
        for held in found["processes"].values():
            held.update(dict.fromkeys(kinds, 0))
    return found

Stage.__init__ = blinded
"""
NEIGHBOUR = """
import os, subprocess, sys, tempfile
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
"""


def chosen(kind: str, story: str) -> tuple[str, ...]:
    """Return the options of a run of one story and of the closing tests."""
    name = "socket_" if kind == "socket" else kind
    return (f"--impl=leaks:{name}", f"--case={story}*", *CLOSING)


def closings(done) -> dict[str, list[str]]:
    """Return the evidence against each clause of the closing tests that failed."""
    found: dict[str, list[str]] = {}
    for case in done.report.cases:
        if case.verdict == "fail" and case.test.startswith("test_ledger.py"):
            for id in case.clauses:
                found.setdefault(id, []).append(case.evidence)
    return found


def assert_caught(done, kind: str, story: str) -> None:
    """The closing test of the right clause names the resource and the case."""
    clause, named = NAMED[kind]
    (evidence,) = closings(done)[clause]
    assert f"after {story}" in evidence, done.text
    assert named in evidence


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


@pytest.mark.parametrize("kind", NAMED)
def test_leak_of_a_case_that_passes_is_caught(suite, kind):
    done = suite(*chosen(kind, PASSES))
    assert_caught(done, kind, PASSES)
    passed = [c.verdict for c in done.report.cases if c.test.startswith(PASSES)]
    assert set(passed) == {"pass"}


@pytest.mark.parametrize("kind", NAMED)
def test_leak_of_a_case_that_fails_is_caught_and_in_its_evidence(suite, kind):
    done = suite(*chosen(kind, FAILS))
    assert_caught(done, kind, FAILS)
    said = [c.evidence for c in done.report.cases if c.test.startswith(FAILS)]
    left = [text.partition("it left this: ")[2] for text in said]
    assert any(NAMED[kind][1] in text for text in left)


def test_case_that_fails_and_leaks_nothing_is_no_leak(suite):
    done = suite(*chosen("clean", FAILS))
    assert closings(done) == {}
    assert "it left this" not in done.text
    found = [c.verdict for c in done.report.cases if c.test.startswith(FAILS)]
    assert set(found) == {"fail"}


@pytest.mark.parametrize("kind", NAMED)
def test_ledger_that_is_blind_for_a_kind_does_not_see_it(suite, kind):
    blind = f"KIND = {kind!r}\n{BLIND}"
    (suite.folder / "blinded.py").write_text(blind)
    done = suite(*chosen(kind, PASSES), "-p", "blinded")
    assert closings(done) == {}
    assert done.status == 0, done.text


@pytest.mark.parametrize("kind", ["descriptor", "segment", "process", "file"])
def test_leak_is_caught_beside_a_busy_neighbour(suite, neighbour, kind):
    done = suite(*chosen(kind, PASSES), "-n2")
    assert_caught(done, kind, PASSES)


def test_nobody_is_accused_beside_a_busy_neighbour(suite, neighbour):
    done = suite(*chosen("clean", PASSES), "-n2")
    assert closings(done) == {}
    assert done.status == 0, done.text
