"""Shards of one run become its report; whatever else is given is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_samples as samples
from report_samples import CLAUSES, case, changed, clause, spec
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.cli import main
from sharedtensor_conformance.report.expectations import (
    Expectations,
    load_expectations,
)
from sharedtensor_conformance.report.merge import MergeError, as_one, merge
from sharedtensor_conformance.report.records import Shard, read_report
from sharedtensor_conformance.report.verdicts import Need

NONE = Expectations()
PARTS = (
    [case("SHARE-1"), case("GRAD-1"), case("GRAD-9", id="last")],
    [case("GRAD-2"), case("GRAD-9", id="last")],
)
"""The cases of two shards; one case runs last in both."""


def shard(number, cases=None, *, count=2, total=4, source="", plan="0" * 12, **options):
    """Return the report of a shard; with `full` the whole is a full selection."""
    cases = PARTS[number - 1] if cases is None else cases
    full = options.pop("full", True)
    options = {"options": ("--impl=sample", f"--shard={number}/{count}")} | options
    found = samples.report(
        cases, full=False, source=source or f"{number}.jsonl", **options
    )
    part = Shard(number, count, total, plan, full)
    return changed(found, "selection", shard=part)


def test_of_the_parts_of_a_case_one_that_needs_nothing_counts():
    here = case("GRAD-9", "not-run", id="last", needs=Need.SECOND_USER)
    nowhere = case("GRAD-9", "not-run", id="last")
    assert as_one([here, nowhere]).needs is None
    assert as_one([here, here]).needs is Need.SECOND_USER


def refused(*reports, clauses=CLAUSES, expectations=NONE):
    with pytest.raises(MergeError) as caught:
        merge(reports, clauses, expectations)
    return str(caught.value)


def test_merged_shards_are_judged_as_one_run():
    whole = samples.report([*PARTS[0][:2], *PARTS[1]])
    for order in ((1, 2), (2, 1)):
        merged = merge([shard(n) for n in order], CLAUSES, NONE)
        assert merged.summary.clauses == whole.summary.clauses
        assert (merged.summary.conforms, merged.summary.exit_status) == (True, 0)
        assert merged.run.selection == whole.run.selection
        assert merged.run.planned == len(merged.cases) == 4
        assert merged.complete


@pytest.mark.parametrize(
    ("verdicts", "merged"),
    [
        (("pass", "fail"), "fail"),
        (("crash", "fail"), "crash"),
        (("unsupported", "pass"), "pass"),
        (("pass", "pass"), "pass"),
    ],
)
def test_case_that_runs_last_is_as_bad_as_in_its_worst_shard(verdicts, merged):
    shards = [
        shard(
            number,
            [
                *PARTS[number - 1][:-1],
                case("GRAD-9", v, id="last", evidence=v, checks=1),
            ],
        )
        for number, v in enumerate(verdicts, 1)
    ]
    found = merge(shards, CLAUSES, NONE)
    (last,) = (one for one in found.cases if one.id == "last")
    assert (last.verdict, last.checks) == (merged, 2)
    broken = [v for v in verdicts if v in ("crash", "fail")]
    assert all(verdict in last.evidence for verdict in broken)


def test_unexpected_last_case_is_not_excused_by_an_expected_one(tmp_path):
    known = expectations(tmp_path, "GRAD-9", '["crash"]')
    parts = [("crash", True), ("fail", False)]
    shards = [
        shard(
            number,
            [
                *PARTS[number - 1][:-1],
                case("GRAD-9", verdict, id="last", expected=expected, cause=cause),
            ],
        )
        for number, (verdict, expected) in enumerate(parts, 1)
        for cause in ["It is known." if expected else ""]
    ]
    (last,) = (c for c in merge(shards, CLAUSES, known).cases if c.id == "last")
    assert (last.verdict, last.expected) == ("fail", False)


def expectations(folder, subject, outcomes, more=""):
    path = folder / "sample.toml"
    path.write_text(
        f'[[expect]]\nclause = "{subject}"\noutcomes = {outcomes}\n{more}'
        'cause = "It is known."\ndate = 2026-11-22\n'
    )
    return load_expectations(path, {"python_version": "3.1"})


def test_what_is_stale_is_judged_on_the_whole(tmp_path):
    known = expectations(tmp_path, "GRAD-2", '["fail"]')
    merged = merge([shard(1), shard(2)], CLAUSES, known)
    assert merged.summary.exit_status == 1
    assert "entry 1 (GRAD-2) expects a deviation, but all" in merged.summary.stale[0]
    partial = merge([shard(n, full=False) for n in (1, 2)], CLAUSES, known)
    assert (partial.summary.stale, partial.summary.exit_status) == ((), 0)
    assert not partial.run.selection.full
    assert "CUDA-1" not in partial.summary.clauses


def test_conditions_of_expectations_are_those_of_the_machine(tmp_path):
    known = expectations(
        tmp_path, "GRAD-2", '["fail"]', "when = \"python_version > '3.1'\"\n"
    )
    assert merge([shard(1), shard(2)], CLAUSES, known).summary.stale == ()


def test_clause_that_no_shard_judged_is_named():
    parts = [part[1:] if n == 0 else part for n, part in enumerate(PARTS)]
    merged = merge(
        [shard(n, part, total=3) for n, part in enumerate(parts, 1)], CLAUSES, NONE
    )
    assert merged.summary.clauses["SHARE-1"].verdict == "not-run"
    assert merged.summary.exit_status == 1


OTHER = {
    "implementation": ({"name": "someone"}, "differ in the implementation (someone"),
    "version": ({"version": "1.3"}, "the implementation (sample 1.3 and sample 1.2)"),
    "claims": ({"claims": ["core"]}, "differ in the declarations of the adapter"),
    "options": (
        {"options": ("--impl=sample", "--clause=GRAD-1")},
        "options (--impl=sample --clause=GRAD-1 and --impl=sample)",
    ),
    "strict": ({"strict": True}, "differ in --strict (True and False)"),
    "device": ({"device": "cuda"}, "differ in the device (cuda and cpu)"),
    "number": ({"count": 3}, "differ in the number of shards (3 and 2)"),
    "plan": ({"plan": "1" * 12}, "the division into shards, by cases and durations"),
}


@pytest.mark.parametrize("what", OTHER)
def test_shards_of_different_runs_are_refused(what):
    options, said = OTHER[what]
    sentence = refused(shard(1), shard(2, **options))
    assert sentence.startswith("2.jsonl and 1.jsonl are not shards of one run: they")
    assert said in sentence


def test_shards_of_other_suites_and_machines_are_refused():
    other = replace(shard(2), run=replace(shard(2).run, suite="0.2.0"))
    assert "the version of the suite (0.2.0 and 0.1.0)" in refused(shard(1), other)
    other = changed(shard(2), "machine", python="3.12.1")
    said = refused(shard(1), other)
    assert "their machine's python (3.12.1 and 3.11.9)" in said
    other = changed(shard(2), "selection", expectations="mine.toml")
    assert "the expectations (mine.toml and None)" in refused(shard(1), other)


def test_shards_of_another_text_are_refused():
    clauses = spec(*CLAUSES.values(), clause("GRAD-1", profile="grad", text="Other."))
    assert "differ in the text of GRAD-1" in refused(
        shard(1), shard(2, clauses=clauses)
    )
    said = refused(shard(1), shard(2), clauses=clauses)
    assert said.startswith("1.jsonl was made with another text of GRAD-1 than the")


def test_shards_have_to_be_all_and_each_once():
    assert refused(shard(1)) == "1 of 2 shards is missing: 2/2"
    said = refused(shard(2, count=4))
    assert said == "3 of 4 shards are missing: 1/4, 3/4, 4/4"
    twice = shard(2), shard(2, source="again.jsonl")
    assert refused(*twice) == "again.jsonl and 2.jsonl are both the shard 2/2"


def test_shard_that_was_cut_short_is_refused():
    said = "the run of 2.jsonl was cut short: run the shard 2/2 again"
    assert refused(shard(1), replace(shard(2), summary=None)) == said
    assert refused(shard(1), shard(2, missing=1)) == said


def test_shard_of_which_pytest_left_something_out_is_refused():
    left = changed(shard(2), "selection", left_out=3, left_out_by=("-k 'x'",))
    said = refused(shard(1), left)
    assert "2.jsonl lacks 3 of the cases of the shard 2/2" in said
    assert said.endswith("run it again without -k 'x'")


def test_report_that_is_no_shard_is_refused():
    assert refused(shard(1), samples.report(source="x")).startswith("x is not of a")


@pytest.mark.parametrize("expected", [True, False])
def test_other_expectations_than_the_shards_had_are_refused(tmp_path, expected):
    known = NONE if expected else expectations(tmp_path, "GRAD-2", '["fail"]')
    deviation = case("GRAD-2", "fail", expected=expected, cause="It is known.")
    broken = shard(2, [deviation, PARTS[1][1]])
    said = refused(shard(1), broken, expectations=known)
    assert said.startswith("the shards used other expectations: these differ for")


# The command

SPEC = load_clauses()


def files(folder, **options):
    """Write two shards in which the whole spec held; return their paths."""
    held = [case(id) for id in SPEC]
    claims = sorted({one.profile for one in SPEC.values()} - {"cuda"})
    written = []
    for number, part in enumerate((held[:50], held[50:]), 1):
        report = shard(
            number, part, total=len(held), clauses=SPEC, claims=claims, **options
        )
        path = samples.write(folder / f"{number}.jsonl", samples.lines(report))
        written.append(str(path))
    return written


def test_command_writes_the_report_and_prints_it(tmp_path, capsys):
    output = tmp_path / "new" / "merged.jsonl"
    assert main(["merge", *files(tmp_path), "--output", str(output)]) == 0
    assert "sample 1.2 conforms" in capsys.readouterr().out
    merged = read_report(output)
    assert merged.complete
    assert merged.run.selection.full
    assert merged.run.selection.options == ("--impl=sample",)


def test_command_refuses_in_one_sentence(tmp_path, capsys):
    one, _ = files(tmp_path)
    output = tmp_path / "merged.jsonl"
    assert main(["merge", one, "--output", str(output)]) == 4
    told = capsys.readouterr()
    assert (told.out, told.err) == (
        "",
        "shared-tensor-spec: 1 of 2 shards is missing: 2/2\n",
    )
    assert not output.exists()
