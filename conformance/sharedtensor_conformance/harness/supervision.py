"""What surrounds the processes of a stage: a folder, a control socket, a supervisor."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness import wire
from sharedtensor_conformance.harness.matrix import Configuration
from sharedtensor_conformance.harness.outcomes import DeadlineExceeded
from sharedtensor_conformance.harness.setting import Setting
from sharedtensor_conformance.harness.supervisor_client import (
    Supervisor,
    last_line,
    start_clean,
)
from sharedtensor_conformance.harness.template import OWNER, Template


class Supervision:
    """Starts an owner below a supervisor, and ends all that came of it.

    It can be started again when it was closed.

    Args:
        name: the adapter's name.
        implementation: what the adapter declares.
        configuration: where the processes run.
        environment: variables that they have besides.
        template: the process from which owners can be forked.
    """

    def __init__(
        self,
        name: str,
        implementation: Implementation,
        configuration: Configuration,
        environment: Mapping[str, str],
        template: Template,
    ) -> None:
        self.name = name
        self.implementation = implementation
        self.configuration = configuration
        self.environment = environment
        self.template = template
        self.folder: Path | None = None
        self.private = False
        self._listener: socket.socket | None = None
        self._supervisor: Supervisor | None = None

    @property
    def is_started(self) -> bool:
        """Whether there is a supervisor."""
        return self._supervisor is not None

    @property
    def temporary(self) -> Path:
        """The folder for temporary files of the processes."""
        assert self.folder is not None, "it was started"
        return self.folder / "t"

    @property
    def log(self) -> Path:
        """The file with what the processes print."""
        assert self.folder is not None, "it was started"
        return self.folder / "log"

    def start(self) -> int:
        """Start a supervisor and the owner below it; return the owner's pid."""
        self.folder = Path(wire.folder_for_sockets())
        self.temporary.mkdir()
        control = str(self.folder / "c")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(control)
        self._listener.listen(16)
        job = self._job(str(self.folder), control)
        # What reads its environment while it is imported has to see these variables.
        forked = not self.environment and self.template.is_ready()
        start = self.template.start_supervisor if forked else start_clean
        self._supervisor = Supervisor(job, self.implementation.patience, start)
        hello = self.ask("hello")
        self.private = hello["private"]
        return int(hello["owner"])

    def _job(self, root: str, control: str) -> dict[str, Any]:
        setting = Setting(
            self.name,
            self.configuration.strategy,
            self.implementation.channels,
            control,
            self.implementation.preload,
        )
        environment = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            **setting.environment(),
            "TMPDIR": str(self.temporary),
            **self.environment,
        }
        return {
            "argv": [sys.executable, "-m", OWNER],
            "environment": environment,
            "root": root,
            "folder": str(self.temporary),
            "log": str(self.log),
            "pattern": self.implementation.segment_pattern,
            "manager": self.implementation.manager_pattern,
            "private": True,
        }

    def ask(self, do: str, **details: Any) -> Any:
        """Return the supervisor's answer.

        Raises:
            HarnessFault: the supervisor failed, or has gone.
        """
        assert self._supervisor is not None, "it was started"
        return self._supervisor.ask(do, **details)

    def accept(self, name: str, check_alive: Callable[[], None]) -> wire.Wire:
        """Return the connection of a process that was just started.

        Args:
            name: that of its actor.
            check_alive: raises where the process has ended.

        Raises:
            DeadlineExceeded: it did not connect in time.
        """
        assert self._listener is not None, "it was started"
        self._listener.settimeout(0.05)
        timeout = self.implementation.patience
        deadline = wire.after(timeout)
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
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
        """Kill everything, from any thread: what waits for these processes ends."""
        if supervisor := self._supervisor:
            supervisor.abandon()

    def close(self) -> None:
        """End everything and leave nothing behind."""
        if self._supervisor:
            self._supervisor.close()
            self._supervisor = None
        if self._listener:
            self._listener.close()
            self._listener = None
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None
        self.private = False
