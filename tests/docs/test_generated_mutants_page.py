"""The figures of the generated mutants, from a record that is there or not."""

import json

import pytest
import tiny_project

CONFIGURATION = tiny_project.FILES["docs/conf.py"] + 'extensions += ["trust"]\n'
PAGE = "---\norphan: true\n---\n# Trust\n\n```{generated-mutants}\n```\n"
RECORD = "docs/reports/generated-mutants.json"


def mutant(outcome, line, **more):
    place = {"file": "reference/sharedtensor/steps.py", "line": line}
    return {**place, "before": "a < b", "after": "a > b", "outcome": outcome, **more}


MUTANTS = [
    mutant("killed", 1, first="survived"),
    mutant("timeout", 2, first="timeout"),
    mutant("survived", 3, first="survived"),
    mutant("equivalent", 4, first="survived", reason="It never was another."),
    mutant("unfinished", 5, stages=2),
]
FIGURES = {"tool": "cosmic-ray 8", "seed": 3, "possible": 90, "places": 40}


def page_of(site_of, record):
    files = {"docs/conf.py": CONFIGURATION, "docs/faith.md": PAGE, RECORD: record}
    site = site_of({name: text for name, text in files.items() if text is not None})
    return site.page("faith.html"), site.warnings


def test_figures_are_those_of_the_judged_mutants(site_of):
    record = json.dumps({**FIGURES, "sampled": 5, "mutants": MUTANTS})
    page, warnings = page_of(site_of, record)
    assert warnings == ""
    text = " ".join(page.split())
    assert "1 make no difference. Of the other 4, 1 were killed in the first" in text
    assert "2 are killed today, 1 of these by running out of time" in text
    assert "1 have not been through all stages yet" in text
    assert "commit: not recorded; Python: not recorded.<" in text
    for line in (3, 4, 5):
        assert f">steps.py:{line}<" in text
    assert ">steps.py:1<" not in text
    assert "It never was another." in text


def test_what_an_earlier_run_has_judged_is_counted(site_of):
    where = {"started": "2026-11-25T15:48:00+00:00", "commit": "0a1b2c3"}
    mutants = [{**one, "judged": where["started"]} for one in MUTANTS]
    mutants[0]["judged"] = "2026-11-01T10:00:00+00:00"
    mutants[3]["judged"] = ""  # it is equivalent
    record = json.dumps({**FIGURES, **where, "sampled": 5, "mutants": mutants})
    page, _ = page_of(site_of, record)
    told = "2026-11-25; commit: 0a1b2c3; Python: not recorded. Earlier runs have judged"
    assert f"{told} 1 of them." in " ".join(page.split())


def test_a_sample_that_was_not_run_is_said_to_be_missing(site_of):
    page, warnings = page_of(site_of, None)
    assert warnings == ""
    assert "No sample was run yet." in page


def test_something_else_is_no_record(site_of):
    with pytest.raises(Exception, match="no record of generated mutants"):
        page_of(site_of, '{"mutants": 3}')
