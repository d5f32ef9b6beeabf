"""A control: the reference, changed so that every sent tensor is a copy.

It claims everything that the reference claims. Three steps of the reference's protocol
are replaced: a message has the bytes of a tensor instead of a handle, also for device
tensors, and the move to shared memory leaves the memory private. Flags, grads, windows
and types arrive correctly. So every clause that observes sharing has to fail, and every
clause that observes only values has to hold.
"""

from __future__ import annotations

import mmap
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from sharedtensor_conformance.adapter import Tensor
from sharedtensor_conformance.adapters import reference
from sharedtensor_conformance.adapters.numpy_copy import span
from sharedtensor_conformance.adapters.reference import ReferenceOperations

conformance_adapter = replace(
    reference.conformance_adapter,
    name="copy",
    operations="sharedtensor_conformance.adapters.copy:CopyOperations",
)


class CopyOperations(ReferenceOperations):
    """The operations on tensors of the reference that are copied."""

    def __init__(self) -> None:
        super().__init__()
        protocol, memory = _module("protocol"), _module("memory")
        protocol.export_tensor = export_copy
        # What is moved says that it is shared, and is not.
        memory.SHARED = mmap.MAP_PRIVATE
        memory.map_segment = partial(memory.map_segment, sharing=mmap.MAP_PRIVATE)
        ForkingPickler.register(self.cuda.CudaTensor, export_device_copy)


def _module(name: str) -> Any:
    return import_module(f"sharedtensor.{name}")


def export_copy(tensor: Tensor) -> tuple[Any, ...]:
    """Reduce a tensor to its bytes, its window on them, its flags and its grad."""
    protocol = _module("protocol")
    protocol.refuse_non_leaf(tensor)
    dtype, offset, shape, strides = protocol.export_window(tensor)
    size = tensor.dtype.itemsize
    lowest, nbytes = span(shape, tuple(stride * size for stride in strides), size)
    start = offset * size + lowest
    data = bytes(tensor.storage.bytes[start : start + nbytes])
    window = (dtype, -lowest // size, shape, strides)
    arguments = (type(tensor), data, window, protocol.export_flags(tensor))
    state = protocol.export_state(tensor)
    if state is None:
        return rebuild_copy, arguments
    return rebuild_copy, arguments, state, None, None, attach_state


def rebuild_copy(kind: Any, data: bytes, window: Any, flags: Any) -> Tensor:
    """Return a tensor over private memory with these bytes."""
    storage = import_module("sharedtensor").Storage(len(data))
    storage.bytes[: len(data)] = np.frombuffer(data, np.uint8)
    return _module("protocol").rebuild_tensor(kind, storage, window, flags)


def attach_state(tensor: Tensor, state: Any) -> None:
    """Give a rebuilt tensor its grad and its attributes."""
    _module("protocol").attach_state(tensor, state)


def export_device_copy(tensor: Tensor) -> tuple[Any, ...]:
    """Reduce a device tensor to its values and what names its device everywhere."""
    state = _module("cuda.devices").device_state(tensor.device)
    return rebuild_device_copy, (tensor.cpu(), state.driver.identity)


def rebuild_device_copy(values: Any, identity: str) -> Tensor:
    """Return a device tensor with these values in an allocation of its own."""
    device = _module("cuda.devices").local_name(identity)
    return import_module("sharedtensor.cuda").tensor(values, device=device)
