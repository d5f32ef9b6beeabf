"""Starting several processes that run one function, and ending all when one fails.

`torch.multiprocessing` has these beside the names of the standard library. What they do
here is what chapter SPAWN says of them.
"""

import ctypes
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from copy import copy
from multiprocessing import connection, util
from typing import Any

from .. import atomic
from ..errors import ProcessExitedException, ProcessRaisedException, ignoring
from .context import default_context

GRACE = 5.0
"""Seconds that the other processes get to end by SIGTERM before they are killed."""

_PR_SET_PDEATHSIG = 1  # prctl(2)


class ProcessContext:
    """The processes that were started together; several threads may join them."""

    def __init__(self) -> None:
        self.processes: list[Any] = []  # in the order of their indices
        self._pipes: list[Any] = []  # to each: whether to begin; from it: how it ended
        self._running: dict[int, int] = {}  # the indices by the sentinels
        self._failed: Exception | None = None  # never raised itself, but copies of it
        self._lock = threading.RLock()  # a signal handler may join, too

    def _start(
        self, context: Any, fn: Callable[..., Any], args: tuple[Any, ...], daemon: bool
    ) -> None:
        """Start one process more. Clauses SPAWN-1, SPAWN-7."""
        index = len(self.processes)
        ours, theirs = context.Pipe()
        call = (_parent_to_end_with(context), fn, index, args, theirs)
        process = context.Process(target=_begin, args=call, daemon=daemon)
        self.processes.append(process)
        self._pipes.append(ours)
        try:
            process.start()
            self._running[process.sentinel] = index  # `end` ends it from here on
        except BaseException as error:
            theirs.close()
            _call_off(process, ours, error)
            raise
        theirs.close()
        with ignoring(OSError):  # it may have been killed
            ours.send(True)

    def pids(self) -> list[int]:
        """Return the process ids, in the order of the indices. Clause SPAWN-2."""
        return [process.pid for process in self.processes]

    def join(
        self, timeout: float | None = None, grace_period: float | None = None
    ) -> bool:
        """Wait for the processes; return whether all of them have ended.

        The first failure that is seen ends the others, and later calls, of any thread,
        raise it again. Where an exception of a signal handler interrupts that, the next
        call goes on with it. Clauses SPAWN-3, SPAWN-4, SPAWN-5, SPAWN-6, SPAWN-7.

        Args:
            timeout: seconds after which to return if none has failed; None: no limit.
            grace_period: seconds that the others get after SIGTERM before SIGKILL.

        Raises:
            ProcessRaisedException: the function raised in a process.
            ProcessExitedException: a process exited with another status than 0, or was
                ended by a signal; or nobody can know how it ended, since this program
                ignores SIGCHLD or waits for all of its children itself.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while running := list(self._running):  # another thread may end the last one
            left = None if until is None else max(until - time.monotonic(), 0.0)
            ended = connection.wait(running, left)
            for sentinel in ended:
                self._reap(sentinel, grace_period)
            if not ended:
                return False
        if self._failed is not None:
            raise copy(self._failed)  # the traceback of what is raised holds its frames
        return True

    def _reap(self, sentinel: Any, grace: float | None) -> None:
        """Note how a process has ended, and end the others if it failed.

        The failure is noted first and the process forgotten last, so the next call does
        what an exception of a signal handler keeps this one from. Clause SPAWN-3.
        """
        atomic.under(self._lock, self._reap_one, sentinel, grace)

    def _reap_one(self, sentinel: Any, grace: float | None) -> None:
        index = self._running.get(sentinel)
        if index is None:  # another thread was here first
            return
        self.processes[index].join()
        if self._failed is None and self.processes[index].exitcode != 0:
            self._failed = self._failure(index)
        if self._failed is not None:
            self.end(GRACE if grace is None else grace)
        self._pipes[index].close()
        self._running.pop(sentinel, None)

    def end(self, grace: float = GRACE) -> None:
        """End the processes that still run, and wait for them. Clause SPAWN-4."""
        atomic.under(self._lock, self._end_all, grace)

    def _end_all(self, grace: float) -> None:
        running = [self.processes[index] for index in self._running.values()]
        for process in running:
            process.terminate()
        until = time.monotonic() + grace
        for process in running:
            process.join(max(until - time.monotonic(), 0.0))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._running.clear()

    def _failure(self, index: int) -> Exception | None:
        """Return why a process failed that is not known to have exited with 0.

        Where this program ignores SIGCHLD or waits for all of its children itself,
        nobody has the status (None): then the process is believed what it has said.
        Clause SPAWN-10.
        """
        process, told = self.processes[index], self._told(index)
        if isinstance(told, str):
            return ProcessRaisedException(
                f"process {index} terminated with the following error; its process id "
                f"was {process.pid}, and the other processes were ended:\n{told}",
                index,
                process.pid,
            )
        code = told if process.exitcode is None else process.exitcode
        if code == 0:
            return None
        return ProcessExitedException.of(index, process.pid, code)

    def _told(self, index: int) -> str | int | None:
        """Return what a process has said of its end: see `_call`."""
        pipe = self._pipes[index]
        told: str | int | None = None
        with ignoring(EOFError, OSError):  # it was killed while it said that
            if pipe.poll():
                told = pipe.recv()
        return told


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Start `nprocs` processes, of which number i calls ``fn(i, *args)``.

    Tensors in `args` are those of any process argument. Where it raises, an exception
    of a signal handler included, no process is left that calls `fn`. Clauses SPAWN-1,
    SPAWN-2, SPAWN-7.

    Returns:
        None when all have ended well; where `join` is false, the `ProcessContext`.

    Raises:
        ProcessRaisedException, ProcessExitedException: see `ProcessContext.join`.
        ValueError: there is no such start method.
    """
    context = default_context.get_context(start_method)
    started = ProcessContext()
    try:
        for _ in range(nprocs):
            started._start(context, fn, args, daemon)
        if not join:
            return started
        started.join()
    except BaseException:
        try:
            started.end()  # nobody else can, since nobody has it
        finally:
            started.end(0.0)  # at once, where that was interrupted
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


