"""The end of a run: the table, what is broken and how to repeat it, one sentence."""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import replace

import pytest
from report_samples import ALL_HELD, CLAUSES, all_but, case, clause, report, spec, view
from sharedtensor_conformance.report.groups import shortest
from sharedtensor_conformance.report.markdown import markdown
from sharedtensor_conformance.report.page import page as render_page
from sharedtensor_conformance.report.repeat import repeat_command
from sharedtensor_conformance.report.terminal import EVIDENCE_LINES, render
from sharedtensor_conformance.report.verdicts import Need


def _text(sample, width=80, **options):
    return render(view(sample), width, **options)


def _table(text):
    lines = text.split("\n\n")[1].splitlines()
    return {line.split("  ")[0].strip(): line.split() for line in lines}


def test_the_table_counts_clauses_by_chapter():
    cases = [
        case("SHARE-1", id="a", seconds=0.5),
        case("SHARE-1", id="b", seconds=0.25),
        case("GRAD-1", "fail", seconds=2.0),
        case("GRAD-2", "crash", expected=True),
        case("GRAD-9", "fail"),
        case("CUDA-1", "unsupported"),
    ]
    table = _table(_text(report(cases)))
    heading = "chapter held new advisory known not claimed not run cases seconds"
    assert table["chapter"] == heading.split()
    assert table["CUDA"] == ["CUDA", ".", ".", ".", ".", "1", ".", "1", "."]
    assert table["GRAD"] == ["GRAD", ".", "1", "1", "1", ".", ".", "3", "2.0"]
    assert table["SHARE"] == ["SHARE", "1", ".", ".", ".", ".", ".", "2", "0.8"]
    assert table["all"] == ["all", "1", "1", "1", "1", "1", ".", "6", "2.8"]


def test_cases_of_several_clauses_are_counted_once():
    cases = [case("SHARE-1 GRAD-1", seconds=1.0), case("GRAD-2 GRAD-9", seconds=0.5)]
    text = _text(report(cases))
    assert text.startswith("sample 1.2, spec 0.1.0, full selection, on cpu: 2 cases")
    assert _table(text)["all"][-2:] == ["2", "1.5"]


@pytest.mark.parametrize("device", ["simulated", "emulated"])
def test_a_chapter_that_was_judged_on_a_stand_in_is_labelled(device):
    sample = report([case("CUDA-1", device=device), case("SHARE-1")])
    names = [row.chapter for row in view(sample).rows]
    assert names == [f"CUDA ({device})", "GRAD", "SHARE", "all"]


def test_a_broken_clause_shows_all_there_is_to_know():
    cases = [
        case("GRAD-2", "fail", id="a[x y]", evidence="found 10,\nwanted more than 2"),
        case("GRAD-2", "fail", id="b[x y]", evidence="found 1,\nwanted 2"),
        case("GRAD-2", id="c"),
    ]
    text = _text(report(all_but("GRAD-2", *cases)))
    block = next(b for b in text.split("\n\n") if b.startswith("GRAD-2"))
    assert block.splitlines() == [
        "GRAD-2  The title of GRAD-2",
        "  MUST, profile grad, new; cases of GRAD-2: 2 fail, 1 pass",
        "    | found 1,",
        "    | wanted 2",
        "  pytest conformance --impl=sample --clause=GRAD-2 '--case=b[x y]'",
    ]


def test_a_failure_that_vanished_is_shown_as_state_dependent():
    cases = [
        case("GRAD-1", "fail", id="a", repeated="vanished"),
        case("GRAD-1", "fail", id="b", repeated="same", evidence="long evidence"),
    ]
    text = " ".join(_text(report(all_but("GRAD-1", *cases))).split())
    assert "state-dependent: 1 of 1 broken case held when repeated" in text
    assert "so earlier cases or timing matter; for example a" in text
    assert "--case=b" in text


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"expected": True}, {}),
        ({"repeated": "vanished"}, {"repeated": "same"}),
        ({}, {"verdict": "crash"}),
        ({"evidence": ""}, {}),
        ({"id": "b"}, {"id": "a"}),
    ],
)
def test_the_case_that_shows_most_is_shown(worse, better):
    # Without the difference in question the worse would be chosen: its id is first.
    others = {"verdict": "fail", "evidence": "short", "id": "0"}
    longer = {"verdict": "fail", "evidence": "short", "id": "1"}
    first = case("GRAD-1", **(others | worse))
    second = case("GRAD-1", **(longer | better))
    assert shortest([first, second]) is second
    assert shortest([second, first]) is second


