"""Measures what sending a device tensor costs, beside the driver's calls and PyTorch.

A tensor is sent to a second process repeatedly. *Send and receipt* is the library's
work on a pipe, including the receiver's drop. *Driver calls* are the calls that every
protocol needs, on the same pipe: an event is made, recorded and exported, then opened,
waited for and destroyed; the memory is opened and closed. *Torch* is the same as the
first with PyTorch, where that is installed and sees the device. All take turns, in
blocks of rounds. Figures of the simulated device are marked, and say nothing about
CUDA. Exit status: 0, or 2 if there is no device.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sharedtensor import cuda
from sharedtensor.cuda import devices
from sharedtensor.cuda.errors import DeviceError
from sharedtensor_conformance.adapters.reference import is_emulated

WARM = 20
BLOCKS = 10
ELEMENTS = 1024
WAIT = 60.0
"""Seconds within which the second process answers."""


class Way(NamedTuple):
    """One way of sending.

    Args:
        tensor: what is sent.
        send: sends it on a pipe, and waits until the other process has dropped it.
        receive: what the other process runs, with its pipe and the device.
    """

    tensor: Any
    send: Callable[[Any, Any], None]
    receive: Callable[[Any, str], None]

    @contextmanager
    def pipe(self, device: str) -> Iterator[Any]:
        """Yield a pipe to a process that receives."""
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        arguments = (theirs, device)
        other = context.Process(target=self.receive, args=arguments, daemon=True)
        other.start()
        yield pipe
        pipe.send(None)
        other.join(WAIT)

    def measure(self, pipe: Any, rounds: int) -> list[float]:
        """Return the microseconds of each round."""
        took = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            self.send(pipe, self.tensor)
            took.append((time.perf_counter_ns() - start) / 1000)
        return took


def send_tensor(pipe: Any, tensor: Any) -> None:
    """Send, and wait until the other process has dropped the tensor."""
    pipe.send(tensor)
    wait_for_answer(pipe)


def wait_for_answer(pipe: Any) -> None:
    """Wait for the other process; raises DeviceError if it does not answer."""
    if not pipe.poll(WAIT):
        raise DeviceError(f"The second process did not answer within {WAIT:g} s.")
    pipe.recv()


def call_driver(pipe: Any, tensor: cuda.CudaTensor) -> None:
    """Make the driver calls that a send needs, and send their handles."""
    driver = devices.device_state(tensor.device).driver
    event = driver.event_create()
    driver.event_record(event)
    memory = driver.ipc_handle(tensor.data_ptr())
    pipe.send((memory, driver.event_handle(event)))
    wait_for_answer(pipe)
    driver.event_destroy(event)


def receive_tensors(pipe: Any, device: str) -> None:
    """Receive tensors of the reference, and drop each."""
    devices.device_state(device)
    _drop_each(pipe)


def receive_torch_tensors(pipe: Any, device: str) -> None:
    """Receive tensors of PyTorch, and drop each."""
    import_module("torch.multiprocessing")
    _drop_each(pipe)


def _drop_each(pipe: Any) -> None:
    while (arrived := pipe.recv()) is not None:
        del arrived
        pipe.send(True)


def receive_handles(pipe: Any, device: str) -> None:
    """Make the driver calls that a receiver needs."""
    driver = devices.device_state(device).driver
    while (arrived := pipe.recv()) is not None:
        memory, handle = arrived
        event = driver.event_open(handle)
        driver.event_wait(event)
        driver.event_destroy(event)
        base = driver.open_handle(memory)
        driver.synchronize()
        driver.close_handle(base)
        pipe.send(True)


def ways_on(device: str) -> dict[str, Way]:
    """Return the ways of sending that can be measured on a device, by name."""
    values = [1.0] * ELEMENTS
    tensor = cuda.tensor(values, device=device)
    ways = {
        "send and receipt": Way(tensor, send_tensor, receive_tensors),
        "driver calls": Way(tensor, call_driver, receive_handles),
    }
    torch = import_module("torch") if find_spec("torch") else None
    if torch and device.startswith("cuda") and torch.cuda.is_available():
        import_module("torch.multiprocessing")  # it registers how tensors are sent
        made = torch.tensor(values, device=device)
        ways["torch"] = Way(made, send_tensor, receive_torch_tensors)
    return ways


def figures(device: str, rounds: int) -> dict[str, Any]:
    """Measure all ways; return medians and 90th percentiles in microseconds."""
    block = -(-rounds // BLOCKS)
    found: dict[str, Any] = {"device": device, "rounds": block * BLOCKS}
    found["simulated"] = not device.startswith("cuda")
    ways, took = ways_on(device), defaultdict[str, list[float]](list)
    with ExitStack() as stack:
        pipes = {
            name: stack.enter_context(way.pipe(device)) for name, way in ways.items()
        }
        for name, way in ways.items():
            way.measure(pipes[name], WARM)
        for _ in range(BLOCKS):
            for name, way in ways.items():
                took[name] += way.measure(pipes[name], block)
    for name, each in took.items():
        deciles = statistics.quantiles(each, n=10)
        found[name] = {"median": round(deciles[4], 1), "p90": round(deciles[8], 1)}
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write; return the exit status."""
    parser = argparse.ArgumentParser(prog="send_cost.py", description=__doc__)
    text = "cuda:0 or sim:0 (default: %(default)s)"
    parser.add_argument("--device", default="cuda:0", help=text)
    text = "how many rounds to measure (default: %(default)s)"
    parser.add_argument("--rounds", type=int, default=1000, help=text)
    parser.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    text = "measure the emulated runtime; the figures say so"
    parser.add_argument("--emulated", action="store_true", help=text)
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and options.emulated != is_emulated():
        what = "not " * options.emulated + "emulated"
        print(f"send_cost.py: the CUDA runtime here is {what}", file=sys.stderr)
        return 2
    try:
        found = figures(options.device, max(2, options.rounds))
    except DeviceError as error:
        print(f"send_cost.py: {error}", file=sys.stderr)
        return 2
    found["emulated"] = options.emulated
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        Path(options.out).write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
