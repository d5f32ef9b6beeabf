"""The hooks into pickling: which function `ForkingPickler` calls for which class.

Every channel of the standard library pickles with `ForkingPickler`, so registering here
makes tensors shared on all of them (clause CHAN-3). Plain `pickle` is left alone: it
copies. Subclasses of `Tensor` register themselves when they are defined.
"""

from multiprocessing import reduction
from typing import Any

from .nn import Parameter
from .steps import steps
from .storage import Storage
from .tensor import Tensor, reduce_tensor


def reduce_storage(storage: Storage) -> tuple[Any, ...]:
    """What `ForkingPickler` calls for storages. Clause VIEW-3."""
    return steps.export_storage(storage)


def register() -> None:
    """Register the reducers; to do so again changes nothing."""
    for tensor_class in (Tensor, Parameter):
        reduction.ForkingPickler.register(tensor_class, reduce_tensor)
    reduction.ForkingPickler.register(Storage, reduce_storage)
