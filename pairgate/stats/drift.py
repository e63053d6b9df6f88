"""Has a mean that is watched for ever risen above a bound? Valid at every moment of looking.

A gambler who stakes the fraction c / m on every observation in [0, 1] cannot expect a gain while
its mean, given the past, is at most m (Waudby-Smith & Ramdas 2020, arXiv 2010.09686, section 4).
Here a new gambler starts before every observation j with the share 1 / (j (j + 1)) of the first
capital, so that a change is found however long everything was well before it; the shares sum to 1,
so the whole is again a game that cannot be expected to gain, and by Ville's inequality it ever
reaches 1 / alpha with probability alpha at most. The price of a late change is 2 log j / growth
observations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pairgate.errors import require

STAKES = (0.05, 0.15, 0.3, 0.5, 0.75, 0.95)
_LARGEST = 1e250  # far beyond any 1 / alpha, short of the end of floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RiseTest:
    """The test that the mean is at most `bound` (0 < bound < 1), after `n` observations.

    `capitals` holds what each stake has made of the capital that was staked so far. The state is
    this small on purpose: it is stored with every look and carried on by the next.
    """

    bound: float
    n: int = 0
    capitals: tuple[float, ...] = (0.0,) * len(STAKES)

    def __post_init__(self) -> None:
        require(0.0 < self.bound < 1.0, f"the bound of a mean in [0, 1] is {self.bound}")

    def after(self, value: float) -> RiseTest:
        """With one more observation in [0, 1]. Raises `InvalidInput` for another value."""
        require(math.isfinite(value) and 0.0 <= value <= 1.0, f"{value} does not lie in [0, 1]")
        j = self.n + 1
        share = 1.0 / (j * (j + 1))
        gain = value / self.bound - 1.0
        capitals = tuple(
            min((capital + share) * (1.0 + stake * gain), _LARGEST)
            for stake, capital in zip(STAKES, self.capitals, strict=True)
        )
        return RiseTest(bound=self.bound, n=j, capitals=capitals)

    @property
    def evidence(self) -> float:
        """The capital: 1 at the start, and 1 / alpha or more with probability alpha at most."""
        return sum(self.capitals) / len(STAKES) + 1.0 / (self.n + 1)
