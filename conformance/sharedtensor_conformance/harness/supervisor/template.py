"""The controller's end of the template process, from which owners are forked.

See `preloading` for the process itself. If a template cannot be used, it gives the
reason, and its stages start owners from a clean interpreter.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from contextlib import suppress
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness.case.outcomes import HarnessFault
from sharedtensor_conformance.harness.remote import wire
from sharedtensor_conformance.harness.remote.setting import Setting
from sharedtensor_conformance.harness.supervisor import (
    preloading,
    stage_folder,
)
from sharedtensor_conformance.harness.supervisor.supervisor_client import (
    COMMAND,
    ONE_THREAD,
    kill_marked,
)

OWNER = "sharedtensor_conformance.harness.owner"
"""The main program of an owner, and of a template."""


SHUTDOWN_TIMEOUT = 1.0
"""Seconds in which a template has to end that has finished its import."""


class ForkedSupervisor:
    """A supervisor that is not a child of this process, with methods like `Popen`.

    Its pidfd is closed when the object is freed, because other threads may call `kill`
    at any time.

    Args:
        pid: its process, which its parent has not waited for.
    """

    def __init__(self, pid: int) -> None:
        self.pidfd = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self.pidfd)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; its real exit status is not known here.

        Raises:
            subprocess.TimeoutExpired: it has not ended within `timeout` seconds.
        """
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        if not poller.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("supervisor", timeout or 0)
        return 0

    def kill(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


class Template:
    """A template process, which is started when it is first needed.

    Args:
        name: the adapter's name.
        implementation: what the adapter declares.
        address: the address of a template that another process has started; empty if
            there is none.
    """

    def __init__(
        self, name: str, implementation: Implementation, address: str = ""
    ) -> None:
        self.name = name
        self.implementation = implementation
        self.why_not = "" if implementation.preload else "it is not declared"
        self._given_address = address
        self._mark = f"sts-template-{os.getpid()}-{id(self):x}"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        """Where it accepts jobs; empty if it does not run."""
        self._socket: socket.socket | None = None  # it ends when this is closed

    def is_ready(self) -> bool:
        """Start it if necessary; return whether it can fork owners."""
        if self.why_not or self.address:
            return not self.why_not
        if not self._answers_at_given_address():
            self._start()
            self.why_not = self._failure_reason()
            if self.why_not:
                self.close()
                kill_marked(self._mark)  # what the import has started
        return not self.why_not

    def _answers_at_given_address(self) -> bool:
        """Return whether a template that another process has started can be used."""
        if not self._given_address:
            return False
        try:
            _connect(self._given_address).close()
        except OSError:
            return False
        self.address = self._given_address
        return True

    def _start(self) -> None:
        self._socket, other_end = socket.socketpair()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", OWNER),
                *(preloading.TEMPLATE_OPTION, str(other_end.fileno())),
            ],
            pass_fds=[other_end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=self._environment(),
        )
        other_end.close()

    def _environment(self) -> dict[str, str]:
        setting = Setting.of_template(self.name)
        return {
            **os.environ,
            **ONE_THREAD,
            **setting.environment(),
            preloading.STAGE_VARIABLE: self._mark.ljust(
                preloading.STAGE_VARIABLE_LENGTH
            ),
        }

    def _failure_reason(self) -> str:
        """Return why it cannot be used; empty if it can."""
        patience = self.implementation.patience
        try:
            answer = self._answer(patience)
            self.address = str(answer["address"])
            return str(answer["refused"])
        except wire.WireTimeout:
            return f"the import takes more than {patience:g} s"
        except wire.WireClosed:
            return "the process that imported it has ended"

    def _answer(self, within: float) -> dict[str, Any]:
        assert self._socket is not None, "it was started"
        answer: dict[str, Any] = wire.Wire(self._socket).receive(wire.after(within))
        return answer

    def start_supervisor(
        self, job: dict[str, Any]
    ) -> tuple[ForkedSupervisor, wire.Wire]:
        """Fork an owner and its supervisor, which gets the connection for the job.

        Raises:
            HarnessFault: the template gave no answer.
        """
        try:
            control = wire.Wire(_connect(self.address))
            control.send(job | {"supervisor": COMMAND})
            pid = control.receive(wire.after(self.implementation.patience))["pid"]
            return ForkedSupervisor(pid), control
        except (OSError, wire.WireTimeout, wire.WireClosed) as error:
            raise HarnessFault(
                f"the template process gave no answer: {error or type(error).__name__}"
            ) from None

    def close(self) -> None:
        """End it, if it was started here; processes that it forked continue."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            try:
                self._process.wait(timeout=SHUTDOWN_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            if self.address:  # it is gone, unless somebody has killed that process
                stage_folder.remove(os.path.dirname(self.address))
        self.address = ""


def _connect(address: str) -> socket.socket:
    """Return a connection to a template. Raises `OSError`."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def why_not_preloaded(name: str, implementation: Implementation) -> str:
    """Return why the declared `preload` cannot be used; empty if it can."""
    template = Template(name, implementation)
    try:
        ready = template.is_ready()
    finally:
        template.close()
    return "" if ready or not implementation.preload else template.why_not
