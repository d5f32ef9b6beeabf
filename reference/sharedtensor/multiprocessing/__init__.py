"""A drop-in for `multiprocessing` that shares tensors: change the import, nothing else.

It has every public name of the standard library's module (clause API-1), bound to a
context whose pipes and queues carry tensors, three functions for the strategies (clause
API-2), and those that start several processes at once (chapter SPAWN). It also has the
submodules of `multiprocessing` that programs use: where one of them is not ours, or a
name in one of ours is missing, it is the standard library's.
"""

import functools as _functools
import importlib as _importlib
import multiprocessing as _standard
import sys as _sys

from ..errors import (
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
)
from ..protocol import get_sharing_strategy, set_sharing_strategy
from ..strategies import get_all_sharing_strategies
from .context import default_context as _default_context
from .spawning import ProcessContext, spawn, start_processes

globals().update({name: getattr(_default_context, name) for name in _standard.__all__})

_SUBMODULES = (
    *("connection", "context", "dummy", "managers", "pool", "process", "queues"),
    *("reduction", "shared_memory", "sharedctypes", "synchronize", "util"),
)


def _offer_submodule(name: str) -> None:
    """Make a submodule an attribute that can also be imported. Clause API-1."""
    standard = _importlib.import_module(f"multiprocessing.{name}")
    offered = _sys.modules.setdefault(f"{__name__}.{name}", standard)
    if offered is not standard:
        offered.__getattr__ = _functools.partial(getattr, standard)  # type: ignore[method-assign]
    globals()[name] = offered


for _name in _SUBMODULES:
    _offer_submodule(_name)

__all__ = [
    *_standard.__all__,
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "set_sharing_strategy",
    "spawn",
    "start_processes",
]
