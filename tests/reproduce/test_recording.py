"""What is recorded of a case: its requests and answers, up to the check that fails."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
from sharedtensor_conformance.harness import check
from sharedtensor_conformance.harness.case.listening import listener, use_listener
from sharedtensor_conformance.harness.case.outcomes import CheckFailed
from sharedtensor_conformance.reproduce.recording import EventRecorder

OWNER = SimpleNamespace(name="owner", host=object())
PEER = SimpleNamespace(name="peer", host=OWNER.host)


@pytest.fixture
def recorder():
    """A recorder of the events of this test."""
    recorder = EventRecorder()
    with use_listener(recorder):
        yield recorder


def ask(actor, *given):
    listener().asked(actor, {"do": "operate", "with": list(given)})


def test_answer_belongs_to_the_request_of_its_process(recorder):
    ask(OWNER, "values")
    ask(PEER, "read")
    listener().answered(OWNER, {"ok": [1]}, [1])
    listener().answered(PEER, {"raised": {"type": "ValueError"}}, None)
    owner, peer = recorder.events
    assert (owner["returned"], owner["answered"]) == ([1], 2)
    assert (peer["raised"], peer["stage"]) == ("ValueError", owner["stage"])


def test_lists_are_recorded_as_they_were_when_they_were_sent(recorder):
    given = [1]
    ask(OWNER, given)
    given.append(2)
    assert recorder.events[0]["given"] == [[1]]


def test_function_of_the_suite_has_its_name_and_its_place(recorder):
    place = "sharedtensor_conformance.harness.remote.actor:Actor.get"
    given = [{"function": place}, "peer", "pipe"]
    listener().asked(OWNER, {"do": "run", "with": given})
    (event,) = recorder.events
    assert (event["do"], event["function"]) == ("get", place)
    assert event["given"] == ["peer", "pipe"]


def test_events_before_the_test_are_kept_apart(recorder):
    ask(OWNER, "make")
    listener().attempt_began()
    listener().signalled(PEER, signal.SIGKILL)
    listener().warmed(True)
    ask(PEER, "make")
    listener().warmed(False)
    listener().read(None, "segments", {"one", "two"})
    assert recorder.test == 1
    assert [event["kind"] for event in recorder.events[1:]] == [
        "signal",
        "call",
        "read",
    ]
    assert [event["warming"] for event in recorder.events[1:]] == [False, True, False]
    assert recorder.events[-1]["count"] == 2


def test_first_failure_ends_the_recording(recorder):
    with pytest.raises(CheckFailed):
        check.equal(1, 2, "it is so")
    with pytest.raises(CheckFailed):
        check(False, "it is otherwise")
    ask(OWNER, "values")
    assert recorder.failure == {"kind": "equality", "sentence": "it is so"}
    assert recorder.events == []


def test_folder_for_temporary_files_is_recorded_as_what_a_program_can_make(
    recorder, tmp_path
):
    (tmp_path / "file").touch()
    for name in ("", "file", "gone"):
        listener().environment({"TMPDIR": str(tmp_path / name)})
    listener().environment({})
    length = len(str(tmp_path))
    places = [["folder", length], ["file", length + 5], ["missing", length + 5]]
    assert [event["given"]["TMPDIR"] for event in recorder.events] == places
