"""What the site says of committed records: its figures, and what it refuses to show.

The templates are given records directly; two tests build a site with the directive.
"""

import json
import re
from html import unescape
from types import SimpleNamespace

import pytest
import tiny_project
from markupsafe import Markup
from sharedtensor_conformance.clauses import parse_chapter
from sharedtensor_conformance.evidence import Citation

WHERE = {"started": "2026-11-25T15:48:00+00:00", "commit": "0a1b2c3", "python": "3.11"}
RUN = {
    **WHERE,
    **{"command": "python soak/kills.py --seed 9", "version": "0.1.0", "cpus": 2},
    **{"kernel": "Linux 6.18", "seconds": 3.5, "held": True, "sentence": "It held."},
}
STEADY = {what: [5, 5, 5] for what in ("descriptors", "mappings", "threads", "memory")}
ROLES = dict.fromkeys(("owner", "peer", "manager"), STEADY)
ROUNDS = {
    "strategy": "file_system",
    "warm_up": 1,
    "samples": {"round": [1, 2, 3], "names": [0, 0, 0], **ROLES},
}


@pytest.fixture
def html_of(extension):
    """Return what a template makes of records, without a site around it."""
    written, plot = extension("clauses.rendering").written, extension("records.plot")

    def shown(template, record, **more):
        content = {"record": record, "records": {"first": record}, "plot": plot}
        content["links"] = SimpleNamespace(to=Markup)
        return written(f"{template}.html", **{**content, **more})

    return shown


@pytest.fixture
def words_of(html_of):
    """Return the same as words, with a bar after each cell."""

    def words(template, record, **more):
        page = html_of(template, record, **more).replace("</p></td>", " |")
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())

    return words


def mutant(outcome, line, **more):
    place = {"file": "reference/sharedtensor/steps.py", "line": line}
    return {**place, "before": "a < b", "after": "a > b", "outcome": outcome, **more}


GENERATED = {
    **WHERE,
    **{"tool": "cosmic-ray 8", "seed": 3, "possible": 90, "places": 40, "sampled": 5},
    "mutants": [
        mutant("killed", 1, first="survived", judged="2026-11-01T10:00:00+00:00"),
        mutant("timeout", 2, first="timeout", judged=WHERE["started"]),
        mutant("survived", 3, first="survived", judged=WHERE["started"]),
        mutant("equivalent", 4, first="survived", reason="It never was another."),
        mutant("unfinished", 5, stages=2, judged=WHERE["started"]),
    ],
}
SEARCH = {"sentence": "One sends.", "kills": 1, "deepest": 65, "violation": ""}
FAULT = {"sentence": "It forgets.", "states": 85}
EXPLORED = {
    **WHERE,
    "invariants": {"nobody_waits": "Somebody can go on."},
    "searches": [
        {**SEARCH, "states": 3848, "schedules": 200, "is_complete": True},
        {**SEARCH, "states": 2500, "schedules": 100, "is_complete": False}
        | {"violation": "memory_stays: x"},
    ],
    "faults": [
        {**FAULT, "name": "a", "fate": "killed", "invariant": "nobody_waits"},
        {**FAULT, "name": "b", "fate": "survived", "invariant": ""},
    ],
}


def differing(method):
    said = {"test": "WithQueue.test_of_a_hook", "clause": "TINY-1", "reason": "None."}
    return said | {"method": method}


def of_cpython(method, **outcomes):
    outcomes = {"standard": {"pass": 300, "skip": 7}, "reference": outcomes}
    return {
        **{"method": method, "outcomes": outcomes},
        "seconds": {"standard": 40, "reference": 41},
    }


CPYTHON = {
    **WHERE,
    "runs": [of_cpython("fork", **{"pass": 298, "skip": 7, "error": 2})],
    "differences": [differing("fork"), differing("spawn")],
}


def by_outsider(number, first, now, **more):
    """Return a fault of an outsider, with its first run and today's."""
    said = {"implementation": "reference", "name": "01", "clauses": ["A-1"]}
    runs = {
        "first_run": {"fate": first, "own_clause": True, "stage": "clauses"},
        "now": {"fate": now, "by": ""},
    }
    return {"round": number, "sentence": "It forgets.", **said, **runs, **more}


TRIALS = [
    by_outsider(2, "survived", "killed"),
    by_outsider(1, "killed", "killed"),
    by_outsider(2, "killed", "killed"),
]
GPU = {"emulated": False, "saved": "2026-01-02T03:04:05Z", "steps": []}
STEP = {"name": "smoke", "title": "One is sent.", "status": "held", "seconds": 1.5}
FACTS = {"devices": [{"name": "A GPU"}], "met": {"driver": "580", "libraries": {}}}
TURN = {"script": "kills", "held": True, "seconds": 30.4}
PROFILE = {
    **{"repeats": 7, "messages": 5, "starts": {"Python": 19.6}},
    "steps": {"fd": {"make": 3, "share": 4.4}, "fs": {"make": 3, "share": 9}},
    "sides": {"fs": {"sender": {"Python": 50, "kernel": 21}}},
}
KIND = {"kind": "owners", "processes": 9, "median_ms": 240}
SUITE = {
    **{"cases": 40, "wall": 20.0, "cores": 2, "python": "3.13.0", "options": ["-n"]},
    "kinds": [KIND | {"seconds": 20.5}, KIND | {"seconds": 9.5}],
}


