"""Hogwild: several processes train one network in shared memory, without locks.

The parameters are shared and the gradients are private: each process computes the
gradient of a few images and subtracts it from whatever the parameters are by then.
Now and then two processes overwrite each other, and it does not matter much. The idea
is from Niu, Recht, Re and Wright, "Hogwild!", 2011.

The images are the handwritten digits that come with scikit-learn. The same training is
then done by a single process, to compare.
"""

import argparse
import os
import time

os.environ["OMP_NUM_THREADS"] = "1"  # one core is enough for each process
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import sharedtensor
import sharedtensor.multiprocessing as mp

CLASSES = 10
HIDDEN = 48
BATCH = 16
RATE = 0.1


class Network(sharedtensor.Module):
    """One hidden layer, and a probability for each digit."""

    def __init__(self, inputs, seed=0):
        super().__init__()
        random = np.random.default_rng(seed)
        hidden = random.normal(0, np.sqrt(2 / inputs), (inputs, HIDDEN))
        output = random.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, CLASSES))
        self.hidden = sharedtensor.Parameter(hidden)
        self.hidden_bias = sharedtensor.Parameter(np.zeros(HIDDEN))
        self.output = sharedtensor.Parameter(output)
        self.output_bias = sharedtensor.Parameter(np.zeros(CLASSES))

    def forward(self, images):
        """Return the activations of the hidden layer, and the probabilities."""
        raw = images @ self.hidden.numpy() + self.hidden_bias.numpy()
        active = np.maximum(raw, 0)
        scores = active @ self.output.numpy() + self.output_bias.numpy()
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return active, powers / powers.sum(axis=1, keepdims=True)

    def backward(self, images, labels):
        """Set the grads to those of the mean loss over the images."""
        active, error = self(images)
        error[np.arange(len(labels)), labels] -= 1
        error /= len(labels)
        inner = (error @ self.output.numpy().T) * (active > 0)
        self.output.grad = sharedtensor.tensor(active.T @ error)
        self.output_bias.grad = sharedtensor.tensor(error.sum(axis=0))
        self.hidden.grad = sharedtensor.tensor(images.T @ inner)
        self.hidden_bias.grad = sharedtensor.tensor(inner.sum(axis=0))

    def step(self):
        """Follow the grads, in the memory that all processes share."""
        for parameter in self.parameters():
            parameter.add_(parameter.grad, alpha=-RATE)

    def accuracy(self, images, labels):
        """Return the share of the images that are recognised."""
        _, probabilities = self(images.numpy())
        return float(np.mean(probabilities.argmax(axis=1) == labels.numpy()))


def work(rank, network, images, labels, epochs, reports):
    """Train on a share of the images; report after each epoch."""
    images, labels = images.numpy(), labels.numpy()
    random = np.random.default_rng(rank)
    for epoch in range(epochs):
        order = random.permutation(len(labels))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            network.backward(images[batch], labels[batch])
            network.step()
        reports.put((rank, epoch))


def train(context, data, workers, epochs):
    """Train a new network with so many processes; return its accuracy in the end."""
    images, labels, test_images, test_labels = data
    network = Network(images.shape[1]).share_memory()
    reports = context.Queue()
    processes = []
    for rank in range(workers):
        share = images[rank::workers], labels[rank::workers]  # views, not copies
        arguments = (rank, network, *share, epochs, reports)
        processes.append(context.Process(target=work, args=arguments, daemon=True))
    begun = time.perf_counter()
    for process in processes:
        process.start()
    for done in range(workers * epochs):
        reports.get(timeout=60)
        if (done + 1) % workers == 0:
            accuracy = network.accuracy(test_images, test_labels)
            print(f"  {time.perf_counter() - begun:5.2f} s  accuracy {accuracy:.3f}")
    for process in processes:
        process.join()
    return network.accuracy(test_images, test_labels)


def load_data():
    """Return images and labels to train on and to test with, in shared memory."""
    from sklearn.datasets import load_digits  # here: no worker has to import it

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order] / images.max(), labels[order]
    train, test = slice(0, 1400), slice(1400, None)
    parts = images[train], labels[train], images[test], labels[test]
    return [sharedtensor.tensor(part).share_memory_() for part in parts]


def main():
    """Train with several processes and with one, and compare."""
    parser = argparse.ArgumentParser(description="Train one network from processes.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--start-method", default="spawn",
                        choices=mp.get_all_start_methods())  # fmt: skip
    parser.add_argument("--strategy", default="file_descriptor",
                        choices=sorted(mp.get_all_sharing_strategies()))  # fmt: skip
    options = parser.parse_args()
    if options.workers < 1 or options.epochs < 1:
        parser.error("there have to be one worker and one epoch at least")
    mp.set_sharing_strategy(options.strategy)
    context = mp.get_context(options.start_method)
    data = load_data()
    print(f"{options.workers} processes, {options.epochs} epochs")
    several = train(context, data, options.workers, options.epochs)
    print(f"1 process, {options.epochs} epochs")
    one = train(context, data, 1, options.epochs)
    print(f"accuracy: {several:.3f} together, {one:.3f} alone")


if __name__ == "__main__":
    main()
