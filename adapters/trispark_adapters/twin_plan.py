"""How a product with a twin is launched: which kernel of native/twin_gemm, with which grid and how much shared memory.

The numbers of KERNELS are those of the kernels' source; a test compares them.
"""

from dataclasses import dataclass
from typing import Final

TILE_ROWS: Final = 16
TILE_K: Final = 32
ROWS: Final = 32
"""Rows of the weight that share scales and are worked on at a time."""
TOKENS: Final = 8
"""Tokens of one tensor-core tile."""
LARGEST_EXPONENT: Final = 134
"""Biased: 2**(134 - 127 + 120) is the largest power of two of bf16 that scales the bits of a code."""


@dataclass(frozen=True)
class Kernel:
    """One built kernel: `tiles` of 8 tokens, `warps` a block, `blocks` a cluster, `units` of 32 columns a warp.

    `residents`: thread blocks that one multiprocessor holds at a time. `staged`: activations stay in shared memory, of
    which a block then needs more than a GB10 has; else in registers. `once`: a cluster has ROWS rows, no more, and its
    sums lie where its activations lay.
    """

    name: str
    columns: int
    tiles: int
    warps: int
    blocks: int
    units: int
    residents: int
    staged: bool = False
    once: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of one chunk."""
        return self.tiles * TOKENS

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def shared_bytes(self) -> int:
        """Sums of the warps and of the cluster's blocks, both twice, float32; then the activations, bf16."""
        slots = -(-self.tokens // self.blocks)
        sums = 4 * 2 * (self.warps * self.tokens * (ROWS + 4) + self.blocks * slots * ROWS)
        activations = self.staged * 2 * self.tokens * TILE_K * self.units * self.warps
        return max(sums // 2, activations) if self.once else sums + activations


KERNELS: Final = (
    Kernel("twin_k4096_n1", 4096, tiles=1, warps=16, blocks=1, units=8, residents=1),
    Kernel("twin_k4096_n2_staged", 4096, tiles=2, warps=16, blocks=1, units=8, residents=1, staged=True),
    Kernel("twin_k4096_n2", 4096, tiles=2, warps=16, blocks=2, units=4, residents=1),
    Kernel("twin_k4096_n3_once", 4096, tiles=3, warps=16, blocks=1, units=8, residents=1, staged=True, once=True),
    Kernel("twin_k4096_n3", 4096, tiles=3, warps=8, blocks=2, units=8, residents=1),
    Kernel("twin_k5120_n1", 5120, tiles=1, warps=8, blocks=2, units=10, residents=2),
    Kernel("twin_k5120_n2_staged", 5120, tiles=2, warps=16, blocks=2, units=5, residents=1, staged=True),
    Kernel("twin_k5120_n2", 5120, tiles=2, warps=8, blocks=2, units=10, residents=1),
    Kernel("twin_k5120_n3_staged", 5120, tiles=3, warps=8, blocks=2, units=10, residents=1, staged=True),
    Kernel("twin_k5120_n3", 5120, tiles=3, warps=8, blocks=2, units=10, residents=1),
)
"""By tokens; of those for the same tokens the first that a block's shared memory allows is taken."""
GB10_SHARED_BYTES: Final = 99 << 10
"""What a block may have on compute capability 12.1."""
COLUMNS: Final = frozenset(kernel.columns for kernel in KERNELS)
"""Widths K that have kernels."""


@dataclass(frozen=True)
class Launch:
    """grid = (blocks of a cluster, chunks of tokens, clusters that share the rows)."""

    kernel: Kernel
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class Chip:
    """Multiprocessors, and the shared memory that one block may have."""

    multiprocessors: int
    shared_bytes: int


def plan(tokens: int, groups: int, group_rows: int, columns: int, chip: Chip) -> Launch:
    """The launch for [tokens, groups, columns] x [groups, group_rows, columns]; ValueError where no kernel fits.

    Chunks of tokens are as even as they can be: each reads the weight again, the second from the cache. The rows of a
    cluster are of one group. Among the divisions of the rows the one with the fewest rounds of work is taken, then the
    one with the fewest clusters.
    """
    fitting = [each for each in KERNELS if each.columns == columns and each.shared_bytes <= chip.shared_bytes]
    if not fitting or tokens < 1 or groups < 1 or group_rows < ROWS or group_rows % ROWS:
        raise ValueError(f"no kernel for {tokens} tokens, {groups} groups of {group_rows} x {columns}")
    chunks = -(-tokens // fitting[-1].tokens)
    each = -(-tokens // chunks)
    kernel = next(kernel for kernel in fitting if kernel.tokens >= each)
    slots = max(1, chip.multiprocessors * kernel.residents // kernel.blocks)
    blocks = group_rows // ROWS
    if kernel.once:
        return Launch(kernel, (kernel.blocks, chunks, groups * blocks))
    if groups == 1:
        return Launch(kernel, (kernel.blocks, chunks, min(slots, blocks)))
    shares = [share for share in range(1, blocks + 1) if blocks % share == 0]
    share = min(shares, key=lambda share: (-(-groups * share // slots) * (blocks // share), share))
    return Launch(kernel, (kernel.blocks, chunks, groups * share))
