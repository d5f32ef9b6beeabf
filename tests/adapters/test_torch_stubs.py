"""What is claimed of a release of torch that lacks what later ones have."""

import pytest
from sharedtensor_conformance.adapters.torch import newest
from sharedtensor_conformance.adapters.torch_stubs import LATER, declared

NAMES = (*newest.dtypes, *newest.kinds)


@pytest.fixture
def torch(tmp_path):
    """A PyTorch whose stubs declare some of what later releases have."""
    (tmp_path / "_C").mkdir()
    (tmp_path / "nn").mkdir()
    (tmp_path / "_C/__init__.pyi").write_text("uint8: dtype = ...\nuint16: dtype\n")
    (tmp_path / "nn/parameter.pyi").write_text("class UninitializedBuffer(Tensor):\n")
    return tmp_path


def test_what_later_releases_have_is_claimed_where_it_is_declared(torch):
    lacking = {"uint32", "uint64", "buffer"}
    assert set(NAMES) - set(declared(NAMES, torch)) == lacking


def test_whatever_earlier_releases_have_is_claimed_of_each(torch):
    (torch / "_C/__init__.pyi").write_text("")
    assert set(NAMES) - set(declared(NAMES, torch)) == set(LATER)


def test_everything_is_claimed_where_nothing_says_what_is_lacking(tmp_path):
    assert declared(NAMES, None) == NAMES
    assert declared(NAMES, tmp_path) == NAMES


def test_what_later_releases_have_is_among_the_names():
    assert set(LATER) <= set(NAMES)
