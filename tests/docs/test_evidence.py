"""From a clause to its tests, code and mutants: what is found, and what is missing."""

import json
from pathlib import Path

import pytest
import tiny_project
from sharedtensor_conformance.clauses import load_clauses, parse_chapter, parse_clause
from sharedtensor_conformance.cli import clauses, main
from sharedtensor_conformance.definitions import Definitions, Folder
from sharedtensor_conformance.evidence import Sources, problems, read_evidence
from sharedtensor_conformance.spec_source import SpecError

CHAPTERS = "conformance/sharedtensor_conformance/chapters"
MUTANTS = "conformance/sharedtensor_conformance/mutants/chapters"
MEMORY = "reference/sharedtensor/memory.py"


def evidence_of(root, changed=None):
    """Return the evidence of the tiny project, with some of its files changed."""
    tiny_project.write_project(root, changed or {})
    return read_evidence(Sources.of_checkout(root))


def complaints(root, changed=None, chapter=tiny_project.CHAPTER):
    """Return what is wrong with the tiny project."""
    clauses = parse_chapter(chapter, "tiny.md")
    return [str(found) for found in problems(clauses, evidence_of(root, changed))]


def test_each_clause_of_the_spec_leads_to_tests_mutants_and_code():
    evidence = read_evidence(Sources.installed())
    assert evidence.has_reference
    found = map(str, problems(load_clauses().values(), evidence))
    assert list(found) == []


def test_places_have_name_file_and_line(tmp_path):
    evidence = evidence_of(tmp_path)
    [code] = evidence.code
    assert (code.name, code.file, code.line) == (
        *("sharedtensor.memory.Memory.move", MEMORY, 5),
    )
    test, _ = evidence.tests
    assert (test.clauses, test.line) == (("TINY-1",), 2)
    mutant, _ = evidence.mutants
    [place] = mutant.replaces
    assert (place.name, place.file, place.line) == ("memory.Memory.move", MEMORY, 5)


def test_clauses_in_a_tuple_behind_a_star_are_cited_too(tmp_path):
    file = f"{CHAPTERS}/test_tiny.py"
    starred = '@clause("TINY-1", *("TINY-2",), vary=())'
    text = tiny_project.FILES[file].replace('@clause("TINY-1", vary=())', starred)
    assert starred in text
    first, _ = evidence_of(tmp_path, {file: text}).tests
    assert first.clauses == ("TINY-1", "TINY-2")


def test_complete_project_has_no_problem(tmp_path):
    assert complaints(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        (f"{CHAPTERS}/test_tiny.py", "TINY-1 has no test"),
        (f"{MUTANTS}/tiny.py", "TINY-1 has no mutant"),
        (MEMORY, "TINY-1 is cited by no code of the reference"),
    ],
)
def test_clause_without_evidence_is_a_problem(tmp_path, file, complaint):
    found = complaints(tmp_path, {file: ""})
    assert any(complaint in one for one in found)


def test_reason_against_code_and_code_exclude_each_other(tmp_path):
    line = ":no-code: The kernel does it.\n"
    chapter = tiny_project.CHAPTER.replace(line, "").replace(
        ":promises: P01\n", f":promises: P01\n{line}"
    )
    first, second = complaints(tmp_path, chapter=chapter)
    assert "sharedtensor.memory.Memory.move cites it" in first
    assert "TINY-2 is cited by no code of the reference" in second


@pytest.mark.parametrize(
    ("replaces", "complaint"),
    [
        ("", "sends_nothing does not say what it replaces"),
        (
            ', replaces="memory.receive"',
            "sends_nothing replaces memory.receive, which the reference does not",
        ),
    ],
)
def test_mutant_has_to_lead_to_what_it_replaces(tmp_path, replaces, complaint):
    file = f"{MUTANTS}/tiny.py"
    written = ', replaces="memory.send"'
    changed = {file: tiny_project.FILES[file].replace(written, replaces)}
    [found] = complaints(tmp_path, changed)
    assert complaint in found


def test_without_a_reference_nothing_is_said_of_code(tmp_path):
    tiny_project.write_project(tmp_path, {})
    sources = Sources.of_checkout(tmp_path)
    evidence = read_evidence(Sources(sources.tests, sources.mutants, None))
    clauses = parse_chapter(tiny_project.CHAPTER, "tiny.md")
    assert list(problems(clauses, evidence)) == []
    assert [place.file for one in evidence.mutants for place in one.replaces] == [
        "",
        "",
    ]


PACKAGE = {
    "__init__.py": "from .things import Thing as Renamed\n",
    "things.py": (
        "from os import fork\n"
        "from package import base\n"
        "LIMIT = 3\n"
        "if LIMIT:\n"
        "    def chosen(): ...\n"
        "class Thing(base.Base):\n"
        "    kind: str = ''\n"
        "    def own(self): ...\n"
    ),
    "base.py": "class Base:\n    def inherited(self): ...\n",
    "below/__init__.py": "",
    "below/deep.py": (
        "from .. import base\nfrom ..things import LIMIT\ndef sink(): ...\n"
    ),
    "open.py": "globals().update(made())\n",
}


