"""What the programs that show deviations printed, as it is recorded for the site."""

import importlib
import json
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from recorded import REPORTS, recorded
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.expectations.programs import (
    code_hash,
    program_names,
    program_text,
)
from sharedtensor_conformance.report.causes import OF_THE_SITE, load_causes
from sharedtensor_conformance.report.expectations import load_expectations

ROOT = Path(__file__).parents[2]
EXPECTATIONS = ROOT / "conformance/sharedtensor_conformance/expectations"
CAUSES = EXPECTATIONS / "causes"
REPORTED = ("torch", "paddle", "mindspore", "shared-ndarray2", "tensordict")

PROGRAM = "import sys\nprint(f'it is in {sys.prefix}/lib')\n"
WHERE = '[causes.one]\nno-promise = "It is small."\nwhere = ["{}"]\n'


@pytest.fixture
def record(monkeypatch, tmp_path):
    """Run the script over one program with `--out`, and return what it recorded."""
    monkeypatch.syspath_prepend(ROOT / "ci")
    script = importlib.import_module("run_causes")
    monkeypatch.setattr(script, "CAUSES", tmp_path)
    out = tmp_path / "record.json"

    def recorded(program=PROGRAM, place="Lib/queue.py: Queue.put", name="numpy"):
        monkeypatch.setattr(sys, "argv", ["run_causes.py", name, f"--out={out}"])
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.py").write_text(program)
        (tmp_path / f"{name}.toml").write_text(WHERE.format(place))
        status = script.main()
        return json.loads(out.read_text()) if out.exists() else status

    return recorded


def test_record_has_output_program_and_machine(record):
    found = record()
    assert found["programs"]["one"] == {
        "sha256": code_hash(PROGRAM),
        "output": "it is in PREFIX/lib",
    }
    assert found["version"] == version("numpy")
    assert found["python"] == platform.python_version()
    assert found["kernel"] == f"{platform.system()} {platform.release()}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])


def test_version_is_found_where_the_module_is_written_in_another_way(record):
    assert record(name="markdown-it")["version"] == version("markdown-it-py")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("Lib/queue.py: Queue.put", "def put(self"),
        ("Lib/multiprocessing/reduction.py: recvfds", "def recvfds("),
        ("numpy/lib/_version.py: NumpyVersion", "class NumpyVersion"),
    ],
)
def test_line_of_a_function_is_found(record, place, text):
    line = record(place=place)["lines"][place]
    file, _, _ = place.partition(": ")
    module = file.removeprefix("Lib/").removesuffix(".py").replace("/", ".")
    source = Path(importlib.util.find_spec(module).origin)
    assert source.read_text().splitlines()[line - 1].strip().startswith(text)


@pytest.mark.parametrize("place", ["Lib/queue.py: Queue.push", "Lib/kew.py: Queue"])
def test_place_that_is_not_there_is_refused(record, place):
    with pytest.raises(SystemExit, match=rf"these places do not exist: {place}"):
        record(place=place)


def test_place_in_other_sources_is_not_looked_for(record):
    assert record(place="aten/Map.cpp: Map::Map")["lines"] == {}


def test_nothing_is_recorded_of_a_deviation_that_has_gone(record):
    assert record(program="raise SystemExit(1)") == 1


@pytest.mark.parametrize("name", REPORTED)
def test_committed_record_is_of_the_present_programs_and_version(name):
    found = json.loads((REPORTS / "causes" / f"{name}.json").read_text())
    programs = {
        Path(program).stem: code_hash(program_text(CAUSES, program))
        for program in program_names(CAUSES, name)
        if program.count("/") == 1
    }
    assert {key: one["sha256"] for key, one in found["programs"].items()} == programs
    for one in found["programs"].values():
        assert one["output"]
        assert set(re.findall(r"(?<!\w)/(\w+)/", one["output"])) <= {"dev"}
    judged = recorded(name).run.implementation
    assert found["version"] == judged.version


@pytest.mark.parametrize("name", REPORTED)
def test_line_of_each_place_in_python_is_recorded(name):
    found = json.loads((REPORTS / "causes" / f"{name}.json").read_text())
    causes = load_causes(CAUSES / f"{name}.toml").causes.values()
    places = {place for cause in causes for place in cause.where}
    assert set(found["lines"]) == {place for place in places if ".py: " in place}


def answered(name):
    """Return the promises that the clauses of each program answer.

    A program may be about a case that is newer than the report of its library; the
    report of the reference has each case of today.
    """
    clauses, found = load_clauses(), {}
    cases = [*recorded(name).cases, *recorded("reference").cases]
    for entry in load_expectations(EXPECTATIONS / f"{name}.toml").entries:
        about = {id for case in cases if entry.concerns(case) for id in case.clauses}
        promises = {promise for id in about for promise in clauses[id].promises}
        found.setdefault(Path(entry.reproducer).stem, set()).update(promises)
    return found


@pytest.mark.parametrize("name", REPORTED)
def test_promise_of_the_site_is_one_that_a_broken_clause_answers(name):
    causes = load_causes(CAUSES / f"{name}.toml").causes
    known, wrong = answered(name), []
    for program, cause in causes.items():
        names = set(filter(OF_THE_SITE.fullmatch, cause.promises))
        if names and not names & known[program]:
            wrong.append(program)
    assert wrong == []
