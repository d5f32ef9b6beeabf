"""Two processes, one tensor: each sees what the other writes."""

import sharedtensor
import sharedtensor.multiprocessing as mp


def work(tensor, inbox, outbox):
    """Multiply what the parent has written, in place."""
    inbox.get()
    tensor[1] = 10 * tensor[1].item()
    outbox.put("written")


def main():
    """Share a tensor with a spawned process and let both write to it."""
    context = mp.get_context("spawn")
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    tensor = sharedtensor.zeros(3)
    child = context.Process(target=work, args=(tensor, inbox, outbox))
    child.start()
    tensor[1] = 4
    inbox.put("go")
    outbox.get()
    child.join()
    print(tensor.tolist())


if __name__ == "__main__":
    main()
