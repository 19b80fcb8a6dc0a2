"""Exact 8-bit twins of the lab engine's wo_a weights, used for 2 to 8 rows.

A twin is rebuilt from the float32 weight: for each 32 x 32 block an exponent from its largest magnitude, then e4m3
codes. It is kept only if it gives the weight back bit for bit; otherwise the layer stays on float32 and is counted as
left. Other row counts take the engine's own path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from trispark_lab import e4m3, logs, stats

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

MIN_ROWS, MAX_ROWS = 2, 8
BLOCK = 32


class Projection(Protocol):
    """What the adapter needs of `trispark_lab.projection`."""

    CALLS: dict[str, int]
    prepare: Callable[[Sequence[Floats]], None]
    project: Callable[..., Floats]


@dataclass(frozen=True)
class Twin:
    """codes [G, out, in] e4m3; exponents [G, out/32, in/32], biased by 127."""

    codes: Bytes
    exponents: Bytes

    def dequantise(self) -> Floats:
        """float32 [G, out, in], in a fresh buffer."""
        groups, out, width = self.codes.shape
        # Repeated along the inner axis, the scales multiply in long runs.
        scales = np.repeat(e4m3.UE8M0_VALUES[self.exponents], BLOCK, axis=2)[:, :, None, :]
        values = np.take(e4m3.E4M3_VALUES, self.codes).reshape(groups, out // BLOCK, BLOCK, width)
        values *= scales
        return values.reshape(groups, out, width)

    def project(self, inputs: Floats) -> Floats:
        """[T, G, in] -> [T, G, out]."""
        weight = self.dequantise()
        return np.asarray(np.matmul(inputs.transpose(1, 0, 2), weight.transpose(0, 2, 1)).transpose(1, 0, 2))


def build_twin(weight: Floats) -> Twin | None:
    """Twin of a [G, out, in] weight, or None when it would not be exact."""
    if weight.ndim != 3 or weight.dtype != np.float32 or weight.shape[1] % BLOCK or weight.shape[2] % BLOCK:
        return None
    if not bool(np.isfinite(weight).all()):
        return None
    groups, out, width = weight.shape
    blocks = weight.reshape(groups, out // BLOCK, BLOCK, width // BLOCK, BLOCK).astype(np.float64)
    peak = np.maximum(np.abs(blocks).max(axis=(2, 4)), 2.0**-126)
    mantissa, power = np.frexp(peak / e4m3.E4M3_MAX)
    exponent = np.clip(np.where(mantissa == 0.5, power - 1, power), -127, 127).astype(np.int64)
    scaled = np.ldexp(blocks, -exponent[:, :, None, :, None]).reshape(weight.shape)
    narrow = scaled.astype(np.float32)
    codes, exact = e4m3.encode(narrow)
    if not bool(exact.all()):
        return None
    twin = Twin(codes, (exponent + e4m3.UE8M0_BIAS).astype(np.uint8))
    same = np.array_equal(twin.dequantise().view(np.uint32), np.ascontiguousarray(weight).view(np.uint32))
    return twin if same else None


class Adapter:
    """Twins by weight, and the two functions that replace the module's own."""

    def __init__(self, module: Projection, announce: Callable[[str], None] = logs.announce) -> None:
        self._calls = module.CALLS
        self._calls.setdefault("twin", 0)
        self._prepare = module.prepare
        self._project = module.project
        self._announce = announce
        self._twins: dict[int, tuple[Floats, Twin]] = {}
        self._seen = {"twin": 0, "dense": 0}

    def prepare(self, weights: Sequence[Floats]) -> None:
        """Build the twins once the weights are loaded."""
        self._prepare(weights)
        for weight in weights:
            twin = build_twin(weight)
            if twin is not None:
                self._twins[id(weight)] = (weight, twin)  # holds the weight, so that its id stays its own
        left = len(weights) - len(self._twins)
        self._announce(f"[wo_a_w8] fp8 twins for {len(self._twins)} wo_a weights, {left} left on float32")

    def project(self, inputs: Floats, weight: Floats, *args: Any, **kwargs: Any) -> Floats:
        """The twin for 2 to 8 rows of a weight that has one, else the engine's own function."""
        entry = self._twins.get(id(weight))
        if entry is None or not MIN_ROWS <= inputs.shape[0] <= MAX_ROWS:
            return self._project(inputs, weight, *args, **kwargs)
        self._calls["twin"] += 1
        return entry[1].project(inputs)

    def lines(self, final: bool) -> list[str]:
        """Stats source: calls by path since the line before."""
        delta = {name: self._calls[name] - self._seen[name] for name in self._seen}
        if not final and not any(delta.values()):
            return []
        self._seen = {name: self._calls[name] for name in self._seen}
        return [f"[wo_a_w8] calls twin={delta['twin']} dense={delta['dense']}"]


def install(module: ModuleType) -> None:
    """Replace `prepare` and `project` of trispark_lab.projection."""
    target = cast(Projection, module)
    adapter = Adapter(target)
    target.prepare = adapter.prepare
    target.project = adapter.project
    stats.register(adapter.lines)
