"""No attention work on a rank whose attention shard is padding alone: its partial output is zero by construction.

With 64 heads padded to 96, rank 2 of 3 holds no real head, and its output projection is zero, so that every finite
input gives zero. There the query projection, the attention kernel and both output products are left out. What others
rest on stays, in the same order: the KV projection and its store, compressor and indexer updates, commits of the
request window, and the all-reduce, which adds zeros. Engram rows, experts and shared computation are not touched.

A layer is taken only after its three weights were proven zero, outside of a capture; one that is not zero is refused
with a line and computed as before. While FlashInfer times its kernels nothing is left out: all ranks time the same
products together, and one that timed fewer would leave the others waiting.

Facts: review section 6; field 3.9; engine 0.5.21 to 0.5.23. Requires `tp3_pad`.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from trispark_adapters.pad_plan import Plan, remembered
from trispark_adapters.tp3_pad import PLAN
from trispark_adapters.wo_a_twin import ZERO
from trispark_hooks import binding, evidence
from trispark_hooks.registry import HookError

NAME: Final = "padded_attention_skip"
STATE: Final = "trispark_skip"
"""Attribute of an attention layer: unproven, taken or kept; of its kernel's layer: True where taken."""
WEIGHTS: Final = ("wq_b", "wo_a", "wo_b")
COUNTERS: Final = evidence.counters(NAME, "forwards", "tuning", "kept")


class Skip:
    """State of one process."""

    def __init__(self) -> None:
        self._tuning = 0
        self._outputs: set[int] = set()
        self._said: set[str] = set()
        self.taken = 0

    @property
    def active(self) -> bool:
        """False while kernels are timed."""
        return self._tuning == 0

    @contextlib.contextmanager
    def tuning(self) -> Iterator[None]:
        """All ranks time the same kernels meanwhile."""
        self._tuning += 1
        try:
            yield
        finally:
            self._tuning -= 1

    def is_zero_output(self, weight: Any) -> bool:
        """Whether `weight` is the wo_a, or a view from its start, of a layer that was taken."""
        return self.active and weight.data_ptr() in self._outputs

    def prepare(self, attention: Any, kernel_layer: Any) -> None:
        """Decide once whether a layer is left out; `kernel_layer` is what it passes to the attention backend."""
        if getattr(attention, STATE, None) != "unproven" or _capturing(attention):
            return
        plan: Plan = getattr(attention, PLAN)
        if attention.attn_tp_size != plan.world:
            setattr(attention, STATE, "kept")
            return self._refuse(f"attention is split over {attention.attn_tp_size} ranks, the model over {plan.world}")
        held = [name for name in WEIGHTS if not is_zero(getattr(attention, name).weight)]
        if held:
            setattr(attention, STATE, "kept")
            COUNTERS.add("kept")
            return self._refuse(f"not zero on a rank of padding: {', '.join(held)} of layer {attention.layer_id}")
        setattr(attention, STATE, "taken")
        setattr(kernel_layer, STATE, True)
        attention.wo_b.quant_method = silent(attention.wo_b.quant_method, self)
        self._outputs.add(attention.wo_a.weight.data_ptr())
        self.taken += 1
        self._say("active", "")

    def _refuse(self, why: str) -> None:
        self._say("refused", why)

    def _say(self, state: str, why: str) -> None:
        if state not in self._said:  # once for all layers: the counters have the rest
            self._said.add(state)
            evidence.report(NAME, state, why)


def is_zero(weight: Any) -> bool:
    """Whether nothing but zeros of either sign is in a weight of any type, or was in one that wo_a_w8 released."""
    import torch

    released: bool | None = getattr(weight, ZERO, None)
    if released is not None:
        return released
    if weight.element_size() == 1 and weight.is_floating_point():
        return not bool((weight.view(torch.uint8) & 0x7F).any())
    return not bool(weight.any())


