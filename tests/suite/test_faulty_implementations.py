"""The suite survives faulty implementations: each gets its verdict, nothing is left.

Every run is judged as a whole: what the report says and whether it is complete, the
exit status, that it ended by itself, and what is left of processes, files, segments.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import faulty_implementations
import pytest
from sharedtensor_conformance.harness.kernel.process_tree import wait_until
from sharedtensor_conformance.harness.stage import stage
from sharedtensor_conformance.report.records import Case
from suites import NOTHING_LEFT, Done

IMPL = "--impl=faulty_implementations"
STORY = "test_share.py::test_receiver_finds_what_was_written_just_before_the_send"
CASES = (f"--case={STORY}*",)
CLOSING = "test_ledger.py::test_nothing_is_left_of_what_the_cases_dropped"
LEDGER = (*CASES, f"--case={CLOSING}*")

BLOCKED = {
    # Where it crashes or hangs
    "crashes_at_import": "owner died of SIGABRT",
    "crashes_in_a_child": "peer died of SIGSEGV",
    "hangs_at_import": "owner gave no answer within 4 s to: prepare",
    "hangs_in_a_child": "peer gave no answer within 5 s to: prepare",
    # What it takes for a process
    "starts_threads": "peer is no process of its own",
    "tells_the_number_of_a_thread": "which no process has",
    "tells_the_pid_of_a_decoy": "runs in the process of owner",
    "tells_its_own_pid": "but it has",
}
"""What the smoke test says of them."""

GROUPS = {
    "crashes": {
        "crashes_in_make": ("crash", "died of SIGSEGV while it was asked to operate"),
        "crashes_in_the_reducer": (
            "crash",
            "died of SIGSEGV while it was asked to put",
        ),
        "crashes_in_decode": (
            "crash",
            "exited with status 9 while it was asked to get",
        ),
        "closes_descriptors": ("crash", "while it was asked to operate make"),
        "writes_into_every_socket": ("crash", "answered nonsense when it was asked to"),
    },
    "hangs": {
        "hangs_in_make": ("hang", "gave no answer within 2 s to: operate make"),
        "hangs_in_the_reducer": ("hang", "gave no answer within 2 s to: put"),
        "hangs_in_decode": ("hang", "gave no answer within 2 s to: get"),
        "hangs_in_release": ("hang", "while it was cleaned up: owner gave no answer"),
    },
    "hangs_beyond_signals": {
        "stops_itself": ("hang", "gave no answer within 2 s to: operate make"),
        "ends_its_main_thread": ("hang", "gave no answer within 2 s to: operate make"),
        "ignores_sigterm": ("hang", "gave no answer within 2 s to: operate make"),
    },
    "answers_nonsense": {
        "raises_system_exit": ("fail", "SystemExit: enough"),
        "raises_keyboard_interrupt": ("fail", "KeyboardInterrupt"),
        "raises_the_unspeakable": ("fail", "Unspeakable: (no text: ValueError)"),
        "raises_what_no_terminal_shows": (
            "fail",
            r"RuntimeError: \udcff\x1b[2J\x00xxx",
        ),
        "loses_the_tensor": ("fail", "what arrived has another form"),
        "returns_other_types": ("fail", "not so: the first write is there"),
        "eats_memory": ("fail", "MemoryError"),
    },
}
"""What is found of each: a strategy of the group's adapter is called like the fault."""

ADDED = (
    "test_ledger.py::test_no_case_added_a_thread_a_process_a_socket_or_a_temporary_file"
)
"""What judges threads and processes; they break a SHOULD."""

LEAVING = {
    "leaves_daemons": (ADDED, "harness.owner) is there"),
    "leaves_a_nameless_program": (ADDED, "sleep 300"),
    "leaves_everything": (CLOSING, "the segment miniature-"),
}


def assert_ended(done: Done, status: int) -> None:
    assert done.status == status, done.text
    assert done.report.complete
    assert "Traceback" not in done.text
    assert done.left == NOTHING_LEFT


def by_strategy(done: Done) -> dict[str, list[Case]]:
    found = defaultdict(list)
    for case in done.cases:
        found[case.axes["strategy"]].append(case)
    return found


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.takes(5)
def test_implementation_that_the_smoke_test_refuses_is_blocked(suite, name):
    done = suite(f"{IMPL}:{name}", *CASES)
    assert_ended(done, status=1)
    assert set(done.verdicts.values()) == {"blocked"}
    assert len(done.cases) == 2
    assert all(BLOCKED[name] in case.evidence for case in done.cases)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.takes(22)
