"""What the drop-in's channels carry, under each start method and strategy."""

import concurrent.futures
import multiprocessing
import os
import queue
import threading
from os.path import lexists

import numpy as np
import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from reference_peer import Peer, describe, eventually, own_names, write_all

QUEUES = ["SimpleQueue", "Queue", "JoinableQueue"]
WAITING = 3000  # messages, more than a pipe takes


@pytest.mark.parametrize("kind", QUEUES)
def test_queue_shares_in_both_directions(ctx, strategy, kind):
    peer = Peer(ctx, kind)
    tensor = sharedtensor.tensor([1.0, 2.0, 3.0])
    array, before = np.asarray(tensor), tensor.data_ptr()
    peer.ask("keep", "t", tensor)
    assert tensor.is_shared()
    assert tensor.data_ptr() == before
    array[0] = 7
    assert peer.ask("values", "t") == [7.0, 2.0, 3.0]
    peer.ask("write", "t", 2, 9)
    assert array.tolist() == [7.0, 2.0, 9.0]
    back = peer.ask("kept", "t")
    assert back.data_ptr() == before
    made = peer.ask("make", [4.0, 5.0])
    assert made.is_shared()
    peer.close()


def test_pipe_shares_and_polls(fork, strategy):
    ours, theirs = fork.Pipe()
    process = fork.Process(target=answer, args=(theirs,))
    process.start()
    tensor = sharedtensor.zeros(3)
    ours.send({"deep": [(tensor, tensor[1:])]})
    assert ours.poll(30)
    whole, rest = ours.recv()
    assert whole.data_ptr() == tensor.data_ptr()
    assert rest.tolist() == [0.0, 5.0]
    assert tensor.tolist() == [0.0, 0.0, 5.0]
    ours.send(None)
    process.join()
    theirs.close()
    with pytest.raises(EOFError):
        ours.recv()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_queue_that_was_used_and_closed_has_no_descriptors(fork, kind):
    queue = getattr(fork, kind)()
    queue.put("short")
    queue.close()
    queue.join_thread()
    assert queue._reader.closed
    assert queue._writer.closed
    with pytest.raises(OSError, match="is closed"):
        queue.empty()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_queue_that_was_not_used_and_closed_is_empty(fork, kind):
    queue = getattr(fork, kind)()
    queue.close()
    queue.join_thread()
    assert queue.empty()


def test_forked_child_has_not_used_the_queue_that_its_parent_has(fork):
    queue = fork.Queue()
    queue.put("short")
    process = fork.Process(target=close_and_look, args=(queue,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert queue.get(timeout=30) == "short"


def close_and_look(queue):
    queue.close()
    queue.empty()


def answer(end):
    while (message := end.recv()) is not None:
        ((whole, rest),) = message["deep"]
        rest[-1] = 5
        end.send((whole, rest))


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_fork_of_a_process_that_received_a_queue_puts_on_it(ctx, kind):
    """Its parent's messages wait for room meanwhile, and are written by a thread."""
    queue, answers = getattr(ctx, kind)(), ctx.Queue()
    process = ctx.Process(target=fill_and_fork, args=(queue, answers))
    process.start()
    answers.get(timeout=60)
    found = [queue.get(timeout=30) for _ in range(WAITING + 1)]
    process.join()
    assert process.exitcode == 0
    assert sorted(found) == [*range(WAITING), WAITING]


def fill_and_fork(queue, answers):
    """Put more than a pipe takes, and let a forked child put one message."""
    for number in range(WAITING):
        queue.put(number)
    child = mp.get_context("fork").Process(target=queue.put, args=(WAITING,))
    child.start()
    answers.put("the fork puts while nobody reads")
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])  # which inherit nothing
def test_fork_keeps_nothing_of_what_waits_in_a_received_queue(method, kind):
    context = mp.get_context(method)
    queue, answers = getattr(context, kind)(), context.Queue()
    process = context.Process(target=count_in_a_fork, args=(queue, answers))
    process.start()
    assert answers.get(timeout=60) > 0  # before the fork
    assert answers.get(timeout=60) == 0  # in it
    for _ in range(WAITING):
        queue.get(timeout=30)
    process.join()
    assert process.exitcode == 0


def count_in_a_fork(queue, answers):
    """Let messages with a tensor wait, and say which segments a forked child has."""
    tensor = sharedtensor.ones(20_000)
    for _ in range(WAITING):
        queue.put(tensor)
    del tensor
    answers.put(segments_open())
    child = mp.get_context("fork").Process(target=say_segments_open, args=(answers,))
    child.start()
    child.join()


