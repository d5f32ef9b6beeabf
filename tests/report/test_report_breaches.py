"""A known deviation breaks what its library promises, or what only this spec does."""

from __future__ import annotations

import pytest
from report_samples import CLAUSES, all_but, case, changed, report, view
from sharedtensor_conformance.report.badge import message
from sharedtensor_conformance.report.known import Breach, Known, in_number
from sharedtensor_conformance.report.markdown import markdown
from sharedtensor_conformance.report.page import page
from sharedtensor_conformance.report.records import ReportError
from sharedtensor_conformance.report.run_view import RunView
from sharedtensor_conformance.report.terminal import render

ENTRY = """
[[expect]]
clause = "{clause}"
outcomes = ["fail"]
cause = "{cause}"
date = 2026-01-02
"""
CAUSES = """
[promises.shared]
says = "It is shared."
source = "https://example.org/docs"

[causes.lost]
promises = ["shared"]
expected = "It arrives."
where = ["lib/send.py: send"]

[causes.late]
no-promise = "Nothing is said of it."
where = ["lib/send.py: send"]
"""


def entry(clause, cause, program="", *, intermittent=False):
    """Return one entry of a file of expectations."""
    more = f'reproducer = "lib/{program}.py"\n' if program else ""
    more += "intermittent = true\n" if intermittent else ""
    return ENTRY.format(clause=clause, cause=cause) + more


@pytest.fixture
def folder(tmp_path):
    """Expectations of one library, with its programs and their causes."""
    programs = tmp_path / "causes" / "lib"
    programs.mkdir(parents=True)
    (programs.parent / "lib.toml").write_text(CAUSES)
    for name in ("lost", "late"):
        (programs / f"{name}.py").write_text('"""A program."""\n')
    return tmp_path


def known(folder, *entries):
    """Return what the entries make known of a sample that has them."""
    (folder / "lib.toml").write_text("".join(entries))
    return Known(with_expectations(report()).run, folder)


def with_expectations(sample):
    """Return a report whose run had the expectations of the library."""
    return changed(sample, "selection", expectations="lib.toml")


def seen(clause, cause="", **more):
    """Return a case that fails by a known cause, or by a new one."""
    return case(clause, "fail", expected=bool(cause), cause=cause, **more)


LOST = entry("GRAD-1", "It is lost.", "lost")
LATE = entry("GRAD-1", "It is late.", "late")
PLAIN = entry("GRAD-1", "Nothing shows it.")


@pytest.mark.parametrize(
    ("causes", "breach"),
    [
        (["It is lost."], Breach.DOCUMENTATION),
        (["It is late."], Breach.SPECIFICATION),
        (["It is late.", "It is lost."], Breach.DOCUMENTATION),
        (["Nothing shows it."], Breach.UNEXPLAINED),
        ([""], Breach.UNEXPLAINED),
        (["It is late.", ""], Breach.UNEXPLAINED),
        (["It is lost.", ""], Breach.DOCUMENTATION),
        (["The words of an earlier report."], Breach.DOCUMENTATION),
    ],
)
def test_clause_breaks_the_gravest_that_its_cases_break(folder, causes, breach):
    cases = [seen("GRAD-1", one, id=f"{n}") for n, one in enumerate(causes)]
    summary = report(all_but("GRAD-1", *cases)).summary
    found = known(folder, LOST, LATE, PLAIN).breaches(cases, summary)
    assert found == {"GRAD-1": breach}


def test_clause_that_held_by_chance_is_broken(folder):
    chance = entry("GRAD-1", "It may be late.", "late", intermittent=True)
    sample, found = report(), known(folder, chance, LOST)
    assert found.breaches(sample.cases, sample.summary) == {
        "GRAD-1": Breach.SPECIFICATION
    }
    others = [one for one in sample.cases if "GRAD-1" not in one.clauses]
    assert found.breaches(others, sample.summary) == {}


def test_malformed_causes_are_said_in_one_sentence(folder):
    (folder / "causes" / "lib.toml").write_text("[causes.lost]\n")
    with pytest.raises(ReportError, match=r"lib.toml: causes.lost violates"):
        known(folder, LOST)


CASES = [
    seen("GRAD-1", "It is lost."),
    seen("GRAD-2", "It is late."),
    seen("GRAD-9", "Nothing shows it."),
    case("SHARE-1"),
]


@pytest.fixture
def shown(folder):
    """A report with a deviation of each kind, as its renderings get it."""
    sample = with_expectations(report(CASES))
    entries = LOST, entry("GRAD-2", "It is late.", "late"), PLAIN
    made = RunView(sample.run, sample.cases, sample.summary, CLAUSES)
    made.__dict__["known"] = known(folder, *entries)
    return made


def test_several_clauses_break_and_one_breaks():
    assert in_number(1, Breach.DOCUMENTATION) == "1 breaks its own documentation"
    assert in_number(2, Breach.DOCUMENTATION) == "2 break its own documentation"
    assert in_number(2, Breach.SPECIFICATION) == "2 differ from this specification"
    assert in_number(0, "held") == "0 held"


SENTENCE = (
    "sample 1.2 has no new failures, but does not conform: 1 clause held, 3 clauses "
    "broken (known: 1 breaks its own documentation, 1 differs from this specification)."
)


@pytest.mark.parametrize("form", [render, markdown, page])
def test_each_form_tells_what_is_promised_from_what_is_not(shown, form):
    text = " ".join(form(shown).split())
    assert SENTENCE in text
    assert "known, breaks its own documentation; cases of GRAD-1: 1 fail" in text
    assert "known, differs from this specification; cases of GRAD-2: 1 fail" in text


def test_table_and_figures_have_a_place_for_each(shown):
    assert shown.columns == [
        *("chapter", "held", "new", "breaks docs", "differs", "known"),
        *("not claimed", "not run", "cases", "seconds"),
    ]
    text = page(shown)
    for words in (
        '<li class="breaks-docs" style="flex-grow:1"><b>✗&#8239;1</b> breaks its own',
        '<li class="differs" style="flex-grow:1"><b>≠&#8239;1</b> differs from this',
        '<li class="known" style="flex-grow:1"><b>✗&#8239;1</b> broken (known)</li>',
        '<details class="group breaks-docs"',
        '<details class="group differs"',
    ):
        assert words in text


def test_badge_counts_what_breaks_a_promise(shown):
    assert message(shown) == (
        "1 held, 3 broken (1 by its documentation)",
        "orange",
    )


def test_clause_that_held_by_chance_is_counted_and_noted(folder):
    chance = entry("GRAD-1", "It may be late.", "late", intermittent=True)
    made = view(with_expectations(report()))
    made.__dict__["known"] = known(folder, chance)
    text = " ".join(render(made).split())
    assert "GRAD-1 passed in this run and still counts as broken, because its" in text
    assert "3 clauses held, 1 clause broken (known: 1 differs" in text
    assert message(made)[0] == "conforms, 3 held"
