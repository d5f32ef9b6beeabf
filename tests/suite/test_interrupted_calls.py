"""A call is interrupted at each of its places, as a signal handler would do it."""

import errno
import gc
import os
import signal
import sys
import weakref
from contextlib import nullcontext, suppress

import pytest
from sharedtensor_conformance.chapters import interruptions
from sharedtensor_conformance.chapters.interruption_actions import (
    KINDS,
    NOT_RAISED,
    PROPAGATED,
    SUPPRESSED,
    UNRAISABLE,
    InterruptionPoints,
)
from sharedtensor_conformance.chapters.interruptions import (
    Interruption,
    places_to_interrupt,
)
from sharedtensor_conformance.harness.case.outcomes import CheckFailed, LeftBehind

DONE: list[str] = []


def step(name):
    """Call a function of C, and write down that this one came to its end."""
    os.getpid()
    DONE.append(name)


def two_steps():
    """Do two steps, of which each has three places: it is entered, and calls twice."""
    step("one")
    step("two")


def outcomes_of(call, kind="timeout"):
    """Return what becomes of the exceptions at all places of a call, and one behind."""
    count = InterruptionPoints()
    count.during(call)
    return [
        InterruptionPoints(n, kind).during(call) for n in range(1, count.passed + 2)
    ]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def test_places_are_counted_where_handlers_run():
    """Where functions are entered, and where functions of C have come back."""
    places = InterruptionPoints()
    assert places.during(two_steps) == NOT_RAISED
    assert places.passed == 7


def test_call_is_interrupted_at_each_of_its_places(kind):
    """What is done before the place stays done; behind the last one all is."""
    found = []
    for place in range(1, 9):
        DONE.clear()
        outcome = InterruptionPoints(place, kind).during(two_steps)
        found.append((list(DONE), outcome))
    assert found == [
        ([], PROPAGATED),
        ([], PROPAGATED),
        ([], PROPAGATED),
        (["one"], PROPAGATED),
        (["one"], PROPAGATED),
        (["one"], PROPAGATED),
        (["one", "two"], PROPAGATED),
        (["one", "two"], NOT_RAISED),
    ]


def test_place_is_told_by_its_function_and_line():
    places = InterruptionPoints(3)
    places.during(two_steps)
    line = step.__code__.co_firstlineno + 2
    file = os.path.basename(__file__)
    assert places.where == f"step has called getpid, {file}, line {line}"


def test_what_else_the_call_raises_comes_out():
    """An exception of the call itself is no interruption, and ends the counting."""
    places = InterruptionPoints()
    with pytest.raises(FileNotFoundError):
        places.during(lambda: os.stat("/nowhere/at/all"))
    before = places.passed
    os.getpid()
    assert places.passed == before


def test_nothing_of_it_stays(kind):
    """The handlers of signals are those from before, and so is the hook."""
    number = KINDS[kind][0]
    before = signal.getsignal(number), sys.unraisablehook
    outcomes_of(two_steps, kind)
    assert (signal.getsignal(number), sys.unraisablehook) == before
    assert sys.getprofile() is None


def test_what_the_call_had_is_let_go():
    """An exception has a traceback, and that has what the call was about."""
    gc.disable()
    try:
        made = set()
        gone = weakref.ref(made)
        places = InterruptionPoints(3)
        places.during(lambda made=made: step(made))
        del made
        assert gone() is None
    finally:
        gc.enable()


class Finalized:
    """An object that is finalized by two steps."""

    def __del__(self):
        two_steps()


def test_places_in_a_finalizer_are_left_out():
    """Python would report the exception there, and go on."""
    places = InterruptionPoints()
    DONE.clear()
    assert places.during(lambda: Finalized() and step("behind")) == NOT_RAISED
    assert DONE == ["one", "two", "behind"]
    assert places.passed == 4


class Closed:
    """An object that is finalized by a method with a name of its own."""

    def close(self):
        """Do two steps."""
        two_steps()

    __del__ = close


def followed_by_a_reference():
    """Drop an object for whose end a function waits."""
    followed = set()
    reference = weakref.ref(followed, lambda ended: two_steps())
    del followed
    assert reference() is None


@pytest.mark.parametrize("call", [lambda: Closed() and None, followed_by_a_reference])
def test_exception_in_another_finalizer_is_seen_to_be_reported(call, kind):
    """Python calls them by other names than `__del__`."""
    found = outcomes_of(call, kind)
    assert found.count(UNRAISABLE) >= 7
    assert set(found) <= {PROPAGATED, UNRAISABLE, NOT_RAISED}
    assert found[-1] == NOT_RAISED


def swallowing():
    """Do two steps, and tell nobody if that fails."""
    with suppress(BaseException):
        two_steps()


def test_exception_that_is_swallowed_is_seen_to_be(kind):
    assert SUPPRESSED in outcomes_of(swallowing, kind)