def say_segments_open(answers):
    answers.put(segments_open())


def segments_open():
    """Return how many descriptors of this process are those of segments."""
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("sharedtensor" in os.readlink(path) for path in paths if lexists(path))


def test_pipe_of_one_direction_knows_its_ends():
    reader, writer = mp.Pipe(duplex=False)
    with pytest.raises(OSError, match="read-only"):
        reader.send(1)
    with pytest.raises(OSError, match="write-only"):
        writer.recv()


def test_bytes_and_large_payloads_cross_a_pipe(fork):
    ours, theirs = fork.Pipe()
    content = bytes(range(256)) * 20_000
    process = fork.Process(target=send_large, args=(theirs, content))
    process.start()
    assert ours.recv_bytes() == content
    assert ours.recv() == [content, None]
    into = bytearray(8)
    assert ours.recv_bytes_into(into) == 5
    assert into[:5] == b"small"
    assert ours.recv_bytes() == b""
    process.join()


def send_large(end, content):
    end.send_bytes(content)
    end.send([content, None])
    end.send_bytes(b"small")
    end.send_bytes(b"")


def test_connections_are_sent_through_connections():
    ours, theirs = mp.Pipe()
    first, second = mp.Pipe()
    ours.send(second)
    second.close()
    received = theirs.recv()
    received.send(sharedtensor.tensor([3]))
    assert first.recv().tolist() == [3]


def test_message_carries_more_descriptors_than_the_kernel_takes_at_once(peer):
    tensors = [sharedtensor.tensor([number]) for number in range(600)]
    back = peer.ask("echo", tensors)
    assert [t.data_ptr() for t in back] == [t.data_ptr() for t in tensors]


def test_process_arguments_are_sent(ctx, strategy):
    tensor = sharedtensor.zeros(2)
    if ctx.get_start_method() == "fork":
        tensor.share_memory_()
    process = ctx.Process(target=write_all, args=(tensor, 6))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert tensor.tolist() == [6.0, 6.0]


def test_more_arguments_than_a_fork_server_inherits_are_sent():
    ctx = mp.get_context("forkserver")
    tensors = [sharedtensor.zeros(1) for _ in range(300)]
    process = ctx.Process(target=write_each, args=(tensors,))
    process.start()
    process.join()
    assert [tensor.item() for tensor in tensors] == list(range(300))


def write_each(tensors):
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)


def test_private_tensor_stays_private_in_a_fork(fork):
    tensor = sharedtensor.zeros(2)
    process = fork.Process(target=write_all, args=(tensor, 6))
    process.start()
    process.join()
    assert tensor.tolist() == [0.0, 0.0]
    assert not tensor.is_shared()


def test_pool_shares_arguments_and_results(ctx, strategy):
    tensor = sharedtensor.zeros(2)
    with ctx.Pool(1) as pool:
        assert pool.apply(write_all, (tensor, 8)) == [8.0, 8.0]
        made = pool.apply(sharedtensor.tensor, ([1.0],))
    assert tensor.tolist() == [8.0, 8.0]
    assert made.is_shared()
    made[0] = 2


def test_executor_takes_our_context(spawn, strategy):
    tensor = sharedtensor.zeros(2)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as executor:
        assert executor.submit(write_all, tensor, 8).result(60) == [8.0, 8.0]
    assert tensor.tolist() == [8.0, 8.0]


def test_managed_dictionary_holds_a_tensor(fork, strategy):
    tensor = sharedtensor.zeros(2)
    with fork.Manager() as manager:
        shared = manager.dict()
        shared["t"] = tensor
        tensor[0] = 5
        assert shared["t"].data_ptr() == tensor.data_ptr()


def test_standard_queue_shares_too(fork, strategy):
    plain = multiprocessing.get_context("fork").SimpleQueue()
    process = fork.Process(target=put_changed, args=(plain,))
    tensor = sharedtensor.zeros(2).share_memory_()
    plain.put(tensor)
    process.start()
    process.join()
    assert plain.get().data_ptr() == tensor.data_ptr()
    assert tensor.tolist() == [1.0, 1.0]


def put_changed(plain):
    tensor = plain.get()
    tensor.fill_(1)
    plain.put(tensor)


def test_tensor_is_shared_when_put_returns():
    channel, tensor = mp.Queue(), sharedtensor.zeros(2)
    channel.put(tensor)
    assert tensor.is_shared()
    tensor[0] = 4
    assert channel.get().tolist() == [4.0, 0.0]


