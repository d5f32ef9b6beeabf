"""Storages: the memory below tensors, and the unit of sharing.

All tensors over one storage move together when one of them is shared, and a message
carries a storage once, however many of its tensors it carries (clause VIEW-3).
"""

from multiprocessing.reduction import ForkingPickler
from typing import Any, Self

import numpy as np

from . import protocol, state
from .errors import ResizeError
from .memory import Memory
from .strategies import Segment


class Storage:
    """`nbytes` bytes of memory, private until they are shared.

    `segment` is None while the storage is private. Once it is shared, it stays in that
    segment for its whole life (clauses RESHARE-1 and STRAT-4), and `offset` says where
    in the segment it begins.
    """

    __slots__ = ("__weakref__", "memory", "nbytes", "offset", "segment")

    memory: Memory
    nbytes: int
    offset: int
    segment: Segment | None

    def __init__(self, nbytes: int):
        if nbytes < 0:
            raise ValueError(
                f"A storage of {nbytes} bytes cannot be made; use 0 or more."
            )
        self.nbytes = nbytes
        self.offset = 0
        self.segment = None
        self.memory = Memory(nbytes)

    @classmethod
    def over(cls, memory: Memory, segment: Segment, offset: int) -> Self:
        """Return a storage over memory that is mapped already, in a segment."""
        made = cls.__new__(cls)
        made.nbytes = memory.bytes.nbytes
        made.offset = offset
        made.segment = segment
        made.memory = memory
        return made

    @property
    def bytes(self) -> np.ndarray:
        """An array of the bytes, which keeps the memory alive on its own."""
        return np.ndarray((self.nbytes,), np.uint8, self.memory.bytes)

    @property
    def address(self) -> int:
        """Where the memory begins; sharing does not change it. Clause RESHARE-1."""
        return self.memory.address

    def is_shared(self) -> bool:
        """Return whether the storage is in a segment. Clauses SHARE-5, SHARE-6."""
        return self.segment is not None

    def share(self) -> "Storage":
        """Move the storage into a segment, unless it is in one; return it.

        Raises `ResourceError` or `NestedMoveError`; then the storage is as it was.
        Clauses RESHARE-1, FAIL-3, FAIL-6.
        """
        protocol.share_storage(self)
        return self

    def resize(self, nbytes: int) -> None:
        """Change the size of a private storage.

        Arrays taken before keep the old memory, alive and no longer aliased. Raises
        `ResizeError` if the storage is shared, `NestedMoveError` if the caller has
        interrupted what shares it, and changes nothing then. Clause SHARE-8.
        """
        state.change([self], self._resize, nbytes)

    def _resize(self, nbytes: int) -> None:
        if self.is_shared():
            raise ResizeError(
                f"A storage of {self.nbytes} bytes was to be resized to {nbytes}, "
                "but it is shared, and other processes have mapped it at its size. "
                "Clone the tensor and resize the clone."
            )
        new, kept = Memory(nbytes), min(self.nbytes, nbytes)
        # No call is below: no handler, and no other thread, comes in between.
        new.bytes[:kept] = self.memory.bytes[:kept]
        self.memory, self.nbytes = new, nbytes

    def clone(self) -> "Storage":
        """Return a private storage with the same bytes. Clause SHARE-11."""
        copy = Storage(self.nbytes)
        copy.memory.bytes[:] = self.memory.bytes
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> "Storage":
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _storage_from_bytes, (self.memory.bytes.tobytes(),)

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        state = "shared" if self.is_shared() else "private"
        return f"<Storage of {self.nbytes} bytes, {state}>"


# Looked up at each send, as every step of the protocol is.
ForkingPickler.register(Storage, lambda storage: protocol.export_storage(storage))


def _storage_from_bytes(content: bytes) -> Storage:
    storage = Storage(len(content))
    storage.memory.bytes[:] = content
    return storage
