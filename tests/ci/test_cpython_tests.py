"""CPython's own tests on the drop-in: what differs needs a clause that asks for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "ci"))

import cpython_tests
from outcomes import Outcome

CI = Path(__file__).parents[2] / "ci"
RECORDS = sorted((CI.parent / "docs/reports").glob("cpython-tests-*.json"))

TINY = """
import os
import time
import unittest

import multiprocessing.connection
import multiprocessing.queues

from multiprocessing import util


class TestAlike(unittest.TestCase):
    def test_passes(self):
        self.assertTrue(multiprocessing.connection.wait and multiprocessing.process)

    def test_fails(self):
        self.fail("under both")

    @unittest.skip("not today")
    def test_is_skipped(self):
        pass


class TestDifferent(unittest.TestCase):
    def test_of_a_name(self):
        found = type(multiprocessing.Queue.__self__).__module__
        self.assertTrue(found.startswith("multiprocessing"), found)

    def test_of_a_submodule(self):
        found = multiprocessing.queues.Queue.__module__
        self.assertTrue(found.startswith("multiprocessing"), found)

    def test_of_a_part(self):
        with self.subTest():
            self.assertFalse(is_drop_in())


class TestEnds(unittest.TestCase):
    def test_a_crash(self):
        if is_drop_in():
            os._exit(3)

    def test_that_comes_later(self):
        pass


class TestHangs(unittest.TestCase):
    def test_a_hang(self):
        if is_drop_in():
            multiprocessing.Process(target=time.sleep, args=(600,)).start()


def is_drop_in():
    return "sharedtensor" in multiprocessing.Process.__module__


def install_tests_in_module_dict(module, method):
    multiprocessing.set_start_method(method, force=True)
    classes = (TestAlike, TestDifferent, TestEnds, TestHangs)
    module.update({each.__name__: each for each in classes})
"""

EXCEPTIONS = """
[[exception]]
tests = ["TestDifferent.test_of_a_submodule"{more}]
clause = "{clause}"
reason = "it is another class"
"""


@pytest.fixture
def judge(tmp_path):
    """Return a function that runs the script on tiny tests."""

    def run(*options, more="", clause="CHAN-7"):
        (tmp_path / "tiny_tests.py").write_text(TINY)
        exceptions = tmp_path / "exceptions.toml"
        exceptions.write_text(EXCEPTIONS.format(more=more, clause=clause))
        command = [sys.executable, CI / "cpython_tests.py", "--tests=tiny_tests"]
        record = tmp_path / "record.json"
        return subprocess.run(
            [
                *map(str, command),
                *(f"--exceptions={exceptions}", f"--out={record}", *options),
            ],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def test_what_the_standard_library_passes_alone_needs_a_reason(judge, tmp_path):
    done = judge("--method=fork", "--only=TestDifferent")
    assert done.returncode == 1, done.stderr
    assert (
        "fork TestDifferent.test_of_a_submodule: fail (AssertionError: " in done.stdout
    )
    assert "as CHAN-7 asks\n" in done.stdout
    for test in ("test_of_a_name", "test_of_a_part"):
        told = f"fork TestDifferent.{test}: "
        (line,) = (x for x in done.stdout.splitlines() if x.startswith(told))
        assert line.endswith("WITHOUT A REASON")
    record = json.loads((tmp_path / "record.json").read_text())
    assert [one["clause"] for one in record["differences"]] == ["", "", "CHAN-7"]
    assert datetime.fromisoformat(record["started"]) > datetime(2026, 1, 1, tzinfo=UTC)
    assert {"version", "commit", "python", "kernel", "cpus"} <= set(record)
    (run,) = record["runs"]
    assert run["outcomes"] == {"standard": {"pass": 3}, "reference": {"fail": 3}}


def test_what_both_do_alike_is_no_difference(judge):
    done = judge("--method=spawn", "--only=TestAlike")
    assert done.returncode == 0, done.stdout
    outcomes = "{'fail': 1, 'skip': 1, 'pass': 1}"
    assert f"spawn, standard: {outcomes} in" in done.stdout
    assert f"spawn, reference: {outcomes} in" in done.stdout


def test_crash_and_what_it_kept_from_running_are_differences(judge):
    done = judge("--method=fork", "--only=TestEnds")
    assert done.returncode == 1
    crash = "test_a_crash: crash (the process ended with status 3), WITHOUT A REASON"
    assert crash in done.stdout
    assert "test_that_comes_later: not run, WITHOUT A REASON" in done.stdout
    assert "TestEnds.(end of its process): crash (the proc" in done.stdout


def test_class_that_does_not_end_reaches_its_limit_and_nothing_is_left(judge, tmp_path):
    done = judge("--method=fork", "--only=TestHangs", "--limit=8")
    assert done.returncode == 1
    assert "TestHangs.(end of its process): hang, WITHOUT A REASON" in done.stdout
    assert "TestHangs.test_a_hang" not in done.stdout
    assert run_in(tmp_path) == []


def run_in(folder: Path) -> list[str]:
    """Return the command lines of the processes that find modules in a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(folder) in place.joinpath("environ").read_bytes():
                line = place.joinpath("cmdline").read_bytes().replace(b"\0", b" ")
                found.append(line.decode(errors="replace"))
    return found


