"""The clauses of the chapter CUDA, on the simulated device, by real processes.

The owner is the process of the tests; peers are spawned or come from a
forkserver, over the standard library's own channels.
"""

import multiprocessing
import os
import sys
from multiprocessing.reduction import ForkingPickler

import cuda_peers
import numpy as np
import pytest
import sharedtensor.multiprocessing as dropin
from cuda_peers import (
    Peer,
    drop,
    keep,
    make,
    nothing_stays_allocated,
    read,
    write_and_synchronize,
)
from sharedtensor import cuda

DEVICE = "sim:0"


@pytest.fixture(autouse=True)
def _nothing_stays_allocated():
    with nothing_stays_allocated(DEVICE):
        yield


def _free_bytes():
    return cuda.memory_info(DEVICE)[0]


# CUDA-1


def _attempt(name, tensor, pipe):
    attempts = {
        "make": lambda: cuda.tensor([1], device=DEVICE),
        "read": lambda: tensor.tolist(),
        "write": lambda: tensor.write(0, 9),
        "send": lambda: pipe.send(tensor),
        "synchronize": lambda: cuda.synchronize(DEVICE),
        "memory_info": lambda: cuda.memory_info(DEVICE),
        "use": lambda: cuda.use_simulated_device(),
        "collect": lambda: cuda.ipc_collect(DEVICE),
    }
    try:
        value = attempts[name]()
    except cuda.ForkError as error:
        pipe.send(str(error))
    else:
        pipe.send(value)


@pytest.mark.parametrize(
    "name",
    ["make", "read", "write", "send", "synchronize", "collect", "memory_info", "use"],
)
def test_a_forked_child_is_refused(name):
    tensor = cuda.tensor([1, 2, 3], device=DEVICE)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_attempt, args=(name, tensor, theirs))
    child.start()
    assert ours.poll(cuda_peers.DEADLINE), "the child hangs"
    answer = ours.recv()
    child.join(cuda_peers.DEADLINE)
    assert child.exitcode == 0
    assert "before this process was forked" in str(answer)
    assert "'spawn' or 'forkserver'" in str(answer)
    assert tensor.tolist() == [1, 2, 3]


def _receive_in_forked_child(pipe, answers):
    try:
        answers.send(pipe.recv().tolist())
    except cuda.ForkError as error:
        answers.send(str(error))


def test_a_forked_child_cannot_receive(new_peer):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    answers, answering = context.Pipe()
    child = context.Process(target=_receive_in_forked_child, args=(theirs, answering))
    child.start()
    new_peer.call(make, "x", [1, 2, 3])
    ours.send_bytes(new_peer.call(cuda_peers.dump, "x"))
    assert answers.poll(cuda_peers.DEADLINE), "the child hangs"
    assert "forked" in str(answers.recv())
    child.join(cuda_peers.DEADLINE)


def test_a_dropped_tensor_of_the_parent_stays_when_a_forked_child_drops_it():
    tensor = cuda.tensor([1, 2, 3], device=DEVICE)
    if (pid := os.fork()) == 0:
        sys.unraisablehook = lambda it: os._exit(1)
        del tensor
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert tensor.tolist() == [1, 2, 3]


# CUDA-2


def test_tensors_in_one_allocation_arrive_at_their_own_offsets(peer):
    block = cuda.empty_block(1024)
    parts = {
        "floats": cuda.carve(block, 0, (4,), np.float32),
        "longs": cuda.carve(block, 256, (2, 3), np.int64),
        "bytes": cuda.carve(block, 1021, (3,), np.uint8),
    }
    parts["slice"] = parts["longs"][1, ::2]
    parts["floats"].write(Ellipsis, [1.5, 2.5, 3.5, 4.5])
    parts["longs"].write(Ellipsis, [[1, 2, 3], [4, 5, 6]])
    parts["bytes"].write(Ellipsis, [7, 8, 9])
    for name, tensor in parts.items():
        peer.call(keep, name, tensor)
    for name, tensor in parts.items():
        assert peer.call(read, name) == tensor.tolist()
    places = {name: peer.call(cuda_peers.place, name) for name in parts}
    assert [offset for _, offset in places.values()] == [0, 256, 1021, 280]
    assert len({storage for storage, _ in places.values()}) == 1, "one open"
    peer.call(write_and_synchronize, "slice", 1, 66)
    peer.call(write_and_synchronize, "floats", 0, -1.25)
    assert parts["longs"].tolist() == [[1, 2, 3], [4, 5, 66]]
    assert parts["floats"].tolist() == [-1.25, 2.5, 3.5, 4.5]
    for name in parts:
        peer.call(drop, name)


