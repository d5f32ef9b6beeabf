"""Checks whether a device keeps the rules of the simulated device.

The guide `docs/guides/cuda-protocol.md` states the rules, in a table.
The same checks run on `sim:0` and on `cuda:0`, through the same `Driver` interface.
Behaviour that the manuals leave undefined is not provoked on a real device: a rule
without a check is listed as not checked, with its basis. Exit status: 0 all checked
rules are kept, 1 a rule is not kept, 2 there is no device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sharedtensor import cuda
from sharedtensor.cuda import devices
from sharedtensor.cuda.errors import DeviceError, ForkError, OutOfDeviceMemoryError
from sharedtensor_conformance.adapters.reference import is_emulated
from sharedtensor_conformance.harness.kernel.process_tree import wait_until

TIMEOUT = 60.0
FORK_TIMEOUT = 15.0
OLD, NEW, NEWER = b"old.....", b"new.....", b"newer..."
GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "cuda-protocol.md"
RULE = re.compile(r"^\| ([a-z-]+) \| .+ \| (\w+) \| .+ \|$", re.MULTILINE)
Check = Callable[[Any, "Other"], bool]
CHECKS: dict[str, Check] = {}


class Peer:
    """Another process, which calls functions in the order in which it is asked to.

    The first argument of a function is a dictionary in which it keeps what it holds.
    """

    def __init__(self, method: str = "spawn") -> None:
        context: Any = multiprocessing.get_context(method)
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Have the peer call a function; return its result or raise its error."""
        self._pipe.send((function, arguments))
        if not self._pipe.poll(TIMEOUT):
            raise TimeoutError(f"The peer did not answer to {function.__name__}.")
        kind, value = self._pipe.recv()
        if kind == "error":
            raise value
        return value

    def end(self) -> None:
        """Make the peer exit normally, and wait for it."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._join()

    def kill(self) -> None:
        """Kill the peer by SIGKILL, and wait for it."""
        self.process.kill()
        self._join()

    def _join(self) -> None:
        self._pipe.close()
        self.process.join(TIMEOUT)
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError("The peer did not end.")


def _serve(pipe: Any) -> None:
    held: dict[str, Any] = {}
    while (request := pipe.recv()) is not None:
        function, arguments = request
        del request
        try:
            answer = "value", function(held, *arguments)
        except Exception as error:
            answer = "error", error
        del arguments  # the peer holds what it put in `held` and nothing else
        pipe.send(answer)
        del answer


class Other(Peer):
    """A second process, which executes calls with its own driver of the device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self.call, _drive, self._device, method)


def _drive(held: dict[str, Any], device: str, method: str, *arguments: Any) -> Any:
    return getattr(devices.device_state(device).driver, method)(*arguments)


def rule(name: str) -> Callable[[Check], Check]:
    """Register the check of a rule."""

    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


@contextlib.contextmanager
def block(driver: Any, nbytes: int = 1024) -> Iterator[int]:
    """Yield an allocation that begins with OLD."""
    base = driver.allocate(nbytes)
    driver.copy_to_device(base, OLD)
    driver.synchronize()
    try:
        yield base
    finally:
        driver.free(base)


@contextlib.contextmanager
def opened(driver: Any, other: Other) -> Iterator[tuple[int, int]]:
    """Yield an allocation, and its address in the other process."""
    with block(driver) as base:
        theirs = other.open_handle(driver.ipc_handle(base))
        try:
            yield base, theirs
        finally:
            other.close_handle(theirs)


def refuses(call: Callable[..., object], *arguments: Any) -> bool:
    """Return whether a call raises an error of the library."""
    try:
        call(*arguments)
    except DeviceError:
        return True
    return False


@rule("whole-allocation")
def _whole_allocation(driver: Any, other: Other) -> bool:
    with block(driver) as base:
        driver.copy_to_device(base + 512, NEW)
        driver.synchronize()
        theirs = other.open_handle(driver.ipc_handle(base + 512))
        found = other.copy_to_host(theirs, 8), other.copy_to_host(theirs + 512, 8)
        other.close_handle(theirs)
    return found == (OLD, NEW)


