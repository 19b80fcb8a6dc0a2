"""Checks and measures the adapters' kernels on a GPU; under 10 minutes on an H200.

    python tests/gpu/run.py --out DIR [--only PART ...] [--quick]

It needs a GPU of compute capability 9.0 or 12.1, torch with CUDA 13 and this checkout; what compares with the engine's
own kernels also the wheels of sglang 0.5.21 and msgspec on PYTHONPATH.
Writes DIR/gpu-adapters.json; status 1 when a check failed. --quick checks a few shapes and measures nothing: for
compute-sanitizer. Each part is a module here with `run(out: dict) -> None`, which adds its results to `out` and what
failed to out["errors"] (or to an entry of its own name, with ok = false).
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PARTS = ("twins", "twin_speed", "block_verify", "verify_cap", "engram_prefetch")
QUICK_PARTS = ("twins",)
FILE = "gpu-adapters.json"


def device() -> dict[str, Any]:
    """What the measurement ran on."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    return {
        "name": properties.name,
        "gpus": torch.cuda.device_count(),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "l2_mib": properties.L2_cache_size >> 20,
        "driver": driver[0] if driver else "unknown",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def main() -> int:
    """0 when all checks hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to run; all that are there when not given")
    parser.add_argument("--quick", action="store_true", help="a few shapes, nothing is measured")
    given = parser.parse_args()
    sys.path[:0] = [str(HERE), str(ROOT / "adapters"), str(ROOT / "src")]
    wanted = given.only or (QUICK_PARTS if given.quick else PARTS)
    out: dict[str, Any] = {
        "device": device(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python tests/gpu/run.py --out DIR" + (f" --only {' '.join(given.only)}" if given.only else ""),
        "quick": given.quick,
        "parts": [],
        "errors": [],
    }
    for name in wanted:
        if not (HERE / f"{name}.py").is_file():
            continue
        try:
            importlib.import_module(name).run(out)
            if out.get(name, {}).get("ok") is False:
                out["errors"].append(f"{name}: a check failed; its entry has more")
        except Exception:  # one part that breaks must not cost the others' results
            out["errors"].append(f"{name}: {traceback.format_exc()}")
        out["parts"].append(name)
        print(f"{name}: {len(out['errors'])} errors so far", flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(out, indent=1, sort_keys=True).replace(str(ROOT), "CHECKOUT")  # results name no place
    (given.out / FILE).write_text(f"{text}\n", encoding="utf-8")
    print("\n".join(out["errors"]) or "all checks hold")
    return 1 if out["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
