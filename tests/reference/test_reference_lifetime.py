"""Who must outlive whom, and that nothing is left in the end."""

import fcntl
import gc
import multiprocessing as standard
import os
import signal
import subprocess
import sys

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from reference_peer import Peer, descriptors, eventually, mappings, own_names, sweep
from sharedtensor.names import program

CHANNELS = ["SimpleQueue", "Queue", "Pipe"]


@pytest.fixture
def nothing_left():
    """What this process holds must be as it was before the test."""
    program.current()  # the pipe to its manager stays
    before = holdings()
    yield
    eventually(lambda: holdings() == before)


def holdings():
    gc.collect()
    sweep()
    return descriptors(), mappings(), own_names()


@pytest.fixture
def by_name():
    """The strategy `file_system`; gives how many names have been made and are left."""
    sharedtensor.set_sharing_strategy("file_system")
    before = set(own_names())
    yield lambda: len(set(own_names()) - before)
    sharedtensor.set_sharing_strategy("file_descriptor")


@pytest.mark.parametrize("kind", CHANNELS)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_message_survives_the_exit_of_its_sender(kind, method, strategy):
    ctx = mp.get_context(method)
    if kind == "Pipe":
        end, other = ctx.Pipe(duplex=False)
        receive = end.recv
    else:
        other = getattr(ctx, kind)()
        receive = other.get
    process = ctx.Process(target=send_last_words, args=(other,))
    process.start()
    process.join()
    assert process.exitcode == 0
    tensor, words = receive()
    assert tensor.tolist() == [1.0, 2.0]
    assert words == "last words"
    tensor[0] = 3


def send_last_words(channel):
    send = channel.send if hasattr(channel, "send") else channel.put
    send((sharedtensor.tensor([1.0, 2.0]), "last words"))


def test_message_survives_the_sender_dropping_its_tensor(strategy, nothing_left):
    queue = mp.SimpleQueue()
    queue.put(sharedtensor.tensor([1.0, 2.0]))
    gc.collect()
    received = queue.get()
    assert received.tolist() == [1.0, 2.0]
    queue.close()


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_received_tensor_outlives_its_sender(fork, strategy, how):
    peer, third = Peer(fork), Peer(fork)
    tensor = peer.ask("make", [1.0, 2.0])
    if how == "kill":
        os.kill(peer.process.pid, signal.SIGKILL)
    peer.close()
    tensor[0] = 5
    third.ask("keep", "t", tensor)
    third.ask("write", "t", 1, 6)
    assert tensor.tolist() == [5, 6]
    third.close()


def test_killed_receiver_leaves_nothing(peer, by_name):
    tensor = sharedtensor.zeros(3)
    peer.ask("keep", "t", tensor)
    os.kill(peer.process.pid, signal.SIGKILL)
    peer.process.join()
    tensor[0] = 1
    assert by_name() == 1
    del tensor
    eventually(lambda: by_name() == 0)


def test_name_goes_with_the_last_reference(peer, by_name):
    tensor = sharedtensor.zeros(3)
    peer.ask("keep", "t", tensor)
    peer.ask("keep", "again", tensor[1:])
    assert by_name() == 1
    del tensor
    peer.ask("drop", "t")
    sweep()
    assert by_name() == 1
    peer.ask("drop", "again")
    eventually(lambda: by_name() == 0)


def test_forked_child_leaves_its_parents_names(fork, by_name):
    tensor = sharedtensor.zeros(3).share_memory_()
    process = fork.Process(target=drop_inherited, args=([tensor],))
    process.start()
    process.join()
    sweep()
    assert process.exitcode == 0
    assert by_name() == 1
    queue = mp.SimpleQueue()
    queue.put(tensor)
    assert queue.get().storage is tensor.storage


def drop_inherited(tensors):
    tensors.clear()
    gc.collect()
    sweep()


def test_forked_child_keeps_nothing_that_it_has_started_others_with(fork, by_name):
    """These are started by the standard library. Clause FS-2."""
    process = fork.Process(target=start_with_tensors)
    process.start()
    process.join()
    assert process.exitcode == 0


def start_with_tensors():
    start_with_a_tensor()  # the first one opens more
    before = descriptors()
    for _ in range(2):
        start_with_a_tensor()
        eventually(lambda: descriptors() <= before)


