"""What a peer is told to do with the emulated runtime: CuPy's calls, one by one."""

import numpy as np
from cupy.cuda import runtime


def call(held, function, *arguments):
    """Call a function of CuPy's binding."""
    return getattr(runtime, function)(*arguments)


def fill(held, pointer, data):
    """Copy bytes to the device."""
    source = np.frombuffer(data, np.uint8)
    kind = runtime.memcpyHostToDevice
    runtime.memcpy(pointer, source.ctypes.data, len(data), kind)


def read(held, pointer, size):
    """Copy bytes from the device."""
    data = np.empty(size, np.uint8)
    runtime.memcpy(data.ctypes.data, pointer, size, runtime.memcpyDeviceToHost)
    return data.tobytes()


def status(held, function, *arguments):
    """Call a function that fails and return CUDA's number of the error."""
    try:
        getattr(runtime, function)(*arguments)
    except runtime.CUDARuntimeError as error:
        return error.status
    return 0
