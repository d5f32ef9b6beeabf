"""Other forms of a report: JUnit XML, Markdown, and the difference of two."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from report_samples import ALL_HELD, case, report, view
from sharedtensor_conformance.report.diff import compare
from sharedtensor_conformance.report.junit import junit_xml
from sharedtensor_conformance.report.markdown import fenced, markdown
from sharedtensor_conformance.report.verdicts import Need

MIXED = (
    case("SHARE-1", id="test_share.py::held[a]", seconds=0.5),
    case(
        "GRAD-1", "fail", id="test_grad.py::new[a]", evidence="bad \x00\x1b <&> \udc80"
    ),
    case("GRAD-1", "hang", id="test_grad.py::known[a]", expected=True, cause="why"),
    case(
        "GRAD-2",
        "crash",
        id="test_grad.py::later[a]",
        repeated="vanished",
        evidence="x",
    ),
    case("GRAD-2", "error", id="test_grad.py::ours[a]"),
    case("GRAD-9", "not-run", id="test_grad.py::nowhere[a]", evidence="no device"),
    case("GRAD-9", "follows", id="test_grad.py::as_known[a]"),
    case("CUDA-1", id="test_cuda.py::there[a]", device="simulated"),
)


def _xml(sample):
    return ElementTree.fromstring(junit_xml(sample).encode("utf-8"))


def _outcome(root, name):
    found = root.find(f".//testcase[@name='{name}']")
    assert found is not None
    return found[0] if len(found) else None


def test_junit_counts_add_up():
    root = _xml(report(MIXED))
    counts = {key: root.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "8", "failures": "2", "errors": "1", "skipped": "3"}
    for key in counts:
        assert sum(int(suite.get(key)) for suite in root) == int(counts[key])
    assert [suite.get("name") for suite in root] == [
        "test_cuda.py",
        "test_grad.py",
        "test_share.py",
    ]
    assert root.find("testsuite[@name='test_share.py']").get("time") == "0.500"


def test_junit_outcomes_follow_the_verdicts():
    root = _xml(report(MIXED))
    assert _outcome(root, "held[a]") is None
    assert _outcome(root, "new[a]").tag == "failure"
    assert _outcome(root, "new[a]").get("type") == "fail"
    assert _outcome(root, "new[a]").text == "bad \\x00\\x1b <&> \\xdc80"
    assert _outcome(root, "known[a]").tag == "skipped"
    assert _outcome(root, "known[a]").get("message") == "hang: GRAD-1 (known: why)"
    assert "state-dependent" in _outcome(root, "later[a]").get("message")
    assert _outcome(root, "ours[a]").tag == "error"
    assert _outcome(root, "nowhere[a]").tag == "skipped"
    assert _outcome(root, "as_known[a]").get("message") == "follows: GRAD-9"
    assert _outcome(root, "there[a] (simulated)") is None


@pytest.mark.parametrize("cut", [{"missing": 1}, {}])
def test_junit_of_a_run_that_was_cut_short_has_an_error(cut):
    sample = report(ALL_HELD, **cut)
    whole = sample if cut else replace(sample, summary=None)
    root = _xml(whole)
    assert root.get("errors") == "1"
    assert _outcome(root, "the run reached its end").tag == "error"
    assert _xml(report(ALL_HELD)).get("errors") == "0"


def test_a_case_id_with_colons_in_its_parameters_is_split_at_the_test():
    sample = report([case("SHARE-1", id="test_share.py::held[a::b.c]")])
    found = _xml(sample).find(".//testcase")
    assert found is not None
    assert found.get("classname") == "test_share"
    assert found.get("name") == "held[a::b.c]"


def test_markdown_has_sentence_table_and_details():
    sample = report(MIXED, stale=["sample.toml: entry 1"])
    page = markdown(view(sample))
    assert page.startswith(
        "### Conformance of sample 1.2\n\nsample 1.2 does not pass: "
    )
    assert "| chapter | held | new | not claimed | not run | cases |" in page
    assert "| CUDA (simulated) | 1 | 0 | 0 | 0 | 1 |" in page
    said = "MUST, profile grad, new; cases of GRAD-1: 1 hang, 1 fail"
    assert f"<b>GRAD-1</b> The title of GRAD-1 ({said})" in page
    assert "state-dependent: 1 of 1 broken case held when repeated" in page
    assert "--clause=GRAD-1 '--case=test_grad.py::new[a]'" in page
    assert "(stale expectations): sample.toml: entry 1" in page


def test_markdown_is_not_broken_by_what_it_shows():
    sample = report(
        [case("GRAD-1", "fail", evidence="```\n</details>", cause="<b> | _x_")],
        version="1|2",
    )
    page = markdown(view(sample))
    assert "### Conformance of sample 1\\|2" in page
    assert "&lt;b&gt; \\| \\_x\\_" in page
    assert "\n````text\n" in page
    assert fenced("````").startswith("`````text\n")


BEFORE = [
    case("SHARE-1", id="a"),
    case("GRAD-1", "fail", id="b"),
    case("GRAD-2", id="c"),
    case("GRAD-9", id="d"),
]


def _compared(after):
    return compare(report(BEFORE), report(after))


def test_equal_reports_have_no_difference():
    comparison = _compared(BEFORE)
    assert not comparison.newly_broken
    nothing = "0 newly broken, 0 newly held, 0 no longer judged"
    assert comparison.render() == f"clauses: {nothing}\ncases: {nothing}"


def test_a_difference_names_clauses_and_cases():
    comparison = _compared(
        [
            case("SHARE-1", "crash", id="a"),
            case("GRAD-1", id="b"),
            case("GRAD-2", "not-run", id="c"),
        ]
    )
    assert comparison.newly_broken
    counts = "1 newly broken, 1 newly held, 2 no longer judged"
    clauses = [
        "clauses newly broken (1)\n  SHARE-1: held, now broken (new)",
        "clauses newly held (1)\n  GRAD-1: broken (new), now held",
        "clauses no longer judged (2)\n  GRAD-2: held, now not run\n"
        "  GRAD-9: held, now not in B",
    ]
    cases = [
        "cases newly broken (1)\n  a: pass, now crash",
        "cases newly held (1)\n  b: fail, now pass",
        "cases no longer judged (2)\n  c: pass, now not-run\n  d: pass, now not in B",
    ]
    assert comparison.render(cases=True).split("\n\n") == [
        f"clauses: {counts}\ncases: {counts}",
        *(clauses + cases),
    ]
    assert comparison.render().split("\n\n") == [
        f"clauses: {counts}\ncases: {counts} (--cases lists them)",
        *clauses,
        cases[0],
    ]


def test_a_difference_says_what_the_machine_does_not_permit():
    after = [*BEFORE[:3], case("GRAD-9", "not-run", id="d", needs=Need.SECOND_USER)]
    said = "not judged here (needs a second user)"
    text = _compared(after).render(cases=True)
    assert f"  GRAD-9: held, now {said}\n" in text
    assert text.endswith(f"  d: pass, now {said}")
    back = compare(report(after), report(BEFORE)).render()
    assert f"GRAD-9: {said}, now held" in back


HERE = case("SHARE-1", "not-run", id="a::b", needs=Need.SECOND_USER, evidence="no user")


def test_junit_says_what_the_machine_does_not_permit():
    found = _outcome(_xml(report([HERE])), "b")
    assert found.get("message") == "not judged here (needs a second user): SHARE-1"
    assert (found.tag, found.text) == ("skipped", "no user")


def test_markdown_says_what_the_machine_does_not_permit():
    sample = report([HERE, *ALL_HELD[1:]])
    page = markdown(view(sample))
    assert "passes: 3 clauses held, 1 not judged here." in page
    lacking = f"a second user: {Need.SECOND_USER.remedy}"
    line = f"- not judged here: SHARE-1, since the machine does not permit {lacking}\n"
    assert line.replace("_", r"\_") in page


@pytest.mark.parametrize(
    ("after", "is_newly_broken"),
    [
        ([*BEFORE, case("GRAD-1", "fail", id="e")], True),
        ([case("SHARE-1", "fail", id="a", expected=True), *BEFORE[1:]], True),
        ([BEFORE[0], case("GRAD-1", "crash", id="b"), *BEFORE[2:]], False),
    ],
    ids=["a new case", "expected", "in another way"],
)
def test_what_is_broken_and_was_not_is_newly_broken(after, is_newly_broken):
    comparison = _compared(after)
    assert comparison.newly_broken == is_newly_broken
    is_new = after[-1].id == "e"
    assert ("  e: not in A, now fail" in comparison.render()) == is_new


def test_a_case_that_was_not_run_since_it_follows_is_no_change():
    follows = case("GRAD-1", "follows", id="b")
    assert _compared([BEFORE[0], follows, *BEFORE[2:]]).cases == ()
    assert compare(report([follows]), report([BEFORE[1]])).cases == ()
