"""A spawned process ignores its parent's sharing strategy and uses the default."""

import sys

import torch.multiprocessing as mp


def report(answers):
    """Say which strategy this process started with."""
    answers.put(mp.get_sharing_strategy())


if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=report, args=(answers,), daemon=True)
    process.start()
    strategy = answers.get()
    process.join()
    if strategy == "file_system":
        sys.exit(1)
    print(f"the parent has set file_system, its child starts with {strategy}")
