"""A program as text: made from a few recorded events, for an adapter of torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sharedtensor_conformance.adapters import numpy_copy
from sharedtensor_conformance.adapters.torch import conformance_adapter
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.report.records import Case, Machine
from sharedtensor_conformance.report.verdicts import Verdict
from sharedtensor_conformance.reproduce import program
from sharedtensor_conformance.reproduce.events import Event, Failure, RecordedCase
from sharedtensor_conformance.reproduce.program import Subject, write_program
from sharedtensor_conformance.reproduce.source import Untranslatable

TENSOR = {"reference": "7"}
MAKE = Event(
    0, "call", "owner", "operate", ("make", [1, 2], {"tuple": [2]}, "int32"), TENSOR
)
PUT = Event(1, "call", "owner", "put", ("peer", "pipe", TENSOR))
GET = Event(2, "call", "peer", "get", ("owner", "pipe"), TENSOR)
READ = Event(3, "call", "peer", "operate", ("values", TENSOR), [1, 9])
EVENTS = (MAKE, PUT, GET, READ)


AXES = {"strategy": "file_system", "start_method": "spawn"}


def case_of(verdict="fail", evidence="not so: it has its values", axes=AXES):
    return Case(
        "test_share.py::test_it[x]",
        "test_share.py::test_it",
        ("SHARE-3",),
        Verdict(verdict),
        axes=axes,
        evidence=evidence,
    )


def written(events, failure, *, with_reads=False, adapter=conformance_adapter, **case):
    machine = Machine("3.11.9", "x86_64", "6.1", 2, True, False)
    subject = Subject(case_of(**case), load_clauses()["SHARE-3"], adapter, machine)
    text = write_program(
        subject, RecordedCase(tuple(events), failure), with_reads=with_reads
    )
    compile(text, "program.py", "exec", dont_inherit=True)
    return text


WRONG = Failure("equality", "it has its values", 3, expected=[1, 2])


def test_recorded_case_becomes_one_function_for_each_process():
    text = written(EVENTS, WRONG)
    assert (
        """\
def run(turns, steps, *given):
    torch.set_num_threads(1)
    mp.set_sharing_strategy("file_system")
    with suppress(EOFError):  # until the process that started it has ended
        turns.send("it runs")
        turns.recv()
        for found in steps(*given):
            turns.send(found)
            turns.recv()


def peer_steps(end_of_peer):
    arrived = end_of_peer.recv()
    yield arrived.detach().flatten().tolist()


def main():
    torch.set_num_threads(1)
    mp.set_sharing_strategy("file_system")
    end_of_owner, end_of_peer = context.Pipe()
    peer = Peer(peer_steps, end_of_peer)
    tensor = torch.tensor([1, 2], dtype=torch.int32)
    end_of_owner.send(tensor)
    found = peer.go_on()
    expected = [1, 2]
    if found == expected:
        sys.exit(1)
    print(f"not so: it has its values: got {found!r}, not {expected!r}")
