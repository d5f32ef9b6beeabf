"""The protocol of sharing at its edges, on the simulated device."""

import multiprocessing
import os
import sys
from multiprocessing.reduction import ForkingPickler

import pytest
from cuda_peers import (
    TIMEOUT,
    counts_in_use,
    drop,
    dump,
    give,
    keep,
    load,
    pickled_for_a_channel,
    read,
    synchronize,
)
from sharedtensor import cuda, transport
from sharedtensor.cuda import counts, protocol, reducers, simulated
from sharedtensor.cuda.devices import device_state
from sharedtensor.cuda.state import DeviceState

DEVICE = "sim:0"


pytestmark = pytest.mark.usefixtures("all_given_back")


@pytest.fixture
def third(peers):
    """A second peer: the third process."""
    return peers[1]


# Receiving


def test_a_message_that_is_refused_for_want_of_its_device_counts_no_more(monkeypatch):
    tensor = cuda.tensor([1, 2, 3])
    monkeypatch.setattr(transport, "is_in_a_message", lambda: True)
    _, (_, *rest), *_ = reducers.reduce_tensor(tensor)
    assert counts_in_use() == [counts.IN_FLIGHT]
    for _ in range(2):
        with pytest.raises(cuda.DeviceUnavailableError):
            reducers.rebuild_tensor("GPU-of-nobody", *rest)
        assert counts_in_use() == []


def test_a_message_that_a_forked_child_is_refused_counts_no_more():
    message = pickled_for_a_channel(cuda.tensor([1, 2, 3]))
    assert counts_in_use() == [counts.IN_FLIGHT]
    if (pid := os.fork()) == 0:
        try:
            ForkingPickler.loads(message)
        except cuda.ForkError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert counts_in_use() == []


def test_a_receiver_that_never_synchronises_does_so_in_the_end(peer):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    for _ in range(protocol.MAX_PENDING_WAITS - 1):
        peer.call(keep, "again", tensor)
    assert counts_in_use() == [counts.HELD]
    del tensor


# Sending on


@pytest.mark.parametrize("make", [cuda.empty_block, cuda.virtual_block])
def test_memory_that_only_a_cycle_refers_to_is_given_back(make):
    """A weak reference may still lead to its storage while that is finalized."""
    cycle = [make(24)]
    cycle.append(cycle)


def test_a_refused_receive_gives_its_count_back_at_once(new_peer, third):
    tensor = cuda.tensor([1, 2, 3])
    new_peer.call(keep, "x", tensor)
    message = new_peer.call(dump, "x")
    new_peer.kill()
    with pytest.raises(cuda.DeviceHandleError):
        third.call(load, "x", message)
    counted = device_state(DEVICE).own_table.counted
    assert counted() == set(), "neither of the killed process nor of the other"


def without_events(held):
    protocol.MAX_EVENTS_IN_USE = 0


def test_a_message_without_an_event_outlives_the_process_in_between(new_peer, third):
    tensor = cuda.tensor([1, 2, 3])
    new_peer.call(without_events)
    new_peer.call(keep, "x", tensor)
    message = new_peer.call(dump, "x")
    new_peer.kill()
    third.call(load, "x", message)
    assert third.call(read, "x") == [1, 2, 3]


def make(held, name):
    held[name] = cuda.tensor([4, 5, 6], device=DEVICE)


def test_a_second_message_without_an_event_is_refused_after_its_maker(new_peer, third):
    new_peer.call(without_events)
    new_peer.call(make, "x")
    first, second = (new_peer.call(dump, "x") for _ in range(2))
    third.call(load, "x", first)
    new_peer.kill()
    with pytest.raises(cuda.MakerGoneError):
        third.call(load, "again", second)
    third.call(drop, "x")


# Bytes that a program pickles itself


def test_bytes_have_one_slot_however_many_there_are():
    tensor = cuda.tensor([1, 2, 3])
    contents = [ForkingPickler.dumps(tensor) for _ in range(3)]
    assert counts_in_use() == [counts.OFFERED]
    assert ForkingPickler.loads(contents[1]).storage is tensor.storage
    assert counts_in_use() == [counts.OFFERED]
    del tensor
    assert counts_in_use() == []
    with pytest.raises(cuda.DeviceHandleError, match="outside of a channel"):
        ForkingPickler.loads(contents[1])


# Events that programs hold


