"""A device tensor whose send is refused is in flight no more. Clauses CUDA-4, CUDA-27.

The count of a send is claimed while its message is pickled. Where the message is not
written after that, its sender has to take the count back: nobody else can.
"""

import pytest
import sharedtensor.multiprocessing as mp
from cuda_peers import counts_in_use, drop, keep, pickled_for_a_channel
from sharedtensor import cuda
from sharedtensor.cuda import counts
from sharedtensor.cuda.devices import device_state
from sharedtensor_conformance.harness.kernel.process_tree import wait_until

pytestmark = pytest.mark.usefixtures("all_given_back")

DEVICE = "sim:0"
BESIDE = bytes(16 << 10)  # so that few messages fill a pipe


class RefusedError(Exception):
    """Why a send is refused here."""


class Unpicklable:
    def __reduce__(self):
        raise RefusedError


def _refused_by_a_pipe_that_nobody_reads(tensor):
    reader, writer = mp.get_context("spawn").Pipe(duplex=False)
    reader.close()
    with pytest.raises(BrokenPipeError):
        writer.send(tensor)
    writer.close()


def _refused_as_an_argument(tensor):
    for method in ("spawn", "forkserver"):
        process = mp.get_context(method).Process(args=(tensor, Unpicklable()))
        with pytest.raises(RefusedError):
            process.start()


@pytest.mark.parametrize(
    "refused", [_refused_by_a_pipe_that_nobody_reads, _refused_as_an_argument]
)
def test_a_send_that_is_refused_counts_no_more(refused):
    """The case of CUDA-4 has what cannot be pickled, and a queue that is full."""
    tensor = cuda.tensor([1, 2, 3])
    for _ in range(3):
        refused(tensor)
        assert counts_in_use() == []


@pytest.mark.parametrize("step", ["event_create", "event_record", "event_handle"])
def test_a_send_without_its_event_counts_no_more(step, monkeypatch):
    def fail(*ignored):
        raise RefusedError

    tensor = cuda.tensor([1, 2, 3])
    channel = mp.get_context("spawn").SimpleQueue()
    monkeypatch.setattr(device_state(DEVICE).driver, step, fail)
    for _ in range(3):
        with pytest.raises(RefusedError):
            channel.put(tensor)
        assert counts_in_use() == []
        with pytest.raises(RefusedError):
            pickled_for_a_channel(tensor)
        assert counts_in_use() == []
    monkeypatch.undo()


def refuse_here(held, name):
    with pytest.raises(RefusedError):
        mp.get_context("spawn").SimpleQueue().put([held[name], Unpicklable()])


def test_a_received_tensor_that_is_not_sent_on_counts_at_its_maker_no_more(peer):
    tensor = cuda.tensor([1, 2, 3])
    peer.call(keep, "x", tensor)
    peer.call(refuse_here, "x")
    assert counts.IN_FLIGHT not in counts_in_use()
    peer.call(drop, "x")
    assert counts_in_use() == []


def test_a_message_that_its_queue_cannot_write_counts_no_more(monkeypatch, capfd):
    """It is the thread of the queue that finds the pipe broken."""
    broken = mp.get_context("spawn").Queue()
    broken._reader.close()
    broken.put(cuda.tensor([1, 2, 3]))
    assert wait_until(
        lambda: not broken._buffer, 10
    )  # of a closed queue nothing is said
    broken.close()
    broken.join_thread()
    assert "BrokenPipeError" in capfd.readouterr().err
    assert counts_in_use() == []


def test_a_message_that_waits_in_a_queue_stays_in_flight_when_its_sender_forks():
    waiting = mp.get_context("spawn").Queue()
    waiting.cancel_join_thread()  # where a test fails, messages are left
    tensor = cuda.tensor([1, 2, 3])
    sent = 0
    while not waiting._buffer:
        waiting.put([tensor, BESIDE])
        sent += 1
    assert counts_in_use() == [counts.IN_FLIGHT] * sent
    child = mp.get_context("fork").Process()  # which lets go of its copies
    child.start()
    child.join()
    assert child.exitcode == 0
    assert len(counts_in_use()) == sent
    for _ in range(sent):
        assert waiting.get()[0].tolist() == [1, 2, 3]
    assert counts_in_use() == []
    waiting.close()
