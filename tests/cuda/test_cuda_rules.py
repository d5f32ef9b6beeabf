"""The simulated device keeps each of the rules that the guide states.

`test_driver_rules` has the rules that hold on a real device, too. Here are those that
only a simulation can show, and what it does beyond the others.
"""

import contextlib
import glob
import os
import re
import subprocess
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
from cuda_peers import Driven, Peer, run_alone
from sharedtensor import cuda
from sharedtensor.cuda import shared_file, simulated
from sharedtensor.cuda.errors import (
    DeviceHandleError,
    DeviceUnavailableError,
    IllegalAddressError,
    MakerGoneError,
    OutOfDeviceMemoryError,
)

rule = pytest.mark.rule
OLD, NEW, NEWER = b"old.....", b"new.....", b"newer..."
POISON = b"\xdb" * 8
HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "guides" / "cuda-protocol.md"


def join(held, address):
    """Use the simulated device at an address."""
    held["device"] = simulated.SimulatedDevice.join(address)


@pytest.fixture
def peer(peers, device):
    """The driver of the same device in another process."""
    made = Driven(peers[0], join, device.address)
    yield made
    made.close()


@pytest.fixture
def bystander(peers, device):
    """A second such driver."""
    made = Driven(peers[1], join, device.address)
    yield made
    made.close()


@pytest.fixture
def mortal(new_peer, device):
    """One in a process that the test ends."""
    return Driven(new_peer, join, device.address)


@pytest.fixture
def shared(device, peer):
    """Eight bytes, OLD and complete, and where the peer has them open."""
    pointer = device.allocate(8)
    device.copy_to_device(pointer, OLD)
    device.synchronize()
    return pointer, peer.open_handle(device.ipc_handle(pointer))


@pytest.fixture
def event(device, peer):
    """An event, and what it is in the peer."""
    made = device.event_create()
    return made, peer.event_open(device.event_handle(made))


def test_every_rule_has_a_test():
    _, _, table = GUIDE.read_text().partition("| rule |")
    stated = re.findall(r"^\| ([a-z-]+) \|", table, re.MULTILINE)
    files = (HERE / "test_cuda_rules.py", HERE / "test_driver_rules.py")
    source = "".join(file.read_text() for file in files)
    assert set(re.findall(r'^@rule\("(.+)"\)$', source, re.MULTILINE)) == set(stated)


# Handles


@rule("unique-handle")
def test_the_handle_of_a_freed_allocation_is_refused(device, peer):
    base = device.allocate(256)
    first = device.ipc_handle(base)
    device.free(base)
    second = device.ipc_handle(device.allocate(256))
    with pytest.raises(DeviceHandleError, match="freed"):
        peer.open_handle(first)
    assert peer.open_handle(second)


@rule("open-counts")
def test_a_second_open_needs_a_second_close(device, peer):
    handle = device.ipc_handle(device.allocate(8))
    theirs = peer.open_handle(handle)
    assert peer.open_handle(handle) == theirs
    peer.close_handle(theirs)
    assert peer.copy_to_host(theirs, 8)
    peer.close_handle(theirs)
    with pytest.raises(IllegalAddressError):
        peer.copy_to_host(theirs, 8)
    with pytest.raises(DeviceHandleError, match="closed as often"):
        peer.close_handle(theirs)


@rule("pointer-is-local")
def test_a_pointer_of_another_process_is_refused(device, peer, shared):
    mine, theirs = shared
    assert mine != theirs
    with pytest.raises(IllegalAddressError, match="another process"):
        peer.copy_to_host(mine, 8)
    with pytest.raises(IllegalAddressError, match="another process"):
        device.copy_to_host(theirs, 8)
    with pytest.raises(DeviceHandleError, match="belongs to another process"):
        peer.ipc_handle(theirs)


@rule("free-while-open")
def test_memory_freed_too_early_reads_poison_and_then_the_next_owners_data(
    device, peer, shared
):
    mine, theirs = shared
    device.free(mine)
    assert peer.copy_to_host(theirs, 8) == POISON
    again = device.allocate(8)
    device.copy_to_device(again, NEW)
    device.synchronize()
    assert peer.copy_to_host(theirs, 8) == NEW


