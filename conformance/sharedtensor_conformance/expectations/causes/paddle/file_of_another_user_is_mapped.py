"""`recv` maps the file with the tensor's name even if another user owns the file.

Only root can give the file another owner; without root it belongs to this user.
"""

import os
import sys

import paddle
import paddle.incubate.multiprocessing as mp

NOBODY = 65534

sender, receiver = mp.Pipe()
tensor = paddle.zeros([2])
sender.send(tensor)
prefix = f"paddle_{os.getpid()}_"
(name,) = (name for name in os.listdir("/dev/shm") if name.startswith(prefix))
path = f"/dev/shm/{name}"
size = os.stat(path).st_size
os.unlink(path)
with open(path, "xb") as file:
    file.write(b"\x01" * size)
if os.geteuid() == 0:
    os.chown(path, NOBODY, NOBODY)
try:
    received = receiver.recv()
except (OSError, RuntimeError, ValueError):
    sys.exit(1)
finally:
    if os.path.exists(path):
        os.unlink(path)
if received.tolist() == tensor.tolist():
    sys.exit(1)
print(f"zeros were sent, and {received.tolist()} received")