"""
        in text
    )
    assert "SHARE-3 (MUST in spec" in text.partition("import")[0]


def test_case_that_is_too_long_becomes_no_program(monkeypatch):
    monkeypatch.setattr(program, "MAX_LINES", 50)
    with pytest.raises(Untranslatable, match="too long to read"):
        written(EVENTS, WRONG)


def test_what_was_right_is_looked_at_only_in_the_longer_program():
    looked = replace(
        READ, number=2.5, arguments=("shape", TENSOR), returned={"tuple": [2]}
    )
    events = (MAKE, PUT, GET, looked, READ)
    assert "tuple(arrived.shape)" not in written(events, WRONG)
    assert "tuple(arrived.shape)" in written(events, WRONG, with_reads=True)


def test_address_is_compared_with_that_of_the_same_run():
    ask = {"arguments": ("address", TENSOR), "process": "owner"}
    before = replace(READ, number=2, returned=70_000, **ask)
    after = replace(READ, number=4, returned=80_000, **ask)
    failure = Failure("equality", "it stays", 4, 70_000, expected_event=2)
    text = written((MAKE, before, replace(PUT, number=3), after), failure)
    assert "expected = int(tensor.data_ptr())" in text
    assert "found, expected = int(tensor.data_ptr()), expected" in text
    assert "70000" not in text


def test_variable_is_set_around_what_the_owner_does_in_between():
    ask = Event(0, "call", "owner", "act", ("variable", "SEEN"))
    to_one = replace(ask, number=1, arguments=("set_variable", "SEEN", "1"))
    back = replace(ask, number=3, arguments=("set_variable", "SEEN", None))
    make, put, get, read = (replace(e, number=e.number + 4) for e in EVENTS)
    start = Event(2, "call", "owner", "start_peer", ("peer", "spawn", None))
    events = (ask, to_one, start, back, make, put, get, read)
    text = written(events, replace(WRONG, event=read.number))
    assert (
        """\
    os.environ["SEEN"] = "1"
    end_of_owner, end_of_peer = context.Pipe()
    peer = Peer(peer_steps, end_of_peer)
    os.environ.pop("SEEN", None)
"""
        in text
    )
    assert "import os\n" in text


@pytest.mark.parametrize(
    ("raised", "caught", "gone"),
    [
        ("FileNotFoundError", "OSError", "not raised"),
        ("RuntimeError", "RuntimeError", "not raised"),
        ("OutOfSegments", "Exception", 'not raised.startswith("OutOfSegments(")'),
    ],
)
def test_exception_is_one_of_its_kind(raised, caught, gone):
    failure = Failure("raised", f"peer: {raised}", 2)
    text = written((MAKE, PUT, replace(GET, raised=raised, returned=None)), failure)
    assert f"    except {caught} as error:\n        raised = repr(error)" in text
    assert f"    if {gone}:\n        sys.exit(1)" in text


def test_crash_is_one_by_a_signal_and_no_exception():
    unanswered = replace(READ, process="owner", is_answered=False)
    died = "owner died of SIGSEGV"
    failure = Failure("crash", died, 3)
    text = written((MAKE, unanswered), failure, verdict="crash", evidence=died)
    assert "if status is None or status >= 0:\n        sys.exit(1)" in text
    assert "self.process.daemon = steps is not owner_steps" in text


def test_process_that_waits_while_others_act_is_waited_for_in_its_turn():
    waits = replace(GET, number=1, answered_before=3)
    put = replace(PUT, number=2)
    text = written((MAKE, waits, put, READ), WRONG)
    seen = "until_it_waits(peer.process)"
    order = ["peer.tell()", seen, "send(tensor)", "peer.wait()", "peer.go_on()"]
    places = [text.rindex(line) for line in order]
    assert places == sorted(places)


def test_forked_process_deletes_what_its_parent_holds():
    start = Event(0.5, "call", "owner", "start_peer", ("child-1", "fork", None))
    axes = {"strategy": "file_system", "start_method": "fork"}
    text = written((MAKE, start, PUT, GET, READ), WRONG, axes=axes)
    assert "def main():\n    global tensor\n" in text
    assert "    global tensor\n    del tensor  # what it inherits\n" in text


def test_process_that_leaves_is_told_by_the_pipe_of_its_turns():
    leave = Event(1.5, "call", "bystander", "leave", ())
    acts = replace(MAKE, number=0.5, process="bystander", returned={"reference": "8"})
    text = written((MAKE, acts, PUT, leave, GET, READ), WRONG)
    assert '    bystander.turns.send("leave")\n' in text
    assert "self.turns, theirs = Pipe()" in text


def test_process_that_takes_descriptors_gives_them_back():
    take = replace(READ, number=2, request="exhaust", arguments=("descriptors", 3))
    give = replace(READ, number=2.5, request="restore", arguments=("descriptors",))
    text = written((MAKE, PUT, take, give, replace(GET, number=2.7), READ), WRONG)
    assert "    taken = take_descriptors(3)\n    while taken:\n" in text
    assert "def take_descriptors(spare):" in text


def written_with_messages_on(kind):
    channel = {"channel": "3"}
    opens = Event(0.2, "call", "owner", "open_channel", (kind, 2), channel)
    fill = ("put_numbered_messages", channel, 0, 1000, 10_000)
    fills = Event(0.4, "call", "owner", "act", fill)
    return written((opens, fills, MAKE, PUT, GET, READ), WRONG)


@pytest.mark.parametrize("kind", ["simple_queue", "pipe", "proxy"])
def test_channel_without_a_thread_is_not_told_to_let_the_program_end(kind):
    text = written_with_messages_on(kind)
    assert "    for number in range(0, 1000):\n" in text
    assert "cancel_join_thread" not in text


def test_queue_with_messages_that_nobody_gets_does_not_keep_the_program():
    text = written_with_messages_on("queue")
    assert (
        """\
    for number in range(0, 1000):
        queue.put({"number": number, "padding": bytes(10000)})
    queue.cancel_join_thread()  # so that the program can end
