"""Random histories on an implementation in memory: the model and the search are judged.

The implementation shares as it has to, so that each failure is one of the model; and
with a fault in it, so that each miss is one.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharedtensor_conformance.adapter import PROFILES, Implementation
from sharedtensor_conformance.chapters import history_search
from sharedtensor_conformance.chapters.aliasing_histories import (
    AliasingHistory,
    AliasingRunner,
    kinds_for,
)
from sharedtensor_conformance.chapters.history_search import (
    HistoryFailed,
    search_histories,
)
from sharedtensor_conformance.harness.outcomes import (
    ActorDied,
    CheckFailed,
    DeadlineExceeded,
    HarnessFault,
    RemoteError,
    RemoteRaised,
)
from sharedtensor_conformance.harness.proxies import Remote
from sharedtensor_conformance.harness.timeouts import SHORT_ANSWER_TIMEOUT, Timeouts

NUMBERS = st.integers(0, 59)
CHANNELS = ("queue", "pipe")


class SharedTensor(Remote):
    """A window on a list that all processes see."""

    keys = count()

    def __init__(self, actor, numbers, places, grad=None):
        super().__init__(actor, str(next(self.keys)))
        self.numbers, self.places, self.own_grad = numbers, list(places), grad

    def values(self):
        return [self.numbers[place] for place in self.places]

    def write(self, index, value):
        self.numbers[self.places[index]] = value

    def share(self):
        return self

    def clone(self):
        return SharedTensor(self.actor, self.values(), range(len(self.places)))

    def view(self, layout):
        last = layout.offset + (layout.shape[0] - 1) * layout.strides[0]
        places = self.places[layout.offset : last + 1 : layout.strides[0]]
        return SharedTensor(self.actor, self.numbers, places)

    def set_grad(self, grad):
        self.own_grad = grad

    def grad(self):
        return self.own_grad

    def drop(self):
        pass

    def sent_to(self, actor):
        grad = self.own_grad and self.own_grad.sent_to(actor)
        return SharedTensor(actor, self.numbers, self.places, grad)


class Process:
    """A process that sends what it has by reference."""

    def __init__(self, name, messages):
        self.name, self.messages = name, messages

    def make(self, values):
        return SharedTensor(self, list(values), range(len(values)))

    def put(self, payload, to, channel):
        route = self.messages.setdefault((self.name, to.name, channel), deque())
        tensors = payload if isinstance(payload, list) else [payload]
        sent = [self.send(tensor, to) for tensor in tensors]
        route.append(sent if isinstance(payload, list) else sent[0])

    def put_in_a_thread(self, payload, to, channel):
        self.put(payload, to, channel)

    def get_in_a_thread(self, sender, channel):
        return self.get(sender, channel)

    def send(self, tensor, to):
        return tensor.sent_to(to)

    def get(self, sender, channel):
        return self.messages[sender.name, self.name, channel].popleft()


def run(steps, kind=Process):
    messages = {}
    actors = tuple(kind(name, messages) for name in ("owner", "peer", "bystander"))
    AliasingHistory(actors, CHANNELS, may_drop_early=True, grads=True).run(steps)


ALL_KINDS = kinds_for(frozenset(PROFILES), grads=True)
HISTORIES = st.lists(st.tuples(st.sampled_from(ALL_KINDS), *[NUMBERS] * 3), max_size=40)


@settings(max_examples=400, deadline=None, database=None, derandomize=True)
@given(HISTORIES)
def test_no_history_fails_where_all_is_shared(steps):
    run(steps)


def test_view_of_a_clone_of_one_element():
    run([("make", 0, 0, 0), ("view", 0, 1, 1), ("clone", 1, 0, 0), ("view", 1, 0, 0)])


class Copies(Process):
    def send(self, tensor, to):
        return tensor.clone().sent_to(to)


class MixesUpGrads(Process):
    def send(self, tensor, to):
        arrived = tensor.sent_to(to)
        arrived.own_grad = arrived if tensor.own_grad else None
        return arrived


class Loses(Process):
    def get(self, sender, channel):
        super().get(sender, channel)


class LosesTheSecond(Process):
    def get(self, sender, channel):
        arrived = super().get(sender, channel)
        return arrived[:1] if isinstance(arrived, list) else arrived


SEND_AND_WRITE = [("make", 0, 0, 0), ("send", 0, 0, 0), ("write", 0, 0, 0)]
SEND_A_GRAD = [("make", 0, 0, 0), ("set_grad", 0, 0, 0), ("send", 0, 0, 0)]
SEND_TWO = [("make", 0, 0, 0), ("make", 0, 0, 0), ("send_two", 0, 0, 0)]


@pytest.mark.parametrize(
    ("kind", "steps", "said"),
    [
        (Copies, SEND_AND_WRITE, "at the end of this: got"),
        (MixesUpGrads, SEND_A_GRAD, "at the end of this: got"),
        (Loses, SEND_AND_WRITE, "not so: t1 is a tensor"),
        (Loses, SEND_TWO, "a message of 2 tensors arrives as it was sent"),
        (LosesTheSecond, SEND_TWO, "a message of 2 tensors arrives as it was sent"),
    ],
)
def test_fault_of_the_implementation_breaks_the_clause(kind, steps, said):
    with pytest.raises(HistoryFailed) as caught:
        run(steps, kind)
    outcome = caught.value.as_outcome("this history")
    assert type(outcome) is CheckFailed
    assert said in str(outcome)
    assert "owner.make(" in str(outcome)


RAISED = RemoteRaised(RemoteError("owner", "OSError", [], "no room", ""), "operate")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ZeroDivisionError("by zero"), HarnessFault),
        (TypeError("'NoneType' object is not iterable"), HarnessFault),
        (HarnessFault("owner has no object"), HarnessFault),
        (RAISED, CheckFailed),
        (ActorDied("owner died of SIGSEGV"), ActorDied),
        (DeadlineExceeded("owner gave no answer"), DeadlineExceeded),
    ],
)
def test_what_does_not_come_from_the_implementation_is_an_error(error, kind):
    class Fails(Process):
        def make(self, values):
            raise error

    with pytest.raises(HistoryFailed) as caught:
        run([("make", 0, 0, 0)], Fails)
    outcome = caught.value.as_outcome("this history")
    assert type(outcome) is kind
    known = str(error)
    assert known in str(outcome)


class FailingStage:
    """A stage on which every operation fails with the same error."""

    implementation = Implementation("mine", "", frozenset({"core"}), channels=CHANNELS)

    def __init__(self, error, others):
        self.error, self.others = error, others
        self.owner = self.peer = self.bystander = self
        self.timeouts = Timeouts(answer=20.0, start=90.0, cleanup=3.0)

    def ensure_started(self):
        """Do nothing: it is in this process."""

    def make(self, values):
        raise self.error

    @contextmanager
    def fresh(self):
        self.others.append(FailingStage(self.error, self.others))
        yield self.others[-1]


@pytest.mark.parametrize(
    ("error", "waited"),
    [
        (DeadlineExceeded("no answer"), SHORT_ANSWER_TIMEOUT),
        (ActorDied("of SIGSEGV"), 20.0),
    ],
)
def test_after_a_hang_the_search_waits_less_for_answers(error, waited):
    used = []
    runner = AliasingRunner(FailingStage(error, used), grads=False)
    assert runner.run([("make", 0, 0, 0)])
    assert [stage.timeouts.answer for stage in used] == [waited]


# The search


class FailingAt:
    """Runs histories that are numbers: each fails that has all of some of them."""

    def __init__(self, numbers, renewed_fails=True):
        self.numbers, self.renewed_fails = set(numbers), renewed_fails
        self.is_new, self.count = False, 0

    def run(self, steps):
        self.count += 1
        if self.numbers <= set(steps) and (self.renewed_fails or not self.is_new):
            return HistoryFailed(CheckFailed("so"), "\n".join(map(str, steps)))
        return None

    def renew(self):
        self.is_new = True


def told(runner, count=3):
    draw = lambda rng: rng.sample(range(40), 40)  # noqa: E731
    with pytest.raises(CheckFailed) as caught:
        search_histories(draw, runner, count, seed=1)
    return str(caught.value).partition(":\n")


@pytest.mark.parametrize("numbers", [[3], [3, 39], [0, 7, 8, 20, 31]])
def test_history_that_fails_is_told_without_the_steps_that_it_does_not_need(numbers):
    said, _, script = told(FailingAt(numbers))
    assert "the shortest history" in said
    assert sorted(map(int, script.splitlines())) == numbers


def test_history_that_needs_what_went_before_it_is_told_whole():
    said, _, script = told(FailingAt([3], renewed_fails=False))
    assert "it took what went before it" in said
    assert len(script.splitlines()) == 40


def test_histories_are_the_same_for_a_seed_and_as_many_as_asked_for():
    def drawn(seed):
        found = []
        runner = FailingAt([41])
        search_histories(lambda rng: found.append(rng.random()) or [], runner, 5, seed)
        assert runner.count == 5
        return found

    assert drawn(1) == drawn(1) != drawn(2)


def test_shortening_ends_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr(history_search, "SHRINK_TIMEOUT", 0)
    _, _, script = told(FailingAt([3]))
    assert len(script.splitlines()) == 40
