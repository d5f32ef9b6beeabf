"""A recording stand-in for CuPy's runtime and the library of the driver.

It is no device and says nothing about one: it shows which calls `CupyDriver` makes, in
which order and with which arguments, and what it makes of the answers. Its memory is
host memory, so that copies copy.
"""

import ctypes

BLOCK = 2 << 20
CONTEXT = 0xC0  # a context is this number and that of its device


class RuntimeFailure(RuntimeError):
    """What CuPy calls CUDARuntimeError: an error with the number of CUDA's status."""

    def __init__(self, status, name="cudaErrorOfTheTest"):
        super().__init__(f"{name}: as the test wants it")
        self.status = status


class RecordingRuntime:
    """The functions of `cupy.cuda.runtime` that the driver uses, recorded."""

    CUDARuntimeError = RuntimeFailure
    eventDisableTiming, eventInterprocess = 2, 4
    memcpyHostToDevice, memcpyDeviceToHost = 1, 2

    def __init__(self, devices=2):
        self.devices, self.current, self.version = devices, 0, 13000
        self.stream = 0
        self.calls, self.failures = [], {}
        self.blocks, self.foreign, self.buffers = {}, {}, []
        self.last_event, self.pushed = 0x500, []

    def _called(self, *call):
        self.calls.append(call)
        if call[0] in self.failures:
            raise RuntimeFailure(self.failures[call[0]])

    def block(self, nbytes):
        """Return the address of new memory that lies at the begin of a block."""
        self.buffers.append(ctypes.create_string_buffer(nbytes))
        address = ctypes.addressof(self.buffers[-1])
        self.blocks[address] = nbytes
        return address

    # The functions of CuPy's module, by its names

    def driverGetVersion(self):
        return self.version

    def getDeviceCount(self):
        self._called("getDeviceCount")
        return self.devices

    def memGetInfo(self):
        self._called("memGetInfo")
        return 1 << 30, 1 << 31

    def malloc(self, size):
        self._called("malloc", size)
        return self.block(size)

    def free(self, ptr):
        self._called("free", ptr)
        del self.blocks[ptr]

    def ipcGetMemHandle(self, devPtr):
        self._called("ipcGetMemHandle", devPtr)
        return devPtr.to_bytes(64, "little")

    def ipcOpenMemHandle(self, handle, flags=1):
        self._called("ipcOpenMemHandle", handle)
        if handle not in self.foreign:
            self.foreign[handle] = self.block(BLOCK)
        return self.foreign[handle]

    def ipcCloseMemHandle(self, devPtr):
        self._called("ipcCloseMemHandle", devPtr)

    def memcpy(self, dst, src, size, kind):
        self._called("memcpy", dst, size, kind)
        ctypes.memmove(dst, src, size)

    def deviceSynchronize(self):
        self._called("deviceSynchronize")

    def eventCreateWithFlags(self, flags):
        self._called("eventCreateWithFlags", flags)
        self.last_event += 1
        return self.last_event

    def eventRecord(self, event, stream):
        self._called("eventRecord", event, stream)

    def eventDestroy(self, event):
        self._called("eventDestroy", event)

    def eventSynchronize(self, event):
        self._called("eventSynchronize", event)

    def streamWaitEvent(self, stream, event, flags=0):
        self._called("streamWaitEvent", stream, event)

    def ipcGetEventHandle(self, event):
        self._called("ipcGetEventHandle", event)
        return event.to_bytes(64, "big")

    def ipcOpenEventHandle(self, handle):
        self._called("ipcOpenEventHandle", handle)
        return 0x900


class RecordingLibrary:
    """The functions of `libcuda` that CuPy has no binding for."""

    def __init__(self, runtime):
        self.runtime = runtime

    def cuDeviceGet(self, device, index):
        device._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        self.runtime._called("retain", device.value)
        context._obj.value = CONTEXT + device.value
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.runtime._called("push", context.value - CONTEXT)
        self.runtime.pushed.append(self.runtime.current)
        self.runtime.current = context.value - CONTEXT
        return 0

    def cuCtxPopCurrent_v2(self, context):
        self.runtime._called("pop")
        self.runtime.current = self.runtime.pushed.pop()
        return 0

    def cuDeviceGetUuid_v2(self, found, device):
        found.raw = bytes([*range(15), device.value])
        return 0

    def cuMemGetAddressRange_v2(self, base, size, pointer):
        for start, nbytes in self.runtime.blocks.items():
            if start <= pointer.value < start + nbytes:
                base._obj.value, size._obj.value = start, nbytes
                return 0
        return 1
