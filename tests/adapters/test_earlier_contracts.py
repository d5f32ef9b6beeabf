"""An adapter for an earlier contract is accepted, or told what is new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command import call
from sharedtensor_conformance.adapter import (
    ADAPTER_CHANGES,
    ADAPTER_VERSION,
    PROFILES,
    problems_of,
)
from sharedtensor_conformance.adapters import reference
from sharedtensor_conformance.adapters.loader import resolve

CHANGED = frozenset().union(*(change.profiles for change in ADAPTER_CHANGES.values()))


def problems(version, *claims):
    """Return what is wrong with an adapter for a `version` that has all operations."""
    whole = reference.conformance_adapter
    adapter = replace(
        whole, adapter_version=version, claims=frozenset({"core", *claims})
    )
    found = problems_of(adapter, resolve(adapter.operations)())
    return [problem for problem in found if "of the contract" in problem]


def test_each_version_says_which_profiles_it_concerns():
    assert list(ADAPTER_CHANGES) == list(range(2, ADAPTER_VERSION + 1))
    assert set(PROFILES) >= CHANGED
    assert all(change.profiles for change in ADAPTER_CHANGES.values())


@pytest.mark.parametrize("version", range(1, ADAPTER_VERSION))
def test_adapter_is_accepted_where_nothing_that_it_claims_has_changed(version):
    assert problems(version, *(set(PROFILES) - CHANGED)) == []


@pytest.mark.parametrize(
    ("number", "profile"),
    [(n, one) for n, new in ADAPTER_CHANGES.items() for one in sorted(new.profiles)],
)
def test_adapter_is_told_what_has_changed_in_what_it_claims(number, profile):
    problem, *later = problems(number - 1, profile)
    assert f"for version {number - 1} of the contract" in problem
    assert f"since version {number} {ADAPTER_CHANGES[number].text}" in problem
    assert f"set adapter_version={ADAPTER_VERSION}" in problem
    assert len(problems(number, profile)) == len(later)


@pytest.mark.parametrize("version", [0, ADAPTER_VERSION + 1])
def test_version_that_this_suite_does_not_speak_is_refused(version):
    (problem,) = problems(version, *PROFILES)
    assert f"this suite supports versions 1 to {ADAPTER_VERSION}" in problem


def test_earlier_adapter_passes_its_check(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    found = call("check-adapter", "earlier_adapter:version_1")
    assert found.returncode == 0, found.stderr + found.stdout
