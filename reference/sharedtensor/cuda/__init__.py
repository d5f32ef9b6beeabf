"""Tensors in device memory, shared between processes.

The chapter CUDA of the specification. Importing this package lets every channel of
`multiprocessing` carry a `CudaTensor`. A real device is used under the name
`cuda:0`; the simulated one, which is never used unasked, under `sim:0`:

    from sharedtensor import cuda

    cuda.use_simulated_device()
    x = cuda.tensor([1.0, 2.0, 3.0])   # x.device == "sim:0"
"""

from . import events, protocol, reducers
from .cupy_arrays import from_cupy, to_cupy
from .devices import (
    device_count,
    is_available,
    sharing_on,
    unavailable_reason,
    use_simulated_device,
)
from .errors import (
    DeviceError,
    DeviceHandleError,
    DeviceUnavailableError,
    ForkError,
    IllegalAddressError,
    OutOfDeviceMemoryError,
    OwnerGoneError,
    ReceivedTwiceError,
)
from .events import Event
from .protocol import DeviceStorage
from .tensor import CudaTensor, carve, empty_block, tensor

__all__ = [
    "CudaTensor",
    "DeviceError",
    "DeviceHandleError",
    "DeviceStorage",
    "DeviceUnavailableError",
    "Event",
    "ForkError",
    "IllegalAddressError",
    "OutOfDeviceMemoryError",
    "OwnerGoneError",
    "ReceivedTwiceError",
    "carve",
    "device_count",
    "empty_block",
    "from_cupy",
    "ipc_collect",
    "is_available",
    "memory_info",
    "synchronize",
    "tensor",
    "to_cupy",
    "unavailable_reason",
    "use_simulated_device",
]


def synchronize(device: str | None = None) -> None:
    """Complete all work of this process on a device. Clause CUDA-3."""
    sharing = sharing_on(device)
    protocol.steps.refuse_fork(sharing.driver)
    with sharing.gate:
        sharing.driver.synchronize()


def ipc_collect(device: str | None = None) -> None:
    """Free memory that receivers have given back. Clause CUDA-4."""
    sharing_on(device).collect()


def memory_info(device: str | None = None) -> tuple[int, int]:
    """Return free and total bytes of a device, over all its processes."""
    sharing = sharing_on(device)
    protocol.steps.refuse_fork(sharing.driver)
    with sharing.gate:
        return sharing.driver.memory_info()


reducers.register()
events.register()
