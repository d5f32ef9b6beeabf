"""Fix: a child starts with its parent's strategy, and its failures are reported."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import spawn
from typing import Any

import torch_patches
from torch_patches.replacing import wrap


def apply() -> None:
    """Restores START-6, CHAN-10, LIFE-12, SPAWN-3, SPAWN-5, SPAWN-9.

    Wraps ``multiprocessing.spawn.get_preparation_data``, which says what a new
    interpreter needs before it rebuilds its process: it now says the strategy, too.
    Wraps ``ProcessContext.join`` of ``torch.multiprocessing``, which removes the files
    for exceptions when it has come to its end, also by an exception, which later calls
    raise again. Wraps ``_wrap`` there, which catches ``KeyboardInterrupt``: a process
    that SIGINT interrupts is ended by it now. Wraps ``start_processes``: those that
    another thread than the main one starts do not ask for a signal at its end.

    A new interpreter imports PyTorch at once, also where it would never have.
    """
    wrap(spawn, "get_preparation_data", _preparation)
    spawning = import_module("torch.multiprocessing.spawn")
    wrap(spawning.ProcessContext, "join", _join)
    wrap(spawning, "_wrap", _run)
    for module in (spawning, import_module("torch.multiprocessing")):
        wrap(module, "start_processes", _start)


class Preparation:
    """What a new interpreter does with this: it has the fixes and the strategy."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Name what the interpreter calls."""
        multiprocessing = import_module("torch.multiprocessing")
        strategy = multiprocessing.get_sharing_strategy()
        return prepare, (tuple(torch_patches.applied), strategy)


def prepare(names: tuple[str, ...], strategy: str) -> None:
    """Apply the fixes and set the strategy in this process."""
    torch_patches.install(names)
    import_module("torch.multiprocessing").set_sharing_strategy(strategy)


def _preparation(before: Any, name: str) -> dict[str, Any]:
    return {**before(name), "torch": Preparation()}


@dataclass(frozen=True)
class Detached:
    """A function that is called in a process which a thread has started."""

    function: Any

    def __call__(self, *given: Any) -> None:
        """Call it."""
        self.function(*given)


def _start(before: Any, fn: Any, *arguments: Any, **options: Any) -> Any:
    if threading.current_thread() is not threading.main_thread():
        fn = Detached(fn)
    return before(fn, *arguments, **options)


def _run(before: Any, function: Any, *arguments: Any) -> None:
    if isinstance(function, Detached):
        spawning = import_module("torch.multiprocessing.spawn")
        wrap(spawning, "_prctl_pr_set_pdeathsig", lambda before, number: None)

    def interruptible(*given: Any) -> None:
        try:
            function(*given)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    before(interruptible, *arguments)


def _join(before: Any, context: Any, *args: Any, **options: Any) -> Any:
    failed = vars(context).get("failed")
    if failed is not None:
        raise copy(failed)
    ended = True
    try:
        ended = before(context, *args, **options)
    except import_module("torch.multiprocessing.spawn").ProcessException as error:
        context.failed = copy(error)  # without the traceback
        raise
    finally:
        if ended:
            for path in context.error_files:
                with suppress(FileNotFoundError):
                    os.unlink(path)
    return ended
