"""Test values of each dtype, which a wrong dtype or item size would change.

The values include both ends of the range of the dtype.
"""

from __future__ import annotations

import math
from typing import Any

_INF = math.inf


def _integers(bits: int, signed: bool) -> list[int]:
    top = 2 ** (bits - signed)
    bottom = -top if signed else 0
    return [bottom, bottom + 1, 5, 2 ** (bits // 2) + 3, top - 2, top - 1]


def _floats(largest: float, smallest: float) -> list[float]:
    """Return values of a floating-point format, including its infinities and limits.

    Args:
        largest: the largest finite value.
        smallest: the smallest positive (subnormal) value.
    """
    return [-_INF, -largest, -0.0, smallest, 0.5, 3.0, largest, _INF]


FLOAT32 = _floats((2 - 2**-23) * 2.0**127, 2.0**-149)
FLOAT64 = _floats((2 - 2**-52) * 2.0**1023, 2.0**-1074)

EXTREMES: dict[str, list[Any]] = {
    "bool": [True, False, False, True, True],
    "float16": _floats((2 - 2**-10) * 2.0**15, 2.0**-24),
    "bfloat16": _floats((2 - 2**-7) * 2.0**127, 2.0**-133),
    "float32": FLOAT32,
    "float64": FLOAT64,
    "complex64": [complex(a, b) for a, b in zip(FLOAT32, FLOAT32[::-1], strict=True)],
    "complex128": [complex(a, b) for a, b in zip(FLOAT64, FLOAT64[::-1], strict=True)],
    **{f"int{bits}": _integers(bits, True) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": _integers(bits, False) for bits in (8, 16, 32, 64)},
}
"""Values by the name of the dtype, including the ends of its range."""


def extremes_of(dtype: str) -> list[Any]:
    """Return the values of `dtype` in `EXTREMES`; small integers if it has none."""
    return EXTREMES.get(dtype, [1, 3, 2, 4])
