"""`ForkingPickler.dumps` leaks file and descriptor if the bytes are never loaded."""

import os
import sys
from multiprocessing.reduction import ForkingPickler

import paddle
import paddle.incubate.multiprocessing  # it registers the reducers

COUNT = 10


def mine():
    """Return the names of the files of this process."""
    prefix = f"paddle_{os.getpid()}_"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def pickle_and_drop():
    """Pickle tensors, and drop tensors and bytes."""
    for _ in range(COUNT):
        ForkingPickler.dumps(paddle.zeros([4]))


pickle_and_drop()
files = mine()
for name in files:
    os.unlink(os.path.join("/dev/shm", name))
paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
pickle_and_drop()  # the first one starts what serves all of them
before = len(os.listdir("/proc/self/fd"))
pickle_and_drop()
descriptors = len(os.listdir("/proc/self/fd")) - before
if not files or descriptors < COUNT:
    sys.exit(1)
print(
    f"{COUNT} dropped tensors: {len(files)} files, {descriptors} descriptors are left"
)
