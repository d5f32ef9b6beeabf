"""The controller of the benchmark: starts the drivers and asks them in turn."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.harness import stage_folder
from sharedtensor_conformance.harness.supervisor_client import Supervisor, last_line
from sharedtensor_conformance.harness.wire import Wire, WireClosed, WireTimeout

from sharedtensor_bench.machine import (
    describe_machine,
    measure_wake_up,
    memory_available,
    wake_up_mode,
)
from sharedtensor_bench.results import (
    FAILED,
    NOT_CLAIMED,
    Result,
    Results,
    Subject,
)
from sharedtensor_bench.rows import ROWS, Cell
from sharedtensor_bench.scaling import NEEDS, SIZES

DEADLINE = 120.0
SCRIPT = "from sharedtensor_bench.driver import main; main({!r}, {!r})"
COPIES_OF_LARGEST = 5
"""A tensor is shared only if its size times this is available as memory."""


class BenchError(Exception):
    """The benchmark cannot continue; the message is one sentence."""


class CannotStart(BenchError):
    """The requested measurement is impossible; the message is one sentence."""


class MeasurementFailed(BenchError):
    """An implementation failed in a measurement; the message is one sentence.

    Attributes:
        why: what went wrong, without the name of the implementation.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} {why}")
        self.why = why


@dataclass(frozen=True)
class RequestedImplementation:
    """An implementation to measure, and the Python interpreter for it."""

    name: str
    interpreter: str = sys.executable


class DriverClient:
    """The controller's connection to a driver process."""

    def __init__(self, requested: RequestedImplementation) -> None:
        self.requested = requested
        root = stage_folder.new_path()
        self.log = Path(stage_folder.log(root))
        self.supervisor = Supervisor(self._job(root), DEADLINE)
        try:
            self.wire = Wire(self._accept(self.supervisor.listener))
            self._receive_answer("start")
            data = self.ask("describe")
        except BaseException:
            self.supervisor.close()
            raise
        self.python: str = data.pop("python")
        self.implementation = Implementation.from_data(data)
        self.strategy = ""

    def _job(self, root: str) -> dict[str, Any]:
        """Return the job for the driver's supervisor."""
        script = SCRIPT.format(self.requested.name, stage_folder.control(root))
        variables = {
            "TMPDIR": stage_folder.temporary(root),
            # Otherwise, the time of a child includes the compilation of its imports.
            "PYTHONDONTWRITEBYTECODE": "",
        }
        return {
            "argv": [self.requested.interpreter, "-c", script],
            "environment": os.environ | variables,
            "root": root,
            "pattern": "",
            "manager": "",
            "private": True,
        }

    def _accept(self, listening: socket.socket) -> socket.socket:
        """Return the connection of the driver.

        Raises:
            CannotStart: the driver ended before it connected.
        """
        listening.settimeout(0.2)
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            try:
                return listening.accept()[0]
            except TimeoutError:
                if self.supervisor.ask("status") is not None:
                    break
        raise CannotStart(
            f"{self.requested.name!r} cannot be loaded: {self._last_output()}"
        )

    def _last_output(self) -> str:
        return last_line(self.log) or "its process printed nothing"

    def ask(self, action: str, **details: Any) -> Any:
        """Send a request to the driver, and return the answer.

        Raises:
            MeasurementFailed: there is no answer, the request failed, or a value was
                wrong.
        """
        what = " ".join([action, *map(_as_text, details.values())])
        try:
            self.wire.send({"do": action} | details)
        except WireClosed:
            raise self._end_failure(what) from None
        return self._receive_answer(what)

    def _receive_answer(self, what: str) -> Any:
        try:
            answer = self.wire.receive(time.monotonic() + DEADLINE)
        except WireTimeout:
            why = (
                f"did not finish {what!r} within {DEADLINE:g} s: {self._last_output()}"
            )
            raise self._failure(why) from None
        except WireClosed:
            raise self._end_failure(what) from None
        if "ok" in answer:
            return answer["ok"]
        if "unusable" in answer:
            raise CannotStart(answer["unusable"])
        if "wrong" in answer:
            raise self._failure(f"delivers wrong values: {answer['wrong']}")
        raise self._failure(f"could not do {what!r}: {first_line(answer['error'])}")

    def _end_failure(self, what: str) -> MeasurementFailed:
        return self._failure(f"ended in {what!r}: {self._last_output()}")

    def _failure(self, why: str) -> MeasurementFailed:
        name = f"{self.requested.name} {getattr(self, 'strategy', '')}".strip()
        return MeasurementFailed(name, why)

    def enter(self, strategy: str) -> None:
        """Make the driver an owner under a strategy."""
        self.ask("enter", strategy=strategy)
        self.strategy = strategy

    def close(self) -> None:
        """End the driver and all of its descendants."""
        self.wire.close()
        self.supervisor.close()

    @property
    def subject(self) -> Subject:
        """The subject that this driver measures."""
        found = self.implementation
        return Subject(found.name, self.strategy, found.version, self.python)