@pytest.fixture(autouse=True)
def _simulated_by_default():
    cuda.use_simulated_device()


# CUDA-3


def test_writes_are_seen_in_both_directions(peer):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    tensor.write(0, 10)
    cuda.synchronize()
    assert peer.call(read, "x") == [10, 2, 3]
    peer.call(write_and_synchronize, "x", 2, 30)
    assert tensor.tolist() == [10, 2, 30]
    peer.call(drop, "x")


def test_a_tensor_that_the_peer_made_is_shared_too(peer):
    peer.call(make, "x", [[1, 2], [3, 4]], "int16")
    tensor = peer.call(cuda_peers.give, "x")
    assert (tensor.tolist(), tensor.dtype, tensor.device) == (
        [[1, 2], [3, 4]],
        np.int16,
        DEVICE,
    )
    tensor.write((1, 0), -3)
    cuda.synchronize()
    assert peer.call(read, "x") == [[1, 2], [-3, 4]]
    del tensor
    peer.call(drop, "x")


# CUDA-4


def test_the_allocation_stays_while_a_receiver_holds_it(peer):
    before = _free_bytes()
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    peer.call(keep, "y", tensor[1:])
    del tensor
    cuda.ipc_collect()
    assert _free_bytes() < before
    assert peer.call(read, "x") == [1, 2, 3]
    peer.call(drop, "x")
    cuda.ipc_collect()
    assert _free_bytes() < before, "the second view still needs it"
    assert peer.call(read, "y") == [2, 3]
    peer.call(drop, "y")
    cuda.ipc_collect()
    assert _free_bytes() == before


def test_the_allocation_stays_while_a_message_is_in_flight(peer):
    before = _free_bytes()
    peer.call(make, "x", [1, 2, 3])
    message = peer.call(cuda_peers.dump, "x")
    peer.call(drop, "x")
    peer.call(collect)
    assert _free_bytes() < before
    tensor = ForkingPickler.loads(message)
    assert tensor.tolist() == [1, 2, 3]
    del tensor
    peer.call(collect)
    assert _free_bytes() == before


def collect(held):
    cuda.ipc_collect("sim:0")


@pytest.mark.parametrize("end", [Peer.end, Peer.kill])
def test_the_allocation_is_freed_when_its_receiver_has_ended(peer, end):
    before = _free_bytes()
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    del tensor
    assert _free_bytes() < before
    end(peer)
    cuda.ipc_collect()
    assert _free_bytes() == before


def test_a_receiver_keeps_nothing_of_a_tensor_it_dropped(peer):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(cuda_peers.make, "own", [0])
    before = peer.call(cuda_peers.segments), peer.call(descriptors)
    for name in ("x", "y"):
        peer.call(keep, name, tensor)
    assert peer.call(cuda_peers.segments) != before[0]
    for name in ("x", "y"):
        peer.call(drop, name)
    assert (peer.call(cuda_peers.segments), peer.call(descriptors)) == before


def descriptors(held):
    return len(os.listdir("/proc/self/fd"))


# CUDA-5


@pytest.mark.parametrize("new_peer", ["spawn", "forkserver"], indirect=True)
def test_no_cpu_segment_is_made(new_peer):
    of_the_protocol = {
        f"/memfd:sharedtensor-{name} (deleted)"
        for name in ("simulated-device", "device-counts")
    }
    before = cuda_peers.segments({})
    tensor = cuda.tensor(np.arange(1000))
    new_peer.call(keep, "x", tensor)
    assert new_peer.call(read, "x") == list(range(1000))
    assert new_peer.call(cuda_peers.segments) == of_the_protocol
    assert cuda_peers.segments({}) - before <= of_the_protocol
    assert tensor.is_shared()
    assert tensor.share_memory_() is tensor
    new_peer.call(drop, "x")


