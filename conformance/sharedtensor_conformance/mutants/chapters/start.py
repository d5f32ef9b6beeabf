"""Mutants of start methods: of what a child has when it starts."""

import mmap
import multiprocessing
import os
from multiprocessing.context import get_spawning_popen

from sharedtensor_conformance.mutants.held import held_alone
from sharedtensor_conformance.mutants.registry import mutant

SHARED_PAGES = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS


@mutant("flattens_arguments", "START-1", replaces="protocol.export_window")
def flattens_arguments(export_window):
    """A tensor among the arguments of a process loses its shape."""

    def export(tensor):
        dtype, offset, shape, strides = export_window(tensor)
        if get_spawning_popen() is not None and tensor.is_contiguous():
            shape, strides = (tensor.numel(),), (1,)
        return dtype, offset, shape, strides

    return export


@mutant("copies_arguments", "START-2", replaces="protocol.export_tensor")
def copies_arguments(export_tensor):
    """A tensor among the arguments of a spawned process is a copy."""
    from sharedtensor_conformance.adapters.copy import export_copy

    def export(tensor):
        spawning = get_spawning_popen() is not None
        return export_copy(tensor) if spawning else export_tensor(tensor)

    return export


def _copied(value):
    import sharedtensor

    if isinstance(value, sharedtensor.Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return value


@mutant("copies_named_arguments", "START-2", replaces="protocol.pack_for_child")
def copies_named_arguments(pack_for_child):
    """A tensor among the named arguments of a spawned process is a copy."""

    def pack(process):
        process._kwargs = _copied(process._kwargs)
        return pack_for_child(process)

    return pack


@mutant("copies_attributes", "START-2", replaces="protocol.pack_for_child")
def copies_attributes(pack_for_child):
    """A tensor that a program gives a process as an attribute is a copy."""

    def pack(process):
        for name, value in vars(process).items():
            if not name.startswith("_"):
                setattr(process, name, _copied(value))
        return pack_for_child(process)

    return pack


@mutant(
    "copies_what_an_initializer_gets",
    "START-2",
    replaces="multiprocessing.pool.Pool.__init__",
)
def copies_what_an_initializer_gets(initialize):
    """A tensor for the initializer of a pool's workers is a copy."""

    def initialize_with_copies(
        self, processes=None, initializer=None, initargs=(), *others, **named
    ):
        given = (processes, initializer, _copied(initargs))
        initialize(self, *given, *others, **named)

    return initialize_with_copies


@mutant(
    "fork_makes_private", "START-3", "TRAIN-4", replaces="protocol.remember_segment"
)
def fork_makes_private(remember_segment):
    """What was shared before a fork is a private copy in the child."""
    from sharedtensor import memory

    registered = []

    def leave():
        for storage in held_alone():
            fd = storage.segment.fd
            if fd < 0:
                fd = os.open(f"/dev/shm/{storage.segment.token}", os.O_RDWR)
            memory.map_segment(storage.memory, fd, mmap.MAP_PRIVATE)

    def remember(segment):
        if not registered:
            registered.append(leave)
            os.register_at_fork(after_in_child=leave)
        return remember_segment(segment)

    return remember


@mutant(
    "shares_from_the_start",
    "START-4",
    "SHARE-5",
    "SHARE-11",
    replaces="tensors.Tensor.__init__",
)
def shares_from_the_start(initialize):
    """Every new tensor is in shared memory at once."""

    def initialize_and_share(self, *arguments, **options):
        initialize(self, *arguments, **options)
        self.storage.share()

    return initialize_and_share


@mutant("large_memory_is_never_private", "START-4", replaces="memory.PRIVATE")
def large_memory_is_never_private(private):
    """The pages of a storage of 4 MiB or more are those of a forked child as well."""
    from sharedtensor import memory

    initialize = memory.Memory.__init__

    def initialize_by_size(self, nbytes):
        memory.PRIVATE = private if nbytes < 1 << 22 else SHARED_PAGES
        initialize(self, nbytes)

    memory.Memory.__init__ = initialize_by_size
    return private


@mutant(
    "any_method_is_spawn",
    "START-5",
    replaces="multiprocessing.context.Channels.get_context",
)
def any_method_is_spawn(get_context):
    """The context of an unknown start method is that of `spawn`."""
    from sharedtensor.multiprocessing import context

    def get_any_context(self, method=None):
        known = (None, *context.CONTEXTS)
        return get_context(self, method if method in known else "spawn")

    return get_any_context


@mutant("child_forgets_the_strategy", "START-6", replaces="protocol.enter_child")
def child_forgets_the_strategy(enter_child):
    """A spawned child does not take over its parent's strategy."""
    from sharedtensor.state import DEFAULT_STRATEGY

    return lambda strategy, address: enter_child(DEFAULT_STRATEGY, address)


@mutant(
    "grandchild_has_the_first_strategy",
    "START-6",
    replaces="protocol.child_settings",
)
def grandchild_has_the_first_strategy(child_settings):
    """A child tells its own children the strategy with which it was started itself."""
    from sharedtensor import state

    first = state.strategy  # this process has set no other one yet

    def settings():
        strategy, address = child_settings()
        is_child = multiprocessing.parent_process() is not None
        return first if is_child else strategy, address

    return settings


@mutant("arguments_lose_their_flags", "GRAD-1", replaces="protocol.export_flags")
def arguments_lose_their_flags(export_flags):
    """Leaves among the arguments of a spawned process arrive without their flag."""

    def export(tensor):
        from sharedtensor import transport

        requires_grad, conjugated = export_flags(tensor)
        return requires_grad and not transport.is_spawning(), conjugated

    return export


@mutant(
    "children_of_children_keep_to_themselves",
    "SHARE-2",
    "START-3",
    replaces="memory.map_segment",
)
def children_of_children_keep_to_themselves(map_segment):
    """What a child's child receives is mapped so that nobody reads its writes."""

    def map_by_age(target, fd):
        is_grandchild = len(multiprocessing.current_process()._identity) >= 3
        sharing = mmap.MAP_PRIVATE if is_grandchild else mmap.MAP_SHARED
        map_segment(target, fd, sharing)

    return map_by_age
