"""The environment of the processes of a stage: folder, control socket, supervisor."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sharedtensor_conformance.harness.case.outcomes import DeadlineExceeded
from sharedtensor_conformance.harness.remote import wire
from sharedtensor_conformance.harness.remote.setting import Setting
from sharedtensor_conformance.harness.supervisor import (
    stage_folder,
    supervisor,
)
from sharedtensor_conformance.harness.supervisor.supervisor_client import (
    ONE_THREAD,
    Supervisor,
    job_of,
    last_line,
    start_clean,
)
from sharedtensor_conformance.harness.supervisor.template import OWNER, Template

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.stage.stage import Stage

Result = TypeVar("Result")


class Supervision:
    """Starts an owner below a supervisor, and ends all processes below it.

    It can be started again when it was closed.

    Args:
        stage: whose processes these are.
        template: the process from which owners can be forked.
    """

    def __init__(self, stage: Stage, template: Template) -> None:
        self.stage = stage
        self.template = template
        self.folder: Path | None = None
        self.private = False
        self._supervisor: Supervisor | None = None

    @property
    def is_started(self) -> bool:
        """Whether there is a supervisor."""
        return self._supervisor is not None

    @property
    def temporary(self) -> Path:
        """The folder for temporary files of the processes."""
        assert self.folder is not None, "it was started"
        return Path(stage_folder.temporary(str(self.folder)))

    @property
    def log(self) -> Path:
        """The file with what the processes print."""
        assert self.folder is not None, "it was started"
        return Path(stage_folder.log(str(self.folder)))

    def start(self) -> int:
        """Start a supervisor and the owner below it; return the owner's pid."""
        root = stage_folder.new_path()
        self.folder = Path(root)
        # What reads its environment while it is imported has to see these variables.
        forked = not self.stage.isolation.environment and self.template.is_ready()
        start = self.template.start_supervisor if forked else start_clean
        timeout = self.stage.implementation.patience
        self._supervisor = Supervisor(self._job(root), timeout, start)
        hello = self.run(supervisor.Supervisor.hello)
        self.private = hello["private"]
        return int(hello["owner"])

    def _job(self, root: str) -> dict[str, Any]:
        implementation = self.stage.implementation
        setting = Setting(
            self.stage.name,
            self.stage.configuration.strategy,
            implementation.channels,
            stage_folder.control(root),
            implementation.preload,
        )
        return job_of(
            root,
            [sys.executable, "-m", OWNER],
            {**ONE_THREAD, **setting.environment(), **self.stage.isolation.environment},
            implementation.segment_pattern,
            implementation.manager_pattern,
        )

    def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in the supervisor, which is its first argument.

        Raises:
            HarnessFault: the supervisor failed, or has ended.
        """
        assert self._supervisor is not None, "it was started"
        return self._supervisor.run(function, *arguments)

    def accept(self, name: str, check_alive: Callable[[], None]) -> wire.Wire:
        """Return the connection of a process that was just started.

        Args:
            name: that of its actor.
            check_alive: raises if the process has ended.

        Raises:
            DeadlineExceeded: it did not connect in time.
        """
        assert self._supervisor is not None, "it was started"
        listener = self._supervisor.listener
        listener.settimeout(0.05)
        timeout = self.stage.implementation.patience
        deadline = wire.after(timeout)
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(None)
                accepted = wire.Wire(connection)
                accepted.limit_sending(timeout)
                with contextlib.suppress(wire.WireClosed, wire.WireTimeout):
                    if accepted.receive(deadline).get("name") == name:
                        return accepted
                accepted.close()
            check_alive()
        raise DeadlineExceeded(f"{name} did not start within {timeout:g} s")

    def last_line(self) -> str:
        """Return the last line that the processes have printed."""
        return last_line(self.log) if self.folder else ""

    def abandon(self) -> None:
        """Kill all processes, from any thread, so that waits for them end."""
        if self._supervisor:
            self._supervisor.abandon()

    def close(self) -> None:
        """End everything and leave nothing behind."""
        if self._supervisor:
            self._supervisor.close()
            self._supervisor = None
        self.folder = None
        self.private = False
