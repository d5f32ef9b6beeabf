"""Chapter SPAWN: a group of processes that run the same function."""

import itertools
import os
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from sharedtensor_conformance.chapters.group_actions import (
    CALL_FORMS,
    DAEMONS_ADD,
    END_INTERVAL,
    EXIT_STATUSES,
    FAILING_INDICES,
    MESSAGES,
    SLOW_END_INTERVAL,
    message_of,
    start_group,
)
from sharedtensor_conformance.chapters.groups import (
    Group,
    group_from_a_thread,
    group_of,
    start_together,
)
from sharedtensor_conformance.chapters.interruptions import send_signal
from sharedtensor_conformance.chapters.module_actions import missing_in_module
from sharedtensor_conformance.chapters.process_actions import (
    ignore_signal,
    raise_on_sigint,
    wait_for_all_children,
)
from sharedtensor_conformance.harness import check, clause, eventually, refusal

SHORT_TIMEOUT = 0.2
"""The short timeout, in seconds, of joins and waits."""

FATAL_SIGNALS = [
    *(signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV),
    *(signal.SIGALRM, signal.SIGTERM, signal.SIGRTMIN, signal.SIGRTMIN + 1),
    *(signal.SIGRTMAX - 1, signal.SIGRTMAX),
]
"""Signals that end a process. Most of the real-time signals have no name in Python."""

EXPECTED_ERRORS: dict[str, tuple[str, dict[str, Any], str]] = {
    "second raises": ("ProcessRaisedException", {}, MESSAGES["short"]),
    "second raises in many scripts": (
        "ProcessRaisedException",
        {},
        MESSAGES["in many scripts"],
    ),
    "second is killed": ("ProcessExitedException", {"exit_code": -9}, ""),
    "second exits": ("ProcessExitedException", {"exit_code": 7}, ""),
    "write index": ("", {}, ""),
}
"""The expected exception for each task of a group: its kind, its fields, and a part of
its text. All are empty if the group ends without an error.
"""


def in_each_order(ends: Sequence[str]) -> list[str]:
    """Return a sequence of the five `ends` in which each follows each other one."""
    places = [0]
    for step in range(1, len(ends)):  # their number is prime: each step reaches all
        places += [(step * (turn + 1)) % len(ends) for turn in range(len(ends))]
    return [ends[place] for place in places]


FORMS_WITH_DAEMON = ("by name", "by position")
"""Those of the `CALL_FORMS` in which the tests ask for daemons."""

END_TESTS: dict[str, Any] = {"profiles": ("share",), "vary": (), "prefers": "fork"}
"""For tests of the ends of groups. Those of `spawn()` use `SPAWN_TESTS`."""

END_TESTS_OF_EACH_METHOD: dict[str, Any] = {
    "profiles": ("share",),
    "vary": ("start_method",),
}
"""The same for ends that a process learns of in another way under each start method."""


def zeros(owner: Any, length: int) -> Any:
    """Return a new shared tensor of zeros."""
    tensor = owner.make([0] * length)
    tensor.share()
    return tensor


def check_join_error(result: Any, kind: str, **fields: Any) -> None:
    """Check that a call of join raised an exception of this kind, with these fields."""
    check(isinstance(result, dict), f"the joining call raises; it returned {result!r}")
    check.equal(result["kind"], [kind], "an exception of this kind")
    for name, value in fields.items():
        check.equal(result[name], value, f"it names the {name.replace('_', ' ')}")


