"""Starting several processes that run one function, and ending all when one fails.

`torch.multiprocessing` has these beside the names of the standard library. What they do
here is what chapter SPAWN says of them.
"""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from copy import copy
from multiprocessing import connection, util
from typing import Any

from ..errors import ProcessExitedException, ProcessRaisedException, pass_on
from .context import default_context

GRACE = 5.0
"""Seconds that the other processes get to end by SIGTERM before they are killed."""

_PR_SET_PDEATHSIG = 1  # prctl(2)


class ProcessContext:
    """The processes that were started together.

    Args:
        processes: in the order of their indices.
        errors: for each of them the end of a pipe on which it says why it failed.
    """

    def __init__(
        self,
        processes: Sequence[Any],
        errors: Sequence["connection.Connection[Any, Any]"],
    ):
        self.processes = list(processes)
        self._errors = list(errors)
        self._running = {process.sentinel: i for i, process in enumerate(processes)}
        self._failed: Exception | None = None  # never raised itself, but copies of it

    def pids(self) -> list[int]:
        """Return the process ids, in the order of the indices. Clause SPAWN-2."""
        return [process.pid for process in self.processes]

    def join(
        self, timeout: float | None = None, grace_period: float | None = None
    ) -> bool:
        """Wait for the processes; return whether all of them have ended.

        The first failure that is seen ends the others, and later calls raise it again.
        Clauses SPAWN-3, SPAWN-4, SPAWN-5, SPAWN-6, SPAWN-7.

        Args:
            timeout: seconds after which to return in any case; None: no limit.
            grace_period: seconds that the others get after SIGTERM before SIGKILL.

        Raises:
            ProcessRaisedException: the function raised in a process.
            ProcessExitedException: a process exited with another status than 0, or was
                ended by a signal.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self._running:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            ended = connection.wait(list(self._running), left)
            for sentinel in ended:
                self._reap(self._running.pop(sentinel), grace_period)
            if not ended:
                return False
        self._raise_failure()
        return True

    def _reap(self, index: int, grace: float | None) -> None:
        process = self.processes[index]
        process.join()
        if process.exitcode != 0:
            self.end(GRACE if grace is None else grace)
            self._failed = self._failure(index)
            self._raise_failure()
        self._errors[index].close()

    def _raise_failure(self) -> None:
        """Raise a copy, since the traceback of what is raised holds its frames."""
        if self._failed is not None:
            raise copy(self._failed)

    def end(self, grace: float = GRACE) -> None:
        """End the processes that still run, and wait for them. Clause SPAWN-4."""
        for index in self._running.values():
            self.processes[index].terminate()
        until = time.monotonic() + grace
        for index in self._running.values():
            self.processes[index].join(max(until - time.monotonic(), 0.0))
            if self.processes[index].is_alive():
                self.processes[index].kill()
                self.processes[index].join()
        self._running.clear()

    def _failure(self, index: int) -> Exception:
        process, error = self.processes[index], self._errors[index]
        raised = ""
        try:
            if error.poll():
                raised = error.recv()
        except (EOFError, OSError) as found:
            pass_on(found)  # else it was killed while it told why it failed
        for end in self._errors:
            end.close()
        if raised:
            return ProcessRaisedException(
                f"Process {index} (pid {process.pid}) raised an exception; the other "
                f"processes were ended. Its traceback:\n{raised}",
                index,
                process.pid,
            )
        return ProcessExitedException.of(index, process.pid, process.exitcode)


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Start `nprocs` processes, of which number i calls ``fn(i, *args)``.

    Tensors in `args` are those of any process argument. Clauses SPAWN-1, SPAWN-2.

    Returns:
        None when all have ended well; where `join` is false, the `ProcessContext`.

    Raises:
        ProcessRaisedException, ProcessExitedException: see `ProcessContext.join`.
    """
    context = default_context.get_context(start_method)
    processes: list[Any] = []
    errors: list[Any] = []
    try:
        for index in range(nprocs):
            reader, writer = context.Pipe(duplex=False)
            errors.append(reader)
            call = (_parent_to_end_with(context), fn, index, args, writer)
            process = context.Process(target=_begin, args=call, daemon=daemon)
            with writer:
                process.start()
            processes.append(process)
    except BaseException:
        ProcessContext(processes, errors).end()  # all of them run, or none
        raise
    started = ProcessContext(processes, errors)
    if not join:
        return started
    try:
        started.join()
    except BaseException:
        started.end()  # nobody else can, since nobody has it
        raise
    return None


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Start processes by the start method ``spawn``: see `start_processes`.

    Raises:
        ValueError: another start method was asked for.
    """
    if start_method != "spawn":
        raise ValueError(
            f"spawn() was asked for the start method {start_method!r}. Call "
            f"start_processes(..., start_method={start_method!r}) for that."
        )
    return start_processes(fn, args, nprocs, join, daemon)


def _parent_to_end_with(context: Any) -> int | None:
    """Return the process id of this process where its end can end those it starts.

    The kernel tells them of the end of the thread that started them: under
    ``forkserver`` it is not ours, and only the main thread ends with its process.
    Clauses SPAWN-8, SPAWN-9.
    """
    forked_by_us = context.get_start_method() != "forkserver"
    by_the_main_thread = threading.current_thread() is threading.main_thread()
    return os.getpid() if forked_by_us and by_the_main_thread else None


def _begin(parent: int | None, *call: Any) -> None:
    """Run in a child: see to its end, and call the function."""
    if parent is not None:
        _end_with(parent)
    _call(*call)


def _end_with(parent: int) -> None:
    """Let the kernel send this process SIGTERM when its parent ends. Clause SPAWN-8."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended before
        os.kill(os.getpid(), signal.SIGTERM)


def _call(
    function: Callable[..., Any], index: int, args: tuple[Any, ...], error: Any
) -> None:
    """Run in a child: call the function, and say why if it raises. Clause SPAWN-4."""
    try:
        function(index, *args)
    except KeyboardInterrupt:
        _end_by_interrupt()
    except Exception:
        import traceback  # here, since most children never need it

        error.send(traceback.format_exc())
        raise SystemExit(1) from None
    finally:
        error.close()


def _end_by_interrupt() -> None:
    """End this process by SIGINT, after what is done at its exit. Clause SPAWN-5."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # another one ends it at once
    util._exit_function()  # type: ignore[attr-defined]
    util._flush_std_streams()  # type: ignore[attr-defined]
    os.kill(os.getpid(), signal.SIGINT)
