"""The emulated runtime does what it is for: it delays, refuses and punishes."""

import ctypes
import json
import os
import subprocess
import sys
from multiprocessing import resource_sharer
from pathlib import Path

import pytest
from cupy.cuda import runtime
from requests_to_peers import call, fill, read, status
from sharedtensor.cuda import cuda_library
from sharedtensor_conformance.adapters.reference import ReferenceOperations
from sharedtensor_conformance.harness.kernel import process_tree
from sharedtensor_conformance.plugin import cuda_facts

ROOT = Path(__file__).parents[2]
CI, RULES = ROOT / "ci", ROOT / "tests/cuda/test_driver_rules.py"
NOT_READY = 600
NOT_IN_EXPORTER, GONE = 201, 205
INVALID_VALUE, NOT_SUPPORTED = 1, 801
REFUSED = r"failed with CUDA error 1$"
MIB = 1 << 20
POISON = b"\xdb"
FLAGS = runtime.eventDisableTiming | runtime.eventInterprocess


@pytest.fixture
def block():
    """An allocation of this process that is a block of its own and holds zeros."""
    pointer = runtime.malloc(2 * MIB)
    fill({}, pointer, bytes(64))
    runtime.deviceSynchronize()
    yield pointer
    if status({}, "pointerGetAttributes", pointer) == 0:
        status({}, "free", pointer)


def opened(peer, pointer):
    return peer.call(call, "ipcOpenMemHandle", runtime.ipcGetMemHandle(pointer))


def test_work_is_held_back_until_somebody_waits_for_it(peer, block):
    theirs = opened(peer, block)
    fill({}, block, b"new")
    assert peer.call(read, theirs, 3) == bytes(3)
    runtime.deviceSynchronize()
    assert peer.call(read, theirs, 3) == b"new"


def test_a_wait_for_an_event_lets_the_other_process_work(peer, block):
    theirs = opened(peer, block)
    event = runtime.eventCreateWithFlags(FLAGS)
    fill({}, block, b"new")
    runtime.eventRecord(event, 0)
    handle = runtime.ipcGetEventHandle(event)
    imported = peer.call(call, "ipcOpenEventHandle", handle)
    peer.call(call, "streamWaitEvent", 0, imported)
    assert peer.call(read, theirs, 3) == b"new"
    runtime.eventDestroy(event)


def test_a_wait_for_a_destroyed_event_never_ends(peer, monkeypatch):
    event = runtime.eventCreateWithFlags(FLAGS)
    runtime.eventRecord(event, 0)
    handle = runtime.ipcGetEventHandle(event)
    imported = peer.call(call, "ipcOpenEventHandle", handle)
    peer.call(call, "streamWaitEvent", 0, imported)
    runtime.eventDestroy(event)
    monkeypatch.setattr("cuda_peers.TIMEOUT", 2.0)
    with pytest.raises(TimeoutError):
        peer.call(call, "deviceSynchronize")


def test_a_query_lets_the_work_go_on(block):
    event = runtime.eventCreateWithFlags(FLAGS)
    fill({}, block, b"new")
    runtime.eventRecord(event, 0)
    assert runtime.eventQuery(event) == NOT_READY
    assert process_tree.wait_until(lambda: runtime.eventQuery(event) == 0, 10.0)
    runtime.eventDestroy(event)


def test_freed_memory_is_poisoned_where_it_is_open(peer, block):
    theirs = opened(peer, block)
    runtime.free(block)
    assert peer.call(read, theirs, 4) == 4 * POISON


def test_small_allocations_share_a_block_and_opening_returns_their_own_base(peer):
    first, second = (runtime.malloc(512) for _ in range(2))
    assert second - first == 512
    fill({}, first, b"1st")
    fill({}, second, b"2nd")
    runtime.deviceSynchronize()
    theirs = opened(peer, second)
    assert peer.call(read, theirs, 3) == b"2nd"
    assert peer.call(read, theirs - 512, 3) == b"1st"
    for pointer in (first, second):
        runtime.free(pointer)


def test_a_handle_is_refused_where_it_was_made_and_when_its_memory_is_gone(peer, block):
    handle = runtime.ipcGetMemHandle(block)
    assert status({}, "ipcOpenMemHandle", handle) == NOT_IN_EXPORTER
    runtime.free(block)
    assert peer.call(status, "ipcOpenMemHandle", handle) == GONE


