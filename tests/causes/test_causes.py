"""The programs that show deviations, and the script that runs them."""

import importlib
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from sharedtensor_conformance.expectations.programs import (
    code_hash,
    program_names,
    program_text,
)
from sharedtensor_conformance.report.expectations import load_expectations
from sharedtensor_conformance.report.records import read_report

ROOT = Path(__file__).parents[2]
NUMPY = version("numpy")
EXPECTATIONS = ROOT / "conformance/sharedtensor_conformance/expectations"
CAUSES = EXPECTATIONS / "causes"
REPORTS = ROOT / "docs/reports"
LIBRARIES = sorted(folder.name for folder in CAUSES.iterdir() if folder.is_dir())
PROGRAMS = [name for library in LIBRARIES for name in program_names(CAUSES, library)]


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Return the script, as a module that looks for programs in the test's folder."""
    monkeypatch.syspath_prepend(ROOT / "ci")
    script = importlib.import_module("run_causes")
    monkeypatch.setattr(script, "EXPECTATIONS", tmp_path)
    monkeypatch.setattr(script, "CAUSES", tmp_path)
    monkeypatch.setattr(script, "LIMIT", 5)
    return script


@pytest.fixture
def run_causes(script, monkeypatch, tmp_path):
    """Return a function that runs the script over programs given as text."""

    def run(implementation="mine", options=(), **programs):
        monkeypatch.setattr(sys, "argv", ["run_causes.py", implementation, *options])
        (tmp_path / implementation).mkdir(exist_ok=True)
        for name, text in programs.items():
            (tmp_path / implementation / f"{name}.py").write_text(text)
        return script.main()

    return run


def test_deviations_that_show_are_said_to_show(run_causes, capsys):
    assert run_causes(one="print('lost')", two="print('crashed')") == 0
    assert "one: lost\ntwo: crashed\n2 of 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit(1)", "bad: GONE"),
        ("import nothing_of_that_name", "bad: BROKEN, exit code 1"),
        ("import sys; sys.exit(3)", "bad: BROKEN, exit code 3"),
        ("import time; time.sleep(60)", "bad: NO ANSWER within 5 seconds"),
    ],
)
def test_program_that_shows_nothing_fails_the_run(run_causes, capsys, program, said):
    assert run_causes(bad=program, good="print('lost')") == 1
    shown = capsys.readouterr().out
    assert said in shown
    assert "1 of 2" in shown


def test_what_a_program_starts_ends_with_it(run_causes, capsys):
    started = (
        "import subprocess, sys\n"
        "wait = [sys.executable, '-c', 'import signal; signal.pause()']\n"
        "nobody = dict.fromkeys(('stdout', 'stderr'), subprocess.DEVNULL)\n"
        "print(subprocess.Popen(wait, start_new_session=True, **nobody).pid)"
    )
    assert run_causes(one=started) == 0
    number = re.search(r"one: (\d+)", capsys.readouterr().out)[1]
    assert not Path("/proc", number).exists()


def test_programs_about_other_releases_alone_are_left_out(run_causes, tmp_path, capsys):
    entries = [
        ("all", ""),
        ("present", f'version = "=={NUMPY}"'),
        ("later", f'version = ">{NUMPY}"'),
        ("both", f'version = ">{NUMPY}"'),
        ("both", f'version = "<={NUMPY}"'),
    ]
    (tmp_path / "numpy.toml").write_text(
        "".join(
            f'[[expect]]\nreproducer = "numpy/{name}.py"\n{versions}\n'
            for name, versions in entries
        )
    )
    programs = {name: f"print('{name} was run')" for name, _ in entries}
    assert run_causes("numpy", **programs) == 0
    shown = capsys.readouterr().out
    assert "later" not in shown
    assert "3 of 3" in shown


def test_programs_in_a_folder_for_devices_are_run_when_asked_for_and_alone(
    run_causes, tmp_path, capsys
):
    device = tmp_path / "mine" / "device"
    program = "print('lost')"

    def run(*options):
        found = run_causes(options=options, one=program)
        return found, capsys.readouterr().out

    (tmp_path / "mine").mkdir()
    device.mkdir()
    (device / "two.py").write_text(program)
    assert run() == (0, "one: lost\n1 of 1 deviations show.\n")
    assert run("--device") == (0, "two: lost\n1 of 1 deviations show.\n")


def test_a_place_is_found_in_any_folder_of_the_path(script, monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "one.py").write_text("\nclass A:\n    def f(self): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert script.line_of("mine/one.py: A.f") == 3
    assert script.line_of("mine/two.py: f") is None
    assert script.line_of("Lib/queue.py: Queue") > 1


def test_no_programs_are_wrong_use(run_causes, capsys):
    assert run_causes() == 2
    assert "no programs of 'mine'" in capsys.readouterr().out


def named():
    for file in EXPECTATIONS.glob("*.toml"):
        for entry in tomllib.loads(file.read_text())["expect"]:
            if "from" not in entry:  # else it is that of another file
                yield entry["reproducer"]


def test_every_program_is_the_cause_of_an_expectation():
    assert set(PROGRAMS) == set(named())


def test_each_word_of_a_copied_program_is_one_of_its_original():
    for file in CAUSES.glob("*.toml"):
        copied = tomllib.loads(file.read_text()).get("copied")
        for name, own in copied["programs"].items() if copied else ():
            original = program_text(CAUSES, f"{copied['from']}/{name}.py")
            assert [word for word in own if word not in original] == []


def test_program_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match=r"there is no program 'paddle/no\.py'"):
        program_text(CAUSES, "paddle/no.py")


LOST = '"""It is lost.\n\nOften.\n"""\n\nprint(1)\n'


@pytest.mark.parametrize(
    "text",
    [
        LOST.replace("print(1)", "print(2)"),
        LOST.replace("\nOften.\n", ""),  # the numbers of lines in a traceback differ
        LOST.replace("print(1)", "print(1)  # at once"),
        LOST.replace('"""It', 'x = """It'),
    ],
)
def test_other_code_has_another_hash(text):
    assert code_hash(text) != code_hash(LOST)


def test_reworded_docstring_changes_no_hash():
    assert code_hash(LOST.replace("lost", "never received")) == code_hash(LOST)


def test_program_without_a_docstring_has_a_hash():
    assert code_hash("print(1)\n") != code_hash("print(2)\n")


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_knows_nothing_of_this_project(program):
    assert "sharedtensor" not in program_text(CAUSES, program)


@pytest.mark.parametrize(
    "file", sorted(EXPECTATIONS.glob("*.toml")), ids=lambda f: f.stem
)
def test_each_cause_stands_alone(file):
    entries = tomllib.loads(file.read_text())["expect"]
    causes = {one["cause"] for one in entries if "cause" in one}
    elsewhere = re.compile(r"\b(above|below|likewise|the same as before)\b", re.I)
    assert causes
    assert sorted(filter(elsewhere.search, causes)) == []


@pytest.mark.parametrize("file", sorted(REPORTS.glob("*.jsonl")), ids=lambda f: f.stem)
def test_each_cause_of_a_committed_report_is_one_of_its_expectations(file):
    report = read_report(file)
    name = report.run.selection.expectations
    told = {case.cause for case in report.cases if case.cause}
    known = load_expectations(EXPECTATIONS / name).entries if name else ()
    assert told <= {entry.cause for entry in known}
