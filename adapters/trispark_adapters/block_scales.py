"""Positive scales on blocks of zeros, without which a shard of padding leaves the MXFP8 kernels for slower ones.

The engine takes a block-FP8 weight to its MXFP8 kernels only if all scales are positive powers of two; the scales of a
shard that was never written are whatever lay in memory. A block of zeros has the value zero under any scale, so it gets
1. A block with a non-zero code keeps its scale, good or bad: that is the checkpoint's matter, and the engine's to
refuse. `tp3_pad` writes such scales itself; this is for shards that came another way. Facts: field 3.9, fork 2.2.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trispark_hooks import binding, evidence

NAME: Final = "block_scales"
COUNTERS: Final = evidence.counters(NAME, "layers", "blocks")


def repair(weight: Any, scale: Any, block: tuple[int, int]) -> int:
    """Blocks repaired in place: `weight` e4m3 [N, K], `scale` [ceil(N / bn), ceil(K / bk)] float32, e8m0 or exponents
    in bytes; `block` is (bn, bk)."""
    import torch

    bad = unusable(scale)
    if not bool(bad.any()):
        return 0
    empty = empty_blocks(weight, block)
    if empty.shape != scale.shape:
        raise ValueError(f"scales {tuple(scale.shape)} are not those of blocks {tuple(empty.shape)}")
    chosen = bad & empty
    count = int(chosen.sum())
    if scale.dtype == torch.float32:
        scale.masked_fill_(chosen, 1.0)
    else:
        scale.view(torch.uint8).masked_fill_(chosen, 127)
    return count


def unusable(scale: Any) -> Any:
    """Where a scale is no positive normal power of two: [..] bool."""
    import torch

    if scale.dtype == torch.float32:
        bits = scale.view(torch.int32)
        return (bits & 0x7FFFFF).ne(0) | bits.le(0) | bits.ge(0x7F800000)
    codes = scale.view(torch.uint8)
    return codes.eq(0) | codes.eq(255)  # 2**-127 is below float32's normal numbers, 255 is NaN


def empty_blocks(weight: Any, block: tuple[int, int]) -> Any:
    """Where a block of `weight` holds nothing but zeros of either sign: [ceil(N / bn), ceil(K / bk)] bool."""
    import torch

    rows, columns = weight.shape
    high, wide = block
    held = (weight.view(torch.uint8) & 0x7F).ne(0)
    padded = torch.nn.functional.pad(held, (0, -columns % wide, 0, -rows % high))
    return ~padded.view(-(-rows // high), high, -(-columns // wide), wide).any(dim=3).any(dim=1)


def install(module: ModuleType) -> None:
    """Wrap Fp8LinearMethod.process_weights_after_loading_block_quant of sglang.srt.layers.quantization.fp8."""
    path = "Fp8LinearMethod.process_weights_after_loading_block_quant"
    binding.require_parameters(binding.symbol(module, path), "layer")
    binding.replace(module, path, NAME, _wrap)
    evidence.write("DSV41 padded-shard block-scale repair installed")
    evidence.report(NAME, "armed")


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    def process(self: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        scale, block = getattr(layer, "weight_scale_inv", None), getattr(self, "weight_block_size", None)
        if scale is not None and block is not None and is_block_fp8(layer.weight, scale):
            count = repair(layer.weight.data, scale.data, (int(block[0]), int(block[1])))
            COUNTERS.add("layers", int(count > 0))
            COUNTERS.add("blocks", count)
        return original(self, layer, *args, **kwargs)

    return process


def is_block_fp8(weight: Any, scale: Any) -> bool:
    """Whether these are codes and scales of a plain linear layer."""
    import torch

    known = (torch.float32, torch.uint8, torch.float8_e8m0fnu)
    return weight.dtype == torch.float8_e4m3fn and weight.dim() == scale.dim() == 2 and scale.dtype in known
