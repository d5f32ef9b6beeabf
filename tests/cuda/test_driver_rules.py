"""The rules that hold on each device, whether it is simulated or real.

The guide `docs/guides/cuda-protocol.md` states them. They are tested through the
interface `Driver`, on the simulated device or with ``--device=cuda`` on a GPU.
Behaviour that the manuals leave undefined is not provoked here: what only a simulation
can show is in `test_cuda_rules`.
"""

import multiprocessing
import sys

import pytest
from cuda_peers import Driven, Peer, export_all, handed_out, map_all
from sharedtensor import cuda
from sharedtensor.cuda import devices
from sharedtensor.cuda.errors import (
    DeviceError,
    DeviceHandleError,
    ForkError,
    OutOfDeviceMemoryError,
)
from sharedtensor_conformance.harness.kernel.process_tree import wait_until

rule = pytest.mark.rule
DEADLINE = 60.0
OLD, NEW, NEWER = b"old.....", b"new.....", b"newer..."


def find(held, name):
    """Use the device with a name."""
    held["device"] = devices.device_state(name).driver


@pytest.fixture
def driver(device_name):
    """The driver of the device, in this process."""
    if device_name.startswith("sim"):
        cuda.use_simulated_device()
    return devices.device_state(device_name).driver


@pytest.fixture
def other(peers, driver):
    """The same in another process."""
    return Driven(peers[0], find, driver.name)


@pytest.fixture
def allocate(driver):
    """A function that makes an allocation, which begins with OLD, for the test."""
    made = []

    def allocate_one(nbytes=1024):
        made.append(driver.allocate(nbytes))
        driver.copy_to_device(made[-1], OLD)
        driver.synchronize()
        return made[-1]

    yield allocate_one
    for base in made:
        driver.free(base)


@pytest.fixture
def opened(driver, other, allocate):
    """An allocation, and its address in the other process."""
    base = allocate()
    theirs = other.open_handle(driver.ipc_handle(base))
    yield base, theirs
    other.close_handle(theirs)


@pytest.fixture
def event(driver, other):
    """An event, and what it is in the other process."""
    made = driver.event_create()
    there = other.event_open(driver.event_handle(made))
    yield made, there
    other.event_destroy(there)
    driver.event_destroy(made)


# Handles


@rule("whole-allocation")
def test_a_handle_is_that_of_the_whole_allocation(driver, other, allocate):
    base = allocate()
    driver.copy_to_device(base + 512, NEW)
    driver.synchronize()
    theirs = other.open_handle(driver.ipc_handle(base + 512))
    assert other.copy_to_host(theirs, 8) == OLD
    assert other.copy_to_host(theirs + 512, 8) == NEW
    other.close_handle(theirs)


@rule("unique-handle")
def test_allocations_that_follow_each_other_have_different_handles(driver):
    handles = set()
    for _ in range(4):
        base = driver.allocate(1024)
        handles.add(driver.ipc_handle(base))
        driver.free(base)
    assert len(handles) == 4


@rule("open-counts")
def test_a_handle_that_is_opened_again_has_the_same_address(driver, other, opened):
    base, theirs = opened
    again = other.open_handle(driver.ipc_handle(base))
    other.close_handle(again)
    assert again == theirs
    assert other.copy_to_host(theirs, 8) == OLD


@rule("close-leaves-the-rest")
def test_closing_leaves_the_memory_of_the_exporter(driver, other, allocate):
    base = allocate()
    other.close_handle(other.open_handle(driver.ipc_handle(base)))
    assert driver.copy_to_host(base, 8) == OLD


@rule("not-in-exporter")
def test_a_handle_cannot_be_opened_where_it_was_made(driver, allocate):
    handle = driver.ipc_handle(allocate())
    with pytest.raises(DeviceError):
        driver.open_handle(handle)