def translating():
    """Do two steps, and take an error for one of the system."""
    try:
        two_steps()
    except OSError as error:
        raise PermissionError(errno.EPERM, "refused") from error


def test_exception_that_becomes_another_one_is_seen_to():
    assert "the call raises PermissionError instead" in outcomes_of(translating)
    assert set(outcomes_of(translating, "interrupt")) == {PROPAGATED, NOT_RAISED}


def blocking():
    """Do two steps while all signals are blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        two_steps()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_blocked_signal_comes_when_it_is_no_longer_blocked(kind):
    for place in range(1, 10):
        DONE.clear()
        assert InterruptionPoints(place + 1, kind).during(blocking) == PROPAGATED
        assert DONE in ([], ["one", "two"])


def test_signal_that_stays_blocked_is_taken_back(kind):
    number = KINDS[kind][0]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        assert InterruptionPoints(3, kind).during(two_steps) == NOT_RAISED
        assert number not in signal.sigpending()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignoring():
    """Do two steps while signals are ignored."""
    handled = {number: signal.getsignal(number) for number, _ in KINDS.values()}
    for number in handled:
        signal.signal(number, signal.SIG_IGN)
    DONE.append("begin")
    two_steps()
    DONE.append("end")
    for number, handler in handled.items():
        signal.signal(number, handler)


def test_ignored_signal_raises_nothing(kind):
    for place in range(1, 60):
        DONE.clear()
        outcome = InterruptionPoints(place, kind).during(ignoring)
        if "begin" in DONE:
            assert "end" in DONE
            assert outcome in (PROPAGATED, NOT_RAISED)


class FakeActor:
    """An actor that keeps what it is told to, of what was interrupted."""

    def __init__(self, outcome=PROPAGATED):
        self.outcome = outcome

    def run(self, *arguments):
        """Interrupt nothing."""
        return [self.outcome, "nowhere"]

    def ensure_started(self):
        """Have no process."""

    def drop_all(self):
        """Have nothing to drop."""


@pytest.mark.parametrize("outcome", [SUPPRESSED, "the call raises OSError instead"])
def test_caller_that_is_not_told_is_a_finding(outcome):
    with pytest.raises(CheckFailed, match=r"reaches the caller .*nowhere"):
        Interruption("timeout", 3, 10).run(FakeActor(outcome), "share")


@pytest.mark.parametrize("outcome", [PROPAGATED, NOT_RAISED, UNRAISABLE])
def test_call_has_returned_where_nothing_was_raised(outcome):
    one = Interruption("timeout", 3, 10)
    assert one.run(FakeActor(outcome), "share") == (outcome == NOT_RAISED)
    assert one.judges_leaks == (outcome != UNRAISABLE)


def test_all_places_are_taken_and_one_behind_them():
    assert list(places_to_interrupt(4)) == [1, 2, 3, 4, 5]


def test_of_very_many_places_the_same_are_taken_each_time():
    many = 10 * interruptions.MAX_PLACES
    taken = places_to_interrupt(many)
    assert len(set(taken)) == interruptions.MAX_PLACES
    assert taken == places_to_interrupt(many)
    assert {place % 2 for place in taken} == {0, 1}
    assert f"{interruptions.MAX_PLACES} are taken" in str(
        Interruption("timeout", 3, many)
    )


class FakeStage:
    """A stage that counts what a test leaves on it."""

    waiting_in_full = staticmethod(nullcontext)

    def __init__(self):
        self.left = 0

    def holdings(self, *actors):
        """Return how much was left."""
        return self.left

    def growth_since(self, before, *actors):
        """Return how much was left since."""
        return self.left - before

    def check_released(self, before, *actors, sentence):
        """Raise if something was left since."""
        if self.left > before:
            raise LeftBehind(sentence)


def interrupt_all(leaves):
    """Interrupt a call at its five places; `leaves` says what is left of each."""
    stage, actor = FakeStage(), FakeActor()
    met = []

    def interrupt(one):
        one.run(actor, "share")
        stage.left += leaves(one, (one.kind, one.place) in met)
        met.append((one.kind, one.place))

    interruptions.interrupt_at_each_place(stage, [actor], lambda: 5, interrupt)
    return met


def test_call_is_interrupted_by_each_kind_at_each_place():
    met = interrupt_all(lambda one, again: 0)
    assert met == [(kind, place) for kind in KINDS for place in range(1, 7)]


def test_what_is_made_once_is_not_left():
    met = interrupt_all(lambda one, again: one.place == 3 and not again)
    assert len(met) == 24


def test_what_is_left_each_time_is_told_with_its_place():
    with pytest.raises(LeftBehind, match="timeout at place 3 of 5: nowhere"):
        interrupt_all(lambda one, again: one.place == 3 and one.kind == "timeout")
