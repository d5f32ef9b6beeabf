"""LIFE-7, judged over all that a configuration's cases did, after the last of them."""

from sharedtensor_conformance.harness import check, clause, eventually


@clause("LIFE-7", closing=True, vary=("strategy",))
def test_nothing_is_left_of_what_the_cases_dropped(stage):
    """Each case dropped what it had made; the ledger was read after each of them."""
    for channel in stage.implementation.channels:
        tensor = stage.owner.make([1, 0, 1], None, stage.implementation.dtypes[0])
        stage.owner.send(tensor, stage.peer, channel)
    growth = stage.settle()
    check.equal(stage.leaks + growth.items, [], "nothing stayed after any case")


@clause("LIFE-7", closing=True, vary=("strategy",))
def test_nothing_is_left_when_the_processes_have_exited(stage):
    """Everything is dropped, all processes exit, and the keeper looks what is left."""
    tensor = stage.owner.make([1, 0, 1], None, stage.implementation.dtypes[0])
    stage.owner.send(tensor, stage.peer, stage.implementation.channels[0])
    stage.drop_all()
    stage.leave_all()
    eventually(
        lambda: not stage.left_behind(),
        "no segment, temporary file or process is left",
        within=stage.grace,
    )
