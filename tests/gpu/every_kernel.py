"""One small launch of each kernel, for the slow tools of compute-sanitizer (racecheck, synccheck, initcheck).

compute-sanitizer --tool racecheck python tests/gpu/every_kernel.py
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "adapters")]

import torch  # noqa: E402
from twin_data import activations, weight  # noqa: E402

from trispark_adapters.twin import DeviceProducts, twin_of_weight  # noqa: E402
from trispark_adapters.twin_device import device_kernels  # noqa: E402
from trispark_adapters.twin_plan import GB10_SHARED_BYTES, Chip, plan  # noqa: E402


def main() -> None:
    """Several blocks of rows a cluster, so that buffers are used again."""
    multiprocessors = 4
    chips = [Chip(multiprocessors, bytes_) for bytes_ in (GB10_SHARED_BYTES, device_kernels().chip.shared_bytes)]
    for columns, groups in ((4096, 2), (5120, 1)):
        rows = 192
        twin = twin_of_weight(weight(groups * rows, columns, 1), rows, exact=True)
        assert twin is not None
        for chip in chips:
            kernels = DeviceProducts(chip=chip)
            for tokens in (5, 13, 21, 40):
                out = kernels.product(twin, activations((tokens, groups, columns), tokens))
                torch.cuda.synchronize()
                launch = plan(tokens, groups, rows, columns, chip)
                print(launch.kernel.name, launch.grid, bool(out.isfinite().all()), flush=True)


if __name__ == "__main__":
    main()
