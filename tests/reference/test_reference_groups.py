"""What is told of processes that were started together, and when they end."""

import os
import pickle
import signal
import traceback
from copy import copy
from multiprocessing import util

import pytest
from sharedtensor import errors
from sharedtensor.multiprocessing import spawning

FAILURES = [
    errors.ProcessRaisedException("its words", 1, 17),
    errors.ProcessExitedException.of(2, 18, -9),
]


def be_interrupted(index, folder):
    util.Finalize(None, (folder / "finalized").touch, exitpriority=0)
    raise KeyboardInterrupt


def exit_with_its_index(index):
    raise SystemExit(index)


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


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_interrupted_process_does_what_is_done_at_its_exit(start_method, tmp_path):
    context = spawning.start_processes(
        be_interrupted, (tmp_path,), join=False, start_method=start_method
    )
    with pytest.raises(errors.ProcessExitedException, match="SIGINT"):
        context.join()
    assert context.processes[0].exitcode == -signal.SIGINT
    assert (tmp_path / "finalized").exists()


def test_process_whose_parent_has_ended_before_it_asks_is_ended():
    pid = os.fork()
    if pid == 0:
        spawning._end_with(os.getpid())  # no parent of it
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
