"""How simulated boots differ: log-normal between boots and within them, with heavier tails or drift where asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from trispark.boot_statistics import Array

Shape = Literal["normal", "t3", "drift"]
SHAPES: Final[tuple[Shape, ...]] = ("normal", "t3", "drift")
BOOT_SD: Final = 0.006
"""Between boots with the same kernels (field observation, facts of two forks; the campaign's two identical boots F1 and
F2 differ by 0.7 % a boot over five medians, which holds the noise within a boot too)."""
WITHIN_SD: Final = (0.011, 0.011, 0.023)
"""Between repetitions of a boot: prose, code and C4 waves, pooled over nine arms of the field's campaign."""
REPETITIONS: Final = 5
CORRELATION: Final = 0.5
DRIFT_PHI: Final = 0.6
DRIFT_SHARE: Final = 0.003
"""Of shape drift: what a boot keeps of the boot before it, and a steady change a boot besides (0.3 %)."""


@dataclass(frozen=True)
class NoiseModel:
    """Standard deviations are of logarithms, so about shares. `correlation`: of two metrics' effects of one boot;
    `candidate_scale`: how much more the candidate's boots vary."""

    boot_sd: float = BOOT_SD
    within_sd: tuple[float, ...] = WITHIN_SD
    repetitions: int = REPETITIONS
    correlation: float = CORRELATION
    shape: Shape = "normal"
    candidate_scale: float = 1.0
    order: tuple[str, ...] = field(default=("ABBA", "BAAB", "ABBA"))

    def draw(self, random: np.random.Generator, trials: int, gains: Sequence[float]) -> tuple[Array, Array]:
        """(baseline, candidate), each (trials, metrics, boots): logarithms of boot medians in the order of the boots.

        `gains`: the true effect of the candidate by metric, whose number says how many metrics there are.
        """
        letters = "".join(self.order)
        metrics, boots = len(gains), len(letters)
        effects = self._boots(random, trials, metrics, boots)
        candidate = np.array([letter == "B" for letter in letters])
        effects[..., candidate] *= self.candidate_scale
        if self.shape == "drift":
            effects = effects + DRIFT_SHARE * np.arange(boots)
        within = np.array([self.within_sd[index % len(self.within_sd)] for index in range(metrics)])
        noise = random.standard_normal((trials, metrics, boots, self.repetitions))
        values = effects + np.median(noise, axis=-1) * within[:, None]
        return values[..., ~candidate], values[..., candidate] + np.asarray(gains)[:, None]

    def _boots(self, random: np.random.Generator, trials: int, metrics: int, boots: int) -> Array:
        shared = self._series(random, (trials, 1, boots))
        own = self._series(random, (trials, metrics, boots))
        mixed = np.sqrt(self.correlation) * shared + np.sqrt(1 - self.correlation) * own
        return np.asarray(self.boot_sd * mixed, dtype=np.float64)

    def _series(self, random: np.random.Generator, size: tuple[int, ...]) -> Array:
        """Standard deviation one, along the last axis in time."""
        if self.shape == "t3":
            return np.asarray(random.standard_t(3, size) / np.sqrt(3.0), dtype=np.float64)
        fresh = random.standard_normal(size)
        if self.shape == "drift":
            for boot in range(1, size[-1]):
                kept = DRIFT_PHI * fresh[..., boot - 1]
                fresh[..., boot] = kept + np.sqrt(1 - DRIFT_PHI**2) * fresh[..., boot]
        return fresh
