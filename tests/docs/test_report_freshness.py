"""The committed reports of the reference are those of the suite of today.

A verdict of another implementation on an earlier text stays on the site and is marked
there. What the project says of its own reference has to be true of each commit: a
clause, a test or an axis that changes asks for a new record.
"""

from __future__ import annotations

import pytest
from recorded import recorded
from sharedtensor_conformance.adapters.loader import load_implementation
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.plugin.enumeration import all_cases
from sharedtensor_conformance.plugin.matrix import Selection
from sharedtensor_conformance.report.verdicts import Verdict

RECORDED = {
    "reference": Selection(),
    "reference-faults": Selection(profiles=("fault-table",)),
}
"""The reports of the reference, and what each is a run of."""


def told(name: str, what: str, ids: set[str]) -> str:
    """Return what is wrong with a report, and how it is recorded anew."""
    run = recorded(name).run.selection
    command = " ".join([*run.command, "-n auto", *run.options])
    return (
        f"docs/reports/{name}.jsonl {what} ({len(ids)}): {', '.join(sorted(ids)[:5])}. "
        f"Record it anew: {command} --report=docs/reports/{name}.jsonl"
    )


def test_the_whole_report_of_the_reference_knows_each_clause_by_its_hash():
    hashes = recorded("reference").run.spec.hashes
    today = {id: clause.hash for id, clause in load_clauses().items()}
    differing = {id for id, _ in hashes.items() ^ today.items()}
    assert not differing, told("reference", "has other clauses", differing)


def test_the_fault_table_was_judged_on_the_clauses_of_today():
    found, clauses = recorded("reference-faults"), load_clauses()
    hashes, verdicts = found.run.spec.hashes, found.summary.clauses.items()
    judged = {id for id, one in verdicts if one.verdict.judged}
    assert judged
    old = {id for id in judged if id not in clauses or hashes[id] != clauses[id].hash}
    assert not old, told("reference-faults", "judged other texts", old)


@pytest.mark.parametrize("name", RECORDED)
def test_the_report_of_the_reference_has_each_case_of_today(name):
    planned = all_cases(RECORDED[name], load_implementation("reference"))
    today = {case.id for case in planned}
    known = {case.id for case in recorded(name).cases}
    assert today
    differing = today ^ known
    assert not differing, told(name, "has other cases than the suite", differing)


@pytest.mark.parametrize("name", RECORDED)
def test_nothing_of_the_reference_is_broken_in_its_recorded(name):
    verdicts = {case.verdict for case in recorded(name).cases}
    assert Verdict.PASS in verdicts
    assert not any(verdict.broken for verdict in verdicts)
