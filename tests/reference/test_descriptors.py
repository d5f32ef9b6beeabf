"""Who owns a descriptor, wherever an exception of a signal handler arises."""

import os

import pytest
from interrupts import interrupted_at
from reference_peer import descriptors
from sharedtensor.descriptors import OwnedDescriptor

MOST_CALLS = 200


def each_place(work):
    """Interrupt `work` where each of its calls comes back; yield after each."""
    work()
    number = 1
    while interrupted_at(number, work):
        yield number
        number += 1
        assert number < MOST_CALLS


@pytest.mark.filterwarnings("ignore:Exception ignored in")  # one in a finalizer
@pytest.mark.parametrize(
    "open_some",
    [
        lambda: OwnedDescriptor.opened_by(os.open, "/dev/null", os.O_RDONLY),
        lambda: OwnedDescriptor.pair_opened_by(os.pipe),
    ],
    ids=["one", "pair"],
)
def test_what_is_opened_is_owned_wherever_an_exception_arises(open_some):
    before = descriptors()
    places = list(each_place(open_some))
    assert len(places) > 1
    assert descriptors() == before


def test_a_descriptor_that_is_refused_raises_what_the_call_raises():
    with pytest.raises(NotADirectoryError):
        OwnedDescriptor.opened_by(os.open, "/dev/null/none", os.O_RDONLY)