def start_with_a_tensor():
    """Start a process with a tensor, and wait until both have gone."""
    names = set(own_names())  # of tests before, which may go
    process = standard.get_context("spawn").Process(
        target=is_ones, args=(sharedtensor.ones(3),)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()
    del process
    eventually(lambda: names.issuperset(own_names()))


def is_ones(tensor):
    assert tensor.tolist() == [1, 1, 1]


def test_child_that_is_forked_from_a_pickler_sends_messages_of_its_own(fork):
    """What its parent packed is no message of the child: clause LIFE-7."""
    ours, theirs = fork.Pipe()
    ours.send(StartsAChild(fork))
    assert theirs.recv() == [1, 2, 3]


class StartsAChild:
    """Its pickle is what a child of the standard library's queue has sent."""

    def __init__(self, fork):
        self.fork = fork

    def __reduce__(self):
        queue = standard.get_context("fork").SimpleQueue()
        process = self.fork.Process(target=send_and_stay, args=(queue,))
        process.start()
        values = queue.get().tolist()
        process.terminate()
        process.join()
        return list, (values,)


def send_and_stay(queue):
    queue.put(sharedtensor.tensor([1, 2, 3]))
    signal.pause()


def test_file_descriptor_costs_one_descriptor_and_no_name():
    before, names = descriptors(), set(own_names())
    tensors = [sharedtensor.zeros(4).share_memory_() for _ in range(10)]
    views = [tensor[1:] for tensor in tensors]
    assert descriptors() == before + 10
    assert names.issuperset(own_names())
    del tensors
    assert descriptors() == before + 10
    del views
    assert descriptors() == before


def test_file_system_costs_no_descriptor_and_one_private_name(peer, by_name):
    # Two names in one message: of a single one the descriptor is kept for a while.
    first = [sharedtensor.zeros(4).share_memory_() for _ in range(2)]
    peer.ask("keep", "first", first)
    ours, theirs = descriptors(), peer.ask("descriptors")
    tensors = [sharedtensor.zeros(4).share_memory_() for _ in range(10)]
    peer.ask("keep", "all", tensors)
    assert descriptors() == ours
    assert peer.ask("descriptors") == theirs
    assert by_name() == len(first) + len(tensors)
    for name in own_names():
        status = os.stat(f"/dev/shm/{name}")
        assert (status.st_mode & 0o777, status.st_uid) == (0o600, os.geteuid())


def test_rounds_of_new_tensors_leave_nothing(ctx, strategy):
    peer = Peer(ctx)
    first = last = None
    for number in range(200):
        tensor = sharedtensor.tensor([number, 1])
        assert peer.ask("echo", [tensor, tensor[1:]])[0].tolist() == [number, 1]
        del tensor
        last = descriptors(), mappings(), peer.ask("descriptors"), peer.ask("mappings")
        if number == 5:
            first, names = last, own_names()
    assert first == last
    eventually(lambda: len(own_names()) <= len(names))
    peer.close()


def test_resending_one_tensor_costs_nothing(peer, strategy):
    tensor = sharedtensor.zeros(5)
    peer.ask("keep", "t", tensor)
    address = peer.ask("address", "t")
    peer.ask(
        "kept", "t"
    )  # under file_system each side keeps what its last message cost
    before = descriptors(), mappings(), peer.ask("descriptors"), peer.ask("mappings")
    for _ in range(50):
        peer.ask("keep", "u", tensor)
        assert peer.ask("address", "u") == address
        assert peer.ask("kept", "u").data_ptr() == tensor.data_ptr()
    after = descriptors(), mappings(), peer.ask("descriptors"), peer.ask("mappings")
    assert after == before


def test_storage_received_twice_at_once_is_mapped_once(peer, strategy):
    tensor = sharedtensor.zeros(5)
    view = tensor[2:]
    before = peer.ask("mappings")
    peer.ask("keep", "t", tensor)
    peer.ask("keep", "v", view)
    assert peer.ask("address", "v") == peer.ask("address", "t") + 8
    assert peer.ask("mappings") == before + 1


def test_processes_that_are_all_killed_leave_nothing(spawn, strategy):
    reader, writer = spawn.Pipe(duplex=False)
    parent = spawn.Process(target=parent_to_be_killed, args=(writer, strategy))
    parent.start()
    pids, expected = reader.recv()
    assert len([n for n in all_names() if str(pids[0]) in n]) == expected
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    parent.join()
    eventually(lambda: not [n for n in all_names() if str(pids[0]) in n])


def all_names():
    return os.listdir("/dev/shm")


def parent_to_be_killed(writer, strategy):
    sharedtensor.set_sharing_strategy(strategy)
    peer = Peer(mp.get_context("fork"))
    tensors = [sharedtensor.zeros(3).share_memory_() for _ in range(3)]
    peer.ask("keep", "all", tensors)
    expected = 3 if strategy == "file_system" else 0
    writer.send(([os.getpid(), peer.process.pid], expected))
    signal.pause()


def test_segment_of_a_descriptor_is_sealed():
    segment = sharedtensor.zeros(3).share_memory_().storage.segment
    with pytest.raises(PermissionError):
        os.ftruncate(segment.descriptor, 0)
    assert fcntl.fcntl(segment.descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


AT_EXIT = """
import sys, sharedtensor
sharedtensor.set_sharing_strategy(sys.argv[1])
class Cycle: pass
cycle = Cycle()
cycle.itself, cycle.tensor = cycle, sharedtensor.zeros(3).share_memory_()
"""


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_a_tensor_that_lives_to_the_end_of_the_interpreter_says_nothing(strategy):
    command = [sys.executable, "-c", AT_EXIT, strategy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
