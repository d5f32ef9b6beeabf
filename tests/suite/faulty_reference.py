"""The reference, changed as only an implementation which shares can be.

It is not among the `faulty_implementations`, whose processes need not import NumPy.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from faulty_implementations import USED_BY_THE_SUITE
from sharedtensor.storage import Storage
from sharedtensor.tensors import Tensor
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


class RefusesCopies(reference.ReferenceOperations):
    """Its tensors can be sent, and neither pickled by a program nor copied.

    Conjugated views cannot be sent either. The clauses permit all of that.
    """

    def enter_child(self, strategy):
        super().enter_child(strategy)
        for kind in (Tensor, Storage):
            kind.__reduce_ex__ = kind.__deepcopy__ = self.refuse

    def encode(self, tensor):
        if getattr(tensor, "_conjugated", False):
            self.refuse()
        return tensor

    @staticmethod
    def refuse(*_):
        raise TypeError("this can only be sent")


refuses_copies = replace(
    reference.conformance_adapter,
    name="refuses_copies",
    operations=f"{__name__}:RefusesCopies",
)
