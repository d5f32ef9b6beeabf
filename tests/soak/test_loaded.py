"""One run of a single clause, and what is made of runs that were no plain pass."""

import json

import pytest

FEW = (
    "--runs=1",
    "--busy=0",
    "--suite=--clause=API-2",
    "--suite=-n0",
    "--suite=--start-method=fork",
    "--suite=--strategy=file_descriptor",
)


def test_a_run_in_which_all_pass_holds(run):
    done = run("loaded.py", *FEW)
    assert done.status == 0, done.said
    assert done.record["runs"][0]["verdicts"]["pass"] > 0
    assert done.left == []


def test_a_run_that_comes_to_nothing_shows_its_output(run):
    done = run("loaded.py", "--runs=1", "--busy=0", "--suite=--clause=NONE-1")
    assert done.status == 1
    assert "NONE-1" in done.record["runs"][0]["output"]


@pytest.fixture
def judged(scripts, tmp_path):
    """Judge a run whose report has these cases."""
    from loaded import cases_of, judge

    def judge_cases(*cases, status=0, unprivileged=False):
        report = tmp_path / "report.jsonl"
        common = {"type": "case", "id": "a", "evidence": "", "repeated": None}
        common["device"] = "cpu"
        lines = [{"type": "run"}, *({**common, **case} for case in cases)]
        report.write_text("".join(json.dumps(line) + "\n" for line in lines))
        made = {"status": status, "idle": 0.0, "unprivileged": unprivileged}
        return judge([{**made, **cases_of(report)}])

    return judge_cases


def test_only_plain_passes_hold(judged):
    from records import NotHeld

    passed = {"verdict": "pass"}
    assert "all 2 cases passed" in judged(passed, passed)
    for others, status in (
        ([{"verdict": "fail"}], 0),
        ([{"verdict": "not-run"}], 0),
        ([{"verdict": "pass", "repeated": "vanished"}], 0),
        ([], 1),
    ):
        with pytest.raises(NotHeld, match="Run 1 of 1 ended with status"):
            judged(passed, *others, status=status)
    with pytest.raises(NotHeld):
        judged()


def test_what_needs_privileges_is_no_flaw_of_another_user(judged):
    passed, refused = {"verdict": "pass"}, {"verdict": "not-run"}
    assert "all 1 cases" in judged(passed, refused, unprivileged=True)
    with pytest.raises(Exception, match="ended with status 1 and 0 cases"):
        judged(passed, refused, status=1, unprivileged=True)
    with pytest.raises(Exception, match="no plain pass; 1 not run, first a"):
        judged(passed, refused)
    with pytest.raises(Exception, match="no plain pass"):
        judged(passed, {"verdict": "fail"}, refused, unprivileged=True)


def test_what_needs_a_real_device_is_no_flaw_of_a_simulated_one(judged):
    passed = {"verdict": "pass"}
    never_run = {"verdict": "not-run", "device": "simulated"}
    assert "all 1 cases" in judged(passed, never_run)
    with pytest.raises(Exception, match="1 not run, first a"):
        judged(passed, never_run, {"verdict": "not-run"})


def test_a_run_that_is_ended_early_keeps_what_is_complete(scripts, monkeypatch):
    import loaded

    complete = {"status": 0, "idle": 0.0, "unprivileged": False, "others": []}
    complete |= {"verdicts": {"pass": 3}, "refused": []}

    def ended(count):
        def run_all(given, runs):
            runs += [complete] * count
            raise KeyboardInterrupt

        monkeypatch.setattr(loaded, "run_all", run_all)
        return loaded.work(loaded.options().parse_args([]), {})

    assert "2 runs" in ended(2)
    with pytest.raises(KeyboardInterrupt):
        ended(0)