@pytest.mark.parametrize("device", ["simulated", "emulated"])
def test_a_deviation_on_a_stand_in_is_labelled(device):
    sample = report([*ALL_HELD, case("CUDA-1", "fail", device=device)])
    said = f"new, advisory on the {device} device; cases of CUDA-1: 1 fail"
    assert said in " ".join(_text(sample).split())


def test_long_evidence_is_cut_in_the_middle_and_the_rest_is_counted():
    """The last lines of a history say what was killed, the first one what is left."""
    count = EVIDENCE_LINES + 4
    evidence = "\n".join(f"line {n}" for n in range(count))
    sample = report(all_but("GRAD-1", case("GRAD-1", "fail", evidence=evidence)))
    text = _text(sample)
    half = EVIDENCE_LINES // 2
    assert (
        f"    | line {half - 1}\n    | (4 more lines; --report=FILE keeps them)\n"
        f"    | line {half + 4}\n" in text
    )
    assert f"    | line {count - 1}\n" in text
    command = "shared-tensor-spec report 'my report.jsonl' --all-evidence"
    assert f"(4 more lines: {command})" in _unwrapped(
        _text(sample, file="my report.jsonl")
    )
    whole = _text(sample, whole=True)
    assert f"    | line {EVIDENCE_LINES + 3}\n" in whole
    assert "more lines" not in whole


def _unwrapped(text):
    return " ".join(text.replace("| ", "").split())


def test_of_the_leaks_of_a_failed_case_the_first_are_shown():
    evidence = "not so: a\nit also left: 1 thread; the segment a is left; 2; 3"
    sample = report(all_but("GRAD-1", case("GRAD-1", "fail", evidence=evidence)))
    few = "it also left: 1 thread; the segment a is left; and 2 more"
    assert few in _unwrapped(_text(sample))
    assert "the segment a is left; 2; 3" in _unwrapped(_text(sample, whole=True))


def needing(clauses, need):
    return case(clauses, "not-run", id=f"{clauses} {need}", needs=need)


NOT_CLAIMED = case("GRAD-2", "unsupported")
LACKING = all_but("GRAD-1", needing("GRAD-1", Need.SECOND_USER))


def test_what_the_machine_does_not_permit_is_listed_by_need_with_remedies():
    more = needing("GRAD-1 GRAD-2", Need.PRIVATE_SHM)
    sample = report([*ALL_HELD[:1], LACKING[-1], more])
    for width in (80, 120):
        remedies = (
            textwrap.indent(textwrap.fill(need.remedy, width - 4), "    ")
            for need in (Need.SECOND_USER, Need.PRIVATE_SHM)
        )
        block = (
            "Not judged here, since this machine does not permit it:\n"
            f"  a second user: GRAD-1\n{next(remedies)}\n"
            f"  a private /dev/shm: GRAD-1, GRAD-2\n{next(remedies)}"
        )
        assert block in _text(sample, width).split("\n\n")
    text = _text(sample)
    assert "judged by no case" not in text
    assert text.endswith("sample 1.2 passes: 1 clause held, 2 not judged here.\n")
    assert _table(text)["GRAD"][:6] == ["GRAD", ".", ".", ".", "1", "2"]


def test_what_was_not_asked_for_is_not_called_unjudged_here():
    cases = [case("GRAD-1"), needing("GRAD-1 GRAD-2", Need.SECOND_USER)]
    sample = report(cases, full=False, options=("--impl=sample", "--clause=GRAD-1"))
    assert "not judged here" not in _text(sample)


