"""Tensors that describe themselves, so that any wrong value is noticed.

An array begins with a mark, its key and its length, and what follows is made of these
three. Whoever receives it needs to know nothing else to tell whether it is right: not
who sent it nor what it was meant to be. An array that is zeroed, torn, stale, cut off
or another one's is seen to be wrong. All values are whole numbers that float64 has
exactly.
"""

from __future__ import annotations

import numpy as np
from sharedtensor import Tensor

MARK = 74_296_011.0
HEADER = 3
KEYS = 1 << 31
_FACTOR, _STEP = 40_503, 2_654_435_761


class WrongValue(Exception):
    """A tensor has not the values that it says it has; the message is one sentence."""


def described(key: int, length: int) -> np.ndarray:
    """Return the array of `length` elements that has this key."""
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
    """Return the key of a tensor, which is `key` where that is known.

    Raises `WrongValue`. A tensor too short for a header is not judged.
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
