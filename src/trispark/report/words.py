"""Numbers and codes as a reader sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from trispark.report.page import Tone

NONE: Final = "none"
LONG: Final = 180
MIB: Final = 1024 * 1024

DECISIONS: Final = {
    "KEEP": "The candidate is better; it may be promoted.",
    "REJECT": "The candidate is rejected; the baseline stays.",
    "INCONCLUSIVE": "Nothing is decided; the baseline stays.",
}
CONFIRMED: Final = {
    "KEEP": "What was promoted is confirmed against the shipped baseline; it stays.",
    "REJECT": "What was promoted is not confirmed; it stays until a person goes back.",
    "INCONCLUSIVE": "Nothing is decided; what was promoted stays.",
}
TONES: Final[Mapping[str, Tone]] = {"KEEP": "good", "REJECT": "bad", "INCONCLUSIVE": "open"}
CODES: Final = {
    "GAIN": "A primary metric is better with certainty and by its least effect, and nothing is worse by more than its "
    "margin.",
    "HARM": "A watched metric is worse by more than its margin, with certainty.",
    "NO-GAIN": "It is shown that no primary metric is better by its least effect.",
    "UNSAFE": "A boot of the candidate failed a gate beside a sound baseline.",
    "ZERO-VARIANCE": "Boots agree to the last digit in a primary metric, so nothing is known of how they vary.",
    "GUARD-OPEN": "A primary metric is better, but another metric seems worse by more than its margin.",
    "FUTILE": "No primary metric is better at all, and more boots would not change that.",
    "OPEN": "Neither a gain nor its absence is shown.",
    "TOO-FEW": "Fewer boots counted than the first look of the plan needs.",
    "ONE-BOOT": "One boot of an arm cannot tell the change from the variation between boots.",
    "NO-BOOT": "An arm has no valid boot.",
    "NO-RULES": "The trial was planned without rules of decision.",
    "NOT-MEASURED": "A watched metric was not measured in every boot.",
    "NOT-CHECKED": "There is a gain, but a rule of validity that a KEEP rests on was not checked.",
    "NO-MECHANISM": "There is a gain, but what the feature declares to move did not move.",
    "INCOMPARABLE": "The boots did not do the same work, or differ in more than the planned change.",
    "CONTROL": "A control of the measurement is never promoted, whatever its boots show.",
    "ENDED": "The trial ended before all of its boots were made.",
}
STATES: Final[Mapping[str, Tone]] = {
    "better": "good", "not worse": "good", "harm": "bad", "harm suspected": "bad", "no variance": "open",
    "open": "open", "passed": "good", "failed": "bad", "not checked": "open", "valid": "good", "invalid": "bad",
}  # fmt: skip


def number(value: Any) -> str:
    """Four digits that count; a whole number with all of its digits."""
    if value is None:
        return NONE
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 10_000:
        return f"{value:.0f}"
    return f"{value:.4g}"


def share(value: float | None) -> str:
    """A share as per cent."""
    return NONE if value is None else f"{100 * value:.3g} %"


def effect(ratio: float | None) -> str:
    """A ratio as a difference in per cent."""
    # Adding zero: nothing is never "-0.00".
    return NONE if ratio is None else f"{round(100 * (ratio - 1), 2) + 0.0:+.2f} %"


def span(found: Mapping[str, Any]) -> str:
    """The ends of an interval (record_model.RatioRange)."""
    if found["low"] is None or found["high"] is None:
        return "no interval"
    return f"{effect(found['low'])} to {effect(found['high'])}"


def probability(value: float | None) -> str:
    """A p value."""
    if value is None:
        return NONE
    return "below 0.0001" if value < 1e-4 else f"{value:.4f}"


def unit(metric: str) -> str:
    """What a metric is counted in."""
    if metric.endswith("_us_per_lookup"):
        return "µs a lookup"
    if metric.endswith("_tps"):
        return "tok/s"
    return "s" if metric.endswith("_s") else ""


def setting(value: Any) -> str:
    """A value of a setting; what an arm does not have is said."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if value != "" else "(empty)"


def shortened(text: Any) -> str:
    """One line; what is longer than 180 characters is cut, for the records have all of it."""
    line = " ".join(str(text).split())
    return line if len(line) <= LONG else f"{line[: LONG - 1]}…"


def mebibytes(size: float) -> str:
    """Bytes in MiB."""
    return f"{size / MIB:.0f}"


def mean_of_logs(values: list[float]) -> float | None:
    """The geometric mean, which a verdict compares; None where a value has no logarithm."""
    if not values or min(values) <= 0:
        return None
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))
