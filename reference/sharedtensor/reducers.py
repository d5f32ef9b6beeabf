"""The hooks into pickling: which function `ForkingPickler` calls for which class.

Every channel of the standard library pickles with `ForkingPickler`, so registering here
makes tensors shared on all of them (clause CHAN-3). Plain `pickle` is left alone: it
copies. Each class is registered where it is defined, subclasses of `Tensor` too, so a
process that has a tensor, however it came by it, can send it.
"""

from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from .steps import steps

if TYPE_CHECKING:
    from .storage import Storage
    from .tensors import Tensor


def register_tensors(tensor_class: "type[Tensor]") -> None:
    """Let tensors of a class be sent by sharing, subclasses not included."""
    reduction.ForkingPickler.register(tensor_class, reduce_tensor)


def register_storages(storage_class: "type[Storage]") -> None:
    """Let storages be sent by sharing."""
    reduction.ForkingPickler.register(storage_class, reduce_storage)


def reduce_tensor(tensor: "Tensor") -> tuple[Any, ...]:
    """What `ForkingPickler` calls for tensors of any class. Clause VIEW-1."""
    return steps.export_tensor(tensor)


def reduce_storage(storage: "Storage") -> tuple[Any, ...]:
    """What `ForkingPickler` calls for storages. Clause VIEW-3."""
    return steps.export_storage(storage)