@pytest.mark.parametrize(
    ("template", "record", "said"),
    [
        ("generated-mutants", GENERATED, "Of a sample of 5 (seed 3), 1 make no diff"),
        ("generated-mutants", GENERATED, "4, 1 were killed in the first run and 2 are"),
        ("generated-mutants", GENERATED, "Earlier runs have judged 1 of them."),
        ("generated-mutants", GENERATED, "steps.py:3 | a < b | a > b | survived: no"),
        ("generated-mutants", GENERATED, "| It never was another. |"),
        ("device-exploration", EXPLORED, "2 searches have looked at 6,348 states by"),
        ("device-exploration", EXPLORED, "to 65 steps. 1 of them have seen every sta"),
        ("device-exploration", EXPLORED, "found a violation. 1 of 2 faults were found"),
        ("device-exploration", EXPLORED, "| 2,500 seen | 100 | 65 | memory_stays: x |"),
        ("device-exploration", EXPLORED, "Day of the run: 2026-11-25; commit: 0a1b2c3"),
        ("cpython-tests", CPYTHON, "fork | the drop-in | 298 | 7 | 2 error | 41 |"),
        ("cpython-tests", CPYTHON, "test_of_a_hook | fork, spawn | TINY-1 | None. |"),
        ("blind-trial", TRIALS, "Round 2: the first run killed 1 of 2 faults, 1 of th"),
        ("blind-trial", TRIALS, "For 1 of these the first run took only the clauses"),
        ("mutants-time", [{"seconds": 100.5}, {"seconds": 259.5}], "took 6 minutes in"),
        ("soak-kills", RUN | {"kills": {"peer": 71}, "with_errors": {"peer": 4}}
         | {"errors": {"HandleError": 6}, "episodes": {}}, "peer | 71 | 67 | 4 |"),
        ("soak-histories", RUN | {"histories": {"with_deaths": 1200}},
         "with deaths | 1,200 |"),
        ("soak-mixed", RUN | {"turns": [TURN, TURN], "watched": {}},
         "kills.py | 2 | 2 | 61 |"),
        ("soak-mixed", RUN | {"turns": [], "watched": {}}, "nothing to draw yet"),
        ("message-profile", PROFILE, "total | 7 us | 12 us |"),
        ("message-profile", PROFILE, "fs | total | 50 us | 21 us | 71 us |"),
        ("suite-profile", SUITE, "30 s of processor time, 75% of what was available"),
    ],
)  # fmt: skip
def test_figures_are_those_of_the_record(words_of, template, record, said):
    assert said in words_of(template, record)


def test_killed_mutant_is_no_row_of_those_that_were_not(words_of):
    shown = words_of("generated-mutants", GENERATED)
    assert "steps.py:1 " not in shown
    assert "steps.py:2 " not in shown


def test_run_that_did_not_hold_is_marked(html_of):
    failed = {"kills": RUN | {"held": False, "sentence": "Something was left."}}
    page = html_of("soak-rounds", None, records=failed)
    assert '<p class="missing">Something was left.</p>' in page


def test_runs_of_the_suite_name_order_idle_time_and_cases_that_did_not_pass(words_of):
    run = {"status": 1, "seconds": 2.0, "verdicts": {"fail": 1}, "seed": 7}
    run |= {"idle": 0.021, "python": "3.12.1", "others": [{"id": "test_x[fork]"}]}
    shown = words_of("soak-runs", None, records={"loaded": RUN | {"runs": [run]}})
    row = "1 | 3.12.1 | random, seed 7 | 1 | 1 fail | test_x[fork] | 2.0 | 2% |"
    assert row in shown


def test_rounds_are_drawn_as_a_line_for_each_process_over_one_scale(html_of):
    more = {**STEADY, "memory": [2048, 4096, 3072]}
    rising = ROUNDS | {"samples": ROUNDS["samples"] | {"owner": more}}
    page = html_of("soak-plot", None, records={"rounds-file_system": rising})
    assert page.count("<svg") == 1
    assert 'aria-label="What owner, peer and manager hold' in page
    lines = re.findall(r'class="soak-(owner|peer|manager)" points="([\d.]+,.*?)"', page)
    assert [role for role, _ in lines].count("peer") == 5  # the legend has one
    assert ("owner", "86.7,45.2 173.3,10.4 260.0,27.8") in lines
    assert re.search(r"memory, MiB.*?>4</text>", page, re.DOTALL)


