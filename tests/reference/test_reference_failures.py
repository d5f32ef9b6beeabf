"""Exhaustion, forgery and loss: what the reference does when things go wrong."""

import contextlib
import errno
import os
import resource
import signal
import socket
import sys
from functools import partial
from queue import Empty

import numpy as np
import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp
from reference_peer import Peer, descriptors, eventually, limit_for, own_names
from sharedtensor import memory, protocol, segments, state
from sharedtensor.descriptors import ReceivedDescriptors
from sharedtensor.multiprocessing import packets


@pytest.fixture
def no_descriptor_left():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit_for(8), hard))
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    yield taken
    for fd in taken:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_sharing_without_a_descriptor_left_names_the_limit(no_descriptor_left):
    tensor = sharedtensor.arange(3)
    with pytest.raises(sharedtensor.ResourceError, match="file_system") as caught:
        tensor.share_memory_()
    assert caught.value.errno == errno.EMFILE
    assert not tensor.is_shared()
    os.close(no_descriptor_left.pop())
    assert tensor.share_memory_().tolist() == [0, 1, 2]


def test_receiving_without_room_loses_one_message_and_no_descriptor():
    ours, theirs = mp.Pipe()
    ours.send([sharedtensor.zeros(1).share_memory_() for _ in range(40)])
    ours.send("next")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit_for(8), hard))
    try:
        with pytest.raises(sharedtensor.ResourceError, match="which is lost"):
            theirs.recv()
        assert theirs.recv() == "next"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert descriptors() == before


def test_lack_of_memory_is_an_exception_and_leaves_nothing(strategy, monkeypatch):
    sharedtensor.zeros(1).share_memory_()  # the first one opens more
    tensor = sharedtensor.arange(3)
    before, names = descriptors(), set(own_names())  # of tests before, too

    def full(fd, address, size, offset):
        memory.ctypes.set_errno(errno.ENOSPC)
        return -1

    for library in (memory._libc, memory._libc_alone):
        monkeypatch.setattr(library, "pwrite", full)
    with pytest.raises(sharedtensor.ResourceError, match="/dev/shm") as caught:
        tensor.share_memory_()
    assert caught.value.errno == errno.ENOSPC
    assert names.issuperset(own_names())
    assert descriptors() == before
    assert not tensor.is_shared()
    assert tensor.tolist() == [0, 1, 2]


def test_mapping_that_fails_leaves_nothing(strategy, monkeypatch):
    tensor = sharedtensor.arange(3)

    def refuse(source, fd, then):
        raise memory.resource_error(errno.ENOMEM, "Mapping a segment")

    with monkeypatch.context() as patch:
        patch.setattr(memory, "move", refuse)
        before, names = descriptors(), set(own_names())  # of tests before, too
        with pytest.raises(sharedtensor.ResourceError, match="max_map_count"):
            tensor.share_memory_()
    assert names.issuperset(own_names())
    assert descriptors() == before
    assert tensor.share_memory_().tolist() == [0, 1, 2]


def test_impossible_size_is_a_resource_error():
    with pytest.raises(sharedtensor.ResourceError, match="Reserving"):
        sharedtensor.zeros(1 << 60, dtype="uint8")


def handle_of(tensor):
    """A handle in flight of a tensor's storage that this process has forgotten."""
    segment = tensor.share_memory_().storage.segment
    del state.known[segment.token]
    if segment.descriptor is None:
        where = segment.strategy.export(segment)
    else:
        where = [segment.inode, StandardHandle(os.dup(segment.descriptor))]
    return [segment.strategy.name, segment.token, segment.nbytes, where]


class StandardHandle:
    """A handle of a descriptor as a channel without descriptors makes it."""

    def __init__(self, fd):
        self.fd = fd

    def detach(self):
        return self.fd


