"""Which calls `CupyDriver` makes, on a recording stand-in: nothing here judges CUDA.

Copies, events, streams and forks are judged on the emulated runtime (`emulated_cuda`).
"""

import contextlib
import gc
import os
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_peers import run_alone
from recording_cuda import BLOCK, RecordingLibrary, RecordingRuntime
from sharedtensor import cuda
from sharedtensor.cuda import cuda_library, cupy_arrays, cupy_driver, devices
from sharedtensor.cuda.cupy_driver import CupyDriver
from sharedtensor.cuda.errors import (
    DeviceError,
    DeviceHandleError,
    DeviceUnavailableError,
    IllegalAddressError,
    OutOfDeviceMemoryError,
)

OUT_OF_MEMORY, INVALID_VALUE, NO_DEVICE, UNLOADING = 2, 1, 100, 4
NOT_SUPPORTED = 801
HANDLE = b"h" * 64


@pytest.fixture
def runtime(monkeypatch):
    """The stand-in, in the place of CuPy's runtime."""
    recording = RecordingRuntime()
    monkeypatch.setattr(cupy_driver, "_runtime", lambda: recording)
    library = RecordingLibrary(recording)
    monkeypatch.setattr(cuda_library, "library", lambda: library)
    monkeypatch.setattr(cupy_driver, "_current_stream", lambda index: 0)
    monkeypatch.setattr(cupy_driver, "_first_user", os.getpid())
    monkeypatch.setattr(devices, "_states", {})
    return recording


@pytest.fixture
def driver(runtime):
    """A driver over the stand-in's second device, whose calls start now."""
    made = CupyDriver(1)
    runtime.calls.clear()
    return made


def made_by(runtime):
    """The calls that are left when those that choose a context are taken out."""
    return [call for call in runtime.calls if call[0] not in ("push", "pop")]


# Memory


def test_memory_comes_in_whole_blocks(driver, runtime):
    for nbytes in (1, BLOCK, BLOCK + 1):
        driver.allocate(nbytes)
    sizes = [call[1] for call in made_by(runtime)]
    assert sizes == [BLOCK, BLOCK, 2 * BLOCK]


@pytest.mark.parametrize("before", [None, 0, 1])
def test_each_call_is_made_in_the_context_of_the_device_which_is_left(
    driver, runtime, before
):
    runtime.current = before
    driver.allocate(1)
    assert runtime.calls == [("push", 1), ("malloc", BLOCK), ("pop",)]
    assert runtime.current == before


def test_a_failure_keeps_nothing_that_its_caller_had(driver, runtime):
    runtime.failures["malloc"] = INVALID_VALUE
    kept = []

    def fails():
        held = set()
        kept.append(weakref.ref(held))
        driver.allocate(1)

    gc.disable()
    try:
        with contextlib.suppress(DeviceError):
            fails()
        assert kept[0]() is None
    finally:
        gc.enable()


def test_the_context_is_left_after_a_failure_which_is_told(driver, runtime):
    runtime.failures["malloc"] = INVALID_VALUE
    with pytest.raises(DeviceError, match="cuda:1 reported cudaErrorOfTheTest"):
        driver.allocate(1)
    assert runtime.current == 0
    runtime.failures["malloc"] = OUT_OF_MEMORY
    with pytest.raises(OutOfDeviceMemoryError, match="no room for 5 bytes"):
        driver.allocate(5)
    runtime.calls.clear()
    with pytest.raises(DeviceError, match="at least 1 byte"):
        driver.allocate(0)
    assert not runtime.calls


def test_only_the_base_of_an_own_allocation_is_freed_and_once(driver, runtime):
    base, opened = driver.allocate(8), driver.open_handle(HANDLE)
    for other in (base + 8, opened):
        with pytest.raises(IllegalAddressError, match="is not the base"):
            driver.free(other)
    driver.free(base)
    with pytest.raises(IllegalAddressError, match="freed before"):
        driver.free(base)
    assert [call for call in runtime.calls if call[0] == "free"] == [("free", base)]


def test_allocations_and_free_bytes_are_those_of_the_driver(driver):
    base = driver.allocate(8)
    assert driver.allocation_of(base + 5) == (base, BLOCK)
    assert driver.memory_info() == (1 << 30, 1 << 31)
    with pytest.raises(IllegalAddressError, match="lies in no allocation"):
        driver.allocation_of(16)


