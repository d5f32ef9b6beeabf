"""`get_all_sharing_strategies()` returns PyTorch's own set: callers can break it."""

import sys

import torch.multiprocessing as mp

usable = mp.get_all_sharing_strategies()
usable.discard("file_system")  # the program does without it
left = mp.get_all_sharing_strategies()
if "file_system" in left:
    sys.exit(1)
try:
    mp.set_sharing_strategy("file_system")
    then = "can be set all the same"
except (AssertionError, ValueError) as error:
    then = f"is refused by {type(error).__name__}"
print(f"the next call returned {sorted(left)}, and file_system {then}")
