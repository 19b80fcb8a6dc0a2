"""Exact 8-bit twins of the lab engine's wo_a weights, used for 2 to 8 rows.

A twin is rebuilt from the float32 weight: for each 32 x 32 block an exponent from its largest magnitude, then e4m3
codes. It is kept only if it gives the weight back bit for bit; otherwise the layer stays on float32 and is counted as
left. Other row counts take the engine's own path.

DSV41_WO_A_W8_MID=1 adds 9 to 192 rows of forwards that only verify or decode. DSV41_WO_A_W8_DROP=1 releases the float32
copy of a weight that has a twin: the engine then holds a tag of the same shape, and whatever does not take the twin
path rebuilds the weight into a fresh buffer. The draft has no wo_a and is never touched.
"""

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from trispark_lab import e4m3, logs, stats

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

MIN_ROWS, MAX_ROWS, MAX_MID_ROWS = 2, 8, 192
BLOCK = 32
MAX_EXPONENT = 30
"""Scales of the quick product stay within 2**-30 .. 2**30, so that no value leaves float32's normal range."""
_HALF = np.float32(2.0**60)
_CODE_SHIFT = 20
_CODE_MASK = np.array(0x87F00000, dtype=np.uint32).view(np.int32)[()]


class Projection(Protocol):
    """What the adapter needs of `trispark_lab.projection`."""

    CALLS: dict[str, int]
    prepare: Callable[[Sequence[Floats]], list[Floats]]
    project: Callable[..., Floats]


class _Scratch(threading.local):
    """One group's weight as float32, reused within a thread: it stays in the processor's cache."""

    def __init__(self) -> None:
        self._tile: npt.NDArray[np.int32] = np.empty((0, 0), dtype=np.int32)

    def tile(self, shape: tuple[int, ...]) -> npt.NDArray[np.int32]:
        if self._tile.shape != shape:
            self._tile = np.empty(shape, dtype=np.int32)
        return self._tile


_scratch = _Scratch()


@dataclass(frozen=True)
class Run:
    """Rows [first, end) of one group whose blocks share the scales of their columns; scale [in], times 2**60."""

    first: int
    end: int
    scale: Floats


