"""A process that exits deletes all files that it made or opened, even those in use.

A process that holds such a tensor can no longer send it, and a message with such a
tensor is lost. A forked process ends by ``os._exit``, so it deletes no files.
"""

import sys

import paddle
import paddle.incubate.multiprocessing as mp


def send_one(channel):
    """Send a tensor, and end when it has been received."""
    channel.send(paddle.ones([2]))
    channel.recv()


def receive_one(channel):
    """Receive a tensor, tell its values, and end."""
    channel.send(channel.recv().tolist())


def cannot_be_sent(tensor):
    """Return whether a tensor that is sent cannot be received."""
    here, there = mp.Pipe()
    here.send(tensor)
    try:
        there.recv()
    except RuntimeError:
        return True
    return False


def run(work, use):
    """Start a process, and return a tensor that is held here when it has ended."""
    here, there = mp.Pipe()
    child = mp.get_context("spawn").Process(target=work, args=(there,))
    child.start()
    tensor = use(here)
    child.join()
    return tensor


def take(channel):
    """Receive a tensor and tell its sender."""
    tensor = channel.recv()
    channel.send("received")
    return tensor


def give(channel):
    """Send a tensor and wait until its receiver has it."""
    tensor = paddle.ones([2])
    channel.send(tensor)
    channel.recv()
    return tensor


if __name__ == "__main__":
    made_there, made_here = run(send_one, take), run(receive_one, give)
    if not cannot_be_sent(made_there) or not cannot_be_sent(made_here):
        sys.exit(1)
    print("neither what its maker nor what its receiver had can be sent any more")
