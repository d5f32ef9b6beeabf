"""The driver: the owner process of one implementation under one strategy.

The controller starts it with the interpreter of the implementation's environment, below
a supervisor of the suite, so that nothing that an implementation does outlives the run.
Over a socket, the driver sends the claims of the implementation and receives the
strategy. Then it measures one batch of one cell for each request.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapter_trial import inspection
from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.harness.remote.wire import Wire, WireClosed, WireTimeout
from sharedtensor_conformance.harness.supervisor import stage_folder
from sharedtensor_conformance.harness.supervisor.supervisor_client import (
    Supervisor,
    job_of,
    last_line,
)

from bench.exchange import WrongValue
from bench.measuring import Owner
from bench.rows import Cell

DEADLINE = 120.0
CHECKOUT = Path(__file__).parents[1]
SCRIPT = "from bench.driver import main; main({!r}, {!r})"


class CannotStart(Exception):
    """The requested measurement is impossible; the message is one sentence."""


class MeasurementFailed(Exception):
    """An implementation failed in a measurement; the message says how."""


# In the driver's process


def main(name: str, address: str) -> None:
    """Connect to the controller and serve it."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(address)
    wire = Wire(sock)
    try:
        implementation = inspection.loaded(name)
    except loader.LoadingError as error:
        wire.send({"unusable": str(error)})
        return
    python = {"python": platform.python_version()}
    wire.send({"ok": implementation.as_data() | python})
    try:
        strategy = wire.receive()["strategy"]
        owner = Owner(name, implementation, strategy)
        wire.send({"ok": None})
        while True:
            cell = Cell(**wire.receive())
            wire.send(_answer(lambda cell=cell: owner.measure(cell)))  # type: ignore[misc]
    except WireClosed:
        return


def _answer(action: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"ok": action()}
    except WrongValue as error:
        return {"failed": f"delivers wrong values: {error}"}
    except (Exception, SystemExit) as error:  # any error of the implementation
        first_line = str(error).strip().partition("\n")[0]  # some are very long
        return {"failed": f"{type(error).__name__}: {first_line}"}


# In the controller's process


class Driver:
    """The controller's end of a driver.

    Args:
        name: the adapter's name.
        interpreter: the Python interpreter of its environment.
        strategy: the strategy to measure; none if only the claims are to be known.

    Raises:
        CannotStart: the adapter cannot be loaded.
        MeasurementFailed: the implementation fails to become an owner.
    """

    def __init__(self, name: str, interpreter: str, strategy: str = "") -> None:
        self.name = name
        self.interpreter = interpreter
        root = stage_folder.new_path()
        self.log = Path(stage_folder.log(root))
        self.supervisor = Supervisor(self._job(root), DEADLINE)
        try:
            self.wire = Wire(self._accept(self.supervisor.listener))
            claims = self._answer_to("start")
            self.python: str = claims.pop("python")
            self.implementation = Implementation.from_data(claims)
            self.enter(strategy)
        except BaseException:
            self.supervisor.close()
            raise

    def _job(self, root: str) -> dict[str, Any]:
        """Return the job for the driver's supervisor."""
        script = SCRIPT.format(self.name, stage_folder.control(root))
        path = filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")])
        variables = {
            "PYTHONPATH": os.pathsep.join(path),
            # Otherwise, the time of a child includes the compilation of its imports.
            "PYTHONDONTWRITEBYTECODE": "",
        }
        return job_of(root, [self.interpreter, "-c", script], variables)

    def _accept(self, listening: socket.socket) -> socket.socket:
        listening.settimeout(0.2)
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            try:
                return listening.accept()[0]
            except TimeoutError:
                if self.supervisor.status() is not None:
                    break
        raise CannotStart(f"{self.name!r} cannot be loaded: {self._last_output()}")

    def _last_output(self) -> str:
        return last_line(self.log) or "its process printed nothing"

    def enter(self, strategy: str) -> None:
        """Make the process an owner under a strategy, if one is given."""
        self.strategy = strategy
        if strategy:
            self._ask({"strategy": strategy}, f"enter {strategy}")

    def measure(self, cell: Cell) -> tuple[float, float | None]:
        """Return the figure of a batch and its floor.

        Raises:
            MeasurementFailed: there is no answer, or what was measured failed.
        """
        figure, floor = self._ask(asdict(cell), f"measure {cell}")
        return figure, floor

    def _ask(self, request: dict[str, Any], what: str) -> Any:
        try:
            self.wire.send(request)
        except WireClosed:
            raise self._ended(what) from None
        return self._answer_to(what)

    def _answer_to(self, what: str) -> Any:
        try:
            answer = self.wire.receive(time.monotonic() + DEADLINE)
        except WireTimeout:
            late = f"did not finish {what!r} within {DEADLINE:g} s"
            raise MeasurementFailed(f"{late}: {self._last_output()}") from None
        except WireClosed:
            raise self._ended(what) from None
        if "unusable" in answer:
            raise CannotStart(answer["unusable"])
        if "failed" in answer:
            raise MeasurementFailed(f"could not do {what!r}: {answer['failed']}")
        return answer["ok"]

    def _ended(self, what: str) -> MeasurementFailed:
        return MeasurementFailed(f"ended in {what!r}: {self._last_output()}")

    def close(self) -> None:
        """End the driver and all of its descendants."""
        self.wire.close()
        self.supervisor.close()

    def again(self) -> Driver:
        """Return another driver in place of this one, whose state is unknown."""
        self.close()
        return Driver(self.name, self.interpreter, self.strategy)
