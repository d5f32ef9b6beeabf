"""The simulated device keeps each of the rules that the guide states."""

import contextlib
import glob
import multiprocessing
import os
import re
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import cuda_peers
import pytest
from cuda_peers import Peer, drive, join
from sharedtensor import cuda
from sharedtensor.cuda import (
    shared_file,
    simulated,
)
from sharedtensor.cuda.errors import (
    DeviceHandleError,
    DeviceUnavailableError,
    ForkError,
    IllegalAddressError,
    MakerGoneError,
    OutOfDeviceMemoryError,
)

rule = pytest.mark.rule
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cuda-protocol.md"
TABLE = [line for line in GUIDE.read_text().splitlines() if line.startswith("| ")]
RULES = [line.strip("| ").split(" | ") for line in TABLE[1:]]
OLD, NEW, NEWER = b"old.....", b"new.....", b"newer..."
POISON = b"\xdb" * 8


@pytest.fixture
def peer(peers, device):
    """A peer that uses the same device."""
    peers[0].call(join, device.address)
    yield peers[0]
    peers[0].call(drive, "close")


@pytest.fixture
def bystander(peers, device):
    """A second such peer."""
    peers[1].call(join, device.address)
    yield peers[1]
    peers[1].call(drive, "close")


@pytest.fixture
def shared(device, peer):
    """Eight bytes, OLD and complete, and where the peer has them open."""
    pointer = device.allocate(8)
    device.copy_to_device(pointer, OLD)
    device.synchronize()
    return pointer, peer.call(drive, "open_handle", device.ipc_handle(pointer))


def test_every_rule_has_a_test():
    source = Path(__file__).read_text()
    tested = set(re.findall(r'@rule\("([a-z-]+)"\)', source))
    assert tested == {name for name, *_ in RULES}


def test_every_rule_has_a_basis_and_a_source():
    for _, statement, basis, source in RULES:
        assert statement.endswith(".")
        assert basis in {"documented", "observed", "assumed", "interface"}
        assert source


# Handles


@rule("whole-allocation")
def test_a_handle_names_the_whole_allocation(device, peer):
    base = device.allocate(1024)
    device.copy_to_device(base, b"first...")
    device.copy_to_device(base + 512, b"inner...")
    device.synchronize()
    theirs = peer.call(drive, "open_handle", device.ipc_handle(base + 512))
    assert peer.call(drive, "copy_to_host", theirs, 8) == b"first..."
    assert len(peer.call(drive, "copy_to_host", theirs, 1024)) == 1024
    with pytest.raises(IllegalAddressError):
        peer.call(drive, "copy_to_host", theirs + 1, 1024)


@rule("unique-handle")
def test_a_new_allocation_in_the_same_place_has_another_handle(device, peer):
    base = device.allocate(256)
    first = device.ipc_handle(base)
    device.free(base)
    second = device.ipc_handle(device.allocate(256))
    assert first != second
    with pytest.raises(DeviceHandleError, match="freed"):
        peer.call(drive, "open_handle", first)
    assert peer.call(drive, "open_handle", second)


@rule("open-counts")
def test_a_second_open_gives_the_same_pointer_and_needs_a_second_close(device, peer):
    handle = device.ipc_handle(device.allocate(8))
    theirs = peer.call(drive, "open_handle", handle)
    assert peer.call(drive, "open_handle", handle) == theirs
    peer.call(drive, "close_handle", theirs)
    assert peer.call(drive, "copy_to_host", theirs, 8)
    peer.call(drive, "close_handle", theirs)
    with pytest.raises(IllegalAddressError):
        peer.call(drive, "copy_to_host", theirs, 8)
    with pytest.raises(DeviceHandleError, match="closed as often"):
        peer.call(drive, "close_handle", theirs)


@rule("pointer-is-local")
def test_a_pointer_of_another_process_is_refused(device, peer, shared):
    mine, theirs = shared
    assert mine != theirs
    with pytest.raises(IllegalAddressError, match="another process"):
        peer.call(drive, "copy_to_host", mine, 8)
    with pytest.raises(IllegalAddressError, match="another process"):
        device.copy_to_host(theirs, 8)


