"""With FLAGS_dataloader_use_file_descriptor, `recv` raises once the sender exits."""

import sys

import paddle
import paddle.incubate.multiprocessing as mp


def send(channel):
    """Send a tensor by descriptor and exit normally."""
    paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
    channel.send(paddle.ones([2]))


if __name__ == "__main__":
    here, there = mp.Pipe()
    sender = mp.get_context("spawn").Process(target=send, args=(there,))
    sender.start()
    sender.join()
    try:
        here.recv()
    except OSError as error:
        print(f"sender exited with {sender.exitcode}; then {type(error).__name__}")
    else:
        sys.exit(1)
