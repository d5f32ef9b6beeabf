"""The picture of the field, the matrix and the pages of implementations."""

import re
from collections import Counter
from pathlib import Path

import pytest
import tiny_project
from recorded import recorded
from sharedtensor_conformance.clauses import parse_chapter
from sharedtensor_conformance.report.judge import Standing, standing
from sharedtensor_conformance.report.verdicts import Need, Verdict
from test_extension import text_of, write_report

ROOT = Path(__file__).parents[2]
EXPECTATIONS = "conformance/sharedtensor_conformance/expectations"

CHANGED = {
    "docs/conf.py": tiny_project.FILES["docs/conf.py"]
    + 'clauses_implementations = ["good", "bad"]\n'
    + 'clauses_matrix = "tables"\n',
    "docs/index.md": (
        "# Index\n\n```{field}\n```\n\n```{toctree}\ntiny\npromises\ntables\n"
        "implementations/bad\nimplementations/good\n```\n"
    ),
    "docs/implementations/bad.md": "# bad\n\n```{implementation} bad\n```\n",
    "docs/implementations/good.md": "# good\n\n```{implementation} good\n```\n",
    f"{EXPECTATIONS}/bad.toml": (
        '[[expect]]\nclause = "TINY-1"\noutcomes = ["fail"]\n'
        'cause = "It keeps a <copy>."\nreproducer = "bad/keeps.py"\n'
        'link = "https://example.org/thread/7"\ndate = 2026-01-02\n'
    ),
    f"{EXPECTATIONS}/causes/bad/keeps.py": '"""Keeps a copy."""\n',
}


@pytest.fixture(scope="module")
def shown(build, tmp_path_factory):
    """The site with a report that holds, one that does not, and one of a control."""
    root = tmp_path_factory.mktemp("field")
    tiny_project.write_project(root, CHANGED)
    hashes = {
        clause.id: clause.hash
        for clause in parse_chapter(tiny_project.CHAPTER, "tiny.md")
    }
    write_report(root, "good", Verdict.PASS, hashes)
    known = {"cause": "It keeps a <copy>.", "expectations": "bad.toml"}
    write_report(root, "bad", Verdict.FAIL, hashes, **known)
    write_report(root, "control", Verdict.FAIL, hashes, cause="")
    return build(root, CHANGED)


def test_pages_are_built_without_a_warning(shown):
    assert shown.warnings == ""


def test_picture_shows_what_is_held_and_broken_and_leads_into_the_matrix(shown):
    page = shown.page("index.html")
    links = dict(re.findall(r'href="(tables[^"]+)"[^>]*title="([^"]+)"', page))
    assert links == {
        "tables.html?implementation=good&amp;verdict=held": "good: 1 held",
        "tables.html?implementation=good&amp;verdict=not-run": "good: 1 not run",
        "tables.html?implementation=bad&amp;verdict=broken": "bad: 1 broken",
        "tables.html?implementation=bad&amp;verdict=not-run": "bad: 1 not run",
        "tables.html?chapter=TINY&amp;implementation=good#matrix-TINY": (
            "1 held, 1 not run"
        ),
        "tables.html?chapter=TINY&amp;implementation=bad#matrix-TINY": (
            "1 broken, 1 not run"
        ),
    }
    assert 'id="matrix-TINY"' in shown.page("tables.html")


def test_control_is_in_the_matrix_and_not_in_the_picture(shown):
    assert "control" not in text_of(shown.page("index.html"))
    assert "control" in text_of(shown.page("tables.html"))


def test_matrix_opens_cause_date_program_and_thread_of_a_deviation(shown):
    page = shown.page("tables.html")
    assert 'popovertarget="behind-TINY-1-bad"' in page
    box = page.partition('id="behind-TINY-1-bad"')[2].partition("</div>")[0]
    assert "It keeps a &lt;copy&gt;." in box
    assert "Known since 2026-01-02." in box
    program = f"source/{EXPECTATIONS}/causes/bad/keeps.py.html"
    assert f'href="{program}"' in box
    assert "Keeps a copy." in shown.page(program)
    assert 'href="https://example.org/thread/7"' in box
    assert 'href="tiny.html#TINY-1-bad"' in box


def test_matrix_says_where_nobody_has_written_down_why(shown):
    page = shown.page("tables.html")
    box = page.partition('id="behind-TINY-1-control"')[2].partition("</div>")[0]
    assert "No cause is recorded." in box


