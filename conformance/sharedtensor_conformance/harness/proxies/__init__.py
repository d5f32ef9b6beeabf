"""What a test holds: actors, tensors, channels and pools, by remote call.

Nothing here knows what a tensor is. Plain results are returned as they are; everything
else stays in its process and comes back as a `Remote`.
"""

from __future__ import annotations

from sharedtensor_conformance.harness.proxies.actors import ActorProxy
from sharedtensor_conformance.harness.proxies.calls import HeldRequest, Remote

__all__ = ["ActorProxy", "HeldRequest", "Remote"]