@pytest.fixture
def judge_found(monkeypatch, tmp_path):
    """Return a function that judges outcomes as if tests had had them."""
    for name in ("prepare", "mount_if_permitted"):
        monkeypatch.setattr(cpython_tests, name, lambda *ignored: None)
    monkeypatch.setattr(cpython_tests.bounded, "end_with_signals", lambda: None)
    file = tmp_path / "exceptions.toml"
    more = ', "TestAlike.test_passes"'
    file.write_text(EXCEPTIONS.format(more=more, clause="CHAN-7"))

    def judge_outcomes(*options, **reference):
        passed = dict.fromkeys(("TestDifferent.test_of_a_submodule", *MORE), "pass")
        kinds = {"standard": passed, "reference": passed | reference}
        found = {
            subject: {test: Outcome(kind) for test, kind in each.items()}
            for subject, each in kinds.items()
        }
        run = cpython_tests.MethodRun("fork", found)
        monkeypatch.setattr(cpython_tests, "run_method", lambda *ignored: run)
        return cpython_tests.main([f"--exceptions={file}", *options])

    return judge_outcomes


MORE = ("TestAlike.test_passes",)
DIFFERENT = {"TestDifferent.test_of_a_submodule": "fail"}


def test_exception_that_is_not_needed_is_named(judge_found, capsys):
    said = "TestAlike.test_passes: passes, so it needs no exception any more"
    assert judge_found(**DIFFERENT) == 1
    assert said in capsys.readouterr().out
    assert judge_found(**DIFFERENT, **dict.fromkeys(MORE, "fail")) == 0
    assert judge_found("--only=TestD", **DIFFERENT) == 0, "others were not run"
    assert said not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "changes", "said"),
    [
        (["--tests=no_such_tests"], {}, "this Python has no no_such_tests: use one"),
        (["--tests=json"], {}, "json of this Python has another form: adapt LAST_"),
        ([], {"clause": "CHAN-99"}, "names the clause 'CHAN-99'; correct it"),
        (["--exceptions=/no/such.toml"], {}, "/no/such.toml has no exceptions: "),
    ],
)
def test_wrong_use_is_one_sentence(judge, options, changes, said):
    done = judge(*options, **changes)
    assert done.returncode == 4
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_record_has_no_difference_but_the_exceptions(file):
    record = json.loads(file.read_text())
    exceptions = tomllib.loads((CI / "cpython_exceptions.toml").read_text())
    named = {test for one in exceptions["exception"] for test in one["tests"]}
    assert {one["test"] for one in record["differences"]} == named
    assert all(one["clause"] for one in record["differences"])
    assert [run["method"] for run in record["runs"]] == ["fork", "spawn", "forkserver"]
