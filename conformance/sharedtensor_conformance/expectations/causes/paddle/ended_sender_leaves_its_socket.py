"""A sender of descriptors that ends by ``os._exit`` leaves the file of its socket."""

import glob
import os
import shutil
import sys
import tempfile

import paddle
import paddle.incubate.multiprocessing as mp


def send_and_end(channel):
    """Send a tensor by descriptor, and end without clean-up once it was received."""
    paddle.set_flags({"FLAGS_dataloader_use_file_descriptor": True})
    tensor = paddle.ones([2])
    channel.send(tensor)
    channel.recv()
    os._exit(0)


if __name__ == "__main__":
    folder = os.environ["TMPDIR"] = tempfile.mkdtemp()
    here, there = mp.Pipe()
    sender = mp.get_context("spawn").Process(target=send_and_end, args=(there,))
    sender.start()
    here.recv()
    here.send("received")
    sender.join()
    left = glob.glob(os.path.join(folder, "pymp-*", "listener-*"))
    shutil.rmtree(folder)
    if not left:
        sys.exit(1)
    print(f"the sender ended by os._exit: {len(left)} socket is left")