@rule("exporter-outlives")
def test_the_memory_of_a_process_that_ends_is_free_again(driver):
    maker = Driven(Peer(), find, driver.name)
    maker.synchronize()  # from now on its own part of the device is in use
    free, total = driver.memory_info()
    maker.ipc_handle(maker.allocate(total // 16))
    assert free - driver.memory_info()[0] >= total // 16
    maker.peer.end()
    assert wait_until(lambda: driver.memory_info()[0] >= free, DEADLINE)


# Virtual memory


@pytest.fixture
def mapped(driver):
    """Two pieces of virtual memory; OLD lies across their border."""
    base, sizes = driver.map_new([1, 1], True)
    driver.copy_to_device(base + sizes[0] - 4, OLD)
    driver.synchronize()
    yield base, sizes
    driver.unmap(base)


def test_a_copy_goes_across_the_border_of_two_pieces(driver, mapped):
    base, (size, _) = mapped
    assert driver.copy_to_host(base + size - 4, 8) == OLD
    driver.copy_to_device(base + size - 2, NEW)
    assert driver.copy_to_host(base + size - 4, 10) == OLD[:2] + NEW
    with pytest.raises(DeviceError):
        driver.copy_to_host(base + 2 * size - 4, 8)


@rule("references-keep")
def test_virtual_memory_stays_while_a_descriptor_or_a_mapping_is_there(driver, other):
    maker = Driven(Peer(), find, driver.name)
    maker.synchronize()
    free = driver.memory_info()[0]
    base, sizes = maker.map_new([1, 1], True)
    maker.copy_to_device(base + sizes[0] - 4, OLD)
    maker.synchronize()
    handed = maker.peer.call(export_all, base)
    theirs = other.peer.call(map_all, handed, sizes)
    maker.peer.kill()
    owned = other.peer.call(export_all, theirs)
    other.unmap(theirs)
    assert free - driver.memory_info()[0] <= sum(sizes)
    here = map_all({"device": driver}, owned, sizes)
    assert driver.copy_to_host(here + sizes[0] - 4, 8) == OLD
    driver.unmap(here)
    assert wait_until(lambda: driver.memory_info()[0] >= free, DEADLINE)


@rule("importer-exports")
def test_what_was_received_is_exported_again(driver, other, mapped, peers):
    base, sizes = mapped
    handed = handed_out(driver.export_mapped(base))
    theirs = other.peer.call(map_all, handed, sizes)
    third = Driven(peers[1], find, driver.name)
    again = third.peer.call(map_all, other.peer.call(export_all, theirs), sizes)
    assert third.copy_to_host(again + sizes[0] - 4, 8) == OLD
    third.unmap(again)
    other.unmap(theirs)


@rule("handle-type")
def test_virtual_memory_is_exported_only_if_it_was_made_for_that(driver):
    base, _ = driver.map_new([1], False)
    with pytest.raises(DeviceHandleError, match="made without a type of handle"):
        driver.export_mapped(base)
    driver.unmap(base)


# Work


@rule("copy-to-host-completes")
def test_a_copy_to_the_host_has_the_writes_before_it(driver, allocate):
    base = allocate()
    driver.copy_to_device(base, NEW)
    assert driver.copy_to_host(base, 8) == NEW


@rule("synchronize-completes")
def test_work_is_complete_after_a_synchronize(driver, other, opened):
    base, theirs = opened
    driver.copy_to_device(base, NEW)
    driver.synchronize()
    assert other.copy_to_host(theirs, 8) == NEW


@rule("wait-orders-what-follows")
def test_work_after_a_wait_comes_after_the_event(driver, other, opened, event):
    (base, theirs), (made, there) = opened, event
    driver.copy_to_device(base, NEW)
    driver.event_record(made)
    other.event_wait(there)
    assert other.copy_to_host(theirs, 8) == NEW


@rule("either-side-records")
def test_the_process_that_opened_an_event_can_record_it(driver, other, opened, event):
    (base, theirs), (made, there) = opened, event
    other.copy_to_device(theirs, NEWER)
    other.event_record(there)
    driver.event_wait(made)
    assert driver.copy_to_host(base, 8) == NEWER


@rule("record-captures")
def test_an_event_that_was_not_recorded_is_complete(driver):
    event = driver.event_create()
    driver.event_synchronize(event)
    driver.event_record(event)
    driver.event_synchronize(event)
    driver.event_destroy(event)


# Memory


@rule("memory-is-finite")
def test_memory_is_finite_and_what_is_allocated_is_not_free(driver, allocate):
    free, total = driver.memory_info()
    with pytest.raises(OutOfDeviceMemoryError):
        driver.allocate(2 * total)
    allocate(total // 16)
    assert free - driver.memory_info()[0] >= total // 16


@rule("alignment")
@pytest.mark.parametrize("nbytes", [8, 257, 512, 4097])
def test_allocations_are_aligned(allocate, nbytes):
    allocate(nbytes)
    assert allocate(nbytes) % 256 == 0


@rule("free-once")
def test_only_the_base_of_an_allocation_can_be_freed_and_once(driver):
    base = driver.allocate(1024)
    with pytest.raises(DeviceError):
        driver.free(base + 256)
    driver.free(base)
    with pytest.raises(DeviceError):
        driver.free(base)


@rule("no-stray-access")
def test_access_beyond_the_end_of_an_allocation_is_an_error(driver, allocate):
    start, size = driver.allocation_of(allocate())
    with pytest.raises(DeviceError):
        driver.copy_to_host(start + size - 4, 8)


# Devices and processes


@rule("device-index")
def test_a_device_beyond_the_last_one_is_refused(device_name):
    kind = device_name.partition(":")[0]
    with pytest.raises(DeviceError):
        devices.device_state(f"{kind}:{cuda.device_count(kind)}")


@rule("no-fork")
def test_a_forked_child_is_refused_by_the_library_and_by_the_runtime(driver):
    context = multiprocessing.get_context("fork")
    child = context.Process(target=expect_refusals, args=(driver,))
    child.start()
    child.join(DEADLINE)
    child.kill()
    child.join()
    assert child.exitcode == 0


def expect_refusals(driver):
    try:
        driver.memory_info()
    except ForkError:
        runtime = getattr(driver, "_runtime", None)
        sys.exit(runtime is not None and not is_refused_by(runtime))
    sys.exit("the library refused nothing")


def is_refused_by(runtime):
    try:
        runtime.malloc(1)
    except runtime.CUDARuntimeError:
        return True
    return False
