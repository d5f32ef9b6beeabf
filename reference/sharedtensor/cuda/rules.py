"""The rules of device memory that the protocol follows and the simulation keeps.

Each has a basis. `documented`: the manual of CUDA says so, in the section named.
`observed`: seen on the device named, though no manual promises it. `assumed`: no
manual settles it; the simulation takes the reading that is harshest to a careless
program. `interface`: a property of this interface or of the simulation, not of CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Basis = Literal["documented", "observed", "assumed", "interface"]
SEEN_ON = "NVIDIA H100 and H200, driver 580.159.04, runtime 13.2"


@dataclass(frozen=True)
class Rule:
    """One rule: its name, what it says, on what basis, and where that is found."""

    name: str
    statement: str
    basis: Basis
    source: str


RULES: tuple[Rule, ...] = (
    Rule(
        "whole-allocation",
        "A memory handle names the whole allocation: who opens it gets its base.",
        "documented",
        "CUDA Programming Guide, Interprocess Communication (the entire underlying "
        "block is shared); Runtime API, cudaIpcGetMemHandle (takes the base)",
    ),
    Rule(
        "unique-handle",
        "An allocation at the address of a freed one has another handle.",
        "documented",
        "Runtime API, cudaIpcGetMemHandle",
    ),
    Rule(
        "open-counts",
        "Opening a handle again in one process returns the same pointer and needs "
        "one more close.",
        "documented",
        "Runtime API, cudaIpcOpenMemHandle and cudaIpcCloseMemHandle",
    ),
    Rule(
        "pointer-is-local",
        "A pointer means something only in the process that got it.",
        "documented",
        "CUDA Programming Guide, Interprocess Communication",
    ),
    Rule(
        "close-leaves-the-rest",
        "Closing affects neither the exporter nor other importers.",
        "documented",
        "Runtime API, cudaIpcCloseMemHandle",
    ),
    Rule(
        "free-while-open",
        "Freeing what another process has open is undefined; in the simulation the "
        "importer then reads 0xDB or whatever is allocated there next.",
        "documented",
        "Runtime API, cudaIpcOpenMemHandle; the pattern is the simulation's",
    ),
    Rule(
        "open-memory-counts",
        "Memory that is freed while it is open counts as used until it is closed; in "
        "the simulation it can be allocated again all the same.",
        "assumed",
        "no manual says when such memory is free again; both readings are harsh",
    ),
    Rule(
        "handle-has-a-device",
        "A handle is opened on the device of its allocation and on no other.",
        "assumed",
        "Runtime API, cudaIpcOpenMemHandle enables peer access where there is some; "
        "the simulation has none",
    ),
    Rule(
        "not-in-exporter",
        "A handle cannot be opened in the process that exported it.",
        "observed",
        f"{SEEN_ON}; Runtime API, cudaIpcOpenMemHandle lists "
        "cudaErrorDeviceUninitialized without saying when",
    ),
    Rule(
        "exporter-outlives",
        "The end of the exporting process frees its allocations.",
        "observed",
        f"{SEEN_ON}; the Driver API says only that destroying a context destroys its "
        "resources",
    ),
    Rule(
        "copy-to-device-is-pending",
        "A copy to the device may be pending after the call has returned.",
        "documented",
        "Runtime API, API synchronization behavior",
    ),
    Rule(
        "copy-to-host-completes",
        "A copy to the host comes after the earlier work of its own process and is "
        "complete when the call returns.",
        "documented",
        "Runtime API, API synchronization behavior and Stream synchronization behavior",
    ),
    Rule(
        "others-work-is-invisible",
        "Pending work of another process is not ordered with one's own unless an "
        "event of it was waited for.",
        "documented",
        "CUDA Programming Guide, Streams (work in different streams is unordered)",
    ),
    Rule(
        "record-captures",
        "An event stands for the work before its latest record; before the first "
        "record for none.",
        "documented",
        "Runtime API, cudaEventRecord",
    ),
    Rule(
        "wait-orders-what-follows",
        "Work submitted after a wait comes after what the event stood for at the "
        "time of the wait.",
        "documented",
        "Runtime API, cudaStreamWaitEvent and cudaEventRecord",
    ),
    Rule(
        "event-dies-with-its-exporter",
        "An imported event is undefined once its exporter has destroyed it, also to a "
        "wait that is pending; the simulation raises.",
        "documented",
        "Runtime API, cudaIpcGetEventHandle and cudaIpcOpenEventHandle",
    ),
    Rule(
        "either-side-records",
        "An imported event can be recorded by the importer and waited for by the "
        "exporter.",
        "documented",
        "Runtime API, cudaIpcGetEventHandle",
    ),
    Rule(
        "synchronize-completes",
        "Synchronising the device completes all work of the process.",
        "documented",
        "Runtime API, cudaDeviceSynchronize",
    ),
    Rule(
        "exit-drops-pending-work",
        "Work that was pending when its process ended may never be done; the "
        "simulation drops it.",
        "assumed",
        "no manual promises its completion",
    ),
    Rule(
        "no-fork",
        "A device used before a fork cannot be used in the child.",
        "observed",
        f"{SEEN_ON}; the runtime fails with an initialization error there "
        "(pytorch#40403)",
    ),
    Rule(
        "memory-is-finite",
        "An allocation that does not fit is refused; memory_info tells free and "
        "total bytes of the device, all processes together.",
        "documented",
        "Runtime API, cudaMalloc and cudaMemGetInfo",
    ),
    Rule(
        "uninitialised",
        "New memory is not cleared.",
        "documented",
        "Runtime API, cudaMalloc",
    ),
    Rule(
        "alignment",
        "An allocation is aligned to at least 256 bytes.",
        "documented",
        "CUDA Programming Guide, Device Memory Accesses",
    ),
    Rule(
        "no-stray-access",
        "Access outside the allocations that this process made or has open is an "
        "error.",
        "documented",
        "Runtime API, cudaErrorIllegalAddress",
    ),
    Rule(
        "free-once",
        "Only the base of an own allocation can be freed, and once.",
        "documented",
        "Runtime API, cudaFree",
    ),
    Rule(
        "device-index",
        "A device that does not exist is refused.",
        "documented",
        "Runtime API, cudaSetDevice (cudaErrorInvalidDevice)",
    ),
    Rule(
        "same-simulated-devices",
        "All processes of a run use the same two simulated devices, found through "
        "SHAREDTENSOR_SIMULATED_DEVICE, the parent, or a handle.",
        "interface",
        "the simulation's own",
    ),
    Rule(
        "nothing-is-left",
        "When all its processes have ended, however they ended, nothing is left of "
        "the simulated devices.",
        "interface",
        "memfd_create(2)",
    ),
)
