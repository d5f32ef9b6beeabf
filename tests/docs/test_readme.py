"""What the README says of Pythons, times and results is what is run and recorded."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from recorded import recorded

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}


def pythons_of_the_sessions() -> list[str]:
    """Return the Pythons that the sessions have."""
    for node in ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PYTHONS":
            return ast.literal_eval(node.value)
    raise LookupError("noxfile.py has no PYTHONS")


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_page_names_the_pythons_that_are_tested(page):
    *others, last = pythons_of_the_sessions()
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert f"tested on {', '.join(others)} and {last}" in text
    assert re.search(rf"runs on Python {re.escape(others[0])} and later", text, re.I)


def test_package_names_the_pythons_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = (one.rpartition(" ")[2] for one in project["classifiers"])
    assert [
        one for one in named if re.fullmatch(r"3\.\d+", one)
    ] == pythons_of_the_sessions()
    assert project["requires-python"] == f">={pythons_of_the_sessions()[0]}"


def test_main_command_takes_about_as_long_as_the_recorded_run():
    found = re.search(r"in about (\w+) minutes on two processors", README)
    report = recorded("reference")
    assert report.run.machine.cpus == 2
    assert abs(report.summary.seconds / 60 - NUMBERS[found[1]]) <= 1


@pytest.mark.sphinx
def test_table_of_results_is_that_of_the_committed_reports(monkeypatch):
    pytest.importorskip("sphinx", reason="the site's own code counts the clauses")
    monkeypatch.syspath_prepend(ROOT / "ci")
    import readme_results

    assert readme_results.readme() == README, "run python ci/readme_results.py"
    listed = set(re.findall(r"^\| ([\w-]+) \|", readme_results.table(), re.MULTILINE))
    reports = {file.stem for file in (ROOT / "docs/reports").glob("*.jsonl")}
    left_out = {name for name in reports if name.endswith("-faults")} | {"numpy-copy"}
    assert listed - {"judged", "---"} == reports - left_out | {"torch-cuda"}
