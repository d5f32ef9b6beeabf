"""The suite survives its patients: each gets its verdict, and nothing is left of it.

Every run is judged as a whole: what the report says and whether it is complete, the
exit status, that it ended by itself, and what is left of processes, files, segments.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sharedtensor_conformance.harness import stage
from suites import Done, Left

STORY = "test_share.py::test_receiver_finds_what_was_written_just_before_the_send"
CASES = (f"--case={STORY}*",)
CLOSING = "test_ledger.py::test_nothing_is_left_of_what_the_cases_dropped"
LEDGER = (*CASES, f"--case={CLOSING}*")

VERDICTS = {
    # Where it crashes
    "crashes_at_import": ("blocked", "in the smoke test: owner died of SIGABRT"),
    "crashes_in_a_child": ("blocked", "in the smoke test: peer died of SIGSEGV"),
    "crashes_in_make": ("crash", "died of SIGSEGV while it was asked to operate make"),
    "crashes_in_the_reducer": ("crash", "died of SIGSEGV while it was asked to put"),
    "crashes_in_decode": ("crash", "exited with status 9 while it was asked to get"),
    # Where it hangs
    "hangs_at_import": ("blocked", "owner gave no answer within 4 s to: prepare"),
    "hangs_in_a_child": ("blocked", "peer gave no answer within 5 s to: prepare"),
    "hangs_in_make": ("hang", "gave no answer within 2 s to: operate make"),
    "hangs_in_the_reducer": ("hang", "gave no answer within 2 s to: put"),
    "hangs_in_decode": ("hang", "gave no answer within 2 s to: get"),
    "hangs_in_release": ("hang", "while it was cleaned up: owner gave no answer"),
    "stops_itself": ("hang", "gave no answer within 2 s to: operate make"),
    "ends_its_main_thread": ("hang", "gave no answer within 2 s to: operate make"),
    "ignores_sigterm": ("hang", "gave no answer within 2 s to: operate make"),
    # What it does to the suite
    "closes_descriptors": ("crash", "while it was asked to operate make"),
    "writes_into_every_socket": ("crash", "answered nonsense when it was asked to"),
    "eats_memory": ("fail", "MemoryError"),
    # What it takes for a process
    "starts_threads": ("blocked", "in the smoke test: peer is no process of its own"),
    "tells_the_number_of_a_thread": ("blocked", "which no process has"),
    "tells_the_pid_of_a_decoy": ("blocked", "runs in the process of owner"),
    "tells_its_own_pid": ("blocked", "but it has"),
    # What it says
    "raises_system_exit": ("fail", "SystemExit: enough"),
    "raises_keyboard_interrupt": ("fail", "KeyboardInterrupt"),
    "raises_the_unspeakable": ("fail", "Unspeakable: (no text: ValueError)"),
    "raises_what_no_terminal_shows": ("fail", r"RuntimeError: \udcff\x1b[2J\x00xxx"),
    "returns_other_types": ("fail", "not so: the first write is there"),
}

UNHARMED = ("changes_the_process", "replaces_its_streams", "removes_its_semaphores")
"""What they do to their own process is no affair of these cases, or of the suite."""

LEAVING = {
    "leaves_daemons": "harness.owner) is there",
    "leaves_a_nameless_program": "sleep 300",
    "leaves_everything": "the segment miniature-",
}


def assert_nothing_left(left: Left) -> None:
    assert left == Left([], [], [])


def assert_ended(done: Done, left: Left, status: int) -> None:
    assert done.status == status, done.text
    assert done.report.complete
    assert "Traceback" not in done.text
    assert_nothing_left(left)


@pytest.mark.parametrize("patient", VERDICTS)
def test_patient_gets_its_verdict(ward, patient):
    verdict, evidence = VERDICTS[patient]
    done, left = ward(f"--impl=patients:{patient}", *CASES)
    assert_ended(done, left, status=1)
    assert set(done.verdicts.values()) == {verdict}
    assert len(done.report.cases) == 2
    assert all(evidence in case.evidence for case in done.report.cases)


def test_child_of_one_case_that_is_no_process_of_its_own_is_told(ward):
    children = "--case=test_start.py::test_process_argument_arrives_with_its_values*"
    done, left = ward("--impl=patients:starts_threads_later", children, *CASES)
    assert_ended(done, left, status=1)
    with_child = [case for case in done.report.cases if case.test != STORY]
    others = [case for case in done.report.cases if case.test == STORY]
    assert {case.verdict for case in with_child} == {"fail"}
    assert "no process of its own" in with_child[0].evidence
    assert {case.verdict for case in others} == {"pass"}


def test_process_that_dies_while_another_is_asked_has_crashed(ward):
    done, left = ward("--impl=patients:crashes_in_the_thread_of_a_queue", *CASES)
    assert_ended(done, left, status=1)
    assert set(done.verdicts.values()) == {"crash"}
    assert "to: get; peer ended meanwhile" in " ".join(
        case.evidence for case in done.report.cases
    )


@pytest.mark.parametrize("patient", UNHARMED)
def test_patient_that_harms_no_case_passes(ward, patient):
    done, left = ward(f"--impl=patients:{patient}", *CASES)
    assert_ended(done, left, status=0)
    assert set(done.verdicts.values()) == {"pass"}


@pytest.mark.parametrize("patient", ["hangs_at_exit", "floods_its_streams"])
def test_patient_is_not_waited_for_and_its_noise_not_kept(ward, patient):
    done, left = ward(f"--impl=patients:{patient}", *LEDGER)
    assert_ended(done, left, status=0)
    assert len(done.text) < 10_000


def test_what_is_printed_beyond_a_limit_is_thrown_away(ward):
    flood = ("--impl=patients:floods_its_streams", "-p", "log_sizes")
    done, left = ward(*flood, *LEDGER)
    assert_ended(done, left, status=0)
    sizes = [int(line) for line in (ward.folder / "sizes").read_text().split()]
    assert sizes
    assert max(sizes) <= 16 << 20


@pytest.mark.parametrize("patient", LEAVING)
def test_what_a_patient_leaves_is_counted_and_removed(ward, patient):
    done, left = ward(f"--impl=patients:{patient}", *LEDGER)
    assert_ended(done, left, status=1)
    closing = [case for case in done.report.cases if case.test == CLOSING]
    assert {case.verdict for case in closing} == {"fail"}
    assert LEAVING[patient] in closing[0].evidence


def test_patient_whose_processes_fail_later_is_blocked_then(ward):
    # A worker starts processes of its own, and not those that have climbed the ladder.
    worker = ("-n1", f"--basetemp={ward.folder / 'b'}")
    done, left = ward("--impl=patients:crashes_later", *CASES, *worker)
    assert_ended(done, left, status=1)
    assert list(done.verdicts.values()) == ["crash", "blocked"]
    for case in done.report.cases:
        assert "owner exited with status 7" in case.evidence


def test_claims_that_nothing_is_behind_fail_and_core_is_judged(ward):
    claimed = "--case=test_view.py::test_views_arrive_over_each_channel*to_peer*"
    done, left = ward("--impl=patients:lies_about_its_claims", claimed, *CASES)
    assert_ended(done, left, status=1)
    core = [case for case in done.report.cases if case.test == STORY]
    views = [case for case in done.report.cases if case.test != STORY]
    assert {case.verdict for case in core} == {"pass"}
    assert {case.verdict for case in views} == {"fail"}
    assert all("NotImplementedError: not yet" in case.evidence for case in views)


def test_segments_that_a_patient_removes_are_missed_where_they_are_needed(ward):
    chosen = ("--strategy=file_system", "--start-method=fork", "--no-expectations")
    done, left = ward("--impl=patients:removes_its_segments", *CASES, *chosen)
    assert_ended(done, left, status=1)
    assert set(done.verdicts.values()) == {"fail"}
    assert all("asked to get" in case.evidence for case in done.report.cases)


@pytest.mark.parametrize("patient", ["stops_its_keeper", "kills_its_keeper"])
def test_patient_that_harms_its_keeper_is_ended_without_it(ward, patient):
    done, left = ward(f"--impl=patients:{patient}", *CASES, "--patience=6")
    assert_ended(done, left, status=1)
    harmed = [case for case in done.report.cases if case.verdict == "error"]
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
def test_adapter_that_is_not_imported_is_one_sentence_and_status_4(ward, module):
    done, left = ward(f"--impl=unloadable.{module}", *CASES, "--patience=5")
    assert done.status == 4, done.text
    assert UNLOADABLE[module] in done.text
    assert "Traceback" not in done.text
    assert len(done.text) < 2_000
    assert "\x1b" not in done.text
    assert_nothing_left(left)


# The outer bound


def test_watchdog_ends_a_case_whose_request_has_no_deadline(ward):
    done, left = ward("--impl=patients:never_late", *CASES, "--case-limit=8")
    assert_ended(done, left, status=1)
    assert set(done.verdicts.values()) == {"hang"}
    for case in done.report.cases:
        assert "it took longer than 8 s as a whole" in case.evidence


def test_watchdog_ends_a_run_in_which_the_suite_hangs(ward):
    done, left = ward(
        "--impl=patients:well", "-p", "stuck_suite", *CASES, "--case-limit=5"
    )
    assert done.status == 1
    assert "Timeout" in done.text
    assert Path(stage.__file__).name in done.text or "stuck_suite.py" in done.text
    assert not done.report.complete
    assert_nothing_left(left)
