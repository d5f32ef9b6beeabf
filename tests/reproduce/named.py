"""A library whose adapter has functions and imports with the names of variables.

Programs give these names to their variables where no function or import has them.
"""

import copy as queue
from dataclasses import replace

import numpy as np
from sharedtensor_conformance.adapters import numpy_copy
from sharedtensor_conformance.adapters.numpy_copy import (
    NumpyCopyOperations,
    StridedArray,
)


def tensor(values, shape, dtype):
    """Return a new array."""
    return np.array(values, dtype).reshape(shape).view(StridedArray)


def peer(message):
    """Return the array that arrived."""
    return message


class Named(NumpyCopyOperations):
    """It copies its arrays, as every channel does."""

    def make(self, values, shape, dtype):
        return tensor(values, shape, dtype)

    def encode(self, tensor):
        return queue.copy(tensor)

    def decode(self, message):
        return peer(message)


adapter = replace(
    numpy_copy.conformance_adapter,
    name="named",
    operations=f"{__name__}:Named",
    dtypes=("float32",),
)
