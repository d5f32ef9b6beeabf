"""Tensors that describe their own values, so that a receiver detects any wrong value.

An array begins with a mark, its key and its length. All other elements are computed
from these three. So a receiver can verify the array without knowing its sender or its
content. It detects an array that is zeroed, torn, outdated, truncated or mixed up with
another one. All values are integers that float64 represents exactly. Only the last
element may have another value: `WRITTEN`, which a receiver wrote.
"""

from __future__ import annotations

import numpy as np
from sharedtensor import Tensor

MARK = 74_296_011.0
WRITTEN = -0.5
HEADER = 3
KEYS = 1 << 31
_FACTOR, _STEP = 40_503, 2_654_435_761


class WrongValue(Exception):
    """A tensor does not have the values it describes; the message is one sentence."""


def described(key: int, length: int) -> np.ndarray:
    """Return the array with this key and `length` elements."""
    values = np.arange(length, dtype=np.uint64)
    values *= np.uint64(_STEP)
    values += np.uint64(key * _FACTOR)
    values %= np.uint64(KEYS)
    array = values.astype(np.float64)
    array[:HEADER] = (MARK, key, length)[:length]
    return array


def make(key: int, length: int) -> Tensor:
    """Return a private tensor that describes itself."""
    return Tensor(described(key, length))


def verify(tensor: Tensor, key: int, length: int) -> None:
    """Raise `WrongValue` unless a tensor is the one with this key and length."""
    array = tensor.numpy().copy()  # another process may write meanwhile
    if array.size != length:
        raise WrongValue(f"A tensor of {length} elements arrived with {array.size}.")
    if not length:
        return
    if tuple(array[:HEADER]) != (MARK, key, length):
        raise WrongValue(
            f"The tensor {key} of {length} elements begins with {array[:HEADER]}, "
            "which is no description of it."
        )
    expected = described(key, length)
    if array[-1] == WRITTEN:
        expected[-1] = WRITTEN
    wrong = np.flatnonzero(array != expected)
    if wrong.size:
        raise WrongValue(
            f"The tensor {key} of {length} elements has {wrong.size} wrong ones; the "
            f"first is element {wrong[0]}, {array[wrong[0]]:g}."
        )