def test_a_copy_beyond_the_end_is_refused_before_it_is_made(driver, runtime):
    base = driver.allocate(BLOCK)
    runtime.calls.clear()
    with pytest.raises(IllegalAddressError, match="beyond the end"):
        driver.copy_to_device(base + BLOCK - 2, b"data")
    with pytest.raises(IllegalAddressError, match="beyond the end"):
        driver.copy_to_host(base, BLOCK + 1)
    assert not made_by(runtime)


# Virtual memory


HANDLES, ADDRESS = 0xA, 1 << 40


@pytest.fixture
def virtual(driver, runtime):
    """The driver, where virtual memory comes in blocks from an address on."""
    runtime.answers = {
        "cuMemGetAllocationGranularity": BLOCK,
        "cuMemCreate": HANDLES,
        "cuMemAddressReserve": ADDRESS,
        "cuMemRetainAllocationHandle": HANDLES,
    }
    return driver


def test_memory_is_mapped_side_by_side_and_its_handles_are_released(virtual, runtime):
    assert virtual.map_new([1, BLOCK + 1], True) == (ADDRESS, [BLOCK, 2 * BLOCK])
    assert made_by(runtime) == [
        ("cuMemGetAllocationGranularity", 0),
        ("cuMemCreate", BLOCK, 0),
        ("cuMemCreate", 2 * BLOCK, 0),
        ("cuMemAddressReserve", 3 * BLOCK, 0, 0, 0),
        ("cuMemMap", ADDRESS, BLOCK, 0, HANDLES, 0),
        ("cuMemMap", ADDRESS + BLOCK, 2 * BLOCK, 0, HANDLES, 0),
        ("cuMemSetAccess", ADDRESS, 3 * BLOCK, 1),
        ("cuMemRelease", HANDLES),
        ("cuMemRelease", HANDLES),
    ]
    assert virtual.allocation_of(ADDRESS + 5) == (ADDRESS, 3 * BLOCK)
    runtime.calls.clear()
    virtual.unmap(ADDRESS)
    assert made_by(runtime) == [
        ("cuMemUnmap", ADDRESS, BLOCK),
        ("cuMemUnmap", ADDRESS + BLOCK, 2 * BLOCK),
        ("cuMemAddressFree", ADDRESS, 3 * BLOCK),
    ]


@pytest.mark.parametrize(
    ("failing", "status", "error", "said", "undone"),
    [
        ("cuMemCreate", OUT_OF_MEMORY, OutOfDeviceMemoryError, "no room for 2", 0),
        ("cuMemCreate", NOT_SUPPORTED, DeviceError, "none that processes can", 0),
        ("cuMemMap", INVALID_VALUE, DeviceError, "cuMemMap failed", 3),
        ("cuMemSetAccess", INVALID_VALUE, DeviceError, "cuMemSetAccess failed", 5),
    ],
)
def test_memory_that_cannot_be_mapped_is_given_back(
    virtual, runtime, failing, status, error, said, undone
):
    runtime.failures[failing] = status
    with pytest.raises(error, match=said):
        virtual.map_new([1, 1], True)
    after = [call[0] for call in made_by(runtime)]
    given_back = after[after.index(failing) + 1 :]
    there = ["cuMemUnmap"] * 2 + ["cuMemAddressFree"] + ["cuMemRelease"] * 2
    assert given_back == there[len(there) - undone :]
    with pytest.raises(IllegalAddressError):
        virtual.allocation_of(ADDRESS)


def test_what_cannot_be_exported_or_imported_is_refused(virtual, runtime):
    base, sizes = virtual.map_new([1], True)
    runtime.failures["cuMemExportToShareableHandle"] = INVALID_VALUE
    with pytest.raises(DeviceHandleError, match="without a type of handle"):
        virtual.export_mapped(base)
    assert made_by(runtime)[-1] == ("cuMemRelease", HANDLES)
    runtime.failures["cuMemImportFromShareableHandle"] = NOT_SUPPORTED
    with pytest.raises(DeviceHandleError, match="cannot be mapped here"):
        virtual.map_received([0], sizes)


# Handles