@rule("unique-handle")
def _unique_handle(driver: Any, other: Other) -> bool:
    handles = []
    for _ in range(4):
        with block(driver) as base:
            handles.append(driver.ipc_handle(base))
    return len(set(handles)) == len(handles)


@rule("open-counts")
def _open_counts(driver: Any, other: Other) -> bool:
    with opened(driver, other) as (base, theirs):
        again = other.open_handle(driver.ipc_handle(base))
        other.close_handle(again)
        return bool(again == theirs and other.copy_to_host(theirs, 8) == OLD)


@rule("close-leaves-the-rest")
def _close_leaves_the_rest(driver: Any, other: Other) -> bool:
    with block(driver) as base:
        with opened(driver, other):
            other.close_handle(other.open_handle(driver.ipc_handle(base)))
        return bool(driver.copy_to_host(base, 8) == OLD)


@rule("not-in-exporter")
def _not_in_exporter(driver: Any, other: Other) -> bool:
    with block(driver) as base:
        return refuses(driver.open_handle, driver.ipc_handle(base))


@rule("exporter-outlives")
def _exporter_outlives(driver: Any, other: Other) -> bool:
    maker = Other(driver.name)
    maker.synchronize()  # from now on its own part of the device is in use
    free, total = driver.memory_info()
    maker.ipc_handle(maker.allocate(total // 16))
    taken = free - driver.memory_info()[0]
    maker.end()
    is_back = wait_until(lambda: driver.memory_info()[0] >= free, TIMEOUT)
    return bool(taken >= total // 16 and is_back)


@rule("copy-to-host-completes")
def _copy_to_host_completes(driver: Any, other: Other) -> bool:
    with block(driver) as base:
        driver.copy_to_device(base, NEW)
        return bool(driver.copy_to_host(base, 8) == NEW)


@rule("synchronize-completes")
def _synchronize_completes(driver: Any, other: Other) -> bool:
    with opened(driver, other) as (base, theirs):
        driver.copy_to_device(base, NEW)
        driver.synchronize()
        return bool(other.copy_to_host(theirs, 8) == NEW)


@rule("wait-orders-what-follows")
def _wait_orders(driver: Any, other: Other) -> bool:
    with opened(driver, other) as (base, theirs):
        event = driver.event_create()
        driver.copy_to_device(base, NEW)
        driver.event_record(event)
        there = other.event_open(driver.event_handle(event))
        other.event_wait(there)
        found = other.copy_to_host(theirs, 8)
        other.event_destroy(there)
        driver.event_destroy(event)
        return bool(found == NEW)


@rule("either-side-records")
def _either_side_records(driver: Any, other: Other) -> bool:
    with opened(driver, other) as (base, theirs):
        event = driver.event_create()
        there = other.event_open(driver.event_handle(event))
        other.copy_to_device(theirs, NEWER)
        other.event_record(there)
        driver.event_wait(event)
        found = driver.copy_to_host(base, 8)
        other.event_destroy(there)
        driver.event_destroy(event)
        return bool(found == NEWER)


@rule("record-captures")
def _record_captures(driver: Any, other: Other) -> bool:
    event = driver.event_create()
    driver.event_synchronize(event)  # an event that was not recorded is complete
    driver.event_record(event)
    driver.event_synchronize(event)
    driver.event_destroy(event)
    return True


@rule("memory-is-finite")
def _memory_is_finite(driver: Any, other: Other) -> bool:
    free, total = driver.memory_info()
    try:
        driver.allocate(2 * total)
    except OutOfDeviceMemoryError:
        with block(driver, total // 16):
            return bool(free - driver.memory_info()[0] >= total // 16)
    return False


@rule("alignment")
def _alignment(driver: Any, other: Other) -> bool:
    with contextlib.ExitStack() as held:
        sizes = (8, 257, 512, 4097)
        return all(held.enter_context(block(driver, n)) % 256 == 0 for n in sizes)


@rule("free-once")
def _free_once(driver: Any, other: Other) -> bool:
    with block(driver) as base:
        inside = refuses(driver.free, base + 256)
    return inside and refuses(driver.free, base)


@rule("no-stray-access")
def _no_stray_access(driver: Any, other: Other) -> bool:
    with block(driver) as base:
        start, size = driver.allocation_of(base)
        return refuses(driver.copy_to_host, start + size - 4, 8)


@rule("device-index")
def _device_index(driver: Any, other: Other) -> bool:
    kind = driver.name.partition(":")[0]
    return refuses(devices.device_state, f"{kind}:{cuda.device_count(kind)}")


@rule("no-fork")
def _no_fork(driver: Any, other: Other) -> bool:
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_expect_fork_error, args=(driver,))
    child.start()
    child.join(FORK_TIMEOUT)
    if child.is_alive():
        child.kill()
    return child.exitcode == 0


def _expect_fork_error(driver: Any) -> None:
    """Exit with 0 if the library refuses, and below it the runtime, if there is one."""
    runtime = getattr(driver, "_runtime", None)
    library = _library_refuses(driver)
    sys.exit(not (library and (runtime is None or _runtime_refuses(runtime))))


def _library_refuses(driver: Any) -> bool:
    try:
        driver.memory_info()
    except ForkError:
        return True
    return False


def _runtime_refuses(runtime: Any) -> bool:
    try:
        runtime.malloc(1)
    except runtime.CUDARuntimeError:
        return True
    return False


def read_rules() -> dict[str, str]:
    """Return the basis of each rule."""
    _, _, table = GUIDE.read_text().partition("| rule |")
    return dict(RULE.findall(table))


def judge(device: str) -> dict[str, str]:
    """Return the result for each rule: kept, not kept (why), or not checked."""
    driver = devices.device_state(device).driver
    other = Other(device)
    try:
        return {name: _judged(name, driver, other) for name in read_rules()}
    finally:
        other.end()


def _judged(name: str, driver: Any, other: Other) -> str:
    if name not in CHECKS:
        return "not checked"
    try:
        return "kept" if CHECKS[name](driver, other) else "not kept"
    except (DeviceError, TimeoutError) as error:
        return f"not kept: {error}"


def main(arguments: list[str] | None = None) -> int:
    """Judge a device, print and write the results; return the exit status."""
    parser = argparse.ArgumentParser(prog="gpu_rules.py", description=__doc__)
    text = "cuda:0 or sim:0 (default: %(default)s)"
    parser.add_argument("--device", default="cuda:0", help=text)
    parser.add_argument("--out", metavar="FILE", help="write the results as JSON")
    text = "check the emulated runtime; the results say so"
    parser.add_argument("--emulated", action="store_true", help=text)
    options = parser.parse_args(arguments)
    if options.emulated and not is_emulated():
        print("gpu_rules.py: there is no emulated CUDA runtime here", file=sys.stderr)
        return 2
    if options.device.startswith("cuda") and is_emulated() and not options.emulated:
        print("gpu_rules.py: the CUDA runtime here is emulated", file=sys.stderr)
        return 2
    try:
        found = judge(options.device)
    except (DeviceError, TimeoutError) as error:
        print(f"gpu_rules.py: {error}", file=sys.stderr)
        return 2
    label = options.device + " (emulated)" * options.emulated
    basis = read_rules()
    for name, said in found.items():
        print(f"{label}  {name} ({basis[name]}): {said}")
    if options.out:
        head = {"device": options.device, "emulated": options.emulated}
        text = json.dumps({**head, "rules": found}, indent=1)
        Path(options.out).write_text(f"{text}\n")
    return 1 if any(said.startswith("not kept") for said in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