@rule("close-leaves-the-rest")
def test_closing_affects_nobody_else(device, peer, bystander, shared):
    mine, theirs = shared
    other = bystander.call(drive, "open_handle", device.ipc_handle(mine))
    peer.call(drive, "close_handle", theirs)
    assert bystander.call(drive, "copy_to_host", other, 8) == OLD
    assert device.copy_to_host(mine, 8) == OLD


@rule("free-while-open")
def test_memory_freed_too_early_reads_poison_and_then_the_next_owners_data(
    device, peer, shared
):
    mine, theirs = shared
    device.free(mine)
    assert peer.call(drive, "copy_to_host", theirs, 8) == POISON
    again = device.allocate(8)
    device.copy_to_device(again, NEW)
    device.synchronize()
    assert peer.call(drive, "copy_to_host", theirs, 8) == NEW


@rule("open-memory-counts")
@pytest.mark.parametrize("method", ["close_handle", "close"])
def test_memory_that_is_open_counts_until_it_is_closed(device, method):
    importer = Peer()
    importer.call(join, device.address)
    mine = device.allocate(1 << 19)
    theirs = importer.call(drive, "open_handle", device.ipc_handle(mine))
    device.free(mine)
    assert device.memory_info()[0] == 1 << 19
    again = device.allocate(1 << 20)
    assert device.memory_info()[0] == 0
    device.free(again)
    importer.call(drive, method, *([theirs] if method == "close_handle" else []))
    assert device.memory_info()[0] == 1 << 20
    importer.end()


@rule("handle-has-a-device")
def test_a_handle_is_refused_on_another_device(device):
    second = simulated.SimulatedDevice.create(1024, 1)
    assert (device.name, second.name) == ("sim:0", "sim:1")
    with pytest.raises(DeviceHandleError, match="another simulated device"):
        second.open_handle(device.ipc_handle(device.allocate(8)))
    with pytest.raises(MakerGoneError):
        simulated.SimulatedDevice.join(second.address, 0)
    assert device.memory_info()[1] != second.memory_info()[1]
    second.close()


@rule("not-in-exporter")
def test_a_handle_cannot_be_opened_in_its_exporter(device):
    handle = device.ipc_handle(device.allocate(8))
    with pytest.raises(DeviceHandleError, match="process that exported it"):
        device.open_handle(handle)


@rule("exporter-outlives")
@pytest.mark.parametrize("end", [Peer.end, Peer.kill])
def test_the_end_of_the_exporter_frees_its_memory(device, end):
    exporter = Peer()
    exporter.call(join, device.address)
    pointer = exporter.call(drive, "allocate", 8)
    handle = exporter.call(drive, "ipc_handle", pointer)
    exporter.call(drive, "copy_to_device", pointer, NEW)
    exporter.call(drive, "synchronize")
    mine = device.open_handle(handle)
    assert device.copy_to_host(mine, 8) == NEW
    end(exporter)
    assert device.copy_to_host(mine, 8) == POISON
    device.close_handle(mine)
    assert device.memory_info() == (1 << 20, 1 << 20)
    with pytest.raises(DeviceHandleError, match="freed"):
        device.open_handle(handle)


def test_only_the_exporter_can_export(device, peer, shared):
    with pytest.raises(DeviceHandleError, match="belongs to another process"):
        peer.call(drive, "ipc_handle", shared[1])


def test_a_handle_of_another_kind_or_device_is_refused(device):
    other = simulated.SimulatedDevice.create(1024)
    foreign = other.ipc_handle(other.allocate(8))
    with pytest.raises(DeviceHandleError, match="another simulated device"):
        device.open_handle(foreign)
    with pytest.raises(DeviceHandleError, match="no handle of the kind"):
        device.open_handle(device.event_handle(device.event_create()))
    other.close()


