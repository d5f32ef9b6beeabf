"""A drop-in for `multiprocessing` that shares tensors: change the import, nothing else.

It has every public name of the standard library's module (clause API-1), bound to a
context whose pipes and queues carry tensors, three functions for the strategies (clause
API-2), and those that start several processes at once (chapter SPAWN). Submodules of
`multiprocessing` are not among them: a program imports those from there.
"""

import multiprocessing as _standard

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
