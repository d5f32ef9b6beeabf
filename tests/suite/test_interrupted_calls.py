"""A call is interrupted at each of its places, as a signal handler would do it."""

import os

from sharedtensor_conformance.harness.interruption import Places

DONE: list[str] = []


def step(name):
    """Call a function of C, and write down that this one came to its end."""
    os.getpid()
    DONE.append(name)


def two_steps():
    """Do two steps, of which each has three places: it is entered, and calls twice."""
    step("one")
    step("two")


def done_before(place):
    """Return what was done of two steps that were interrupted at a place, and if so."""
    DONE.clear()
    interrupted = Places(place).during(two_steps)
    return list(DONE), interrupted


def test_places_are_counted_where_handlers_run():
    """Where functions are entered, and where functions of C have come back."""
    places = Places()
    assert not places.during(two_steps)
    assert places.passed == 7


def test_call_is_interrupted_at_each_of_its_places():
    """What is done before the place stays done; behind the last one all is."""
    found = [done_before(place) for place in range(1, 9)]
    assert found == [
        ([], True),
        ([], True),
        ([], True),
        (["one"], True),
        (["one"], True),
        (["one"], True),
        (["one", "two"], True),
        (["one", "two"], False),
    ]


def test_what_else_the_call_raises_comes_out():
    """An exception of the call itself is no interruption, and ends the counting."""
    places = Places()
    try:
        places.during(lambda: os.stat("/nowhere/at/all"))
    except FileNotFoundError:
        before = places.passed
        os.getpid()
        assert places.passed == before
    else:
        raise AssertionError("it was swallowed")


class Finalized:
    """An object that is finalized by two steps."""

    def __del__(self):
        two_steps()


def test_places_in_a_finalizer_are_left_out():
    """Python would report the exception there, and go on."""
    places = Places()
    DONE.clear()
    assert not places.during(lambda: Finalized() and step("behind"))
    assert DONE == ["one", "two", "behind"]
    assert places.passed == 4
