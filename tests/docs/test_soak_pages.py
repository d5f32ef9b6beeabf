"""The page of the soak runs, from records that are there or not."""

import json

import pytest
import tiny_project

CONFIGURATION = tiny_project.FILES["docs/conf.py"] + 'extensions += ["soak"]\n'
KINDS = (
    *("overview", "rounds", "plot", "kills", "killed-runs", "histories"),
    *("hostile", "mixed", "mixed-plot", "loaded", "shuffled"),
)
PAGE = "---\norphan: true\n---\n# Runs\n\n" + "".join(
    f"```{{soak}} {kind}\n```\n\n" for kind in KINDS
)
COMMON = {
    "command": "python soak/kills.py --seed 9",
    "started": "2026-11-21T06:00:00+00:00",
    "version": "0.1.0",
    "python": "3.11.7",
    "kernel": "Linux 6.18",
    "cpus": 2,
    "seconds": 3.5,
    "held": True,
    "sentence": "All of it held.",
}
HELD = {what: [5, 5, 5] for what in ("descriptors", "mappings", "threads", "memory")}
ROUNDS = {
    "strategy": "file_system",
    "warm_up": 1,
    "samples": {
        **{"round": [1, 2, 3], "names": [0, 0, 0], "semaphores": [8, 8, 8]},
        **{"owner": HELD, "peer": HELD, "manager": HELD},
    },
}
KILLS = {
    "kills": {"peer": 71, "owner": 9},
    "with_errors": {"peer": 4},
    "errors": {"HandleError": 6},
    "episodes": {"file_system, fork": 9},
}
KILLED = {
    "counts": {
        **{"SIGKILL, 2 workers": 4, "SIGINT, 0 workers": 2, "told": 70, "cases": 71},
        **{"cut short, without one": 5, "had reached its end": 1},
    }
}


@pytest.fixture
def page_of(site_of):
    """Build the page from some records, and return it with the warnings."""
    pytest.importorskip("matplotlib", reason="it draws the plot")

    def page(**records):
        files = {
            f"docs/reports/soak/{name}.json": json.dumps(COMMON | record)
            for name, record in records.items()
        }
        pages = {"docs/conf.py": CONFIGURATION, "docs/runs.md": PAGE}
        site = site_of(pages | files)
        return site.page("runs.html"), site.warnings

    return page


def cells_of(page):
    """Return a page without spaces, and its cells without what aligns them."""
    return "".join(page.split()).replace('<tdclass="number">', "<td>")


def test_what_was_not_run_is_said_to_be_missing(page_of):
    page, warnings = page_of()
    assert warnings == ""
    assert page.count("not run yet") == 15
    assert "There is nothing to draw yet." in page


def test_rounds_are_drawn_in_the_colours_of_the_page(page_of):
    page, warnings = page_of(**{"rounds-file_system": ROUNDS})
    assert warnings == ""
    assert page.count("<svg") == 1
    assert 'aria-label="What owner, peer and manager hold' in page
    for role in ("owner", "peer", "manager"):
        assert f"var(--soak-{role})" in page
    assert "currentColor" in page
    assert "#0102" not in page


def test_killed_runs_are_counted_by_signal_and_by_how_far_they_came(page_of):
    page, warnings = page_of(**{"killed-runs": KILLED})
    assert warnings == ""
    cells = cells_of(page)
    first = cells.index("<td><p>SIGINT,0workers</p></td><td><p>2</p></td>")
    assert first < cells.index("<td><p>SIGKILL,2workers</p></td><td><p>4</p></td>")
    assert "<td><p>cutshort,withoutone</p></td><td><p>5</p></td>" in cells
    assert "<td><p>told" not in cells


def test_kills_are_counted_by_victim_and_outcome(page_of):
    page, _ = page_of(kills=KILLS)
    cells = cells_of(page)
    assert "<td><p>peer</p></td><td><p>71</p></td><td><p>67</p></td>" in cells
    assert "<td><p>manager</p></td><td><p>0</p></td>" in cells
    assert "6 HandleError" in page
    assert "--seed 9" in page.replace("</span>", "").replace('<span class="pre">', "")


def test_histories_hostile_environments_and_turns_are_counted(page_of):
    turn = {"script": "kills", "held": True, "seconds": 30.4}
    page, warnings = page_of(
        histories={"histories": {"with_deaths": 1200}, "runs": []},
        hostile={
            "hardships": {"no descriptors": 7},
            "errors": {"ResourceError": 90},
            "not_done": {"no memory": "no control group can be made"},
        },
        mixed={
            "turns": [turn, turn, {**turn, "script": "hostile"}],
            "watched": {"file_system": ROUNDS},
        },
    )
    assert warnings == ""
    cells = cells_of(page)
    assert "<td><p>withdeaths</p></td><td><p>1,200</p></td>" in cells
    assert "<td><p>nodescriptors</p></td><td><p>7</p></td>" in cells
    assert "Errors meanwhile: 90 ResourceError." in page
    assert "Not done, no memory: no control group can be made." in page
    kills = "<td><p>kills.py</p></td><td><p>2</p></td><td><p>2</p></td><td><p>61</p>"
    assert kills in cells
    assert page.count("<svg") == 1


def test_a_run_that_did_not_hold_is_marked(page_of):
    page, _ = page_of(kills={"held": False, "sentence": "Something was left."})
    assert '<p class="missing">Something was left.</p>' in page


def test_all_committed_runs_are_listed_with_their_data(page_of):
    kills = {"held": False, "sentence": "Something was left.", "seconds": 400}
    page, warnings = page_of(kills=kills, hostile={})
    assert warnings == ""
    listed = page[page.index("soak-runs") : page.index("</table>")]
    assert listed.count("✓ held") == 1
    assert listed.count("✗ did not hold") == 1
    assert "Something was left." in listed
    assert "<p>7</p>" in listed
    assert "/kills.json" in listed
    assert "mixed" not in listed


def test_runs_under_load_name_the_cases_that_did_not_pass(page_of):
    run = {"status": 1, "seconds": 2.0, "verdicts": {"fail": 1}}
    page, _ = page_of(loaded={"runs": [run | {"others": [{"id": "test_x[fork]"}]}]})
    assert "test_x[fork]" in page


def test_runs_in_random_order_name_python_seed_and_idle_time(page_of):
    run = {"status": 0, "seconds": 2.0, "verdicts": {"pass": 1}, "others": []}
    run |= {"python": "3.12.1", "seed": 7, "idle": 0.021}
    page, _ = page_of(**{"shuffled-3.12": {"runs": [run]}})
    assert "3.12.1" in page
    assert "random, seed 7" in page
    assert "2%" in page


def test_an_unknown_kind_is_an_error(site_of):
    text = PAGE + "```{soak} jumps\n```\n"
    warnings = site_of({"docs/conf.py": CONFIGURATION, "docs/runs.md": text}).warnings
    assert f"there are records of {', '.join(KINDS)} alone" in warnings
