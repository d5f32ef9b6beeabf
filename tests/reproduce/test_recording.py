"""What is written down of a failure: nothing that the program could not see wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sharedtensor_conformance.harness import check
from sharedtensor_conformance.harness.listening import use_listener
from sharedtensor_conformance.harness.outcomes import CheckFailed
from sharedtensor_conformance.harness.proxies import Remote
from sharedtensor_conformance.reproduce.recording import EventRecorder

OWNER = SimpleNamespace(name="owner", host=object())


@pytest.fixture
def recorder():
    """A recorder of the events of this test."""
    recorder = EventRecorder()
    with use_listener(recorder):
        yield recorder


def answer(recorder, value):
    """Let the owner answer a request with `value`, and return it."""
    recorder.asked(OWNER, {"do": "operate", "with": ["values"]})
    recorder.answered(OWNER, {"ok": None}, value)
    return value


def failure_of(recorder, *arguments, how=check.equal):
    with pytest.raises(CheckFailed):
        how(*arguments, "it is so")
    return recorder.failure


def test_list_is_the_answer_that_it_came_from(recorder):
    first = answer(recorder, [1, 2])
    answer(recorder, [1, 2])
    found = failure_of(recorder, first, [3])
    assert (found["kind"], found["event"], found["expected"]) == ("equality", 0, [3])


def test_answer_that_differs_is_found_among_others(recorder):
    answers = {"x": answer(recorder, [1]), "y": answer(recorder, [2])}
    found = failure_of(recorder, answers, {"x": [1], "y": [3]})
    assert (found["kind"], found["event"], found["expected"]) == ("equality", 1, [3])


def test_plain_value_is_the_last_answer(recorder):
    assert failure_of(recorder, answer(recorder, 5), 6)["kind"] == "equality"


def test_plain_value_that_is_no_answer_is_unattributed(recorder):
    answer(recorder, 5)
    answer(recorder, "last")
    assert failure_of(recorder, 5, 6)["kind"] == "unattributed"


def test_value_that_was_followed_by_a_reading_is_unattributed(recorder):
    found = answer(recorder, 5)
    recorder.read(None, "segments", {"one"})
    assert failure_of(recorder, found, 6)["kind"] == "unattributed"


def test_text_of_an_answer_is_known_as_that(recorder):
    found = failure_of(recorder, repr(answer(recorder, 5)), "6")
    assert (found["kind"], found["as_text"]) == ("equality", True)


def test_answer_that_should_equal_an_earlier_one_names_it(recorder):
    before = answer(recorder, 70_000)
    found = failure_of(recorder, answer(recorder, 80_000), before)
    assert (found["event"], found["expected_event"]) == (1, 0)


def test_condition_about_the_last_answer_is_attributed(recorder):
    grad = answer(recorder, None)
    with pytest.raises(CheckFailed):
        check(grad is not None, "the grad has arrived")
    assert (recorder.failure["kind"], recorder.failure["event"]) == ("condition", 0)


def test_condition_is_unattributed_once_something_else_was_read(recorder):
    grad = answer(recorder, None)
    recorder.read(None, "segments", {"one"})
    with pytest.raises(CheckFailed):
        check(grad is not None, "the grad has arrived")
    assert recorder.failure["kind"] == "unattributed"


def test_condition_that_asks_is_attributed(recorder):
    def same_object_as(other):
        return answer(recorder, False)

    tensor = Remote(OWNER, "1")
    tensor.__dict__["same_object_as"] = same_object_as
    with pytest.raises(CheckFailed):
        check(tensor.same_object_as(tensor), "the call returns the tensor")
    assert recorder.failure["kind"] == "condition"


def test_condition_about_something_else_is_unattributed(recorder):
    answer(recorder, [1, 2])
    name, names = "one", {"other"}
    with pytest.raises(CheckFailed):
        check(name in names, "the file is there")
    assert recorder.failure["kind"] == "unattributed"


def test_lists_are_recorded_as_they_were_when_they_were_sent_or_returned(recorder):
    given, returned = [1, 2], [3]
    recorder.asked(OWNER, {"do": "operate", "with": ["make", given]})
    recorder.answered(OWNER, {"ok": returned}, returned)
    given[0], returned[0] = 51, 52
    (event,) = recorder.as_data()["events"]
    assert (event["given"], event["returned"]) == (["make", [1, 2]], [3])


def test_first_failure_ends_the_recording(recorder):
    failure_of(recorder, answer(recorder, 5), 6)
    answer(recorder, 7)
    recorder.failed("condition", "and more")
    assert len(recorder.events) == 1
    assert recorder.failure["sentence"] == "it is so"