def is_running(pid: int) -> bool:
    """Return whether a process runs. A zombie does not run."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def none_runs(pids: Sequence[int]) -> bool:
    """Return whether none of these processes runs."""
    return not any(map(is_running, pids))


@clause("SPAWN-1", "SPAWN-2", profiles=("share",), vary=("strategy", "start_method"))
def test_each_process_is_called_once_with_its_index(owner, start_method):
    """The owner starts three processes; each adds at its own place.

    What it adds shows whether it began with the memory of the owner, as after a fork.
    """
    tensor, other = zeros(owner, 4), zeros(owner, 3)
    result = start_together(owner, "write memory", 3, [tensor, other], start_method)
    check.equal(result, None, "the call returns None when all have ended")
    first = 1100 if start_method == "fork" else 100
    written = [first, first + 1, first + 2]
    check.equal(tensor.values(), [*written, 0], "each has written at its index")
    check.equal(other.values(), written, "once, to each of the tensors")


@clause("SPAWN-1", "SPAWN-2", profiles=("share",), vary=(), start_methods=("spawn",))
def test_spawn_is_called_with_index_and_arguments(owner):
    """The owner calls spawn(), which starts two processes by that start method."""
    tensor = zeros(owner, 3)
    result = start_together(owner, "write memory", 2, [tensor], "spawn()")
    check.equal(result, None, "the call returns None when all have ended")
    check.equal(tensor.values(), [100, 101, 0], "each has written at its index")


def check_call_forms(owner: Any, how: str, forms: Sequence[str] = ()) -> None:
    """Start groups with the arguments passed in each form; check what each has written.

    The call joins every second group; the others are joined later.

    Args:
        owner: the process that starts the groups.
        how: the start method, or ``"spawn()"``.
        forms: some of the `CALL_FORMS`; empty for all of them.
    """
    options = itertools.product(forms or CALL_FORMS, (True, False))
    for form, joins in options:
        count = 1 if form == "with defaults" else 2
        daemon = joins and form in FORMS_WITH_DAEMON
        tensor, said = zeros(owner, 2), f"arguments {form}, join={joins}"
        arguments = ("write memory", count, [tensor], how, joins, form, daemon)
        started = owner.run(start_group, *arguments)
        if joins:
            check.equal(started, None, f"the call returns None ({said})")
        else:
            outcome = join_until_done(Group(started), count)
            check.equal(outcome, True, f"all have ended ({said})")
        first = (1100 if how == "fork" else 100) + (DAEMONS_ADD if daemon else 0)
        due = [first, first + 1 if count == 2 else 0]
        check.equal(tensor.values(), due, f"each has written once ({said})")


@clause("SPAWN-1", "SPAWN-3", mainly="SPAWN-1", **END_TESTS)
def test_processes_are_started_however_the_arguments_are_passed(owner, start_method):
    """The owner passes them by name and by position, with a list, and with defaults."""
    check_call_forms(owner, start_method)


@clause("SPAWN-2", profiles=("share",), vary=(), starts=True)
def test_tensor_that_was_received_is_shared_with_every_process(
    owner, peer, start_method
):
    """The peer sends a tensor; the owner starts two processes with it."""
    tensor = zeros(peer, 3)
    arrived = peer.send(tensor, owner)
    start_together(owner, "write index", 2, [arrived], start_method)
    check.equal(tensor.values(), [100, 101, 0], "the peer reads what they wrote")


@clause("SPAWN-3", profiles=("share",), vary=("start_method",))
def test_context_is_joined_later(owner, start_method):
    """The owner starts two processes without joining, and joins twice."""
    tensor = zeros(owner, 2)
    group = group_of(owner, "write index", 2, [tensor], start_method)
    pids = group.pids()
    check.equal(len(set(pids)), 2, "there are two processes")
    joined = []
    for _ in pids:  # one call for each process is enough
        joined.append(group.join())
        check.equal(group.pids(), pids, "the process ids are those from before")
    check.equal(joined[-1], True, "joining says that all have ended")
    check.equal(tensor.values(), [100, 101], "what they wrote is there")
    check.equal(group.join(), True, "and says so again")


@clause("SPAWN-3", **END_TESTS)
def test_failure_is_told_by_each_later_join(owner, start_method):
    """Process 1 fails in one way or another; the owner joins, and joins again.

    Every second time a thread joins that has not started them.
    """
    check_repeated_joins(owner, start_method)


def check_repeated_joins(owner: Any, method: str) -> None:
    """Start groups in which process 1 fails; check that each join raises the same.

    `method` is the start method, or ``"spawn()"``.
    """
    for task in ("second raises", "second exits", "second is killed"):
        group = group_of(owner, task, 3, [zeros(owner, 3)], method)
        told = join_until_done(group, 3)
        check(isinstance(told, dict), f"joining raises; it returned {told!r} ({task})")
        for turn in range(4):
            again = group.join_in_a_thread() if turn % 2 else group.join()
            check.equal(again, told, f"each later call raises the same ({task})")


@clause("SPAWN-4", profiles=("share",), vary=("start_method",))
def test_exception_ends_the_others_and_is_told(owner, start_method, stage):
    """Process 1 raises while the others wait; the owner joins."""
    tensor = zeros(owner, 3)
    group = group_of(owner, "second raises", 3, [tensor], start_method)
    pids = group.pids()
    told = group.join()
    check_join_error(told, "ProcessRaisedException")
    check.equal(told["error_index"], 1, "it names the index")
    check.equal(told["error_pid"], pids[1], "and the process")
    check("the worker's own words" in told["message"], "and what was raised")
    eventually(
        lambda: not any(map(is_running, pids)), "no process runs any more", stage.grace
    )


@clause("SPAWN-4", **END_TESTS)
def test_exception_is_told_by_the_call_that_joins(owner, start_method):
    """Process 1 raises while process 0 waits; starting joins at once."""
    told = start_together(owner, "second raises", 2, [zeros(owner, 2)], start_method)
    check_join_error(told, "ProcessRaisedException")
    check.equal(told["error_index"], 1, "it names the index")


@clause("SPAWN-4", **END_TESTS)
def test_text_of_an_exception_is_told_whole(owner, start_method):
    """Process 1 raises with texts of each sort, from deep below, and so on."""
    short = MESSAGES["short"]
    raised = {f"second raises {name}": text for name, text in MESSAGES.items()}
    raised["second raises below many calls"] = short
    raised["second raises what cannot be sent"] = short
    for task, text in raised.items():
        told = start_together(owner, task, 2, [zeros(owner, 2)], start_method)
        check_join_error(told, "ProcessRaisedException", error_index=1)
        check(text in told["message"], f"its text is there ({task})")


@clause("SPAWN-5", **END_TESTS_OF_EACH_METHOD)
def test_exit_status_is_told(owner, start_method):
    """Process 1 exits with status 7 while process 0 waits."""
    told = start_together(owner, "second exits", 2, [zeros(owner, 2)], start_method)
    check_join_error(told, "ProcessExitedException")
    check.equal(told["error_index"], 1, "it names the index")
    check.equal(told["exit_code"], 7, "and the status")


@clause("SPAWN-5", **END_TESTS_OF_EACH_METHOD)
def test_signal_is_told(owner, start_method):
    """Process 1 is killed while process 0 waits."""
    told = start_together(owner, "second is killed", 2, [zeros(owner, 2)], start_method)
    check_join_error(told, "ProcessExitedException")
    check.equal(told["error_index"], 1, "it names the index")
    check.equal(told["exit_code"], -9, "and the signal")
    check.equal(told["signal_name"], "SIGKILL", "by its name too")


@clause("SPAWN-5", **END_TESTS)
def test_each_signal_is_told(owner, start_method):
    """The outside ends process 1 by one signal or another while process 0 waits."""
    for ending in FATAL_SIGNALS:
        payload = [zeros(owner, 2)]
        group = group_of(owner, "wait", 2, payload, start_method)
        pids = group.pids()
        os.kill(pids[1], ending)
        told = group.join()
        check_join_error(told, "ProcessExitedException")
        check.equal(told["error_index"], 1, "it names the index")
        check.equal(told["exit_code"], -ending, "and the signal")
        if isinstance(ending, signal.Signals):
            check.equal(told["signal_name"], ending.name, "by its name too")
        check(not any(map(is_running, pids)), "no process runs any more")


@clause("SPAWN-5", **END_TESTS)
def test_interrupt_is_told(owner, start_method, implementation):
    """SIGINT reaches process 1 from outside, or it raises what Python makes of it."""
    check_interrupt_reported(owner, start_method, implementation.deadline)


def check_interrupt_reported(owner: Any, method: str, within: float) -> None:
    """Interrupt process 1 of groups; check that joining raises within the time limit.

    Process 0 waits for ever if the implementation takes the interrupt for a normal end.

    Args:
        owner: the process that starts the groups.
        method: the start method, or ``"spawn()"``.
        within: the time limit in seconds.
    """
    owner.run(raise_on_sigint)
    for task in ("wait", "second interrupts itself"):
        group = group_of(owner, task, 2, [zeros(owner, 2)], method)
        pids = group.pids()
        check(group.is_ready(2), "both have begun")
        if task == "wait":
            os.kill(pids[1], signal.SIGINT)
        told = group.join(within)
        if left := [pid for pid in pids if is_running(pid)]:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            group.join(within)  # so that no process of the group is left
        check_join_error(told, "ProcessExitedException", error_index=1, exit_code=-2)
        check.equal(told["signal_name"], "SIGINT", f"and the signal's name ({task})")


@clause("SPAWN-4", "SPAWN-5", **END_TESTS)
def test_each_call_is_told_its_own_end(owner, start_method):
    """One process starts groups that end well or badly, in each order, one by one.

    Each pair of ends follows each other: nothing may be left of the one before.
    """
    for task in in_each_order(list(EXPECTED_ERRORS)):
        kind, fields, words = EXPECTED_ERRORS[task]
        told = start_together(owner, task, 2, [zeros(owner, 2)], start_method)
        if not kind:
            check.equal(told, None, f"the call returns None ({task})")
            continue
        check_join_error(told, kind, error_index=1, **fields)
        check(words in told["message"], f"its text is there ({task})")


def join_until_done(group: Any, count: int, in_a_thread: bool = False) -> Any:
    """Join a group of `count` processes until it reports a result; return the result.

    A join may return false before all processes have ended, although none has failed.
    So it is repeated up to `count` times.
    """
    join = group.join_in_a_thread if in_a_thread else group.join
    result: Any = False
    for _ in range(count):
        result = result or join()
    return result


FAILING_GROUPS = (
    ("first raises", 1),
    ("first raises", 2),
    ("third raises", 3),
    ("first raises", 5),
    ("last of five raises", 5),
    ("third raises, others end", 4),
    ("all raise", 4),
)
"""Tasks in which one process or all raise, and the number of processes in the group."""


@clause("SPAWN-4", "SPAWN-7", **END_TESTS)
def test_exception_of_any_process_of_any_number_is_told(owner, start_method):
    """One of a group raises, whichever it is, or all do; the owner joins.

    Every second time a thread joins that has not started them.
    """
    for turn, (task, count) in enumerate(FAILING_GROUPS):
        group = group_of(owner, task, count, [zeros(owner, 5)], start_method)
        pids = group.pids()
        told = join_until_done(group, count, in_a_thread=turn % 2 == 1)
        check_join_error(told, "ProcessRaisedException")
        index = told["error_index"]
        check(index in range(count), f"the index is that of a process ({task})")
        if task != "all raise":
            check.equal(
                index,
                FAILING_INDICES[task][0],
                f"it names the one that raised ({task})",
            )
        check.equal(told["error_pid"], pids[index], f"and its process ({task})")
        check(message_of(index) in told["message"], f"and what it raised ({task})")
        check(not any(map(is_running, pids)), f"no process runs any more ({task})")


LATE_ENDS = {
    "raises": ("ProcessRaisedException", {}),
    "exits": ("ProcessExitedException", {"exit_code": 7}),
    "is killed": ("ProcessExitedException", {"exit_code": -9}),
}
"""For each way to fail: the exception that the join raises, and its fields."""


def check_late_failures(owner: Any, method: str) -> None:
    """Let the others of a group end well before the first, second or third fails.

    They are joined in between, once or several times, or not at all.

    Args:
        owner: the process that starts the groups.
        method: the start method, or ``"spawn()"``.
    """
    late = itertools.product(enumerate(("first", "second", "third")), LATE_ENDS)
    for turn, ((index, place), end) in enumerate(late):
        tensor, task = zeros(owner, 3), f"{place} {end} on request"
        group = group_of(owner, task, 3, [tensor], method)
        pids = group.pids()
        others = [pid for pid in pids if pid != pids[index]]
        have_ended = partial(none_runs, others)
        eventually(have_ended, f"the others have ended ({task})", owner.deadline)
        for _ in range(turn % 3):
            check.equal(group.join(0), False, f"joining says that one runs ({task})")
        group.let_one_fail()
        kind, fields = LATE_ENDS[end]
        error = join_until_done(group, 3, in_a_thread=turn % 2 == 1)
        check_join_error(
            error, kind, error_index=index, error_pid=pids[index], **fields
        )
        due = [0 if n == index else 100 + n for n in range(3)]
        check.equal(tensor.values(), due, f"the others have written ({task})")


@clause("SPAWN-3", "SPAWN-4", "SPAWN-5", mainly="SPAWN-5", **END_TESTS)
def test_join_raises_a_failure_after_the_others_have_ended_well(owner, start_method):
    """Two of three end well and are joined; then the third fails, in one of three ways.

    Each of the three is the one that fails in its turn.
    """
    check_late_failures(owner, start_method)


STATUS_BY_TASK: dict[str, int] = {
    **{f"second exits with {status}": status for status in EXIT_STATUSES},
    "second exits with a text": 1,
    "second ends at once": EXIT_STATUSES[-1],
}
"""The exit statuses of process 1, by task."""


@clause("SPAWN-3", "SPAWN-5", **END_TESTS)
def test_each_status_is_told(owner, start_method):
    """Process 1 exits with one status or another, or with that of a good end."""
    for task, status in STATUS_BY_TASK.items():
        told = start_together(owner, task, 2, [zeros(owner, 2)], start_method)
        check_join_error(
            told, "ProcessExitedException", error_index=1, exit_code=status
        )
    tensor = zeros(owner, 2)
    told = start_together(owner, "second exits with None", 2, [tensor], start_method)
    check.equal(told, None, "sys.exit(None) is a good end")
    check.equal(tensor.values(), [100, 0], "and the other one has written")


@clause("SPAWN-5", "SPAWN-7", **END_TESTS)
def test_two_processes_that_are_killed_end_the_others(owner, start_method):
    """Processes 0 and 2 of four are killed; the owner joins."""
    task = "first and third are killed"
    group = group_of(owner, task, 4, [zeros(owner, 4)], start_method)
    pids = group.pids()
    told = join_until_done(group, 4)
    check_join_error(told, "ProcessExitedException", exit_code=-9)
    check(told["error_index"] in (0, 2), "it names the index of one of them")
    check.equal(told["error_pid"], pids[told["error_index"]], "and its process")
    check(not any(map(is_running, pids)), "no process runs any more")


@clause("SPAWN-1", "SPAWN-3", **END_TESTS)
def test_groups_of_any_number_are_joined(owner, start_method):
    """Groups of one, of five and of twelve processes, one after another."""
    tensor = zeros(owner, 13)
    expected = [0] * 13
    for count in (1, 5, 12, 1):
        told = start_together(owner, "write index", count, [tensor], start_method)
        check.equal(told, None, "the call returns None when all have ended")
        for index in range(count):
            expected[index] += 100 + index
        check.equal(tensor.values(), expected, "each has written once, at its index")
    group = group_of(owner, "write index", 2, [tensor], start_method)
    told = join_until_done(group, 2, in_a_thread=True)
    check.equal(told, True, "a thread that has not started them can join them")


NON_NUMERIC = ("bool",)


def numeric_dtypes(dtypes):
    """Return the dtypes of numbers, in which tests can add."""
    return [name for name in dtypes if name not in NON_NUMERIC]


@clause("SPAWN-2", **END_TESTS)
def test_tensors_of_each_dtype_are_shared_with_every_process(
    owner, start_method, implementation
):
    """Two processes write to tensors of each dtype, and of a view, at their places."""
    dtypes = numeric_dtypes(implementation.dtypes)
    tensors = [owner.make([0, 1, 2], dtype=name) for name in dtypes]
    for tensor in tensors:
        tensor.share()
    told = start_together(owner, "write index", 2, tensors, start_method)
    check.equal(told, None, "all have ended well")
    for name, tensor in zip(dtypes, tensors, strict=True):
        check.equal(tensor.values(), [100, 102, 2], f"{name} has what both wrote")


@clause("SPAWN-6", **END_TESTS)
def test_join_is_bounded_though_processes_end(owner, start_method):
    """Six processes end one by one; the owner joins for longer than one pause."""
    group = group_of(owner, "end in turn", 6, [zeros(owner, 6)], start_method)
    pids = group.pids()
    check(group.is_ready(6), "all have begun")
    check.equal(group.join(0), False, "joining for no time says that some run")
    joined = group.join(2 * END_INTERVAL)
    check.equal(joined, False, "joining says that some run")
    check(is_running(pids[-1]), "and the last one does")
    for pid in filter(is_running, pids):
        os.kill(pid, signal.SIGKILL)
    group.join()


@clause("SPAWN-6", **END_TESTS)
def test_time_of_a_join_does_not_begin_anew_when_a_process_ends(owner, start_method):
    """One of two processes ends when the time is almost over; the other goes on."""
    group = group_of(owner, "end slowly in turn", 2, [zeros(owner, 2)], start_method)
    pids = group.pids()
    check(group.is_ready(2), "both have begun")
    check.equal(
        group.join(SLOW_END_INTERVAL + SHORT_TIMEOUT),
        False,
        "joining says that one runs",
    )
    check(not is_running(pids[0]), "the first one has ended")
    check(is_running(pids[1]), "and the second one has not")
    os.kill(pids[1], signal.SIGKILL)
    group.join()


@clause("SPAWN-6", **END_TESTS)
def test_join_is_bounded(owner, start_method):
    """Two processes wait; the owner joins for a short while, or none; they wait on."""
    payload = [zeros(owner, 2)]
    group = group_of(owner, "wait", 2, payload, start_method)
    pids = group.pids()
    for timeout in (SHORT_TIMEOUT, 0, 0.0, SHORT_TIMEOUT / 1000):
        check.equal(group.join(timeout), False, f"join({timeout}) says they run")
        check(all(map(is_running, pids)), "and they do")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    told = group.join()
    check.equal(told["exit_code"], -9, "and later, when they were killed, how they end")


@clause("SPAWN-7", **END_TESTS_OF_EACH_METHOD)
def test_process_that_ignores_sigterm_is_ended_too(owner, start_method):
    """Process 1 of four raises when the others wait, all of which ignore SIGTERM."""
    task = "second of four raises, others refuse to end"
    group = group_of(owner, task, 4, [zeros(owner, 4)], start_method)
    pids = group.pids()
    told = group.join(grace=SHORT_TIMEOUT)
    check_join_error(told, "ProcessRaisedException", error_index=1)
    left = [index for index, pid in enumerate(pids) if is_running(pid)]
    check.equal(left, [], "no process runs any more")


KILL_TESTS: dict[str, Any] = {
    "profiles": ("share",),
    "vary": ("start_method",),
    "start_methods": ("fork", "spawn"),
    "isolated": True,
}


@clause("SPAWN-7", **KILL_TESTS)
def test_no_process_runs_when_the_call_that_joins_them_was_interrupted(
    stage, start_method
):
    """A signal handler raises in the call that has started processes and joins them."""
    with stage.fresh() as fresh:
        joining, started = join_in_the_call(stage, fresh, start_method)
        with refusal("the call raises what the handler raised") as refused:
            send_signal(fresh.owner, "keyboard interrupt")
            joining.answer()
        raised = refused.error.type
        check.equal(raised, "KeyboardInterrupt", "that is what it raises")
        running = lambda: [pid for pid in started if is_running(pid)]  # noqa: E731
        check.equal(running(), [], "no process runs any more")


@clause("SPAWN-10", **END_TESTS, isolated=True)
@pytest.mark.parametrize("statuses", ["ignored", "taken"])
def test_ends_are_told_where_the_program_has_the_statuses(
    stage, start_method, statuses
):
    """The owner ignores SIGCHLD, or has a handler that waits for all children."""
    with stage.fresh() as fresh:
        owner = fresh.owner
        if statuses == "ignored":
            owner.run(ignore_signal, signal.SIGCHLD)
        else:
            owner.run(wait_for_all_children)
        for task, (kind, fields, text) in EXPECTED_ERRORS.items():
            told = start_together(owner, task, 2, [zeros(owner, 2)], start_method)
            if not kind:
                check.equal(told, None, f"the call returns ({task})")
                continue
            check_join_error(told, kind, error_index=1)
            check(text in told["message"], f"it has the text ({task})")
            if code := fields.get("exit_code"):
                known = told["exit_code"] in (code, None)
                check(known, f"it names the status or none: {told['exit_code']}")


@clause("SPAWN-8", **KILL_TESTS)
def test_processes_are_ended_when_the_one_that_started_them_is_killed(
    stage, start_method
):
    """The owner starts processes that wait, and is killed."""
    check_end_with_starter(stage, start_method)


def check_end_with_starter(stage: Any, method: str) -> None:
    """Kill an owner that has started waiting processes; check that these end, too.

    `method` is the start method, or ``"spawn()"``.
    """
    with stage.fresh() as fresh:
        fresh.owner.run(raise_on_sigint)
        group = group_of(fresh.owner, "wait", 3, [zeros(fresh.owner, 3)], method)
        pids = group.pids()
        check(group.is_ready(3), "all have begun")
        fresh.owner.kill()
        sentence = "no process runs any more"
        eventually(lambda: not any(map(is_running, pids)), sentence, stage.grace)


@clause("SPAWN-8", **KILL_TESTS)
def test_processes_are_ended_when_the_one_that_joins_them_is_killed(
    stage, start_method
):
    """The owner is killed in the call that has started processes and joins them."""
    check_end_with_joiner(stage, start_method)


def check_end_with_joiner(stage: Any, method: str) -> None:
    """Kill an owner that starts and joins processes in one call; check that these end.

    `method` is the start method, or ``"spawn()"``.
    """
    with stage.fresh() as fresh:
        _, started = join_in_the_call(stage, fresh, method)
        fresh.owner.kill()
        sentence = "no process runs any more"
        eventually(lambda: not any(map(is_running, started)), sentence, stage.grace)


def join_in_the_call(stage: Any, fresh: Any, method: str) -> tuple[Any, dict[int, str]]:
    """Let the owner of `fresh` start processes that wait, and join them in one call.

    The call does not return, so the ledger shows which processes were started, and a
    tensor that the peer reads shows when all of them run.

    Returns:
        The call, and the command of each process by its id.
    """
    owner = fresh.owner
    owner.run(raise_on_sigint)
    tensor = zeros(owner, 3)
    arrived = owner.send(tensor, fresh.peer)
    before = fresh.ledger.processes()
    joining = owner.start(start_group, "wait", 3, [tensor], method, True)
    eventually(
        lambda: arrived.values() == [100, 101, 102],
        "all have begun",
        stage.timeouts.start,
        found=arrived.values,
    )
    check(not joining.has_answered(), "the call joins them")
    started = {
        pid: command
        for pid, command in fresh.ledger.processes().items()
        if pid not in before and TRACKER_COMMAND not in command
    }
    check(len(started) >= 3, f"three processes run: {started}")
    return joining, started


TRACKER_COMMAND = "resource_tracker"
"""A part of the command line of Python's resource tracker, which is not counted."""


