"""Mutants of the protocol for device memory, whose steps are an object of their own."""

import os

from sharedtensor_conformance.mutants import mutant


def _protocol():
    from sharedtensor.cuda import protocol

    return protocol.steps


@mutant("forked_child_reads_zeros", "CUDA-1")
def forked_child_reads_zeros(steps):
    """A device tensor that is used after a fork has zeros for values."""
    import numpy as np
    from sharedtensor.cuda import CudaTensor, ForkError

    original = CudaTensor.cpu

    def cpu(self):
        try:
            return original(self)
        except ForkError:
            return np.zeros(self.shape, self.dtype)

    CudaTensor.cpu = cpu


@mutant("forgets_device_offsets", "CUDA-2")
def forgets_device_offsets(steps):
    """Every tensor in an allocation arrives at its begin."""
    _protocol().offset_in_allocation = lambda driver, pointer: 0


@mutant("device_tensors_are_copies", "CUDA-3", "CUDA-2")
def device_tensors_are_copies(steps):
    """A device tensor arrives with its values, in an allocation of its own."""
    from multiprocessing.reduction import ForkingPickler

    from sharedtensor.cuda import CudaTensor
    from sharedtensor_conformance.adapters.copy import export_device_copy

    ForkingPickler.register(CudaTensor, export_device_copy)


@mutant("frees_what_is_in_use", "CUDA-4")
def frees_what_is_in_use(steps):
    """An allocation goes with the owner's last tensor, whoever uses it."""
    _protocol().may_free = lambda allocation: True


@mutant("never_frees", "CUDA-4")
def never_frees(steps):
    """An allocation that was sent is never freed."""
    _protocol().may_free = lambda allocation: allocation.table is None


@mutant("device_tensor_has_a_segment", "CUDA-5")
def device_tensor_has_a_segment(steps):
    """A send of a device tensor makes a file in `/dev/shm` beside it."""
    original = _protocol().count_send

    def count_send(allocation):
        name = f"sharedtensor-{os.getpid()}-{os.urandom(16).hex()}"
        with open(f"/dev/shm/{name}", "w"):
            return original(allocation)

    _protocol().count_send = count_send


@mutant("does_not_wait", "CUDA-6")
def does_not_wait(steps):
    """The receiver does not wait for the sender's pending work."""
    _protocol().wait_for_event = lambda driver, handle: None
