"""A weight's twin on the device, and products with it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from . import twin_format
from .twin_device import Arguments, DeviceKernels, device_kernels
from .twin_format import SLICE_ROWS, Coded
from .twin_plan import COLUMNS, ROWS, TILE_K, Chip, plan


@dataclass(frozen=True)
class Twin:
    """codes: packed uint8 [groups * rows * columns]; exponents: uint8 [groups * rows / 32, columns / 32]."""

    codes: Any
    exponents: Any
    groups: int
    rows: int
    columns: int

    @property
    def nbytes(self) -> int:
        return int(self.codes.numel()) + int(self.exponents.numel())


class Kernels(Protocol):
    """What is done with a twin."""

    def product(self, twin: Twin, x: Any) -> Any:
        """bf16 [tokens, groups, rows] of x [tokens, groups, columns], which `fits` accepts."""

    def widen(self, twin: Twin) -> Any:
        """The weight, bf16 [groups * rows, columns], in a fresh buffer."""


def fits(twin: Twin, x: Any) -> bool:
    """Whether the kernel takes x: bf16 [tokens, groups, columns] where the twin is, columns without gaps, every row of
    it on a boundary of 16 bytes. Tokens and groups may lie apart."""
    import torch

    return (
        x.dim() == 3
        and x.dtype == torch.bfloat16
        and x.device == twin.codes.device
        and x.shape[0] > 0
        and tuple(x.shape[1:]) == (twin.groups, twin.columns)
        and x.stride(2) == 1
        and x.stride(0) % 8 == 0
        and x.stride(1) % 8 == 0
        and x.data_ptr() % 16 == 0
    )


class DeviceProducts:
    """Kernels of the GPU. `chip`: what launches are planned for, when it is not this GPU (for tests)."""

    def __init__(self, kernels: DeviceKernels | None = None, chip: Chip | None = None) -> None:
        import torch

        self._torch = torch
        self._kernels = kernels or device_kernels()
        self._chip = chip or self._kernels.chip

    def product(self, twin: Twin, x: Any) -> Any:
        tokens = int(x.shape[0])
        out = self._torch.empty((tokens, twin.groups, twin.rows), dtype=self._torch.bfloat16, device=x.device)
        launch = plan(tokens, twin.groups, twin.rows, twin.columns, self._chip)
        self._kernels.product(
            launch,
            Arguments(
                twin.codes.data_ptr(),
                twin.exponents.data_ptr(),
                x.data_ptr(),
                out.data_ptr(),
                x.stride(0),
                x.stride(1),
                tokens,
                twin.groups * twin.rows,
                twin.rows,
            ),
        )
        return out

    def widen(self, twin: Twin) -> Any:
        rows = twin.groups * twin.rows
        out = self._torch.empty((rows, twin.columns), dtype=self._torch.bfloat16, device=twin.codes.device)
        self._kernels.widen(twin.codes.data_ptr(), twin.exponents.data_ptr(), out.data_ptr(), rows, twin.columns)
        return out


def transient_bytes(columns: int) -> int:
    """What `twin_of_weight` needs at most beside the weight and the twin."""
    return 24 * SLICE_ROWS * columns


def twin_of_weight(weight: Any, group_rows: int, *, exact: bool) -> Twin | None:
    """Twin of a bf16 [groups * group_rows, columns] weight, SLICE_ROWS rows at a time.

    None when there is none: a shape without a kernel, a value that is not finite, a block too large, or, with `exact`,
    a bit of the weight that the twin would not give back.
    """
    import torch

    if weight.dim() != 2 or weight.dtype != torch.bfloat16:
        return None
    return _built(weight.shape, group_rows, weight.device, exact, lambda one: twin_format.quantise(weight[one]))


def twin_of_codes(codes: Any, exponents: Any, group_rows: int) -> Twin | None:
    """Twin of a weight that the engine holds as the checkpoint does: e4m3 [groups * group_rows, columns] and one ue8m0
    scale for each 32 x 32 block. None for a shape without a kernel, a code that is NaN, or a block too large."""
    import torch

    from .twin_plan import LARGEST_EXPONENT

    if codes.dim() != 2 or codes.dtype not in (torch.float8_e4m3fn, torch.uint8):
        return None
    rows, columns = codes.shape
    bytes_of, scales = codes.view(torch.uint8), exponents.view(torch.uint8)
    if tuple(scales.shape) != (rows // ROWS, columns // TILE_K) or int(scales.max()) > LARGEST_EXPONENT:
        return None

    def coded(one: slice) -> Coded | None:
        part = bytes_of[one]
        if bool(((part & 0x7F) == 0x7F).any()):
            return None
        return Coded(part, scales[one.start // ROWS : one.stop // ROWS], exact=True)

    return _built(codes.shape, group_rows, codes.device, True, coded)


def _built(
    shape: tuple[int, int], group_rows: int, device: Any, exact: bool, coded: Callable[[slice], Coded | None]
) -> Twin | None:
    import torch

    rows, columns = shape
    if columns not in COLUMNS or group_rows % ROWS or rows == 0 or rows % group_rows:
        return None
    packed = torch.empty(rows * columns, dtype=torch.uint8, device=device)
    exponents = torch.empty((rows // ROWS, columns // TILE_K), dtype=torch.uint8, device=device)
    for one in _slices(rows):
        part = coded(one)
        if part is None or (exact and not part.exact):
            return None
        packed[one.start * columns : one.stop * columns] = twin_format.pack(part.codes)
        exponents[one.start // ROWS : one.stop // ROWS] = part.exponents
    if packed.is_cuda:  # a product reads its weight before it waits for the kernel before it
        torch.cuda.current_stream(packed.device).synchronize()
    return Twin(packed, exponents, rows // group_rows, group_rows, columns)


def _slices(rows: int) -> Iterator[slice]:
    return (slice(first, min(first + SLICE_ROWS, rows)) for first in range(0, rows, SLICE_ROWS))