def test_each_fault_gets_its_verdict_and_the_run_goes_on(suite, group):
    done = suite(f"{IMPL}:{group}", *CASES)
    assert_ended(done, status=1)
    cases = by_strategy(done)
    assert cases.keys() == {"well", *GROUPS[group]}
    assert {case.verdict for case in cases.pop("well")} == {"pass"}
    for fault, (verdict, evidence) in GROUPS[group].items():
        found = cases[fault]
        assert [case.verdict for case in found] == [verdict] * 2, fault
        assert all(evidence in case.evidence for case in found), found
        assert found[0].repeated == ("same" if fault != "hangs_in_release" else None)


def test_each_group_is_judged():
    faults = {
        group: set(found) for group, found in faulty_implementations.groups.items()
    }
    judged = {group: set(found) for group, found in GROUPS.items()}
    assert faults.pop("harmless")
    assert judged == faults


def test_what_harms_no_case_is_not_waited_for_and_its_noise_not_kept(suite):
    """What they do to their own process is no affair of the suite."""
    harmless = (f"{IMPL}:harmless", "-p", "log_sizes")
    done = suite(*harmless, *LEDGER)
    assert_ended(done, status=0)
    assert by_strategy(done).keys() == {
        "well",
        *faulty_implementations.groups["harmless"],
    }
    assert set(done.verdicts.values()) == {"pass"}
    assert len(done.text) < 10_000
    sizes = [int(line) for line in (suite.folder / "sizes").read_text().split()]
    assert sizes
    assert 0 < max(sizes) <= 16 << 20


def test_semaphores_that_are_removed_are_no_affair_of_the_suite(suite):
    done = suite(f"{IMPL}:removes_its_semaphores", *CASES)
    assert_ended(done, status=0)
    assert set(done.verdicts.values()) == {"pass"}


def test_child_of_one_case_that_is_no_process_of_its_own_is_told(suite):
    children = "--case=test_start.py::test_process_argument_arrives_with_its_values*"
    done = suite(f"{IMPL}:starts_threads_later", children, *CASES)
    assert_ended(done, status=1)
    with_child = [case for case in done.cases if case.test != STORY]
    others = [case for case in done.cases if case.test == STORY]
    assert {case.verdict for case in with_child} == {"fail"}
    assert "no process of its own" in with_child[0].evidence
    assert {case.verdict for case in others} == {"pass"}


@pytest.mark.takes(18)
def test_process_that_dies_while_another_is_asked_has_crashed(suite):
    done = suite(f"{IMPL}:crashes_in_the_thread_of_a_queue", *CASES)
    assert_ended(done, status=1)
    assert set(done.verdicts.values()) == {"crash"}
    # Its thread may also be faster than its answer to put.
    evidence = " ".join(case.evidence for case in done.cases)
    assert re.search(
        r"to: get; (owner died of SIGSEGV|peer ended) meanwhile", evidence
    ), evidence


@pytest.mark.parametrize("name", LEAVING)
def test_what_is_left_is_counted_and_removed(suite, name):
    test, text = LEAVING[name]
    done = suite(f"{IMPL}:{name}", *LEDGER, f"--case={ADDED}*", "--strict")
    assert_ended(done, status=1)
    closing = [case for case in done.cases if case.test == test]
    assert {case.verdict for case in closing} == {"fail"}
    assert text in closing[0].evidence


def test_implementation_whose_processes_fail_later_is_blocked_then(suite):
    # A worker starts processes of its own, and not those of the smoke test.
    worker = ("-n1", f"--basetemp={suite.folder / 'b'}")
    done = suite(f"{IMPL}:crashes_later", *CASES, *worker)
    assert_ended(done, status=1)
    assert list(done.verdicts.values()) == ["crash", "blocked"]
    for case in done.cases:
        assert "owner exited with status 7" in case.evidence


def test_claims_that_nothing_is_behind_fail_and_core_is_judged(suite):
    claimed = "--case=test_view.py::test_views_arrive_over_each_channel*to_peer*"
    done = suite(f"{IMPL}:lies_about_its_claims", claimed, *CASES)
    assert_ended(done, status=1)
    core = [case for case in done.cases if case.test == STORY]
    views = [case for case in done.cases if case.test != STORY]
    assert {case.verdict for case in core} == {"pass"}
    assert {case.verdict for case in views} == {"fail"}
    assert all("NotImplementedError: not yet" in case.evidence for case in views)


def test_segments_that_are_removed_are_missed_where_they_are_needed(suite):
    removes = "--impl=faulty_reference:removes_its_segments"
    done = suite(removes, *CASES, "--strategy=file_system", "--no-expectations")
    assert_ended(done, status=1)
    assert set(done.verdicts.values()) == {"fail"}
    assert all("asked to get" in case.evidence for case in done.cases)


