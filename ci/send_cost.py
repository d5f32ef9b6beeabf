"""Measures what sending a device tensor costs, compared with the needed driver calls.

A tensor is sent to a second process repeatedly. *Send and receipt* is the library's
work on a pipe, including the receiver's drop. *Driver calls* are the calls that every
protocol needs, on the same pipe: an event is made, recorded and exported, then opened,
waited for and destroyed; the memory is opened and closed. Figures of the simulated
device are marked, and say nothing about CUDA. Exit status: 0, or 2 if there is no
device.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharedtensor import cuda
from sharedtensor.cuda import devices
from sharedtensor.cuda.errors import DeviceError
from sharedtensor_conformance.adapters.reference import is_emulated

WARM = 20


def send_tensor(pipe: Any, tensor: cuda.CudaTensor) -> None:
    """Send, and wait until the other process has dropped the tensor."""
    pipe.send(tensor)
    pipe.recv()


def call_driver(pipe: Any, tensor: cuda.CudaTensor) -> None:
    """Make the driver calls that a send needs, and send their handles."""
    driver = devices.device_state(tensor.device).driver
    event = driver.event_create()
    driver.event_record(event)
    memory = driver.ipc_handle(tensor.data_ptr())
    pipe.send((memory, driver.event_handle(event)))
    pipe.recv()
    driver.event_destroy(event)


def measure(
    device: str, rounds: int, way: Callable[[Any, cuda.CudaTensor], None]
) -> list[float]:
    """Return the microseconds of each round for one way of sending."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    other = context.Process(target=_receive, args=(theirs, device), daemon=True)
    other.start()
    tensor = cuda.tensor([1.0] * 1024, device=device)
    took = []
    for _ in range(WARM + rounds):
        start = time.perf_counter_ns()
        way(pipe, tensor)
        took.append((time.perf_counter_ns() - start) / 1000)
    pipe.send(None)
    other.join(30)
    return took[WARM:]


def _receive(pipe: Any, device: str) -> None:
    driver = devices.device_state(device).driver
    while (arrived := pipe.recv()) is not None:
        if isinstance(arrived, tuple):
            memory, handle = arrived
            event = driver.event_open(handle)
            driver.event_wait(event)
            driver.event_destroy(event)
            base = driver.open_handle(memory)
            driver.synchronize()
            driver.close_handle(base)
        del arrived
        pipe.send(True)


def figures(device: str, rounds: int) -> dict[str, Any]:
    """Measure both ways; return medians and 90th percentiles in microseconds."""
    found: dict[str, Any] = {"device": device, "rounds": rounds}
    found["simulated"] = not device.startswith("cuda")
    for name, way in (("send and receipt", send_tensor), ("driver calls", call_driver)):
        took = measure(device, rounds, way)
        deciles = statistics.quantiles(took, n=10)
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
