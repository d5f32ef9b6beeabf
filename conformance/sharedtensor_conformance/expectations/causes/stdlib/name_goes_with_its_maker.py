"""`SharedMemory(name)` raises FileNotFoundError once the segment is unlinked."""

import sys
from multiprocessing import SimpleQueue
from multiprocessing.shared_memory import SharedMemory

queue = SimpleQueue()
segment = SharedMemory(create=True, size=8)
queue.put(segment.name)
segment.close()
segment.unlink()  # as whoever made a segment has to, when it is done with it
try:
    SharedMemory(queue.get()).close()
except FileNotFoundError as error:
    print(f"the receiver gets {type(error).__name__}")
else:
    sys.exit(1)