@pytest.mark.takes(10)
def test_exit_code_is_explained_by_what_was_printed_last(suite):
    """Of a child of the suite, and of one that an owner was asked to start."""
    names = {
        "test_life.py::test_received_tensor_outlives_the_exit_of_its_sender": "{}",
        "test_start.py::test_named_argument_of_a_process_is_shared_with_it": "[{}]",
    }
    chosen = (f"--case={name}*" for name in names)
    where = "--strategy=file_descriptor"
    done = suite("--impl=faulty_reference:ends_badly", where, *chosen)
    assert_ended(done, status=1)
    assert {case.test for case in done.cases} == set(names)
    code = "3 (printed last: RuntimeError: the last words)"
    for case in done.cases:
        form = names[case.test]
        assert f"got {form.format(code)}, not {form.format(0)}" in case.evidence


def test_name_that_goes_late_is_no_new_one(suite):
    done = suite("--impl=faulty_reference:removes_late", "--clause=FS-6")
    assert_ended(done, status=0)
    assert set(done.verdicts.values()) == {"pass"}


@pytest.mark.takes(10)
def test_only_the_file_that_a_forgery_names_has_to_stay(suite):
    """Whatever else is removed while the message is received."""
    chosen = ("--clause=SEC-8", "--clause=SEC-9")
    done = suite("--impl=faulty_reference:meets_at_sockets", *chosen)
    assert_ended(done, status=0)
    assert set(done.verdicts.values()) == {"pass"}


@pytest.mark.parametrize("name", ["stops_its_supervisor", "kills_its_supervisor"])
@pytest.mark.takes(10)
def test_implementation_that_harms_its_supervisor_is_ended_without_it(suite, name):
    done = suite(f"{IMPL}:{name}", *CASES, "--patience=6")
    assert_ended(done, status=1)
    harmed = [case for case in done.cases if case.verdict == "error"]
    assert harmed
    assert all("the supervisor" in case.evidence for case in harmed)


# Adapters that cannot even be described

UNLOADABLE = {
    "crashes": "its process ended with signal 6",
    "exits": "SystemExit: no licence was found",
    "exits_hard": "its process ended with status 0: it printed nothing",
    "floods": r"RuntimeError: \udcff\x1b[2J\x00xxx",
    "hangs": "did not finish loading within 5 s",
    "leaves_a_daemon": "cannot be loaded: half of it is missing",
}


@pytest.mark.parametrize("module", UNLOADABLE)
def test_adapter_that_is_not_imported_is_one_sentence_and_status_4(suite, module):
    done = suite(f"--impl=unloadable.{module}", *CASES, "--patience=5")
    assert done.status == 4, done.text
    assert UNLOADABLE[module] in done.text
    assert "Traceback" not in done.text
    assert len(done.text) < 2_000
    assert "\x1b" not in done.text
    assert done.left == NOTHING_LEFT


def test_adapter_that_loads_for_long_is_told_to_who_waits(suite):
    notice = "still loading unloadable.waits (limit 60 s, --patience)\n"
    goes_on = suite.folder / "goes-on"
    os.mkfifo(goes_on)
    run = suite.start(
        "--impl=unloadable.waits", *CASES, "-p", "early_notice", "--patience=60"
    )
    output = suite.output  # the run makes it, after it was started
    assert wait_until(lambda: output.exists() and notice in output.read_text(), 50)
    goes_on.open("w").close()
    done = run.end()
    assert done.status == 4
    assert done.text.count(notice) == 1
    assert "cannot be loaded: it was told to go on (" in done.text
    assert done.left == NOTHING_LEFT


# The outer bound


@pytest.mark.takes(16)
def test_watchdog_ends_a_case_before_the_deadline_of_its_request(suite):
    done = suite(f"{IMPL}:never_late", *CASES, "--case-limit=8")
    assert_ended(done, status=1)
    assert set(done.verdicts.values()) == {"hang"}
    for case in done.cases:
        assert "it took longer than 8 s as a whole" in case.evidence


@pytest.mark.takes(10)
def test_watchdog_ends_a_run_in_which_the_suite_hangs(suite):
    done = suite(f"{IMPL}:well", "-p", "stuck_suite", *CASES, "--case-limit=5")
    assert done.status == 1
    assert "Timeout" in done.text
    assert Path(stage.__file__).name in done.text or "stuck_suite.py" in done.text
    assert not done.report.complete
    assert done.left == NOTHING_LEFT
