"""The CuPy backend with one fault each: ``--impl=faulty_backends:NAME``.

The mutants of the suite are faults of the protocol, which every device shares. These
are faults of the backend for real devices, so it takes a CUDA runtime to see them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sharedtensor.cuda import cuda_library, protocol, reducers
from sharedtensor.cuda.cupy_driver import CupyDriver
from sharedtensor.cuda.errors import (
    DeviceError,
    DeviceUnavailableError,
    OutOfDeviceMemoryError,
)
from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapters.reference import (
    ReferenceOperations,
    conformance_adapter,
)

Method = Callable[..., Any]


@dataclass(frozen=True)
class Fault:
    """A fault: the function that it replaces, and the clause that it breaks."""

    function: str
    clause: str
    fault: Callable[[Method], Method]


FAULTS: dict[str, Fault] = {}


def breaks(
    clause: str, function: str, *, of: Any = CupyDriver
) -> Callable[[Callable[[Method], Method]], Implementation]:
    """Register a fault of a function under its own name, and make an adapter of it.

    The function is a method of the driver, or one `of` a module of the backend.
    """

    def register(fault: Callable[[Method], Method]) -> Implementation:
        name = fault.__name__
        FAULTS[name] = Fault(function, clause, fault)

        def __init__(self: ReferenceOperations) -> None:
            ReferenceOperations.__init__(self)
            setattr(of, function, fault(getattr(of, function)))

        operations = f"{name}_operations"
        globals()[operations] = type(
            operations, (ReferenceOperations,), {"__init__": __init__}
        )
        target = f"{__name__}:{operations}"
        return replace(conformance_adapter, name=name, operations=target)

    return register


@breaks("CUDA-6", "event_wait")
def ignores_events(event_wait: Method) -> Method:
    """Later work does not wait for an event."""
    return lambda driver, event: None


@breaks("CUDA-6", "event_record")
def records_nothing(event_record: Method) -> Method:
    """An event stands for no work."""
    return lambda driver, event: None


@breaks("CUDA-29", "event_record")
def records_an_event_once(event_record: Method) -> Method:
    """Of all events of a process the first alone is recorded, once it was sent."""
    recorded: list[int] = []

    def record_few(driver: CupyDriver, event: int) -> None:
        recorded.append(event)
        if len(recorded) < 8:
            event_record(driver, event)

    return record_few


@breaks("CUDA-27", "close_handle")
def never_closes(close_handle: Method) -> Method:
    """What was opened stays open."""
    return lambda driver, base: None


@breaks("CUDA-27", "free")
def never_frees(free: Method) -> Method:
    """What was allocated stays allocated."""
    return lambda driver, base: None


@breaks("CUDA-25", "synchronize")
def synchronises_nothing(synchronize: Method) -> Method:
    """Nobody waits for the device."""
    return lambda driver: None


@breaks("CUDA-26", "allocate")
def takes_a_lack_of_memory_for_a_failure(allocate: Method) -> Method:
    """Memory that is short is reported as any other error is."""

    def allocate_or_fail(driver: CupyDriver, nbytes: int) -> int:
        try:
            return allocate(driver, nbytes)
        except OutOfDeviceMemoryError as error:
            raise DeviceError(str(error)) from None

    return allocate_or_fail


@breaks("CUDA-8", "copy_to_device")
def copies_all_but_the_last_byte(copy_to_device: Method) -> Method:
    """The last byte of a copy to the device stays behind."""
    return lambda driver, pointer, data: copy_to_device(driver, pointer, data[:-1])


@breaks("CUDA-20", "open_handle")
def opens_beside_the_base(open_handle: Method) -> Method:
    """What is opened is taken to begin with the driver's block."""

    def open_block(driver: CupyDriver, handle: bytes) -> int:
        base = open_handle(driver, handle)
        block, _ = driver.allocation_of(base)
        driver._opened[block + 256] = driver._opened.pop(base)
        return block + 256

    return open_block


@breaks("CUDA-30", "device_identity", of=cuda_library)
def knows_devices_by_their_index(device_identity: Method) -> Method:
    """A message names a device by the sender's index, and not by its UUID."""
    return str


@breaks("CUDA-30", "local_name", of=reducers)
def takes_the_first_device_for_one_that_it_cannot_use(local_name: Method) -> Method:
    """A tensor on a device that the receiver does not see arrives on another one."""

    def name_or_first(identity: str) -> str:
        try:
            return str(local_name(identity))
        except DeviceUnavailableError:
            return "cuda:0"

    return name_or_first


@breaks("CUDA-4", "refuse", of=protocol)
def counts_what_was_refused(refuse: Method) -> Method:
    """A message counts for ever that is refused for want of its device."""
    return lambda message: None