# Work


@rule("copy-to-device-is-pending")
def test_a_write_nobody_waited_for_shows_the_old_data(device, peer, shared):
    mine, theirs = shared
    device.copy_to_device(mine, NEW)
    assert peer.call(drive, "copy_to_host", theirs, 8) == OLD


@rule("copy-to-host-completes")
def test_a_read_comes_after_the_writes_of_its_own_process(device, peer, shared):
    mine, theirs = shared
    device.copy_to_device(mine, NEW)
    assert device.copy_to_host(mine, 8) == NEW
    assert peer.call(drive, "copy_to_host", theirs, 8) == NEW


@rule("others-work-is-invisible")
def test_synchronising_oneself_does_not_show_the_work_of_others(device, peer, shared):
    mine, theirs = shared
    peer.call(drive, "copy_to_device", theirs, NEW)
    device.synchronize()
    assert device.copy_to_host(mine, 8) == OLD
    peer.call(drive, "synchronize")
    assert device.copy_to_host(mine, 8) == NEW


@rule("synchronize-completes")
def test_synchronising_shows_all_own_work_to_others(device, peer, shared):
    mine, theirs = shared
    device.copy_to_device(mine, NEW)
    device.copy_to_device(mine + 4, b"!!!!")
    device.synchronize()
    assert peer.call(drive, "copy_to_host", theirs, 8) == b"new.!!!!"


@rule("record-captures")
def test_an_event_stands_for_the_work_before_its_latest_record(device, peer, shared):
    mine, theirs = shared
    event = device.event_create()
    opened = peer.call(drive, "event_open", device.event_handle(event))
    device.copy_to_device(mine, NEW)
    peer.call(drive, "event_synchronize", opened)
    assert peer.call(drive, "copy_to_host", theirs, 8) == OLD  # never recorded
    device.event_record(event)
    device.copy_to_device(mine, NEWER)
    peer.call(drive, "event_synchronize", opened)
    assert peer.call(drive, "copy_to_host", theirs, 8) == NEW  # recorded between
    device.event_record(event)
    peer.call(drive, "event_synchronize", opened)
    assert peer.call(drive, "copy_to_host", theirs, 8) == NEWER


@rule("wait-orders-what-follows")
def test_a_wait_takes_the_state_of_its_call_and_orders_later_work(
    device, peer, bystander, shared
):
    mine, theirs = shared
    other = bystander.call(drive, "open_handle", device.ipc_handle(mine))
    event = device.event_create()
    opened = peer.call(drive, "event_open", device.event_handle(event))
    device.copy_to_device(mine, NEW)
    device.event_record(event)
    peer.call(drive, "event_wait", opened)
    assert bystander.call(drive, "copy_to_host", other, 8) == OLD  # no host waited
    device.copy_to_device(mine, NEWER)
    device.event_record(event)
    assert peer.call(drive, "copy_to_host", theirs, 8) == NEW


def test_waits_are_kept_through_a_chain_of_processes(device, peer, bystander, shared):
    mine, theirs = shared
    third = bystander.call(drive, "open_handle", device.ipc_handle(mine))
    first = device.event_create()
    device.copy_to_device(mine, NEW)
    device.event_record(first)
    opened = peer.call(drive, "event_open", device.event_handle(first))
    peer.call(drive, "event_wait", opened)
    peer.call(drive, "copy_to_device", theirs + 4, b"!!!!")
    second = peer.call(drive, "event_create")
    peer.call(drive, "event_record", second)
    handle = peer.call(drive, "event_handle", second)
    last = bystander.call(drive, "event_open", handle)
    bystander.call(drive, "event_wait", last)
    assert bystander.call(drive, "copy_to_host", third, 8) == b"new.!!!!"


@rule("event-dies-with-its-exporter")
def test_an_event_is_unusable_once_its_exporter_destroyed_it(device, peer):
    event = device.event_create()
    handle = device.event_handle(event)
    opened = peer.call(drive, "event_open", handle)
    device.event_destroy(event)
    device.event_create()  # which may lie in the same place
    for method, argument in [("event_wait", opened), ("event_open", handle)]:
        with pytest.raises(DeviceHandleError, match="destroyed"):
            peer.call(drive, method, argument)


