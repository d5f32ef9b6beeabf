"""A logarithmic axis of ratios, as places in per cent; 1 is always on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, log, log2

from sharedtensor_bench.results import Spread

ONE = "1\N{MULTIPLICATION SIGN}"
LINE = "linear-gradient({colour}, {colour}) {at:.2f}% 0 / {width} 100% no-repeat"


@dataclass(frozen=True)
class Axis:
    """An axis between two ratios, with a tick at each power of `base`."""

    low: float
    high: float
    base: int

    @classmethod
    def over(cls, spreads: Iterable[Spread], base: int) -> Axis:
        """Return the axis that has room for all of the spreads, and for 1."""
        ends = [1.0, *(end for one in spreads for end in (one.low, one.high))]
        low, high = floor(log2(min(ends))), ceil(log2(max(ends)))
        return cls(2.0**low, 2.0 ** max(high, low + 1), base)

    def place(self, ratio: float) -> float:
        """Return where a ratio is, in per cent of the width."""
        return 100 * log2(ratio / self.low) / log2(self.high / self.low)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The places of the ticks, with their labels; only 1 has the sign of times."""
        return [(self.place(power), in_words(power)) for power in self._powers()]

    def _powers(self) -> Iterator[Fraction]:
        first = ceil(log(self.low, self.base) - 1e-9)
        last = floor(log(self.high, self.base) + 1e-9)
        for exponent in range(first, last + 1):
            yield Fraction(self.base) ** exponent

    @property
    def grid(self) -> str:
        """The background of a bar: a line at each tick, a visible one at 1."""
        one = LINE.format(colour="var(--c-one)", at=self.place(1), width="2px")
        lines = [
            LINE.format(colour="var(--c-line)", at=place, width="1px")
            for place, _ in self.ticks
        ]
        return ", ".join([one, *lines])

    def bar(self, spread: Spread) -> dict[str, float]:
        """Return where a bar from 1 to the median begins and ends, and the spread."""
        one, middle = self.place(1), self.place(spread.middle)
        low, high = self.place(spread.low), self.place(spread.high)
        return {
            "left": min(one, middle),
            "width": abs(middle - one),
            "low": low,
            "spread": high - low,
            "middle": middle,
        }


def in_words(power: Fraction) -> str:
    """Return a power as it stands at a tick, such as 1/4."""
    if power == 1:
        return ONE
    return str(power) if power < 1 else f"{int(power):,}"
