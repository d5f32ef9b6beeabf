"""Every error that the reference raises on its own account.

They form one hierarchy, so that a program can catch all of them, and each also derives
from the built-in class that callers of `multiprocessing` expect in that place. A
message says what happened, to which object, and what to do about it.
"""

import errno
import os


class SharedTensorError(Exception):
    """The base of all errors of this package."""


class NonLeafError(SharedTensorError, RuntimeError):
    """A tensor that requires grad and is not a leaf was sent. Clause GRAD-5."""


class ResizeError(SharedTensorError, RuntimeError):
    """A shared storage was to be resized. Clause SHARE-8."""


class StrategyError(SharedTensorError, ValueError):
    """A sharing strategy was named that does not exist. Clause STRAT-3."""


class HandleError(SharedTensorError, RuntimeError):
    """A handle names no segment, or another one than it claims to name."""


class ManagerError(SharedTensorError, RuntimeError):
    """The manager of the names under `file_system` cannot be reached or refused."""


class ResourceError(SharedTensorError, OSError):
    """The system has run out of descriptors, memory or mappings.

    `errno` says which; the message says what was being done and what to do.
    """


ADVICE = {
    errno.EFBIG: "Raise the limit of the size of files (RLIMIT_FSIZE).",
    errno.EMFILE: "Raise the limit of open files, or use the strategy 'file_system'.",
    errno.ENFILE: "The whole system is out of open files; close some programs.",
    errno.ENOMEM: "Free memory, or raise vm.max_map_count if there are many tensors.",
    errno.ENOSPC: "Drop shared tensors, or enlarge the file system at /dev/shm.",
    errno.ETOOMANYREFS: "Too many descriptors are in flight; receive some messages.",
}


def resource_error(number: int | None, doing: str) -> ResourceError:
    """The error for the system's refusal `number`, met while `doing` something."""
    code = number or 0  # the system always says why; an `OSError` need not
    advice = ADVICE.get(code, "The system gave no further reason.")
    return ResourceError(code, f"{doing} failed: {os.strerror(code)}. {advice}")
