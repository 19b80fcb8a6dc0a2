"""Grouped output projection `wo_a`: one matrix a group, groups padded to a multiple of the ranks.

`ENTRY_POINTS` of this module are what the wo_a adapter replaces: `prepare` is called once after the weights of a rank
are loaded, `project` for each forward and layer. The engine always calls them through the module.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import e4m3

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

CALLS: dict[str, int] = {"dense": 0}
"""Calls by path; an adapter adds its own paths."""


def groups_per_rank(groups: int, world: int) -> int:
    """Local groups after padding: a power of two, as the field pads them (8 become 12 on three ranks, 4 each)."""
    local = 1
    while local * world < groups:
        local *= 2
    return local


def local_weight(codes: Bytes, scales: Bytes, groups: int, rank: int, world: int) -> Floats:
    """float32 [local groups, out, in] of this rank from e4m3 [groups * out, in] and its 32 x 32 ue8m0 scales.

    Groups beyond the checkpoint's are zero padding.
    """
    out = codes.shape[0] // groups
    local = groups_per_rank(groups, world)
    first = min(rank * local, groups)
    last = min(first + local, groups)
    weight = np.zeros((local, out, codes.shape[1]), dtype=np.float32)
    if last > first:
        blocks = slice(first * out // 32, last * out // 32)
        dense = e4m3.dequantise(codes[first * out : last * out], scales[blocks])
        weight[: last - first] = dense.reshape(last - first, out, -1)
    return weight


def prepare(weights: Sequence[Floats]) -> list[Floats]:
    """Told of all wo_a weights of this rank once they are loaded; what the rank is to hold in place of each."""
    return list(weights)


def project(inputs: Floats, weight: Floats, *, is_target_verify: bool = False) -> Floats:
    """[T, G, in] x [G, out, in] -> [T, G, out]. The flag says that all rows are verified or decoded, none prefilled."""
    CALLS["dense"] += 1
    return np.asarray(np.matmul(inputs.transpose(1, 0, 2), weight.transpose(0, 2, 1)).transpose(1, 0, 2))