@rule("open-memory-counts")
@pytest.mark.parametrize("method", ["close_handle", "close"])
def test_memory_that_is_open_counts_until_it_is_closed(device, mortal, method):
    mine = device.allocate(1 << 19)
    theirs = mortal.open_handle(device.ipc_handle(mine))
    device.free(mine)
    assert device.memory_info()[0] == 1 << 19
    again = device.allocate(1 << 20)
    assert device.memory_info()[0] == 0
    device.free(again)
    getattr(mortal, method)(*([theirs] if method == "close_handle" else []))
    assert device.memory_info()[0] == 1 << 20


@rule("handle-has-a-device")
def test_a_handle_of_another_device_or_kind_is_refused(device):
    second = simulated.SimulatedDevice.create(1024, 1)
    assert (device.name, second.name) == ("sim:0", "sim:1")
    with pytest.raises(DeviceHandleError, match="another simulated device"):
        second.open_handle(device.ipc_handle(device.allocate(8)))
    with pytest.raises(DeviceHandleError, match="no handle of the kind"):
        device.open_handle(device.event_handle(device.event_create()))
    with pytest.raises(MakerGoneError):
        simulated.SimulatedDevice.join(second.address, 0)
    assert device.memory_info()[1] != second.memory_info()[1]
    second.close()


@rule("exporter-outlives")
@pytest.mark.parametrize("end", [Peer.end, Peer.kill])
def test_the_end_of_the_exporter_frees_its_memory(device, mortal, end):
    pointer = mortal.allocate(8)
    handle = mortal.ipc_handle(pointer)
    mortal.copy_to_device(pointer, NEW)
    mortal.synchronize()
    mine = device.open_handle(handle)
    assert device.copy_to_host(mine, 8) == NEW
    end(mortal.peer)
    assert device.copy_to_host(mine, 8) == POISON
    device.close_handle(mine)
    assert device.memory_info() == (1 << 20, 1 << 20)
    with pytest.raises(DeviceHandleError, match="freed"):
        device.open_handle(handle)


# Work


@rule("copy-to-device-is-pending")
def test_a_write_nobody_waited_for_shows_the_old_data(device, peer, shared):
    mine, theirs = shared
    device.copy_to_device(mine, NEW)
    assert peer.copy_to_host(theirs, 8) == OLD
    assert device.copy_to_host(mine, 8) == NEW
    assert peer.copy_to_host(theirs, 8) == NEW


@rule("others-work-is-invisible")
def test_synchronising_oneself_does_not_show_the_work_of_others(device, peer, shared):
    mine, theirs = shared
    peer.copy_to_device(theirs, NEW)
    device.synchronize()
    assert device.copy_to_host(mine, 8) == OLD
    peer.synchronize()
    assert device.copy_to_host(mine, 8) == NEW


@rule("record-captures")
def test_an_event_stands_for_the_work_before_its_latest_record(
    device, peer, shared, event
):
    (mine, theirs), (made, opened) = shared, event
    device.copy_to_device(mine, NEW)
    peer.event_synchronize(opened)
    assert peer.copy_to_host(theirs, 8) == OLD  # never recorded
    device.event_record(made)
    device.copy_to_device(mine, NEWER)
    peer.event_synchronize(opened)
    assert peer.copy_to_host(theirs, 8) == NEW  # recorded between
    device.event_record(made)
    peer.event_synchronize(opened)
    assert peer.copy_to_host(theirs, 8) == NEWER


@rule("wait-orders-what-follows")
def test_a_wait_takes_the_state_of_its_call_and_orders_later_work(
    device, peer, bystander, shared, event
):
    (mine, theirs), (made, opened) = shared, event
    other = bystander.open_handle(device.ipc_handle(mine))
    device.copy_to_device(mine, NEW)
    device.event_record(made)
    peer.event_wait(opened)
    assert bystander.copy_to_host(other, 8) == OLD  # no host waited
    device.copy_to_device(mine, NEWER)
    device.event_record(made)
    assert peer.copy_to_host(theirs, 8) == NEW


def test_waits_are_kept_through_a_chain_of_processes(
    device, peer, bystander, shared, event
):
    (mine, theirs), (first, opened) = shared, event
    third = bystander.open_handle(device.ipc_handle(mine))
    device.copy_to_device(mine, NEW)
    device.event_record(first)
    peer.event_wait(opened)
    peer.copy_to_device(theirs + 4, b"!!!!")
    second = peer.event_create()
    peer.event_record(second)
    bystander.event_wait(bystander.event_open(peer.event_handle(second)))
    assert bystander.copy_to_host(third, 8) == b"new.!!!!"


