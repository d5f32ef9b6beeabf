"""The page of the benchmark, from results that are there or not."""

import re

import pytest
import tiny_project
from sharedtensor_conformance.bench.results import Result, Results, Subject

CONFIGURATION = tiny_project.FILES["docs/conf.py"] + 'extensions += ["benchmark"]\n'
FORMS = ("beside", "data", "circumstances", "rows", "scaling", "plot")
PAGE = "---\norphan: true\n---\n# Costs\n\n" + "".join(
    f"```{{benchmark}} {form}\n```\n\n" for form in FORMS
)
PAGES = {"docs/conf.py": CONFIGURATION, "docs/costs.md": PAGE}
MACHINE = {
    **{"processor": "A processor", "cores": 2, "kernel": "Linux 6", "load": 9.5},
    **{"python": "3.11.7", "wake_up": {"mode": "slow", "median_us": 61.0}},
}
ROW = ("resend-held-one-way", "pipe", "fork", "us")


def results():
    subjects = [Subject("reference", "file_system"), Subject("stdlib", "default")]
    found = [
        Result("reference", "file_system", *ROW, [40.0, 44.0], [20.0, 22.0]),
        Result("stdlib", "default", *ROW, absent="not claimed: views"),
    ]
    point = {"what": "size", "to": 4096, "implementation": "reference"}
    point |= {"strategy": "file_system", "median": 17.5, "absent": ""}
    day = "2026-11-21T06:00:00+00:00"
    return Results(day, MACHINE, {"repeats": 2}, subjects, found, [point])


@pytest.fixture
def site_with(site_of):
    """Build the site with the text of a file of results, or with none."""
    pytest.importorskip("matplotlib", reason="it draws the plot")

    def built(text=None):
        more = {} if text is None else {"docs/reports/bench/rows.json": text}
        return site_of(PAGES | more)

    return built


def test_where_nothing_was_measured_the_page_says_so(site_with):
    site = site_with()
    assert site.warnings == ""
    assert site.page("costs.html").count("Nothing has been measured yet") == len(FORMS)


def test_results_are_shown_with_their_machine(site_with):
    site = site_with(results().as_json())
    page = site.page("costs.html")
    assert site.warnings == ""
    assert "42.0 us (2.0 times the floor)" in page
    assert "not claimed: views" in page
    assert "17.5 us" in page
    assert "wake-up: slow (61.0 us" in page
    assert "busy with other work (load 9.5 on 2 cores)" in page
    assert page.count("<svg") == 1


PROFILE = """{"repeats": 7, "messages": 5, "steps": {"fd": {"make": 3, "share": 4.4},
"fs": {"make": 3, "share": 9}}, "starts": {"Python": 19.6}, "sides": {
"fs": {"sender": {"Python": 50, "kernel": 21},
"manager": {"Python": 2, "kernel": 4}}}}"""
PROFILED = "---\norphan: true\n---\n# Steps\n\n```{benchmark-profile} of.json\n```\n"


def test_a_profile_has_a_line_for_each_step_and_their_sums(site_of):
    files = PAGES | {"docs/costs.md": PROFILED, "docs/of.json": PROFILE}
    page = site_of(files).page("costs.html")
    assert "Medians of 7 repeats of 5 messages" in page
    assert "7 us" in page
    assert "12 us" in page
    assert "20 ms" in page
    lines = re.findall(r"<tr.*?</tr>", page, re.DOTALL)
    cells = [re.findall(r"<p>(.*?)</p>", line) for line in lines]
    assert ["fs", "sender", "50 us", "21 us", "71 us"] in cells
    assert ["fs", "total", "52 us", "25 us", "77 us"] in cells


@pytest.mark.parametrize("directive", ["benchmark-profile", "suite-profile"])
def test_a_profile_that_is_missing_is_said_to_be(site_of, directive):
    text = PROFILED.replace("benchmark-profile", directive)
    page = site_of(PAGES | {"docs/costs.md": text}).page("costs.html")
    assert "no profile is committed" in page


SUITE = """{"cases": 40, "wall": 20.0, "cores": 2, "python": "3.13.0",
"options": ["-n", "2"], "kinds": [
{"kind": "owners", "processes": 9, "seconds": 20.5, "median_ms": 240},
{"kind": "supervisors", "processes": 9, "seconds": 9.5, "median_ms": 61}]}"""


def test_the_suite_s_processes_are_shown_by_their_kind(site_of):
    text = PROFILED.replace("benchmark-profile", "suite-profile")
    page = site_of(PAGES | {"docs/costs.md": text, "docs/of.json": SUITE}).page(
        "costs.html"
    )
    assert "20 s on 2 cores, and 30 s of processor time" in page
    assert "75% of what was available" in page
    assert "240 ms" in page
    assert "9.5 s" in page


def test_a_file_without_results_ends_the_build(site_with):
    from sphinx.errors import ExtensionError

    with pytest.raises(ExtensionError, match=r"rows\.json has no results"):
        site_with('{"schema": 1}')


def test_an_unknown_form_is_an_error(site_of):
    text = PAGE + "```{benchmark} song\n```\n"
    warnings = site_of(PAGES | {"docs/costs.md": text}).warnings
    assert f"results are shown as {', '.join(FORMS)} alone" in warnings
