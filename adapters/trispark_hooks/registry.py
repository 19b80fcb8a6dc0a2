"""Which modules are hooked, by which adapter and under which switches.

The order of the hooks of a module is the order here, and it counts, for a later one wraps an earlier one: padding
before what reads the padded model; the backend of the Engram rows before what reads ahead for it; the twins of the
output projection before the verify cap, which wraps the forward; in the draft model the cap's confidence head before
the twins, the 8-bit head after them; the fence of the verify results before the cap; the skip of padding last, since
what it leaves out no other adapter computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .switches import Flag, Given, HookError, Number, OneOf, Switch, Text

__all__ = ["HOOKS", "Hook", "HookError", "hooks_of"]


@dataclass(frozen=True)
class Hook:
    """`installer` is "module:function", called with the hooked module once all of `switches` are on.

    `optional`: the module is one of later builds, and where it is missing there is nothing to patch.
    """

    adapter: str
    module: str
    installer: str
    switches: tuple[Switch, ...]
    optional: bool = False

    def enabled(self, environ: Mapping[str, str]) -> bool:
        """Whether all switches are on. HookError for a value that is none, also where another switch is off."""
        return all([switch.on(environ) for switch in self.switches])

    @property
    def remedy(self) -> str:
        """How the adapter is turned off: by the first of its switches."""
        first = self.switches[0]
        return f"{first.name}={first.off}"


ACCEPT: Final = "sglang.kernels.ops.speculative.dspark.dspark_accept"
ATTENTION: Final = "sglang.srt.layers.attention.deepseek_v4_backend"
AUTOTUNE: Final = "sglang.srt.model_executor.runner.flashinfer_autotune"
DRAFT: Final = "sglang.srt.models.deepseek_v4_dspark"
DSPARK: Final = "sglang.srt.speculative.dspark_components"
ENGRAM: Final = "sglang.srt.layers.engram"
MODEL: Final = "sglang.srt.models.deepseek_v4"
EMBEDDING: Final = "sglang.srt.layers.vocab_parallel_embedding"
QUANTIZATION: Final = "sglang.srt.layers.quantization"
ROUTER: Final = "sglang.kernels.ops.moe.moe_fused_gate"

WO_A: Final = (Flag("DSV41_WO_A_W8"),)
CAP: Final = (Text("DSV41_VERIFY_CAP", r"0|[1-5]|conf:[0-9.]+(,[0-9.]+)*", "0"),)
EMPTY: Final = (Number("DSV41_PREFILL_EMPTY_CACHE_TOKENS", 0, 1 << 20, 0, whole=True),)
FENCE: Final = (Flag("DSV41_FOLDED_FENCE"),)
MXFP8: Final = (OneOf("DSV41_MXFP8_BACKEND", ("b12x", "cudnn", "cutlass"), ("b12x", "cudnn", "cutlass")),)
PAD: Final = (Flag("DSV41_TP_PAD"),)
PREFETCH: Final = (Flag("DSV41_ENGRAM_PREFETCH"),)
SKIP: Final = (Flag("DSV41_PADDED_ATTENTION_SKIP"),)
ROWS: Final = (
    OneOf("OFFLOAD_MODE", ("nvme", "ram"), ("nvme",)),
    Given("DSV41_PACKED_DIR"),
    Given("DSV41_SOURCE"),
)
"""Rows come from the node's own disk: the engine is told where they lie, and not to keep them in memory."""


def _ours(
    module: str, adapter: str, function: str, switches: tuple[Switch, ...], *, file: str = "", optional: bool = False
) -> Hook:
    return Hook(adapter, module, f"trispark_adapters.{file or adapter}:{function}", switches, optional)


HOOKS: tuple[Hook, ...] = (
    # -- the lab's engine ----------------------------------------------------------------------------------------------
    Hook("lab_wo_a_w8", "trispark_lab.projection", "trispark_hooks.lab_wo_a_w8:install", WO_A),
    Hook("lab_engram_prefetch", "trispark_lab.engram", "trispark_hooks.lab_engram_prefetch:install", PREFETCH),
    # -- what serving on three of these nodes needs --------------------------------------------------------------------
    _ours(EMBEDDING, "tp3_pad", "install_vocabulary", PAD),
    _ours(f"{QUANTIZATION}.fp8_utils", "mxfp8_routing", "install", MXFP8),
    _ours(f"{QUANTIZATION}.fp8", "block_scales", "install", PAD),
    _ours("sglang.srt.layers.attention.dsv4.metadata", "indexer_metadata", "install", PAD),
    _ours("sglang.srt.model_executor.model_runner", "prefill_empty_cache", "install", EMPTY),
    # -- Engram and kernel tactics -------------------------------------------------------------------------------------
    _ours(ENGRAM, "engram_backend", "install", ROWS),
    _ours(ENGRAM, "engram_prefetch", "install", PREFETCH),
    _ours(AUTOTUNE, "autotune_keep", "install", (Flag("DSV41_AUTOTUNE_KEEP"),)),
    _ours(AUTOTUNE, "padded_attention_skip", "install_autotune", SKIP),
    # -- acceptance, drafting and verification -------------------------------------------------------------------------
    _ours(ACCEPT, "block_verify", "install", (Flag("DSV41_BLOCK_VERIFY"),)),
    _ours(f"{DSPARK}.dspark_draft_sampler", "draft_tau", "install", (Number("DSV41_DRAFT_TAU", 0.1, 2, 1),)),
    _ours(f"{DSPARK}.dspark_verify", "folded_fence", "install", FENCE),
    _ours(f"{DSPARK}.dspark_sampling_accept_graph", "folded_fence", "install_sampling_graph", FENCE, optional=True),
    _ours(f"{DSPARK}.dspark_verify", "verify_cap", "install_verify", CAP),
    _ours(f"{DSPARK}.dspark_draft", "verify_cap", "install_proposal", CAP),
    _ours(f"{DSPARK}.dspark_planner", "verify_cap", "install_planner", CAP),
    _ours(ROUTER, "verify_cap", "install_router", CAP),
    # -- the target model ----------------------------------------------------------------------------------------------
    _ours(MODEL, "tp3_pad", "install_model", PAD),
    _ours(MODEL, "wo_a_w8", "install_target", WO_A),
    _ours(MODEL, "verify_cap", "install_target", CAP),
    _ours(MODEL, "padded_attention_skip", "install_attention", SKIP),
    _ours(ATTENTION, "padded_attention_skip", "install_backend", SKIP),
    # -- the draft model -----------------------------------------------------------------------------------------------
    _ours(DRAFT, "tp3_pad", "install_draft", PAD),
    _ours(DRAFT, "verify_cap", "install_head", CAP),
    _ours(DRAFT, "wo_a_w8", "install_draft", WO_A),
    _ours(DRAFT, "draft_head_fp8", "install", (Flag("DSV41_DRAFT_HEAD_FP8"),)),
    _ours(DRAFT, "padded_attention_skip", "install_draft", SKIP),
)


def hooks_of(module: str, hooks: tuple[Hook, ...] = HOOKS) -> tuple[Hook, ...]:
    """Hooks of one module, never empty: a module that is not registered is an error."""
    found = tuple(hook for hook in hooks if hook.module == module)
    if not found:
        raise HookError(
            f"TS-ADAPTER-UNKNOWN: module has no hook [where: {module}] expected: one of "
            f"{sorted({hook.module for hook in hooks})}; observed: {module}; remedy: add it to the registry"
        )
    return found
