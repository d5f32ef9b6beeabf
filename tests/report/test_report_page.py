"""A report as a page of HTML and as a badge: the same figures, nothing from outside."""

from __future__ import annotations

import html
import json
import re
from xml.etree import ElementTree

import pytest
import report_samples as samples
import sharedtensor_conformance.report.page as page_module
from command import call
from report_samples import case, view
from sharedtensor_conformance.examples import read_steps
from sharedtensor_conformance.report import sentences
from sharedtensor_conformance.report.badge import badge_json, badge_svg
from sharedtensor_conformance.report.groups import groups_of
from sharedtensor_conformance.report.markdown import markdown
from sharedtensor_conformance.report.page import page
from sharedtensor_conformance.report.terminal import render
from sharedtensor_conformance.report.verdicts import Need

MIXED = (
    case("SHARE-1"),
    case("GRAD-1", "fail", evidence="x: got 1, not <b>2</b>\x1b[2J", seconds=1.5),
    case("GRAD-2", "fail", expected=True, cause="It sends & forgets."),
    case("GRAD-9", "fail", evidence="something else"),
)


@pytest.fixture(autouse=True)
def no_steps(monkeypatch):
    """Tests that show no steps do without reading all chapters for them."""
    monkeypatch.setattr(page_module, "read_steps", lambda *_: {})


def page_of(report, clauses=samples.CLAUSES):
    return page(view(report, clauses))


