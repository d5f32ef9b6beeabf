"""How a device tensor crosses: as a message of the protocol, on any channel.

The reducers are registered with the standard library's pickler for channels, so
`Queue`, `Pipe`, `Pool` and process arguments of every context carry device
tensors. No descriptor has to travel, and the sharing strategy of CPU tensors
plays no part; a CPU tensor in the same message takes its own way. Clause CUDA-33.

Virtual memory does travel by descriptors. It is an object of the pickle, so Python's
memo sends it once for all tensors of a message that lie in it. Clause CUDA-40.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from . import protocol, virtual
from .devices import device_state, local_name
from .state import DeviceStorage, Message, VirtualMessage
from .tensors import CudaTensor

PLACE = ("storage", "byte_offset", "shape", "byte_strides", "dtype", "device")
"""The attributes that say where the data are, and what."""

View = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]


def reduce_tensor(tensor: CudaTensor) -> tuple[Any, ...]:
    """Send a tensor: count, event, handles, offset. Clauses CUDA-2, CUDA-6, CUDA-7."""
    view: View = (tensor.shape, tensor.byte_strides, tensor.dtype)
    attributes = attributes_of(tensor)
    identity = device_state(tensor.device).driver.identity
    if tensor.storage is None:
        return rebuild_tensor, (identity, None, 0, view), attributes
    offset = protocol.offset_in_allocation(tensor.storage, tensor.data_ptr())
    if tensor.storage.allocation.pieces:
        place = tensor.storage, offset, *view
        return rebuild_in_storage, place, attributes
    message = protocol.send(tensor.storage)
    return rebuild_tensor, (identity, message, offset, view), attributes


def attributes_of(tensor: CudaTensor) -> dict[str, Any] | None:
    """Return what a tensor has besides its data: the flag, the grad, what was added.

    Clause CUDA-31.
    """
    found = {name: one for name, one in vars(tensor).items() if name not in PLACE}
    return None if found == {"requires_grad": False, "_grad": None} else found


def rebuild_tensor(
    identity: str, message: Message | None, offset: int, view: View
) -> CudaTensor:
    """Receive a tensor on its own device, at its own offset and dtype.

    Clauses CUDA-2, CUDA-8, CUDA-22, CUDA-30. Raises DeviceUnavailableError if this
    process does not see the device, and what `protocol.receive` raises.
    """
    shape, byte_strides, dtype = view
    try:
        device = local_name(identity)
        state = device_state(device, handle=message.memory if message else None)
        if message:
            state.driver.refuse_fork()  # `receive` would, too late for the count
    except Exception:  # whatever keeps this process from receiving is raised on
        if message:
            protocol.refuse(message)
        raise
    storage = protocol.receive(state, message) if message else None
    return CudaTensor(storage, offset, shape, byte_strides, dtype, device)


def rebuild_in_storage(storage: DeviceStorage, offset: int, *view: *View) -> CudaTensor:
    """Receive a tensor in virtual memory. Clause CUDA-41."""
    return CudaTensor(storage, offset, *view, storage.state.driver.name)


def reduce_storage(storage: DeviceStorage) -> tuple[Any, ...]:
    """Send virtual memory; raises TypeError for other storages."""
    if not storage.allocation.pieces:
        storage.__reduce_ex__(None)
    return rebuild_storage, (storage.state.driver.identity, virtual.send(storage))


def rebuild_storage(identity: str, message: VirtualMessage) -> DeviceStorage:
    """Receive virtual memory; raises what `virtual.receive` raises, and as above."""
    return virtual.receive(device_state(local_name(identity)), message)


# Looked up at each send, as every step of the protocol is.
ForkingPickler.register(CudaTensor, lambda tensor: reduce_tensor(tensor))
ForkingPickler.register(DeviceStorage, lambda storage: reduce_storage(storage))
