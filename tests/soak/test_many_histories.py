"""Random histories in number: few of them, and of an implementation that is wrong."""

import json

import pytest

FEW = ("--count=1", "--each=3", "--suite=--start-method=fork")
ONE_FAMILY = (
    *FEW,
    "--suite=--strategy=file_descriptor",
    "--suite=--clause=FD-5",
    "--suite=-n0",
)


def record_of(path, **changes):
    verdicts = {"status": 0, "verdicts": {"pass": 16}, "others": [], "seed": 6}
    record = {"histories": {"of_queues": 8}, "runs": [verdicts], "seconds": 900.0}
    path.write_text(json.dumps(record | {"held": True} | changes))
    return f"--add-to={path}"


def test_a_record_is_gone_on_with_the_next_seed(run, tmp_path):
    earlier = record_of(tmp_path / "earlier.json")
    done = run("histories.py", *ONE_FAMILY, "--count=11", earlier)
    assert done.status == 0, done.said
    assert done.record["histories"] == {"of_queues": 8, "with_programs": 3}
    assert [one["seed"] for one in done.record["runs"]] == [6, 7]
    assert "11 histories with deaths in 2 runs" in done.said
    assert done.record["seconds"] > 900
    assert str(tmp_path) not in json.dumps(done.record)
    assert done.left == []


@pytest.mark.parametrize("changes", [{"held": False}, {"runs": []}, {"runs": 3}])
def test_what_found_something_is_not_gone_on_with(run, tmp_path, changes):
    path = tmp_path / "earlier.json"
    done = run("histories.py", record_of(path, **changes))
    assert done.status == 4
    assert "is no record of histories that were all as the model says" in done.said
    assert len(done.said.strip().splitlines()) == 1


@pytest.mark.takes(15)
def test_a_history_that_fails_is_a_finding_and_is_not_counted(run):
    wrong = ("--suite=--impl=mutant:swaps_messages", "--suite=--clause=CHAN-8")
    # With seed 1 the first history that fails waits for a message until the deadline.
    done = run("histories.py", *FEW, "--first-seed=2", "--suite=-n0", *wrong)
    assert done.status == 1, done.said
    (verdicts,) = (one["verdicts"] for one in done.record["runs"])
    assert verdicts["fail"] > 0
    assert sum(done.record["histories"].values()) == 3 * verdicts.get("pass", 0)
    assert "no plain pass, first test_histories.py::" in done.said
    assert "as the model says" not in done.said


@pytest.mark.parametrize("given", ["--count=0", "--each=-3", "--minutes=long"])
def test_wrong_numbers_are_answered_in_one_sentence(run, given):
    done = run("histories.py", given)
    assert done.status == 4
    assert len(done.said.strip().splitlines()) == 1


def test_only_what_passed_is_counted(scripts, tmp_path):
    import histories

    def case(family, verdict, start_method):
        test = histories.TEST.format(family)
        axes = {"start_method": start_method}
        return {"type": "case", "test": test, "verdict": verdict, "axes": axes}

    report = tmp_path / "report.jsonl"
    lines = [
        {"type": "run"},
        case("of_queues", "pass", "fork"),
        case("of_queues", "pass", "spawn"),
        case("with_deaths", "fail", "fork"),
    ]
    report.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cost = histories.RELATIVE_COST["spawn"] // histories.RELATIVE_COST["fork"]
    asked = histories.RELATIVE_COST["spawn"]
    assert histories.histories_of(report, asked) == {"of_queues": 1 + cost}


def test_no_run_begins_when_the_time_is_over(scripts):
    import time

    import histories

    assert not histories.is_over(time.monotonic(), None)
    assert not histories.is_over(time.monotonic(), 1)
    assert histories.is_over(time.monotonic() - 61, 1)
