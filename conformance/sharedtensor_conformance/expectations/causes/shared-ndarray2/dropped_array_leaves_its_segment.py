"""Dropping an array leaks its segment until the SharedMemoryManager exits."""

import os
import sys
from multiprocessing.managers import SharedMemoryManager

import numpy as np
from shared_ndarray2 import SharedNDArray

if __name__ == "__main__":
    with SharedMemoryManager() as manager:
        array = SharedNDArray.from_array(manager, np.arange(4))
        file = os.path.join("/dev/shm", array.shm.name)
        del array
        is_left = os.path.exists(file)
    gone = not os.path.exists(file)
    if not is_left:
        sys.exit(1)
    print(f"array dropped: its segment is left; manager left: it is gone ({gone})")
