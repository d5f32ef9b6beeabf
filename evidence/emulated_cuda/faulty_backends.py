"""The CuPy backend with one fault each: ``--impl=faulty_backends:NAME``.

The mutants of the suite are faults of the protocol, which every device shares. These
are faults of the backend for real devices, so it takes a CUDA runtime to see them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sharedtensor.cuda.cupy_driver import BLOCK, CupyDriver
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
from sharedtensor_conformance.mutants.registry import apply, mutant

Method = Callable[..., Any]
OPERATIONS = "operations_of_"
CLAUSES: dict[str, str] = {}
"""The faults by name, each with the clause that it breaks."""


def breaks(
    clause: str, replaces: str
) -> Callable[[Callable[[Method], Method]], Implementation]:
    """Register a fault under its own name, and make an adapter of it."""

    def register(fault: Callable[[Method], Method]) -> Implementation:
        name = fault.__name__
        CLAUSES[name] = clause
        mutant(f"{name} in the backend", clause, replaces=f"cuda.{replaces}")(fault)
        operations = f"{__name__}:{OPERATIONS}{name}"
        return replace(conformance_adapter, name=name, operations=operations)

    return register


def __getattr__(name: str) -> Any:
    """Return the operations that an adapter names, and apply its fault."""
    if not name.startswith(OPERATIONS):
        raise AttributeError(name)
    apply(f"{name.removeprefix(OPERATIONS)} in the backend")
    return ReferenceOperations


@breaks("CUDA-6", "cupy_driver.CupyDriver.event_wait")
def ignores_events(event_wait: Method) -> Method:
    """Later work does not wait for an event."""
    return lambda driver, event: None


@breaks("CUDA-6", "cupy_driver.CupyDriver.event_record")
def records_nothing(event_record: Method) -> Method:
    """An event stands for no work."""
    return lambda driver, event: None


@breaks("CUDA-29", "cupy_driver.CupyDriver.event_record")
def records_an_event_once(event_record: Method) -> Method:
    """Of all events of a process the first alone is recorded, once it was sent."""
    recorded: list[int] = []

    def record_few(driver: CupyDriver, event: int) -> None:
        recorded.append(event)
        if len(recorded) < 8:
            event_record(driver, event)

    return record_few


@breaks("CUDA-27", "cupy_driver.CupyDriver.close_handle")
def never_closes(close_handle: Method) -> Method:
    """What was opened stays open."""
    return lambda driver, base: None


@breaks("CUDA-27", "cupy_driver.CupyDriver.free")
def never_frees(free: Method) -> Method:
    """What was allocated stays allocated."""
    return lambda driver, base: None


@breaks("CUDA-25", "cupy_driver.CupyDriver.synchronize")
def synchronises_nothing(synchronize: Method) -> Method:
    """Nobody waits for the device."""
    return lambda driver: None


@breaks("CUDA-26", "cupy_driver.CupyDriver.allocate")
def takes_a_lack_of_memory_for_a_failure(allocate: Method) -> Method:
    """Memory that is short is reported as any other error is."""

    def allocate_or_fail(driver: CupyDriver, nbytes: int) -> int:
        try:
            return allocate(driver, nbytes)
        except OutOfDeviceMemoryError as error:
            raise DeviceError(str(error)) from None

    return allocate_or_fail


@breaks("CUDA-8", "cupy_driver.CupyDriver.copy_to_device")
def copies_all_but_the_last_byte(copy_to_device: Method) -> Method:
    """The last byte of a copy to the device stays behind."""
    return lambda driver, pointer, data: copy_to_device(driver, pointer, data[:-1])


@breaks("CUDA-20", "cupy_driver.CupyDriver.open_handle")
def opens_beside_the_base(open_handle: Method) -> Method:
    """What is opened is taken to begin with the driver's block."""

    def open_block(driver: CupyDriver, handle: bytes) -> int:
        base = open_handle(driver, handle)
        block, _ = driver.allocation_of(base)
        driver._opened[block + 256] = driver._opened.pop(base)
        return block + 256

    return open_block


@breaks("CUDA-30", "cuda_library.device_identity")
def knows_devices_by_their_index(device_identity: Method) -> Method:
    """A message names a device by the sender's index, and not by its UUID."""
    return str


@breaks("CUDA-30", "reducers.local_name")
def takes_the_first_device_for_one_that_it_cannot_use(local_name: Method) -> Method:
    """A tensor on a device that the receiver does not see arrives on another one."""

    def name_or_first(identity: str) -> str:
        try:
            return str(local_name(identity))
        except DeviceUnavailableError:
            return "cuda:0"

    return name_or_first


@breaks("CUDA-4", "protocol.refuse")
def counts_what_was_refused(refuse: Method) -> Method:
    """A message counts for ever that is refused for want of its device."""
    return lambda message: None


@breaks("CUDA-39", "cuda_library.release")
def keeps_handles_of_virtual_memory(release: Method) -> Method:
    """The handle of virtual memory is kept when it is mapped."""
    return lambda handle: None


@breaks("CUDA-40", "cuda_library.export")
def exports_descriptors_twice(export: Method) -> Method:
    """Of two descriptors that are exported one is forgotten."""
    return lambda address: (export(address), export(address))[1]


@breaks("CUDA-41", "cuda_library.export")
def exports_the_first_piece_again(export: Method) -> Method:
    """A descriptor leads to the memory before the one that it is for."""
    before: list[int] = []

    def export_one_before(address: int) -> int:
        goes_on = before and 0 < address - before[-1] <= BLOCK
        before.append(before[-1] if goes_on else address)
        return int(export(before[-1]))

    return export_one_before


@breaks("CUDA-42", "cupy_driver.CupyDriver.map_new")
def exports_all_virtual_memory(map_new: Method) -> Method:
    """All virtual memory is made to be exported."""
    return lambda driver, sizes, is_exportable: map_new(driver, sizes, True)
