"""The harness: runs an implementation in processes of its own and watches them.

A test talks to *actors* (owner, peer, bystander) by remote calls; a *supervisor* for
each stage starts the owner, counts what all its descendants hold, and ends them
whatever happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.checks import (
        attempt,
        check,
        eventually,
        refusal,
    )
    from sharedtensor_conformance.harness.marking import clause

__all__ = ["attempt", "check", "clause", "eventually", "refusal"]


def __getattr__(name: str) -> Any:
    # Tests alone need these: without them a supervisor starts in half of the time, and
    # without the whole spec, which `clause` reads, an actor does.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "clause":
        from sharedtensor_conformance.harness.marking import clause

        return clause
    from sharedtensor_conformance.harness import checks

    return getattr(checks, name)
