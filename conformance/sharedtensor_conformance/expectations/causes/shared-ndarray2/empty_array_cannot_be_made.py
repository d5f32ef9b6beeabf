"""Sharing an array without elements raises ValueError."""

import sys
from multiprocessing.managers import SharedMemoryManager

import numpy as np
from shared_ndarray2 import SharedNDArray

if __name__ == "__main__":
    with SharedMemoryManager() as manager:
        try:
            SharedNDArray.from_array(manager, np.zeros((3, 0, 2)))
        except ValueError as error:
            print(f"{type(error).__name__}: {error}")
        else:
            sys.exit(1)
