"""Engram lookups started as soon as the row ids are known, beside the computation that comes before they are needed.

`EngramHasher.forward` gives the ids of all layers at once; each layer then has its own stream, on which ids go to the
host, the row store looks them up in a host function, and rows come back. `_owned_rows` joins that stream
and dequantises.
A lookup is used only for the very ids it was started for (same memory, shape and capture); everything else takes the
synchronous path of `engram_backend`. Any error turns the prefetch off for this process, with one line, and the engine
goes on synchronously. With DSV41_ENGRAM_PREFETCH_CHECK=1 each prefetched gather is compared with a synchronous one.

Facts: field 3.2, 2.8; engine facts 2.2. Requires `engram_backend`, installed before it.
"""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trispark_adapters.engram_backend import NAME as BACKEND
from trispark_adapters.engram_backend import ROWS, LayerRows
from trispark_adapters.engram_pending import Book, Key, Pending, slice_key
from trispark_hooks import binding, evidence
from trispark_hooks.registry import HookError

NAME: Final = "engram_prefetch"
LOG: Final = "DSV41 Engram prefetch"
CHECK: Final = "DSV41_ENGRAM_PREFETCH_CHECK"


class Layer:
    """A layer that is read ahead: `index` is its place among the hasher's layers."""

    def __init__(self, index: int, rows: LayerRows) -> None:
        from trispark_adapters.engram_staging import Staging

        self.index = index
        self.rows = rows
        self.staging = Staging(rows.opened.store, rows.owned, f"{rows.where}, ahead")
        self.lanes: dict[Any, Any] = {}
        self.checks: dict[Any, Any] = {}

    @property
    def number(self) -> int:
        """The layer's number in the model."""
        return self.rows.placement.layer


class Prefetch:
    """State of one process. Called from the thread of the forward; the lines come from another."""

    def __init__(self, check: bool, say: evidence.Write = evidence.write) -> None:
        self._check = check
        self._say = say
        self._layers: dict[int, Layer] = {}
        self._book = Book()
        self._seen = (0, 0)
        self.enabled = True

    def add(self, index: int, rows: LayerRows | None) -> None:
        """A layer was built; a rank that owns none of its rows has nothing to read ahead."""
        if rows is None:
            return
        layer = Layer(index, rows)
        self._layers[layer.number] = layer
        suffix = ", CHECK" if self._check else ""
        numbers = sorted(self._layers)
        self._say(f"{LOG} ARMED: layers {numbers}, reads start when the row ids are known{suffix}")
        evidence.report(NAME, "armed", say=self._say, layers=",".join(map(str, numbers)), check=int(self._check))

    def ids_known(self, ids: Any) -> None:
        """Start the lookups of int64 `ids` [tokens, layers, columns]; other ids start none."""
        self._leave_all()
        if not self.enabled or ids.dim() != 3 or ids.shape[0] == 0 or not self._layers:
            return
        try:
            if not ids.is_contiguous():
                raise ValueError(f"row ids are not contiguous: strides {tuple(ids.stride())}")
            for layer in self._layers.values():
                self._fork(layer, ids)
        except Exception as error:
            self._disable(error)

    def take(self, rows: LayerRows, ids: Any) -> Any | None:
        """bf16 [*ids.shape, 256] of a lookup that was started for these `ids` [tokens, columns], else None."""
        layer = self._layers.get(rows.placement.layer)
        pending = self._book.take(rows.placement.layer)
        if layer is None or pending is None:
            return None
        from trispark_adapters.engram_staging import capturing

        if pending.key.captured != capturing(ids.device):
            return None  # an event of the one must not be waited for in the other
        try:
            layer.lanes[pending.ids.device].join(pending.ticket)  # a branch of a graph is joined even when it is no use
            if not self.enabled or key_of(ids) != pending.key:
                return None
            out = self._rows(layer, pending, ids)
            if self._check:
                self._compare(layer, out, rows.read(ids))
            return out
        except Exception as error:
            self._disable(error)
            return None

    def line(self) -> str | None:
        """Lookups by path since the line before, graph replays among them, and in check mode the differences."""
        layers = [self._layers[number] for number in sorted(self._layers)]
        now = (sum(layer.staging.calls for layer in layers), sum(layer.rows.staging.calls for layer in layers))
        served, synchronous = now[0] - self._seen[0], now[1] - self._seen[1]
        if not served and not synchronous:
            return None
        self._seen = now
        line = f"{LOG} served={served} synchronous={synchronous}"
        if self._check:
            line += f"\n{LOG} CHECK: gathers differing from the synchronous path per layer = {self.differing}"
        return line

    @property
    def differing(self) -> list[int]:
        """Differing gathers by layer since the start, -1 where nothing was compared."""
        return [_differing(self._layers[number]) for number in sorted(self._layers)]

    def _fork(self, layer: Layer, ids: Any) -> None:
        from trispark_adapters.engram_lane import lane_of
        from trispark_adapters.engram_staging import Shape, capturing

        tokens, layers, columns = ids.shape
        captured = capturing(ids.device)
        if ids.device not in layer.lanes:
            if captured:
                raise HookError(
                    f"TS-ADAPTER-ENGRAM-STAGING: the stream of a layer is missing in a capture [where: layer "
                    f"{layer.number}] expected: a forward before the first capture; observed: none; "
                    "remedy: leave the engine's warm-up before the capture on"
                )
            layer.lanes[ids.device] = lane_of(ids.device)
            if self._check:
                layer.checks[ids.device] = _Check(ids.device)
        if not captured:  # a capture may need the synchronous path, although no forward before it did
            layer.rows.staging.get(Shape(1, tokens * columns, tokens * columns), ids.device)
        shape = Shape(tokens, columns, layers * columns, layer.index * columns)
        staged = layer.staging.get(shape, ids.device)
        ticket = layer.lanes[ids.device].fork(staged, ids.view(-1))
        key = slice_key(ids.data_ptr(), tokens, layers, columns, layer.index, captured)
        self._book.put(layer.number, Pending(key, ids, staged, ticket))

    def _rows(self, layer: Layer, pending: Pending, ids: Any) -> Any:
        import torch

        from trispark_adapters import engram_staging as staging

        out = torch.empty(*ids.shape, staging.WEIGHT_BYTES, dtype=torch.bfloat16, device=ids.device)
        return staging.dequantise(pending.staged, out, layer.rows.gather)

    def _compare(self, layer: Layer, ahead: Any, now: Any) -> None:
        layer.checks[ahead.device].add(ahead, now)

    def _leave_all(self) -> None:
        """Nobody came for these; graphs that use their memory must not overtake them."""
        from trispark_adapters.engram_staging import capturing

        for number, pending in self._book.take_all().items():
            if pending.key.captured == capturing(pending.ids.device):  # else its graph is over, or was begun after it
                self._layers[number].lanes[pending.ids.device].leave(pending.ticket)

    def _disable(self, error: BaseException) -> None:
        self._leave_all()
        if self.enabled:
            self.enabled = False
            self._say(f"{LOG} disabled after error: {type(error).__name__}: {error}")
            evidence.report(NAME, "disabled", f"{type(error).__name__}: {error}", say=self._say)