def test_rehearsal_is_never_shown_as_a_device(words_of):
    record = GPU | {"emulated": True, "steps": [STEP]}
    records = {"summary": record, "facts": FACTS}
    shown = words_of("gpu-checks", record, records=records)
    assert "Not yet run on a device" in shown
    assert "nothing here counts as CUDA" in shown
    assert "smoke | One is sent. | held (emulated) | 1.5 |" in shown


def test_steps_and_machine_of_a_device_are_those_of_the_record(words_of):
    record = GPU | {"steps": [STEP]}
    shown = words_of("gpu-checks", record, records={"a": record, "facts": FACTS})
    assert "A GPU; driver 580; no library." in shown
    assert "held | 1.5 |" in shown
    assert "emulated" not in shown


BAR = re.compile(r'class="(held|broken)" style="flex-grow:(\d+)".*?title="(.*?): \2 ')


def test_overview_has_a_bar_of_what_was_seen_and_missed(html_of):
    records = {
        "mutants": [{"fate": "killed"}, {"fate": "killed"}, {"fate": "survived"}],
        "device-exploration": EXPLORED,
        "generated-mutants": GENERATED,
        "blind-trial": TRIALS,
    }
    outsiders = "Faults by outsiders, round"
    found = BAR.findall(html_of("trust-overview", None, records=records))
    assert {(label, kind): int(count) for kind, count, label in found} == {
        ("Mutants by hand", "held"): 2,
        ("Mutants by hand", "broken"): 1,
        ("Protocol of device memory", "held"): 1,
        ("Protocol of device memory", "broken"): 1,
        ("Generated mutants, a sample", "held"): 2,
        ("Generated mutants, a sample", "broken"): 2,
        (f"{outsiders} 1, first run", "held"): 1,
        (f"{outsiders} 1, today", "held"): 1,
        (f"{outsiders} 2, first run", "held"): 1,
        (f"{outsiders} 2, first run", "broken"): 1,
        (f"{outsiders} 2, today", "held"): 2,
    }
    assert BAR.findall(html_of("trust-overview", None, records={})) == []


def test_mutant_proves_a_clause_if_it_was_killed_as_it_is_now(extension):
    names = {"killed": ("TINY-1",), "changed": ("TINY-2",), "alive": ("TINY-2",)}
    mutants = [Citation(name, ids, "", "", 1) for name, ids in names.items()]
    outcomes = [
        {"name": "killed", "fate": "killed", "clauses": ["TINY-1"], "by": "test_x[a]"},
        {"name": "changed", "fate": "killed", "clauses": ["TINY-1"]},
        {"name": "alive", "fate": "survived", "clauses": ["TINY-2"]},
    ]
    kills = extension("records.mutants").Kills(mutants, outcomes)
    assert list(map(kills.fate, mutants)) == ["killed", "not run", "survived"]
    assert list(map(kills.by, mutants)) == ["test_x", "-", "-"]
    assert kills.fates(mutants[1:]) == "1 not run, 1 survived"
    clauses = parse_chapter(tiny_project.CHAPTER, "tiny.md")
    assert [one.id for one in kills.unproven(clauses)] == ["TINY-2"]


def test_cells_are_text_and_numbers_stand_flush_right(html_of):
    record = RUN | {"hardships": {"<b>": 7}, "errors": {}, "not_done": {}}
    page = html_of("soak-hostile", record)
    assert '<td><p>&lt;b&gt;</p></td><td class="number"><p>7</p></td>' in page


CONFIGURATION = tiny_project.FILES["docs/conf.py"] + 'extensions += ["records"]\n'
PAGE = """---
orphan: true
---
# Records

```{record} soak-overview reports/kills.json reports/lost.json
:download:
```

```{record} cpython-tests reports/cpython.json
```
"""
FILES = {
    "docs/conf.py": CONFIGURATION,
    "docs/records.md": PAGE,
    "docs/reports/kills.json": json.dumps(RUN),
    "docs/reports/cpython.json": json.dumps(CPYTHON),
}


def test_page_links_to_clauses_and_files_and_names_what_is_missing(site_of):
    site = site_of(FILES)
    page = site.page("records.html")
    assert site.warnings == ""
    assert "reports/lost.json: no such run is committed yet." in page
    assert 'href="TINY-1.html"' in page
    address = re.search(r'download="" href="([^"]+)"', page)[1]
    assert json.loads((site.folder / address).read_text()) == RUN


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"runs": 3}', '{"runs": [{}]}'])
def test_file_that_is_no_record_stops_the_build(site_of, text):
    from sphinx.errors import ExtensionError

    with pytest.raises(ExtensionError, match=r"cpython\.json: no record"):
        site_of(FILES | {"docs/reports/cpython.json": text})


def test_record_of_a_clause_that_does_not_exist_stops_the_build(site_of):
    from sphinx.errors import ExtensionError

    text = json.dumps(CPYTHON).replace("TINY-1", "TINY-9")
    with pytest.raises(ExtensionError, match="TINY-9"):
        site_of(FILES | {"docs/reports/cpython.json": text})
