"""Verify cap: how many drafts of a block are really verified (`live`), by a fixed number or by the draft's confidence.

The layout stays a rectangle of k + 1 rows a request. Rows beyond the live ones are computed as copies of the anchor
row, so they read no memory rows of their own, and nothing of them is ever committed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import EngineError

CONFIDENCE_BLOCK_SIZE = 5
_SPEC = re.compile(r"0|off|[1-5]|conf:[0-9.]+(,[0-9.]+)*|")


@dataclass(frozen=True)
class VerifyCap:
    """`fixed` drafts (0 = all), or `thresholds` for drafts 2..k on the product of confidences; the first is always
    verified."""

    spec: str = "0"
    fixed: int = 0
    thresholds: tuple[float, ...] = ()

    @property
    def armed(self) -> bool:
        """Whether any block may be cut."""
        return bool(self.fixed or self.thresholds)

    @property
    def by_confidence(self) -> bool:
        """Whether the draft's confidence decides."""
        return bool(self.thresholds)

    def live(self, confidences: Sequence[float]) -> int:
        """Verified drafts of a block. confidences[i] is the chance that draft i survives, given that those before it
        did; it may depend on drafts before i alone, which makes the cut a valid stopping rule."""
        count = len(confidences)
        if self.fixed:
            return min(self.fixed, count)
        if not self.thresholds:
            return count
        survival = confidences[0]
        for index in range(1, count):
            survival *= confidences[index]
            if survival < self.thresholds[index - 1]:
                return index
        return count


def parse_cap(spec: str, block_size: int) -> VerifyCap:
    """VerifyCap of DSV41_VERIFY_CAP. EngineError TS-ENGINE-CAP when it does not fit the block size."""
    if _SPEC.fullmatch(spec) is None:
        raise _error("value can not be read", "0, off, 1..5, conf:T or conf:a,b,c,d", spec)
    if spec in ("", "0", "off"):
        return VerifyCap()
    if not spec.startswith("conf:"):
        return VerifyCap(spec, fixed=int(spec))
    if block_size != CONFIDENCE_BLOCK_SIZE:
        raise _error(
            "a cap by confidence needs the block size of the confidence head",
            f"block size {CONFIDENCE_BLOCK_SIZE}",
            f"{spec} with block size {block_size}",
        )
    try:
        values = tuple(float(part) for part in spec.removeprefix("conf:").split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, CONFIDENCE_BLOCK_SIZE - 1) or not all(0 < value <= 1 for value in values):
        raise _error("thresholds do not fit", "one, or one for each of drafts 2..5, in (0, 1]", spec)
    return VerifyCap(spec, thresholds=values * (CONFIDENCE_BLOCK_SIZE - 1) if len(values) == 1 else values)


def _error(what: str, expected: str, observed: str) -> EngineError:
    return EngineError(
        "TS-ENGINE-CAP",
        f"DSV41_VERIFY_CAP refused: {what}",
        where="environment",
        expected=expected,
        observed=observed,
        remedy="correct the value, or set 0 to verify whole blocks",
    )
