"""The protocol of sharing at its edges, and the mutants that its steps allow."""

import gc
import multiprocessing
import os
import threading
import time
from multiprocessing.reduction import ForkingPickler

import cuda_peers
import pytest
from cuda_peers import (
    drop,
    dump,
    give,
    keep,
    load,
    make,
    nothing_stays_allocated,
    read,
    synchronize,
)
from sharedtensor import cuda
from sharedtensor.cuda import counts, protocol, reducers, shared_file, simulated
from sharedtensor.cuda.devices import device_state
from sharedtensor.cuda.state import DeviceState

DEVICE = "sim:0"


@pytest.fixture(autouse=True)
def _nothing_stays_allocated():
    cuda.use_simulated_device()
    with nothing_stays_allocated(DEVICE):
        yield
    assert not device_state(DEVICE).limbo


@pytest.fixture
def peer(peers):
    """A peer of one start method; the clauses are tested under both."""
    return peers[0]


@pytest.fixture
def third(peers):
    """A second peer: the third process."""
    return peers[1]


def _states():
    states = device_state(DEVICE).own_table.slots["state"]
    return sorted(states[states != counts.VACANT].tolist())


# Receiving


def test_a_second_receive_finds_the_first_and_gives_its_count_back(peer):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    peer.call(keep, "y", tensor)
    assert peer.call(cuda_peers.place, "x") == peer.call(cuda_peers.place, "y")
    assert _states() == [counts.TAKEN, counts.TAKEN]
    peer.call(synchronize)
    assert _states() == [counts.HELD]
    peer.call(drop, "x")
    assert _states() == [counts.HELD]
    peer.call(drop, "y")
    assert _states() == []


def test_a_message_that_is_refused_for_want_of_its_device_counts_no_more():
    tensor = cuda.tensor([1, 2, 3])
    _, (_, *rest), *_ = reducers.reduce_tensor(tensor)
    assert _states() == [counts.IN_FLIGHT]
    for _ in range(2):
        with pytest.raises(cuda.DeviceUnavailableError):
            reducers.rebuild_tensor("GPU-of-nobody", *rest)
        assert _states() == []


def test_a_message_that_a_forked_child_is_refused_counts_no_more():
    message = ForkingPickler.dumps(cuda.tensor([1, 2, 3]))
    assert _states() == [counts.IN_FLIGHT]
    if (pid := os.fork()) == 0:
        try:
            ForkingPickler.loads(message)
        except cuda.ForkError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert _states() == []


def test_an_event_is_kept_until_the_receivers_wait_for_it_is_over(peer):
    tensor = cuda.tensor([1, 2, 3])
    cuda.synchronize()
    for name in ("x", "again"):
        tensor.write(0, 7)
        peer.call(keep, name, tensor)
        cuda.ipc_collect()  # destroys what it takes for done with
        assert peer.call(read, name) == [7, 2, 3]
        peer.call(synchronize)
    assert _states() == [counts.HELD]
    del tensor


def test_a_receiver_that_never_synchronises_does_so_in_the_end(peer):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    for _ in range(protocol.MAX_PENDING_WAITS - 1):
        peer.call(keep, "again", tensor)
    assert _states() == [counts.HELD]
    del tensor


def test_an_allocation_is_known_by_its_owner_and_number_not_by_its_handle():
    tensor = cuda.tensor([1, 2, 3])
    message = protocol.send(tensor.storage)
    state = device_state(DEVICE)
    other = message._replace(allocation=message.allocation + 1)
    assert protocol.find_allocation(state, other) is None
    assert protocol.receive(state, message) is tensor.storage


def test_a_message_received_where_it_was_sent_is_the_same_storage():
    tensor = cuda.tensor([1, 2, 3])
    message = ForkingPickler.dumps(tensor[1:])
    assert _states() == [counts.IN_FLIGHT]
    received = ForkingPickler.loads(message)
    assert received.storage is tensor.storage
    assert received.tolist() == [2, 3]
    assert _states() == []


def test_a_tensor_comes_home_after_its_owner_dropped_it(peer):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    del tensor
    assert len(device_state(DEVICE).limbo) == 1
    home = peer.call(give, "x")
    peer.call(drop, "x")
    cuda.ipc_collect()
    assert home.tolist() == [1, 2, 3]
    assert not device_state(DEVICE).limbo