def test_what_is_blocked_is_not_called_broken():
    said = "in the smoke test under fork: peer: FileNotFoundError"
    ids = ("SHARE-1", "GRAD-1", "GRAD-2")
    cases = [case(id, "blocked", evidence=said) for id in ids]
    cases.append(case("CUDA-1", "unsupported"))
    text = _text(report(cases, full=False))
    assert _table(text)["all"][:3] == ["all", ".", "."]
    assert _table(text)["chapter"][3] == "blocked"
    assert _table(text)["all"][3] == "3"
    assert "  not judged: SHARE-1 and 2 other clauses\n" in text
    ending = "sample 1.2 was not judged: 3 clauses blocked and not judged."
    assert _unwrapped(text).endswith(ending)


def test_clauses_that_were_not_asked_for_are_held_in_part():
    cases = [
        case("GRAD-1 GRAD-2 SHARE-1"),
        case("GRAD-1 GRAD-9", "unsupported", id="b"),
    ]
    options = ("--impl=sample", "--clause=GRAD-1")
    text = _text(report(cases, full=False, options=options))
    assert _table(text)["GRAD"][:5] == ["GRAD", "2", ".", ".", "."]
    assert "partial selection: 1 clause held, 2 others held in part." in _unwrapped(
        text
    )


def test_one_case_of_each_clause_is_not_the_whole_clause():
    options = ("--impl=sample", "--clause=GRAD-1", "--one-per-clause")
    sample = report([case("GRAD-1 SHARE-1")], full=False, options=options)
    judged = view(sample)
    page = render_page(judged)
    for text in (render(judged), markdown(judged), page):
        shown = _unwrapped(text)
        assert "1 clause held in the one case that was run, 1 other" in shown
        assert "a full run may find that it is broken" in shown
    assert "</b> held in the one case that was run</li>" in page
    assert ">held</td>" not in page


def test_of_a_fault_of_the_suite_the_last_lines_are_shown():
    evidence = "\n".join(f"line {n}" for n in range(10))
    text = _text(report(all_but("GRAD-1", case("GRAD-1", "error", evidence=evidence))))
    assert "    | line 4\n" in text
    assert "    | (4 more lines; --report=FILE keeps them)\n    | line 4\n" in text
    assert "    | line 9\n" in text
    assert "line 3" not in text


def test_evidence_cannot_steer_the_terminal():
    sample = report(all_but("GRAD-1", case("GRAD-1", "fail", evidence="\033[2Jhi")))
    assert "    | \\x1b[2Jhi\n" in _text(sample)


def test_clauses_that_nothing_judged_are_listed():
    text = _text(report(all_but("GRAD-1")))
    assert "but no case of this run judged them:\n  GRAD-1  The title of GRAD-1" in text
    assert "sample 1.2 does not pass: 1 clause judged by no case." in text


def test_stale_expectations_are_listed():
    text = _text(report(stale=["sample.toml: entry 1 (GRAD-2) matches no case"]))
    assert "(stale expectations):\n  sample.toml: entry 1 (GRAD-2)" in text
    assert "does not pass: 1 expectation stale." in text


