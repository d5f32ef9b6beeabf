"""Sending a received tensor back under another sharing strategy sends a copy."""

import sys

import torch
import torch.multiprocessing as mp


def echo(requests, replies):
    """Send the tensor back, then write to it; this child is under the default."""
    tensor = requests.get()
    replies.put(tensor)
    requests.get()
    tensor[0] = 7
    replies.put("written")
    requests.get()


if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    context = mp.get_context("spawn")
    requests, replies = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=echo, args=(requests, replies), daemon=True)
    process.start()
    tensor = torch.zeros(1)
    requests.put(tensor)
    back = replies.get()
    requests.put("write")
    replies.get()
    requests.put("done")
    process.join()
    if back.data_ptr() == tensor.data_ptr() and tensor[0] == 7:
        sys.exit(1)
    print(f"the child wrote 7: the owner's tensor has {tensor[0].item()}")