@pytest.mark.parametrize("kind", QUEUES)
def test_refused_message_is_raised_by_put_and_leaves_the_queue_usable(kind, strategy):
    channel = getattr(mp, kind)(*([1] if kind != "SimpleQueue" else []))
    leaf = sharedtensor.ones(2, requires_grad=True)
    before = set(own_names())  # of tests before this one
    for _ in range(3):
        with pytest.raises(sharedtensor.NonLeafError, match="detach"):
            channel.put([sharedtensor.ones(2), leaf * 2])
    channel.put((leaf * 2).detach())
    assert channel.get().tolist() == [2.0, 2.0]
    # The manager removes what was in the refused messages, if their sender does not.
    eventually(lambda: before.issuperset(own_names()))


def test_full_queue_refuses_and_stays_full():
    channel = mp.Queue(1)
    channel.put(1)
    with pytest.raises(queue.Full):
        channel.put(sharedtensor.zeros(1), timeout=0.01)
    assert channel.get(timeout=30) == 1
    with pytest.raises(queue.Empty):
        channel.get(timeout=0.01)
    with pytest.raises(queue.Empty):
        channel.get_nowait()


@pytest.fixture
def no_room_for_a_thread():
    threading.stack_size(1 << 44)
    yield
    threading.stack_size(0)


def put_until_it_is_refused(queue):
    """Put numbers until there is no room in the pipe; return how many were accepted."""
    for number in range(10_000):
        try:
            queue.put(number)
        except RuntimeError:
            return number
    raise AssertionError("all were accepted")


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_put_that_cannot_start_a_thread_is_refused_and_later_ones_arrive(
    fork, kind, no_room_for_a_thread
):
    queue = getattr(fork, kind)()
    accepted = put_until_it_is_refused(queue)
    with pytest.raises(RuntimeError, match="thread"):
        queue.put("refused, too")
    threading.stack_size(0)
    for number in range(accepted, accepted + 3):
        queue.put(number)
    numbers = [queue.get(timeout=10) for _ in range(accepted + 3)]
    assert numbers == list(range(accepted + 3))
    queue.close()
    queue.join_thread()


def test_queue_whose_thread_cannot_be_started_is_closed(fork, no_room_for_a_thread):
    queue = fork.Queue()
    put_until_it_is_refused(queue)
    queue.close()
    queue.join_thread()
    assert queue._reader.closed
    assert queue._writer.closed


def test_joinable_queue_joins_when_all_tasks_are_done():
    channel = mp.JoinableQueue()
    channel.put(sharedtensor.zeros(1))
    channel.get()
    channel.task_done()
    channel.join()
    with pytest.raises(ValueError, match="too many times"):
        channel.task_done()


def test_message_that_cannot_be_rebuilt_leaves_the_stream_in_step(strategy):
    ours, theirs = mp.Pipe()
    tensor = sharedtensor.zeros(2)
    ours.send([tensor, Unrebuildable()])
    ours.send(tensor)
    with pytest.raises(ZeroDivisionError):
        theirs.recv()
    assert theirs.recv().data_ptr() == tensor.data_ptr()


class Unrebuildable:
    """An object that no process can rebuild."""

    def __reduce__(self):
        return divmod, (1, 0)


def test_description_survives_every_channel(ctx):
    leaf = sharedtensor.Parameter(sharedtensor.arange(4.0).reshape(2, 2))
    leaf.grad = sharedtensor.ones(2, 2)
    view = leaf.detach().T[::-1, 1:]
    lazy = sharedtensor.tensor([1 + 2j]).conj()
    empty = sharedtensor.zeros(3, 0, 2, dtype="uint16")
    scalar = sharedtensor.tensor(5)
    peer = Peer(ctx)
    for tensor in (leaf, view, lazy, empty, scalar):
        described = peer.ask("describe", tensor)
        assert described == describe(tensor)
    peer.close()


def first_elements(tensors):
    """Raise unless each tensor of the arguments has the value of its place."""
    assert [float(one.numpy()[0]) for one in tensors] == list(range(len(tensors)))


@pytest.mark.parametrize("module", [mp, multiprocessing])
@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_storages_with_one_segment_are_arguments_of_a_process(
    strategy, module, start_method
):
    tensors = [sharedtensor.tensor([float(n)]) for n in range(20)]
    ours, theirs = mp.Pipe()
    ours.send(tensors)  # which moves them into one segment
    theirs.recv()
    assert len({one.storage.segment for one in tensors}) == 1
    context = module.get_context(start_method)
    process = context.Process(target=first_elements, args=(tensors,))
    process.start()
    process.join()
    assert process.exitcode == 0