@clause("SPAWN-9", profiles=("share",), vary=("start_method",))
def test_processes_outlive_the_thread_that_started_them(owner, start_method):
    """A thread of the owner starts two processes and ends before they do."""
    check_outlive_thread(owner, start_method)


def check_outlive_thread(owner: Any, method: str) -> None:
    """Start two processes in a thread that ends first; check that they end normally.

    `method` is the start method, or ``"spawn()"``.
    """
    owner.run(raise_on_sigint)
    task, payload = "end in turn and say so", [zeros(owner, 2)]
    group = group_from_a_thread(owner, task, 2, payload, method)
    check.equal(
        join_until_done(group, 2), True, "joining says that all have ended well"
    )
    check(group.is_ready(2, SHORT_TIMEOUT), "each of them has done all of its task")


@clause("SPAWN-1", vary=())
def test_drop_in_module_has_the_functions_and_their_exceptions(owner):
    """The owner looks up what programs that start groups of processes name."""
    functions = ["spawn", "start_processes"]
    exceptions = ["ProcessRaisedException", "ProcessExitedException"]
    missing = owner.run(missing_in_module, [*functions, *exceptions])
    check.equal(missing, [], "the drop-in module has all of them")


# The public function `spawn()`, which may have an implementation of its own

SPAWN_TESTS: dict[str, Any] = {
    "profiles": ("share",),
    "vary": (),
    "start_methods": ("spawn",),
}
"""For tests of `spawn()`, which has one start method."""


