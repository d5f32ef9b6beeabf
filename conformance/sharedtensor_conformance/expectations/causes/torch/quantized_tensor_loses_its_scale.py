"""Sending a quantized tensor loses its scale and zero point."""

import sys

import torch
import torch.multiprocessing as mp

queue = mp.SimpleQueue()
tensor = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 3, torch.quint8)
queue.put(tensor)
arrived = queue.get()
try:
    if (arrived.q_scale(), arrived.q_zero_point()) == (0.5, 3):
        sys.exit(1)
except RuntimeError as error:
    print(f"asked for its scale, it raises {type(error).__name__}")
else:
    print(f"its scale and zero point are {arrived.q_scale(), arrived.q_zero_point()}")