"""
        in text
    )


# Names


LAYOUT = {"layout": {"name": "all", "offset": 0, "shape": [2], "strides": [1]}}
VIEW = Event(0.5, "call", "owner", "operate", ("view", TENSOR, LAYOUT), TENSOR)
SEEN = {"reference": "8"}


def test_variable_does_not_have_the_name_of_a_function_that_follows_later():
    bits = replace(VIEW, arguments=("reinterpret", TENSOR, "uint8"), returned=SEEN)
    later = replace(VIEW, number=0.7, returned={"reference": "9"})
    events = (MAKE, bits, later, PUT, GET, READ)
    text = written(events, WRONG, adapter=numpy_copy.conformance_adapter)
    assert "def view(tensor, layout):\n" in text
    assert "    view_2 = tensor.view(" in text
    assert "    view_3 = view(tensor, Layout(" in text
    assert program.rebound_names(text) == set()


def test_name_that_no_function_of_the_program_has_stays():
    view = replace(VIEW, returned=SEEN)
    assert "    view = tensor.as_strided(" in written((MAKE, view, *EVENTS[1:]), WRONG)


BOUND_AGAIN = """\
import queue
import re as pattern
from contextlib import suppress
LIMIT = 3
def view(tensor):
    return tensor
class Peer:
    def other(self):
        LIMIT = 5
def main(suppress):
    global view
    view, LIMIT, own = view(pattern), 4, 5
    for queue in []:
        pass
"""


def test_names_that_functions_bind_again_are_found():
    found = program.rebound_names(BOUND_AGAIN)
    assert found == {"queue", "suppress", "LIMIT", "view"}


def test_names_of_a_program_that_python_cannot_read_are_not_sought():
    assert program.rebound_names("def f(a):\n    global a\n") == set()


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            replace(READ, number=2, request="exhaust", arguments=("memory", 1)),
            "exhaust",
        ),
        (
            replace(READ, number=2, process="owner", request="leave", arguments=()),
            "owner ends",
        ),
        (Event(2, "system", "", "fill /dev/shm"), "fill /dev/shm"),
        (
            Event(
                *(2, "call", "owner", "open_channel", ("duplex_pipe", None)),
                returned={"channel": "3"},
            ),
            "of the kind duplex_pipe",
        ),
    ],
)
def test_event_that_no_program_can_have_is_refused(event, said):
    with pytest.raises(Untranslatable, match=said):
        written((MAKE, PUT, event, READ), WRONG)


def test_failure_that_is_not_that_of_one_answer_is_refused():
    with pytest.raises(Untranslatable, match="not the answer to a single request"):
        written(EVENTS, replace(WRONG, kind="unattributed"))
