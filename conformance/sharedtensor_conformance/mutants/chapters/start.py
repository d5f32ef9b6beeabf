"""Mutants of what a child has when it starts."""

import mmap
import os
from multiprocessing.context import get_spawning_popen

from sharedtensor_conformance.mutants.registry import mutant


@mutant("flattens_arguments", "START-1")
def flattens_arguments(steps):
    """A tensor among the arguments of a process loses its shape."""
    original = steps.export_window

    def export_window(tensor):
        dtype, offset, shape, strides = original(tensor)
        if get_spawning_popen() is not None and tensor.is_contiguous():
            shape, strides = (tensor.numel(),), (1,)
        return dtype, offset, shape, strides

    steps.export_window = export_window


@mutant("copies_arguments", "START-2")
def copies_arguments(steps):
    """A tensor among the arguments of a spawned process is a copy."""
    original = steps.export_tensor

    def export_tensor(tensor):
        spawning = get_spawning_popen() is not None
        return tensor.__reduce_ex__(4) if spawning else original(tensor)

    steps.export_tensor = export_tensor


@mutant("fork_makes_private", "START-3", "TRAIN-4")
def fork_makes_private(steps):
    """What was shared before a fork is a private copy in the child."""
    from sharedtensor import memory

    def leave():
        for storage in list(steps.known.values()):
            fd = storage.segment.descriptor
            if fd is None:
                fd = os.open(f"/dev/shm/{storage.segment.token}", os.O_RDWR)
            memory.remap(storage.memory, fd, mmap.MAP_PRIVATE)

    os.register_at_fork(after_in_child=leave)


@mutant("shares_from_the_start", "START-4", "SHARE-5", "SHARE-11")
def shares_from_the_start(steps):
    """Every new tensor is in shared memory at once."""
    from sharedtensor import Tensor

    original = Tensor.__init__

    def initialize(self, *arguments, **options):
        original(self, *arguments, **options)
        steps.share_storage(self.storage)

    Tensor.__init__ = initialize


@mutant("any_method_is_spawn", "START-5")
def any_method_is_spawn(steps):
    """The context of an unknown start method is that of `spawn`."""
    from sharedtensor.multiprocessing import context

    original = context.Channels.get_context

    def get_context(self, method=None):
        known = (None, *context.CONTEXTS)
        return original(self, method if method in known else "spawn")

    context.Channels.get_context = get_context


@mutant("child_forgets_the_strategy", "START-6")
def child_forgets_the_strategy(steps):
    """A spawned child does not take over its parent's strategy."""
    original = steps.enter_child
    default = steps.strategy
    steps.enter_child = lambda strategy, manager: original(default, manager)
