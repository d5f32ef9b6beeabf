"""Waits for the processes of a stage to end, and describes how they ended."""

from __future__ import annotations

import contextlib
import signal

from sharedtensor_conformance.harness.checks import wait_until
from sharedtensor_conformance.harness.outcomes import (
    ActorDied,
    DeadlineExceeded,
    HarnessFault,
    RemoteRaised,
)
from sharedtensor_conformance.harness.process import Process
from sharedtensor_conformance.harness.stage_actors import Actors
from sharedtensor_conformance.harness.supervision import Supervision
from sharedtensor_conformance.harness.timeouts import Timeouts

EXIT_TIMEOUT = 10.0
"""Seconds that a process gets to end when its connection is closed."""

UNANSWERED = (ActorDied, DeadlineExceeded, HarnessFault, RemoteRaised)
"""What comes of asking a process that cannot answer."""


def _signal_name(number: int) -> str:
    """Return the name of a signal; those for real-time use have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ProcessEnds:
    """Waits for the ends of processes, and says how they ended.

    Args:
        supervision: knows how the owner ended, and what was printed.
        actors: all actors of the stage; the owner knows how its children ended.
        timeouts: how long a process may take to exit.
    """

    def __init__(
        self,
        supervision: Supervision,
        actors: Actors,
        timeouts: Timeouts,
    ) -> None:
        self._supervision = supervision
        self._actors = actors
        self._timeouts = timeouts

    # Evidence

    def how_it_ended(self, process: Process, doing: str) -> str:
        """Return a sentence that says how a process ended; it is not used again."""
        if process.wire and (why := process.wire.garbled):  # it has not: it is no use
            process.disconnect()
            return (
                f"{process.name} answered nonsense when it was asked to {doing}: {why}"
            )
        how, words = self._end_of(process)
        return f"{process.name} {how} while it was asked to {doing}{words}"

    def no_answer(self, process: Process, doing: str, deadline: float) -> Exception:
        """Return what it means that a process gave no answer.

        Who waits for a process that has died is no cause: a queue's thread, say, takes
        its process with it when nobody talks to that one.
        """
        late = f"{process.name} gave no answer within {deadline:g} s to: {doing}"
        late += self._why(doing, deadline)
        for other in [actor.process for actor in self._actors]:
            if other is not process and other.wire and other.has_ended():
                how, words = self._end_of(other)
                return ActorDied(f"{late}; {other.name} {how} meanwhile{words}")
        return DeadlineExceeded(late)

    def _why(self, doing: str, deadline: float) -> str:
        """Say which field of the adapter the deadline of an action comes from."""
        if doing.startswith("act ") and deadline == self._timeouts.start:
            return " (`patience` of the adapter: processes may have to start in it)"
        return ""

    def _end_of(self, process: Process) -> tuple[str, str]:
        """Return how a process ended, and what was printed last if it went wrong."""
        status: int | None = None
        with contextlib.suppress(*UNANSWERED):  # the owner cannot say either
            status = self.wait(process, min(EXIT_TIMEOUT, self._timeouts.start))
        if not process.has_ended():
            how = "closed its connection to the suite"
        elif status is None:
            how = "ended"
        elif status < 0:
            how = f"died of {_signal_name(-status)}"
        else:
            how = f"exited with status {status}"
        said = self._supervision.last_line() if status else ""
        return how, f" (printed last: {said})" if said else ""

    # Waiting

    def wait(self, process: Process, within: float = EXIT_TIMEOUT) -> int | None:
        """Wait for the process's end and let its parent reap it; return the status."""
        wait_until(process.has_ended, within)
        process.disconnect()
        if not self._supervision.is_started:
            return None
        if process is self._actors.owner.process:
            wait_until(lambda: self._owner_status() is not None, within)
            return self._owner_status()
        if not self._actors.owner.is_alive():
            return None
        deadline = within + self._timeouts.answer
        status: int | None = self._actors.owner.exchange(
            "join", process.name, within, deadline=deadline
        )
        return status

    def _owner_status(self) -> int | None:
        status: int | None = self._supervision.ask("status")
        return status

    def wait_for_exit(self, process: Process) -> int | None:
        """Wait for the end of a process that was asked to leave; return its status.

        Raises:
            DeadlineExceeded: it did not exit in time.
        """
        limit = self._timeouts.answer
        if not wait_until(process.has_ended, limit):
            raise DeadlineExceeded(f"{process.name} did not exit within {limit:g} s")
        return self.wait(process)
