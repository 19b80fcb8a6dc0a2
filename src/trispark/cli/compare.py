"""``./trispark compare``: what two groups of boots measured, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trispark.boot_comparison import BootComparison, Difference

NO_VERDICT = "no verdict: these boots were chosen after they were made; a verdict needs a trial (./trispark plan)"


def comparison_lines(found: BootComparison) -> Iterator[str]:
    """Markdown: a row a metric; then what else differs, which boots were left out, and that it is no verdict."""
    from trispark.record_diff import diff_lines

    yield f"first   {', '.join(found.first)}"
    yield f"second  {', '.join(found.second)}"
    for boot, why in found.left_out.items():
        yield f"left out: {boot} ({why})"
    yield "| metric | first | second | difference | 95 % interval | sd of a boot |"
    yield "|---|---|---|---|---|---|"
    for name, each in found.metrics.items():
        cells = (f"{each.first:.4g}", f"{each.second:.4g}", _change(each.ratio), _interval(each), _sd(each))
        yield f"| {name} | {' | '.join(cells)} |"
    yield "differences between the newest boots of both:"
    yield from (f"  {line}" for line in diff_lines(found.differences))
    yield NO_VERDICT


def _change(ratio: float | None) -> str:
    return "none" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def _interval(each: Difference) -> str:
    if each.low is None or each.high is None:
        return "none"
    return f"{100 * (each.low - 1):+.1f} to {100 * (each.high - 1):+.1f} %"


def _sd(each: Difference) -> str:
    return "not known" if each.sd is None else f"{100 * each.sd:.2g} %"
