"""`recv` raises FileNotFoundError if the sender has exited, even normally."""

import sys

import mindspore
import mindspore.multiprocessing as mp


def send(channel):
    """Send a tensor and end."""
    channel.send(mindspore.mint.ones((4,)))


if __name__ == "__main__":
    context = mp.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=send, args=(sending,))
    child.start()
    child.join()
    try:
        receiving.recv()
    except OSError as error:
        print(f"the sender ended with {child.exitcode}; recv() raised {error!r}")
    else:
        sys.exit(1)