def test_the_handle_is_that_of_the_base_of_own_memory_that_can_be_shared(
    driver, runtime
):
    base = driver.allocate(64)
    assert driver.ipc_handle(base + 32) == base.to_bytes(64, "little")
    assert made_by(runtime)[-1] == ("ipcGetMemHandle", base)
    with pytest.raises(DeviceHandleError, match="belongs to another process"):
        driver.ipc_handle(driver.open_handle(HANDLE))
    runtime.failures["ipcGetMemHandle"] = INVALID_VALUE
    with pytest.raises(DeviceHandleError, match="managed memory or comes from an asyn"):
        driver.ipc_handle(base)


def test_each_open_needs_one_close(driver, runtime):
    base = driver.open_handle(HANDLE)
    assert driver.open_handle(HANDLE) == base
    driver.close_handle(base)
    driver.close_handle(base)
    with pytest.raises(DeviceHandleError, match="closed as often"):
        driver.close_handle(base)
    closed = [call for call in runtime.calls if call[0] == "ipcCloseMemHandle"]
    assert closed == [("ipcCloseMemHandle", base)] * 2


@pytest.mark.parametrize(
    ("method", "function"),
    [("open_handle", "ipcOpenMemHandle"), ("event_open", "ipcOpenEventHandle")],
)
def test_a_handle_that_cannot_be_opened_is_refused(driver, runtime, method, function):
    with pytest.raises(DeviceHandleError, match="64 bytes and this one 5"):
        getattr(driver, method)(b"short")
    assert not runtime.calls
    runtime.failures[function] = INVALID_VALUE
    with pytest.raises(DeviceHandleError, match="cannot be opened here") as refused:
        getattr(driver, method)(HANDLE)
    assert "the same IPC and PID namespaces" in str(refused.value)


# Events


def test_an_event_is_of_this_process_until_it_is_destroyed_here(driver, runtime):
    event = driver.event_open(HANDLE)
    driver.event_record(event)
    driver.event_destroy(event)
    assert [call[0] for call in made_by(runtime)][1:] == ["eventRecord", "eventDestroy"]
    runtime.calls.clear()
    with pytest.raises(DeviceHandleError, match="has no event"):
        driver.event_record(event)
    assert not runtime.calls


# The end


def test_closing_closes_what_is_open_and_leaves_the_rest_to_the_end(driver, runtime):
    """What others have open, or wait for, must not be freed or destroyed by a call."""
    driver.allocate(1)
    driver.event_create()
    opened = driver.open_handle(HANDLE)
    driver.open_handle(HANDLE)
    runtime.calls.clear()
    runtime.failures["ipcCloseMemHandle"] = UNLOADING  # nor does it raise
    driver.close()
    assert made_by(runtime) == [("ipcCloseMemHandle", opened)] * 2


# Tensors over the stand-in: the protocol runs over this driver as over any


def array_at(address, values):
    """What `from_cupy` uses of a CuPy array."""
    plain = np.array(values, np.float32)
    return SimpleNamespace(
        shape=plain.shape, strides=plain.strides, dtype=plain.dtype, size=plain.size,
        device=SimpleNamespace(id=0), data=SimpleNamespace(ptr=address),
    )  # fmt: skip


def test_a_tensor_is_written_read_and_freed(runtime):
    tensor = cuda.tensor([1.0, 2.0], np.float32, device="cuda:0")
    tensor.write(1, 5.0)
    assert (tensor.tolist(), tensor.device) == ([1.0, 5.0], "cuda:0")
    base = tensor.data_ptr()
    del tensor
    assert ("free", base) in runtime.calls


def test_arrays_of_one_block_share_a_storage_that_keeps_them_and_frees_nothing(runtime):
    block = runtime.block(BLOCK)
    arrays = [array_at(block + offset, [0, 0]) for offset in (512, 1024)]
    tensors = [cuda.from_cupy(array) for array in arrays]
    first, second = tensors
    first.write(0, 7.0)
    assert (first.byte_offset, second.byte_offset) == (512, 1024)
    assert first.storage is second.storage
    assert (first.tolist(), second.tolist()) == ([7.0, 0.0], [0.0, 0.0])
    driver = first.storage.state.driver
    del first, tensors[0]
    assert driver._adopted == {block: arrays}
    del second, tensors[0]
    assert driver._adopted == {}
    assert block in runtime.blocks


def test_an_array_over_the_memory_of_a_tensor_is_that_memory(runtime):
    tensor = cuda.tensor([1.0, 2.0], np.float32, device="cuda:0")
    again = cuda.from_cupy(array_at(tensor.data_ptr() + 4, [0]))
    assert again.storage is tensor.storage
    assert again.tolist() == [2.0]