@rule("either-side-records")
def test_the_importer_of_an_event_can_record_it(device, peer, shared):
    mine, theirs = shared
    event = device.event_create()
    opened = peer.call(drive, "event_open", device.event_handle(event))
    peer.call(drive, "copy_to_device", theirs, NEW)
    peer.call(drive, "event_record", opened)
    assert device.copy_to_host(mine, 8) == OLD
    device.event_wait(event)
    assert device.copy_to_host(mine, 8) == NEW


@rule("exit-drops-pending-work")
def test_work_pending_at_the_end_of_its_process_is_dropped(device):
    mine = device.allocate(8)
    device.copy_to_device(mine, OLD)
    device.synchronize()
    event = device.event_create()
    writer = Peer()
    writer.call(join, device.address)
    theirs = writer.call(drive, "open_handle", device.ipc_handle(mine))
    opened = writer.call(drive, "event_open", device.event_handle(event))
    writer.call(drive, "copy_to_device", theirs, NEW)
    writer.call(drive, "event_record", opened)
    writer.kill()
    device.event_synchronize(event)
    assert device.copy_to_host(mine, 8) == OLD


def test_a_full_log_and_an_oversized_copy_are_done_in_order(device, monkeypatch):
    monkeypatch.setattr(simulated.streams, "LOG_BYTES", 128)
    pointer = device.allocate(512)
    device.copy_to_device(pointer, b"a" * 512)
    log = device._memory.processes[device._memory.own_process]
    for place in range(0, 512, 50):
        device.copy_to_device(pointer + place, b"%02d" % (place // 50))
        assert log["tail"] - log["base"] <= 128
    expected = bytearray(b"a" * 512)
    for place in range(0, 512, 50):
        expected[place : place + 2] = b"%02d" % (place // 50)
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
    peer.call(drive, "allocate", 1 << 19)
    assert peer.call(drive, "memory_info") == (0, 1 << 20)
    with pytest.raises(OutOfDeviceMemoryError):
        device.allocate(1)
    device.free(mine)
    assert peer.call(drive, "memory_info") == (1 << 19, 1 << 20)
    assert peer.call(drive, "allocate", 1 << 19)


@rule("uninitialised")
def test_new_memory_is_not_cleared(device):
    pointer = device.allocate(8)
    device.copy_to_device(pointer, OLD)
    device.synchronize()
    device.free(pointer)
    assert device.copy_to_host(device.allocate(8), 8) == POISON


@rule("alignment")
def test_allocations_are_aligned(device):
    assert [device.allocate(size) % 256 for size in (1, 3, 257, 512)] == [0] * 4


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
        peer.call(drive, "free", shared[1])
    with pytest.raises(IllegalAddressError):
        device.free(shared[0] + 4)
    device.free(shared[0])
    with pytest.raises(IllegalAddressError, match="freed before"):
        device.free(shared[0])


# Devices and processes


@rule("device-index")
@pytest.mark.parametrize("name", ["sim:2", "cuda:0", "cuda", "tpu:0", "sim:x"])
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
    run = _run_alone(script)
    assert "There is no cuda:0." in run.stderr
    assert cuda.unavailable_reason() in run.stderr
    assert issubclass(DeviceUnavailableError, cuda.DeviceError)


def _run_alone(script, **kwargs):
    """Run a script in an interpreter that knows of no simulated device."""
    environment = {k: v for k, v in os.environ.items() if simulated.VARIABLE not in k}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, env=environment, timeout=60, **kwargs,
    )  # fmt: skip


def _use_in_forked_child(device, pointer, pipe):
    attempts = {
        "allocate": lambda: device.allocate(8),
        "read": lambda: device.copy_to_host(pointer, 8),
        "write": lambda: device.copy_to_device(pointer, NEW),
        "synchronize": device.synchronize,
        "memory_info": device.memory_info,
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except ForkError as error:
            pipe.send((name, str(error)))
        else:
            pipe.send((name, "no error"))
    pipe.send(None)


@rule("no-fork")
def test_a_forked_child_cannot_use_the_device(device):
    pointer = device.allocate(8)
    device.copy_to_device(pointer, OLD)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_use_in_forked_child, args=(device, pointer, theirs))
    child.start()
    answers = []
    while ours.poll(cuda_peers.DEADLINE) and (answer := ours.recv()):
        answers.append(answer)
    child.join(cuda_peers.DEADLINE)
    assert child.exitcode == 0
    assert [name for name, _ in answers] == [
        "allocate", "read", "write", "synchronize", "memory_info",
    ]  # fmt: skip
    assert all("'spawn' or 'forkserver'" in text for _, text in answers)
    assert device.copy_to_host(pointer, 8) == OLD


def token(held):
    cuda.use_simulated_device()
    cuda.memory_info("sim:1")
    names = simulated.VARIABLE, f"{simulated.VARIABLE}_1"
    return [os.environ[name].split(":")[2] for name in names]


def tokens_of_late_children(held):
    """Start the forkserver before the device is used, then children of each kind."""
    for name in (simulated.VARIABLE, f"{simulated.VARIABLE}_1"):
        os.environ.pop(name, None)
    early = Peer("forkserver")
    tokens = [token(held)]
    for peer in (early, Peer("forkserver"), Peer("spawn")):
        tokens.append(peer.call(token))
        peer.end()
    return tokens


def _tokens_in_daemonless_process(pipe):
    pipe.send(tokens_of_late_children({}))


@rule("same-simulated-devices")
def test_children_find_the_device_though_the_forkserver_is_older():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_tokens_in_daemonless_process, args=(theirs,))
    process.start()
    assert ours.poll(cuda_peers.DEADLINE)
    tokens = ours.recv()
    process.join(cuda_peers.DEADLINE)
    assert tokens == [tokens[0]] * 4
    assert tokens[0][0] != tokens[0][1], "they are two devices"


def test_a_stranger_finds_the_device_through_the_handle_it_receives():
    tensor = cuda.tensor([1, 2, 3], device="sim:0")
    message = bytes(ForkingPickler.dumps(tensor)).hex()
    script = (
        "import pickle, sys; tensor = pickle.loads(bytes.fromhex(input()));"
        "print(tensor.device, tensor.tolist())"
    )
    run = _run_alone(script, input=message)
    assert (run.stdout, run.stderr) == ("sim:0 [1, 2, 3]\n", "")


def test_a_process_that_ends_with_live_tensors_is_silent():
    script = "from sharedtensor import cuda; t = cuda.tensor([1], device='sim:0')"
    run = _run_alone(script)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_device_whose_processes_have_ended_is_not_silently_replaced(monkeypatch):
    stranger = Peer()
    stranger.call(token)
    pid = stranger.process.pid
    stranger.end()
    monkeypatch.setenv(simulated.VARIABLE, f"{pid}:7:{'00' * 16}")
    with pytest.raises(MakerGoneError, match=f"Process {pid} no longer offers"):
        simulated.find_or_create(1024)


def test_a_variable_that_was_set_by_hand_is_refused(monkeypatch):
    monkeypatch.setenv(simulated.VARIABLE, "yes")
    with pytest.raises(cuda.DeviceError, match="should not be set by hand"):
        simulated.find_or_create(1024)


def test_another_file_at_the_address_is_refused(device):
    wrong_token = device.address._replace(token=bytes(16))
    with pytest.raises(MakerGoneError):
        simulated.SimulatedDevice.join(wrong_token)
    reading, writing = os.pipe()
    wrong_file = device.address._replace(descriptor=writing)
    with pytest.raises(MakerGoneError):
        simulated.SimulatedDevice.join(wrong_file)
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
