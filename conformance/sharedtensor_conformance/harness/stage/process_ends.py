"""Waits for the processes of a stage to end, and describes how they ended."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

from sharedtensor_conformance.harness.case.answer_waits import answer_waits
from sharedtensor_conformance.harness.case.checks import wait_until
from sharedtensor_conformance.harness.case.outcomes import (
    ActorDied,
    DeadlineExceeded,
    HarnessFault,
    RemoteRaised,
)
from sharedtensor_conformance.harness.kernel.process_tree import (
    prolonged,
    said_of_limit,
)
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.process import Process
from sharedtensor_conformance.harness.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.stage.stage import Stage

EXIT_TIMEOUT = 10.0
"""Seconds for a process to end after its connection is closed."""

UNANSWERED = (ActorDied, DeadlineExceeded, HarnessFault, RemoteRaised)
"""The exceptions of a request to a process that cannot answer."""


class ExitCode(int):
    """An exit code that shows in evidence what the processes printed last."""

    printed = ""

    def __repr__(self) -> str:
        return f"{int(self)}{_last_words(self.printed)}"


def _last_words(printed: str) -> str:
    return f" (printed last: {printed})" if printed else ""


def _signal_name(number: int) -> str:
    """Return the name of a signal, or its number for a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ProcessEnds:
    """Waits for the ends of processes, and describes how they ended.

    Args:
        stage: their stage. Its supervisor has the exit status of the owner, and the
            owner has those of its children.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    # Evidence

    def describe_end(self, process: Process, request_name: str) -> str:
        """Return a sentence about how a process ended, and disconnect it.

        A process that sent a malformed answer still runs, but counts as ended.
        """
        if process.wire and process.wire.invalid_reason:  # it runs, but is unusable
            why = process.wire.invalid_reason
            process.disconnect()
            asked = f"when it was asked to {request_name}"
            return f"{process.name} answered nonsense {asked}: {why}"
        how, words = self._end_of(process)
        return f"{process.name} {how} while it was asked to {request_name}{words}"

    def no_answer_error(
        self, process: Process, request_name: str, deadline: float, given: float = 0.0
    ) -> Exception:
        """Return the exception for a process that gave no answer in `given` seconds.

        If another process died meanwhile, that one is the cause, and not the process
        that waits for it.
        """
        late = f"{process.name} gave no answer within {deadline:g} s to: {request_name}"
        late += self._deadline_source(request_name, deadline)
        for other in [actor.process for actor in self._stage.actors]:
            if other is not process and other.wire and other.has_ended():
                how, words = self._end_of(other)
                return ActorDied(f"{late}; {other.name} {how} meanwhile{words}")
        return DeadlineExceeded(late + said_of_limit(deadline, given))

    def _deadline_source(self, request_name: str, deadline: float) -> str:
        """Return which field of the adapter an action's deadline comes from."""
        if request_name != "prepare" and deadline == self._stage.timeouts.start:
            return " (`patience` of the adapter: processes may have to start in it)"
        return ""

    def _end_of(self, process: Process) -> tuple[str, str]:
        """Return how a process ended, and the last line of output if it failed."""
        status: int | None = None
        with contextlib.suppress(*UNANSWERED):  # the owner may not answer either
            status = self.wait(process, min(EXIT_TIMEOUT, self._stage.timeouts.start))
        if not process.has_ended():
            how = "closed its connection to the suite"
        elif status is None:
            how = "ended"
        elif status < 0:
            how = f"died of {_signal_name(-status)}"
        else:
            how = f"exited with status {status}"
        return how, _last_words(self._printed_after(status))

    def exit_code(self, status: int | None) -> ExitCode | None:
        """Return an exit status with what explains it, where it is not 0."""
        if status is None:
            return None
        code = ExitCode(status)
        code.printed = self._printed_after(status)
        return code

    def _printed_after(self, status: int | None) -> str:
        return self._stage.supervision.last_line() if status else ""

    # Waiting

    def wait(self, process: Process, within: float = EXIT_TIMEOUT) -> int | None:
        """Wait until a process has ended and was reaped; return its exit status.

        Returns:
            The exit status; None if the owner or the supervisor cannot tell it.
        """
        wait_until(process.has_ended, within)
        process.disconnect()
        if not self._stage.supervision.is_started:
            return None
        if process is self._stage.owner.process:
            wait_until(lambda: self._owner_status() is not None, within)
            return self.exit_code(self._owner_status())
        if not self._stage.owner.is_alive():
            return None
        deadline = within + self._stage.timeouts.answer
        status: int | None = self._stage.owner.run_in_started(
            deadline, Actor.join, process.name, within
        )
        return self.exit_code(status)

    def _owner_status(self) -> int | None:
        return self._stage.supervision.run(Supervisor.status)

    def wait_for_exit(self, process: Process) -> int | None:
        """Wait for the exit of a process that was asked to leave; return its status.

        Raises:
            DeadlineExceeded: the process did not exit in time.
        """
        with answer_waits.waiting("exit", self._stage.timeouts.answer) as wait:
            if not wait_until(process.has_ended, prolonged(wait.limit)):
                late = f"{process.name} did not exit within {wait.limit:g} s"
                raise DeadlineExceeded(late)
            wait.answered = True
        return self.wait(process)
