"""From the verdicts of cases to those of clauses and of the run."""

from __future__ import annotations

import pytest
import report_samples as samples
from report_samples import CLAUSES, all_but, case, clause, report, spec, view
from sharedtensor_conformance.report.judge import (
    JudgingError,
    Shortfalls,
    judge,
    shortfalls,
)
from sharedtensor_conformance.report.terminal import render
from sharedtensor_conformance.report.verdicts import Need

HELD = samples.ALL_HELD


def _summary(cases, **options):
    return report(cases, **options).summary


def test_a_run_in_which_everything_held_conforms():
    summary = _summary(HELD)
    assert (summary.exit_status, summary.conforms, summary.complete) == (0, True, True)
    assert summary.verdicts == {"pass": 4}
    assert summary.clauses["GRAD-1"].verdict == "pass"
    assert summary.clauses["GRAD-1"].devices == ("cpu",)


@pytest.mark.parametrize("verdict", ["fail", "crash", "hang", "error", "blocked"])
def test_an_unexpected_deviation_of_a_must_decides(verdict):
    summary = _summary(all_but("GRAD-1", case("GRAD-1", verdict)))
    assert (summary.exit_status, summary.conforms) == (1, False)
    assert summary.clauses["GRAD-1"].verdict == verdict
    assert not summary.clauses["GRAD-1"].expected


def test_a_clause_is_as_bad_as_its_worst_case():
    cases = [
        case("GRAD-1", "fail", id="a"),
        case("GRAD-1", "crash", id="b"),
        case("GRAD-1", id="c"),
        case("GRAD-1", "not-run", id="d"),
    ]
    result = _summary(all_but("GRAD-1", *cases)).clauses["GRAD-1"]
    assert result.verdict == "crash"
    assert result.cases == {"crash": 1, "fail": 1, "not-run": 1, "pass": 1}


def test_cases_that_follow_change_nothing_of_a_broken_clause():
    cases = [
        case("GRAD-1", "fail", id="a", expected=True),
        case("GRAD-1", "follows", id="b"),
        case("GRAD-1", id="c"),
    ]
    summary = _summary(all_but("GRAD-1", *cases))
    assert (summary.exit_status, summary.conforms) == (0, False)
    result = summary.clauses["GRAD-1"]
    assert (result.verdict, result.expected) == ("fail", True)
    assert result.cases == {"fail": 1, "follows": 1, "pass": 1}


@pytest.mark.parametrize("others", [(), (case("GRAD-1", id="c"),)])
def test_a_clause_is_not_held_where_a_case_follows_from_nothing(others):
    summary = _summary(all_but("GRAD-1", case("GRAD-1", "follows", id="b"), *others))
    assert (summary.exit_status, summary.conforms) == (1, False)
    assert summary.clauses["GRAD-1"].verdict == "follows"


def test_expected_deviations_pass_but_do_not_conform():
    cases = [
        case("GRAD-1", "fail", id="a", expected=True),
        case("GRAD-1", "crash", id="b", expected=True),
    ]
    summary = _summary(all_but("GRAD-1", *cases))
    assert (summary.exit_status, summary.conforms) == (0, False)
    assert summary.clauses["GRAD-1"].expected


def test_one_unexpected_case_among_expected_ones_decides():
    cases = [
        case("GRAD-1", "crash", id="a", expected=True),
        case("GRAD-1", "fail", id="b"),
    ]
    assert _summary(all_but("GRAD-1", *cases)).exit_status == 1


def test_an_error_decides_though_its_clause_does_not():
    assert _summary([*HELD, case("GRAD-9", "error", id="a")]).exit_status == 1
    assert (
        _summary([*HELD, case("GRAD-9", "error", id="a", expected=True)]).exit_status
        == 1
    )


def test_a_should_decides_under_strict_only():
    cases = all_but("GRAD-9", case("GRAD-9", "fail"))
    assert _summary(cases).exit_status == 0
    assert _summary(cases).conforms
    assert _summary(cases, strict=True).exit_status == 1


@pytest.mark.parametrize("instead", [[], [case("GRAD-1", "not-run")]])
def test_a_clause_that_nothing_judged_decides_in_a_full_selection(instead):
    summary = _summary(all_but("GRAD-1", *instead))
    assert summary.exit_status == 1
    assert summary.clauses["GRAD-1"].verdict == "not-run"
    assert _summary(all_but("GRAD-1", *instead), full=False).exit_status == 0


USER = case("GRAD-1", "not-run", id="user", needs=Need.SECOND_USER)
SHM = case("GRAD-1", "not-run", id="shm", needs=Need.PRIVATE_SHM)
NOT_CLAIMED = case("GRAD-1", "unsupported", id="other")


