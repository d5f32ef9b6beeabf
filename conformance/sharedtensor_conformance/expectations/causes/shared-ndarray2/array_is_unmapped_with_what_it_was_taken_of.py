"""Reading the array of get() segfaults after the SharedNDArray is dropped."""

import os
import sys
from multiprocessing.managers import SharedMemoryManager

import numpy as np
from shared_ndarray2 import SharedNDArray

if __name__ == "__main__":
    with SharedMemoryManager() as manager:
        made = SharedNDArray.from_array(manager, np.arange(4))
        child = os.fork()
        if child == 0:
            array = made.get()
            del made
            os._exit(int(array[0]))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        sys.exit(1)
    print(f"the process that read the array ended with status {status}")
