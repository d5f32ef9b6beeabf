"""`start_processes` never deletes the file to which a process wrote its exception."""

import os
import sys
import tempfile

import torch.multiprocessing as mp


def fail(index):
    """Raise in the child."""
    raise LookupError(f"process {index}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            mp.spawn(fail, nprocs=2)
        except mp.ProcessRaisedException:
            left = [name for name in os.listdir(folder) if "errorfile" in name]
        else:
            sys.exit(1)
    if not left:
        sys.exit(1)
    print(f"files that are left: {len(left)}, such as {left[0]}")
