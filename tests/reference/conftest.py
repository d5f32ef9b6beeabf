"""Strategies and start methods for the tests of the reference."""

import gc

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp


@pytest.fixture(autouse=True)
def only_own_garbage():
    """Collect only what a test makes, and all of it: pytest itself has much."""
    gc.freeze()
    yield
    gc.collect()  # what is left would be frozen when the next test begins
    gc.unfreeze()


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request):
    before = sharedtensor.get_sharing_strategy()
    sharedtensor.set_sharing_strategy(request.param)
    yield request.param
    sharedtensor.set_sharing_strategy(before)


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def ctx(request):
    return mp.get_context(request.param)


@pytest.fixture
def fork():
    return mp.get_context("fork")