def test_what_a_killed_process_had_is_given_back(peer):
    runtime.getDeviceCount()
    before = runtime.memGetInfo()[0]
    peer.call(call, "malloc", 8 * MIB)
    assert runtime.memGetInfo()[0] <= before - 16 * MIB  # its context has 8
    peer.kill()
    assert runtime.memGetInfo()[0] == before


def test_choosing_a_device_makes_a_context_on_it(new_peer):
    before = runtime.memGetInfo()[0]
    other = new_peer()
    other.call(call, "getDeviceCount")
    assert runtime.memGetInfo()[0] == before
    other.call(call, "setDevice", 0)
    assert runtime.memGetInfo()[0] == before - 8 * MIB


# Virtual memory


def call_driver(function, *arguments):
    """Call a function of the driver's library and return CUDA's number of the error."""
    try:
        cuda_library._call(cuda_library.library(), function, *arguments)
    except cuda_library.CudaLibraryError as error:
        return error.status
    return 0


@pytest.fixture
def memory():
    """A handle of 2 MiB of virtual memory that can be exported."""
    handle = cuda_library.create(0, cuda_library.DESCRIPTOR, 2 * MIB)
    yield handle
    call_driver("cuMemRelease", handle)


@pytest.fixture
def reserved():
    """Addresses of 4 MiB at which nothing is mapped."""
    address = ctypes.c_uint64()
    call_driver("cuMemAddressReserve", ctypes.byref(address), 4 * MIB, 0, 0, 0)
    yield address.value
    call_driver("cuMemAddressFree", address.value, 4 * MIB)


def test_virtual_memory_is_mapped_as_the_manual_says(memory, reserved):
    size, beyond = 2 * MIB, reserved + 4 * MIB
    assert call_driver("cuMemMap", beyond, size, 0, memory, 0) == INVALID_VALUE
    assert call_driver("cuMemMap", reserved, MIB, 0, memory, 0) == INVALID_VALUE
    assert call_driver("cuMemMap", reserved, size, size, memory, 0) == INVALID_VALUE
    assert call_driver("cuMemMap", reserved, size, 0, memory, 0) == 0
    assert call_driver("cuMemMap", reserved, size, 0, memory, 0) == INVALID_VALUE
    assert call_driver("cuMemUnmap", reserved, MIB) == INVALID_VALUE
    assert call_driver("cuMemAddressFree", reserved, 4 * MIB) == INVALID_VALUE
    assert call_driver("cuMemUnmap", reserved, size) == 0
    assert call_driver("cuMemUnmap", reserved, size) == INVALID_VALUE


def test_a_mapping_begins_without_access(memory, reserved):
    access = ctypes.byref((ctypes.c_int * 3)(1, 0, cuda_library.READ_AND_WRITE))
    assert call_driver("cuMemMap", reserved, 2 * MIB, 0, memory, 0) == 0
    with pytest.raises(runtime.CUDARuntimeError):
        fill({}, reserved, b"data")
    for size, expected in ((4 * MIB, INVALID_VALUE), (2 * MIB, 0)):
        assert call_driver("cuMemSetAccess", reserved, size, access, 1) == expected
    fill({}, reserved, b"data")
    assert read({}, reserved, 4) == b"data"
    assert call_driver("cuMemUnmap", reserved, 2 * MIB) == 0


def test_virtual_memory_goes_with_its_last_handle_mapping_or_descriptor(reserved):
    runtime.getDeviceCount()
    before = runtime.memGetInfo()[0]
    handle = cuda_library.create(0, cuda_library.DESCRIPTOR, 2 * MIB)
    assert call_driver("cuMemMap", reserved, 2 * MIB, 0, handle, 0) == 0
    fd = cuda_library.export(reserved)
    for step in (("cuMemRelease", handle), ("cuMemUnmap", reserved, 2 * MIB)):
        assert call_driver(*step) == 0
        assert runtime.memGetInfo()[0] == before - 2 * MIB
    assert call_driver("cuMemRelease", handle) == INVALID_VALUE
    again, other = (cuda_library.import_descriptor(fd) for _ in range(2))
    assert again != other
    os.close(fd)
    for handle in (again, other):
        assert runtime.memGetInfo()[0] == before - 2 * MIB
        cuda_library.release(handle)
    assert runtime.memGetInfo()[0] == before


def import_status(held, handed):
    """Import a descriptor and return CUDA's number of the error."""
    try:
        cuda_library.release(cuda_library.import_descriptor(handed.detach()))
    except cuda_library.CudaLibraryError as error:
        return error.status
    return 0