def words_of(text):
    """Return the words of a page, as a reader sees them."""
    body = text.partition("<body>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def rows_of(text):
    """Return the cells of the table by chapter."""
    table = text.partition('id="chapters"')[2].partition("</table>")[0]
    return [
        re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", row)
        for row in re.findall(r"<tr>.*?</tr>", table)
    ]


def test_sentence_and_figures_are_those_of_the_terminal_and_of_the_step_summary():
    report = samples.report(MIXED)
    judged = view(report)
    shown = page_of(report)
    assert sentences.verdict(judged) in words_of(shown)
    cells = [[cell.strip() for cell in row] for row in rows_of(shown)]
    lines = [
        row.split("|")[1:-1] for row in markdown(judged).splitlines() if "|" in row
    ]
    head, _, *body = [[cell.strip() for cell in line] for line in lines]
    assert cells == [head, *body]
    terminal = [line.split() for line in render(judged, width=200).splitlines()]
    for row in cells[1:]:
        assert ["." if cell in ("0", "0.0") else cell for cell in row] in terminal


def test_groups_are_those_of_the_terminal_and_what_nobody_expected_is_first():
    report = samples.report(MIXED)
    groups = groups_of(report.cases, report.summary, samples.CLAUSES)
    shown = page_of(report)
    assert re.findall(r"<h3>(\S+)", shown) == [group.first for group in groups]
    assert [group.expected for group in groups] == [False, False, True]
    assert shown.index('id="broken"') < shown.index('id="known"')
    assert 'Start with <a href="#cause-1">GRAD-1' in shown
    assert re.findall(
        r'<details class="group (\w+)" id="cause-(\d)"( open)?', shown
    ) == [
        ("new", "1", " open"),
        ("new", "2", ""),
        ("known", "3", ""),
    ]


def test_group_shows_evidence_and_commands_and_nothing_of_it_is_markup():
    shown = page_of(samples.report(MIXED))
    assert "not &lt;b&gt;2&lt;/b&gt;\\x1b[2J" in shown
    assert "It sends &amp; forgets." in shown
    words = words_of(shown)
    assert "pytest conformance --impl=sample --clause=GRAD-1" in words
    assert "Python 3.11.9, linux, kernel 6.1, 2 processors" in words
    assert "1.5 s" in words


def test_summary_of_a_group_says_why_and_counts_its_own_cases():
    causes = {"expected": True, "cause": "It sends no grad."}
    cases = (
        case("GRAD-1", "fail", evidence="got 1, not 2\nand more"),
        case("GRAD-2", "fail", id="a", **causes),
        case("GRAD-2", "fail", id="b", **causes),
        case("GRAD-2", "hang", id="c", **causes | {"cause": "It waits."}),
    )
    shown = page_of(samples.report(cases))
    lines = re.findall(r"<summary>(<h3>.*?)</summary>", shown, re.DOTALL)
    assert sorted(words_of(f"<body>{line}") for line in lines) == [
        "GRAD-1 The title of GRAD-1 got 1, not 2 MUST, profile grad, new; "
        "cases of GRAD-1: 1 fail; cases with this cause: 1 fail",
        "GRAD-2 The title of GRAD-2 It sends no grad. MUST, profile grad, known; "
        "cases of GRAD-2: 1 hang, 2 fail; cases with this cause: 2 fail",
        "GRAD-2 The title of GRAD-2 It waits. MUST, profile grad, known; "
        "cases of GRAD-2: 1 hang, 2 fail; cases with this cause: 1 hang",
    ]


KNOWN = (*samples.ALL_HELD[:2], MIXED[2], samples.ALL_HELD[3])


@pytest.mark.parametrize(
    ("cases", "colour", "figures"),
    [
        (samples.ALL_HELD, "ok", ["✓ 4 held", "· 1 not claimed"]),
        (KNOWN, "known", ["✓ 3 held", "✗ 1 broken (known)", "· 1 not claimed"]),
        (
            MIXED,
            "no",
            [
                "✓ 1 held",
                "✗ 1 broken (new)",
                "✗ 1 broken (advisory)",
                "✗ 1 broken (known)",
                "· 1 not claimed",
            ],
        ),
    ],
)
def test_figures_say_what_became_of_the_clauses(cases, colour, figures):
    shown = page_of(samples.report(cases))
    assert f'<p class="said {colour}">' in shown
    listed = shown.partition('<ul class="figures">')[2].partition("</ul>")[0]
    items = re.findall(r"<li.*?</li>", listed)
    assert [words_of(f"<body>{item}") for item in items] == figures
    counts = [int(item.split()[1]) for item in figures]
    assert re.findall(r"flex-grow:(\d+)", listed) == [str(count) for count in counts]


def test_group_shows_the_steps_of_its_test(monkeypatch):
    monkeypatch.setattr(page_module, "read_steps", read_steps)
    test = "test_grad.py::test_grad_that_is_present_arrives_with_its_values"
    broken = case("GRAD-2", "fail", evidence="None", id=f"{test}[x]")
    broken = type(broken)(**vars(broken) | {"test": test})
    shown = page_of(samples.report((broken,)))
    assert "<summary>Steps: " in shown
    assert (
        "check.equal" in shown.partition("<summary>Steps: ")[2].partition("</pre>")[0]
    )


def test_page_loads_nothing():
    shown = page_of(samples.report(MIXED))
    assert "<script" not in shown
    assert re.findall(r'(?:src|href)="([^#"][^"]*)"', shown) == ["data:,"]
    assert not re.search(r"url\(|@import", shown)


def test_run_without_a_broken_clause_has_no_causes():
    shown = page_of(samples.report())
    assert 'class="said ok"' in shown
    assert 'id="broken"' not in shown
    assert 'id="known"' not in shown


LACKING = case("SHARE-1", "not-run", needs=Need.SECOND_USER)


def test_page_says_what_the_machine_does_not_permit():
    shown = page_of(samples.report([LACKING, *samples.ALL_HELD[1:]]))
    assert "<b>○&#8239;1</b> not judged here</li>" in shown
    assert '<h2 id="not-here">Not judged here, since this machine' in shown
    item = f"<b>a second user</b>: SHARE-1<br>{Need.SECOND_USER.remedy}"
    assert item in shown
    assert '<td class="not-here">not judged here (needs a second user)</td>' in shown
    assert 'id="unjudged"' not in shown
    assert "not-here" not in page_of(samples.report()).partition("<body>")[2]


def test_clause_that_the_installed_spec_does_not_have_is_shown():
    assert "(not in the installed spec)" in page_of(samples.report(MIXED), clauses={})


@pytest.mark.parametrize(
    ("cases", "options", "said", "colour"),
    [
        (samples.ALL_HELD, {}, "conforms, 4 held", "green"),
        (MIXED, {}, "1 held, 3 broken", "red"),
        (
            (LACKING, *samples.ALL_HELD[1:]),
            {},
            "3 held, 0 broken, 1 not judged here",
            "orange",
        ),
        (
            (*samples.ALL_HELD[:2], MIXED[2], samples.ALL_HELD[3]),
            {},
            "3 held, 1 broken",
            "orange",
        ),
        (samples.ALL_HELD, {"full": False}, "partial, 4 held, 0 broken", "lightgrey"),
        (samples.ALL_HELD, {"missing": 1}, "cut short, 4 held, 0 broken", "lightgrey"),
    ],
)
def test_badge_says_what_became_of_the_clauses(cases, options, said, colour):
    report = samples.report(cases, **options)
    judged = view(report)
    data = json.loads(badge_json(judged))
    assert data == {
        "schemaVersion": 1,
        "label": "shared-tensor-spec",
        "message": said,
        "color": colour,
    }
    picture = ElementTree.fromstring(badge_svg(judged))
    texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert texts == ["shared-tensor-spec", said]


def test_command_writes_page_and_badges(tmp_path):
    report = samples.write(tmp_path / "r.jsonl", samples.lines(samples.report(MIXED)))
    shown, badge = tmp_path / "out" / "r.html", tmp_path / "badge.json"
    called = call("report", report, "--html", shown, "--badge", badge)
    assert called.returncode == 0
    assert "Conformance of sample 1.2" in shown.read_text(encoding="utf-8")
    assert json.loads(badge.read_text())["message"] == "1 held, 3 broken"


def test_badge_of_an_unknown_form_is_refused_before_anything_is_written(tmp_path):
    page_file = tmp_path / "r.html"
    called = call("report", "none", "--html", page_file, "--badge", "badge.png")
    assert called.returncode == 4
    assert called.stderr == (
        "shared-tensor-spec: the badge file badge.png has to end with .svg or .json\n"
    )
    assert not page_file.exists()
