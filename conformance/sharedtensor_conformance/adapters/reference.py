"""The adapter for the reference, `sharedtensor`, which claims every profile.

Its tensors move to shared memory when they are pickled, so `encode` and `decode` do
nothing. Device tensors have their own class, on the simulated device or, with CuPy, on
a real one.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import pickle
import sys
import weakref
from collections.abc import Callable, MutableMapping
from functools import cache, cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np

from sharedtensor_conformance.adapter import (
    NUMPY_DTYPES,
    PROFILES,
    Implementation,
    Index,
    Number,
    Tensor,
)
from sharedtensor_conformance.adapters.forging import Reduced, other_file
from sharedtensor_conformance.adapters.torch_like import TorchLike

conformance_adapter = Implementation(
    name="reference",
    operations="sharedtensor_conformance.adapters.reference:ReferenceOperations",
    claims=frozenset(PROFILES),
    version="distribution:shared-tensor-spec",
    strategies=("file_descriptor", "file_system"),
    dtypes=NUMPY_DTYPES,
    kinds=(
        *("parameter", "subclass", "slotted", "stateful"),
        *("empty_parameter", "empty_subclass"),
    ),
    negative_strides=True,
    devices=("cpu", "simulated", "emulated", "cuda"),
    segment_pattern=r"sharedtensor-{pid}-[0-9a-f]{32}",
    manager_pattern=r"\bsharedtensor-manager\b",
    grace=5.0,
    preload=True,
)

TRACE_POINTS = {
    "share": ("protocol.move_together",),
    "register": ("segments.create_named",),
    "export": ("protocol.export_handle",),
    "announce": ("protocol.announce_names",),
    "send": ("multiprocessing.packets.write",),
    "receive": ("multiprocessing.packets.read",),
    "acknowledge": ("segments.open_named",),
    "map": ("memory.move", "memory.map_segment"),
    "release": ("strategies.release_segment",),
    "last-release": ("strategies.release_segment",),
}
"""The functions of the reference that perform each step of the fault table."""

NOT_REAL = "the CUDA runtime here is the emulated one: judge it by --device=emulated"
NOT_EMULATED = "there is no emulated CUDA runtime here; evidence/emulated_cuda/ has one"
MARK = "sharedtensor_emulated_cuda"
"""A function that only the library of the emulated runtime has."""

ALIGNMENT = 16
"""The alignment in bytes of the parts of one allocation."""


class ReferenceOperations(TorchLike):
    """The operations on tensors of the reference."""

    def __init__(self) -> None:
        self.library = import_module("sharedtensor")
        self.multiprocessing = import_module("sharedtensor.multiprocessing")
        self._kind = "cuda"  # of devices
        self._is_virtual = False

    @cached_property
    def cuda(self) -> Any:
        """The module for devices, imported at its first use, as few cases need it."""
        return import_module("sharedtensor.cuda")

    def enter_child(self, strategy: str) -> None:
        """Set the strategy."""
        self.multiprocessing.set_sharing_strategy(strategy)

    def make(self, values: list[Number], shape: Index, dtype: str) -> Tensor:
        """Return a new tensor in host memory."""
        return self.library.tensor(np.array(values, dtype).reshape(shape))

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is a tensor, in host memory or on a device."""
        if isinstance(value, self.library.Tensor):
            return True
        imported = "sharedtensor.cuda" in sys.modules  # else there is no such tensor
        return imported and isinstance(value, self.cuda.CudaTensor)

    def dtype(self, tensor: Tensor) -> str:
        """Return the dtype."""
        return str(tensor.dtype)

    def values(self, tensor: Tensor) -> list[Number]:
        """Return all values, flat."""
        values: list[Number] = np.asarray(tensor).ravel().tolist()
        return values

    def read(self, tensor: Tensor, index: Index) -> Number:
        """Return the value of one element."""
        value: Number = tensor[index].item()
        return value

    def write(self, tensor: Tensor, index: Index, value: Number) -> None:
        """Write one element."""
        tensor[index] = value

    def make_kind(self, kind: str) -> Tensor:
        """Return a parameter, or a tensor of a subclass that has a label."""
        values = [] if kind.startswith("empty") else [1.0, 2.0, 3.0]
        if kind.endswith("parameter"):
            return import_module("sharedtensor.nn").Parameter(values)
        kinds = import_module("sharedtensor_conformance.adapters.reference_kinds")
        return kinds.labelled(kind.removeprefix("empty_"), values, "weights")

    def describe(self, tensor: Tensor) -> list[Any]:
        """Return class, shape, dtype, values, the flag and the label."""
        kind = type(tensor).__qualname__
        window = [list(tensor.shape), str(tensor.dtype), self.values(tensor)]
        label = getattr(tensor, "label", "")
        return [kind, *window, bool(tensor.requires_grad), label]

    def change(self, tensor: Tensor, value: int) -> bool:
        """Write the first element, where there is one."""
        if not tensor.numel():
            return False
        tensor.detach()[0] = value
        return True

    def reinterpret(self, tensor: Tensor, dtype: str) -> Tensor:
        """Return ``view_dtype()``."""
        return tensor.view_dtype(dtype)

    def array(self, tensor: Tensor) -> Any:
        """Return ``numpy()``."""
        return tensor.numpy()

    def make_module(self, parameters: dict[str, list[float]]) -> Any:
        """Return a bare module with these parameters."""
        module = self.library.Module()
        for name, values in parameters.items():
            data = self.library.tensor(values, dtype="float32")
            setattr(module, name, self.library.Parameter(data))
        return module

    def add_parameter(self, module: Any, name: str, tensor: Tensor) -> None:
        """Assign a parameter to the module."""
        setattr(module, name, self.library.Parameter(tensor))

    def add_buffer(
        self, module: Any, name: str, values: list[float], persistent: bool
    ) -> None:
        """Call ``register_buffer()``."""
        data = self.library.tensor(values, dtype="float32")
        module.register_buffer(name, data, persistent)

    def buffers(self, module: Any) -> dict[str, Tensor]:
        """Return the ``named_buffers()``."""
        return dict(module.named_buffers())

    def tie(self, module: Any, name: str, other: str) -> None:
        """Register the parameter `name` as `other` too."""
        setattr(module, other, getattr(module, name))

    def parameters(self, module: Any) -> dict[str, Tensor]:
        """Return the parameters under all of their names."""
        named = {name: getattr(module, name) for name in module.state_dict()}
        return {name: one for name, one in named.items() if self.is_parameter(one)}

    def is_parameter(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a `Parameter`."""
        return isinstance(tensor, self.library.Parameter)

    def device_unavailable(self, device: str) -> str:
        """Return why a device cannot be used; the simulated one always can.

        The emulated runtime is used like CUDA, and never counts as CUDA.
        """
        if device == "simulated":
            return ""
        if (device == "emulated") != is_emulated():
            return NOT_REAL if device == "cuda" else NOT_EMULATED
        return self.cuda.unavailable_reason() or ""

    def use_device(self, device: str) -> None:
        """Make a device the default; without this call, the real one is the default.

        Each device of its kind is used once, so that children have the same devices.
        """
        if device == "simulated":
            self._kind = "sim"
            self.cuda.use_simulated_device()
        for index in range(self.device_count()):
            self.cuda.memory_info(f"{self._kind}:{index}")

    def make_on_device(self, values: list[Number], dtype: str) -> Tensor:
        """Return a tensor in an allocation of its own."""
        return self._make(values, dtype, None)

    def _make(self, values: list[Number], dtype: str, device: str | None) -> Tensor:
        if not self._is_virtual:
            return self.cuda.tensor(values, dtype, device)
        array = np.array(values, dtype)
        return self._place(array, self._block(array.nbytes, device), 0)

    def _place(self, array: np.ndarray, block: Any, offset: int) -> Tensor:
        tensor = self.cuda.carve(block, offset, array.shape, array.dtype)
        tensor.write(..., array)
        return tensor

    def _block(self, nbytes: int, device: str | None = None) -> Any:
        if self._is_virtual:
            return self.cuda.virtual_block(nbytes, device=device)
        return self.cuda.empty_block(nbytes, device)

    def use_virtual_memory(self, is_used: bool) -> None:
        """Make later blocks by ``virtual_block()`` or by ``empty_block()``."""
        self._is_virtual = is_used

    def make_across(self, values: list[Number], dtype: str) -> Tensor:
        """Return a tensor around the border of a block of two equal pieces."""
        array = np.array(values, dtype)
        block = self.cuda.virtual_block(1, 1)
        return self._place(array, block, (block.nbytes - array.nbytes) // 2)

    def make_unexportable(self, values: list[Number], dtype: str) -> Tensor:
        """Return a tensor in memory that is not exportable."""
        array = np.array(values, dtype)
        block = self.cuda.virtual_block(array.nbytes, is_exportable=False)
        return self._place(array, block, 0)

    def carve(self, parts: list[tuple[list[Number], str]]) -> list[Tensor]:
        """Return tensors that lie in one allocation, one for each part."""
        arrays = [np.array(values, dtype) for values, dtype in parts]
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]
        block = self._block(sum(sizes))
        return [
            self._place(array, block, sum(sizes[:number]))
            for number, array in enumerate(arrays)
        ]

    def write_later(self, tensor: Tensor, index: int, value: Number) -> None:
        """Write one element; the device does it later."""
        tensor.write(index, value)

    def device_values(self, tensor: Tensor) -> list[Number]:
        """Return the values on the device, after this process's own writes."""
        values: list[Number] = tensor.cpu().ravel().tolist()
        return values

    def synchronize(self) -> None:
        """Call ``synchronize()`` for each device."""
        for index in range(self.device_count()):
            self.cuda.synchronize(f"{self._kind}:{index}")

    def collect(self) -> None:
        """Call ``ipc_collect()`` for each device."""
        for index in range(self.device_count()):
            self.cuda.ipc_collect(f"{self._kind}:{index}")

    def device_memory_used(self) -> int:
        """Return the bytes in use, over all processes."""
        free, total = self.cuda.memory_info()
        return int(total - free)

    def device_memory_free(self) -> int:
        """Return the bytes that are free."""
        return int(self.cuda.memory_info()[0])

    def make_block(self, nbytes: int) -> Tensor:
        """Return uninitialised memory."""
        return self.cuda.carve(self._block(nbytes), 0, (nbytes,), "uint8")

    def device_count(self) -> int:
        """Return how many devices there are of the kind in use."""
        return int(self.cuda.device_count(self._kind))

    def make_on(self, index: int, values: list[Number], dtype: str) -> Tensor:
        """Return a tensor on the device with this index."""
        return self._make(values, dtype, f"{self._kind}:{index}")

    def device_of(self, tensor: Tensor) -> int:
        """Return the number in the device's name."""
        return int(tensor.device.partition(":")[2])

    def record_event(self) -> Any:
        """Return a recorded event."""
        event = self.cuda.Event()
        event.record()
        return event

    def wait_event(self, event: Any) -> None:
        """Call the event's ``wait()``."""
        event.wait()

    def forge(self, tensor: Tensor, how: str, excess: int) -> object:
        """Return an object that pickles like the tensor, except for one false value."""
        return Forgery(tensor, how, excess)

    def handle_version(self) -> str:
        """Return the version, which is a number."""
        return str(import_module("sharedtensor.protocol").HANDLE_VERSION)

    def forge_version(self, tensor: Tensor, version: str, fields: str) -> object:
        """Return the tensor with a handle of another version."""
        return Forgery(tensor, "version", version=version, fields=fields)

    def break_at(self, step: str, pause: Callable[[], str]) -> None:
        """Call `pause` before the next performance of a step."""
        places = [_place(target) for target in TRACE_POINTS[step]]
        originals = [getattr(*place) for place in places]

        def held(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            for place, other in zip(places, originals, strict=True):
                setattr(*place, other)
            how = pause()
            if how == "skip":
                return True
            if how == "twice":
                original(*arguments, **options)
            return original(*arguments, **options)

        for place, original in zip(places, originals, strict=True):
            setattr(*place, partial(held, original))


def is_emulated() -> bool:
    """Return whether the driver's library is that of the emulated runtime."""
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), MARK)
    except OSError:
        return False


