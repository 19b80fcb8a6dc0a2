"""Compile the Triton kernels of speculation for a GPU that is not here; prints {kernel: bytes of its binary} as JSON.

compiled_kernels.py CAPABILITY...    as 90 for an H200, 121 for a GB10
"""

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from trispark_adapters import block_verify_kernels as block
from trispark_adapters.verify_cap_triton import copy_anchor

FLOATS = {"values", "stats", "temperatures", "draft", "masses", "uniforms", "weights"}
WHOLES = {"tokens", "verify_lens", "token_out", "live"}
INTS = {"ids", "packed", "kept_out", "trim_out"}
BLOCK = {"GAMMA": 5, "TILES": 32, "SIZE": 4096}
KERNELS: list[tuple[str, Any, dict[str, Any]]] = [
    ("stats", block._stats, {"ROWS": 6, "SIZE": 4096}),
    *(
        (f"{name} {probs=} {cut=}", kernel, BLOCK | {"HAS_PROBS": probs, "HAS_CUT": cut})
        for name, kernel in (("masses", block._masses), ("choose", block._choose))
        for probs, cut in ((False, True), (True, False))
    ),
    ("remap", copy_anchor, {"ROWS": 64, "WIDTH": 8, "HAS_PACKED": True}),
]


def signature(kernel: Any, constants: dict[str, Any]) -> dict[str, str]:
    """Types of a kernel's arguments by their names."""
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name in FLOATS:
            types[name] = "*fp32"
        elif name in WHOLES:
            types[name] = "*i64"
        else:
            types[name] = "*i32" if name in INTS else "i32"
    return types


def main(capabilities: list[int]) -> None:
    found = {}
    for capability in capabilities:
        target = GPUTarget("cuda", capability, 32)
        for name, kernel, constants in KERNELS:
            source = ASTSource(kernel, signature(kernel, constants), constexprs=constants)
            compiled = triton.compile(source, target=target, options={"num_warps": 1 if name == "remap" else 8})
            found[f"{name} sm_{capability}"] = len(compiled.asm["cubin"])
    print(json.dumps(found))


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]])
