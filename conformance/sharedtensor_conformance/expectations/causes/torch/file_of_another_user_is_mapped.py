"""Under `file_system`, `recv` maps a file of the tensor's name that another user owns.

Only root can give the file another owner; without root it belongs to this user.
"""

import os
import sys

import torch
import torch.multiprocessing as mp
from torch.multiprocessing import reductions

NOBODY = 65534

mp.set_sharing_strategy("file_system")
sender, receiver = mp.get_context("fork").Pipe()
tensor = torch.zeros(2)
sender.send(tensor)
prefix = f"torch_{os.getpid()}_"
(name,) = (name for name in os.listdir("/dev/shm") if name.startswith(prefix))
path = f"/dev/shm/{name}"
size = os.stat(path).st_size
os.unlink(path)
with open(path, "xb") as file:
    file.write(b"\x01" * size)
if os.geteuid() == 0:
    os.chown(path, NOBODY, NOBODY)
reductions.shared_cache.clear()  # as in another process, which has no such storage
try:
    received = receiver.recv()
except RuntimeError:
    sys.exit(1)
finally:
    if os.path.exists(path):
        os.unlink(path)
if received.tolist() == tensor.tolist():
    sys.exit(1)
print(f"zeros were sent, and {received.tolist()} received")
