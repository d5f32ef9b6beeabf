"""The setting of the strategy, and processes whose settings differ."""

import multiprocessing
import subprocess
import sys

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from reference_peer import Peer, descriptors, own_names


def test_default_is_file_descriptor_in_a_fresh_process():
    code = "import sharedtensor as s; print(s.get_sharing_strategy())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "file_descriptor"


SHARES = """
import sys
import sharedtensor
sharedtensor.set_sharing_strategy(sys.argv[1])
tensor = sharedtensor.zeros(2).share_memory_()
"""


def test_process_that_shares_ends_without_a_warning(strategy):
    """In Python's development mode, which warns of what nobody has closed."""
    command = [sys.executable, "-X", "dev", "-c", SHARES, strategy]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_unknown_strategy_is_refused_and_changes_nothing(strategy):
    for wrong in ("anonymous", None, []):
        with pytest.raises(sharedtensor.StrategyError, match="'file_descriptor'"):
            mp.set_sharing_strategy(wrong)
        assert mp.get_sharing_strategy() == strategy


def test_child_starts_with_the_strategy_of_its_parent(ctx, strategy):
    peer = Peer(ctx)
    assert peer.ask("strategy") == strategy
    peer.close()


def test_processes_with_different_strategies_share(ctx, strategy):
    (other,) = mp.get_all_sharing_strategies() - {strategy}
    peer = Peer(ctx)
    peer.ask("set_strategy", other)
    tensor = sharedtensor.zeros(2)
    peer.ask("keep", "t", tensor)
    back = peer.ask("kept", "t")
    assert back.data_ptr() == tensor.data_ptr()
    made = peer.ask("make", [1.0, 2.0])
    assert made.storage.segment.strategy.name == other
    peer.ask("keep", "m", made)
    peer.ask("write", "m", 0, 9)
    assert made.tolist() == [9.0, 2.0]
    peer.close()


def test_every_public_name_of_multiprocessing_is_there():
    for name in multiprocessing.__all__:
        assert hasattr(mp, name), name
        assert name in mp.__all__


def test_contexts_are_ours_and_unknown_ones_are_refused():
    for method in mp.get_all_start_methods():
        ctx = mp.get_context(method)
        assert ctx.get_start_method() == method
        assert ctx.get_context() is ctx
        assert ctx.get_context(method) is ctx
        assert issubclass(ctx.Process, multiprocessing.process.BaseProcess)
    with pytest.raises(ValueError, match="cannot find context"):
        mp.get_context("thread")


def test_start_method_is_that_of_the_program():
    assert mp.get_start_method() == multiprocessing.get_start_method()
    mp.set_start_method("spawn", force=True)
    try:
        assert multiprocessing.get_start_method() == "spawn"
        assert mp.get_context().get_start_method() == "spawn"
        with pytest.raises(RuntimeError, match="already been set"):
            mp.set_start_method("fork")
    finally:
        mp.set_start_method(None, force=True)


def little(count):
    return [sharedtensor.tensor([float(number)]) for number in range(count)]


def test_message_with_many_small_tensors_costs_one_descriptor_or_name(strategy, fork):
    peer = Peer(fork)
    peer.ask("keep", "warm", sharedtensor.zeros(1).share_memory_())
    before, names = descriptors(), set(own_names())  # earlier tests' may still go
    tensors = little(300)
    addresses = [tensor.data_ptr() for tensor in tensors]
    peer.ask("keep", "all", tensors)
    named = strategy == "file_system"
    assert descriptors() <= before + 1
    assert len(set(own_names()) - names) == named
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert [tensor.item() for tensor in tensors] == list(range(300))


def test_storages_that_move_together_need_not_be_neighbours(strategy):
    tensors = little(9)
    several = [tensors[place] for place in (7, 0, 3, 2, 8)]
    arrays = [tensor.numpy() for tensor in several]
    ours, theirs = mp.Pipe()
    ours.send(several)
    moved = [place for place, tensor in enumerate(tensors) if tensor.is_shared()]
    assert moved == [0, 2, 3, 7, 8]
    arrived = theirs.recv()
    assert [tensor.storage for tensor in arrived] == [t.storage for t in several]
    for number, array in enumerate(arrays):
        array[0] = 100 + number
    assert [tensor.item() for tensor in several] == [100, 101, 102, 103, 104]
    assert [tensors[place].item() for place in (1, 4, 5, 6)] == [1, 4, 5, 6]


def test_storage_that_was_dropped_beside_others_comes_back(strategy, fork):
    peer = Peer(fork)
    tensors = little(4)
    peer.ask("keep", "all", tensors)
    kept = tensors[0]
    del tensors
    back = peer.ask("kept", "all")
    assert back[0].storage is kept.storage
    assert [tensor.item() for tensor in back] == [0, 1, 2, 3]
    kept[0] = 7
    back[3][0] = 9
    assert [tensor.item() for tensor in peer.ask("kept", "all")] == [7, 1, 2, 9]