@pytest.mark.parametrize("cases", [[USER], [USER, SHM], [USER, NOT_CLAIMED]])
def test_what_the_machine_does_not_permit_decides_under_strict_only(cases):
    found = report(all_but("GRAD-1", *cases))
    needs = tuple(one.needs for one in cases if one.needs)
    assert (found.summary.exit_status, found.summary.conforms) == (0, False)
    assert found.summary.clauses["GRAD-1"].needs == needs
    assert view(found).by_need == {one: ["GRAD-1"] for one in needs}
    strict = report(all_but("GRAD-1", *cases), strict=True)
    assert strict.summary.exit_status == 1
    short = view(strict).short
    assert short == Shortfalls(not_here=("GRAD-1",))


@pytest.mark.parametrize("verdict", ["not-run", "follows"])
def test_a_clause_that_is_not_judged_for_another_reason_too_decides(verdict):
    found = report(all_but("GRAD-1", USER, case("GRAD-1", verdict)))
    assert found.summary.exit_status == 1
    short = view(found).short
    assert short == Shortfalls(unjudged=("GRAD-1",))
    assert view(found).by_need == {}


def test_a_clause_that_another_case_judged_needs_nothing():
    summary = _summary([*HELD, USER])
    assert (summary.exit_status, summary.conforms) == (0, True)
    assert summary.clauses["GRAD-1"].needs == ()


def test_a_should_that_the_machine_does_not_permit_leaves_a_run_conforming():
    cases = all_but("GRAD-9", case("GRAD-9", "not-run", needs=Need.SECOND_USER))
    assert _summary(cases).conforms
    strict = _summary(cases, strict=True)
    assert (strict.exit_status, strict.conforms) == (1, False)


def test_a_run_that_the_machine_does_not_permit_at_all_judges_nothing():
    summary = _summary([USER, NOT_CLAIMED], full=False)
    assert summary.exit_status == 1


def test_missing_cases_might_judge_what_the_machine_does_not_permit():
    found = report(all_but("GRAD-1", USER), missing=1)
    assert view(found).by_need == {}


def test_a_pass_on_a_simulated_device_needs_no_permission():
    cases = [
        *HELD,
        case("CUDA-1", "not-run", device="cuda", id="a", needs=Need.SECOND_USER),
        case("CUDA-1", device="simulated", id="b"),
    ]
    summary = _summary(cases, device="cuda", **CLAIMS_CUDA)
    assert (summary.exit_status, summary.clauses["CUDA-1"].needs) == (1, ())


def test_a_should_that_nothing_judged_decides_under_strict_only():
    assert _summary(all_but("GRAD-9")).exit_status == 0
    assert _summary(all_but("GRAD-9"), strict=True).exit_status == 1


def test_profiles_that_are_not_claimed_do_not_decide():
    cases = [case("SHARE-1"), case("GRAD-1", "unsupported")]
    summary = _summary(cases, claims=["core"])
    assert (summary.exit_status, summary.conforms) == (0, True)
    assert summary.clauses["GRAD-2"].verdict == "unsupported"


@pytest.mark.parametrize("verdict", ["fail", "not-run"])
def test_not_even_a_case_that_cites_them_lets_them_decide(verdict):
    cases = [case("SHARE-1"), case("GRAD-1", verdict)]
    assert _summary(cases, claims=["core"]).exit_status == 0


def test_core_decides_though_nobody_claims_it():
    cases = [case("SHARE-1", "fail")]
    assert _summary(cases, claims=[]).exit_status == 1


def test_a_partial_selection_knows_only_its_clauses_and_never_conforms():
    summary = _summary([case("GRAD-1")], full=False)
    assert list(summary.clauses) == ["GRAD-1"]
    assert (summary.exit_status, summary.conforms) == (0, False)


def test_stale_expectations_decide_in_a_full_selection_only():
    assert _summary(HELD, stale=["entry 1"]).exit_status == 1
    partial = _summary(HELD, stale=["entry 1"], full=False)
    assert (partial.exit_status, partial.stale) == (0, ())


KNOWN = all_but("GRAD-2", case("GRAD-2", "fail", expected=True))


@pytest.mark.parametrize(
    ("cases", "stale"), [(HELD, ["entry 1"]), (KNOWN, [])], ids=["gone", "as before"]
)
def test_what_is_known_of_an_earlier_release_decides_under_strict_only(cases, stale):
    options = {"stale": stale, "carried_over": "1.1"}
    assert _summary(cases, **options).exit_status == 0
    assert _summary(cases, **options, strict=True).exit_status == 1


