"""The suite in one test of somebody else's."""

from __future__ import annotations

import pytest
from sharedtensor_conformance import run_conformance

IN_SHARE = ("--case=test_share.py*", "--start-method=fork", "--one-per-clause")


def test_conforming_selection_returns():
    run_conformance("numpy-copy", *IN_SHARE, "--clause=SHARE-3")


def test_broken_clause_raises_with_what_the_suite_said():
    with pytest.raises(AssertionError, match="SHARE-1"):
        run_conformance("numpy-copy", *IN_SHARE, "--clause=SHARE-1")


def test_wrong_use_raises_a_value_error():
    with pytest.raises(ValueError, match="there is no implementation 'nonsense'"):
        run_conformance("nonsense")