@clause("SPAWN-3", **SPAWN_TESTS)
def test_context_that_spawn_returns_is_joined_later(owner):
    """The owner calls spawn() without joining, and joins what it returns."""
    tensor = zeros(owner, 2)
    group = group_of(owner, "write index", 2, [tensor], "spawn()")
    pids = group.pids()
    check.equal(len(set(pids)), 2, "there are two processes")
    joined = [group.join() for _ in pids]  # one call for each process is enough
    check.equal(joined[-1], True, "joining says that all have ended")
    check.equal(tensor.values(), [100, 101], "what they wrote is there")


@clause("SPAWN-4", **SPAWN_TESTS)
def test_exception_is_told_by_spawn(owner):
    """Process 1 raises while process 0 waits; spawn() joins at once."""
    told = start_together(owner, "second raises", 2, [zeros(owner, 2)], "spawn()")
    check_join_error(told, "ProcessRaisedException", error_index=1)
    check("the worker's own words" in told["message"], "and what was raised")


@clause("SPAWN-4", "SPAWN-7", **SPAWN_TESTS)
def test_exception_is_told_by_the_context_that_spawn_returns(owner):
    """Process 1 raises while process 0 waits and ignores SIGTERM; the owner joins."""
    task = "second raises, others refuse to end"
    group = group_of(owner, task, 2, [zeros(owner, 2)], "spawn()")
    pids = group.pids()
    check_join_error(
        group.join(), "ProcessRaisedException", error_index=1, error_pid=pids[1]
    )
    check(not any(map(is_running, pids)), "no process runs any more")


