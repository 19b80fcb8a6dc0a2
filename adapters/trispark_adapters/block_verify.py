"""Sampled blocks accepted jointly: AcceptSampling.execute of SGLang up to 0.5.21 (facts of the field 3.5, engine 2.5).

From 0.5.22 the engine has the rule itself, behind --speculative-use-block-verification: nothing is patched there, and
the adapter says whether the flag is on. Random numbers are one draw a call from the device's generator, so ranks that
hold the same generator and batch agree. A cut of the verify cap is understood: drafts beyond it count as never made.
"""

import inspect
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from trispark_hooks.binding import build, replace, require_parameters, symbol
from trispark_hooks.evidence import Counters, counters, report, write
from trispark_hooks.registry import HookError

NAME: Final = "block_verify"
NATIVE_FLAG: Final = "--speculative-use-block-verification"
PARAMETERS: Final = (
    "candidates",
    "target_logits",
    "draft_probs",
    "sampling_info",
    "draft_input",
    "gamma",
    "verify_num_draft_tokens",
    "cutoff_verify_lens",
)


def native(module: ModuleType) -> bool:
    """Whether the engine accepts jointly by itself."""
    core = symbol(module, "_accept_sampling_core")
    return "block_verification" in inspect.signature(core).parameters


def target_probabilities(module: ModuleType, logits: Any, info: Any, draft_input: Any, bs: int, rows: int) -> Any:
    """[bs, rows, V] as the engine itself makes them for top-k or top-p, else by its softmax."""
    if info.need_top_k_sampling or info.need_top_p_sampling:
        return module.build_dflash_verify_target_probs(
            next_token_logits=logits,
            sampling_info=info,
            draft_token_num=rows,
            bs=bs,
            max_top_k=draft_input.max_top_k,
            uniform_top_k_value=draft_input.uniform_top_k_value,
        )
    probabilities = module.SoftmaxTemp.execute(logits=logits, temperatures=info.temperatures, rows_per_request=rows)
    return probabilities.view(bs, rows, -1)


def accept(module: ModuleType, **given: Any) -> tuple[Any, Any, Any]:
    """(kept drafts int32 [bs], next token int64 [bs], zeros int32 [bs]) of one call of the engine.

    given: candidates int64 [bs, g + 1]; target_logits [bs * (g + 1), V]; draft_probs float32 [bs, g, V];
    cutoff_verify_lens int [bs] or None, the anchor counted; the rest as the engine has it.
    """
    import torch

    candidates, logits, draft = given["candidates"], given["target_logits"], given["draft_probs"]
    info, verify_lens = given["sampling_info"], given.get("cutoff_verify_lens")
    bs, gamma = candidates.shape[0], given["gamma"]
    uniforms = torch.rand((bs, gamma + 1), dtype=torch.float32, device=candidates.device)
    filtered = info.need_top_k_sampling or info.need_top_p_sampling
    if candidates.is_cuda:
        from . import block_verify_kernels

        if filtered:
            values = target_probabilities(module, logits, info, given["draft_input"], bs, gamma + 1)
            return block_verify_kernels.accept(values, None, draft, candidates, verify_lens, uniforms)
        return block_verify_kernels.accept(logits, info.temperatures, draft, candidates, verify_lens, uniforms)
    from . import block_verify_math

    target = target_probabilities(module, logits, info, given["draft_input"], bs, gamma + 1)
    live = block_verify_math.live_drafts(verify_lens, bs, gamma, candidates.device)
    kept, token = block_verify_math.accept(target, draft, candidates[:, 1:], live, uniforms)
    return kept, token, torch.zeros_like(kept)


def install(module: ModuleType) -> None:
    """Replace AcceptSampling.execute of sglang.kernels.ops.speculative.dspark.dspark_accept."""
    if native(module):
        say_native(sys.argv)
        return
    symbol(module, "SoftmaxTemp.execute")
    symbol(module, "build_dflash_verify_target_probs")
    require_parameters(symbol(module, "AcceptSampling.torch"), *PARAMETERS)
    unknown = set(inspect.signature(module.AcceptSampling.torch).parameters) - set(PARAMETERS)
    if unknown:
        raise HookError(
            f"TS-ADAPTER-SIGNATURE: a function of the engine takes further parameters "
            f"[where: {build()}, {module.__name__}.AcceptSampling] expected: {', '.join(PARAMETERS)}; "
            f"observed: {', '.join(sorted(unknown))} too; "
            "remedy: ./trispark adapters check names the builds that this adapter binds to"
        )
    count = counters(NAME, "calls", "cut")

    def wrap(original: Any) -> Any:
        def execute(*_: Any, **kwargs: Any) -> Any:  # a class method or a static one, by build; all goes by keyword
            _note(count, kwargs.get("cutoff_verify_lens") is not None)
            return accept(module, **kwargs)

        return execute

    replace(module, "AcceptSampling.execute", NAME, wrap)
    report(NAME, "armed")
    write("[block_verify] armed: joint acceptance of sampled blocks")


def say_native(arguments: Sequence[str]) -> None:
    """Report of an engine that has the rule itself, by whether its own flag is among `arguments`."""
    if NATIVE_FLAG in arguments:
        report(NAME, "armed", "the engine's own block verification is used; nothing is patched", native=1)
        write("[block_verify] armed: the engine's own block verification")
        return
    reason = f"the engine has it itself: start it with {NATIVE_FLAG}"
    report(NAME, "refused", reason, native=1)
    write(f"[block_verify] refused: {reason}")


def _note(count: Counters, cut: bool) -> None:
    first = not count.read()["calls"]
    count.add("calls")
    if cut:
        count.add("cut")
    if first:
        report(NAME, "active")
        write("[block_verify] sampled blocks=1")
