"""A killed receiver leaves the files of its tensors in `/dev/shm`."""

import os
import sys

import paddle
import paddle.incubate.multiprocessing as mp


def hold(channel):
    """Receive a tensor and hold it until killed."""
    tensor = channel.recv()
    channel.send(tensor.tolist())
    channel.recv()


def mine():
    """Return the names of the files of this process."""
    prefix = f"paddle_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


if __name__ == "__main__":
    here, there = mp.Pipe()
    child = mp.get_context("spawn").Process(target=hold, args=(there,))
    child.start()
    tensor = paddle.zeros([4])
    here.send(tensor)
    here.recv()
    child.kill()
    child.join()
    del tensor
    left = mine()
    for name in left:
        os.unlink(os.path.join("/dev/shm", name))
    if not left:
        sys.exit(1)
    print(f"receiver killed, sender's tensor dropped: {len(left)} file is left")