def test_what_a_newer_release_breaks_anew_decides():
    cases = [*KNOWN[:-1], case("GRAD-1", "fail", id="new"), KNOWN[-1]]
    assert _summary(cases, carried_over="1.1").exit_status == 1


def test_missing_cases_decide():
    summary = _summary(HELD, missing=2)
    assert (summary.exit_status, summary.complete, summary.conforms) == (
        1,
        False,
        False,
    )
    assert shortfalls(samples.run(len(HELD) + 2), summary).cut_short


def test_what_a_run_did_not_reach_is_neither_stale_nor_unjudged():
    summary = _summary(all_but("GRAD-1"), missing=1, stale=["entry 1"])
    assert summary.stale == ()
    assert "GRAD-1" not in summary.clauses
    not_run = _summary(all_but("GRAD-1", case("GRAD-1", "not-run")), missing=1)
    short = shortfalls(samples.run(5), not_run)
    assert short == Shortfalls(cut_short=True)


def test_why_a_run_stopped_is_kept_where_cases_are_missing():
    for planned, kept in ((4, ""), (5, "by Ctrl-C")):
        began = samples.run(planned)
        options = {"stale": (), "stopped": "by Ctrl-C"}
        assert judge(began, HELD, CLAUSES, **options).stopped == kept


CLAIMS_CUDA = {"claims": ["core", "grad", "cuda"]}


def test_device_memory_is_outside_a_run_on_the_cpu():
    cases = [*HELD, case("CUDA-1", "not-run")]
    assert _summary(cases, **CLAIMS_CUDA).exit_status == 0


def test_a_deviation_on_the_simulated_device_decides():
    cases = [*HELD, case("CUDA-1", "fail", device="simulated")]
    summary = _summary(cases, **CLAIMS_CUDA)
    assert summary.exit_status == 1
    assert summary.clauses["CUDA-1"].devices == ("simulated",)


@pytest.mark.parametrize("device", ["simulated", "emulated", "cuda"])
def test_clauses_of_host_memory_need_no_case_where_a_device_alone_was_asked_for(device):
    options = {"options": [f"--device={device}"], "device": device, **CLAIMS_CUDA}
    found = report([case("CUDA-1", device=device)], **options)
    assert (found.summary.exit_status, found.summary.conforms) == (0, False)
    text = " ".join(render(view(found)).split())
    assert "device memory alone" in text
    assert "sample 1.2 passes on device memory: 1 clause held" in text
    broken = report([case("CUDA-1", "fail", device=device)], **options)
    assert broken.summary.exit_status == 1


def test_clauses_of_host_memory_need_a_case_where_it_was_asked_for_too():
    options = {"options": ["--device=cuda", "--device=cpu"], **CLAIMS_CUDA}
    found = report([case("CUDA-1", device="cuda")], device="cuda", **options)
    assert found.summary.exit_status == 1


def test_a_simulated_pass_does_not_count_where_cuda_was_asked_for():
    simulated = [*HELD, case("CUDA-1", device="simulated")]
    asked = _summary(simulated, device="cuda", **CLAIMS_CUDA)
    assert (asked.exit_status, asked.clauses["CUDA-1"].verdict) == (1, "not-run")
    real = [*simulated, case("CUDA-1", device="cuda", id="real")]
    assert _summary(real, device="cuda", **CLAIMS_CUDA).exit_status == 0


def test_a_case_of_several_clauses_counts_for_each():
    cases = [case("SHARE-1 GRAD-1 GRAD-2", "fail"), case("GRAD-9")]
    clauses = _summary(cases).clauses
    broken = [id for id in clauses if clauses[id].verdict == "fail"]
    assert sorted(broken) == ["GRAD-1", "GRAD-2", "SHARE-1"]


def test_a_case_of_an_unknown_clause_is_refused():
    with pytest.raises(JudgingError, match="cites GRAD-77, which is no clause"):
        _summary([case("GRAD-77")])


def test_without_a_clock_a_run_takes_as_long_as_its_cases():
    began = samples.run(2)
    cases = [case("SHARE-1", seconds=1.5), case("GRAD-1", seconds=0.25)]
    summary = judge(began, cases, CLAUSES, stale=())
    assert (summary.seconds, summary.finished) == (1.75, began.started)


def test_the_level_that_counts_is_the_clause_s():
    clauses = spec(clause("SHARE-1", level="SHOULD"))
    summary = _summary([case("SHARE-1", "fail")], clauses=clauses, strict=False)
    assert (summary.exit_status, summary.clauses["SHARE-1"].level) == (0, "SHOULD")