def test_a_message_is_received_once(peer):
    tensor = cuda.tensor([1, 2, 3])
    message = bytes(ForkingPickler.dumps(tensor))
    peer.call(load, "x", message)
    with pytest.raises(cuda.ReceivedTwiceError, match="send the tensor once to each"):
        peer.call(load, "y", message)
    with pytest.raises(cuda.ReceivedTwiceError):
        ForkingPickler.loads(message)
    assert peer.call(read, "x") == [1, 2, 3]
    peer.call(drop, "x")


def test_a_message_of_a_dead_sender_raises(peer):
    peer.call(make, "x", [1, 2, 3])
    message = peer.call(dump, "x")
    peer.kill()
    with pytest.raises(cuda.MakerGoneError, match="Keep the process that sends"):
        ForkingPickler.loads(message)


# Sending on


def test_a_received_tensor_can_be_sent_on_and_counts_at_its_owner(peer, third):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    message = peer.call(dump, "x")
    peer.call(drop, "x")
    assert _states() == [counts.IN_FLIGHT]
    third.call(load, "x", message)
    del tensor
    cuda.ipc_collect()
    peer.kill()
    cuda.ipc_collect()
    assert third.call(read, "x") == [1, 2, 3]
    third.call(synchronize)
    assert _states() == [counts.HELD]


def test_work_of_the_process_in_between_is_waited_for(peer, third):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    peer.call(cuda_peers.write, "x", 0, 10)
    third.call(load, "x", peer.call(dump, "x"))
    assert third.call(read, "x") == [10, 2, 3]
    peer.call(drop, "x")


def test_the_death_of_the_process_in_between_leaves_the_work_of_the_maker_ordered(
    new_peer, third
):
    tensor = cuda.tensor([1, 2, 3])
    cuda.synchronize()
    tensor.write(0, 9)  # and it is pending when the tensor is sent on
    new_peer.call(keep, "x", tensor)
    third.call(load, "x", new_peer.call(dump, "x"))
    new_peer.kill()
    assert third.call(read, "x") == [9, 2, 3]
    third.call(drop, "x")


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


# Events that programs hold


def write_and_record(held, name, index, value):
    held[name].write(index, value)
    held["event"] = cuda.Event(DEVICE)
    held["event"].record()
    return held["event"]


def wait_for(held, name):
    held[name].wait()


def test_an_event_that_was_sent_orders_what_follows(peer):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    event = peer.call(write_and_record, "x", 0, 10)
    assert tensor.tolist() == [1, 2, 3]
    event.wait()
    assert tensor.tolist() == [10, 2, 3]
    tensor.write(1, 20)
    own = cuda.Event()
    own.record()
    peer.call(keep, "e", own)
    assert peer.call(read, "x") == [10, 2, 3]
    peer.call(wait_for, "e")
    assert peer.call(read, "x") == [10, 20, 3]
    for name in ("x", "e"):
        peer.call(drop, name)


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
    for holder in (third, peer):
        holder.call(drop, "e")


def test_an_event_that_its_maker_gave_up_is_refused(peer):
    cuda.tensor([1])  # the device is in use here, so the message leads to it
    message = bytes(ForkingPickler.dumps(cuda.Event()))
    with pytest.raises(cuda.DeviceHandleError, match="destroyed"):
        peer.call(load, "e", message)


# Devices


def test_each_device_has_its_own_counts_and_memory(peer):
    second = cuda.tensor([4, 5, 6], device="sim:1")
    first = cuda.tensor([1, 2, 3])
    for name, tensor in (("x", first), ("y", second)):
        peer.call(keep, name, tensor)
        assert peer.call(read, name) == tensor.tolist()
    assert len(device_state("sim:1").own_table.counted()) == 1
    del tensor, second
    assert len(device_state("sim:1").limbo) == 1
    peer.call(drop, "y")
    peer.call(drop, "x")
    cuda.ipc_collect("sim:1")
    free, total = cuda.memory_info("sim:1")
    assert free == total
    assert cuda.device_count("sim") == 2


# Ends


def test_the_death_of_one_receiver_does_not_end_the_counts_of_others(peer, third):
    tensor = cuda.tensor([1, 2, 3])
    third.call(keep, "x", tensor)
    peer.call(keep, "x", tensor)
    del tensor
    third.kill()
    cuda.ipc_collect()
    assert peer.call(read, "x") == [1, 2, 3]
    assert _states() == [counts.TAKEN]
    peer.call(drop, "x")