@dataclass(frozen=True)
class Twin:
    """codes [G, out, in] e4m3; exponents [G, out/32, in/32], biased by 127."""

    codes: Bytes
    exponents: Bytes
    runs: tuple[tuple[Run, ...], ...] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", _runs(self.exponents))

    def dequantise(self) -> Floats:
        """float32 [G, out, in], in a fresh buffer."""
        groups, out, width = self.codes.shape
        # Repeated along the inner axis, the scales multiply in long runs.
        scales = np.repeat(e4m3.UE8M0_VALUES[self.exponents], BLOCK, axis=2)[:, :, None, :]
        values = np.take(e4m3.E4M3_VALUES, self.codes).reshape(groups, out // BLOCK, BLOCK, width)
        values *= scales
        return values.reshape(groups, out, width)

    def project(self, inputs: Floats) -> Floats:
        """[T, G, in] -> [T, G, out].

        The seven bits of a code, moved to float32's exponent and mantissa, are its value times 2**-120. The scales of
        the blocks, and half of that factor, go to the inputs; the other half to the result. All are powers of two, so
        that every product and sum has the bits of the wide weight's.
        """
        groups, out, width = self.codes.shape
        if self.runs is None:
            weight = self.dequantise()
            return np.asarray(np.matmul(inputs.transpose(1, 0, 2), weight.transpose(0, 2, 1)).transpose(1, 0, 2))
        result = np.empty((groups, len(inputs), out), dtype=np.float32)
        tile = _scratch.tile((out, width))
        for group, runs in enumerate(self.runs):
            np.copyto(tile, self.codes[group].view(np.int8))
            np.left_shift(tile, _CODE_SHIFT, out=tile)
            np.bitwise_and(tile, _CODE_MASK, out=tile)
            for run in runs:
                np.matmul(
                    inputs[:, group] * run.scale,
                    tile[run.first : run.end].view(np.float32).T,
                    out=result[group, :, run.first : run.end],
                )
        result *= _HALF
        return np.asarray(result.transpose(1, 0, 2))


def _runs(exponents: Bytes) -> tuple[tuple[Run, ...], ...] | None:
    """The runs of each group; None when a scale is too far from 1 for the quick product."""
    powers = exponents.astype(np.int64) - e4m3.UE8M0_BIAS
    powers = np.where(powers == -e4m3.UE8M0_BIAS, 0, powers)  # a block of zeros has the smallest exponent
    if bool((np.abs(powers) > MAX_EXPONENT).any()):
        return None
    groups = []
    for rows in powers:
        changes = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1
        bounds = [0, *changes.tolist(), len(rows)]
        groups.append(
            tuple(
                Run(first * BLOCK, end * BLOCK, np.repeat(np.ldexp(_HALF, rows[first]), BLOCK).astype(np.float32))
                for first, end in itertools.pairwise(bounds)
            )
        )
    return tuple(groups)


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


@dataclass(frozen=True)
class Modes:
    """Switches beside the master."""

    mid: bool = False
    drop: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Modes":
        """From DSV41_WO_A_W8_MID and DSV41_WO_A_W8_DROP."""
        return cls(environ.get("DSV41_WO_A_W8_MID") == "1", environ.get("DSV41_WO_A_W8_DROP") == "1")


class Adapter:
    """Twins by weight, and the two functions that replace the module's own."""

    def __init__(
        self, module: Projection, announce: Callable[[str], None] = logs.announce, modes: Modes | None = None
    ) -> None:
        self._modes = modes or Modes()
        self._calls = module.CALLS
        paths = ["twin", "dense", *(["mid"] if self._modes.mid else []), *(["dequantised"] if self._modes.drop else [])]
        self._seen = dict.fromkeys(paths, 0)
        for path in paths:
            self._calls.setdefault(path, 0)
        self._prepare = module.prepare
        self._project = module.project
        self._announce = announce
        self._twins: dict[int, tuple[Floats, Twin]] = {}

    def prepare(self, weights: Sequence[Floats]) -> list[Floats]:
        """Build the twins once the weights are loaded; what the engine is to hold in place of each weight."""
        held = self._prepare(weights)
        released = 0
        for index, weight in enumerate(held):
            twin = build_twin(weight)
            if twin is None:
                continue
            if self._modes.drop:
                released += weight.nbytes
                # One element under the weight's shape: whoever reads it without this adapter gets nonsense, at once.
                held[index] = np.broadcast_to(np.full(1, np.nan, dtype=np.float32), weight.shape)
            self._twins[id(held[index])] = (held[index], twin)  # holds its key, so that the id stays its own
        count, left = len(self._twins), len(held) - len(self._twins)
        self._announce(f"[wo_a_w8] fp8 twins for {count} wo_a weights, {left} left on float32")
        if self._modes.mid:
            self._announce(f"[wo_a_w8] mid path armed: {MAX_ROWS + 1}..{MAX_MID_ROWS} rows of verify forwards")
        if self._modes.drop:
            megabytes = f"{released / 1e6:.1f} MB"
            self._announce(f"[wo_a_w8] released the float32 copy of {count} wo_a weights ({megabytes}); {left} kept")
        return held

    def project(self, inputs: Floats, weight: Floats, *args: Any, **kwargs: Any) -> Floats:
        """The twin where it applies, else the engine's own function, on the rebuilt weight if it was released."""
        entry = self._twins.get(id(weight))
        if entry is None:
            return self._project(inputs, weight, *args, **kwargs)
        path = self._path(inputs, weight, bool(kwargs.get("is_target_verify", False)))
        if path is not None:
            self._calls[path] += 1
            return entry[1].project(inputs)
        if self._modes.drop:
            self._calls["dequantised"] += 1
            weight = entry[1].dequantise()
        return self._project(inputs, weight, *args, **kwargs)

    def lines(self, final: bool) -> list[str]:
        """Stats source: calls by path since the line before."""
        delta = {name: self._calls[name] - self._seen[name] for name in self._seen}
        if not final and not any(delta.values()):
            return []
        self._seen = {name: self._calls[name] for name in self._seen}
        return ["[wo_a_w8] calls " + " ".join(f"{name}={count}" for name, count in delta.items())]

    def _path(self, inputs: Floats, weight: Floats, verify: bool) -> str | None:
        """Name of the twin path for these inputs, or None."""
        if inputs.ndim != 3 or inputs.dtype != np.float32 or inputs.shape[1:] != (weight.shape[0], weight.shape[2]):
            return None
        rows = inputs.shape[0]
        if MIN_ROWS <= rows <= MAX_ROWS:
            return "twin"
        return "mid" if self._modes.mid and verify and MAX_ROWS < rows <= MAX_MID_ROWS else None


def install(module: ModuleType) -> None:
    """Replace `prepare` and `project` of trispark_lab.projection."""
    target = cast(Projection, module)
    adapter = Adapter(target, modes=Modes.of(os.environ))
    target.prepare = adapter.prepare
    target.project = adapter.project
    stats.register(adapter.lines)
