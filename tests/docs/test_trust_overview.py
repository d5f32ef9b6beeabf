"""The picture of the faults that the suite was shown, from records of all sorts."""

import json
import re

import tiny_project

CONFIGURATION = tiny_project.FILES["docs/conf.py"] + 'extensions += ["trust"]\n'
PAGE = "---\norphan: true\n---\n# Trust\n\n```{trust-overview}\n```\n"
TIME = "---\norphan: true\n---\n# Trust\n\n```{trust} time\n```\n"
PART = re.compile(
    r'class="(\w+)" style="flex-grow:(\d+)" href="#([\w-]+)" title="(.*?): \2 (\w+)"'
)
SEEN, MISSED = {"fate": "killed", "by": "test_x.py::test_y"}, {"fate": "survived"}


def fault(number, first, now):
    """Return a fault of an outsider, with its first run and today's."""
    said = {"implementation": "reference", "name": "01", "clauses": ["A-1"]}
    runs = {"first_run": first, "now": {"by": ""} | now}
    return {"round": number, "sentence": "It forgets.", **said, **runs}


OUTCOMES = ("killed", "timeout", "survived", "unfinished", "equivalent")
RECORDS = {
    "mutants": [SEEN, SEEN, MISSED],
    "device-exploration": {"faults": [SEEN, MISSED, MISSED]},
    "generated-mutants": {"mutants": [{"outcome": one} for one in OUTCOMES]},
    "blind-trial": [fault(2, MISSED, SEEN), fault(1, SEEN, SEEN), fault(2, SEEN, SEEN)],
}


def bars_of(site_of, records):
    """Build the page, and return what its bars say of each row."""
    files = {
        f"docs/reports/{name}.json": json.dumps(record)
        for name, record in records.items()
    }
    site = site_of({"docs/conf.py": CONFIGURATION, "docs/faith.md": PAGE} | files)
    assert site.warnings == ""
    return PART.findall(site.page("faith.html"))


def test_each_record_has_a_bar_of_what_was_seen_and_missed(site_of):
    bars = bars_of(site_of, RECORDS)
    figures = [(label, int(count), word) for _, count, _, label, word in bars]
    assert figures == [
        ("Mutants by hand", 2, "seen"),
        ("Mutants by hand", 1, "missed"),
        ("Protocol of device memory", 1, "seen"),
        ("Protocol of device memory", 2, "missed"),
        ("Generated mutants, a sample", 2, "seen"),
        ("Generated mutants, a sample", 2, "missed"),
        ("Faults by outsiders, round 1, first run", 1, "seen"),
        ("Faults by outsiders, round 1, today", 1, "seen"),
        ("Faults by outsiders, round 2, first run", 1, "seen"),
        ("Faults by outsiders, round 2, first run", 1, "missed"),
        ("Faults by outsiders, round 2, today", 2, "seen"),
    ]
    assert all((kind == "held") == (word == "seen") for kind, _, _, _, word in bars)


def test_record_that_is_missing_has_no_bar(site_of):
    assert bars_of(site_of, {}) == []


def test_time_of_the_mutants_is_the_sum_of_the_recorded_runs(site_of):
    run = {"name": "a", "fate": "killed", "clauses": ["TINY-1"], "seconds": 100.5}
    files = {"docs/conf.py": CONFIGURATION, "docs/faith.md": TIME}
    record = json.dumps([run, run | {"name": "b", "seconds": 259.5}])
    site = site_of(files | {"docs/reports/mutants.json": record})
    assert site.warnings == ""
    assert "The 2 recorded runs took 6 minutes in total." in site.page("faith.html")


def test_time_without_a_record_is_said_to_be_missing(site_of):
    site = site_of({"docs/conf.py": CONFIGURATION, "docs/faith.md": TIME})
    assert "No run of the mutants is committed." in site.page("faith.html")
