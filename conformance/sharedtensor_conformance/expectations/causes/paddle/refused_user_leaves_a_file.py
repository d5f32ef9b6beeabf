"""A `get` that another user may not do leaves the file of the tensor in `/dev/shm`."""

import os
import sys

import paddle
import paddle.incubate.multiprocessing as mp

NOBODY = 65534


def mine():
    """Return the names of the files of this process."""
    prefix = f"paddle_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def receive(queue, end):
    """Become another user, and receive; send back the exception."""
    os.setuid(NOBODY)
    try:
        queue.get()
    except Exception as error:
        end.send(str(error))
    else:
        end.send("")


queue = mp.SimpleQueue()
ours, theirs = mp.Pipe()
child = mp.Process(target=receive, args=(queue, theirs))
child.start()
tensor = paddle.zeros([4])
queue.put(tensor)
refusal = ours.recv()
child.join()
del tensor
left = mine()
for name in left:
    os.unlink(os.path.join("/dev/shm", name))
if not (refusal and left):
    sys.exit(1)
print(f"get() raised, the tensor was dropped: {len(left)} file is left")
