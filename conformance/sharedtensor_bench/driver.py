"""The driver: the owner process of one implementation under one strategy.

The controller starts the driver with the interpreter of the implementation's
environment. Over a socket, the controller asks for the claims, and then for one batch
of one cell at a time.
"""

from __future__ import annotations

import platform
import resource
import socket
from typing import Any

from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.harness import inspection
from sharedtensor_conformance.harness.wire import Wire, WireClosed

from sharedtensor_bench.measuring import Measurer, WrongValue
from sharedtensor_bench.rows import Cell
from sharedtensor_bench.scaling import ScalingMeasurer


class Driver:
    """Answers the requests of the controller."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.implementation = inspection.loaded(name)
        self.measurer: Measurer | None = None

    def answer(self, request: dict[str, Any]) -> Any:
        """Execute a request and return its result.

        Raises:
            ValueError: the request is unknown, or `enter` was not requested before.
            WrongValue: received values differ from those that were sent.
        """
        match request["do"]:
            case "describe":
                python = {"python": platform.python_version()}
                return self.implementation.as_data() | python
            case "enter":
                return self.enter(request["strategy"])
            case "measure" if self.measurer:
                return self.measurer.measure(Cell(**request["cell"]))
            case "scale" if self.measurer:
                return ScalingMeasurer(self.measurer).measure(
                    request["what"], request["size"]
                )
        raise ValueError(f"unknown request {request!r}")

    def enter(self, strategy: str) -> None:
        """Become an owner under a strategy, with the maximum limit of descriptors."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        operations = loader.load_operations(self.name)
        operations.enter_child(strategy)
        self.measurer = Measurer(self.name, strategy, self.implementation, operations)


def main(name: str, address: str) -> None:
    """Connect to the controller and serve it."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(address)
    wire = Wire(sock)
    try:
        driver = Driver(name)
    except loader.LoadingError as error:
        wire.send({"unusable": str(error)})
        return
    wire.send({"ok": None})
    while True:
        try:
            request = wire.receive()
        except WireClosed:
            return
        wire.send(_answered(driver, request))


def _answered(driver: Driver, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": driver.answer(request)}
    except WrongValue as error:
        return {"wrong": str(error)}
    except (Exception, SystemExit) as error:  # any error of the implementation
        return {"error": f"{type(error).__name__}: {error}"}
