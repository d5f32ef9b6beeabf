"""The suite again and again: a run of one clause, and runs that were no plain pass."""

import json

import pytest
from sharedtensor_conformance.report.records import Case

QUICK = ("--busy=0", "--suite=-n0", "--suite=--start-method=fork")
FEW = ("--runs=1", "--suite=--clause=API-2", "--suite=--strategy=file_descriptor")
HISTORIES = ("--histories=4", "--each=3", "--first-seed=7")


def test_a_run_in_which_all_pass_holds(run):
    done = run("suite.py", *QUICK, *FEW)
    assert done.record["runs"][0]["verdicts"]["pass"] > 0


def test_a_run_that_comes_to_nothing_shows_its_output(run):
    options = ("--runs=1", "--busy=0", "--suite=--clause=NONE-1")
    done = run("suite.py", *options, status=1)
    assert "NONE-1" in done.record["runs"][0]["output"]


def test_runs_go_on_until_there_are_enough_histories(run, tmp_path):
    few = ("--suite=--strategy=file_descriptor", "--suite=--clause=FD-5")
    done = run("suite.py", *QUICK, *HISTORIES, *few)
    assert done.record["histories"] == {"with_programs": 6}
    assert [one["seed"] for one in done.record["runs"]] == [7, 8]
    assert "6 histories with deaths in 2 runs" in done.said
    assert str(tmp_path) not in json.dumps(done.record)


@pytest.mark.takes(15)
def test_a_history_that_fails_is_a_finding_and_is_not_counted(run):
    wrong = ("--suite=--impl=mutant:swaps_messages", "--suite=--clause=CHAN-8")
    few = ("--suite=--strategy=file_descriptor",)
    done = run("suite.py", *QUICK, *HISTORIES, *wrong, *few, status=1)
    (verdicts,) = (one["verdicts"] for one in done.record["runs"])
    assert verdicts["fail"] > 0
    assert sum(done.record["histories"].values()) == 3 * verdicts.get("pass", 0)
    assert "no plain pass, first test_histories.py::" in done.said


@pytest.fixture
def judged(scripts):
    """Judge a run that had these cases."""
    from suite import judge, verdicts_of

    def judge_cases(*given, status=0, unprivileged=False):
        cases = [Case(id="a", test="a", clauses=("SHARE-1",), **one) for one in given]
        made = {"status": status, "idle": 0.0, "unprivileged": unprivileged}
        made |= {"seed": None, **verdicts_of(cases)}
        return judge({"runs": [made]})

    return judge_cases


PASSED, NOT_RUN = {"verdict": "pass"}, {"verdict": "not-run"}


@pytest.mark.parametrize(
    ("other", "status"),
    [
        ({"verdict": "fail"}, 0),
        (NOT_RUN, 0),
        (PASSED | {"repeated": "vanished"}, 0),
        (PASSED, 1),
    ],
)
def test_only_plain_passes_hold(judged, other, status):
    from recording import NotHeld

    assert "all 2 cases passed" in judged(PASSED, PASSED)
    with pytest.raises(NotHeld, match="Run 1 of 1 ended with status"):
        judged(PASSED, other, status=status)
    with pytest.raises(NotHeld):
        judged()


def test_what_needs_privileges_is_no_flaw_of_another_user(judged):
    assert "all 1 cases" in judged(PASSED, NOT_RUN, unprivileged=True)
    with pytest.raises(Exception, match="no plain pass; 1 not run, first a"):
        judged(PASSED, NOT_RUN)
    with pytest.raises(Exception, match="no plain pass"):
        judged(PASSED, {"verdict": "fail"}, NOT_RUN, unprivileged=True)


def test_what_needs_a_real_device_is_no_flaw_of_a_simulated_one(judged):
    never_run = NOT_RUN | {"device": "simulated"}
    assert "all 1 cases" in judged(PASSED, never_run)
    with pytest.raises(Exception, match="1 not run, first a"):
        judged(PASSED, never_run, NOT_RUN)


def test_a_run_that_is_ended_early_keeps_what_is_complete(scripts, monkeypatch):
    import suite

    complete = {"status": 0, "idle": 0.0, "seed": None, "others": [], "refused": []}
    complete |= {"verdicts": {"pass": 3}, "unprivileged": False}

    def ended(count):
        def run_all(given, record):
            record["runs"] += [complete] * count
            raise KeyboardInterrupt

        monkeypatch.setattr(suite, "run_all", run_all)
        return suite.work(suite.options().parse_args([]), {})

    assert "2 runs" in ended(2)
    with pytest.raises(KeyboardInterrupt):
        ended(0)