@clause("SPAWN-5", **SPAWN_TESTS)
def test_exit_status_and_signal_are_told_by_spawn(owner):
    """Process 1 exits with status 7, and is killed, while process 0 waits."""
    for task, code in (("second exits", 7), ("second is killed", -9)):
        told = start_together(owner, task, 2, [zeros(owner, 2)], "spawn()")
        check_join_error(told, "ProcessExitedException", error_index=1, exit_code=code)


@clause("SPAWN-3", **SPAWN_TESTS)
def test_failure_is_told_by_each_later_join_of_what_spawn_returns(owner):
    """Process 1 fails in one way or another; the owner joins, and joins again."""
    check_repeated_joins(owner, "spawn()")


@clause("SPAWN-1", "SPAWN-3", mainly="SPAWN-1", **SPAWN_TESTS)
def test_spawn_starts_processes_however_its_arguments_are_passed(owner):
    """The owner passes them by name and by position, with a list, and with defaults.

    `start_processes` has the same start method where none is named.
    """
    check_call_forms(owner, "spawn()")
    check_call_forms(owner, "spawn", ["with defaults"])


@clause("SPAWN-5", **SPAWN_TESTS)
def test_interrupt_is_told_by_what_spawn_returns(owner, implementation):
    """SIGINT reaches process 1 from outside, or it raises what Python makes of it."""
    check_interrupt_reported(owner, "spawn()", implementation.deadline)


@clause("SPAWN-8", **SPAWN_TESTS, isolated=True)
def test_processes_are_ended_when_the_one_that_called_spawn_is_killed(stage):
    """The owner calls spawn() without joining, and is killed."""
    check_end_with_starter(stage, "spawn()")


@clause("SPAWN-8", **SPAWN_TESTS, isolated=True)
def test_processes_are_ended_when_the_one_that_is_in_spawn_is_killed(stage):
    """The owner is killed in spawn(), which joins the processes."""
    check_end_with_joiner(stage, "spawn()")


@clause("SPAWN-9", **SPAWN_TESTS)
def test_processes_outlive_the_thread_that_called_spawn(owner):
    """A thread of the owner calls spawn() and ends before the two processes do."""
    check_outlive_thread(owner, "spawn()")
