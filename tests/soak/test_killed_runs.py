"""Runs that are ended hold, and what a killed run must not leave is seen."""

import json

import pytest
from sharedtensor_conformance.clauses import load_clauses


def test_a_run_that_is_killed_holds(run):
    done = run("killed_runs.py", "--only=1")
    assert done.record["counts"]["SIGKILL, 2 workers"] == 1


def test_plans_depend_on_seed_and_number_alone(scripts):
    from killed_runs import Plan

    plans = [Plan.planned(1, number) for number in range(40)]
    assert plans == [Plan.planned(1, number) for number in range(40)]
    assert plans != [Plan.planned(2, number) for number in range(40)]
    assert {plan.signal.name for plan in plans} == {"SIGKILL", "SIGINT"}
    assert {plan.workers for plan in plans} == {0, 2}
    assert any(plan.lines is None for plan in plans)


CASE = "test_share.py::test_a[file_descriptor-fork]"


@pytest.fixture
def look(scripts, tmp_path):
    """Look at a report that was cut short in its second case."""
    from killed_runs import look as look_at
    from sharedtensor_conformance.report.records import (
        Case,
        Machine,
        Run,
        Selection,
        SpecRecord,
        Subject,
    )
    from sharedtensor_conformance.report.verdicts import Verdict

    subject = Subject("sample", "1", ("core",), ("a",), ("fork",), (), (), ())
    run = Run(
        implementation=subject,
        suite="0.1.0",
        spec=SpecRecord.of(load_clauses()),
        machine=Machine("3.11", "x86_64", "6", 2, True, True),
        selection=Selection(full=True, options=()),
        planned=3,
        started="2026-11-22T11:00:00Z",
    )
    lines = [run, Case(CASE, "test_share.py::test_a", ("SHARE-1",), Verdict.PASS)]
    path = tmp_path / "report.jsonl"
    whole = [json.dumps(line.as_data()) + "\n" for line in lines]
    path.write_text("".join(whole) + '{"type": "case", "id": "te')
    return lambda before, told: look_at(path, before, set(told))


def test_report_has_what_was_told(look):
    from recording import NotHeld

    assert look(2, [CASE])["cases"] == 1
    with pytest.raises(NotHeld, match="lacks test_b, which was told"):
        look(2, [CASE, "test_b"])
    with pytest.raises(NotHeld, match="has lost lines: there were 3"):
        look(3, [CASE])


def test_report_that_speaks_of_what_it_did_not_reach_is_seen(look, monkeypatch):
    import killed_runs
    from recording import NotHeld

    shown = killed_runs.shown
    for more in (
        "1 clause judged by no case",
        "no case of this run judged them: VIEW-1",
        "(stale expectations): x",
    ):
        monkeypatch.setattr(killed_runs, "shown", lambda path, m=more: shown(path) + m)
        with pytest.raises(NotHeld, match="it speaks of what it did not reach"):
            look(2, [CASE])
    monkeypatch.setattr(killed_runs, "shown", lambda path: "sample conforms.")
    with pytest.raises(NotHeld, match="it says not how far it came"):
        look(2, [CASE])


def test_what_pytest_told_is_read_with_workers_and_without(scripts):
    from killed_runs import TOLD

    text = (
        f"conformance/chapters/{CASE} PASSED   [ 1%]\n"
        f"[gw0] [ 50%] FAILED conformance/chapters/{CASE}\n"
        f"conformance/chapters/test_share.py::test_b[x] "
    )
    assert [one or other for one, other in TOLD.findall(text)] == [CASE, CASE]