def _write_through_the_drop_in(there, back):
    tensor = there.get()
    tensor.write(0, 100)
    cuda.synchronize(DEVICE)
    back.put(tensor.tolist())


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_the_strategy_of_the_drop_in_does_not_matter(strategy):
    before = dropin.get_sharing_strategy()
    dropin.set_sharing_strategy(strategy)
    try:
        context = dropin.get_context("spawn")
        there, back = context.Queue(), context.Queue()
        child = context.Process(
            target=_write_through_the_drop_in, args=(there, back), daemon=True
        )
        child.start()
    finally:
        dropin.set_sharing_strategy(before)
    tensor = cuda.tensor([1, 2, 3])
    there.put(tensor)
    assert back.get(timeout=cuda_peers.DEADLINE) == [100, 2, 3]
    child.join(cuda_peers.DEADLINE)
    assert tensor.tolist() == [100, 2, 3]


# CUDA-6


def test_what_was_written_before_the_send_is_there_after_the_receive(peer):
    tensor = cuda.tensor([1, 2, 3])
    cuda.synchronize()
    tensor.write(1, 20)  # pending when it is sent
    peer.call(keep, "x", tensor)
    tensor.write(2, 30)  # after the send
    assert peer.call(read, "x") == [1, 20, 3]
    cuda.synchronize()
    assert peer.call(read, "x") == [1, 20, 30]
    peer.call(drop, "x")


# Every channel


def _echo(get, put):
    while (message := get()) is not None:
        message["double"] = cuda.tensor(message["x"].cpu() * 2, device=DEVICE)
        message["x"].write(0, 100)
        cuda.synchronize(DEVICE)
        put(message)
        del message
    get()  # the senders of what was put stay alive until it was dropped


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("channel", ["Queue", "SimpleQueue", "Pipe"])
def test_every_channel_carries_device_tensors(method, channel):
    context = multiprocessing.get_context(method)
    if channel == "Pipe":
        (ours, theirs), (back, their_back) = context.Pipe(), context.Pipe()
        put, get = ours.send, back.recv
        target, args = _echo, (theirs.recv, their_back.send)
    else:
        there, back = getattr(context, channel)(), getattr(context, channel)()
        put, get = there.put, back.get
        target, args = _echo, (there.get, back.put)
    child = context.Process(target=target, args=args, daemon=True)
    child.start()
    tensor = cuda.tensor([1, 2, 3])
    put({"x": tensor, "view": tensor[1:], "text": "beside"})
    assert getattr(back, "_reader", back).poll(cuda_peers.DEADLINE), "no answer"
    answer = get()
    assert answer["double"].tolist() == [2, 4, 6]
    assert answer["x"].tolist() == tensor.tolist() == [100, 2, 3]
    assert answer["x"].storage is tensor.storage
    assert answer["text"] == "beside"
    del answer
    put(None)
    put(None)
    child.join(cuda_peers.DEADLINE)
    assert child.exitcode == 0


def _add_one(tensor):
    tensor.write(Ellipsis, tensor.cpu() + 1)
    cuda.synchronize(DEVICE)
    return tensor[0:1]


def test_a_pool_shares_its_tasks_and_results():
    tensors = [cuda.tensor([number, number]) for number in range(3)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results = pool.map(_add_one, tensors)
        pool.close()
        pool.join()
    assert [each.tolist() for each in tensors] == [[1, 1], [2, 2], [3, 3]]
    assert all(a.storage is b.storage for a, b in zip(results, tensors, strict=True))


def _check_argument(tensor):
    assert tensor.tolist() == [1, 2, 3]
    tensor.write(1, 20)
    cuda.synchronize(DEVICE)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_argument_of_a_process_is_shared(method):
    tensor = cuda.tensor([1, 2, 3])
    context = multiprocessing.get_context(method)
    child = context.Process(target=_check_argument, args=(tensor,))
    child.start()
    child.join(cuda_peers.DEADLINE)
    assert child.exitcode == 0
    assert tensor.tolist() == [1, 20, 3]
