"""The controller's handle of one process: its pid, a pidfd and its connection.

A pid can be reused after its process was waited for. The pidfd shows reliably whether
the process that was started has ended.
"""

from __future__ import annotations

import errno
import os
import select

from sharedtensor_conformance.harness.case.outcomes import ActorDied, CheckFailed
from sharedtensor_conformance.harness.remote.wire import Wire

NO_SUCH_PID_ERRORS = (errno.EINVAL, errno.ENOENT)
"""The errors of the kernel for the id of a thread, or an unused id."""


class Process:
    """A process of a stage; without a process before the start and after `close`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        self.pidfd = -1
        self.wire: Wire | None = None

    def open(self, pid: int) -> None:
        """Use `pid` for the process, which has just been started.

        Raises:
            ActorDied: the process has already ended.
            CheckFailed: no process has this pid.
        """
        self.pid = pid
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # a fork server reaps at once
            raise ActorDied(f"{self.name} ended while it was started") from None
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno not in NO_SUCH_PID_ERRORS:
                raise
            raise CheckFailed(f"{self.describe_pid()}, which no process has") from None

    def describe_pid(self) -> str:
        """Return a part of a sentence with the pid that the implementation reported."""
        return f"the implementation says that {self.name} has the pid {self.pid}"

    @property
    def was_started(self) -> bool:
        """Whether it was started; it may have ended since."""
        return self.pid != 0

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def is_alive(self) -> bool:
        """Return whether the process runs and can get requests."""
        return self.wire is not None and not self.has_ended()

    def disconnect(self) -> None:
        """Close the connection: the process gets no more requests."""
        if self.wire:
            self.wire.close()
            self.wire = None

    def close(self) -> None:
        """Release the process; another one can be started in its place."""
        self.disconnect()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.pid, self.pidfd = 0, -1
