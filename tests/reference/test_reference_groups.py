"""What is told of processes that were started together, and what interrupts leave.

The failure of one of them is not forgotten, and none runs that nobody knows. Clauses
SPAWN-3, SPAWN-5, SPAWN-7.
"""

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing import resource_tracker, util

import pytest
from holdings import eventually
from interrupts import Interrupt, each_place, in_a_child
from sharedtensor import errors
from sharedtensor.multiprocessing import spawning
from sharedtensor_conformance.harness.kernel import process_tree

TIMEOUT = 30.0


def return_(index):
    pass


def fail(index):
    raise ValueError("its words")


def exit_with(index, code):
    raise SystemExit(code)


def be_killed(index):
    os.kill(os.getpid(), signal.SIGKILL)


def exit_without_a_word(index):
    os._exit(7)


SILENT = be_killed, exit_without_a_word


def be_interrupted_where_that_is_blocked(index, folder):
    util.Finalize(None, (folder / "finalized").touch, exitpriority=0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    raise KeyboardInterrupt


def be_interrupted_without_effect(index):
    """The first process of a container, for one, gets no signal that would end it."""
    os.kill = lambda *ignored: None
    raise KeyboardInterrupt


def test_failure_that_is_raised_again_has_a_traceback_of_its_own():
    context = spawning.start_processes(fail, nprocs=2, join=False, start_method="fork")
    told = []
    for _ in range(3):
        with pytest.raises(errors.ProcessRaisedException) as caught:
            context.join()
        told.append(caught.value)
    assert len({id(one) for one in told}) == 3
    depths = [len(traceback.extract_tb(one.__traceback__)) for one in told]
    assert depths[1] == depths[2] <= depths[0]
    assert context._failed.__traceback__ is None  # it would keep what frames hold


def test_interrupted_process_ends_by_that_when_it_has_done_its_last(tmp_path):
    with pytest.raises(errors.ProcessExitedException) as caught:
        spawning.start_processes(
            be_interrupted_where_that_is_blocked, (tmp_path,), start_method="forkserver"
        )
    assert caught.value.signal_name == "SIGINT"
    assert (tmp_path / "finalized").exists()


def test_process_that_its_interrupt_does_not_end_is_told_with_the_status_of_a_shell():
    with pytest.raises(errors.ProcessExitedException) as caught:
        spawning.start_processes(be_interrupted_without_effect, start_method="fork")
    assert caught.value.exit_code == 130


# Where the status of a process is lost


def reap_all(number, frame):
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@pytest.mark.parametrize("on_child", [reap_all, signal.SIG_IGN])
@in_a_child
def test_process_says_how_it_ended_where_its_status_is_lost(on_child, tmp_path):
    """Start processes in a program that leaves no status of them to be waited for."""
    signal.signal(signal.SIGCHLD, on_child)

    def start(function, *arguments):
        return spawning.start_processes(function, arguments, start_method="fork")

    assert start(return_) is None
    assert start(exit_with, None) is None
    with pytest.raises(errors.ProcessRaisedException, match="its words"):
        start(fail)
    for code, status in ((7, 7), (-1, 255), ("text", 1)):
        with pytest.raises(errors.ProcessExitedException) as caught:
            start(exit_with, code)
        assert caught.value.exit_code == status
    with pytest.raises(errors.ProcessExitedException, match="SIGINT") as caught:
        start(be_interrupted_where_that_is_blocked, tmp_path)
    assert caught.value.exit_code == -signal.SIGINT
    for function in SILENT if on_child is signal.SIG_IGN else ():
        with pytest.raises(errors.ProcessExitedException, match="SIGCHLD") as caught:
            start(function)
        assert (caught.value.exit_code, caught.value.signal_name) == (None, None)


@pytest.mark.parametrize(("function", "nprocs"), [(return_, 1), (fail, 3)])
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
            both.wait(TIMEOUT)
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
        thread.join(TIMEOUT)
    assert told == [True, True]


# Where a signal handler raises in the parent


@pytest.fixture
def interruptible():
    """SIGUSR1 raises `Interrupt` in this process."""

    def interrupt(number, frame):
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt_parent():
    os.kill(os.getppid(), signal.SIGUSR1)


def interrupt_parent_last():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    interrupt_parent()


def wait(index):
    while True:
        signal.pause()


def never(index):
    raise AssertionError("it is called")


def fail_or_interrupt_parent(index, is_ready, is_released):
    """The first one fails, the other interrupts its parent when it is to end."""

    def end(number, frame):
        interrupt_parent_last()
        is_released.wait(TIMEOUT)
        sys.exit()

    if index == 0:
        assert is_ready.wait(TIMEOUT)
        raise ValueError("its words")
    signal.signal(signal.SIGTERM, end)
    is_ready.set()
    wait(index)


def test_failure_is_told_after_a_join_that_was_interrupted(fork, interruptible):
    events = fork.Event(), fork.Event()
    context = spawning.start_processes(
        fail_or_interrupt_parent, events, nprocs=2, join=False, start_method="fork"
    )
    with pytest.raises(Interrupt):
        context.join()
    events[1].set()
    for _ in range(2):
        with pytest.raises(errors.ProcessRaisedException, match="its words"):
            context.join()
        assert not any(process.is_alive() for process in context.processes)


def interrupt_parent_twice(index, pids):
    """It interrupts its parent when it runs, and when it is to end; it goes on."""
    signal.signal(signal.SIGTERM, lambda *ignored: interrupt_parent_last())
    pids.put(os.getpid())
    interrupt_parent()
    wait(index)


def test_processes_are_killed_where_their_end_is_interrupted_again(fork, interruptible):
    pids = fork.SimpleQueue()
    with pytest.raises(Interrupt):
        spawning.start_processes(interrupt_parent_twice, (pids,), start_method="fork")
    pid = pids.get()
    has_ended = process_tree.has_ended(pid)
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    assert has_ended


@in_a_child
def test_start_that_is_interrupted_leaves_no_process():
    """Start two processes again and again, and interrupt that; none is left.

    What joins and ends them is not interrupted by itself.
    """

    def join(started):
        sys.setprofile(None)
        raise Interrupt

    def start():
        with suppress(Interrupt):
            spawning.start_processes(wait, (), 2, daemon=True, start_method="fork")

    spawning.ProcessContext.join = join
    os.register_at_fork(after_in_child=lambda: sys.setprofile(None))
    places = 0
    for place in each_place(start):
        assert process_tree.children(os.getpid()) == []
        places = place
    assert places > 100


@in_a_child
def test_spawning_that_is_interrupted_leaves_no_process():
    """Interrupt the spawning of a process before it gets its arguments."""
    resource_tracker.ensure_running()
    spawnv, spawned = util.spawnv_passfds, []

    def interrupted(*arguments):
        spawned.append(spawnv(*arguments))
        raise Interrupt

    util.spawnv_passfds = interrupted
    with pytest.raises(Interrupt) as caught:
        spawning.start_processes(wait, start_method="spawn")
    (pid,) = spawned
    eventually(lambda: process_tree.has_ended(pid))
    del caught


def test_process_that_its_parent_does_not_know_does_not_begin(fork):
    ours, theirs = fork.Pipe()
    ours.send(False)
    spawning._begin(None, never, 0, (), theirs)
    assert ours.recv() == os.getpid()
    ours, theirs = fork.Pipe()
    ours.close()  # as where its parent has ended before it begins
    spawning._begin(None, never, 0, (), theirs)


def test_process_whose_parent_has_ended_before_it_asks_is_ended():
    pid = os.fork()
    if pid == 0:
        spawning._end_with(os.getpid())  # no parent of it
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
