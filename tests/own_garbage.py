"""Garbage collection for tests that collect often: only of what they make."""

import gc

import pytest


@pytest.fixture(autouse=True)
def only_own_garbage():
    """Collect only what a test makes, and all of it: pytest itself has much."""
    gc.freeze()
    yield
    gc.collect()  # what is left would be frozen when the next test begins
    gc.unfreeze()