def test_a_receivers_pending_writes_are_done_when_it_drops_the_tensor(peer):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    peer.call(cuda_peers.write, "x", 0, 10)
    assert tensor.tolist() == [1, 2, 3]
    peer.call(drop, "x")
    assert tensor.tolist() == [10, 2, 3]


def test_pending_writes_do_not_reach_memory_that_was_freed(peer):
    tensor = cuda.tensor([1, 2, 3])
    tensor.write(0, 10)
    del tensor
    peer.call(make, "x", [7, 7, 7])
    assert peer.call(read, "x") == [7, 7, 7]
    cuda.synchronize()
    assert peer.call(read, "x") == [7, 7, 7]
    peer.call(drop, "x")


# Scarcity


def test_without_spare_events_the_sender_synchronises(peer, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_EVENTS_IN_USE", 2)
    tensor = cuda.tensor([0, 0, 0])
    messages = []
    for number in range(3):
        tensor.write(number, number + 1)
        messages.append(bytes(ForkingPickler.dumps(tensor[number])))
    assert len(device_state(DEVICE).sent_events) == 2
    peer.call(load, "last", messages[2])
    assert peer.call(read, "last") == 3
    for name, message in zip("ab", messages, strict=False):
        peer.call(load, name, message)
    peer.call(synchronize)
    cuda.ipc_collect()
    assert not device_state(DEVICE).sent_events, "events are retired after the wait"
    for name in ("a", "b", "last"):
        peer.call(drop, name)


def test_allocating_collects_before_it_gives_up(peer):
    free, _ = cuda.memory_info()
    block = cuda.empty_block(free)
    peer.call(keep, "x", cuda.carve(block, 0, (4,), "u1"))
    del block
    with pytest.raises(cuda.OutOfDeviceMemoryError):
        cuda.empty_block(free)
    peer.call(drop, "x")
    assert len(device_state(DEVICE).limbo) == 1
    assert cuda.empty_block(free).nbytes == free


def test_when_all_slots_are_used_the_send_is_refused(monkeypatch):
    table = counts.CountTable.create()
    table.slots["state"], table.used[0] = counts.IN_FLIGHT, counts.SLOTS
    monkeypatch.setattr(device_state(DEVICE), "own_table", table)
    tensor = cuda.tensor([1])
    with pytest.raises(cuda.DeviceError, match="receive and drop some"):
        ForkingPickler.dumps(tensor)


def test_a_dead_process_is_known_by_its_number_and_its_start(monkeypatch):
    """Others have begun in the same tick, or have the same number."""
    dead, living = (20, 5), [(10, 5), (30, 5), (20, 4), (20, 6)]
    monkeypatch.setattr(counts, "is_alive", lambda *identity: identity != dead)
    table = counts.CountTable.create()
    for slot, (pid, start) in enumerate([dead, *living]):
        table.slots[slot] = (counts.HELD, 1, 1, pid, start)
        table.used[0] = slot + 1
    table.vacate_dead()
    assert table.slots["state"][:5].tolist() == [counts.VACANT, *[counts.HELD] * 4]


# Where the pickling happens


def _first_send_is_through(channel, pipe):
    """A process whose first use of the protocol is in a queue's thread, or not."""
    tensor = cuda.tensor([1, 2, 3], device=DEVICE)
    tensor.write(0, 10)
    channel.put(tensor) if hasattr(channel, "put") else channel.send(tensor)
    pipe.recv()


@pytest.mark.parametrize("channel", ["Queue", "Pipe"])
def test_a_first_send_in_a_queues_thread_equals_one_through_a_pipe(channel):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    if channel == "Queue":
        there = context.Queue()
        get = there.get
    else:
        here, there = context.Pipe()
        get = here.recv
    child = context.Process(target=_first_send_is_through, args=(there, theirs))
    child.start()
    reader = there._reader if channel == "Queue" else here
    assert reader.poll(cuda_peers.DEADLINE), "nothing was sent"
    tensor = get()
    assert tensor.tolist() == [10, 2, 3]
    del tensor
    ours.send(None)
    child.join(cuda_peers.DEADLINE)
    assert child.exitcode == 0


def test_threads_and_the_collector_do_not_hang():
    class Cycle:
        def __init__(self):
            self.tensor, self.me = cuda.tensor([1]), self

    def churn():
        for _ in range(40):
            Cycle()
            ForkingPickler.loads(ForkingPickler.dumps(cuda.tensor([1])))

    before = gc.get_threshold()
    gc.set_threshold(20)
    threads = [threading.Thread(target=churn, daemon=True) for _ in range(3)]
    deadline = time.monotonic() + cuda_peers.DEADLINE
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    gc.set_threshold(*before)
    assert not any(thread.is_alive() for thread in threads)
    gc.collect()


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


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_owner_that_ends_too_early_warns_and_takes_its_memory_along(method, capfd):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=_end_while_held, args=(theirs,))
    child.start()
    tensor = ours.recv()
    assert tensor.tolist() == [1, 2, 3]
    ours.send(None)
    child.join(cuda_peers.DEADLINE)
    assert child.exitcode == 0
    if method == "spawn":  # a forkserver writes to where it was started
        assert "refer to 1 of its allocations" in capfd.readouterr().err
    poison = int.from_bytes(b"\xdb" * 8, "little", signed=True)
    assert tensor.tolist() == [poison] * 3


