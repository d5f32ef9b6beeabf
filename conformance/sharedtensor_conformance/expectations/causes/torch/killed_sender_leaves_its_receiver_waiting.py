"""`get` hangs if the sender is killed right after `Queue.put` has returned."""

import os
import queue
import signal
import sys

import torch
import torch.multiprocessing as mp


def send_and_die(messages):
    """Put a tensor and be killed before the thread that sends it gets its turn."""
    sys.setswitchinterval(1000)
    messages.put(torch.ones(2))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    messages = context.Queue()
    process = context.Process(target=send_and_die, args=(messages,), daemon=True)
    process.start()
    process.join()
    try:
        messages.get(timeout=10)
    except queue.Empty:
        print("10 seconds after put() and the kill, nothing has come")
    except Exception:
        sys.exit(1)
    else:
        sys.exit(1)