def _place(target: str) -> tuple[Any, str]:
    """Return the module of the reference that has a function, and its name there."""
    module, _, name = target.rpartition(".")
    return import_module(f"sharedtensor.{module}"), name


class Forgery:
    """Pickles like a tensor of the reference, except for one false value.

    The false value is where the handle is: in the table of the message, which has the
    handles of small storages, or in the pickle.
    """

    def __init__(
        self,
        tensor: Tensor,
        how: str,
        excess: int = 0,
        version: str = "",
        fields: str = "same",
    ) -> None:
        self.library = import_module("sharedtensor")
        self.protocol = import_module("sharedtensor.protocol")
        self.tensor: Any = tensor  # None once only its first handle is sent
        self.how = how
        self.excess = excess
        self.version = version
        self.fields = fields
        self.first: tuple[Any, ...] | None = None

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Reduce the tensor, with a false storage or window."""
        if self.first is not None:
            return self.first
        if not isinstance(self.tensor, self.library.Tensor):  # on a device: "again"
            reducers = import_module("sharedtensor.cuda.reducers")
            first: tuple[Any, ...] = reducers.reduce_tensor(self.tensor)
            self.first = first
            self.tensor = None
            return first
        exported = self.protocol.export_tensor(self.tensor)
        rebuild, (kind, storage, window, flags) = exported
        if self.how == "window":
            dtype, offset, shape, strides = window
            window = dtype, offset + self.excess, shape, strides
        elif self.how == "again" or not self.lies_in_a_table(storage):
            storage = Reduced(*self.reduce_storage(storage))
        forged = rebuild, (kind, storage, window, flags)
        if self.how == "again":
            self.first, self.tensor = forged, None
        return forged

    def lies_in_a_table(self, storage: Any) -> bool:
        """Return whether the handle is in the table of the current message.

        If so, the table will get the false value.
        """
        transport = import_module("sharedtensor.transport")
        outbox = transport.current_outbox()
        if outbox is None or not self.protocol.has_neighbours(storage):
            return False
        forge_tables(self.protocol, transport)
        _lies.setdefault(outbox, {})[outbox.place_of(storage)] = self
        return True

    def reduce_storage(self, storage: Any) -> tuple[Any, ...]:
        """Return the reduced storage with a false handle."""
        self.protocol.share_storage(storage)
        rebuild, exported = self.protocol.export_shared(storage)
        version, handle, kind, *part = exported
        handle, part = self.lie_about(storage.segment, handle, part)
        if self.how == "version":
            version = self.version
        return rebuild, self.with_fields((version, handle, kind, *part))

    def lie_about(
        self, segment: Any, handle: tuple[Any, ...], part: list[int]
    ) -> tuple[tuple[Any, ...], list[int]]:
        """Return a handle, offset and size in its segment, something of it false."""
        name, token, nbytes, where = handle
        if self.how == "size":
            part = [part[0], nbytes - part[0] + self.excess]
            if len(segment.storages) == 1:
                nbytes += self.excess
        elif self.how == "truncated":
            return handle[:2], part
        elif self.how == "outside" and segment.fd < 0:
            path = other_file()
            weakref.finalize(self, os.unlink, path)
            token = os.path.relpath(path, "/dev/shm")
        elif self.how == "outside":
            where = self.protocol.export_handle(_decoy(segment))[3]
        return (name, token, nbytes, where), part

    def with_fields(self, fields: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the fields of this version with one more or one fewer."""
        return {"same": fields, "more": (*fields, 0), "fewer": fields[:-1]}[self.fields]

    def forge_table(
        self, place: int, storage: Any, table: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Return a table of handles in which the handle of one storage is false."""
        version, segments = table
        if self.how == "version":
            return self.with_fields((self.version, segments))
        forged = []
        for handle, parts in segments:
            there = []
            for where, kind, *part in parts:
                if where == place:
                    handle, part = self.lie_about(storage.segment, handle, part)
                there.append((where, kind, *part))
            forged.append((handle, there))
        return version, forged


_lies: MutableMapping[Any, dict[int, Forgery]] = weakref.WeakKeyDictionary()
"""The forgeries for the tables of messages, by their outboxes and places."""


@cache
def forge_tables(protocol: Any, transport: Any) -> None:
    """Insert the requested false values into the tables of this process."""
    original = protocol.export_table

    def export_table(storages: list[Any]) -> bytes:
        table: bytes = original(storages)
        for place, forgery in _lies.pop(transport.current_outbox(), {}).items():
            found = pickle.loads(table)
            forged = forgery.forge_table(place, storages[place], found)
            table = pickle.dumps(forged, pickle.HIGHEST_PROTOCOL)
        return table

    protocol.export_table = export_table


def _decoy(segment: Any) -> Any:
    """Return a segment with the descriptor of another file.

    It alternates between a file without a name and memory with the segment's name.
    """
    descriptor, inode = next(_decoys)(segment)
    resource = type(segment.resource)
    decoy = resource(segment.strategy, segment.token, segment.nbytes, inode)
    decoy.open(int, descriptor)
    return type(segment)(decoy)


def _unlinked_file(segment: Any) -> tuple[int, int]:
    path = other_file()
    descriptor = os.open(path, os.O_RDWR)
    os.unlink(path)
    return descriptor, os.fstat(descriptor).st_ino


def _same_name_segment(segment: Any) -> tuple[int, int]:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    descriptor = os.memfd_create(f"sharedtensor-{segment.token}", flags)
    os.truncate(descriptor, os.fstat(segment.fd).st_size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor, segment.resource.inode


_decoys = itertools.cycle([_unlinked_file, _same_name_segment])