FORGERIES = {
    "size": lambda handle: handle.__setitem__(2, 1 << 20),
    "token": lambda handle: handle.__setitem__(1, "0" * 32),
    "path": lambda handle: handle.__setitem__(1, "sharedtensor-1-../../etc/passwd"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_handle_is_refused_and_leaks_nothing(strategy, forgery):
    tensor = sharedtensor.arange(3).share_memory_()  # the first one opens more
    before = descriptors()
    handle = handle_of(tensor)
    FORGERIES[forgery](handle)
    with pytest.raises((sharedtensor.HandleError, ValueError)):
        protocol.rebuild_storage(sharedtensor.Storage, handle)
    assert descriptors() <= before + 1
    assert tensor.tolist() == [0, 1, 2]


def test_forged_inode_is_refused():
    handle = handle_of(sharedtensor.arange(3))
    handle[3][0] += 1
    with pytest.raises(sharedtensor.HandleError, match="stale or forged"):
        protocol.rebuild_storage(sharedtensor.Storage, handle)


def test_receiving_without_proc_says_what_to_do(monkeypatch):
    def absent(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    ours, theirs = mp.Pipe()
    ours.send(sharedtensor.ones(3))
    with monkeypatch.context() as patch:
        patch.setattr("sharedtensor.segments.os.readlink", absent)
        with pytest.raises(sharedtensor.HandleError, match="Mount /proc"):
            theirs.recv()
    ours.send(sharedtensor.ones(3))
    assert theirs.recv().tolist() == [1.0, 1.0, 1.0]


def test_unsealed_segment_is_refused(monkeypatch):
    monkeypatch.setattr(segments, "seal", lambda fd, nbytes: None)
    handle = handle_of(sharedtensor.arange(3))
    with pytest.raises(sharedtensor.HandleError, match="shrunk"):
        protocol.rebuild_storage(sharedtensor.Storage, handle)


def test_handle_of_a_known_storage_with_another_size_is_refused():
    tensor = sharedtensor.arange(3).share_memory_()
    segment = tensor.storage.segment
    handle = "file_descriptor", segment.token, 1, (segment.inode, 0)
    with pytest.raises(sharedtensor.HandleError, match="forged"):
        protocol.rebuild_storage(sharedtensor.Storage, handle)


def test_link_in_place_of_a_segment_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(bytes(4096))
    name = f"sharedtensor-{os.getpid()}-{'f' * 32}"
    path = f"{segments.DIRECTORY}/{name}"
    os.symlink(target, path)
    try:
        with pytest.raises(sharedtensor.HandleError, match="symbolic link"):
            segments.open_named(name)
    finally:
        os.unlink(path)


def test_segment_that_is_gone_is_a_handle_error():
    with pytest.raises(sharedtensor.HandleError, match="is gone"):
        segments.open_named(f"sharedtensor-1-{'e' * 32}")


@pytest.mark.parametrize("length", range(4))
def test_truncated_handle_is_refused(strategy, length):
    handle = handle_of(sharedtensor.arange(3))
    with pytest.raises(sharedtensor.HandleError, match="is no handle"):
        protocol.rebuild_storage(sharedtensor.Storage, handle[:length])


def test_handle_with_half_a_place_is_refused(strategy):
    *rest, where = handle_of(sharedtensor.arange(3))
    with pytest.raises(sharedtensor.HandleError, match="is no handle"):
        protocol.rebuild_storage(sharedtensor.Storage, (*rest, where[:1]))


def test_window_outside_its_storage_is_a_handle_error():
    storage = sharedtensor.Storage(8)
    window = np.dtype("f4").str, 0, (3,), (1,)
    with pytest.raises(sharedtensor.HandleError, match="impossible"):
        protocol.rebuild_tensor(sharedtensor.Tensor, storage, window, (False, False))


def test_message_unpickled_without_its_descriptors_is_a_handle_error():
    ours, theirs = mp.Pipe()
    before = descriptors()
    ours.send(sharedtensor.zeros(1))
    content = theirs.recv_bytes()
    with pytest.raises(sharedtensor.HandleError, match="descriptor"):
        protocol.unpack_message(content, ReceivedDescriptors())
    assert descriptors() == before


def test_more_descriptors_than_a_batch_takes_are_refused_and_not_waited_for():
    with open(os.devnull) as file:
        numbers = [file.fileno()] * 100_000
        before = descriptors()
        with pytest.raises(sharedtensor.ResourceError, match="send fewer tensors"):
            packets.batch_of(numbers)
        with pytest.raises(sharedtensor.ResourceError, match="send fewer tensors"):
            packets.verify_sendable(b"", len(numbers))
        assert descriptors() == before


def test_what_a_queue_has_accepted_waits_until_less_is_in_flight(fork):
    """A limit of a user without privileges, unix(7): so a child gives up its own."""
    queue = fork.Queue()
    queue.put(sharedtensor.zeros(1))
    queue.get()  # all is imported that a child without privileges needs
    child = fork.Process(target=_receive_when_less_is_in_flight, args=(queue,))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def _receive_when_less_is_in_flight(queue):
    if os.geteuid() == 0:
        os.setuid(1_000_000 + os.getpid())  # nobody else's: the limit is that of a user
    queue.cancel_join_thread()  # where this fails, the process ends nevertheless
    before = 3000  # messages of a kilobyte: more than a pipe takes
    for _ in range(before):
        queue.put(bytes(1000))
    queue.put(sharedtensor.ones(2))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit_for(16), hard))
    ours, theirs = socket.socketpair()
    many = [ours.fileno()] * 100  # few messages, so that the buffer takes them all
    with contextlib.suppress(OSError):
        while True:
            socket.send_fds(ours, [b"+"], many)
    with pytest.raises(OSError, match="Too many references"):
        socket.send_fds(ours, [b"+"], many)
    empty = mp.Queue()
    empty.put(sharedtensor.ones(3))  # nothing waits there, and it is accepted as well
    for _ in range(before):
        queue.get(timeout=30)
    with pytest.raises(Empty):
        queue.get(timeout=0.5)
    ours.close()
    theirs.close()  # what was in flight goes with it
    assert queue.get(timeout=30).tolist() == [1, 1]
    assert empty.get(timeout=30).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("count", "most"), [(1, 64), (20, 160)])
