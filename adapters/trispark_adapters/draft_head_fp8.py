"""Draft logits from an 8-bit copy of the output head (facts of the field 3.3, engine 2.3).

The draft projects through the target's vocabulary-parallel head, bf16 [rows of this rank, 5120]. The copy halves the
bytes that a draft step reads. It is rounded, so that proposals change a little; the target's own logits, which decide
what is accepted, never go through it. Up to 64 rows; everything else, and a head that is not bf16 [rows, columns], is
the engine's own, and said so.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from trispark_hooks import binding
from trispark_hooks.evidence import Counters, counters, report, write

from .twin import DeviceProducts, Kernels, Twin, fits, transient_bytes, twin_of_weight
from .twin_device import TwinError

NAME: Final = "draft_head_fp8"
MODEL: Final = "DeepseekV4ForCausalLMDSpark"
TWIN: Final = "_trispark_head_twin"
"""Attribute of the draft model: the twin and the weight that it was made of."""
MAX_ROWS: Final = 64
ENGINE_SWITCH: Final = "_DSPARK_FP8_LM_HEAD"
"""Name in the engine's dspark module that is true where the engine itself uses an 8-bit head (from 0.5.22)."""

Say = Callable[[str], None]


class Adapter:
    """The two functions that stand in front of the draft model's own."""

    def __init__(self, kernels: Callable[[], Kernels], count: Counters, say: Say = write) -> None:
        self._make = kernels
        self._kernels: Kernels | None = None
        self._count = count
        self._say = say

    def attach(self, model: Any) -> None:
        """Build the copy, once the engine has given `model` its head."""
        setattr(model, TWIN, None)
        weight = getattr(getattr(model, "lm_head", None), "weight", None)
        found = _unfit(model, weight) or self._copied(weight)
        _empty_cache()
        if isinstance(found, str):
            self._say(f"[draft_head_fp8] stock path: {found}")
            report(NAME, "disabled", found, say=self._say)
            return
        setattr(model, TWIN, (found, weight))
        self._say(f"[draft_head_fp8] fp8 twin of the draft LM head {(found.rows, found.columns)}")
        mib = round(found.nbytes / (1 << 20), 1)
        transient = round(transient_bytes(found.columns) / (1 << 20), 1)
        report(NAME, "active", say=self._say, rows=found.rows, twin_mib=mib, transient_mib=transient)

    def _copied(self, weight: Any) -> Twin | str:
        try:
            self._kernels = self._kernels or self._make()
        except TwinError as error:
            return str(error)
        twin = twin_of_weight(weight.data, int(weight.shape[0]), exact=False)
        return twin or f"no kernel for a head of {tuple(weight.shape)}, or a value too large"

    def logits(self, model: Any, x_post_hc: Any, gather: Callable[..., Any], stock: Callable[[], Any]) -> Any:
        """Logits of the draft: bf16 [rows, vocabulary of this rank], or gathered where the engine does that."""
        found = getattr(model, TWIN, None)
        rows = int(x_post_hc.shape[0]) if x_post_hc.dim() == 2 else 0
        if found is None or model.lm_head.weight is not found[1] or not 1 <= rows <= MAX_ROWS:
            self._count.add("stock")
            return stock()
        twin: Twin = found[0]
        x = model.stages[-1].norm(x_post_hc)[:, None, :].to(found[1].dtype)
        if self._kernels is None or not fits(twin, x):
            self._count.add("stock")
            return stock()
        if not self._count.read()["twin"]:  # built is not used: a build may draft past this function
            self._say(f"[draft_head_fp8] draft logits from the twin, first for M={rows}")
        self._count.add("twin")
        local = self._kernels.product(twin, x)[:, 0, :]
        return local if model._opt_markov_w2_tp_shard else gather(local, model.lm_head)


def _unfit(model: Any, weight: Any) -> str | None:
    """Why this head keeps the engine's path, None when it does not."""
    import torch

    if weight is None or weight.dim() != 2 or weight.dtype != torch.bfloat16:
        return "the head is no bf16 matrix"
    if getattr(model, "_use_fp32_lm_head", False):
        return "the engine projects in float32"
    return None


def _empty_cache() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def install(module: ModuleType, adapter: Adapter | None = None) -> None:
    """Hook attach_shared_modules and _logits_from_x_post_hc of sglang.srt.models.deepseek_v4_dspark."""
    import sys

    attach = binding.symbol(module, f"{MODEL}.attach_shared_modules")
    binding.require_parameters(attach, "embed_tokens", "lm_head")
    binding.require_parameters(binding.symbol(module, f"{MODEL}._logits_from_x_post_hc"), "x_post_hc")
    gather = binding.symbol(module, "gather_and_crop_vocab")
    if getattr(sys.modules.get("sglang.srt.models.dspark"), ENGINE_SWITCH, False):
        report(NAME, "disabled", "the engine's own 8-bit head is on")
        return
    shared = adapter or Adapter(DeviceProducts, counters(NAME, "twin", "stock"))

    def wrap_attach(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def attach_shared_modules(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            shared.attach(self)
            return result

        return attach_shared_modules

    def wrap_logits(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _logits_from_x_post_hc(self: Any, *args: Any, **kwargs: Any) -> Any:
            x = kwargs["x_post_hc"] if "x_post_hc" in kwargs else args[0]
            return shared.logits(self, x, gather, lambda: original(self, *args, **kwargs))

        return _logits_from_x_post_hc

    binding.replace(module, f"{MODEL}.attach_shared_modules", NAME, wrap_attach)
    binding.replace(module, f"{MODEL}._logits_from_x_post_hc", NAME, wrap_logits)
    write("[draft_head_fp8] armed")
    report(NAME, "armed")
