"""The figures of the simulation of the manager, from a record that is there or not."""

import json

import pytest
import tiny_project

CONFIGURATION = tiny_project.FILES["docs/conf.py"] + 'extensions += ["trust"]\n'
PAGE = "---\norphan: true\n---\n# Trust\n\n```{manager-simulation}\n```\n"
RECORD = "docs/reports/manager-simulation.json"

SEARCH = {
    "sentence": "Each makes a name.",
    "manager_kills": 1,
    "client_kills": 0,
    "deepest": 65,
    "violation": "",
}
MUTANT = {"sentence": "It forgets.", "steps": 85, "seconds": 0.1}
WHERE = {"started": "2026-11-25T15:48:00+00:00", "commit": "0a1b2c3", "python": "3.11"}
WHOLE = {
    **WHERE,
    "invariants": {"nobody_waits": "Somebody can go on."},
    "runs": {
        "first_seed": 0,
        "runs": 7,
        "steps": 600,
        "steps_per_minute": 900,
        "violations": [],
    },
    "searches": [
        {**SEARCH, "states": 3848, "is_complete": True},
        {**SEARCH, "states": 2500, "is_complete": False, "violation": "names_go: x"},
    ],
    "mutants": [
        {**MUTANT, "name": "a", "fate": "killed", "invariant": "nobody_waits"},
        {**MUTANT, "name": "b", "fate": "survived", "invariant": ""},
    ],
}


def page_of(site_of, record):
    files = {"docs/conf.py": CONFIGURATION, "docs/faith.md": PAGE, RECORD: record}
    site = site_of({name: text for name, text in files.items() if text is not None})
    return site.page("faith.html"), site.warnings


def test_figures_are_those_of_the_record(site_of):
    page, warnings = page_of(site_of, json.dumps(WHOLE))
    assert warnings == ""
    text = " ".join(page.split())
    told = (
        "7 random runs, from seed 0 on, took 600 steps, 900 a minute. 0 runs violated"
    )
    assert told in text
    assert "Day of the run: 2026-11-25; commit: 0a1b2c3; Python: 3.11." in text
    assert "Of 2 searches 1 have seen every state" in text
    assert "1 of 2 mutants of the protocol were killed" in text
    for shown in ("3,848", "2,500 seen", "names_go: x", "survived", "It forgets."):
        assert shown in text


def test_a_record_without_its_day_says_so(site_of):
    old = {key: value for key, value in WHOLE.items() if key not in WHERE}
    page, _ = page_of(site_of, json.dumps(old))
    assert (
        "Day of the run: not recorded; commit: not recorded; Python: not recorded."
        in page
    )


def test_an_exploration_that_was_not_run_is_said_to_be_missing(site_of):
    page, warnings = page_of(site_of, None)
    assert warnings == ""
    assert "No exploration was run yet." in page


def test_something_else_is_no_record(site_of):
    with pytest.raises(Exception, match="no record of the simulation"):
        page_of(site_of, '{"mutants": 3}')