# Mutants: a fault in one step changes what a test above observes. Each takes
# place in the process that performs the step.


def replace_step(held, name, mutant):
    held["original"] = name, getattr(protocol, name)
    setattr(protocol, name, mutant)


def restore_step(held):
    setattr(protocol, *held.pop("original"))


def waits_for_nothing(driver, handle):
    pass


def ignores_the_offset(storage, pointer):
    return 0


def counts_nothing(table, allocation):
    return table.claim(-1)


def frees_at_once(allocation):
    return True


def test_mutant_that_omits_the_wait_reads_old_data_every_time(new_peer):
    new_peer.call(replace_step, "wait_for_event", waits_for_nothing)
    tensor = cuda.tensor([1, 2, 3])
    cuda.synchronize()
    for number in range(5):
        tensor.write(0, number + 10)
        new_peer.call(keep, "x", tensor)
        assert new_peer.call(read, "x") == [1 if number == 0 else number + 9, 2, 3]
        cuda.synchronize()
    new_peer.call(drop, "x")


def test_mutant_that_drops_the_offset_reads_the_neighbour(new_peer):
    new_peer.call(replace_step, "offset_in_allocation", ignores_the_offset)
    new_peer.call(make, "x", [1, 2, 3])
    new_peer.call(keep_slice, "y", "x")
    tensor = new_peer.call(give, "y")
    assert tensor.tolist() == [1, 2]
    del tensor
    new_peer.call(drop, "y")
    new_peer.call(drop, "x")


def keep_slice(held, name, source):
    held[name] = held[source][1:]


@pytest.mark.parametrize(
    ("step", "mutant"), [("count_send", counts_nothing), ("may_free", frees_at_once)]
)
def test_mutants_that_free_too_early_read_poison(new_peer, step, mutant):
    new_peer.call(replace_step, step, mutant)
    new_peer.call(make, "x", [1, 2, 3], "uint8")
    tensor = new_peer.call(give, "x")
    assert tensor.tolist() == [1, 2, 3]
    new_peer.call(drop, "x")
    assert tensor.tolist() == [0xDB] * 3
    del tensor


def never_frees(allocation):
    return False


def test_mutant_that_never_frees_exhausts_the_device(new_peer):
    before = cuda.memory_info()
    new_peer.call(replace_step, "may_free", never_frees)
    new_peer.call(make, "x", [1, 2, 3])
    new_peer.call(drop, "x")
    assert cuda.memory_info() != before
    new_peer.call(restore_step)
    new_peer.call(collect)


def read_in_forked_child(held, name, allow):
    """Fork; return what the child reads, or the name of its error."""
    if allow:
        simulated.SimulatedDevice.forked = lambda self: False
        shared_file.SharedFile.close = lambda self: None
    answers, answering = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(answering, repr(held[name].tolist()).encode())
        except Exception as error:
            os.write(answering, type(error).__name__.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(answering)
    with open(answers) as file:
        return file.read()


def test_mutant_that_allows_a_fork_gives_values(new_peer):
    new_peer.call(make, "x", [1, 2, 3])
    assert new_peer.call(read_in_forked_child, "x", False) == "ForkError"
    assert new_peer.call(read_in_forked_child, "x", True) == "[1, 2, 3]"


def collect(held):
    cuda.ipc_collect(DEVICE)