def test_an_array_that_cannot_be_shared_is_refused_and_not_kept(runtime):
    runtime.failures["ipcGetMemHandle"] = INVALID_VALUE
    array = array_at(runtime.block(BLOCK), [0])
    with pytest.raises(DeviceHandleError, match="cannot be shared"):
        cuda.from_cupy(array)
    assert devices.device_state("cuda:0").driver._adopted == {}


def test_an_array_lies_where_its_tensor_lies_and_keeps_the_storage(
    runtime, monkeypatch
):
    recorded = SimpleNamespace(
        cuda=SimpleNamespace(
            UnownedMemory=lambda *given: ("memory", *given),
            MemoryPointer=lambda *given: ("place", *given),
        ),
        ndarray=lambda *given: given,
    )
    monkeypatch.setattr(cupy_arrays, "import_module", lambda name: recorded)
    tensor = cuda.tensor([[1.0, 2.0], [3.0, 4.0]], np.float32, device="cuda:0")
    shape, dtype, place, strides = cuda.to_cupy(tensor[:, 1])
    assert (shape, strides, dtype) == ((2,), (8,), np.float32)
    storage = tensor.storage
    memory = ("memory", storage.data_ptr(), storage.nbytes, storage, 0)
    assert place == ("place", memory, 4)


def test_the_simulated_device_has_no_arrays_of_cupy():
    with pytest.raises(DeviceError, match="read it"):
        cuda.to_cupy(cuda.tensor([1.0], device="sim:0"))


# Whether there is a device


def test_a_device_is_there_where_the_runtime_counts_one(runtime):
    assert cuda.is_available()
    assert cuda.unavailable_reason() is None
    assert cuda.device_count() == 2
    with pytest.raises(DeviceUnavailableError, match="there is cuda:0, cuda:1"):
        cuda.tensor([1], device="cuda:2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 0}, "finds no NVIDIA driver"),
        ({"devices": 0}, "shows this process no GPU"),
        ({"failures": {"getDeviceCount": NO_DEVICE}}, "shows this process no GPU"),
        ({"failures": {"getDeviceCount": 35}}, "cannot be used here"),
    ],
)
def test_a_device_that_is_missing_is_explained_in_one_sentence(runtime, change, said):
    for name, value in change.items():
        setattr(runtime, name, value)
    assert said in cuda.unavailable_reason()
    assert not cuda.is_available()
    assert cuda.device_count() == 0


def test_a_device_is_known_by_its_uuid(runtime):
    uuid = "GPU-00010203-0405-0607-0809-0a0b0c0d0e01"
    assert CupyDriver(1).identity == uuid
    assert devices.local_name(uuid) == "cuda:1"
    with pytest.raises(DeviceUnavailableError, match=r"GPU-7.*let sender and receiver"):
        devices.local_name("GPU-7")


def test_without_cupy_the_sentence_names_what_to_install():
    script = (
        "import sys; sys.modules['cupy'] = None; from sharedtensor import cuda;"
        "print(cuda.unavailable_reason())"
    )
    assert "install shared-tensor-spec[cuda13]" in said_by(script)


def test_a_cupy_that_cannot_be_imported_is_explained(tmp_path):
    broken = tmp_path / "cupy" / "__init__.py"
    broken.parent.mkdir()
    broken.write_text("raise ImportError('libcudart.so: \\n cannot open')")
    script = "from sharedtensor import cuda; print(cuda.unavailable_reason())"
    said = said_by(script, tmp_path)
    assert said == "CuPy cannot be imported: libcudart.so: cannot open"


def test_nothing_imports_cupy_before_cuda_is_asked_for(tmp_path):
    importable = tmp_path / "cupy" / "__init__.py"
    importable.parent.mkdir()
    importable.write_text("")
    script = """
import importlib, pkgutil, sys
import sharedtensor
for found in pkgutil.walk_packages(sharedtensor.__path__, "sharedtensor."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
import sharedtensor_conformance.adapters.reference
sharedtensor.cuda.tensor([1.0], device="sim:0")
print("cupy" in sys.modules, "sharedtensor.cuda.cupy_driver" in sys.modules)
"""
    assert said_by(script, tmp_path) == "False True"


def said_by(script, *folders):
    """Return what a script prints in an interpreter of its own."""
    return run_alone("-c", script, folders=folders, check=True).stdout.strip()
