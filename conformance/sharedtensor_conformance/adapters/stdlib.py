"""An example adapter: NumPy arrays over `multiprocessing.shared_memory`.

The standard library has shared memory but no tensors: a message does not contain a
segment, and nothing counts the users of a segment. An adapter for such a library has to
define how a tensor becomes a message (`encode`, `decode`), and claims only what holds:

* The maker of a segment removes its name when it drops the storage. A message that is
  still in flight then cannot be opened. So LIFE-2 is broken, and the profile
  ``lifetime`` is not claimed.
* Before Python 3.13, every `SharedMemory` is registered with the resource tracker,
  including attached ones. That is harmless while all processes have the same tracker,
  so it is started before the first child (`enter_child`). A second tracker would remove
  segments of other processes when its own process ends.
* After a kill the tracker removes the names, but only when the last process has ended.
"""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from itertools import count
from multiprocessing.resource_tracker import ensure_running
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.util import Finalize
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from sharedtensor_conformance.adapter import Implementation, Index, Layout, Number

conformance_adapter = Implementation(
    name="stdlib",
    operations="sharedtensor_conformance.adapters.stdlib:StdlibOperations",
    claims=frozenset({"core", "views", "identity"}),
    version="distribution:numpy",
    dtypes=("bool", "uint8", "int32", "int64", "float32", "float64", "complex128"),
    segment_pattern=r"stdlib_{pid}_\d+",
    negative_strides=True,
    preload=True,
)


class Storage:
    """Bytes below tensors: private at first, in a segment once they have been sent."""

    numbers = count()
    held: ClassVar[WeakValueDictionary[str, Storage]] = WeakValueDictionary()
    moving = Lock()

    def __init__(self, data: Any) -> None:
        self.data: Any = data
        self.name = ""
        self.segment: SharedMemory | None = None

    def move(self) -> str:
        """Move into a segment, if not there already, and return the segment's name."""
        with self.moving:  # two threads may send one tensor at the same time
            if not self.name:
                name = f"stdlib_{os.getpid()}_{next(self.numbers)}"
                segment = SharedMemory(name, create=True, size=max(1, len(self.data)))
                private = self.data
                self._keep(segment, made_here=True)
                self.data[: len(private)] = private
        return self.name

    @classmethod
    def open(cls, name: str) -> Storage:
        """Return the storage in the segment `name`; the same one while it is held."""
        storage = cls.held.get(name)
        if storage is None:
            storage = cls(b"")
            storage._keep(SharedMemory(name), made_here=False)
        return storage

    def _keep(self, segment: SharedMemory, made_here: bool) -> None:
        self.segment, self.data, self.name = segment, segment.buf, segment.name
        self.held[self.name] = self
        # Unlike weakref.finalize, this also runs when a child of multiprocessing exits.
        Finalize(self, close, args=(segment, made_here), exitpriority=1)


os.register_at_fork(  # else a child may inherit it as another thread holds it
    before=Storage.moving.acquire,
    after_in_parent=Storage.moving.release,
    after_in_child=Storage.moving.release,
)


def close(segment: SharedMemory, made_here: bool) -> None:
    """Unmap the segment and, in the process that made it, remove its name."""
    segment.close()
    if made_here:
        segment.unlink()


@dataclass(frozen=True)
class Window:
    """Where in its storage a tensor lies, in bytes."""

    dtype: str
    shape: Index
    strides: Index
    offset: int


@dataclass(frozen=True)
class Message:
    """What travels instead of a tensor."""

    segment: str
    window: Window


@dataclass(frozen=True, eq=False)
class StdlibTensor:
    """A window on a storage."""

    storage: Storage
    window: Window

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The NumPy array; short-lived, since a segment with arrays cannot close."""
        window, data = self.window, self.storage.data
        dtype = np.dtype(window.dtype)
        return np.ndarray(window.shape, dtype, data, window.offset, window.strides)


class StdlibOperations:
    """The operations on tensors over `SharedMemory`."""

    multiprocessing = multiprocessing

    def enter_child(self, strategy: str) -> None:
        """Start the resource tracker that children will have in common."""
        ensure_running()

    def make(self, values: list[Number], shape: Index, dtype: str) -> StdlibTensor:
        """Return a new tensor in private memory."""
        array = np.array(values, dtype).reshape(shape)
        window = Window(dtype, array.shape, array.strides, 0)
        return StdlibTensor(Storage(bytearray(array.tobytes())), window)

    def is_tensor(self, value: object) -> bool:
        """Tell tensors, and the messages for them, apart from plain objects."""
        return isinstance(value, StdlibTensor | Message)

    def encode(self, tensor: StdlibTensor) -> Message:
        """Move the storage into a segment and return its name and the window."""
        return Message(tensor.storage.move(), tensor.window)

    def decode(self, message: Message) -> StdlibTensor:
        """Return the window on the segment that the message names."""
        return StdlibTensor(Storage.open(message.segment), message.window)

    def release(self, tensor: StdlibTensor) -> None:
        """Do nothing: the storage goes with the last tensor over it."""

    def shape(self, tensor: StdlibTensor) -> Index:
        """Return the shape."""
        return tensor.window.shape

    def dtype(self, tensor: StdlibTensor) -> str:
        """Return the dtype."""
        return tensor.window.dtype

    def values(self, tensor: StdlibTensor) -> list[Number]:
        """Return all values, flat."""
        values: list[Number] = tensor.array.ravel().tolist()
        return values

    def read(self, tensor: StdlibTensor, index: Index) -> Number:
        """Return the value of one element."""
        value: Number = tensor.array[index].item()
        return value

    def write(self, tensor: StdlibTensor, index: Index, value: Number) -> None:
        """Write one element."""
        tensor.array[index] = value

    def address(self, tensor: StdlibTensor) -> int:
        """Return the address of the first element."""
        return tensor.array.ctypes.data

    def view(self, tensor: StdlibTensor, layout: Layout) -> StdlibTensor:
        """Return another window on the same storage."""
        size = np.dtype(tensor.window.dtype).itemsize
        strides = tuple(stride * size for stride in layout.strides)
        offset = tensor.window.offset + layout.offset * size
        window = Window(tensor.window.dtype, layout.shape, strides, offset)
        return StdlibTensor(tensor.storage, window)

    def strides(self, tensor: StdlibTensor) -> Index:
        """Return the strides in elements."""
        size = np.dtype(tensor.window.dtype).itemsize
        return tuple(stride // size for stride in tensor.window.strides)

    def reinterpret(self, tensor: StdlibTensor, dtype: str) -> StdlibTensor:
        """Return a window with another dtype on the same bytes of a 1-D tensor."""
        array = tensor.array.view(dtype)
        window = Window(dtype, array.shape, array.strides, tensor.window.offset)
        return StdlibTensor(tensor.storage, window)
