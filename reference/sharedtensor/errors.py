"""Every error that the reference raises on its own account.

They form one hierarchy, so that a program can catch all of them, and each also derives
from the built-in class that callers of `multiprocessing` expect in that place. A
message says what happened, to which object, and what to do about it.
"""

import errno
import os
import signal
from contextlib import suppress
from types import TracebackType


class SharedTensorError(Exception):
    """The base of all errors of this package."""


class NonLeafError(SharedTensorError, RuntimeError):
    """A tensor that requires grad and is not a leaf was sent. Clause GRAD-5."""


class ResizeError(SharedTensorError, RuntimeError):
    """A shared storage was to be resized. Clause SHARE-8."""


class NestedMoveError(SharedTensorError, RuntimeError):
    """A signal handler or a finalizer would share what the same thread is sharing.

    The call that it has interrupted goes on. Clause CHAN-5.
    """


class StrategyError(SharedTensorError, ValueError):
    """A sharing strategy was named that does not exist. Clause STRAT-3."""


class HandleError(SharedTensorError, RuntimeError):
    """A handle names no segment, or another one than it claims to name.

    Clauses SEC-7, SEC-8.
    """


class ManagerError(SharedTensorError, RuntimeError):
    """The manager of the names under `file_system` cannot be started."""


class ThreadError(SharedTensorError, RuntimeError):
    """The thread that writes to a queue cannot be started."""


class ResourceError(SharedTensorError, OSError):
    """The system has run out of descriptors, memory or mappings.

    `errno` says which; the message says what was being done and what to do.
    """


class DescriptorError(SharedTensorError, OSError):
    """The program has closed a descriptor of this package, or has replaced its file."""


class ProcessException(SharedTensorError, RuntimeError):
    """One of the processes that were started together failed. Chapter SPAWN.

    Args:
        msg: what happened.
        error_index: the index of the process.
        error_pid: its process id.
    """

    def __init__(self, msg: str, error_index: int, error_pid: int):
        super().__init__(msg, error_index, error_pid)  # for copy and pickle
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    def __str__(self) -> str:
        """Return what happened."""
        return self.msg


class ProcessRaisedException(ProcessException):
    """The function raised; the message has the traceback. Clause SPAWN-4."""


class ProcessExitedException(ProcessException):
    """A process exited with another status than 0, or by a signal. Clause SPAWN-5.

    `exit_code` is the status, or minus the number of the signal, whose name is
    `signal_name`; None where nobody can know it.
    """

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int,
        exit_code: int | None,
        signal_name: str | None = None,
    ):
        super().__init__(msg, error_index, error_pid)
        self.args += (exit_code, signal_name)
        self.exit_code = exit_code
        self.signal_name = signal_name

    @classmethod
    def of(
        cls, index: int, pid: int, exit_code: int | None
    ) -> "ProcessExitedException":
        """Return the error for a process that ended so."""
        name = None
        # Programs search for "process 0 terminated with", as PyTorch has it.
        if exit_code is None:
            end = (
                "has ended, and how is not known, since this program ignores SIGCHLD "
                "or waits for all of its children itself (let it do neither)"
            )
        elif exit_code < 0:
            name = _signal_name(-exit_code)
            end = f"terminated with signal {name}"
        else:
            end = f"terminated with exit code {exit_code}"
        msg = (
            f"process {index} {end}; its process id was {pid}, and the other processes "
            "were ended."
        )
        return cls(msg, index, pid, exit_code, name)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real-time use have no names
        return f"signal {number}"


PACKAGE = __name__.partition(".")[0] + "."


def pass_on(error: BaseException) -> None:
    """Raise an exception again that a signal handler has raised.

    A handler raises what it likes, such as the `TimeoutError` of a watchdog, and its
    caller waits for that very exception. So code that catches an error of the system
    calls this first. Clauses THREAD-5, THREAD-6.
    """
    if is_of_handler(error):
        try:
            raise error
        finally:
            del error  # its traceback has this frame, and so what the others refer to


def is_of_handler(error: BaseException | None) -> bool:
    """Return whether an `OSError` is neither of the system nor of this package.

    That of the system has a number, and the class that belongs to it.
    """
    if not isinstance(error, OSError):
        return False
    if error.errno is not None and type(error) is type(OSError(error.errno, "")):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace else PACKAGE
    return not module.startswith(PACKAGE)


class ignoring(suppress):
    """Go on behind the block where the system refuses what it does."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return super().__exit__(kind, error, trace) and not is_of_handler(error)


UNUSABLE = "See that /dev/shm is there and can be written to, or use 'file_descriptor'."
FORBIDDEN = (
    "A filter of system calls forbids it, perhaps that of a container. Let it be "
    "allowed, or use the other sharing strategy."
)

ADVICE = {
    errno.EACCES: UNUSABLE,
    errno.ENOENT: UNUSABLE,
    errno.ENOSYS: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
    errno.EROFS: UNUSABLE,
    errno.EAGAIN: "The system takes no more at once; send fewer tensors in a message.",
    errno.EFBIG: "Raise the limit of the size of files (RLIMIT_FSIZE).",
    errno.EMFILE: "Raise the limit of open files, or use the strategy 'file_system'.",
    errno.ENFILE: "The whole system is out of open files; close some programs.",
    errno.ENOMEM: "Free memory, or raise vm.max_map_count if there are many tensors.",
    errno.ENOSPC: "Drop shared tensors, or enlarge the file system at /dev/shm.",
    errno.ETOOMANYREFS: "Too many descriptors are in flight; receive some messages.",
}


def descriptor_error(fd: int) -> DescriptorError:
    """Return the error for a descriptor that is not open or is another file's now."""
    return DescriptorError(
        errno.EBADF,
        f"The program has closed descriptor {fd}, by which a tensor is shared or a "
        "pipe is open, or has another file under that number. Close only what you have "
        "opened; a daemon closes what it has inherited before it shares a tensor.",
    )


def resource_error(number: int | None, doing: str) -> ResourceError:
    """Return the error for the refusal `number` of the system, met while `doing`.

    It names the error of the system, and what to do about it. Clause ENV-2.
    """
    code = number or 0  # the system always says why; an `OSError` need not
    advice = ADVICE.get(code, "The system gave no further reason.")
    return ResourceError(code, f"{doing} failed: {os.strerror(code)}. {advice}")
