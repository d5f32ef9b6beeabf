"""The figures of the exploration of device memory, from a record or without one."""

import json

import tiny_project

CONFIGURATION = tiny_project.FILES["docs/conf.py"] + 'extensions += ["trust"]\n'
PAGE = "---\norphan: true\n---\n# Trust\n\n```{device-exploration}\n```\n"
RECORD = "docs/reports/device-exploration.json"

SEARCH = {"sentence": "One sends.", "kills": 1, "deepest": 65, "violation": ""}
FAULT = {"sentence": "It forgets.", "states": 85}
WHERE = {"started": "2026-11-25T15:48:00+00:00", "commit": "0a1b2c3", "python": "3.11"}
WHOLE = {
    **WHERE,
    "invariants": {"nobody_waits": "Somebody can go on."},
    "searches": [
        {**SEARCH, "states": 3848, "schedules": 200, "is_complete": True},
        {
            **SEARCH,
            "states": 2500,
            "schedules": 100,
            "is_complete": False,
            "violation": "memory_stays: x",
        },
    ],
    "faults": [
        {**FAULT, "name": "a", "fate": "killed", "invariant": "nobody_waits"},
        {**FAULT, "name": "b", "fate": "survived", "invariant": ""},
    ],
}


def page_of(site_of, record):
    files = {"docs/conf.py": CONFIGURATION, "docs/faith.md": PAGE, RECORD: record}
    site = site_of({name: text for name, text in files.items() if text is not None})
    return " ".join(site.page("faith.html").split()), site.warnings


def test_figures_are_those_of_the_record(site_of):
    page, warnings = page_of(site_of, json.dumps(WHOLE))
    assert warnings == ""
    assert "2 searches have looked at 6,348 states by 300 schedules" in page
    assert "Day of the run: 2026-11-25; commit: 0a1b2c3; Python: 3.11." in page
    assert (
        "of up to 65 steps. 1 of them have seen every state, and 1 found a violation"
        in page
    )
    assert "1 of 2 faults were found" in page
    for shown in ("3,848", "2,500 seen", "memory_stays: x", "survived", "It forgets."):
        assert shown in page


def test_an_exploration_that_was_not_run_is_said_to_be_missing(site_of):
    page, warnings = page_of(site_of, None)
    assert "No exploration was run yet." in page
    assert warnings == ""
