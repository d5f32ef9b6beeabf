"""How recorded events become the lines of a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from sharedtensor_conformance.chapters.system_actions import replace
from sharedtensor_conformance.harness.kernel.private_shm import limit
from sharedtensor_conformance.harness.remote.wire import place_of
from sharedtensor_conformance.reproduce import runtime
from sharedtensor_conformance.reproduce.sources import Unreplayable
from sharedtensor_conformance.reproduce.steps import Steps, folded, of_last_stage

HEAD = ["owner = start_owner()", "owner.run(Actor.prepare, True)"]
ACTOR = "sharedtensor_conformance.harness.remote.actor:Actor."
ANSWERED = {"stage": 0, "waiting": False, "warming": False, "process": "owner"}
ADDRESS = 1 << 40


def call(do, *given, **details):
    """Return the event of a request to the owner."""
    event = {"kind": "call", "do": do, "function": "", "given": list(given)}
    return {**event, **ANSWERED, **details}


def operate(name, *given, **details):
    return call("operate", name, *given, **details)


def run(place, *given, **details):
    name = place.rpartition(":")[2].rpartition(".")[2]
    return call(name, *given, function=place, **details)


def reference(key):
    return {"reference": key}


def read(count, **details):
    return {
        "kind": "read",
        "what": "segments",
        "count": count,
        **ANSWERED,
        **details,
        "process": "",
    }


def lines_of(*events, evidence="", compares=True):
    """Return the lines for events of an owner, each answered at once by default."""
    numbered = [run(f"{ACTOR}prepare", True), *events]
    for number, event in enumerate(numbered):
        if event["kind"] == "call":
            event.setdefault("answered", number + 1)
            if event["answered"] is None:
                del event["answered"]
    kept = of_last_stage(numbered, 1)
    lines = Steps(kept, evidence, compares=compares).write()
    assert lines[:2] == HEAD
    return lines[2:]


WRITE = operate("write", 5, returned=None)
MAKE = operate("make", [1, 2], {"tuple": [2]}, "int32", returned=reference("1"))


def test_requests_are_lines_in_their_order_and_objects_have_names():
    assert lines_of(
        MAKE,
        operate("share", reference("1"), returned=reference("1")),
        operate("values", reference("1"), returned=[1, 2]),
        operate("is_shared", reference("1"), returned=False),
        operate("grad", reference("1"), returned=None),
        operate("write", reference("1"), {"tuple": [0]}, 5, returned=None),
        run(f"{ACTOR}drop", {"key": "1"}, returned=None),
    ) == [
        "t1 = owner.make([1, 2], (2,), 'int32')",
        "assert owner.share(t1).key == t1.key",
        "assert owner.values(t1) == [1, 2]",
        "assert not owner.is_shared(t1)",
        "assert owner.grad(t1) is None",
        "owner.write(t1, (0,), 5)",
        "owner.run(Actor.drop, t1.key)",
    ]


def test_functions_of_the_suite_are_called_and_copied_by_their_names():
    method = {"function": f"{ACTOR}get"}
    events = (
        run("chapters:make_many", 2, 1, returned=[reference("1"), reference("2")]),
        run(f"{ACTOR}has_message", "peer", "pipe", returned=True),
        run("harness:in_a_thread", method, "peer", "pipe", returned=5),
        run("chapters:hide", {"key": "1"}, "a cycle", returned=None),
    )
    assert lines_of(*events) == [
        "m1 = owner.run(make_many, 2, 1)",
        "assert owner.run(Actor.has_message, 'peer', 'pipe')",
        "assert owner.run(in_a_thread, Actor.get, 'peer', 'pipe') == 5",
        "owner.run(hide, m1[0].key, 'a cycle')",
    ]
    steps = Steps([call("prepare", True, answered=1), *events], "", compares=True)
    steps.write()
    assert steps.functions == {
        *("chapters:make_many", "harness:in_a_thread", "chapters:hide"),
        *(f"{ACTOR}has_message", f"{ACTOR}get"),
    }


def test_objects_in_a_message_are_named_by_their_place():
    message = {"dict": [["x", [reference("1"), reference("2")]]]}
    assert lines_of(
        run(f"{ACTOR}get", "peer", "pipe", returned=message),
        operate("read", reference("2"), {"tuple": [0]}, returned=7),
    ) == [
        "m1 = owner.run(Actor.get, 'peer', 'pipe')",
        "assert owner.read(m1['x'][1], (0,)) == 7",
    ]


def test_addresses_are_compared_with_each_other():
    address = [ADDRESS, ADDRESS + 64, ADDRESS]
    assert lines_of(*(operate("address", returned=one) for one in address)) == [
        "address_1 = owner.address()",
        "address_2 = owner.address()",
        "assert address_2 != address_1",
        "assert owner.address() == address_1",
    ]


def test_exceptions_ends_and_hangs_are_expected():
    raised = operate("clone", raised="ValueError")
    unanswered = operate("clone", answered=None)
    joined = run(f"{ACTOR}join", "owner", 10.0, returned=-11)
    assert lines_of(raised) == ['with raises("ValueError"):\n    owner.clone()']
    begun = "owner.begin('operate', 'clone')"
    dies = 'with raises("Ended: exit status -11"):\n    owner.answer(DEADLINE)'
    status = "assert owner.run(Actor.join, 'owner', 10.0) == -11"
    assert lines_of(unanswered, joined) == [begun, dies, status]
    died = lines_of(operate("clone", answered=None), evidence="owner died of SIGSEGV")
    assert died == [begun, dies]
    late = lines_of(operate("clone", answered=None), evidence="owner gave no answer")
    hangs = 'with raises("Ended: no answer"):\n    owner.answer(DEADLINE)'
    assert late == [begun, hangs]


def test_process_that_waits_is_asked_first_and_answers_later():
    waits = run(f"{ACTOR}get", "peer", "pipe", returned=5, answered=4)
    signalled = {"kind": "signal", "number": 15, **ANSWERED, "process": "owner"}
    assert lines_of(waits, WRITE, signalled) == [
        "owner.begin('run', Actor.get, 'peer', 'pipe')",
        "until_it_waits(owner)",
        "owner.write(5)",
        "os.kill(owner.pid, 15)",
        "assert owner.answer() == 5",
    ]


def test_what_is_asked_again_and_again_is_one_wait():
    has_message = (f"{ACTOR}has_message", "peer", "pipe")
    polled = [run(*has_message, returned=False, waiting=True)] * 3
    asked = "owner.run(Actor.has_message, 'peer', 'pipe')"
    waits = f"assert not wait_until(lambda: {asked}, GRACE)"
    assert lines_of(*map(dict, polled)) == [waits]


@pytest.mark.parametrize(
    ("counts", "waiting", "last"),
    [
        (
            (1, 3),
            True,
            'assert not wait_until(lambda: held("segments") <= before, GRACE)',
        ),
        ((1, 1), True, 'assert not wait_until(lambda: held("segments") < 1, GRACE)'),
        ((1, 0), False, 'assert held("segments") == 0'),
    ],
)
def test_what_is_left_is_read_again(counts, waiting, last):
    first, second = counts
    lines = lines_of(read(first), WRITE, read(second, waiting=waiting))
    before = ['before = held("segments")'] if second > first else []
    assert lines == [*before, "owner.write(5)", last]


def test_answers_can_be_left_to_the_last_one():
    values = [operate("values", returned=[number]) for number in (1, 2)]
    assert lines_of(*values, compares=False) == [
        "owner.values()",
        "assert owner.values() == [2]",
    ]


def test_answer_that_differs_from_run_to_run_is_not_what_is_right():
    answer = operate("read", 5, returned=0.25)
    evidence = "not so: the array has its values: got 0.25, not 33"
    lines = lines_of(answer, evidence=evidence, compares=False)
    assert lines == ["assert owner.read(5) != 33"]
    lines = lines_of(answer, evidence=evidence)
    assert lines == ["assert owner.read(5) == 0.25"]


def test_processes_have_the_environment_of_their_stage():
    given = {"TMPDIR": ["missing", 120], "PYTHONOPTIMIZE": "1"}
    events = [
        {**ANSWERED, "kind": "environment", "given": given, "is_own": True},
        run(f"{ACTOR}prepare", True, answered=2),
    ]
    assert Steps(events, "", compares=True).write() == [
        "os.environ['PYTHONOPTIMIZE'] = '1'",
        "use_temporary_folder('missing', 120)",
        *HEAD,
    ]


@pytest.mark.parametrize(("what", "is_there"), [("folder", True), ("missing", False)])
def test_temporary_folder_of_a_program_has_a_path_of_a_length(
    what, is_there, tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    runtime.use_temporary_folder(what, len(str(tmp_path)) + 30)
    made = os.environ["TMPDIR"]
    assert len(made) == len(str(tmp_path)) + 30
    assert os.path.isdir(made) == is_there


def test_long_values_are_short_in_the_program():
    given = [list(range(1, 21)), [0.0] * 20, [0.25 * n for n in range(20)]]
    made, compared = lines_of(
        operate("make", given, returned=reference("1")),
        operate("values", returned=[n * n for n in range(999)]),
    )
    assert made == (
        "t1 = owner.make([[1 + 1 * n for n in range(20)], [0.0] * 20, "
        "[0.0 + 0.25 * n for n in range(20)]])"
    )
    assert compared.startswith("assert digest(owner.values()) == ")
    assert eval(compared.partition("== ")[2]) == runtime.digest(
        [n * n for n in range(999)]
    )


def test_only_the_last_stage_is_replayed_with_the_processes_that_act():
    earlier = [{**call("start_peer", "peer", "fork", None), "stage": 1, "answered": 1}]
    pairs = call(
        "make_pairs", [["owner", "peer"], ["owner", "other"]], "fork", answered=3
    )
    started = call("start_peer", "peer", "fork", None, answered=4)
    idle = call("start_peer", "bystander", "fork", None, answered=5)
    asked = {**operate("share", answered=6), "process": "peer"}
    begun = call("prepare", True, answered=2)
    kept = of_last_stage([*earlier, begun, pairs, started, idle, asked], 5)
    assert [event["do"] for event in kept] == [
        *("prepare", "make_pairs", "start_peer", "operate")
    ]
    assert kept[1]["given"] == [[["owner", "peer"]], "fork"]
    assert [event["answered"] for event in kept] == [1, 2, 3, 4]


def test_dev_shm_is_changed_in_one_that_the_program_has_to_itself():
    fill, empty = (
        {"kind": "system", "function": place_of(limit), "given": [spare], **ANSWERED}
        for spare in (0, None)
    )
    kept = of_last_stage([run(f"{ACTOR}prepare", True, answered=1), fill, empty], 1)
    changes = ["shm.run(limit, 0)", "shm.run(limit, None)"]
    lines = Steps(kept, "", compares=True).write()
    assert lines == ["shm = OwnShm()", *HEAD, *changes]


def test_what_a_program_cannot_do_is_not_replayed():
    change = {"kind": "system", "function": place_of(replace), "given": [], **ANSWERED}
    with pytest.raises(Unreplayable, match="on a user's machine: replace"):
        lines_of(change)
    with pytest.raises(Unreplayable, match="before its test did anything"):
        of_last_stage([call("prepare", True)], 1)
    with pytest.raises(Unreplayable, match="an object from before the recording"):
        lines_of(operate("share", reference("7")))


def test_lines_that_differ_in_numbers_alone_are_a_loop():
    lines = [
        "a",
        *(line for n in range(3) for line in (f"put({n})", "get()")),
        "b",
        "b",
    ]
    assert folded(lines) == ["a", "for _ in range(3):\n    put(0)\n    get()", "b", "b"]
    assert folded(["t1", "t2", "t3"]) == ["t1", "t2", "t3"]  # names are not numbers


@pytest.mark.parametrize(
    ("program", "waits"),
    [
        ("import signal; signal.pause()", True),
        ("while True: pass", False),
        ("import time\nwhile True: time.sleep(0.001)", False),
    ],
)
def test_process_that_waits_is_told_from_one_that_goes_on(program, waits, monkeypatch):
    monkeypatch.setattr(runtime, "TIMEOUT", 2)
    process = subprocess.Popen([sys.executable, "-S", "-c", program])
    try:
        assert runtime.until_it_waits(SimpleNamespace(pid=process.pid)) == waits
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
