"""The figures of CPython's own tests, from a record that is there or not."""

import json

import pytest
import tiny_project

CONFIGURATION = tiny_project.FILES["docs/conf.py"] + 'extensions += ["trust"]\n'
PAGE = "---\norphan: true\n---\n# Trust\n\n```{cpython-tests}\n```\n"
RECORD = "docs/reports/cpython-tests.json"


def run(method, **outcomes):
    return {
        "method": method,
        "seconds": {"standard": 40, "reference": 41},
        "outcomes": {"standard": {"pass": 300, "skip": 7}, "reference": outcomes},
    }


def difference(method, clause):
    return {
        "method": method,
        "test": "WithQueue.test_of_a_hook",
        "outcome": "error",
        "said": "AttributeError: no hook",
        "clause": clause,
        "reason": "no thread meets it",
    }


RUNS = [
    run("fork", **{"pass": 298, "skip": 7, "error": 2}),
    run("spawn", **{"pass": 9}),
]


def page_of(site_of, record):
    files = {"docs/conf.py": CONFIGURATION, "docs/faith.md": PAGE, RECORD: record}
    site = site_of({name: text for name, text in files.items() if text is not None})
    return site.page("faith.html"), site.warnings


def test_figures_are_those_of_the_record(site_of):
    differences = [difference("fork", "TINY-1"), difference("spawn", "TINY-1")]
    where = {"started": "2026-11-25T15:48:00+00:00", "commit": "0a1b2c3"}
    record = {"python": "3.11.7", "runs": RUNS, "differences": differences}
    page, warnings = page_of(site_of, json.dumps({**where, **record}))
    assert warnings == ""
    assert "Day of the run: 2026-11-25; commit: 0a1b2c3; Python: 3.11.7." in page
    for shown in ("Python 3.11.7", "<p>298</p>", "2 error", "fork, spawn", "#TINY-1"):
        assert shown in page, shown
    assert page.count("WithQueue.test_of_a_hook") == 1


def test_record_without_differences_says_so(site_of):
    record = {"python": "3.11.7", "runs": RUNS[1:], "differences": []}
    page, _ = page_of(site_of, json.dumps(record))
    assert "The drop-in passes all that the standard library passes." in page
    assert "Day of the run: not recorded; commit: not recorded;" in page


def test_run_that_is_not_there_is_said_to_be_missing(site_of):
    page, warnings = page_of(site_of, None)
    assert warnings == ""
    assert "No such run is committed yet." in page


def test_something_else_is_no_record(site_of):
    with pytest.raises(Exception, match=r"no record of CPython's tests"):
        page_of(site_of, '{"runs": 3}')