def silent(method: Any, skip: Skip) -> Any:
    """`method` of a linear layer, of the same kind, whose product is zeros; for another input it is computed."""
    import torch

    kind = type(method)

    def apply(self: Any, layer: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        bias = args[0] if args else kwargs.get("bias")
        plain = isinstance(x, torch.Tensor) and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        if not skip.active or bias is not None or not plain:
            return kind.apply(self, layer, x, *args, **kwargs)
        return x.new_zeros(*x.shape[:-1], layer.output_size)

    quiet = copy.copy(method)
    quiet.__class__ = type(f"Silent{kind.__name__}", (kind,), {"apply": apply})
    return quiet


def _capturing(attention: Any) -> bool:
    import torch

    return attention.wo_b.weight.is_cuda and bool(torch.cuda.is_current_stream_capturing())


SKIP: Final = Skip()


def install_attention(module: ModuleType, skip: Skip = SKIP) -> None:
    """Wrap MqaAttentionBase, MQALayer and the wo_a product of sglang.srt.models.deepseek_v4."""
    binding.require_parameters(binding.symbol(module, "MqaAttentionBase.__init__"), "config", "layer_id")
    binding.require_parameters(binding.symbol(module, "MQALayer._compute_q_b"), "q", "positions", "q_out")
    binding.require_parameters(binding.symbol(module, "MQALayer.forward"), "x", "positions", "forward_batch")
    binding.require_parameters(binding.symbol(module, "_apply_wo_a_bf16_matmul"), "o", "wo_a")
    binding.replace(module, "MqaAttentionBase.__init__", NAME, _mark)
    binding.replace(module, "MQALayer.forward", NAME, lambda original: _forward(skip, "attn_mqa", original))
    binding.replace(module, "MQALayer._compute_q_b", NAME, lambda original: _query(skip, original))
    binding.replace(module, "_apply_wo_a_bf16_matmul", NAME, lambda original: _product(skip, original))
    evidence.report(NAME, "armed")


def install_draft(module: ModuleType, skip: Skip = SKIP) -> None:
    """The same for DSparkAttention of sglang.srt.models.deepseek_v4_dspark, which holds the product by value."""
    binding.require_parameters(binding.symbol(module, "DSparkAttention._compute_q"), "x", "positions", "q_out")
    binding.require_parameters(binding.symbol(module, "DSparkAttention.forward"), "positions", "hidden_states")
    binding.replace(module, "DSparkAttention.forward", NAME, lambda original: _forward(skip, "attn", original))
    binding.replace(module, "DSparkAttention._compute_q", NAME, lambda original: _query(skip, original))
    binding.replace(module, "_apply_wo_a_bf16_matmul", NAME, lambda original: _product(skip, original))


def install_backend(module: ModuleType, skip: Skip = SKIP) -> None:
    """Wrap the kernel's part of DeepseekV4AttnBackend of sglang.srt.layers.attention.deepseek_v4_backend.

    HookError TS-ADAPTER-SYMBOL on builds whose backend has no part of its own for the kernel.
    """
    path = "DeepseekV4AttnBackend._forward_attention"
    found = binding.symbol(module, path)
    binding.require_parameters(found, "q", "k", "layer", "forward_batch", "compress_ratio", "save_kv_cache")
    binding.symbol(module, "DeepseekV4AttnBackend.store_cache")
    binding.replace(module, path, NAME, lambda original: _kernel(skip, original))


def install_autotune(module: ModuleType, skip: Skip = SKIP) -> None:
    """Leave nothing out inside flashinfer_autotune_context of sglang.srt.model_executor.runner.flashinfer_autotune."""
    binding.replace(module, "flashinfer_autotune_context", NAME, lambda original: _tuning(skip, original))


def _mark(original: Callable[..., None]) -> Callable[..., None]:
    def construct(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, config, *args, **kwargs)
        plan = remembered(config)
        if plan is None:
            raise HookError(
                f"TS-ADAPTER-SKIP-PAD: it is not known which heads are padding [where: layer {self.layer_id}] "
                "expected: a configuration padded by tp3_pad; observed: none; remedy: DSV41_TP_PAD=1"
            )
        setattr(self, PLAN, plan)
        if plan.only_padding(int(self.attn_tp_rank)):
            setattr(self, STATE, "unproven")

    return construct


def _forward(skip: Skip, kernel_layer: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        skip.prepare(self, getattr(self, kernel_layer))
        if getattr(self, STATE, None) == "taken":
            COUNTERS.add("forwards" if skip.active else "tuning")
        return original(self, *args, **kwargs)

    return forward


def _query(skip: Skip, original: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: Any, latent: Any, positions: Any, q_out: Any = None, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, STATE, None) != "taken" or not skip.active or getattr(self, "use_mega_attention", False):
            return original(self, latent, positions, q_out, *args, **kwargs)
        if q_out is not None:
            return q_out  # nobody reads it
        kind = self.q_norm.weight
        return kind.new_zeros(positions.shape[0], self.n_local_heads, self.head_dim)

    return compute


def _product(skip: Skip, original: Callable[..., Any]) -> Callable[..., Any]:
    def product(o: Any, wo_a: Any, *args: Any, **kwargs: Any) -> Any:
        # A caller that wants it quantised reads more than the values.
        plain = not (kwargs.get("fuse_mxfp8_quant") or kwargs.get("fp8_grid") or kwargs.get("emit_fp8") or args)
        if plain and skip.is_zero_output(wo_a):
            return o.new_zeros(o.shape[0], wo_a.shape[0], wo_a.shape[1])
        return original(o, wo_a, *args, **kwargs)

    return product


def _kernel(skip: Skip, original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def attend(self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        fused = kwargs.get("cos_sin_cache") is not None  # then the query comes raw and more is returned
        idle = forward_batch.forward_mode.is_idle()  # then the engine stores nothing
        if not (getattr(layer, STATE, False) and skip.active) or idle or fused or len(args) > 1:
            return original(self, q, k, v, layer, forward_batch, *args, **kwargs)
        if kwargs.get("save_kv_cache", True):
            self.store_cache(layer.layer_id, k, forward_batch)
        dtype = torch.bfloat16 if q.element_size() == 1 else q.dtype
        return torch.zeros(q.shape[0], q.shape[1], layer.v_head_dim, dtype=dtype, device=q.device)

    return attend


def _tuning(skip: Skip, original: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.contextmanager
    def context(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with skip.tuning(), original(*args, **kwargs) as value:
            yield value

    return context
