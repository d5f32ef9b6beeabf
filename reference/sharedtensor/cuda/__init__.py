"""Tensors in device memory, shared between processes.

The chapter CUDA of the specification. Importing this package lets every channel of
`multiprocessing` carry a `CudaTensor`. A real device is used under the name
`cuda:0`; the simulated one, which is never used unasked, under `sim:0`:

    from sharedtensor import cuda

    cuda.use_simulated_device()
    x = cuda.tensor([1.0, 2.0, 3.0])   # x.device == "sim:0"
"""

from . import reducers as reducers  # which registers tensors with the pickler
from .cupy_arrays import from_cupy, to_cupy
from .devices import (
    device_count,
    ipc_collect,
    is_available,
    memory_info,
    synchronize,
    unavailable_reason,
    use_simulated_device,
)
from .errors import (
    DeviceError,
    DeviceHandleError,
    DeviceUnavailableError,
    ForkError,
    IllegalAddressError,
    MakerGoneError,
    OutOfDeviceMemoryError,
    ReceivedTwiceError,
)
from .events import Event
from .state import DeviceStorage
from .tensors import CudaTensor, carve, empty_block, tensor, virtual_block

__all__ = [
    "CudaTensor",
    "DeviceError",
    "DeviceHandleError",
    "DeviceStorage",
    "DeviceUnavailableError",
    "Event",
    "ForkError",
    "IllegalAddressError",
    "MakerGoneError",
    "OutOfDeviceMemoryError",
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
    "virtual_block",
]