def _call_off(process: Any, pipe: Any, error: BaseException) -> None:
    """End a process whose start an exception has interrupted, if there is one.

    Clause SPAWN-7. Where nobody has its process id, it learns on its pipe that it must
    not begin, and says its id. One that gets no more of its arguments ends with an
    error; under ``forkserver`` it may wait for them for as long as this program runs.
    """
    if process.pid is not None:
        process.kill()
        process.join()
        return
    with ignoring(OSError, EOFError):  # it has not been started, or is none of ours
        pipe.send(False)
        if not pipe.poll():
            traceback.clear_frames(error.__traceback__)  # closes what it reads from
        if pipe.poll(GRACE):
            os.waitpid(pipe.recv(), 0)


def _begin(
    parent: int | None,
    function: Callable[..., Any],
    index: int,
    args: tuple[Any, ...],
    pipe: Any,
) -> None:
    """Run in a child: see to its end, and call the function. Clauses SPAWN-7, SPAWN-8.

    It is not called before the parent knows this process, and so can end it.
    """
    if parent is not None:
        _end_with(parent)
    if _may_begin(pipe):
        _call(function, index, args, pipe)


def _may_begin(pipe: Any) -> bool:
    """Wait in a child until the parent knows it; see `_call_off` for the other case."""
    with ignoring(OSError, EOFError):  # the parent has ended
        if pipe.recv():
            return True
        pipe.send(os.getpid())
    return False


def _end_with(parent: int) -> None:
    """Let the kernel send this process SIGTERM when its parent ends. Clause SPAWN-8."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended before
        os.kill(os.getpid(), signal.SIGTERM)


def _call(
    function: Callable[..., Any], index: int, args: tuple[Any, ...], pipe: Any
) -> None:
    """Run in a child: call the function, and say how it ends.

    That is the traceback if it raises, else the exit status, or minus the number of a
    signal. Clauses SPAWN-3, SPAWN-4, SPAWN-5.
    """
    try:
        function(index, *args)
        _say(pipe, 0)
    except KeyboardInterrupt:
        _say(pipe, -signal.SIGINT)
        _end_by_interrupt()
    except SystemExit as leaving:
        _say(pipe, _status_of(leaving))
        raise
    except Exception:
        pipe.send(traceback.format_exc())
        raise SystemExit(1) from None
    finally:
        pipe.close()


def _say(pipe: Any, code: int) -> None:
    """Say how this process ends, for a parent that does not learn it otherwise."""
    with ignoring(OSError):  # the parent has ended, or the function has closed the pipe
        pipe.send(code)


def _status_of(leaving: SystemExit) -> int:
    """Return the exit status that Python makes of a `SystemExit`."""
    if leaving.code is None:
        return 0
    return leaving.code & 0xFF if isinstance(leaving.code, int) else 1


def _end_by_interrupt() -> None:
    """End this process by SIGINT, after what is done at its exit. Clause SPAWN-5."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # another one ends it at once
    util._exit_function()  # type: ignore[attr-defined]
    util._flush_std_streams()  # type: ignore[attr-defined]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(128 + signal.SIGINT)  # it does not end the first process of a container
