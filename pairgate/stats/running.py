"""A ratio of sums that is looked at after every request, in constant time."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class RunningRatio:
    """Σ numerator / Σ denominator over clusters (requests), with the delta-method interval.

    Cochran, Sampling Techniques (1977), section 6.5. For progress lines: it is neither corrected
    for looking often nor for few clusters, so no verdict rests on it.
    """

    n: int = 0
    top: float = 0.0
    bottom: float = 0.0
    _squares: float = 0.0
    _products: float = 0.0
    _bottom_squares: float = 0.0

    def add(self, numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> None:
        """One value of each per cluster; clusters without a denominator do not count."""
        kept = denominators > 0
        top, bottom = numerators[kept], denominators[kept]
        self.n += int(kept.sum())
        self.top += float(top.sum())
        self.bottom += float(bottom.sum())
        self._squares += float((top * top).sum())
        self._products += float((top * bottom).sum())
        self._bottom_squares += float((bottom * bottom).sum())

    @property
    def value(self) -> float | None:
        return self.top / self.bottom if self.bottom else None

    def interval(self, z: float = 1.96) -> tuple[float, float] | None:
        """The ratio plus and minus z standard errors; None under two clusters."""
        value = self.value
        if value is None or self.n < 2:
            return None
        spread = self._squares - 2 * value * self._products + value * value * self._bottom_squares
        error = sqrt(max(spread, 0.0) * self.n / (self.n - 1)) / self.bottom
        return value - z * error, value + z * error
