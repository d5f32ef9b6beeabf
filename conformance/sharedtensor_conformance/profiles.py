"""Reads from the spec what each profile claims and which other profiles it needs.

The operations of a profile are in the adapter contract (`adapter.PROFILES`). Its
meaning is normative, is defined in the spec, and is covered by the hash of its clauses.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from sharedtensor_conformance.spec_source import SpecError, blocks, defined, read_page

PAGE = "conformance.md"

_HEAD = re.compile(r"(?P<name>[a-z-]+)(?: needs (?P<needs>[a-z -]+))?")


@dataclass(frozen=True)
class Profile:
    """One profile: what it claims, and the profiles that have to be claimed with it."""

    name: str
    needs: tuple[str, ...]
    claim: str


def parse_profiles(content: str) -> dict[str, Profile]:
    """Return the profiles in the body of the directive ``profiles``, by name.

    Raises:
        SpecError: a head is malformed, a claim is missing, or a needed profile does not
            exist.
    """
    found: dict[str, Profile] = {}
    for heads, claim in defined(content):
        head = _HEAD.fullmatch(heads[0])
        if head is None or len(heads) > 1 or not claim:
            raise SpecError(f"{PAGE}: the profile {heads[0]!r} needs a claim")
        needs = tuple((head["needs"] or "").split())
        found[head["name"]] = Profile(head["name"], needs, claim)
    for profile in found.values():
        for needed in profile.needs:
            if needed not in found:
                name = profile.name
                raise SpecError(f"{PAGE}: {name} needs {needed!r}, which is no profile")
    return found


@cache
def load_profiles() -> dict[str, Profile]:
    """Return the profiles of the spec, by name.

    Raises:
        SpecError: the page is malformed.
    """
    (block,) = blocks(read_page(PAGE), "profiles")
    return parse_profiles(block.content)


def problems_of_needs(claims: Collection[str]) -> list[str]:
    """Return a sentence for each profile that a claim needs and that is not claimed."""
    return [
        f"the profile {profile.name!r} is claimed and needs {needed!r}, which is not: "
        f"claim that too, or drop the claim"
        for profile in load_profiles().values()
        for needed in profile.needs
        if profile.name in claims and needed not in claims
    ]
