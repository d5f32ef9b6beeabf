"""What is written down of a failure: nothing that the program could not see wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sharedtensor_conformance.harness import check
from sharedtensor_conformance.harness.listening import use_listener
from sharedtensor_conformance.harness.outcomes import CheckFailed
from sharedtensor_conformance.harness.proxies import Remote
from sharedtensor_conformance.reproduce.recording import Story

OWNER = SimpleNamespace(name="owner", host=object())


@pytest.fixture
def story():
    """A story to which somebody listens."""
    listening = Story()
    with use_listener(listening):
        yield listening


def answer(story, value):
    """Let the owner answer a request with `value`, and return it."""
    story.asked(OWNER, {"do": "operate", "with": ["values"]})
    story.answered(OWNER, {"ok": None}, value)
    return value


def failure_of(story, *arguments, how=check.equal):
    with pytest.raises(CheckFailed):
        how(*arguments, "it is so")
    return story.failure


def test_list_is_the_answer_that_it_came_from(story):
    first = answer(story, [1, 2])
    answer(story, [1, 2])
    found = failure_of(story, first, [3])
    assert (found["kind"], found["event"], found["expected"]) == ("equality", 0, [3])


def test_answer_that_differs_is_found_among_others(story):
    answers = {"x": answer(story, [1]), "y": answer(story, [2])}
    found = failure_of(story, answers, {"x": [1], "y": [3]})
    assert (found["kind"], found["event"], found["expected"]) == ("equality", 1, [3])


def test_plain_value_is_the_last_answer(story):
    assert failure_of(story, answer(story, 5), 6)["kind"] == "equality"


def test_plain_value_that_is_no_answer_is_not_told(story):
    answer(story, 5)
    answer(story, "last")
    assert failure_of(story, 5, 6)["kind"] == "untold"


def test_value_that_was_followed_by_a_reading_is_not_told(story):
    found = answer(story, 5)
    story.read(None, "segments", {"one"})
    assert failure_of(story, found, 6)["kind"] == "untold"


def test_text_of_an_answer_is_known_as_that(story):
    found = failure_of(story, repr(answer(story, 5)), "6")
    assert (found["kind"], found["as_text"]) == ("equality", True)


def test_answer_that_should_equal_an_earlier_one_names_it(story):
    before = answer(story, 70_000)
    found = failure_of(story, answer(story, 80_000), before)
    assert (found["event"], found["expected_event"]) == (1, 0)


def test_condition_about_the_last_answer_is_told(story):
    grad = answer(story, None)
    with pytest.raises(CheckFailed):
        check(grad is not None, "the grad has arrived")
    assert (story.failure["kind"], story.failure["event"]) == ("condition", 0)


def test_condition_is_not_told_once_something_else_was_read(story):
    grad = answer(story, None)
    story.read(None, "segments", {"one"})
    with pytest.raises(CheckFailed):
        check(grad is not None, "the grad has arrived")
    assert story.failure["kind"] == "untold"


def test_condition_that_asks_is_told(story):
    def same_object_as(other):
        return answer(story, False)

    tensor = Remote(OWNER, "1")
    tensor.__dict__["same_object_as"] = same_object_as
    with pytest.raises(CheckFailed):
        check(tensor.same_object_as(tensor), "the call returns the tensor")
    assert story.failure["kind"] == "condition"


def test_condition_about_something_else_is_not_told(story):
    answer(story, [1, 2])
    name, names = "one", {"other"}
    with pytest.raises(CheckFailed):
        check(name in names, "the file is there")
    assert story.failure["kind"] == "untold"


def test_first_failure_ends_the_story(story):
    failure_of(story, answer(story, 5), 6)
    answer(story, 7)
    story.failed("condition", "and more")
    assert len(story.events) == 1
    assert story.failure["sentence"] == "it is so"
