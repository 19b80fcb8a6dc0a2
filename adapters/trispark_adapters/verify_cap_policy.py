"""How many drafts of a block are really verified: a fixed number, or as many as are likely enough to survive.

"2" verifies two drafts. "conf:T" verifies drafts as long as the product of the draft's confidences stays at T or above;
"conf:a,b,c,d" has a threshold for each draft but the first, which is always verified. Whether draft i is verified
depends on the drafts before it alone, so that the cut is a stopping rule and the output's distribution stays.

Source: facts of the field 3.6, fork 3.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trispark_hooks.registry import HookError

SWITCH: Final = "DSV41_VERIFY_CAP"
LEAST: Final = "DSV41_VERIFY_CAP_MIN"
OFF: Final = ("", "0", "off")
MOST_DRAFTS: Final = 7


@dataclass(frozen=True)
class Policy:
    """`fixed` drafts, or `thresholds` (one for all drafts after the first, or one for each); at least `least`."""

    spec: str
    fixed: int = 0
    thresholds: tuple[float, ...] = ()
    least: int = 1

    @property
    def by_confidence(self) -> bool:
        """Whether the draft's confidence decides."""
        return bool(self.thresholds)

    def limits(self, gamma: int) -> tuple[float, ...]:
        """Threshold of each of `gamma` drafts; 0 for the first. HookError TS-ADAPTER-CAP when their number differs."""
        if len(self.thresholds) == 1:
            return (0.0, *self.thresholds * (gamma - 1))
        if len(self.thresholds) != gamma - 1:
            raise _refusal(f"one threshold, or {gamma - 1} for a block of {gamma}", self.spec)
        return (0.0, *self.thresholds)


def verify_lens(confidences: Any, limits: Any, least: int) -> Any:
    """int64 [bs], the anchor counted. confidences float [bs, g]: the chance that a draft survives, given that those
    before it did; limits float32 [g]: Policy.limits. A confidence that is no number ends the block."""
    likely = confidences.float().cumprod(1) >= limits
    gamma = confidences.shape[1]
    return likely.long().cumprod(1).sum(1).clamp(min(least, gamma), gamma) + 1


def parse(environ: Mapping[str, str]) -> Policy | None:
    """The policy of DSV41_VERIFY_CAP and DSV41_VERIFY_CAP_MIN, None when off. HookError TS-ADAPTER-CAP."""
    spec = environ.get(SWITCH, "")
    if spec in OFF:
        return None
    least = environ.get(LEAST, "") or "1"
    if not (least.isdecimal() and 1 <= int(least) <= MOST_DRAFTS):
        raise _refusal(f"{LEAST} from 1 to {MOST_DRAFTS}", f"{LEAST}={least}")
    if spec.isdecimal() and 1 <= int(spec) <= MOST_DRAFTS:
        return Policy(spec, fixed=int(spec), least=int(least))
    try:
        values = tuple(float(part) for part in spec.removeprefix("conf:").split(","))
    except ValueError:
        values = ()
    if not spec.startswith("conf:") or not values or not all(0 < value <= 1 for value in values):
        raise _refusal(f"0, off, 1..{MOST_DRAFTS}, conf:T or conf:a,b,c,d with thresholds in (0, 1]", spec)
    return Policy(spec, thresholds=values, least=int(least))


def _refusal(expected: str, observed: str) -> HookError:
    return HookError(
        f"TS-ADAPTER-CAP: verify cap refused [where: {SWITCH}] expected: {expected}; observed: {observed}; "
        "remedy: correct the value, or set 0 to verify whole blocks"
    )
