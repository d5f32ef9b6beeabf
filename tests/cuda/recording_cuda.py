"""A recording stand-in for CuPy's runtime and the library of the driver.

It is no device and says nothing about one: it shows which calls `CupyDriver` makes, in
which order and with which arguments, and what it makes of the answers. Its memory is
host memory, so that copies copy. The emulated runtime shows that CuPy has these
functions.
"""

import ctypes
from functools import partial

BLOCK = 2 << 20
CONTEXT = 0xC0  # a context is this number and that of its device
WITHOUT_ANSWER = "ipcCloseMemHandle", "deviceSynchronize", "eventRecord", "eventDestroy"


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
        self.calls, self.failures, self.answers = [], {}, {}
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

    def __getattr__(self, name):
        if name not in WITHOUT_ANSWER:
            raise AttributeError(name)
        return partial(self._called, name)

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

    def free(self, pointer):
        self._called("free", pointer)
        del self.blocks[pointer]

    def ipcGetMemHandle(self, pointer):
        self._called("ipcGetMemHandle", pointer)
        return pointer.to_bytes(64, "little")

    def ipcOpenMemHandle(self, handle):
        self._called("ipcOpenMemHandle", handle)
        if handle not in self.foreign:
            self.foreign[handle] = self.block(BLOCK)
        return self.foreign[handle]

    def memcpy(self, to, source, size, kind):
        self._called("memcpy", to, size, kind)
        ctypes.memmove(to, source, size)

    def eventCreateWithFlags(self, flags):
        self._called("eventCreateWithFlags", flags)
        self.last_event += 1
        return self.last_event

    def ipcOpenEventHandle(self, handle):
        self._called("ipcOpenEventHandle", handle)
        return 0x900


class RecordingLibrary:
    """The functions of `libcuda` that CuPy has no binding for."""

    def __init__(self, runtime):
        self.runtime = runtime

    def cuDeviceGet(self, device, index):
        device._obj.value = index.value
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

    def __getattr__(self, name):
        if not name.startswith("cuMem"):
            raise AttributeError(name)
        return partial(self._manage_memory, name)

    def _manage_memory(self, name, *arguments):
        """A call that manages virtual memory: it answers with a number, if at all."""
        given = [each.value for each in arguments if not hasattr(each, "_obj")]
        self.runtime.calls.append((name, *given))
        out = getattr(arguments[0], "_obj", None)
        if out is not None:
            out.value = self.runtime.answers.get(name, 0)
        return self.runtime.failures.get(name, 0)

    def cuMemGetAddressRange_v2(self, base, size, pointer):
        for start, nbytes in self.runtime.blocks.items():
            if start <= pointer.value < start + nbytes:
                base._obj.value, size._obj.value = start, nbytes
                return 0
        return 1
