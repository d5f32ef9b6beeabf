"""The harness: runs an implementation in processes of its own and watches them.

A test talks to *actors* (owner, peer, bystander) by remote calls; a *keeper* per stage
starts the owner, counts what all its descendants hold, and ends them whatever happens.
"""

from sharedtensor_conformance.harness.checks import (
    attempt,
    check,
    eventually,
    refusal,
)
from sharedtensor_conformance.harness.marking import clause

__all__ = ["attempt", "check", "clause", "eventually", "refusal"]
