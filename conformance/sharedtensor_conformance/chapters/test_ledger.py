"""Judges LIFE-7 and LIFE-12 over all cases of a configuration, after the last case."""

from sharedtensor_conformance.harness import check, clause
from sharedtensor_conformance.harness.case.checks import wait_until


@clause("LIFE-7", runs_last=True, vary=("strategy", "start_method"))
def test_nothing_is_left_of_what_the_cases_dropped(stage):
    """Each case dropped what it had made; the ledger was read after each of them."""
    for channel in stage.implementation.channels:
        tensor = stage.owner.make([1, 0, 1], None, stage.implementation.dtypes[0])
        stage.owner.send(tensor, stage.peer, channel)
    stage.leaks.note("", stage.settle())
    check.released(stage.leaks.failure("LIFE-7"))


@clause("LIFE-12", runs_last=True, vary=("strategy", "start_method"))
def test_no_case_added_a_thread_a_process_a_socket_or_a_temporary_file(stage):
    """The ledger was read after each case; what it shows of these is the same."""
    tensor = stage.owner.make([1, 0, 1], None, stage.implementation.dtypes[0])
    stage.owner.send(tensor, stage.peer, stage.implementation.channels[0])
    stage.leaks.note("", stage.settle())
    check.released(stage.leaks.failure("LIFE-12"))


@clause("LIFE-7", runs_last=True)
def test_nothing_is_left_when_the_processes_have_exited(stage):
    """All is dropped and all processes exit; the supervisor lists what is left."""
    tensor = stage.owner.make([1, 0, 1], None, stage.implementation.dtypes[0])
    stage.owner.send(tensor, stage.peer, stage.implementation.channels[0])
    stage.drop_all()
    stage.leave_all()
    wait_until(lambda: not stage.ledger.left_behind(), stage.grace)
    check.released(stage.ledger.failure())