@pytest.fixture(scope="module")
def definitions(tmp_path_factory):
    """What a package of all kinds of definitions defines."""
    root = tmp_path_factory.mktemp("definitions")
    for name, text in PACKAGE.items():
        path = root / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Definitions(Folder(root / "package", root))


@pytest.mark.parametrize(
    ("target", "file", "line"),
    [
        ("things.LIMIT", "things.py", 3),
        ("things.chosen", "things.py", 5),
        ("things.Thing", "things.py", 6),
        ("things.Thing.kind", "things.py", 7),
        ("things.Thing.own", "things.py", 8),
        ("things.Thing.inherited", "base.py", 2),
        ("things.base.Base", "base.py", 1),
        ("things.fork", "things.py", 1),
        ("Renamed.own", "things.py", 8),
        ("below.deep.sink", "below/deep.py", 3),
        ("below.deep.LIMIT", "things.py", 3),
        ("below.deep.base.Base.inherited", "base.py", 2),
        ("below.deep", "below/deep.py", 1),
        ("open.anything", "open.py", 1),
    ],
)
def test_dotted_name_leads_to_its_definition(definitions, target, file, line):
    place = definitions.place(target)
    assert (place.name, place.file, place.line) == (target, f"package/{file}", line)


@pytest.mark.parametrize(
    "target",
    [
        "things.other",
        "things.Thing.other",
        "nothing",
        "things.fork.x",
        "below.deep.x.y",
    ],
)
def test_name_that_nothing_defines_has_no_place(definitions, target):
    assert definitions.place(target).file == ""


def test_installed_packages_are_named_from_their_own_folder(tmp_path, monkeypatch):
    suite = tmp_path / "site-packages" / "sharedtensor_conformance"
    (suite / "chapters").mkdir(parents=True)
    text = tiny_project.FILES[f"{CHAPTERS}/test_tiny.py"]
    (suite / "chapters" / "test_tiny.py").write_text(text, encoding="utf-8")
    module = "sharedtensor_conformance.evidence"
    monkeypatch.setattr(f"{module}.files", lambda name: suite)
    monkeypatch.setattr(f"{module}.importlib.util.find_spec", lambda name: None)
    evidence = read_evidence(Sources.installed())
    assert not evidence.has_reference
    files = {one.file for one in evidence.tests}
    assert files == {"sharedtensor_conformance/chapters/test_tiny.py"}


def test_hash_of_a_clause_does_not_depend_on_its_reason_against_code():
    text = (
        ":level: MUST\n:title: t\n:profile: core\n:observes: values\n\nIt.\n\nWhy. So."
    )
    bare = parse_clause("TINY-1", text, "tiny.md")
    told = parse_clause("TINY-1", f":no-code: The kernel.\n{text}", "tiny.md")
    assert (bare.no_code, told.no_code) == ("", "The kernel.")
    assert bare.hash == told.hash


def test_unknown_option_of_a_clause_is_an_error():
    with pytest.raises(SpecError, match="TINY-1 has an unknown option :no-cod:"):
        parse_chapter(
            tiny_project.CHAPTER.replace(":promises: P01", ":no-cod: None."), "tiny.md"
        )


def test_level_that_no_clause_may_have_is_an_error():
    other = tiny_project.CHAPTER.replace(":level: MUST", ":level: MAY")
    with pytest.raises(SpecError, match=r"TINY-1 needs a :level: of MUST, SHOULD$"):
        parse_chapter(other, "tiny.md")


def test_command_lists_all_clauses(capsys):
    assert main(["clauses"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == list(clauses.HEAD)
    assert [line.split()[0] for line in lines] == list(load_clauses())


def test_command_shows_the_places_of_one_clause(capsys):
    assert main(["clauses", "GRAD-2"]) == 0
    words = capsys.readouterr().out
    assert "GRAD-2  A grad that is present at the send" in words
    shown = " ".join(words.split())
    assert load_clauses()["GRAD-2"].plain_text in shown
    assert "{clause}" in load_clauses()["SHARE-1"].text
    assert "after the write (MEM-1)." in load_clauses()["SHARE-1"].plain_text
    assert f"{CHAPTERS}/test_grad.py:" in words
    assert f"{MUTANTS}/grad.py:" in words
    assert "sharedtensor." in words
    assert "example" not in words


def test_command_prints_json_that_names_places_that_exist(capsys):
    assert main(["clauses", "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    root = Path(__file__).parents[2]
    assert [clause["id"] for clause in found] == list(load_clauses())
    for clause in found:
        assert clause["hash"] == load_clauses()[clause["id"]].hash
        for place in (*clause["tests"], *clause["code"], *clause["mutants"]):
            lines = (root / place["file"]).read_text(encoding="utf-8").splitlines()
            assert 1 <= place["line"] <= len(lines)


def test_command_refuses_an_unknown_clause(capsys):
    assert main(["clauses", "grad-2"]) == 4
    said = "there is no clause 'grad-2': did you mean GRAD-2?"
    assert said in capsys.readouterr().err
    assert main(["clauses", "nothing"]) == 4
    assert "'nothing': run 'clauses' to list them" in capsys.readouterr().err
