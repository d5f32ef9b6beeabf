"""What forks, and the ends of processes, leave of descriptors and names."""

import gc
import multiprocessing as standard
import signal
import subprocess
import sys

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from holdings import descriptors, eventually, own_names
from interrupts import in_a_child
from sharedtensor import protocol, strategies


def start_with_a_tensor():
    """Start a process with a tensor, and wait until both have gone."""
    process = standard.get_context("spawn").Process(
        target=is_ones, args=(sharedtensor.ones(3),)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()
    del process
    eventually(lambda: not own_names())


def is_ones(tensor):
    assert tensor.tolist() == [1, 1, 1]


@in_a_child
def test_forked_child_keeps_nothing_that_it_has_started_others_with():
    """These are started by the standard library. Clause FS-2."""
    sharedtensor.set_sharing_strategy("file_system")
    start_with_a_tensor()  # the first one opens more
    before = descriptors()
    for _ in range(2):
        start_with_a_tensor()
        eventually(lambda: descriptors() <= before)


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
    """Send, and stay until a signal comes; then remove what the queue has made."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    queue.put(sharedtensor.tensor([1, 2, 3]))
    signal.pause()


AT_EXIT = """
import sys, sharedtensor
sharedtensor.set_sharing_strategy(sys.argv[1])
class Cycle: pass
cycle = Cycle()
cycle.itself, cycle.tensor = cycle, sharedtensor.zeros(3).share_memory_()
"""


def test_a_tensor_that_lives_to_the_end_of_the_interpreter_says_nothing(strategy):
    """Nor does Python's development mode, which warns of what nobody has closed."""
    command = [sys.executable, "-X", "dev", "-c", AT_EXIT, strategy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_message_with_many_small_tensors_costs_one_descriptor_or_name(strategy):
    sharedtensor.zeros(1).share_memory_()  # the first one opens more
    ours, theirs = mp.Pipe()
    before, names = descriptors(), set(own_names())  # earlier tests' may still go
    tensors = [sharedtensor.tensor([float(number)]) for number in range(300)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    ours.send(tensors)
    assert descriptors() <= before + 1
    assert len(set(own_names()) - names) == (strategy == "file_system")
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert [tensor.item() for tensor in theirs.recv()] == list(range(300))


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_segment_that_is_being_released_is_not_found(strategy, in_a_cycle, monkeypatch):
    """Python runs a finalizer before it clears the weak references to its object."""
    release, found = strategies.release_segment, []

    def look_and_release(resource):
        found.append(protocol.find_segment(resource.token))
        release(resource)

    monkeypatch.setattr(strategies, "release_segment", look_and_release)
    tensor = sharedtensor.ones(3).share_memory_()
    assert protocol.find_segment(tensor.storage.segment.token)
    if in_a_cycle:
        cycle = [tensor]
        cycle.append(cycle)
        del cycle
    del tensor
    gc.collect()
    assert found == [None]
