"""`attach()` raises FileNotFoundError after `delete()` of the array's name."""

import os
import sys
from multiprocessing import SimpleQueue

import SharedArray as sa

queue = SimpleQueue()
array = sa.create(f"shm://sharedarray_{os.getpid()}_0", 4)
name = array.base.name
queue.put(name)
del array
sa.delete(name)  # as somebody has to, or the file stays
try:
    sa.attach(queue.get())
except FileNotFoundError as error:
    print(f"the receiver gets {type(error).__name__}")
else:
    sys.exit(1)
