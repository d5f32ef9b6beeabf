"""What makes programs short, parts that recur and early ends; and how they wait."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from sharedtensor_conformance.reproduce import helpers
from sharedtensor_conformance.reproduce.events import Event, Failure, RecordedCase
from sharedtensor_conformance.reproduce.functions import Body, extract_function
from sharedtensor_conformance.reproduce.loops import Turn, with_loops
from sharedtensor_conformance.reproduce.shortening import shortened

PART = (
    "queue = context.Queue()",
    "t = make(1)",
    "queue.put(t)",
    "del t",
    "gc.collect()",
)
CLOSED = (*PART, "del queue")
RENEWED = (
    *("queue.put(1)", "gc.collect()", "x()", "y()"),
    *("del queue", "queue = context.Queue()"),
)


# Parts that recur


def test_part_that_recurs_in_two_processes_is_one_function():
    bodies = [Body((*CLOSED, "yield", *CLOSED, "yield")), Body(("a = 1", *CLOSED))]
    part, (peer, owner) = extract_function(bodies)
    assert part == CLOSED
    assert peer.lines == ("repeated()", "yield", "repeated()", "yield")
    assert owner.lines == ("a = 1", "repeated()")


@pytest.mark.parametrize(
    ("lines", "parameters"),
    [
        ((*PART, "x()", *PART, "x()"), ()),  # the name of the queue goes on
        ((*CLOSED, "y = 1", *CLOSED), ("gc",)),  # it needs what its function has
        (("yield", *CLOSED[:-1], "yield", "yield", *CLOSED[:-1]), ()),
        ((*RENEWED, "a()", *RENEWED, "b()", *RENEWED), ()),  # it had a queue before
    ],
)
def test_part_that_shares_names_with_its_function_stays_there(lines, parameters):
    assert extract_function([Body(lines, parameters)])[0] == ()


def test_short_part_stays_where_it_is():
    part = ("t = make(1)", "del t")
    assert extract_function([Body((*part, "x()", *part, "y()", *part))])[0] == ()


def test_loop_in_which_one_process_acts_is_a_part_of_its_turn():
    turns = [Turn("peer", (f"put({number})",)) for number in range(3)]
    end = Turn("peer", ("close()",))
    lines = ("for _ in range(3):\n    put(0)", "close()")
    assert with_loops([*turns, end]) == [Turn("peer", lines)]


# Stories that end early


def reference(key):
    return {"reference": key}


def episode(key):
    """The owner makes a tensor and sends it; both drop it. Four events."""
    yield "owner", "operate", ("make", [1]), reference(key)
    yield "owner", "put", ("peer", "pipe", reference(key)), None
    yield "owner", "drop", (key,), None
    yield "peer", "get", ("owner", "pipe"), reference(key)
    yield "peer", "drop", (key,), None


def recorded_case(*calls, kind="growth"):
    """Return calls between two readings, of which the last says more."""
    steps = [("owner", "operate", ("make", [0]), reference("0"))]
    steps += [("", "segments", (), 1), *calls, ("", "segments", (), 5)]
    events = []
    for number, (process, request, arguments, returned) in enumerate(steps):
        if request == "segments":
            event = Event(number, "read", "", request, count=returned)
        else:
            event = Event(number, "call", process, request, arguments, returned)
        events.append(event)
    return RecordedCase(tuple(events), Failure(kind, "it is back"))


def test_leak_is_looked_for_where_everything_was_given_back_first():
    whole = recorded_case(*episode("1"), *episode("2"))
    first, second = shortened(whole)
    assert [event.number for event in first.events] == [0, 1, 2, 3, 4, 5, 6, 12]
    assert second.events == whole.events
    assert [event.count for event in first.grown_readings] == [5]


def test_case_is_not_shortened_while_a_message_is_in_flight():
    lost = list(episode("1"))[:3]  # nobody receives it
    assert list(shortened(recorded_case(*lost, *episode("2")))) == []


def test_case_of_another_failure_is_not_shortened():
    assert list(shortened(recorded_case(*episode("1"), kind="equality"))) == []


# How they wait


@pytest.fixture
def until_it_waits():
    """Return the helper of the programs, which waits for at most two seconds."""
    scope = {"time": time, "TIMEOUT": 2}
    exec(compile(helpers.UNTIL_IT_WAITS, "program.py", "exec"), scope)
    return scope["until_it_waits"]


def started(program):
    return subprocess.Popen([sys.executable, "-S", "-c", program])


def test_process_that_waits_is_waited_for(until_it_waits):
    process = started("import signal; signal.pause()")
    until_it_waits(SimpleNamespace(pid=process.pid))
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("busy", ["while True: pass", "while True: time.sleep(0.001)"])
def test_process_that_goes_on_does_not_wait(until_it_waits, busy):
    process = started(f"import time\n{busy}")
    try:
        with pytest.raises(TimeoutError):
            until_it_waits(SimpleNamespace(pid=process.pid))
    finally:
        process.kill()
        process.wait()