@pytest.mark.parametrize(("visible", "expected"), [("0", 0), ("1", NOT_SUPPORTED)])
def test_a_descriptor_is_imported_where_its_device_is_visible(
    new_peer, memory, visible, expected
):
    base = cuda_library.map_handles(0, [memory], [2 * MIB])
    fd = cuda_library.export(base)
    other = new_peer(CUDA_VISIBLE_DEVICES=visible)
    assert other.call(import_status, resource_sharer.DupFd(fd)) == expected
    os.close(fd)
    cuda_library.unmap(base, [2 * MIB], 2 * MIB)


def test_what_is_not_exportable_or_no_memory_is_refused():
    with pytest.raises(cuda_library.CudaLibraryError, match=REFUSED):
        cuda_library.create(0, cuda_library.DESCRIPTOR, MIB)
    private = cuda_library.create(0, 0, 2 * MIB)
    base = cuda_library.map_handles(0, [private], [2 * MIB])
    cuda_library.release(private)
    with pytest.raises(cuda_library.CudaLibraryError, match=REFUSED):
        cuda_library.export(base)
    cuda_library.unmap(base, [2 * MIB], 2 * MIB)
    no_memory = os.open(os.devnull, os.O_RDONLY)
    with pytest.raises(cuda_library.CudaLibraryError, match=REFUSED):
        cuda_library.import_descriptor(no_memory)
    os.close(no_memory)


@pytest.mark.parametrize(
    ("visible", "seen"),
    [("1", [1]), ("1,0", [1, 0]), ("0,7,1", [0]), ("", []), ("GPU-656d756c", [0])],
)
def test_a_process_sees_the_devices_that_it_is_let_see(new_peer, visible, seen):
    other = new_peer(CUDA_VISIBLE_DEVICES=visible)
    if not seen:
        assert other.call(status, "getDeviceCount") != 0
        return
    assert other.call(call, "getDeviceCount") == len(seen)
    names = [
        other.call(call, "getDeviceProperties", index)["name"]
        for index in range(len(seen))
    ]
    assert names == [f"Emulated {device}".encode() for device in seen]


def test_a_fault_can_be_injected(new_peer):
    other = new_peer(EMULATED_CUDA_FAIL="cudaMalloc:2:2")
    statuses = [other.call(status, "malloc", 64) for _ in range(3)]
    assert statuses == [0, 2, 0]


@pytest.mark.parametrize(
    ("device", "status", "said"),
    [("emulated", 0, " passed"), ("cuda", 4, "the CUDA runtime here is emulated")],
)
def test_the_rules_of_device_memory_hold_on_it_and_name_it(device, status, said):
    command = (sys.executable, "-m", "pytest", "-q", RULES, f"--device={device}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout
    assert said in done.stdout + done.stderr


def test_it_is_never_judged_as_cuda():
    operations = ReferenceOperations()
    assert "emulated one" in operations.device_unavailable("cuda")
    assert operations.device_unavailable("emulated") == ""


def test_the_facts_of_a_report_are_those_of_the_machine():
    found = cuda_facts.facts_of()
    assert found["emulated"]
    assert [gpu["name"] for gpu in found["gpus"]] == ["Emulated 0", "Emulated 1"]
    assert found["runtimes"] == {"cupy": "13.0"}


def run_program(name, *options):
    command = [sys.executable, CI / name, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", ["send_cost.py", "gpu_fitness.py"])
def test_programs_for_a_device_refuse_the_emulated_runtime(name):
    done = run_program(name)
    assert done.returncode == 2
    assert "emulated" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["gpu_gate.py", "gpu_checks.py"])
def test_gate_and_checks_refuse_the_emulated_runtime(name, tmp_path):
    done = run_program(name, "--lock", tmp_path / "lock", "--python", sys.executable)
    assert done.returncode == 2
    assert "which never counts as CUDA" in done.stderr


def test_what_a_rehearsal_writes_says_emulated(tmp_path):
    cost = tmp_path / "cost.json"
    done = run_program("send_cost.py", "--emulated", "--rounds", "3", "--out", cost)
    assert done.returncode == 0, done.stderr
    assert json.loads(cost.read_text())["emulated"] is True
    facts = tmp_path / "facts.json"
    assert run_program("gpu_fitness.py", "--emulated", "--facts", facts).returncode == 0
    assert json.loads(facts.read_text())["emulated"] is True
