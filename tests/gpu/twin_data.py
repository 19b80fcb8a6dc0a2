"""Weights and activations of the real shapes, made on the GPU from a seed."""

from __future__ import annotations

from typing import Any

import torch

from trispark_adapters import twin_format

GROUP_ROWS, COLUMNS = 1024, 4096
HEAD = (43136, 5120)


def generator(seed: int) -> torch.Generator:
    return torch.Generator(device="cuda").manual_seed(seed)


def checkpoint(rows: int, columns: int, seed: int) -> tuple[Any, Any]:
    """(codes uint8 [rows, columns] without NaN, exponents uint8 [rows/32, columns/32]) like a checkpoint's."""
    source = generator(seed)
    codes = torch.randint(0, 256, (rows, columns), generator=source, device="cuda", dtype=torch.uint8)
    codes = torch.where((codes & 0x7F) == 0x7F, codes - 1, codes)
    shape = (rows // 32, columns // 32)
    exponents = torch.randint(108, 122, shape, generator=source, device="cuda", dtype=torch.uint8)
    return codes, exponents


def weight(rows: int, columns: int, seed: int) -> Any:
    """bf16 [rows, columns] that has an exact twin."""
    return twin_format.dequantise(*checkpoint(rows, columns, seed))


def activations(shape: tuple[int, ...], seed: int) -> Any:
    return torch.randn(shape, generator=generator(seed), device="cuda").to(torch.bfloat16)
