"""Which devices there are, and what this process shares on each.

A real device and the simulated one never stand in for each other: the simulated
device must be asked for by name, and its name, `sim:0`, is part of every tensor
on it.
"""

from __future__ import annotations

import os
import threading
from multiprocessing import util

from .. import atomic
from . import cupy_driver, protocol
from .driver import Driver
from .errors import DeviceError, DeviceUnavailableError
from .simulated import DEFAULT_MEMORY, DEVICES, find_or_create
from .state import DeviceState, used_twice

_SIMULATED = "sim:0"
# Behind Process.join of children (which may hold tensors of ours) and behind
# the feeder threads of queues (which may still have to send some).
_EXIT_PRIORITY = -100

_states: dict[str, DeviceState] = {}
_lock = threading.RLock()
_beginning: set[str] = set()  # devices whose use a thread begins that has the lock
_default: str | None = None

# A child forked while another thread is in here must not inherit the lock taken:
# it is to be refused, not to hang.
os.register_at_fork(
    before=_lock.acquire,
    after_in_parent=_lock.release,
    after_in_child=_lock.release,
)


def is_available() -> bool:
    """Return whether there is a real CUDA device; the simulated one never counts."""
    return unavailable_reason() is None


def unavailable_reason() -> str | None:
    """Return in one sentence why there is no real CUDA device; None if there is."""
    # It may import CuPy, and a fork waits for that.
    return atomic.under(_lock, cupy_driver.unavailable_reason)


def device_count(kind: str = "cuda") -> int:
    """Return how many devices there are of a kind, `cuda` or `sim`."""
    if kind == "sim":
        return DEVICES
    return atomic.under(_lock, cupy_driver.device_count)


def use_simulated_device(memory: int = DEFAULT_MEMORY) -> str:
    """Make the simulated device the default and return its name, `sim:0`.

    Its size is settled by the first process that uses it. Call this before
    starting processes that make tensors of their own, so that they find it.

    Raises DeviceError if this run's device exists with another size than asked.
    """
    global _default
    state = device_state(_SIMULATED, memory=memory)
    size = state.driver.memory_info()[1]
    if memory != DEFAULT_MEMORY and memory != size:
        raise DeviceError(
            f"The simulated device of this run has {size} bytes already, not "
            f"{memory}; ask for a size before its first use."
        )
    _default = _SIMULATED
    return _SIMULATED


def synchronize(device: str | None = None) -> None:
    """Complete all work of this process on a device. Clause CUDA-3."""
    state = device_state(device)
    state.use(protocol.finish_work, state)


def ipc_collect(device: str | None = None) -> None:
    """Free memory that receivers have released. Clause CUDA-4."""
    protocol.collect(device_state(device))


def memory_info(device: str | None = None) -> tuple[int, int]:
    """Return free and total bytes of a device, over all its processes."""
    state = device_state(device)
    return state.use(state.driver.memory_info)


def device_state(
    device: str | None,
    *,
    handle: bytes | None = None,
    memory: int = DEFAULT_MEMORY,
) -> DeviceState:
    """Return what this process shares on a device, starting to use it if need be.

    A handle leads to the simulated device of the process that sent it.

    Raises DeviceError for a name that is none, and in a handler of a signal that has
    interrupted this very step; DeviceUnavailableError for a device that does not exist.
    """
    kind, index = _parts(device or _default or "cuda:0")
    name = f"{kind}:{index}"
    known = _states.get(name)
    if known is not None:
        return known
    return atomic.under(_lock, _find_or_begin, name, kind, index, handle, memory)


def _find_or_begin(
    name: str, kind: str, index: int, handle: bytes | None, memory: int
) -> DeviceState:
    if name in _beginning:
        raise used_twice(name)
    if name not in _states:
        _beginning.add(name)
        try:
            _states[name] = _begin_use(kind, index, handle, memory)
        finally:
            _beginning.remove(name)
    return _states[name]


def _begin_use(kind: str, index: int, handle: bytes | None, memory: int) -> DeviceState:
    _refuse_absent(kind, index)
    driver: Driver
    if kind == "cuda":
        driver = cupy_driver.CupyDriver(index)
    else:
        driver = find_or_create(memory, handle, index)
    state = DeviceState(driver)
    util.Finalize(None, protocol.shut_down, (state,), exitpriority=_EXIT_PRIORITY)
    return state


def local_name(identity: str) -> str:
    """Return the name in this process of a device that a sender named. Clause CUDA-30.

    Raises DeviceUnavailableError if this process does not see it.
    """
    if identity.startswith("sim:"):
        return identity
    return f"cuda:{atomic.under(_lock, cupy_driver.index_of, identity)}"


def _parts(device: str) -> tuple[str, int]:
    kind, _, index = device.partition(":")
    if kind not in ("sim", "cuda") or not (index or "0").isdecimal():
        raise DeviceError(
            f"{device!r} names no device; write 'cuda:0' or 'sim:0', for example."
        )
    return kind, int(index or 0)


def _refuse_absent(kind: str, index: int) -> None:
    name = f"{kind}:{index}"
    why = unavailable_reason() if kind == "cuda" else None
    if why:
        raise DeviceUnavailableError(
            f"There is no {name}. {why} The simulated device has to be asked for by "
            "name: device='sim:0'."
        )
    if index >= device_count(kind):
        there = ", ".join(f"{kind}:{each}" for each in range(device_count(kind)))
        raise DeviceUnavailableError(f"There is no {name}: there is {there}.")
