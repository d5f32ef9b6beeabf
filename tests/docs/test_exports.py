"""The specification and the verdicts in other forms: one page, JSON, CSV, a list."""

import csv
import json
from dataclasses import replace

import pytest
import tiny_project
from sharedtensor_conformance.report.verdicts import Verdict
from tiny_report import case_of, text_of, write_report

CHANGED = {
    "docs/conf.py": tiny_project.FILES["docs/conf.py"].replace(
        '"clauses"', '"clauses", "exports"'
    )
    + 'project = "tiny-spec"\n',
    "docs/index.md": "# Index\n\n```{toctree}\nspec/tiny\npromises\nspec/whole\n```\n",
    "docs/spec/tiny.md": (
        "```{include} ../../spec/tiny.md\n```\n\n## Notes\n\nSee [](#notes).\n"
    ),
    "docs/spec/whole.md": (
        "---\nnosearch: true\n---\n# Whole\n\n```{one-page}\ntiny\n```\n"
    ),
}


@pytest.fixture(scope="module")
def exported(build, tmp_path_factory):
    """The site with the specification in other forms."""
    root = tmp_path_factory.mktemp("exported")
    tiny_project.write_project(root, CHANGED)
    for name in ("docs/tiny.md", "docs/tables.md"):
        (root / name).unlink()
    axes = {"strategy": "file_system", "start_method": "spawn"}
    held = replace(case_of(Verdict.PASS), axes=axes | {"start_method": "fork"})
    forked = replace(held, id=f"{held.test}[fs-fork]")
    for name, cause in (("new", ""), ("known", "It keeps a copy.")):
        broken = replace(case_of(Verdict.FAIL, cause), axes=axes)
        write_report(root, name, broken, forked)
    write_report(root, "good", held)
    return tiny_project.build(root)


def test_one_page_has_the_clauses_without_what_backs_them(exported):
    page = exported.page("spec/whole.html")
    assert exported.warnings == ""
    assert 'id="TINY-1"' in page
    assert 'id="TINY-2"' in page
    assert "Why. More reasons" in text_of(page)
    assert "clause-strip" not in page
    assert "clause-strip" in exported.page("spec/tiny.html")


def test_links_to_clauses_stay_on_the_one_page(exported):
    page = exported.page("spec/whole.html")
    assert 'internal" href="#TINY-2"' in page  # not that of its heading
    assert 'href="../promises.html#P01"' in page


def test_anchor_that_is_no_clause_has_the_name_of_its_chapter(exported):
    page = exported.page("spec/whole.html")
    assert 'id="tiny-notes"' in page
    assert 'id="notes"' not in page
    assert 'id="notes"' in exported.page("spec/tiny.html")


def test_search_finds_a_clause_by_its_id_and_words_but_not_the_one_page(exported):
    text = exported.page("searchindex.js")
    index = json.loads(text.removeprefix("Search.setIndex(").rstrip(")"))
    found = {entry[4]: entry for entry in index["objects"][""]}
    first, second = map(index["docnames"].index, ("spec/TINY-1", "spec/TINY-2"))
    page, _, priority, anchor, _ = found["TINY-1 The first clause"]
    assert (page, priority, anchor) == (first, 0, "%54INY-1")
    assert found["P01 It works"][3] == "%5001"  # the name itself would not be used
    assert index["indexentries"]["tiny-1"] == [[first, "", True]]
    assert index["terms"]["reason"] == [first, second]
    assert index["terms"]["tensor"] == first


def test_clauses_are_there_as_json_with_their_text(exported):
    clauses = json.loads(exported.page("clauses.json"))
    assert [one["id"] for one in clauses] == ["TINY-1", "TINY-2"]
    assert clauses[0]["text"] == "Two tensors over one storage, `tensor` and **words**."
    assert clauses[0]["tests"][0]["name"] == "test_receiver_sees_the_write"
    assert clauses[1]["no_code"] == "The kernel does it."
    assert clauses[1]["page"] == "spec/TINY-2.html"


def test_list_for_programs_has_a_title_a_summary_and_all_pages(exported):
    lines = exported.page("llms.txt").splitlines()
    assert lines[0] == "# tiny-spec"
    assert lines[2].startswith("> ")
    assert "- [TINY](spec/tiny.html)" in lines
    assert "- [Promises](promises.html)" in lines
    assert "- [TINY-2: The second clause](spec/TINY-2.html)" in lines


def test_matrix_is_there_as_json_and_one_column_alone(exported):
    good, known, new = json.loads(exported.page("matrix.json"))
    assert (new["name"], new["version"], new["day"]) == ("new", "7.5", "2026-01-01")
    assert good["clauses"] == {
        "TINY-1": {"outcome": "held", "page": "spec/TINY-1.html"},
        "TINY-2": {"outcome": "not run", "page": "spec/TINY-2.html"},
    }
    assert json.loads(exported.page("implementations/known.json")) == known


def test_known_deviation_is_broken_also_where_no_case_shows_it(exported):
    _, known, new = json.loads(exported.page("matrix.json"))
    assert new["clauses"]["TINY-1"]["broken_with"] == {"file_system": ["spawn"]}
    assert known["clauses"]["TINY-1"] == {
        "outcome": "broken",
        "broken_with": {"file_system": ["fork", "spawn"]},
        "causes": ["It keeps a copy."],
        "page": "spec/TINY-1.html",
    }


def test_matrix_is_there_as_a_table(exported):
    rows = list(csv.DictReader(exported.page("matrix.csv").splitlines()))
    assert [row["clause"] for row in rows] == ["TINY-1", "TINY-2"]
    found = [rows[0][name] for name in ("good", "known")]
    assert found == ["held", "broken, known"]
    assert rows[0]["level"] == "MUST"
