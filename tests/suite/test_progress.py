"""The progress of a run: what its line says, and that only a terminal gets it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace

import pytest
from sharedtensor_conformance.plugin.progress import (
    Clauses,
    TimeEstimate,
    format_duration,
    is_shown,
)
from sharedtensor_conformance.report.records import Case, read_report
from sharedtensor_conformance.report.verdicts import Verdict
from suites import SUITE, environment

COLUMNS = 90
CHOSEN = ("--impl=miniatures:plain", "--case=test_share.py*", "--clause=SHARE-1")
HELD = "--clause=SHARE-3"
LINE = re.compile(
    r"clauses: (?P<held>\d+) held, (?P<new>\d+) new \| "
    r"(?P<done>\d+) of (?P<all>\d+) cases \| \d+ (s|min) left( \| (?P<where>\S+))?"
)


def on_terminal(folder, *options: str, **variables: str) -> tuple[int, list[str]]:
    """Run the suite on a terminal; return its status and what it wrote, by line.

    A line is all that was written to it, each version behind a carriage return.
    """
    ours, theirs = pty.openpty()
    size = struct.pack("HHHH", 40, COLUMNS, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    command = [sys.executable, "-m", "pytest", "--pyargs", SUITE]
    command += ["-p", "no:cacheprovider", *CHOSEN, HELD, *options]
    variables = {"TERM": "xterm"} | variables
    wrote = b""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment() | variables,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as run:
        os.close(theirs)
        while data := read(ours):
            wrote += data
    os.close(ours)
    return run.returncode, plain(wrote.decode()).split("\r\n")


def read(terminal: int) -> bytes:
    """Return what was written, nothing when all writers have gone."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def plain(text: str) -> str:
    """Return the text without colours and titles."""
    return re.sub(r"\x1b\[[\d;]*m|\x1b\][^\x1b\x07]*(\x07|\x1b\\)", "", text)


def seen(versions: str) -> str:
    """Return what a line shows in the end, when later versions lie over earlier."""
    shown = ""
    for version in versions.split("\r"):
        shown = version + shown[len(version) :]
    return shown.rstrip()


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_terminal_shows_how_far_the_run_is(suite, workers):
    report = suite.folder / "report.jsonl"
    status, lines = on_terminal(suite.folder, workers, f"--report={report}")
    (line,) = (line for line in lines if "clauses: " in line)
    versions = [version.rstrip() for version in line.split("\r")]
    found = [LINE.fullmatch(version) for version in versions if "clauses" in version]
    assert all(found), versions
    assert all(len(version) < COLUMNS for version in versions)
    done = [int(one["done"]) for one in found]
    assert done == sorted(done)
    assert done[-1] == int(found[-1]["all"])
    clauses = read_report(report).summary.clauses.values()
    held, broken = ([c.verdict for c in clauses].count(v) for v in ("pass", "fail"))
    assert (int(found[-1]["held"]), int(found[-1]["new"])) == (held, broken)
    assert held
    assert broken
    assert {one["where"] for one in found} == {None, "default-fork"}
    assert seen(line) == ""
    assert status == 1
    text = "\n".join(map(seen, lines))
    assert "does not pass: 1 clause broken (new)." in text
    assert "FFF" not in text
    assert "%]" not in text


@pytest.mark.parametrize(
    ("options", "terminal", "shown"),
    [
        ({}, "xterm", True),
        ({"verbose": -1}, "xterm", False),
        ({"verbose": 1}, "xterm", False),
        ({"capture": "no"}, "xterm", False),
        ({"collectonly": True}, "xterm", False),
        ({}, "dumb", False),
    ],
)
def test_line_is_shown_where_a_terminal_can_rewrite_it(
    monkeypatch, options, terminal, shown
):
    monkeypatch.setenv("TERM", terminal)
    given = {"verbose": 0, "capture": "fd", "collectonly": False} | options
    config = SimpleNamespace(option=SimpleNamespace(**given))
    assert is_shown(config, SimpleNamespace(isatty=True)) is shown
    assert not is_shown(config, SimpleNamespace(isatty=False))


def test_file_gets_no_progress(suite):
    text = suite(*CHOSEN, HELD, "-v").text  # which takes back the -q of all runs here
    assert "clauses: " not in text
    assert "FFF" in text


def case(*clauses: str, verdict: str = "pass", expected: bool = True) -> Case:
    return Case("id", "test", clauses, Verdict(verdict), expected)


@pytest.mark.parametrize(
    ("strict", "said"), [(False, "1 new, 1 advisory"), (True, "2 new")]
)
def test_clauses_are_as_bad_as_their_worst_case_so_far(strict, said):
    clauses = Clauses(strict=strict)
    for one in (
        case("SHARE-1", "SHARE-2"),
        case("SHARE-2", verdict="fail", expected=False),
        case("SHARE-3", verdict="crash"),
        case("SHARE-4", verdict="unsupported"),
        case("SHARE-2"),
        case("MGR-14", verdict="fail", expected=False),
    ):
        clauses.add(one)
    assert str(clauses) == f"clauses: 1 held, {said}, 1 known"


def test_time_left_follows_the_pace_of_the_run():
    clock = TimeEstimate({"a": 100.0, "b": 100.0, "c": 0.0}, workers=1)
    assert clock.left(0.0) == 200.0
    clock.done("a")
    clock.done("a")
    assert clock.left(100.0) == 100.0
    assert 190 < clock.left(210.0) == 200.0
    clock.done("b")
    assert clock.left(400.0) == 0
    assert TimeEstimate({"a": 100.0}, workers=4).left(0.0) == 25.0


def test_time_left_is_told_in_round_figures():
    assert [format_duration(s) for s in (0, 12, 50, 58, 100, 3000, 5400)] == [
        *("5 s", "10 s", "50 s", "1 min", "2 min", "50 min", "1.5 h")
    ]
