"""From the verdicts of cases to those of clauses and of the run."""

from __future__ import annotations

import pytest
import report_samples as samples
from report_samples import CLAUSES, all_but, case, report, view
from sharedtensor_conformance.report.judge import (
    JudgingError,
    Shortfalls,
    judge,
    shortfalls,
)
from sharedtensor_conformance.report.terminal import render
from sharedtensor_conformance.report.verdicts import Need

HELD = samples.ALL_HELD
USER = case("GRAD-1", "not-run", id="user", needs=Need.SECOND_USER)
SHM = case("GRAD-1", "not-run", id="shm", needs=Need.PRIVATE_SHM)
NOT_CLAIMED = case("GRAD-1", "unsupported", id="other")
KNOWN = all_but("GRAD-2", case("GRAD-2", "fail", expected=True))
NEW = case("GRAD-1", "fail", id="new")
UNPERMITTED = all_but("GRAD-9", case("GRAD-9", "not-run", needs=Need.SECOND_USER))

CORE = {"claims": ["core"]}
CLAIMS_CUDA = {"claims": ["core", "grad", "cuda"]}
STRICT, PART = {"strict": True}, {"full": False}
STALE, NEWER = {"stale": ["entry 1"]}, {"carried_over": "1.1"}
BOTH_DEVICES = {"options": ["--device=cuda", "--device=cpu"], "device": "cuda"}

FAILS, PASSES, CONFORMS = (1, False), (0, False), (0, True)
RUNS = {
    "everything held": (HELD, {}, CONFORMS),
    "nothing judged a clause": (all_but("GRAD-1"), {}, FAILS),
    "a clause was not run": (all_but("GRAD-1", case("GRAD-1", "not-run")), {}, FAILS),
    "nothing judged it in a part": (all_but("GRAD-1"), PART, PASSES),
    "it was not run in a part": (
        all_but("GRAD-1", case("GRAD-1", "not-run")),
        PART,
        PASSES,
    ),
    "a part never conforms": ([case("GRAD-1")], PART, PASSES),
    "all deviations are expected": (
        all_but(
            "GRAD-1",
            case("GRAD-1", "fail", id="a", expected=True),
            case("GRAD-1", "crash", id="b", expected=True),
        ),
        {},
        PASSES,
    ),
    "one of two deviations is expected": (
        all_but("GRAD-1", case("GRAD-1", "crash", id="a", expected=True), NEW),
        {},
        FAILS,
    ),
    "an error in a SHOULD": ([*HELD, case("GRAD-9", "error", id="a")], {}, FAILS),
    "an expected error": (
        [*HELD, case("GRAD-9", "error", id="a", expected=True)],
        {},
        FAILS,
    ),
    "a SHOULD is broken": (all_but("GRAD-9", case("GRAD-9", "fail")), {}, CONFORMS),
    "a SHOULD is broken, strict": (
        all_but("GRAD-9", case("GRAD-9", "fail")),
        STRICT,
        FAILS,
    ),
    "nothing judged a SHOULD": (all_but("GRAD-9"), {}, CONFORMS),
    "nothing judged a SHOULD, strict": (all_but("GRAD-9"), STRICT, FAILS),
    "the machine does not permit a SHOULD": (UNPERMITTED, {}, CONFORMS),
    "the machine does not permit a SHOULD, strict": (UNPERMITTED, STRICT, FAILS),
    "the machine does not permit anything": ([USER, NOT_CLAIMED], PART, FAILS),
    "a profile is not claimed": (
        [case("SHARE-1"), case("GRAD-1", "unsupported")],
        CORE,
        CONFORMS,
    ),
    "it is broken though it is not claimed": ([case("SHARE-1"), NEW], CORE, CONFORMS),
    "core is broken, and not claimed": (
        [case("SHARE-1", "fail")],
        {"claims": []},
        FAILS,
    ),
    "something is stale": (HELD, STALE, FAILS),
    "something is stale in a part": (HELD, STALE | PART, PASSES),
    "something is stale, on a newer release": (HELD, STALE | NEWER, CONFORMS),
    "something is stale, on a newer release, strict": (
        HELD,
        STALE | NEWER | STRICT,
        FAILS,
    ),
    "a newer release breaks the same": (KNOWN, NEWER, PASSES),
    "a newer release breaks the same, strict": (KNOWN, NEWER | STRICT, FAILS),
    "a newer release breaks more": ([*KNOWN[:-1], NEW, KNOWN[-1]], NEWER, FAILS),
    "cases are missing": (HELD, {"missing": 2}, FAILS),
    "a case of a device is not run on the CPU": (
        [*HELD, case("CUDA-1", "not-run")],
        CLAIMS_CUDA,
        CONFORMS,
    ),
    "a deviation on a simulated device": (
        [*HELD, case("CUDA-1", "fail", device="simulated")],
        CLAIMS_CUDA,
        FAILS,
    ),
    "a real device passed": (
        [*HELD, case("CUDA-1", device="simulated"), case("CUDA-1", device="cuda")],
        {"device": "cuda", **CLAIMS_CUDA},
        CONFORMS,
    ),
    "host memory was asked for, and has no case": (
        [case("CUDA-1", device="cuda")],
        BOTH_DEVICES | CLAIMS_CUDA,
        FAILS,
    ),
}
"""For each run: its cases, its options, and its exit status and whether it conforms."""