@rule("event-dies-with-its-exporter")
def test_an_event_is_unusable_once_its_exporter_destroyed_it(device, peer):
    event = device.event_create()
    handle = device.event_handle(event)
    opened = peer.event_open(handle)
    device.event_destroy(event)
    device.event_create()  # which may lie in the same place
    for use in (partial(peer.event_wait, opened), partial(peer.event_open, handle)):
        with pytest.raises(DeviceHandleError, match="destroyed"):
            use()


@rule("exit-drops-pending-work")
def test_work_pending_at_the_end_of_its_process_is_dropped(device, mortal):
    mine, event = device.allocate(8), device.event_create()
    device.copy_to_device(mine, OLD)
    device.synchronize()
    theirs = mortal.open_handle(device.ipc_handle(mine))
    mortal.copy_to_device(theirs, NEW)
    mortal.event_record(mortal.event_open(device.event_handle(event)))
    mortal.peer.kill()
    device.event_synchronize(event)
    assert device.copy_to_host(mine, 8) == OLD


def test_a_full_log_and_an_oversized_copy_are_done_in_order(device, monkeypatch):
    monkeypatch.setattr(simulated.streams, "LOG_BYTES", 128)
    pointer = device.allocate(512)
    device.copy_to_device(pointer, b"a" * 512)
    log = device._memory.processes[device._memory.own_process]
    expected = bytearray(b"a" * 512)
    for place in range(0, 512, 50):
        expected[place : place + 2] = b"%02d" % (place // 50)
        device.copy_to_device(pointer + place, expected[place : place + 2])
        assert log["tail"] - log["base"] <= 128
    assert device.copy_to_host(pointer, 512) == expected
    device.copy_to_device(pointer, b"b")
    device.copy_to_device(pointer, b"c" * 512)
    assert device.copy_to_host(pointer, 512) == b"c" * 512


# Memory


@rule("memory-is-finite")
def test_memory_is_one_finite_pool_for_all_processes(device, peer):
    assert device.memory_info() == (1 << 20, 1 << 20)
    with pytest.raises(OutOfDeviceMemoryError, match="1048577 bytes"):
        device.allocate((1 << 20) + 1)
    mine = device.allocate(1 << 19)
    peer.allocate(1 << 19)
    assert peer.memory_info() == (0, 1 << 20)
    with pytest.raises(OutOfDeviceMemoryError):
        device.allocate(1)
    device.free(mine)
    assert peer.memory_info() == (1 << 19, 1 << 20)
    assert peer.allocate(1 << 19)


@rule("uninitialised")
def test_new_memory_is_not_cleared(device):
    pointer = device.allocate(8)
    device.copy_to_device(pointer, OLD)
    device.synchronize()
    device.free(pointer)
    assert device.copy_to_host(device.allocate(8), 8) == POISON


@rule("no-stray-access")
@pytest.mark.parametrize(("offset", "nbytes"), [(0, 257), (256, 1), (-1, 1), (200, 57)])
def test_access_outside_an_allocation_is_an_error(device, offset, nbytes):
    pointer = device.allocate(256)
    device.allocate(256)
    with pytest.raises(IllegalAddressError):
        device.copy_to_host(pointer + offset, nbytes)
    with pytest.raises(IllegalAddressError):
        device.copy_to_device(pointer + offset, b"x" * nbytes)


@rule("free-once")
def test_only_the_base_of_an_own_allocation_can_be_freed_and_once(device, peer, shared):
    with pytest.raises(IllegalAddressError, match="opened from a handle"):
        peer.free(shared[1])
    with pytest.raises(IllegalAddressError):
        device.free(shared[0] + 4)
    device.free(shared[0])
    with pytest.raises(IllegalAddressError, match="freed before"):
        device.free(shared[0])


# Devices and processes


@rule("device-index")
@pytest.mark.parametrize("name", ["cuda:0", "cuda", "tpu:0", "sim:x"])
def test_a_device_that_does_not_exist_is_refused(name):
    with pytest.raises(cuda.DeviceError) as caught:
        cuda.tensor([1], device=name)
    assert ("names no device" in str(caught.value)) is (name in ("tpu:0", "sim:x"))


def test_the_simulated_device_is_never_taken_for_a_real_one():
    script = (
        "import sys; from sharedtensor import cuda; assert not cuda.is_available();"
        "cuda.tensor([1], device='sim:0'); assert not cuda.is_available();"
        "assert 'cupy' not in sys.modules; cuda.tensor([1])"
    )
    run = run_alone("-c", script)
    assert "There is no cuda:0." in run.stderr
    assert cuda.unavailable_reason() in run.stderr
    assert issubclass(DeviceUnavailableError, cuda.DeviceError)


CHILDREN = """
import os, sys
from cuda_peers import Peer
from sharedtensor import cuda
from sharedtensor.cuda import simulated

def tokens(held):
    cuda.use_simulated_device()
    cuda.memory_info("sim:1")
    names = simulated.VARIABLE, f"{simulated.VARIABLE}_1"
    return [os.environ[name].split(":")[2] for name in names]

if __name__ == "__main__":
    early = Peer("forkserver")  # which is older than the device
    mine = tokens({})
    for peer in (early, Peer("forkserver"), Peer("spawn")):
        assert peer.call(tokens) == mine
        peer.end()
    assert mine[0] != mine[1], "they are two devices"
"""


@rule("same-simulated-devices")
def test_children_find_the_device_though_the_forkserver_is_older(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(CHILDREN)
    run = run_alone(program)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_stranger_finds_the_device_through_the_handle_it_receives():
    tensor = cuda.tensor([1, 2, 3], device="sim:0")
    message = bytes(ForkingPickler.dumps(tensor)).hex()
    script = (
        "import pickle, sys; tensor = pickle.loads(bytes.fromhex(input()));"
        "print(tensor.device, tensor.tolist())"
    )
    run = run_alone("-c", script, input=message)
    assert (run.stdout, run.stderr) == ("sim:0 [1, 2, 3]\n", "")


def test_a_process_that_ends_with_live_tensors_is_silent():
    script = "from sharedtensor import cuda; t = cuda.tensor([1], device='sim:0')"
    run = run_alone("-c", script)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_device_that_cannot_be_found_is_not_silently_replaced(device, monkeypatch):
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setenv(simulated.VARIABLE, f"{gone.pid}:7:{'00' * 16}")
    with pytest.raises(MakerGoneError, match=f"Process {gone.pid} no longer offers"):
        simulated.find_or_create(1024)
    monkeypatch.setenv(simulated.VARIABLE, "yes")
    with pytest.raises(cuda.DeviceError, match="should not be set by hand"):
        simulated.find_or_create(1024)
    reading, writing = os.pipe()
    for wrong in ({"token": bytes(16)}, {"descriptor": writing}):
        with pytest.raises(MakerGoneError):
            simulated.SimulatedDevice.join(device.address._replace(**wrong))
    os.close(reading)
    os.close(writing)


def make_own_device(held):
    held["device"] = simulated.SimulatedDevice.create(1 << 20)
    held["pointer"] = held["device"].allocate(8)
    return held["device"].address


@rule("nothing-is-left")
def test_nothing_is_left_when_all_processes_are_killed():
    first, second = Peer(), Peer()
    address = first.call(make_own_device)
    second.call(join, address)
    assert os.readlink(address.path).startswith("/memfd:"), "it has no name"
    inode = os.stat(address.path).st_ino
    assert inode in _open_inodes()
    first.kill()
    assert inode in _open_inodes(), "the second process keeps the device"
    second.kill()
    assert inode not in _open_inodes()


def _open_inodes():
    """The inodes of all simulated devices that any process here has open."""
    inodes = set()
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            if simulated.memory.FILE_NAME in os.readlink(path):
                inodes.add(os.stat(path).st_ino)
    return inodes


def test_a_shared_file_cannot_be_shrunk_under_its_users(device):
    with open(device.address.path, "r+b") as file, pytest.raises(PermissionError):
        os.ftruncate(file.fileno(), os.fstat(file.fileno()).st_size - 1)
    assert shared_file.find_in(os.getpid(), simulated.memory.FILE_NAME)