def test_a_queue_has_few_descriptors_in_flight_whatever_waits(count, most):
    queue = mp.Queue()
    queue.cancel_join_thread()  # where this fails, the process ends nevertheless
    tensors = [sharedtensor.zeros(1).share_memory_() for _ in range(count)]
    for _ in range(200):
        queue.put(tensors)
    eventually(lambda: len(queue._buffer) < 200)
    in_flight = (200 - len(queue._buffer)) * count
    assert count <= in_flight <= most
    for _ in range(200):
        assert len(queue.get(timeout=30)) == count


def test_peer_that_dies_is_an_end_of_file(fork):
    peer = Peer(fork)
    ours, theirs = fork.Pipe()
    peer.ask("keep", "end", theirs)
    theirs.close()
    os.kill(peer.process.pid, signal.SIGKILL)
    with pytest.raises(EOFError):
        ours.recv()
    with pytest.raises(BrokenPipeError):
        ours.send(sharedtensor.zeros(1))
    peer.close()


def test_reader_that_closes_with_unread_messages_is_an_end_of_file():
    ours, theirs = mp.Pipe()
    ours.send(1)
    theirs.close()
    with pytest.raises(EOFError):
        ours.recv()


def test_feeder_survives_a_reader_that_is_gone(capfd):
    queue = mp.Queue()
    queue._reader.close()
    queue.put(sharedtensor.zeros(1))
    eventually(lambda: not queue._buffer)  # of a closed queue nothing is said
    queue.close()
    queue.join_thread()
    assert "BrokenPipeError" in capfd.readouterr().err


def test_stale_standard_handle_is_a_handle_error(fork):
    from multiprocessing import get_context

    plain = get_context("fork").SimpleQueue()
    process = fork.Process(target=put_one, args=(plain,))
    process.start()
    process.join()
    with pytest.raises(sharedtensor.HandleError, match="keep the sender alive"):
        plain.get()


def put_one(plain):
    plain.put(sharedtensor.zeros(1))


@pytest.fixture(params=["alone", "beside_a_thread"])
def threads(request, monkeypatch):
    """The move takes this for the number of threads, whatever runs the tests."""
    frames = dict.fromkeys(range(1 + (request.param != "alone")))
    monkeypatch.setattr(sys, "_current_frames", lambda: frames)
    return len(frames)


def test_storages_that_cannot_all_be_mapped_are_all_private_again(monkeypatch, threads):
    tensors = [sharedtensor.tensor([float(number)]) for number in range(9)]
    group = memory.Group([t.storage.memory for t in tensors if t.item() != 4])
    assert len(group.pieces) > 1
    fd = os.memfd_create("segment")
    last, map_pages = group.pieces[-1].address, memory._libc_alone.mmap

    def refuse_the_last(address, *arguments):
        return -1 if address == last else map_pages(address, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(memory._libc_alone, "mmap", refuse_the_last)
        change = partial(tensors[0].fill_, 10.0)
        with pytest.raises(OSError, match="Mapping a segment"):
            move_and_change(fd, group, change, threads, patch)
    values = [tensor.item() for tensor in tensors]
    os.pwrite(fd, bytes(group.nbytes), 0)
    assert [tensor.item() for tensor in tensors] == values
    assert values == [10, *range(1, 9)]
    os.close(fd)


def move_and_change(fd, source, change, threads, patch):
    """Move, and change the source before, or where another thread could meanwhile."""
    write_bytes = memory.write_bytes

    def write_and_change(fd, source):
        write_bytes(fd, source)
        change()

    if threads == 1:
        change()
    else:
        patch.setattr(memory, "write_bytes", write_and_change)
    memory.move(source, fd, ())


def test_each_part_of_a_large_storage_is_written_where_it_was(monkeypatch, threads):
    """Above 1 GiB there are several parts; here each is a page, the first one odd."""
    page = memory.mmap.PAGESIZE
    monkeypatch.setattr(memory, "LARGEST_WRITE", page)
    whole = memory.Memory(9 * page)
    source = whole.part(page - whole.address % (2 * page), 8 * page)
    source.bytes[:] = bytes(8 * page)
    fd = os.memfd_create("segment")
    later = b"".join(bytes([number]) * page for number in range(1, 9))

    def change():
        source.bytes[:] = later

    move_and_change(fd, source, change, threads, monkeypatch)
    assert os.pread(fd, len(later), 0) == later == bytes(source.bytes)
    os.close(fd)


def test_storages_for_which_there_is_no_room_together_move_alone(strategy):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    tensors = [sharedtensor.tensor([float(number)]) for number in range(5)]
    ours, theirs = mp.Pipe()
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        ours.send(tensors)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [tensor.item() for tensor in theirs.recv()] == [0, 1, 2, 3, 4]
    assert len({tensor.storage.segment.token for tensor in tensors}) == 5


@pytest.mark.parametrize(
    "part", [(4096 * 3, 4), (1, 4), (-4096, 4), (0, 8193), (0, -1)]
)
def test_part_that_is_not_in_its_segment_is_refused(part):
    with pytest.raises(sharedtensor.HandleError, match="stale or forged"):
        segments.verify_part("token", 8192, *part)
