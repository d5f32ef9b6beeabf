"""The gate: what opens it, and each thing that keeps it closed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import ALL_HELD, CLAUSES, all_but, case, clause, report, spec
from sharedtensor_conformance.report.gate import GateError, decide, required_profiles
from sharedtensor_conformance.report.verdicts import ONE_DEVICE, Need

WITH_CUDA = {"claims": ["core", "grad", "cuda"]}


def _missing(*reports, profiles=("core", "grad"), clauses=CLAUSES, **options):
    return decide(reports, profiles, clauses, **options).missing


def test_a_whole_report_in_which_everything_held_opens_the_gate():
    decision = decide([report()], ["core", "grad"], CLAUSES)
    assert decision.open
    assert decision.held == ("SHARE-1", "GRAD-1", "GRAD-2")


@pytest.mark.parametrize("verdict", ["fail", "crash", "hang", "error", "blocked"])
def test_a_broken_must_closes_it(verdict):
    (said,) = _missing(report(all_but("GRAD-1", case("GRAD-1", verdict))))
    assert (
        said == f"GRAD-1 (The title of GRAD-1) is broken (new): {verdict}, 1 of 1 cases"
    )


@pytest.mark.parametrize("verdict", ["not-run", "unsupported"])
def test_a_must_that_was_not_judged_closes_it(verdict):
    (said,) = _missing(report(all_but("GRAD-1", case("GRAD-1", verdict))))
    assert said.endswith(f"was judged by no case: {verdict}")


def test_a_must_that_the_machine_does_not_permit_closes_it_and_says_what_to_do():
    here = case("GRAD-1", "not-run", needs=Need.PRIVATE_SHM)
    (said,) = _missing(report(all_but("GRAD-1", here)), allow_expected=True)
    assert said == (
        "GRAD-1 (The title of GRAD-1) was not judged, since the machine does not "
        f"permit a private /dev/shm: {Need.PRIVATE_SHM.remedy}"
    )
    assert _missing(report(all_but("GRAD-1", here)), report()) == ()


def test_the_summary_of_a_report_is_not_trusted():
    broken = report(all_but("GRAD-1", case("GRAD-1", "fail")))
    forged = replace(broken, summary=report().summary)
    assert len(_missing(forged)) == 1


def test_an_expected_deviation_closes_it_unless_it_is_allowed():
    known = report(all_but("GRAD-1", case("GRAD-1", "fail", expected=True)))
    (said,) = _missing(known)
    assert "is broken (known): fail" in said
    decision = decide([known], ["core", "grad"], CLAUSES, allow_expected=True)
    assert decision.open
    assert decision.tolerated == (said,)
    assert "GRAD-1" not in decision.held


@pytest.mark.parametrize(
    "cases",
    [
        [case("GRAD-1", "fail", id="a", expected=True), case("GRAD-1", "fail", id="b")],
        [case("GRAD-1", "error", expected=True)],
        [case("GRAD-1", "not-run")],
    ],
)
def test_allowing_the_expected_allows_nothing_else(cases):
    sample = report(all_but("GRAD-1", *cases))
    assert len(_missing(sample, allow_expected=True)) == 1


def test_a_profile_that_is_not_claimed_closes_it():
    said = _missing(report(claims=["core"]))
    assert said == ("the profile grad is not claimed by sample 1.2",)


def test_a_profile_without_a_clause_to_require_closes_it():
    clauses = spec(clause("SHARE-1"), clause("LAZY-1", profile="lazy", level="SHOULD"))
    sample = report(
        [case("SHARE-1"), case("LAZY-1")], clauses=clauses, claims=["core", "lazy"]
    )
    said = _missing(sample, profiles=["core", "lazy"], clauses=clauses)
    assert said[0].startswith("the profile lazy has no clause that can be required")
    strict = _missing(sample, profiles=["core", "lazy"], clauses=clauses, strict=True)
    assert strict == ()


def test_a_report_that_was_cut_short_closes_it():
    (said,) = _missing(replace(report(), summary=None))
    assert said == "sample.jsonl is not complete: it has 4 of 4 planned cases"
    (said,) = _missing(report(missing=3))
    assert said.endswith("4 of 7 planned cases")


def test_a_partial_selection_closes_it():
    (said,) = _missing(report(full=False))
    assert said.startswith("sample.jsonl is of a partial selection")


def test_a_report_about_another_text_closes_it():
    other = spec(*CLAUSES.values(), clause("GRAD-1", profile="grad", text="Other."))
    (said,) = _missing(report(clauses=other))
    assert "was made with another text of GRAD-1" in said
    assert _missing(report(clauses=other), profiles=["core"]) == ()


@pytest.mark.parametrize("other", [{"name": "someone"}, {"version": "1.3"}])
def test_reports_of_other_implementations_do_not_add_up(other):
    (said,) = _missing(report(), report(source="other.jsonl", **other))
    assert said.startswith("other.jsonl is of")
    assert said.endswith("so they cannot be combined")


GPU = {**WITH_CUDA, "device": "cuda", "source": "gpu.jsonl"}
CPU_REPORT = report([*ALL_HELD, case("CUDA-1", "not-run")], **WITH_CUDA)


def test_a_report_of_a_gpu_completes_that_of_a_cpu():
    gpu = report([*ALL_HELD, case("CUDA-1", device="cuda")], **GPU)
    profiles = ["core", "grad", "cuda"]
    assert decide([CPU_REPORT, gpu], profiles, CLAUSES).open
    (said,) = _missing(CPU_REPORT, profiles=profiles)
    assert said.endswith("was not judged on CUDA: no case had a device")


@pytest.mark.parametrize("device", ["simulated", "emulated"])
def test_a_stand_in_never_counts(device):
    cases = [*ALL_HELD, case("CUDA-1", device=device)]
    (said,) = _missing(report(cases, **WITH_CUDA), profiles=["cuda"])
    assert said.endswith(f"was not judged on CUDA: on the {device} device only")


def test_what_needs_two_devices_is_let_through_where_there_is_one_and_said():
    alone = case("CUDA-1", "not-run", device="cuda", evidence=ONE_DEVICE)
    decision = decide([report([*ALL_HELD, alone], **GPU)], ["cuda"], CLAUSES)
    (said,) = decision.tolerated
    assert said.endswith(f"was not judged on CUDA: {ONE_DEVICE}")
    assert decision.open


def test_a_clause_of_which_some_cases_need_two_devices_is_judged_in_part_on_one():
    alone = case("CUDA-1", "not-run", device="cuda", evidence=ONE_DEVICE)
    held = case("CUDA-1", device="cuda", id="held")
    decision = decide([report([*ALL_HELD, alone, held], **GPU)], ["cuda"], CLAUSES)
    (said,) = decision.tolerated
    assert said.endswith(f"was judged only in part on CUDA: {ONE_DEVICE}")
    assert decision.open


def test_what_needs_two_devices_is_held_where_another_report_has_two():
    alone = case("CUDA-1", "not-run", device="cuda", evidence=ONE_DEVICE)
    held = case("CUDA-1", device="cuda")
    reports = [report([*ALL_HELD, each], **GPU) for each in (alone, held)]
    decision = decide(reports, ["cuda"], CLAUSES)
    assert decision.held == ("CUDA-1",)
    assert decision.open


def test_what_needs_two_devices_and_is_broken_on_another_machine_closes_it():
    alone = case("CUDA-1", "not-run", device="cuda", evidence=ONE_DEVICE)
    broken = case("CUDA-1", "fail", device="cuda", id="broken")
    (said,) = _missing(report([*ALL_HELD, alone, broken], **GPU), profiles=["cuda"])
    assert "is broken (new): fail, 1 of 2 cases" in said


@pytest.mark.parametrize("verdict", ["not-run", "unsupported"])
def test_a_simulated_result_does_not_fill_in_for_a_device(verdict):
    cases = [
        *ALL_HELD,
        case("CUDA-1", device="simulated", id="simulated"),
        case("CUDA-1", verdict, device="cuda", id="cuda"),
    ]
    (said,) = _missing(report(cases, **GPU), profiles=["core", "grad", "cuda"])
    assert "CUDA-1" in said
    assert "was not judged on CUDA" in said


def test_a_list_of_profiles_is_read_once_each():
    assert required_profiles(" core, grad,core") == ("core", "grad")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("", "no profile is required"),
        (" , ", "no profile is required"),
        ("core,gradd", "there is no profile 'gradd'; profiles are core, "),
    ],
)
def test_a_list_that_cannot_be_required_is_refused(names, said):
    with pytest.raises(GateError, match=said):
        required_profiles(names)