def _as_text(detail: Any) -> str:
    parts = detail.values() if isinstance(detail, dict) else [detail]
    return " ".join(str(part) for part in parts if part)


class Bench:
    """One run over several subjects.

    Args:
        requested: the implementations, in the order of the table.
        strategies: the strategies to measure; empty for all strategies of each
            implementation.
        announce: called with short messages about the progress.
    """

    def __init__(
        self,
        requested: Sequence[RequestedImplementation],
        strategies: Sequence[str],
        announce: Callable[[str], None],
    ) -> None:
        self.requested = requested
        self.strategies = strategies
        self.announce = announce
        self.drivers: list[DriverClient] = []
        self.wake_ups: list[float] = []
        self.results: dict[tuple[str, str, Cell], Result] = {}

    def run(
        self,
        cells: Sequence[Cell],
        repeats: int,
        options: dict[str, Any],
        scaling: Sequence[str] = (),
    ) -> Results:
        """Measure all cells.

        If an implementation fails in a cell, the cell gets the reason instead of
        figures, the driver is restarted, and the other cells are measured.

        Raises:
            BenchError: a driver cannot be started or restarted.
        """
        began = time.monotonic()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        found = Results(now, describe_machine(), options | {"repeats": repeats})
        with closing(self):
            self.start()
            found.implementations = [driver.subject for driver in self.drivers]
            for number in range(repeats):
                self.repeat(cells, number, repeats)
            found.scaling = [*self.measure_scaling(scaling, repeats)]
            self.wake_ups.append(measure_wake_up())
        found.results = list(self.results.values())
        found.seconds = round(time.monotonic() - began, 1)
        found.machine["wake_up"] = wake_up_summary(self.wake_ups)
        return found

    def start(self) -> None:
        """Start a driver for each implementation under each of its strategies."""
        for requested in self.requested:
            first = DriverClient(requested)
            self.drivers.append(first)
            self.require_unique_name(first)
            chosen = self.strategies_of(first.implementation)
            first.enter(chosen[0])
            for strategy in chosen[1:]:
                self.drivers.append(DriverClient(requested))
                self.drivers[-1].enter(strategy)

    def close(self) -> None:
        """End all drivers, the last one first."""
        with ExitStack() as stack:  # if one cannot be ended, the others still are
            for driver in self.drivers:
                stack.callback(driver.close)

    def restart(self, failed: DriverClient) -> None:
        """Replace a driver that failed, because its state is unknown."""
        failed.close()
        place = self.drivers.index(failed)
        self.drivers[place] = DriverClient(failed.requested)
        self.drivers[place].enter(failed.strategy)

    def require_unique_name(self, driver: DriverClient) -> None:
        """Verify that no other implementation has the same name.

        Raises:
            CannotStart: another one has.
        """
        name = driver.implementation.name
        others = [other for other in self.drivers if other is not driver]
        if any(other.implementation.name == name for other in others):
            raise CannotStart(
                f"two of the implementations are called {name!r}; give the adapter "
                f"{driver.requested.name!r} another name"
            )

    def strategies_of(self, implementation: Implementation) -> list[str]:
        """Return the strategies under which an implementation is measured.

        An implementation with a single strategy is always measured under it.

        Raises:
            CannotStart: it has none of the requested strategies.
        """
        offered = list(implementation.strategies)
        if not self.strategies or len(offered) == 1:
            return offered
        chosen = [strategy for strategy in offered if strategy in self.strategies]
        if not chosen:
            raise CannotStart(
                f"{implementation.name} has no strategy "
                f"{' or '.join(map(repr, self.strategies))}; it has "
                f"{', '.join(map(repr, offered))}"
            )
        return chosen

    def repeat(self, cells: Sequence[Cell], repeat: int, repeats: int) -> None:
        """Measure each cell once with all drivers, one after the other.

        Each repeat begins with another driver. The first one may have to wait until the
        host provides memory, and the others reuse that memory.
        """
        words = f"repeat {repeat + 1} of {repeats}"
        begins = repeat % len(self.drivers)
        for number, cell in enumerate(cells):
            if number % 10 == 0:
                self.announce(f"{words}, cell {number + 1} of {len(cells)}")
                self.wake_ups.append(measure_wake_up())
            for driver in self.drivers[begins:] + self.drivers[:begins]:
                self.measure(driver, cell)

    def measure(self, driver: DriverClient, cell: Cell) -> None:
        """Add one sample of a cell to its result."""
        key = (*_names_of(driver), cell)
        if key not in self.results:
            absent = why_absent(driver.implementation, cell)
            result = Result(*_names_of(driver), cell.row, *cell.axes, _unit(cell))
            result.absent = absent
            self.results[key] = result
        result = self.results[key]
        if result.absent:
            return
        try:
            taken, floor = driver.ask("measure", cell=asdict(cell))
        except MeasurementFailed as failure:
            # Earlier figures do not count for a cell that can fail.
            result.samples, result.floor = [], []
            result.absent = self.handle_failure(driver, failure)
            return
        result.samples.append(taken)
        if floor is not None:
            result.floor.append(floor)

    def handle_failure(self, driver: DriverClient, failure: MeasurementFailed) -> str:
        """Announce a failure, restart the driver, and return the reason."""
        self.announce(str(failure))
        self.restart(driver)
        return FAILED + failure.why

    def measure_scaling(
        self, kinds: Sequence[str], repeats: int
    ) -> Iterator[dict[str, Any]]:
        """Yield the costs of a message for growing sizes."""
        for what in kinds:
            for size in SIZES[what]:
                self.announce(f"scaling, {what}: {size:,}")
                for driver in list(self.drivers):
                    yield self.scaling_point(driver, what, size, repeats)

    def scaling_point(
        self, driver: DriverClient, what: str, size: int, repeats: int
    ) -> dict[str, Any]:
        """Return one point of the scaling."""
        point: dict[str, Any] = {"what": what, "to": size}
        name, strategy = _names_of(driver)
        point |= {"implementation": name, "strategy": strategy}
        found: list[float | None] = [None]
        absent = NOT_CLAIMED
        if set(NEEDS[what]) <= driver.implementation.claims:
            request = {"what": what, "size": size}
            try:
                found = [driver.ask("scale", **request) for _ in range(repeats)]
                absent = "beyond a limit of this machine" if None in found else ""
            except MeasurementFailed as failure:
                absent = self.handle_failure(driver, failure)
        samples = [sample for sample in found if sample is not None]
        middle = median(samples) if samples else None
        return point | {"samples": samples, "median": middle, "absent": absent}