def test_what_a_newer_release_changes_is_said():
    cases = all_but("GRAD-1", case("GRAD-1", "fail", expected=True))
    cases = [*(one for one in cases if "GRAD-2" not in one.clauses)]
    cases.append(case("GRAD-2", "fail"))
    stale = ["sample.toml: entry 7 (SHARE-1) expects a deviation"]
    said = " ".join(_text(report(cases, stale=stale, carried_over="1.1")).split())
    assert (
        "sample 1.2 is newer than 1.1, the newest release whose deviations were "
        "recorded. Broken as in 1.1: 1 clause. Newly broken: GRAD-2. Known deviations "
        "that no longer occur: 1. To update the file: shared-tensor-spec expectations "
        "update REPORT."
    ) in said
    assert "GRAD-1 The title of GRAD-1 MUST, profile grad, known, as in 1.1" in said
    assert "of 1.1 that no longer occur: sample.toml: entry 7 (SHARE-1)" in said
    assert said.endswith("sample 1.2 does not pass: 1 clause broken (new).")


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (
            report(),
            "sample 1.2 conforms: every MUST of core and of the claimed profiles was "
            "judged and held; 4 clauses held.",
        ),
        (report(strict=True), "every MUST and SHOULD of core"),
        (
            report(all_but("GRAD-9", case("GRAD-9", "fail"))),
            "judged and held; 3 clauses held, 1 clause broken (advisory).",
        ),
        (
            report(all_but("GRAD-1", case("GRAD-1", "fail", expected=True))),
            "has no new failures, but does not conform: 3 clauses held, 1 clause "
            "broken (known).",
        ),
        (
            report([LACKING[0], case("GRAD-2", "fail", expected=True), *LACKING[2:]]),
            "has no new failures, but does not conform: 2 clauses held, 1 clause "
            "broken (known), 1 not judged here.",
        ),
        (
            report([case("GRAD-1")], full=False),
            "passes this partial selection: 1 clause held.",
        ),
        (
            report([case("GRAD-1", "not-run"), case("GRAD-2")], full=False),
            "passes this partial selection: 1 clause held.",
        ),
        (
            report([case("GRAD-1", "not-run"), NOT_CLAIMED], full=False),
            "does not pass: nothing was judged (1 not-run, 1 unsupported).",
        ),
        (
            report(LACKING[-1:], full=False),
            "does not pass: nothing was judged (1 not-run), since the machine does not "
            f"permit a second user: {Need.SECOND_USER.remedy}.",
        ),
        (
            report(LACKING, strict=True),
            "does not pass: 1 clause not judged here (--strict asks for every clause).",
        ),
        (
            report(
                all_but("GRAD-1", case("GRAD-1", "fail", expected=True)),
                carried_over="1.1",
                strict=True,
            ),
            "does not pass: 1 clause broken as in an earlier release.",
        ),
        (
            report([case("GRAD-1", "fail")], full=False),
            "does not pass: 1 clause broken (new).",
        ),
        (
            report(all_but("GRAD-1", case("GRAD-1", "error")), missing=2),
            "does not pass: 1 clause broken (new), 1 case ended in an error of the "
            "suite or the adapter, cut short after 4 of 6 planned cases.",
        ),
        (
            report([*ALL_HELD, case("CUDA-1", "not-run")], claims=["cuda", "grad"]),
            "4 clauses held; profile cuda was not judged.",
        ),
        (
            report(
                [*ALL_HELD, case("CUDA-1", device="simulated")], claims=["cuda", "grad"]
            ),
            "5 clauses held; profile cuda was judged on the simulated device only, "
            "never on CUDA.",
        ),
        (
            report(
                [*ALL_HELD, case("CUDA-1", device="emulated")], claims=["cuda", "grad"]
            ),
            "5 clauses held; profile cuda was judged on the emulated device only, "
            "never on CUDA.",
        ),
        (
            report(
                [*ALL_HELD, case("CUDA-1", device="cuda")],
                claims=["cuda", "grad"],
                device="cuda",
            ),
            "5 clauses held.",
        ),
    ],
)
def test_the_last_words_are_the_verdict(sample, said):
    last = " ".join(_text(sample).rstrip().rpartition("\n\n")[2].split())
    assert last.endswith(said) or said in last
    assert last.startswith("sample 1.2 ")


