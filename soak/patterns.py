"""Tensors that describe their own values, so that a receiver detects any wrong value.

An array begins with a mark, its key and its length. All other elements are computed
from these three. So a receiver can verify the array without knowing its sender or its
content. It detects an array that is zeroed, torn, outdated, truncated or mixed up with
another one. All values are integers that float64 represents exactly.
"""

from __future__ import annotations

import numpy as np
from sharedtensor import Tensor

MARK = 74_296_011.0
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


def verify(tensor: Tensor, key: int | None = None) -> int:
    """Return the key of a tensor, which has to be `key` if that is given.

    Raises `WrongValue`. A tensor that is too short for a header is not verified.
    """
    array = tensor.numpy()
    if array.size < HEADER:
        return -1
    mark, own, length = array[:HEADER].tolist()
    if mark != MARK or length != array.size or not 0 <= own < KEYS:
        raise WrongValue(
            f"A tensor of {array.size} elements begins with {mark:g}, {own:g} and "
            f"{length:g}, which is no description of it."
        )
    if key is not None and own != key:
        raise WrongValue(f"The tensor {own:g} arrived in place of the tensor {key}.")
    wrong = np.flatnonzero(array != described(int(own), array.size))
    if wrong.size:
        raise WrongValue(
            f"The tensor {own:g} of {array.size} elements has {wrong.size} wrong ones; "
            f"the first is element {wrong[0]}, {array[wrong[0]]:g}."
        )
    return int(own)
