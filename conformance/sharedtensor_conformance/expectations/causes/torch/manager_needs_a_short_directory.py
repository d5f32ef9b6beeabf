"""Under `file_system`, `share_memory_()` raises if `TMPDIR` has a long path."""

import os
import sys
import tempfile

import torch
import torch.multiprocessing as mp

with tempfile.TemporaryDirectory() as base:
    folder = os.path.join(base, "long" * 30)
    os.mkdir(folder)
    os.environ["TMPDIR"] = folder
    mp.set_sharing_strategy("file_system")
    try:
        torch.zeros(2).share_memory_()
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        print(f"with a path of {len(folder)} bytes, share_memory_() raised: {said}")
    else:
        sys.exit(1)
