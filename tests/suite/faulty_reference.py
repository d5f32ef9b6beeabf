"""The reference with a fault that only an implementation which shares can have.

It is not among the `faulty_implementations`, whose processes need not import NumPy.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from faulty_implementations import USED_BY_THE_SUITE
from sharedtensor_conformance.adapters import reference


class RemovesItsSegments(reference.ReferenceOperations):
    """It unlinks what it shares before it is sent: the names that have its own pid."""

    def encode(self, tensor):
        if self.values(tensor) != USED_BY_THE_SUITE:
            tensor.share_memory_()
            for name in os.listdir("/dev/shm"):
                if re.fullmatch(rf"sharedtensor-{os.getpid()}-[0-9a-f]{{32}}", name):
                    # The manager removes those of earlier cases at the same time.
                    Path("/dev/shm", name).unlink(missing_ok=True)
        return tensor


removes_its_segments = replace(
    reference.conformance_adapter,
    name="removes_its_segments",
    operations=f"{__name__}:RemovesItsSegments",
    start_methods=("fork",),
    channels=("pipe",),
)
