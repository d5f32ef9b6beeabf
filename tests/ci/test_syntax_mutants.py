"""The mutants made from syntax: what is changed, what is not, which are chosen."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="it makes the mutants")
sys.path.insert(0, str(Path(__file__).parents[2] / "evidence" / "mutants"))

import generated_mutants
import syntax_mutants

SOURCE = '''\
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    limit = 1


def first(a: int | None, b) -> int | float:
    """Clause VIEW-1. It has 3 steps."""
    close(a)
    if a < b:
        raise ValueError(f"{a + b} is 7", 8)
    return a


def second():
    return 5
'''


@pytest.fixture
def found(tmp_path):
    (tmp_path / "one.py").write_text(SOURCE)
    return tmp_path, syntax_mutants.changes(tmp_path, ["one.py"])


def sampled(found, seed=0, count=100):
    root, changes = found
    return syntax_mutants.sample(root, changes, seed, count)


def test_program_is_mutated_and_text_is_not(found):
    changed = {mutant.before for mutant in sampled(found)}
    assert changed == {"close(a)", "if a < b:", "return 5"}


def test_a_call_whose_result_nobody_uses_is_left_out(found):
    (one,) = [m for m in sampled(found) if m.operator == "RemoveCall"]
    assert (one.before, one.after, one.within) == ("close(a)", "pass", "first")
    assert one.source == SOURCE.replace("    close(a)", "    pass")


def test_a_place_gives_one_mutant_of_each_kind(found):
    kinds = [m.operator.partition("_")[0] for m in sampled(found)]
    assert sorted(kinds) == [
        "AddNot",
        "NumberReplacer",
        "RemoveCall",
        "ReplaceComparisonOperator",
    ]


def test_the_choice_depends_on_the_seed_and_not_on_line_numbers(found, tmp_path):
    keys = [mutant.key for mutant in sampled(found, count=2)]
    choices = [[m.key for m in sampled(found, seed, 2)] for seed in range(20)]
    assert any(choice != keys for choice in choices)
    (tmp_path / "one.py").write_text("# A line above.\n" + SOURCE)
    changes = syntax_mutants.changes(tmp_path, ["one.py"])
    assert [m.key for m in sampled((tmp_path, changes), count=2)] == keys


def test_a_mutant_names_the_clauses_that_its_function_cites(found):
    clauses = {m.within: m.clauses for m in sampled(found)}
    assert clauses["first"] == ("VIEW-1",)


@pytest.fixture
def record(tmp_path, found):
    def with_outcome(outcome):
        known = generated_mutants.Record(tmp_path / "record.json", {}, again=False)
        known.note(sampled(found)[0], 0, (outcome, "a case", 1.0))
        return known

    return with_outcome


def test_a_killed_mutant_is_not_said_to_be_equivalent(record, found, monkeypatch):
    stages = lambda mutant: (("--strict",),)  # noqa: E731
    monkeypatch.setattr(generated_mutants, "stages_of", stages)
    mutant = sampled(found)[0]
    assert record("survived").row(mutant, "Why.")["outcome"] == "equivalent"
    with pytest.raises(SystemExit, match="is not equivalent"):
        record("killed").row(mutant, "Why.")


def test_the_first_outcome_is_kept_with_the_last(record, found, monkeypatch):
    stages = lambda mutant: (("--strict",),)  # noqa: E731
    monkeypatch.setattr(generated_mutants, "stages_of", stages)
    mutants = sampled(found)[:1]
    record("survived").save(mutants)
    again = record("killed").save(mutants)
    assert (again[0]["first"], again[0]["outcome"]) == ("survived", "killed")
    assert generated_mutants.score(again, "first") == "0 of 1 (0%)"
    assert generated_mutants.score(again, "outcome") == "1 of 1 (100%)"


def test_each_mutant_has_the_day_on_which_it_was_judged(tmp_path, found):
    file, mutants = tmp_path / "record.json", sampled(found)[:2]
    for day, mutant in zip(("2026-01-01", "2026-01-02"), mutants, strict=True):
        known = generated_mutants.Record(file, {"started": day}, again=False)
        known.note(mutant, 0, ("killed", "a case", 1.0))
        known.save(mutants)
    record = json.loads(file.read_text())
    assert record["started"] == "2026-01-02"
    assert [one["judged"] for one in record["mutants"]] == ["2026-01-01", "2026-01-02"]


def test_the_record_begins_with_when_and_on_what_it_was_made(found, monkeypatch):
    monkeypatch.setattr(generated_mutants.importlib.metadata, "version", lambda _: "8")
    head = generated_mutants.head(found[1], sampled(found), seed=3)
    assert (head["tool"], head["seed"]) == ("cosmic-ray 8", 3)
    assert {"started", "version", "commit", "python"} <= set(head)


def test_a_run_that_does_not_end_is_a_timeout(tmp_path, monkeypatch):
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nsleep 600\n")
    endless.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(endless))
    outcome, by = generated_mutants.run_stage(None, (), 0.2)
    assert outcome == "timeout"
    assert "0.2 s" in by


def test_a_mutant_is_what_the_suite_runs_on():
    file = "reference/sharedtensor/protocol.py"
    source = (generated_mutants.ROOT / file).read_text() + "\nraise ImportError\n"
    mutant = syntax_mutants.Mutant(file, 1, "", "", "", "", source, ())
    few = ("--start-method=fork", "--strategy=file_descriptor", "--clause=API-2")
    outcome, by = generated_mutants.run_stage(mutant, few, 300)
    assert outcome == "killed", by
    assert generated_mutants.run_stage(None, few, 300) == ("survived", "")
