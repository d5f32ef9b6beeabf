"""Used in place of Python's `multiprocessing`: tensors that are sent are shared."""
from __future__ import annotations

import multiprocessing as _python

from .contexts import default_context as _context
from .spawning import ProcessContext, ProcessExitedException, ProcessRaisedException, spawn, start_processes
from .strategy import get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy

for _name in _python.__all__:
    globals()[_name] = getattr(_context, _name, None) or getattr(_python, _name)
reducer = _python.reducer
__all__ = [*_python.__all__, "get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy",
           "spawn", "start_processes", "ProcessContext", "ProcessExitedException", "ProcessRaisedException"]
