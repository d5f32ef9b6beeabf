"""The reference, changed as only an implementation which shares can be.

It is not among the `faulty_implementations`, whose processes need not import NumPy.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import sys
import tempfile
from dataclasses import replace
from multiprocessing.util import Finalize
from pathlib import Path

from faulty_implementations import USED_BY_THE_SUITE
from sharedtensor.names import keeper, program
from sharedtensor.segments import NAME
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
        Tensor.__reduce__ = Tensor.__deepcopy__ = self.refuse
        Storage.__reduce_ex__ = Storage.__deepcopy__ = self.refuse

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


class SweepsAtCalls(reference.ReferenceOperations):
    """It has no manager: who shares removes the names that no process holds.

    The clauses permit that: LIFE-10, LIFE-13, LIFE-14, FS-9, FS-10.
    """

    def __init__(self):
        super().__init__()
        program.has_keeper = lambda _: True
        new_token = program.new_token

        def sweep_and_make_token():
            locks = keeper.open_locks()
            for name in os.listdir(locks):
                if NAME.fullmatch(name):
                    keeper.is_removed(name, locks)
            os.close(locks)
            return new_token()

        program.new_token = sweep_and_make_token


sweeps_at_calls = replace(
    reference.conformance_adapter,
    name="sweeps_at_calls",
    operations=f"{__name__}:SweepsAtCalls",
    claims=reference.conformance_adapter.claims - {"manager"},
)


class Rendezvous:
    """Names a socket in its sender, which goes as soon as it is received."""

    def __reduce__(self):
        path = tempfile.mktemp()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
        return os.unlink, (path,)


class Met:
    """A tensor that is received after a rendezvous."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return last_of, (Rendezvous(), self.tensor)


def last_of(_, tensor):
    return tensor


class MeetsAtSockets(reference.ReferenceOperations):
    """Its messages need temporary files, which are no business of any clause."""

    def forge(self, tensor, how, excess):
        return Met(super().forge(tensor, how, excess))


meets_at_sockets = replace(
    reference.conformance_adapter,
    name="meets_at_sockets",
    operations=f"{__name__}:MeetsAtSockets",
    start_methods=("fork",),
)


class EndsBadly(reference.ReferenceOperations):
    """The processes that an owner starts fail at their end, and say why."""

    def enter_child(self, strategy):
        super().enter_child(strategy)
        if multiprocessing.parent_process() is not None:
            Finalize(None, self.end_badly, exitpriority=-100)

    def end_badly(self):
        print("RuntimeError: the last words", file=sys.stderr, flush=True)
        os._exit(3)


ends_badly = replace(
    reference.conformance_adapter,
    name="ends_badly",
    operations=f"{__name__}:EndsBadly",
    start_methods=("spawn",),
)


class RemovesLate(reference.ReferenceOperations):
    """The name of what was dropped goes when the process makes its next tensor."""

    late = Path("/dev/shm", "none")

    def make(self, values, shape, dtype):
        self.late.unlink(missing_ok=True)
        return super().make(values, shape, dtype)

    def release(self, tensor):
        super().release(tensor)
        self.late.unlink(missing_ok=True)
        self.late = Path("/dev/shm", f"sharedtensor-{os.getpid()}-{'0' * 32}")
        self.late.touch()


removes_late = replace(
    reference.conformance_adapter,
    name="removes_late",
    operations=f"{__name__}:RemovesLate",
    start_methods=("fork",),
)
