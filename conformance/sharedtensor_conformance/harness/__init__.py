"""The harness: runs an implementation in separate processes and observes them.

A test calls *actors* (owner, peer, bystander) remotely. Each stage has a *supervisor*,
which starts the owner, counts the resources of all its descendants, and always ends
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.case.checks import (
        attempt,
        check,
        eventually,
        refusal,
    )
    from sharedtensor_conformance.harness.case.marking import clause

__all__ = ["attempt", "check", "clause", "eventually", "refusal"]


def __getattr__(name: str) -> Any:
    # Tests alone need these: without them a supervisor starts in half of the time, and
    # without the whole spec, which `clause` reads, an actor does.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "clause":
        from sharedtensor_conformance.harness.case.marking import clause

        return clause
    from sharedtensor_conformance.harness.case import checks

    return getattr(checks, name)
