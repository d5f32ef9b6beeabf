"""An actor keeps nothing of what the implementation had when it raised."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest
from sharedtensor_conformance.harness.actor import FromImplementation
from sharedtensor_conformance.harness.actor import from_implementation as marked


@pytest.fixture
def no_collector():
    """The collector of cycles is off, as it is between two of its rounds."""
    gc.disable()
    yield
    gc.enable()


def test_nothing_is_kept_of_what_raised(no_collector):
    """Else a descriptor that a refused message had would count as leaked."""
    kept = []

    def raises():
        held = set()
        kept.append(weakref.ref(held))
        with marked():
            raise ValueError

    with suppress(FromImplementation):
        raises()
    assert kept[0]() is None


def test_exceptions_are_marked_once():
    with pytest.raises(FromImplementation) as caught, marked(), marked():
        raise ValueError
    assert isinstance(caught.value.__cause__, ValueError)


def test_block_that_raises_nothing_is_left_alone():
    with marked():
        pass