def _summary(cases, **options):
    return report(cases, **options).summary


@pytest.mark.parametrize("name", RUNS)
def test_exit_status_and_conformance_of_a_run(name):
    cases, options, decided = RUNS[name]
    summary = _summary(cases, **options)
    assert (summary.exit_status, summary.conforms) == decided
    assert summary.complete == ("missing" not in options)


@pytest.mark.parametrize("verdict", ["fail", "crash", "hang", "error", "blocked"])
def test_an_unexpected_deviation_of_a_must_decides(verdict):
    summary = _summary(all_but("GRAD-1", case("GRAD-1", verdict)))
    assert (summary.exit_status, summary.conforms) == FAILS
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


@pytest.mark.parametrize("others", [(), (case("GRAD-1", id="c"),)])
def test_a_clause_is_not_held_where_a_case_follows_from_nothing(others):
    summary = _summary(all_but("GRAD-1", case("GRAD-1", "follows", id="b"), *others))
    assert (summary.exit_status, summary.conforms) == FAILS
    assert summary.clauses["GRAD-1"].verdict == "follows"


@pytest.mark.parametrize("cases", [[USER], [USER, SHM], [USER, NOT_CLAIMED]])
def test_what_the_machine_does_not_permit_decides_under_strict_only(cases):
    found = report(all_but("GRAD-1", *cases))
    needs = tuple(one.needs for one in cases if one.needs)
    assert (found.summary.exit_status, found.summary.conforms) == PASSES
    assert found.summary.clauses["GRAD-1"].needs == needs
    assert view(found).by_need == {one: ["GRAD-1"] for one in needs}
    strict = report(all_but("GRAD-1", *cases), strict=True)
    assert strict.summary.exit_status == 1
    assert view(strict).short == Shortfalls(not_here=("GRAD-1",))


@pytest.mark.parametrize("verdict", ["not-run", "follows"])
def test_a_clause_that_is_not_judged_for_another_reason_too_decides(verdict):
    found = report(all_but("GRAD-1", USER, case("GRAD-1", verdict)))
    assert found.summary.exit_status == 1
    assert view(found).short == Shortfalls(unjudged=("GRAD-1",))
    assert view(found).by_need == {}


def test_missing_cases_might_judge_what_the_machine_does_not_permit():
    assert view(report(all_but("GRAD-1", USER), missing=1)).by_need == {}


def test_a_pass_on_a_simulated_device_counts_for_nothing_where_cuda_was_asked_for():
    simulated = case("CUDA-1", device="simulated", id="b")
    needing = case("CUDA-1", "not-run", device="cuda", needs=Need.SECOND_USER)
    for cases in ([simulated], [needing, simulated]):
        summary = _summary([*HELD, *cases], device="cuda", **CLAIMS_CUDA)
        result = summary.clauses["CUDA-1"]
        assert summary.exit_status == 1
        assert (result.verdict, result.needs) == ("not-run", ())


def test_what_a_run_did_not_reach_is_neither_stale_nor_unjudged():
    summary = _summary(all_but("GRAD-1"), missing=1, **STALE)
    assert summary.stale == ()
    assert "GRAD-1" not in summary.clauses
    not_run = _summary(all_but("GRAD-1", case("GRAD-1", "not-run")), missing=1)
    short = shortfalls(samples.run(5), not_run)
    assert short == Shortfalls(cut_short=True)


def test_why_a_run_stopped_is_kept_where_cases_are_missing():
    for planned, kept in ((4, ""), (5, "by Ctrl-C")):
        began = samples.run(planned)
        judged = judge(began, HELD, CLAUSES, stale=(), stopped="by Ctrl-C")
        assert judged.stopped == kept


@pytest.mark.parametrize("device", ["simulated", "emulated", "cuda"])
def test_clauses_of_host_memory_need_no_case_where_a_device_alone_was_asked_for(device):
    options = {"options": [f"--device={device}"], "device": device, **CLAIMS_CUDA}
    found = report([case("CUDA-1", device=device)], **options)
    assert (found.summary.exit_status, found.summary.conforms) == PASSES
    text = " ".join(render(view(found)).split())
    assert "device memory alone" in text
    assert "sample 1.2 passes on device memory: 1 clause held" in text
    broken = report([case("CUDA-1", "fail", device=device)], **options)
    assert broken.summary.exit_status == 1


def test_a_case_of_an_unknown_clause_is_refused():
    with pytest.raises(JudgingError, match="cites GRAD-77, which is no clause"):
        _summary([case("GRAD-77")])


def test_without_a_clock_a_run_takes_as_long_as_its_cases():
    began = samples.run(2)
    cases = [case("SHARE-1", seconds=1.5), case("GRAD-1", seconds=0.25)]
    summary = judge(began, cases, CLAUSES, stale=())
    assert (summary.seconds, summary.finished) == (1.75, began.started)
