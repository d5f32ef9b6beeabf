"""`Queue.put` raises nothing for a non-leaf tensor; a thread drops the message."""

import contextlib
import os
import sys

import torch
import torch.multiprocessing as mp

queue = mp.Queue()
non_leaf = torch.zeros(2, requires_grad=True) * 2
with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
    try:
        queue.put(non_leaf)
    except RuntimeError:
        sys.exit(1)
    queue.put("next")
    arrived = queue.get(timeout=30)
print(f"put() raised nothing; the first message that arrived was {arrived!r}")
