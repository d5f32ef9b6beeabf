"""Sending a tensor from two threads at once leaves one receiver with a copy.

`Queue` sends in its own feeder thread, so a `Queue` and one other channel suffice.
"""

import sys

import mindspore
import mindspore.multiprocessing as mp

ROUNDS = 1000

queue, simple = mp.Queue(), mp.SimpleQueue()
for number in range(ROUNDS):
    tensor = mindspore.mint.zeros((4,))
    queue.put(tensor)
    simple.put(tensor)
    arrived = [queue.get(), simple.get()]
    tensor[0] = 7
    seen = [received[0].item() for received in arrived]
    if seen != [7, 7]:
        print(f"round {number}: the sender wrote 7, the receivers read {seen}")
        sys.exit(0)
sys.exit(1)