def write_and_record(held, name, index, value):
    held[name].write(index, value)
    held["event"] = cuda.Event(DEVICE)
    held["event"].record()
    return held["event"]


def wait_for(held, name):
    held[name].wait()


def test_the_host_can_wait_for_an_event(peer):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    peer.call(write_and_record, "x", 0, 10).synchronize()
    assert tensor.tolist() == [10, 2, 3]
    peer.call(drop, "x")


def test_an_event_is_one_object_in_a_process_and_can_be_sent_on(peer, third):
    own = cuda.Event()
    assert ForkingPickler.loads(ForkingPickler.dumps(own)) is own
    peer.call(keep, "e", own)
    assert peer.call(give, "e") is own
    third.call(load, "e", peer.call(dump, "e"))
    third.call(wait_for, "e")
    third.call(synchronize)  # a wait for a destroyed event would fail later tests
    for holder in (third, peer):
        holder.call(drop, "e")


def test_an_event_that_its_maker_gave_up_is_refused(peer):
    cuda.tensor([1])  # the device is in use here, so the message leads to it
    message = bytes(ForkingPickler.dumps(cuda.Event()))
    with pytest.raises(cuda.DeviceHandleError, match="destroyed"):
        peer.call(load, "e", message)


# Scarcity


def test_when_all_slots_are_used_the_send_is_refused(monkeypatch):
    table = counts.CountTable.create()
    table.slots["state"], table.used[0] = counts.IN_FLIGHT, counts.SLOTS
    monkeypatch.setattr(device_state(DEVICE), "own_table", table)
    tensor = cuda.tensor([1])
    for pickle in (pickled_for_a_channel, ForkingPickler.dumps):
        with pytest.raises(cuda.DeviceError, match="receive and drop some"):
            pickle(tensor)


# Forks


ATTEMPTS = {
    "make": lambda tensor: cuda.tensor([1], device=DEVICE),
    "read": lambda tensor: tensor.tolist(),
    "write": lambda tensor: tensor.write(0, 9),
    "send": pickled_for_a_channel,
    "pickle": ForkingPickler.dumps,
    "synchronize": lambda tensor: cuda.synchronize(DEVICE),
    "memory_info": lambda tensor: cuda.memory_info(DEVICE),
    "use": lambda tensor: cuda.use_simulated_device(),
    "collect": lambda tensor: cuda.ipc_collect(DEVICE),
}


def said_by_attempts(tensor, pipe):
    """Do all that a child may attempt; tell what it is told."""
    for name, attempt in ATTEMPTS.items():
        try:
            pipe.send((name, str(attempt(tensor))))
        except cuda.ForkError as error:
            pipe.send((name, str(error)))


def test_a_forked_child_is_refused_all_use():
    tensor = cuda.tensor([1, 2, 3], device=DEVICE)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=said_by_attempts, args=(tensor, theirs))
    child.start()
    child.join(TIMEOUT)
    assert child.exitcode == 0
    for name in ATTEMPTS:
        found, said = ours.recv()
        assert found == name
        assert "before this process was forked" in said
        assert "'spawn' or 'forkserver'" in said
    assert tensor.tolist() == [1, 2, 3]


def test_a_dropped_tensor_of_the_parent_stays_when_a_forked_child_drops_it():
    tensor = cuda.tensor([1, 2, 3], device=DEVICE)
    if (pid := os.fork()) == 0:
        sys.unraisablehook = lambda it: os._exit(1)
        del tensor
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert tensor.tolist() == [1, 2, 3]


# The end of the owner


def test_a_storage_that_dies_after_its_process_left_is_silent(monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", reported.append)
    state = DeviceState(simulated.SimulatedDevice.create(1024))
    storage = protocol.allocate(state, 8)
    protocol.shut_down(state)
    del storage
    assert not reported


def _end_while_held(pipe):
    tensor = cuda.tensor([1, 2, 3], device=DEVICE)
    pipe.send(tensor)
    pipe.recv()


def test_an_owner_that_ends_too_early_warns_and_takes_its_memory_along(capfd):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_end_while_held, args=(theirs,))
    child.start()
    tensor = ours.recv()
    assert tensor.tolist() == [1, 2, 3]
    ours.send(None)
    child.join(TIMEOUT)
    assert child.exitcode == 0
    assert "refer to 1 of its allocations" in capfd.readouterr().err
    poison = int.from_bytes(b"\xdb" * 8, "little", signed=True)
    assert tensor.tolist() == [poison] * 3
