"""Strategies and start methods for the tests of the reference."""

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from own_garbage import only_own_garbage

__all__ = ["only_own_garbage"]  # pytest finds it here


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
