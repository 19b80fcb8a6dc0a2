"""Twins of a model's wo_a weights: which exist, where they are kept, and the release of the wide copies.

A rank's wo_a is [groups * 1024, 4096] (4 groups with three ranks), of which the engine passes a view; a twin is known
by the address of the weight. A weight whose wide copy was released is a view of one element with the weight's shape:
its address stays its own, whoever reads it without this adapter gets NaN, at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from .twin import Kernels, Twin, transient_bytes, twin_of_codes, twin_of_weight

GROUP_ROWS: Final = 1024
"""o_lora_rank, where the attention does not say it."""
RELEASED: Final = "trispark_released"
"""Attribute of a holder whose wide copy is gone: the `Twin` that has its values."""
OWN_READERS: Final = ("use_fused_wo_a", "mega_wo_a")
"""Attributes of an attention that, when true, reads the weight past the dispatch: its wide copy is kept."""


@dataclass(frozen=True)
class Layer:
    """One attention's wo_a. `holder` is the linear whose `weight` the engine reads."""

    attention: Any
    holder: Any

    @property
    def weight(self) -> Any:
        return self.holder.weight

    @property
    def group_rows(self) -> int:
        return int(getattr(self.attention, "o_lora_rank", GROUP_ROWS))

    @property
    def released_apart(self) -> bool:
        """Whether everything that reads the weight goes through the dispatch."""
        return not any(getattr(self.attention, name, False) for name in OWN_READERS)


def layers_of(model: Any) -> Iterator[Layer]:
    """Attentions of `model` that have a wo_a with a weight, in the order of its modules."""
    for module in model.modules():
        holder = getattr(module, "wo_a", None)
        if getattr(holder, "weight", None) is not None:
            yield Layer(module, holder)


@dataclass
class Entry:
    """A twin in use. `released`: no wide copy exists. `tag` keeps the address that the twin is known by."""

    twin: Twin
    layer: Layer
    released: bool = False
    tag: Any = None


@dataclass
class Taken:
    """What became of one model's weights."""

    twins: int = 0
    left: int = 0
    released: int = 0
    kept: int = 0
    twin_bytes: int = 0
    released_bytes: int = 0
    transient_bytes: int = 0


@dataclass
class Twins:
    """All twins of this process by the address of the weight that the engine passes."""

    kernels: Kernels
    entries: dict[int, Entry] = field(default_factory=dict)

    def find(self, weight: Any) -> Entry | None:
        return self.entries.get(int(weight.data_ptr()))

    def take(self, model: Any, drop: bool, done: Callable[[], None] = lambda: None) -> Taken:
        """Build the twins of `model`, one layer after the other; with `drop` each wide copy goes before the next layer.

        Beside weights and twins that needs at most `Taken.transient_bytes`: the slices of a conversion, or one
        weight that is widened and compared. `done` is called at the end, where temporaries can be given back.
        """
        taken = Taken()
        for layer in layers_of(model):
            entry = self._built(layer)
            if entry is None:
                taken.left += 1
                continue
            columns, wide = entry.twin.columns, 2 * int(entry.twin.codes.numel())
            taken.transient_bytes = max(taken.transient_bytes, transient_bytes(columns), wide + wide // 2)
            taken.twins += 1
            taken.twin_bytes += entry.twin.nbytes
            if drop and not entry.released:
                if layer.released_apart:
                    _release(entry)
                    taken.released_bytes += wide
                else:
                    taken.kept += 1
            taken.released += entry.released
            self.entries[int(layer.weight.data_ptr())] = entry
        if drop:
            taken.kept += taken.left
        done()
        return taken

    def give_back(self, model: Any) -> None:
        """Forget the twins of `model`, whose weights are about to be loaded again; released ones become wide first."""
        for layer in layers_of(model):
            entry = self.entries.pop(int(layer.weight.data_ptr()), None)
            if entry is not None and entry.tag is not None:
                layer.weight.data = self.kernels.widen(entry.twin)
                delattr(layer.holder, RELEASED)

    def _built(self, layer: Layer) -> Entry | None:
        import torch

        weight = layer.weight.data
        scales = getattr(layer.holder, "weight_scale_inv", None)
        if weight.dtype == torch.float8_e4m3fn and scales is not None:
            if scales.dtype not in (torch.uint8, torch.float8_e8m0fnu):
                return None
            twin = twin_of_codes(weight, scales.data, layer.group_rows)
            return None if twin is None else Entry(twin, layer, released=True)
        twin = twin_of_weight(weight, layer.group_rows, exact=True)
        if twin is None or not torch.equal(self.kernels.widen(twin).view(torch.int16), weight.view(torch.int16)):
            return None
        return Entry(twin, layer)


def _release(entry: Entry) -> None:
    import torch

    weight = entry.layer.weight
    entry.tag = torch.full((1,), float("nan"), dtype=weight.dtype, device=weight.device)
    weight.data = entry.tag.expand(weight.shape)
    setattr(entry.layer.holder, RELEASED, entry.twin)
    entry.released = True