BOTH = ["--start-method=spawn", "--start-method=fork"]
HISTORIES = ["--histories=500", "--history-seed=7"]
OF_FORK = {"strategy": "file_system", "start_method": "fork", "direction": "to_peer"}
COMMANDS = {
    "a blocked case is repeated with the same smoke test": (
        ["--one-per-clause"],
        case("GRAD-1", "blocked"),
        ["--one-per-clause", "--clause=GRAD-1"],
    ),
    "the start methods are those of the run": (
        BOTH,
        case("GRAD-1", "fail", id="a"),
        [*BOTH, "--clause=GRAD-1", "--case=a"],
    ),
    "what its case needs is kept, and a shell changes nothing": (
        ["--device=cuda", "--profile=grad", "--case=b", "--strict", *HISTORIES],
        case("GRAD-1", id="t.py::x[a b'c]"),
        ["--device=cuda", "--strict", "--clause=GRAD-1", "--case=t.py::x[a b'c]"],
    ),
    "histories are the same": (
        HISTORIES,
        replace(case("GRAD-1", id="a"), test="test_histories.py::x"),
        [*HISTORIES, "--clause=GRAD-1", "--case=a"],
    ),
    "the cases that left something come before the one that judges it": (
        [],
        case("GRAD-1", id="ledger", leaking=("b", "a", "d", "c")),
        ["--case=b", "--case=a", "--case=d", "--case=ledger"],
    ),
    "what depends on state is repeated with its configuration": (
        ["--strategy=file_descriptor"],
        case("GRAD-1", "fail", repeated="vanished", axes=OF_FORK),
        ["--strategy=file_system", "--start-method=fork"],
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_repeats_a_case(name):
    options, found, words = COMMANDS[name]
    began = report(options=["--impl=sample", *options]).run
    command = shlex.split(repeat_command(began, "GRAD-1", found))
    assert command == ["pytest", "conformance", "--impl=sample", *words]


def test_a_command_is_that_of_the_run_and_names_the_implementation():
    found = case("GRAD-1", id="a")
    command = repeat_command(report(options=[]).run, "GRAD-1", found)
    assert command == "pytest conformance --impl=sample --clause=GRAD-1 --case=a"
    outside = ["python", "-m", "pytest", "--pyargs", "sharedtensor_conformance"]
    other = report(options=["--impl=my.adapter:it"], command=outside).run
    words = shlex.split(repeat_command(other, "GRAD-1", found))
    assert words[:6] == [*outside, "--impl=my.adapter:it"]


@pytest.mark.parametrize("width", [1, 40, 80, 200])
def test_prose_fits_the_width(width):
    evidence = "word " * 60
    sample = report(all_but("GRAD-1", case("GRAD-1", "fail", evidence=evidence)))
    long = [
        line
        for line in _text(sample, width).splitlines()
        if len(line) > max(width, 20) and "  |" in line
    ]
    assert long == []


def test_colour_is_added_on_request_only():
    sample = report(all_but("GRAD-1", case("GRAD-1", "fail")))
    assert "\033" not in _text(sample)
    assert "\033[31mGRAD-1  The title of GRAD-1\033[0m" in _text(sample, colour=True)


@pytest.mark.parametrize(
    ("name", "claims", "said"),
    [
        ("torch", ["grad"], "Not run: 1 clause of the profile cuda, which need"),
        ("sample", ["grad"], ""),
        ("torch", ["grad", "cuda"], ""),
    ],
)
def test_build_without_cuda_is_noted_and_its_clauses_are_not_run(name, claims, said):
    sample = report(
        [*ALL_HELD, case("CUDA-1", "unsupported")], claims=claims, name=name
    )
    text = " ".join(_text(sample).split())
    assert ("Not run: 1 clause" in text) == bool(said)
    assert said in text
    assert view(sample).standing("CUDA-1") == ("not run" if said else "not claimed")


def test_long_profile_that_was_left_out_is_noted_with_its_option():
    clauses = CLAUSES | spec(clause("FAULT-1", profile="fault-table"))
    made = report(clauses=clauses, claims=["core", "grad", "fault-table"])
    said = (
        "Not run: 1 clause of the profile fault-table (--profile=fault-table runs it)."
    )
    assert said in " ".join(render(view(made, clauses), width=200).split())
    other = report(clauses=clauses, claims=["core", "grad"])
    assert "Not run: " not in render(view(other, clauses))
