"""The harness: runs an implementation in processes of its own and watches them.

A test talks to *actors* (owner, peer, bystander) by remote calls; a *supervisor* for
each stage starts the owner, counts what all its descendants hold, and ends them
whatever happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharedtensor_conformance.harness.checks import (
    attempt,
    check,
    eventually,
    refusal,
)

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.marking import clause

__all__ = ["attempt", "check", "clause", "eventually", "refusal"]


def __getattr__(name: str) -> Any:
    # Tests alone need it, and it reads the whole spec, which takes an actor's start.
    if name != "clause":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sharedtensor_conformance.harness.marking import clause

    return clause
