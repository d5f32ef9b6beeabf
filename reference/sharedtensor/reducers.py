"""The hooks into pickling: which function `ForkingPickler` calls for which class.

Every channel of the standard library pickles with `ForkingPickler`, so registering here
makes tensors shared on all of them (clauses CHAN-3, CHAN-9). Plain `pickle` is left
alone: it copies. Each class is registered where it is defined, subclasses of `Tensor`
too, so a process that has a tensor, however it came by it, can send it.
"""

from __future__ import annotations

import copyreg
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, ClassVar

from . import protocol

if TYPE_CHECKING:
    from .storage import Storage
    from .tensors import Tensor


def register_tensors(tensor_class: type[Tensor]) -> None:
    """Let tensors of a class be sent by sharing, subclasses not included.

    Each subclass is registered when it is defined. Clause KIND-2.
    """
    reduction.ForkingPickler.register(tensor_class, reduce_tensor)


def register_storages(storage_class: type[Storage]) -> None:
    """Let storages be sent by sharing."""
    reduction.ForkingPickler.register(storage_class, reduce_storage)


def reduce_tensor(tensor: Tensor) -> tuple[Any, ...]:
    """Reduce a tensor of any class: `ForkingPickler` calls it. Clause VIEW-1."""
    return protocol.export_tensor(tensor)


def reduce_storage(storage: Storage) -> tuple[Any, ...]:
    """Reduce a storage: `ForkingPickler` calls it. Clause VIEW-3."""
    return protocol.export_storage(storage)


class _Reducers(dict[type, Any]):
    """The table of a pickler, which finds what is registered later as well.

    What is pickled may itself define a class of tensors, or import one. The copy that
    `ForkingPickler` makes of its tables for each object would not have the class, and
    its tensors would be copied. Clause CHAN-3.
    """

    __missing__: ClassVar[Any] = reduction.ForkingPickler._extra_reducers.__getitem__  # type: ignore[attr-defined]

    def copy(self) -> _Reducers:
        return _Reducers(copyreg.dispatch_table)


reduction.ForkingPickler._copyreg_dispatch_table = _Reducers()  # type: ignore[attr-defined]
