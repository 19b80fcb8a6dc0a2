"""Prometheus text exposition (format 0.0.4), by hand: counters, gauges and histograms with one set of labels."""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts of observations by upper bound, ascending."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.sum += value * times


@dataclass(frozen=True)
class Metric:
    """One family. kind: counter | gauge, with a number; histogram, with a Histogram."""

    name: str
    kind: str
    help: str
    value: float | Histogram


def exposition(metrics: Sequence[Metric], labels: Mapping[str, str]) -> str:
    """Text of all families."""
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {_help(metric.help)}", f"# TYPE {metric.name} {metric.kind}"]
        if isinstance(metric.value, Histogram):
            total = 0
            for bound, count in zip((*metric.value.bounds, float("inf")), metric.value.counts, strict=True):
                total += count
                text = "+Inf" if bound == float("inf") else repr(float(bound))
                lines.append(f"{metric.name}_bucket{_labels({**labels, 'le': text})} {total}")
            lines.append(f"{metric.name}_sum{_labels(labels)} {metric.value.sum!r}")
            lines.append(f"{metric.name}_count{_labels(labels)} {total}")
        else:
            lines.append(f"{metric.name}{_labels(labels)} {float(metric.value)!r}")
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