def test_matrix_marks_rows_and_columns_for_its_filters(shown):
    page = shown.page("tables.html")
    assert '<tr data-level="MUST" data-profile="core">' in page
    assert '<tr data-level="SHOULD" data-profile="core">' in page
    assert re.findall(r'data-implementation="([^"]+)"', page) == [
        "good",
        "bad",
        "control",
    ]


def test_page_of_an_implementation_tells_causes_gaps_and_commands(shown):
    page = shown.page("implementations/bad.html")
    words = text_of(page)
    assert "✗ 1 broken" in words
    assert "TINY-1 : It keeps a &lt;copy&gt;." in words
    assert "known since 2026-01-02, program that shows it" in words
    assert "expected 40, got 2" in words
    assert "the clause is newer than the recorded run" in words
    assert "reproduce" not in words
    assert "$ pytest conformance --impl=bad" in re.sub(r"<[^>]+>", "", page)
    assert 'href="../tiny.html#TINY-1"' in page
    assert "has changed since they were judged" not in words


def test_page_of_an_implementation_names_the_clauses_that_changed_since(
    build, tmp_path
):
    tiny_project.write_project(tmp_path, CHANGED)
    write_report(tmp_path, "bad", Verdict.FAIL, {"TINY-1": "0" * 12})
    page = build(tmp_path, CHANGED).page("implementations/bad.html")
    told = "The text of these clauses has changed since they were judged: TINY-1"
    assert told in text_of(page)


def test_what_the_machine_does_not_permit_is_apart_with_its_need(
    build, tmp_path, monkeypatch
):
    tiny_project.write_project(tmp_path, CHANGED)
    write_report(tmp_path, "good", Verdict.NOT_RUN, {}, needs=Need.SECOND_USER)
    write_report(tmp_path, "bad", Verdict.PASS, {})
    site = build(tmp_path, CHANGED)
    why = f"the machine does not permit a second user: {Need.SECOND_USER.remedy}"
    assert "good: 1 not judged here" in site.page("index.html")
    assert '<td class="not-judged-here">' in site.page("tables.html")
    for page in ("tables.html", "tiny.html"):
        words = text_of(site.page(page))
        assert "○ not judged here" in words
        assert f"Not judged, since {why}." in words
    page = text_of(site.page("implementations/good.html"))
    assert f"{why} 1 TINY-1" in page
    assert "not judged here" not in text_of(site.page("implementations/bad.html"))
    monkeypatch.syspath_prepend(ROOT / "ci")
    import readme_results
    from clauses.reports import columns, read_all

    notes = [readme_results.not_here(one) for one in columns(read_all(tmp_path, []))]
    assert notes == ["", f"Of the clauses of good 1 were not judged, since {why}."]


def test_page_of_an_implementation_that_breaks_nothing_says_so(shown):
    assert "each clause that was judged held" in shown.page("implementations/good.html")


def test_clause_shows_the_program_and_the_date_of_a_deviation(shown):
    words = text_of(shown.page("tiny.html"))
    assert "known since 2026-01-02, program that shows it" in words


def test_each_verdict_counts_as_what_the_suite_counts_it(build):
    from clauses.outcomes import Outcome, outcome_of

    same = {
        Outcome.HELD: {Standing.HELD},
        Outcome.BROKEN: {Standing.BROKEN, Standing.ADVISORY, Standing.EXPECTED},
        Outcome.NOT_CLAIMED: {Standing.UNSUPPORTED},
        Outcome.NOT_RUN: {Standing.NOT_RUN},
        Outcome.NOT_HERE: {Standing.NOT_HERE},
    }
    report = recorded("stdlib")
    results = report.summary.clauses.values()
    ours = Counter(outcome_of(result.verdict) for result in results)
    theirs = Counter(standing(report.run, result) for result in results)
    assert len(ours) > 2
    for outcome, standings in same.items():
        assert ours[outcome] == sum(theirs[one] for one in standings)


def test_each_judged_implementation_has_a_page():
    names = {
        path.stem.removesuffix("-faults")
        for path in (ROOT / "docs" / "reports").glob("*.jsonl")
    }
    pages = {path.stem for path in (ROOT / "docs" / "implementations").glob("*.md")}
    assert pages == names | {"index"}
