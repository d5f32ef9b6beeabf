"""The page of the benchmark, from results that are there or not."""

import pytest
import tiny_project
from sharedtensor_bench.results import Result, Results, Subject

CONFIGURATION = tiny_project.FILES["docs/conf.py"] + 'extensions += ["benchmark"]\n'
FORMS = ("beside", "data", "circumstances", "rows", "scaling")
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


def test_a_file_without_results_ends_the_build(site_with):
    from sphinx.errors import ExtensionError

    with pytest.raises(ExtensionError, match=r"rows\.json has no results"):
        site_with('{"schema": 1}')


def test_an_unknown_form_is_an_error(site_of):
    text = PAGE + "```{benchmark} song\n```\n"
    warnings = site_of(PAGES | {"docs/costs.md": text}).warnings
    assert f"results are shown as {', '.join(FORMS)} alone" in warnings
