"""`Queue.put` in a forked child of a spawned process never sends the message.

The spawned process has received the queue and used it, and so has a feeder thread. The
child starts no feeder thread, so the messages that it puts are never written.
"""

import multiprocessing
import queue
import sys

import torch
import torch.multiprocessing as mp


def send_here_and_in_a_child(tensors, is_received):
    """Send a tensor, and then another one from a forked child, which ends normally."""
    tensors.put(torch.zeros(2))
    is_received.wait()  # so its thread has no lock when the child is forked
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=tensors.put, args=(torch.ones(2),))
    child.start()
    child.join()
    sys.exit(child.exitcode)


if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")  # where tensors outlive their sender
    context = mp.get_context("spawn")
    tensors, is_received = context.Queue(), context.Event()
    arguments = (tensors, is_received)
    process = context.Process(target=send_here_and_in_a_child, args=arguments)
    process.start()
    tensors.get(timeout=60)
    is_received.set()
    process.join()
    if process.exitcode != 0:
        sys.exit("the child did not end normally")
    try:
        tensors.get(timeout=3)
    except queue.Empty:
        print("the child ended normally, and its message is not received")
    else:
        sys.exit(1)
