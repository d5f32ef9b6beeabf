"""The remote objects that a test uses: actors, tensors, channels and pools.

This code does not depend on what a tensor is. Plain results are returned as values; all
other objects stay in their process and are returned as a `Remote`.
"""

from __future__ import annotations

from sharedtensor_conformance.harness.proxies.actors import ActorProxy
from sharedtensor_conformance.harness.proxies.calls import HeldRequest, Remote

__all__ = ["ActorProxy", "HeldRequest", "Remote"]
