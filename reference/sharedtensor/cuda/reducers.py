"""How a device tensor crosses: as a message of the protocol, on any channel.

The reducers are registered with the standard library's pickler for channels, so
`Queue`, `Pipe`, `Pool` and process arguments of every context carry device
tensors. No descriptor has to travel, and the sharing strategy of CPU tensors
plays no part; a CPU tensor in the same message takes its own way. Clause CUDA-33.
"""

from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from . import protocol
from .devices import sharing_on
from .protocol import Message
from .tensor import CudaTensor

View = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]


def reduce_tensor(tensor: CudaTensor) -> tuple[Any, ...]:
    """Send a tensor: count, event, handles, offset. Clauses CUDA-2, CUDA-6, CUDA-7."""
    view: View = (tensor.shape, tensor.strides, tensor.dtype)
    state = protocol.steps.state_of(tensor)
    if tensor.storage is None:
        return rebuild_tensor, (tensor.device, None, 0, view), state
    sharing = tensor.storage.sharing
    protocol.steps.refuse_fork(sharing.driver)
    with sharing.gate:
        offset = protocol.steps.offset_in_allocation(sharing.driver, tensor.data_ptr())
    message = sharing.send(tensor.storage)
    return rebuild_tensor, (tensor.device, message, offset, view), state


def rebuild_tensor(
    device: str, message: Message | None, offset: int, view: View
) -> CudaTensor:
    """Receive a tensor on its own device, at its own offset and dtype.

    Clauses CUDA-2, CUDA-8, CUDA-22, CUDA-30.
    """
    shape, strides, dtype = view
    handle = message.memory if message else None
    sharing = sharing_on(device, handle=handle)
    storage = sharing.receive(message) if message else None
    return CudaTensor(storage, offset, shape, strides, dtype, device)


def register() -> None:
    """Teach the pickler of multiprocessing's channels to send device tensors."""
    ForkingPickler.register(CudaTensor, reduce_tensor)
