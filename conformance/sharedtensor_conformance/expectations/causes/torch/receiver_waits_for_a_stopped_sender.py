"""`get` hangs while SIGSTOP suspends the sender, which still holds the descriptor.

Under ``file_descriptor`` a message carries only the address of a socket. The receiver
fetches the descriptor there from a thread of the sender.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp

STOPPED = 2.0


def send(queue, sent):
    """Send a tensor, and live on until told to end."""
    queue.put(torch.arange(3))
    sent.put("sent")
    sent.get()


def stop(pid):
    """Stop a process, and wait until each of its threads has stopped."""
    os.kill(pid, signal.SIGSTOP)
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        while "State:\tT" not in status.read_text():
            time.sleep(0.01)


def main():
    """Receive while the sender is stopped, and see how long that takes."""
    context = mp.get_context("spawn")
    queue, sent = context.SimpleQueue(), context.SimpleQueue()
    sender = context.Process(target=send, args=(queue, sent))
    sender.start()
    sent.get()
    stop(sender.pid)
    waker = context.Process(target=wake, args=(sender.pid,))
    waker.start()
    began = time.monotonic()
    queue.get()
    took = time.monotonic() - began
    sent.put("end")
    sender.join()
    waker.join()
    if took < STOPPED / 2:
        sys.exit(1)
    print(f"the receiver waited {took:.1f} s, until the sender was continued")


def wake(pid):
    """Continue a stopped process after a while."""
    time.sleep(STOPPED)
    os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    main()
