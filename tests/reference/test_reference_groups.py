"""What is told of processes that were started together, and when they end."""

import os
import pickle
import signal
import threading
import traceback
from contextlib import suppress
from copy import copy
from multiprocessing import util

import pytest
from sharedtensor import errors
from sharedtensor.multiprocessing import spawning
from test_interrupts import in_a_child

FAILURES = [
    errors.ProcessRaisedException("its words", 1, 17),
    errors.ProcessExitedException.of(2, 18, -9),
]


def be_interrupted(index, folder):
    util.Finalize(None, (folder / "finalized").touch, exitpriority=0)
    raise KeyboardInterrupt


def be_interrupted_where_that_is_blocked(index):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    raise KeyboardInterrupt


def exit_with_its_index(index):
    raise SystemExit(index)


def exit_with(index, code):
    raise SystemExit(code)


def return_(index):
    pass


def fail(index):
    raise ValueError("its words")


def be_killed(index):
    os.kill(os.getpid(), signal.SIGKILL)


def exit_without_a_word(index):
    os._exit(7)


def test_failure_is_made_as_pytorch_makes_it():
    error = errors.ProcessExitedException(
        "its words", error_index=2, error_pid=18, exit_code=-9, signal_name="SIGKILL"
    )
    assert (error.msg, str(error)) == ("its words", "its words")
    assert (error.exit_code, error.signal_name) == (-9, "SIGKILL")
    assert errors.ProcessExitedException("its words", 1, 17, 3).signal_name is None
    assert errors.ProcessRaisedException("its words", 1, 17).msg == "its words"


def test_failure_is_told_in_the_words_that_programs_search_for():
    told = [str(errors.ProcessExitedException.of(0, 18, code)) for code in (123, -6)]
    assert "process 0 terminated with exit code 123" in told[0]
    assert "process 0 terminated with signal SIGABRT" in told[1]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(
    "carried", [copy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "sent"]
)
def test_failure_can_be_copied_and_sent(failure, carried):
    found = carried(failure)
    assert type(found) is type(failure)
    assert (str(found), vars(found)) == (str(failure), vars(failure))


def test_failure_that_is_raised_again_has_a_traceback_of_its_own():
    context = spawning.start_processes(
        exit_with_its_index, nprocs=2, join=False, start_method="fork"
    )
    told = []
    for _ in range(3):
        with pytest.raises(errors.ProcessExitedException) as caught:
            context.join()
        told.append(caught.value)
    assert len({id(one) for one in told}) == 3
    depths = [len(traceback.extract_tb(one.__traceback__)) for one in told]
    assert depths[1] == depths[2] <= depths[0]
    assert context._failed.__traceback__ is None  # it would keep what frames hold


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_interrupted_process_does_what_is_done_at_its_exit(start_method, tmp_path):
    context = spawning.start_processes(
        be_interrupted, (tmp_path,), join=False, start_method=start_method
    )
    with pytest.raises(errors.ProcessExitedException, match="SIGINT"):
        context.join()
    assert context.processes[0].exitcode == -signal.SIGINT
    assert (tmp_path / "finalized").exists()


def test_process_is_ended_by_an_interrupt_that_its_function_has_blocked():
    with pytest.raises(errors.ProcessExitedException, match="SIGINT"):
        spawning.start_processes(
            be_interrupted_where_that_is_blocked, start_method="forkserver"
        )


def be_interrupted_without_effect(index):
    """The first process of a container, for one, gets no signal that would end it."""
    os.kill = lambda *ignored: None
    raise KeyboardInterrupt


def test_process_that_its_interrupt_does_not_end_is_told_with_the_status_of_a_shell():
    with pytest.raises(errors.ProcessExitedException) as caught:
        spawning.start_processes(be_interrupted_without_effect, start_method="fork")
    assert caught.value.exit_code == 130


def reap_all(number, frame):
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def start_without_statuses(start_method, on_child):
    """Start processes in a program that leaves no status of them to be waited for."""
    signal.signal(signal.SIGCHLD, on_child)

    def start(function, *arguments):
        return spawning.start_processes(function, arguments, start_method=start_method)

    assert start(return_) is None
    assert start(exit_with, None) is None
    with pytest.raises(errors.ProcessRaisedException, match="its words"):
        start(fail)
    for code, status in ((7, 7), (-1, 255), ("text", 1)):
        with pytest.raises(errors.ProcessExitedException) as caught:
            start(exit_with, code)
        assert caught.value.exit_code == status
    with pytest.raises(errors.ProcessExitedException, match="SIGINT") as caught:
        start(be_interrupted_where_that_is_blocked)
    assert caught.value.exit_code == -signal.SIGINT


@pytest.mark.parametrize(
    ("start_method", "on_child"),
    [("fork", reap_all), ("spawn", signal.SIG_IGN)],
    ids=["fork-reaped", "spawn-ignored"],
)
def test_process_says_how_it_ended_where_its_status_is_lost(
    fork, start_method, on_child
):
    in_a_child(fork, start_without_statuses, start_method, on_child)


def start_what_says_nothing():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for function in (be_killed, exit_without_a_word):
        with pytest.raises(errors.ProcessExitedException, match="SIGCHLD") as caught:
            spawning.start_processes(function, start_method="fork")
        assert caught.value.exit_code is None
        assert caught.value.signal_name is None


def test_end_that_nobody_knows_is_told_as_such(fork):
    in_a_child(fork, start_what_says_nothing)


@pytest.mark.parametrize("function", [return_, fail])
@pytest.mark.parametrize("nprocs", [1, 3])
def test_each_of_two_threads_that_join_is_told_the_result(
    function, nprocs, monkeypatch
):
    """Both see that the same processes have ended before one of them does more."""
    context = spawning.start_processes(
        function, nprocs=nprocs, join=False, start_method="fork"
    )
    wait, both, told = spawning.connection.wait, threading.Barrier(2), []
    have_met = threading.local()

    def wait_for_both(sentinels, timeout):
        ended = wait(sentinels, timeout)
        if not hasattr(have_met, "once"):
            have_met.once = True
            both.wait(30)
        return ended

    def join():
        try:
            told.append(context.join())
        except errors.ProcessRaisedException as error:
            told.append(error.error_index in range(nprocs))

    monkeypatch.setattr(spawning.connection, "wait", wait_for_both)
    threads = [threading.Thread(target=join) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert told == [True, True]


def test_process_whose_parent_has_ended_before_it_asks_is_ended():
    pid = os.fork()
    if pid == 0:
        spawning._end_with(os.getpid())  # no parent of it
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
