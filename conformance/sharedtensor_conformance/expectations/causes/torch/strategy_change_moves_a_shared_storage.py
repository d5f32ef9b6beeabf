"""`share_memory_()` after a change of strategy moves an already shared tensor."""

import sys

import torch
import torch.multiprocessing as mp


def hold(tensors, answers):
    """Hold the tensor while the parent changes its strategy; say what is seen."""
    tensor = tensors.get()
    answers.put("held")
    tensors.get()
    answers.put(tensor[0].item())


if __name__ == "__main__":
    context = mp.get_context("spawn")
    tensors, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=hold, args=(tensors, answers), daemon=True)
    process.start()
    tensor = torch.zeros(1)
    tensors.put(tensor)
    answers.get()
    mp.set_sharing_strategy("file_system")
    tensor.share_memory_()
    tensor[0] = 7
    tensors.put("written")
    seen = answers.get()
    process.join()
    if seen == 7:
        sys.exit(1)
    print(f"the parent wrote 7, the child that holds the tensor reads {seen}")