class _Check:
    """Counts of differing and of compared gathers: on the device, so that a graph counts too, and in host memory, where
    a thread may read them without a call of CUDA."""

    def __init__(self, device: Any) -> None:
        import torch

        cuda = device.type == "cuda"
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)
        self._ones = torch.ones(1, dtype=torch.int64, device=device)
        self.seen = torch.zeros(2, dtype=torch.int64, pin_memory=cuda)

    def add(self, ahead: Any, now: Any) -> None:
        import torch

        differs = (ahead.view(torch.int16) != now.view(torch.int16)).any().to(torch.int64).view(1)
        self._counts.add_(torch.cat((differs, self._ones)))
        self.seen.copy_(self._counts, non_blocking=True)


def _differing(layer: Layer) -> int:
    seen = [check.seen.tolist() for check in layer.checks.values()]
    return sum(counts[0] for counts in seen) if any(counts[1] for counts in seen) else -1


def key_of(ids: Any) -> Key | None:
    """The key of int64 ids [tokens, columns] as a gather gets them; None for another form."""
    from trispark_adapters.engram_staging import capturing

    if ids.dim() != 2 or ids.stride(1) != 1 or ids.element_size() != 8:
        return None
    tokens, columns = ids.shape
    return Key(ids.data_ptr(), tokens, columns, int(ids.stride(0)), capturing(ids.device))


def between_segments() -> bool:
    """Whether the hasher runs between the segments of a prefill's graph. Its ids are then copied to where the segments
    have theirs, and nobody would come for rows that were read ahead."""
    try:
        from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import context
    except ImportError:  # a build without such graphs
        return False
    return bool(context.is_in_breakable_cuda_graph())


def install(module: ModuleType) -> None:
    """Wrap EngramHasher.forward, Engram.__init__ and EngramEmbedding._owned_rows of sglang.srt.layers.engram."""
    lookup = binding.symbol(module, "EngramEmbedding._owned_rows")
    if BACKEND not in getattr(lookup, binding.MARK, ()):
        raise HookError(
            f"TS-ADAPTER-ENGRAM-ORDER: the prefetch has no row store to read from [where: {module.__name__}] expected: "
            f"{BACKEND} installed before it; observed: the engine's own lookup; remedy: turn {BACKEND} on"
        )
    binding.require_parameters(binding.symbol(module, "EngramHasher.forward"), "input_ids", "forward_batch")
    prefetch = Prefetch(os.environ.get(CHECK) == "1")
    binding.replace(module, "EngramHasher.forward", NAME, lambda original: _hash(prefetch, original))
    binding.replace(module, "Engram.__init__", NAME, lambda original: _build(prefetch, original))
    binding.replace(module, "EngramEmbedding._owned_rows", NAME, lambda original: _gather(prefetch, original))
    evidence.REPORTER.follow(prefetch.line)


def _hash(prefetch: Prefetch, original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        ids = original(*args, **kwargs)
        if not between_segments():
            prefetch.ids_known(ids)
        return ids

    return forward


def _build(prefetch: Prefetch, original: Callable[..., None]) -> Callable[..., None]:
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        prefetch.add(int(self.layer_hash_index), getattr(self.embed, ROWS))

    return construct


def _gather(prefetch: Prefetch, original: Callable[..., Any]) -> Callable[..., Any]:
    def owned_rows(self: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        rows: LayerRows | None = getattr(self, ROWS)
        found = prefetch.take(rows, indices) if rows is not None else None
        return original(self, indices, *args, **kwargs) if found is None else found

    return owned_rows
