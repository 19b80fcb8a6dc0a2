"""Memory through which rows go from the store to the device, and the host function that fills it.

On a stream: ids to pinned memory, the lookup as a host function, rows and scales to the device. The same sequence runs
eagerly and inside the capture of a CUDA graph. Memory is made by size (a power of two) and never given back, since a
graph may hold its address; inside a capture nothing is made. Lookups of one staging follow each other on one stream.
"""

import ctypes
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from engram_store import Job, Places, RowStore, Scratch, serve_address
from trispark_adapters.engram_watch import WATCH
from trispark_hooks.registry import HookError

WEIGHT_BYTES, SCALE_BYTES = 256, 8
BLOCK = 32
"""Columns of a row that share a scale."""


@dataclass(frozen=True)
class Shape:
    """Ids [tokens, columns], of which a token's lie `stride` elements after the one's before, from `offset` on."""

    tokens: int
    columns: int
    stride: int
    offset: int = 0

    @property
    def count(self) -> int:
        """Ids to look up."""
        return self.tokens * self.columns

    @property
    def span(self) -> int:
        """Elements of the tensor that holds the ids."""
        return self.tokens * self.stride


class Bucket:
    """Buffers for up to `capacity` ids: host ids int64 [span], weights [capacity, 256], scales [capacity, 8]
    bytes; the same weights and scales on the device; `order` int64 [capacity] 0, 1, ... there. On a CPU the device's
    buffers are the host's."""

    def __init__(self, capacity: int, span: int, device: Any) -> None:
        cuda = device.type == "cuda"
        self.ids = torch.empty(span, dtype=torch.int64, pin_memory=cuda)
        self.weights = torch.zeros(capacity, WEIGHT_BYTES, dtype=torch.uint8, pin_memory=cuda)
        self.scales = torch.zeros(capacity, SCALE_BYTES, dtype=torch.uint8, pin_memory=cuda)
        self.device_weights = torch.empty_like(self.weights, device=device) if cuda else self.weights
        self.device_scales = torch.empty_like(self.scales, device=device) if cuda else self.scales
        self.order = torch.arange(capacity, dtype=torch.int64, device=device)
        self.scratch = Scratch(capacity)


@dataclass(frozen=True)
class Staged:
    """Rows of one lookup: the first `count` of the bucket's buffers."""

    bucket: Bucket
    job: Job
    count: int


class Staging:
    """Buckets and jobs of one store, for one stream."""

    def __init__(self, store: RowStore, owned: tuple[int, int], where: str) -> None:
        self._store = store
        self._owned = owned
        self._where = where
        self._buckets: dict[tuple[int, int, Any], Bucket] = {}
        self._jobs: dict[tuple[Shape, Any, bool], Staged] = {}

    def get(self, shape: Shape, device: Any) -> Staged:
        """What a lookup of this shape uses; a graph's jobs are its own. HookError TS-ADAPTER-ENGRAM-STAGING inside a
        capture for whose size no forward was run before."""
        captured = capturing(device)
        staged = self._jobs.get((shape, device, captured))
        if staged is None:
            staged = self._jobs[(shape, device, captured)] = self._make(shape, device, captured)
        return staged

    @property
    def calls(self) -> int:
        """Lookups since the start, graph replays among them."""
        return sum(staged.job.calls for staged in tuple(self._jobs.values()))  # another thread may ask

    def _make(self, shape: Shape, device: Any, captured: bool) -> Staged:
        capacity, span = _power(shape.count), _power(shape.span)
        bucket = self._buckets.get((capacity, span, device))
        if bucket is None:
            if captured:
                raise HookError(
                    f"TS-ADAPTER-ENGRAM-STAGING: memory of a lookup is missing in a capture [where: {self._where}] "
                    f"expected: a forward of {shape.tokens} x {shape.columns} ids before it is captured; "
                    "observed: none; remedy: leave the engine's warm-up before the capture on"
                )
            bucket = self._buckets[(capacity, span, device)] = Bucket(capacity, span, device)
        places = Places(bucket.ids.data_ptr() + 8 * shape.offset, bucket.weights.data_ptr(), bucket.scales.data_ptr())
        job = Job(self._store, self._owned, places, shape.tokens, shape.columns, shape.stride, bucket.scratch)
        return Staged(bucket, job, shape.count)


def start(staged: Staged, ids: Any) -> None:
    """Look up `ids` (int64 [span], contiguous) on the current stream: what follows on it finds the rows."""
    bucket = staged.bucket
    bucket.ids[: ids.numel()].copy_(ids, non_blocking=True)
    if ids.is_cuda:
        if capturing(ids.device):
            WATCH.follow(staged.job)
        launch(torch.cuda.current_stream(ids.device).cuda_stream, staged.job)
    else:
        staged.job.run()
    to_device(staged)


def read_now(staged: Staged, ids: Any) -> None:
    """The same, with the lookup in this thread. Raises StoreError; waits for the current stream."""
    staged.bucket.ids[: ids.numel()].copy_(ids)
    staged.job.run()
    to_device(staged)


def to_device(staged: Staged) -> None:
    """Rows and scales to the device, on the current stream."""
    bucket, count = staged.bucket, staged.count
    if bucket.device_weights is not bucket.weights:
        bucket.device_weights[:count].copy_(bucket.weights[:count], non_blocking=True)
        bucket.device_scales[:count].copy_(bucket.scales[:count], non_blocking=True)


def dequantise(staged: Staged, out: Any, gather: Any) -> Any:
    """bf16 [..., 256] `out` from the staged rows, with the engine's own kernel `gather`, on a CPU as its torch path."""
    bucket, count = staged.bucket, staged.count
    flat = out.view(-1, WEIGHT_BYTES)
    if out.is_cuda:
        gather(
            bucket.device_weights.data_ptr(),
            bucket.device_scales.data_ptr(),
            bucket.order[:count],
            flat,
            WEIGHT_BYTES,
            BLOCK,
            row_lo=0,
            row_hi=count,
        )
        return out
    values = bucket.weights[:count].view(torch.float8_e4m3fn).float().unflatten(-1, (-1, BLOCK))
    scales = bucket.scales[:count].view(torch.float8_e8m0fnu).float().unsqueeze(-1)
    flat.copy_((values * scales).flatten(-2).to(torch.bfloat16))
    return out


def capturing(device: Any) -> bool:
    """Whether the current stream of this thread is being captured."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


@cache
def _launch_host_function() -> Any:
    """cuLaunchHostFunc of the driver, which is loaded wherever a stream exists."""
    call = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    call.restype = ctypes.c_int
    return call


def launch(stream: int, job: Job) -> None:
    """Put the lookup on a stream (cudaStream_t), also on one that is being captured. RuntimeError of the driver."""
    code = _launch_host_function()(stream, serve_address(), job.address)
    if code != 0:
        raise RuntimeError(f"cuLaunchHostFunc gives CUresult {code}")


def _power(count: int) -> int:
    return 1 << max(math.ceil(math.log2(max(count, 1))), 6)
