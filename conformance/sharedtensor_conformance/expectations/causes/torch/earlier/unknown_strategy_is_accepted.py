"""`set_sharing_strategy` accepts any name under `python -O`."""

import subprocess
import sys

PROGRAM = """
import torch.multiprocessing as mp
mp.set_sharing_strategy("no_such_strategy")
print(mp.get_sharing_strategy())
"""

done = subprocess.run(
    [sys.executable, "-O", "-c", PROGRAM], capture_output=True, text=True
)
if done.returncode:
    sys.exit(1)
print(f"python -O: the strategy is {done.stdout.strip()}")
