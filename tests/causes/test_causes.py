"""The programs that show deviations, and the script that runs them."""

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPECTATIONS = ROOT / "conformance/sharedtensor_conformance/expectations"
CAUSES = EXPECTATIONS / "causes"


@pytest.fixture
def run_causes(monkeypatch, tmp_path):
    """Return a function that runs the script over programs given as text."""
    spec = importlib.util.spec_from_file_location(
        "run_causes", ROOT / "ci" / "run_causes.py"
    )
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "CAUSES", tmp_path)
    monkeypatch.setattr(script, "LIMIT", 5)
    monkeypatch.setattr(sys, "argv", ["run_causes.py", "mine"])

    def run(**programs):
        (tmp_path / "mine").mkdir()
        for name, text in programs.items():
            (tmp_path / "mine" / f"{name}.py").write_text(text)
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


def test_no_programs_are_wrong_use(run_causes, capsys):
    assert run_causes() == 2
    assert "no causes of 'mine'" in capsys.readouterr().out


def named():
    for file in EXPECTATIONS.glob("*.toml"):
        for entry in tomllib.loads(file.read_text())["expect"]:
            if "from" not in entry:  # else it is that of another file
                yield entry["reproducer"]


def test_every_program_is_the_cause_of_an_expectation():
    programs = {str(p.relative_to(CAUSES)) for p in CAUSES.glob("*/*.py")}
    assert programs == set(named())


@pytest.mark.parametrize("program", sorted(CAUSES.glob("*/*.py")), ids=lambda p: p.stem)
def test_program_knows_nothing_of_this_project(program):
    assert "sharedtensor" not in program.read_text()