def first_line(text: str) -> str:
    """Return the first line of an error message, because some are very long."""
    return text.strip().partition("\n")[0]


def _names_of(driver: DriverClient) -> tuple[str, str]:
    return driver.implementation.name, driver.strategy


def _unit(cell: Cell) -> str:
    return ROWS[cell.row].unit


def why_absent(implementation: Implementation, cell: Cell) -> str:
    """Return why an implementation is not measured in a cell, or ""."""
    row = ROWS[cell.row]
    missing = set(row.needs) - implementation.claims
    if cell.channel and cell.channel not in implementation.channels:
        missing.add(cell.channel)
    if cell.start_method and cell.start_method not in implementation.start_methods:
        missing.add(cell.start_method)
    if missing:
        return f"{NOT_CLAIMED}: {', '.join(sorted(missing))}"
    if row.kind == "first_share" and memory_available() < COPIES_OF_LARGEST * (
        row.nbytes
    ):
        return "there is too little memory"
    return ""


def wake_up_summary(wake_ups: list[float]) -> dict[str, Any]:
    """Return the mode, the median and the samples of the wake-ups, in microseconds."""
    return {
        "mode": wake_up_mode(wake_ups),
        "median_us": round(median(wake_ups), 2),
        "samples_us": [round(sample, 2) for sample in wake_ups],
    }


def valid_interpreter(path: str) -> str:
    """Return the full path of an interpreter.

    Raises:
        CannotStart: there is no such interpreter.
    """
    found = shutil.which(path)
    if found is None:
        raise CannotStart(f"there is no interpreter {path!r} that can be run")
    return os.path.abspath(found)


def parsed_interpreters(given: Sequence[str]) -> dict[str, str]:
    """Return the interpreters of ``IMPL=INTERPRETER``, by implementation.

    Raises:
        CannotStart: an argument has another form, or its interpreter does not exist.
    """
    found = {}
    for text in given:
        parts = re.fullmatch(r"([^=]+)=(.+)", text)
        if parts is None:
            raise CannotStart(f"--python takes IMPL=INTERPRETER, not {text!r}")
        found[parts[1]] = valid_interpreter(parts[2])
    return found
